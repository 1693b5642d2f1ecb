//! `sessions` and `questions`: who is connected, and what servers wait for.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::Console;
use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute, rfc3339};
use super::calls::bodies_for;
use super::servers::{ago, client_json};
use crate::inbound::Inbound;
use crate::policy::OperatorRight::{Act, Look};
use crate::protocol::Raw;
use crate::recorder::Mark;
use crate::recording::BodyAccess;
use crate::session::{QuestionReport, Session, SessionReport, StreamReport};

/// Letters of a question that are shown.
const MAX_QUESTION_LETTERS: usize = 500;

pub(super) fn routes() -> Vec<ApiRoute> {
    vec![
        ApiRoute::get("sessions", Look, |request| Box::pin(async move { all(&request) })).on_all_nodes(),
        ApiRoute::get("sessions/{session}", Look, |request| Box::pin(async move { one(&request) })),
        ApiRoute::delete("sessions/{session}", Act, |request| Box::pin(async move { end(&request) })),
        ApiRoute::get("questions", Look, |request| Box::pin(async move { questions(&request) })).on_all_nodes(),
        ApiRoute::delete("questions/{question}", Act, |request| Box::pin(async move { cancel(&request) })),
    ]
}

fn all(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    request.page(rows(&request.console, &inbound))
}

/// The rows of all sessions, those used last first.
pub(super) fn rows(console: &Console, inbound: &Inbound) -> Vec<Value> {
    let mut sessions: Vec<(Duration, Value)> = inbound
        .sessions
        .all()
        .iter()
        .map(|session| {
            let report = session.report();
            (report.idle, row(console, inbound, session, &report))
        })
        .collect();
    sessions.sort_by_key(|(idle, _)| *idle);
    sessions.into_iter().map(|(_, row)| row).collect()
}

/// What stands for a session id; the whole one never leaves the process.
fn short_id(session: &Session) -> String {
    session.id().log_tag().to_string().replace('#', "-")
}

