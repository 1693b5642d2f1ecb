//! Ends calls in flight that wait for input when a reload hides their target: whoever may not make a call gets no more
//! questions of it. Calls that are [parked](super::parked_calls) watch for themselves.

use std::sync::Arc;

use super::group::Group;
use super::route::{named_list, with_string_param};
use crate::call::{Answer, Call, Replies, Reply, ReplySink, ServerRequest};
use crate::protocol::{Key, Method};
use crate::upstream::Leg;

/// A call under the names that the client knows; `None` if it has no name that rules could hide.
pub(super) fn as_client_knows_it(group: &Group, leg: &Leg, call: &Call) -> Option<Call> {
    let own = |key| call.params.as_ref().and_then(|params| params.text_of(key));
    match call.method {
        Method::ToolsCall | Method::PromptsGet => {
            let (view, own) = (group.view(call.client.revision), own(Key::Name)?);
            let exposed = view.exposed_name(named_list(call).0, leg.name(), &own).unwrap_or(&own);
            Some(with_string_param(call, Key::Name, exposed))
        }
        Method::ResourcesRead => {
            let exposed = group.name_mapping(leg.name())?.expose_uri(&own(Key::Uri)?);
            Some(with_string_param(call, Key::Uri, &exposed))
        }
        _ => None,
    }
}

/// Passes a server request of a call and what follows it, until the target of the call is hidden. Then the call is
/// cancelled, and answered as a call of a hidden target is.
pub(super) fn pass_until_hidden(
    group: &Arc<Group>,
    call: Call,
    mut replies: Replies,
    request: ServerRequest,
) -> Replies {
    let group = Arc::clone(group);
    Replies::run(|mut out| async move {
        let mut views = group.watch_views();
        out.send(Reply::ServerRequest(request)).await;
        loop {
            let reply = tokio::select! {
                reply = replies.next() => reply,
                // The group, which is kept here, has the sender.
                _ = views.changed() => match group.hidden_answer(&call) {
                    Some(answer) => return answer,
                    None => continue,
                },
            };
            match reply {
                Some(Reply::End(answer)) => return answer,
                Some(reply) => out.send(reply).await,
                None => return Answer::missing(),
            }
        }
    })
}
