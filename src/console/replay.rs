//! Replay: a recorded call once more, as its client said it or as its server heard it.

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult};
use super::calls::find;
use crate::access_log::{AccessEnd, AccessGuard, AccessRecord};
use crate::call::{Answer, AnswerDelivery, Call, Caller, ClientInfo, Replies, Reply};
use crate::dialect::{Revision, to_client};
use crate::gateway::Group;
use crate::identity::{Credential, Identity};
use crate::inbound::Inbound;
use crate::protocol::{Message, Outcome, Payload, Raw, Request, Response};
use crate::recorder::{self, Mark, Note, NoteKind, SummaryField, Way, Wire};
use crate::recording::{MessageForm, RecordedMessage, StoredCall, messages_of};
use crate::trace::CallTrace;
use crate::upstream::Upstream;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayRequest {
    side: ReplaySide,
    r#as: Option<String>,
}

/// Whose request is sent again.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum ReplaySide {
    Client,
    Server,
}

/// A call that is made again.
struct Replay {
    call: Call,
    group: Option<Arc<Group>>,
    record: Arc<AccessRecord>,
}

/// Name that replayed calls are made under.
const REPLAY_CLIENT: &str = "rialto console";

pub(super) async fn replay(request: AdminRequest) -> ApiResult {
    let asked: ReplayRequest = request.json()?;
    let (calls, recorded) = find(&request)?;
    let inbound = request.console.inbound()?;
    let said = said_by(&recorded, asked.side)?;
    let field = match asked.side {
        ReplaySide::Client => SummaryField::ClientRevision,
        ReplaySide::Server => SummaryField::ServerRevision,
    };
    let revision = match asked.r#as.as_deref() {
        Some(word) => Revision::parse(word).ok_or_else(|| ApiError::invalid(format!("{word:?} is no revision")))?,
        None => recorded.field(field).and_then(Revision::parse).unwrap_or(Revision::NEWEST),
    };
    let not_recorded = || ApiError::new(StatusCode::CONFLICT, "not_recorded", "calls are not recorded here");
    if !calls.wait_until_on().await {
        return Err(not_recorded());
    }
    let record = inbound.access_log.begin().ok_or_else(not_recorded)?;
    let identity = Arc::new(Identity::new(&*request.operator.name, Credential::Local));
    record.note_identity(&identity);
    record.note_client(Some(&Raw::of(&json!({ "name": REPLAY_CLIENT }))), revision.as_str());
    record.note_message(said.method.as_str(), recorded.field(SummaryField::Target));
    record.count_replies();
    let caller = Caller { access: Some(Arc::clone(&record)), ..Caller::local(identity) };
    let text = said.encode();
    note(record.mark(), Way::In, &text);
    record.note_received(text.len());
    let params = said.params.map(|params| Payload::from(params.edit().remove("_meta").finish()));
    let client = ClientInfo { revision, capabilities: Raw::empty(), info: None };
    let call = Call {
        id: said.id,
        method: said.method,
        params,
        client: Arc::new(client),
        caller: Arc::new(caller),
        level: None,
        progress_token: None,
        sink: None,
        limits: None,
        delivery: AnswerDelivery::Whole,
        trace: CallTrace::default(),
        target_label: None,
    };
    let id = calls.rows(request.console.node()).id(record.mark().number());
    tracing::info!(operator = %request.operator.name, call = request.parameter(0), "call replayed");
    let target = ReplayTarget::of(&inbound, &recorded, asked.side)?;
    let group = if let ReplayTarget::Group(group) = &target { Some(Arc::clone(group)) } else { None };
    if let Some(group) = &group {
        record.note_group(group.name(), "console");
    }
    tokio::spawn(Replay { call, group, record }.run(target));
    Ok(ApiAnswer::json_with(StatusCode::ACCEPTED, &json!({ "call": id })))
}

/// Where a replayed call goes.
enum ReplayTarget {
    Group(Arc<Group>),
    Server(Arc<Upstream>),
}