fn row(console: &Console, inbound: &Inbound, session: &Session, report: &SessionReport) -> Value {
    let client = session.client();
    let idle_timeout = inbound.sessions.settings().idle_timeout;
    let is_idle = report.readers == 0 && report.calls == 0;
    let expires = is_idle.then(|| rfc3339(SystemTime::now() + idle_timeout.saturating_sub(report.idle)));
    json!({
        "id": short_id(session),
        "group": session.group(),
        "transport": session.id().transport().as_str(),
        "client": client_json(client.and_then(|client| client.info.as_ref())),
        "revision": client.map(|client| client.revision.as_str()),
        "caller": session.latest_identity().principal,
        "node": console.node(),
        "owner": console.node(),
        "streams": report.readers,
        "calls": report.calls,
        "events": report.events,
        "event_bytes": report.event_bytes,
        "idle_us": micros(report.idle),
        "expires": expires,
    })
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The session that a short id stands for.
pub(super) fn find(inbound: &Inbound, short: &str) -> Result<Arc<Session>, ApiError> {
    let mut found = inbound.sessions.all().into_iter().filter(|session| short_id(session) == short);
    match (found.next(), found.next()) {
        (Some(session), None) => Ok(session),
        (None, _) => Err(ApiError::not_found("there is no such session on this node")),
        (Some(_), Some(_)) => Err(ApiError::invalid("two sessions have this short id")),
    }
}

fn one(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let session = find(&inbound, request.parameter(0))?;
    let report = session.report();
    let mut answer = row(&request.console, &inbound, &session, &report);
    answer["open_streams"] = report.streams.iter().map(|one| stream((&request.console, &inbound), one)).collect();
    ApiAnswer::json(&answer).with_etag(request)
}

fn stream((console, inbound): (&Console, &Inbound), stream: &StreamReport) -> Value {
    let position = |position: u64| format!("{}-{position}", stream.number);
    json!({
        "number": stream.number,
        "kind": if stream.number == 0 { "listening" } else { "call" },
        "position": position(stream.position),
        "read": position(stream.read_position),
        "attached": stream.is_attached,
        "resumed": stream.resumed,
        "resumed_from": stream.resumed_from.map(position),
        "resumed_events": stream.resumed_events,
        "kept": stream.kept,
        "call": recorded_call(console, inbound, stream.mark),
    })
}

fn end(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let session = find(&inbound, request.parameter(0))?;
    inbound.sessions.close(&session);
    Ok(ApiAnswer::empty())
}

fn questions(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    request.page(question_rows(&request.console, &inbound, bodies_for(request, &inbound.calls)))
}

/// The id of the recorded call that a question or a stream belongs to.
fn recorded_call(console: &Console, inbound: &Inbound, mark: Mark) -> Option<String> {
    let call = inbound.calls.find(mark.number()).filter(|_| mark.is_recorded())?;
    Some(inbound.calls.rows(console.node()).id(call))
}

/// The words of a question; they are content of a message.
fn question_text(inbound: &Inbound, params: Option<&Raw>, bodies: BodyAccess) -> Option<String> {
    let params = params.filter(|_| bodies == BodyAccess::Shown)?;
    let asked: Value =
        serde_json::from_str(&inbound.calls.rows(String::new()).rules.show(&params.to_string()).text).ok()?;
    let sampled = || asked["messages"].as_array()?.last()?["content"]["text"].as_str();
    asked["message"].as_str().or_else(sampled).map(|text| text.chars().take(MAX_QUESTION_LETTERS).collect())
}

/// What servers asked and nobody has answered yet, oldest first.
pub(super) fn question_rows(console: &Console, inbound: &Inbound, bodies: BodyAccess) -> Vec<Value> {
    let mut rows: Vec<(Duration, Value)> = Vec::new();
    for session in inbound.sessions.all() {
        for question in session.report().questions {
            rows.push((question.age, session_question((console, inbound), &session, &question, bodies)));
        }
    }
    for parked in inbound.gateway.parked_reports() {
        let until = SystemTime::now() + parked.left;
        let methods: Vec<&str> = parked.questions.iter().map(|(method, _)| method.as_str()).collect();
        let text = parked.questions.iter().find_map(|(_, params)| question_text(inbound, params.as_ref(), bodies));
        let row = json!({
            "id": format!("parked-{}", parked.id),
            "node": console.node(),
            "group": parked.group,
            "server": parked.upstream,
            "method": methods.join(", "),
            "kind": kind(methods.first().copied().unwrap_or_default()),
            "text": text,
            "client": client_json(parked.client.info.as_ref()),
            "revision": parked.client.revision.as_str(),
            "caller": parked.owner.principal,
            "how": "input_required",
            "asked": ago(parked.age),
            "until": rfc3339(until),
            "session": null,
            "call": recorded_call(console, inbound, parked.mark),
        });
        rows.push((parked.age, row));
    }
    rows.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
    rows.into_iter().map(|(_, row)| row).collect()
}

fn session_question(
    (console, inbound): (&Console, &Inbound),
    session: &Session,
    question: &QuestionReport,
    bodies: BodyAccess,
) -> Value {
    let client = session.client();
    let upstreams = inbound.gateway.upstreams();
    let server = upstreams.iter().find(|upstream| question.server.as_ref() == Some(upstream.name()));
    // Asking begins the time of the call anew, so that is how long a client has.
    let left = server.map(|server| server.spec().settings.total_timeout.saturating_sub(question.age));
    json!({
        "id": format!("{}-{}", short_id(session), question.id),
        "node": console.node(),
        "group": session.group(),
        "server": question.server,
        "method": question.method,
        "kind": kind(&question.method),
        "text": question_text(inbound, question.params.as_ref(), bodies),
        "client": client_json(client.and_then(|client| client.info.as_ref())),
        "revision": client.map(|client| client.revision.as_str()),
        "caller": session.latest_identity().principal,
        "how": "request",
        "asked": ago(question.age),
        "until": left.map(|left| rfc3339(SystemTime::now() + left)),
        "session": short_id(session),
        "call": recorded_call(console, inbound, question.mark),
    })
}

fn kind(method: &str) -> &str {
    match method {
        "elicitation/create" => "elicitation",
        "sampling/createMessage" => "sampling",
        "roots/list" => "roots",
        _ => "other",
    }
}

fn cancel(request: &AdminRequest) -> ApiResult {
    let (inbound, id) = (request.console.inbound()?, request.parameter(0));
    let is_cancelled = match id.strip_prefix("parked-") {
        Some(parked) => inbound.gateway.end_parked_call(parked),
        None => {
            let (session, question) =
                id.rsplit_once('-').ok_or_else(|| ApiError::not_found("there is no such question"))?;
            let session = find(&inbound, session)?;
            question.parse().is_ok_and(|question| session.cancel_asking_call(question))
        }
    };
    match is_cancelled {
        true => Ok(ApiAnswer::empty()),
        false => Err(ApiError::not_found("nobody waits for this any more")),
    }
}
