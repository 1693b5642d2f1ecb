//! Renews resource subscriptions of sessions: of one that was adopted from another node, and of those at a server whose
//! settings a reload changed.

use std::sync::Arc;
use std::time::Duration;

use super::{Inbound, session_messages};
use crate::call::{AnswerDelivery, Caller, ChangeEvent, ClientSink, Replies, Reply};
use crate::dialect::Revision;
use crate::gateway::Group;
use crate::protocol::{Method, Raw, Request};
use crate::session::Session;

/// First delay before a subscription is retried; doubles up to [`RESUBSCRIBE_BACKOFF_MAX`].
const RESUBSCRIBE_BACKOFF: Duration = Duration::from_millis(100);
/// Longest delay between two attempts to subscribe.
const RESUBSCRIBE_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Attempts per subscription, about a minute and a half in total.
const MAX_RESUBSCRIBE_ATTEMPTS: usize = 22;

impl Inbound {
    /// Renews the subscriptions of an adopted session in the background, with back-off.
    pub(super) fn resubscribe(self: &Arc<Self>, session: &Arc<Session>, group: &Arc<Group>, caller: &Arc<Caller>) {
        let uris = session.pending_subscriptions();
        if uris.is_empty() {
            return;
        }
        let (inbound, session) = (Arc::clone(self), Arc::clone(session));
        let (group, caller) = (Arc::clone(group), Arc::clone(caller));
        tokio::spawn(async move {
            for uri in uris {
                let is_wanted = || session.pending_subscriptions().contains(&uri);
                if inbound.renew(&session, &group, &caller, &uri, is_wanted).await {
                    session.resubscribed(&uri);
                }
            }
        });
    }

    /// Moves subscriptions of a group's sessions to the new connections of a server that was replaced; of every server if
    /// none is named.
    pub(super) fn renew_subscriptions(self: &Arc<Self>, group: &Arc<Group>, upstream: Option<&Arc<str>>) {
        for session in self.sessions.all() {
            let uris = session.subscribed_uris();
            if **session.group() != **group.name() || uris.is_empty() {
                continue;
            }
            let (inbound, group, upstream) = (Arc::clone(self), Arc::clone(group), upstream.cloned());
            let caller = Arc::new(Caller::local(session.latest_identity()));
            tokio::spawn(async move {
                // Which server has a URI may be known only once it is connected again.
                group.wait_ready(Revision::NEWEST_HANDSHAKE).await;
                let is_elsewhere = |uri: &str| {
                    let view = group.view(Revision::NEWEST_HANDSHAKE);
                    let found = view.find_by_uri(uri);
                    let name = found.map(|(member, _)| member.upstream.name());
                    name.is_some_and(|name| upstream.as_ref().is_some_and(|upstream| upstream != name))
                };
                for uri in uris.iter().filter(|uri| !is_elsewhere(uri)) {
                    inbound.renew(&session, &group, &caller, uri, || session.is_subscribed(uri)).await;
                }
            });
        }
    }

    /// Ends the subscriptions of a group's sessions to what rules hide now.
    pub(super) fn end_hidden_subscriptions(&self, group: &Group) {
        for session in self.sessions.all() {
            if **session.group() != **group.name() {
                continue;
            }
            let identity = session.latest_identity();
            for uri in session.subscribed_uris() {
                if !group.shows_resource(Revision::NEWEST_HANDSHAKE, &identity, &uri) {
                    session.remove_subscription(&uri);
                }
            }
        }
    }

    /// Subscribes for a session until it succeeds, then tells the client that the resource may have changed meanwhile.
    async fn renew(
        &self,
        session: &Arc<Session>,
        group: &Arc<Group>,
        caller: &Arc<Caller>,
        uri: &str,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        let params = Raw::empty().edit().set("uri", Raw::of(uri)).finish();
        let request = Request::new(0.into(), Method::Subscribe, Some(params.into()));
        let mut backoff = RESUBSCRIBE_BACKOFF;
        for _ in 0..MAX_RESUBSCRIBE_ATTEMPTS {
            if !is_wanted() || session.has_moved() {
                return false; // the client renewed or cancelled the subscription itself, or the session moved
            }
            let by = (caller, None, AnswerDelivery::Whole);
            let replies = session_messages::handle_request(self, session, group, &request, by, None);
            if ends_with_result(replies).await {
                session.notify(ChangeEvent::ResourceUpdated(uri.into()).notification());
                return true;
            }
            tracing::debug!(session = %session.id().log_tag(), uri, "resubscribe failed; will retry");
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(RESUBSCRIBE_BACKOFF_MAX);
        }
        false
    }
}

/// Whether a call ends with a result.
async fn ends_with_result(mut replies: Replies) -> bool {
    while let Some(reply) = replies.next().await {
        if let Reply::End(answer) = reply {
            return answer.outcome.is_ok();
        }
    }
    false
}