impl ReplayTarget {
    fn of(inbound: &Inbound, recorded: &StoredCall, side: ReplaySide) -> Result<Self, ApiError> {
        let gone =
            |what: &str| ApiError::new(StatusCode::CONFLICT, "gone", format!("the {what} is not there any more"));
        match side {
            ReplaySide::Client => {
                let group = inbound.gateway.group(recorded.field(SummaryField::Group));
                group.map(Self::Group).ok_or_else(|| gone("group"))
            }
            ReplaySide::Server => {
                let name = recorded.field(SummaryField::Upstream).ok_or_else(|| gone("server"))?;
                let found = inbound.gateway.upstreams().into_iter().find(|upstream| &**upstream.name() == name);
                found.map(Self::Server).ok_or_else(|| gone("server"))
            }
        }
    }
}

/// The first request on one side of a call, which must be whole.
fn said_by(recorded: &StoredCall, side: ReplaySide) -> Result<Request, ApiError> {
    let (wire, way) = match side {
        ReplaySide::Client => (Wire::Client, Way::In),
        ReplaySide::Server => (Wire::Server, Way::Out),
    };
    let is_said = |one: &&RecordedMessage| one.wire == wire && one.way == way && one.form != MessageForm::Status;
    let messages = messages_of(recorded);
    let conflict = |why: &str| ApiError::new(StatusCode::CONFLICT, "not_whole", why);
    let said = messages.iter().find(is_said).ok_or_else(|| conflict("nothing is kept of what was said there"))?;
    if said.is_cut() {
        return Err(conflict("only a part of the request is kept").hint("[admin] record_body_bytes says how much is"));
    }
    match Message::parse(&said.text) {
        Ok(Message::Request(request)) => Ok(request),
        _ => Err(conflict("it was no request")),
    }
}

fn note(mark: Mark, way: Way, body: &[u8]) {
    let (wire, kind) = (Wire::Client, NoteKind::Message);
    recorder::note(mark, &Note { wire, way, kind, status: 0, head: b"", body });
}

impl Replay {
    async fn run(self, target: ReplayTarget) {
        let replies = match &target {
            ReplayTarget::Group(group) => group.handle(&self.call),
            ReplayTarget::Server(upstream) => self.at_server(upstream).await,
        };
        let answer = self.read(replies).await;
        let outcome = match &self.group {
            Some(group) => self.for_client(group, answer),
            None => answer.outcome,
        };
        let error = outcome.as_ref().err().map(crate::protocol::ErrorObject::code);
        let text = Response::new(Some(self.call.id.clone()), outcome).encode();
        note(self.record.mark(), Way::Out, &text);
        self.record.note_reply(text.len(), error);
        AccessGuard::new(Some(&self.record)).finish(AccessEnd::Answered);
    }

    /// Sends the call to its server as it was sent before.
    async fn at_server(&self, upstream: &Upstream) -> Replies {
        let leg = upstream.leg_for(self.call.client.revision).leg;
        if let Some(replies) = leg.call_local(&self.call) {
            return replies;
        }
        match leg.acquire(&self.call, || None).await {
            Ok(lease) => {
                let mut replies = lease.connection().call(self.call.clone());
                let answer = self.read_all(&mut replies).await;
                drop(lease);
                answer.into()
            }
            Err(error) => error.into_object().into(),
        }
    }

    async fn read(&self, mut replies: Replies) -> Answer {
        self.read_all(&mut replies).await
    }

    /// Reads replies to the answer; nobody is there to answer questions.
    async fn read_all(&self, replies: &mut Replies) -> Answer {
        loop {
            match replies.next().await {
                Some(Reply::End(answer)) => return answer,
                Some(Reply::Notification(notification)) => note(self.record.mark(), Way::Out, &notification.encode()),
                Some(Reply::ServerRequest(question)) => question.refuse(),
                Some(Reply::Piece(_)) => {}
                None => return Answer::missing(),
            }
        }
    }

    fn for_client(&self, group: &Group, answer: Answer) -> Outcome {
        let revision = self.call.client.revision;
        let server = &group.view(revision).server;
        to_client::convert_outcome(answer.outcome, &self.call.method, answer.revision, revision, server)
    }
}
