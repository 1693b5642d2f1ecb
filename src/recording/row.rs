//! Calls as the API shows them: rows, and one call with its messages.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::call_row::{CallRow, RowBytes, RowClient, RowError, RowServer, RowTime};
use super::changes::changes_of;
use super::cut_text::KeptText;
use super::messages::{MessageForm, RecordedMessage, messages_of};
use super::redaction::{RedactionRules, hide_in_text, shape_of, shown_path};
use super::store::StoredCall;
use super::time_parts::TimeParts;
use crate::dialect::{Revision, bridge_of, describe_translation};
use crate::line_log::push_rfc3339;
use crate::protocol::Raw;
use crate::recorder::{Clock, SummaryField, Way, Wire};

/// What a row is made with.
#[derive(Debug, Clone)]
pub struct RowMaker {
    /// The name of this node.
    pub node: String,
    /// Translates the times of records.
    pub clock: Clock,
    /// What is hidden.
    pub rules: RedactionRules,
    /// Now, by the clock of records.
    pub now: u64,
}

/// Whether values of messages are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyAccess {
    /// Their values, but for what is hidden.
    Shown,
    /// Their shapes.
    Shapes,
}

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// A number as the ids of calls have it.
pub fn encode_number(mut number: u64) -> String {
    let mut out = Vec::new();
    loop {
        out.push(DIGITS[usize::try_from(number % 36).unwrap_or(0)]);
        number /= 36;
        if number == 0 {
            break;
        }
    }
    out.reverse();
    String::from_utf8_lossy(&out).into_owned()
}

/// The number of a call in its id.
pub fn decode_number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    u64::from_str_radix(text, 36).ok().filter(|_| is_plain)
}

fn micros(nanos: u64) -> u64 {
    nanos / 1000
}

impl RowMaker {
    /// The id of a call.
    pub fn id(&self, number: u64) -> String {
        format!("{}.{}", self.node, encode_number(number))
    }

    /// The row of a call.
    pub fn row<'c>(&'c self, call: &'c StoredCall, bodies: BodyAccess) -> CallRow<'c> {
        self.row_with(call, &messages_of(call), bodies)
    }

    /// The row of a call, for filters.
    pub fn row_value(&self, call: &StoredCall, bodies: BodyAccess) -> Value {
        serde_json::to_value(self.row(call, bodies)).unwrap_or_default()
    }

    fn row_with<'c>(&'c self, call: &'c StoredCall, messages: &[RecordedMessage], bodies: BodyAccess) -> CallRow<'c> {
        let field = |field| call.field(field);
        let last = messages.iter().rev().find(|one| one.wire == Wire::Client && one.way == Way::Out);
        let is_parked = last.is_some_and(|one| one.form == MessageForm::InputRequired);
        let end = call.last_end();
        let is_done = end.is_some() && !is_parked;
        let until = if is_done { end.map_or(self.now, |(nanos, _)| *nanos) } else { self.now };
        let took = until.saturating_sub(call.started());
        let parts = TimeParts::of(call, messages, until);
        let outcome = match end.and_then(|(_, end)| end.get(SummaryField::Outcome)) {
            Some(outcome) if is_done => Some(outcome),
            Some(_) => Some("waiting"),
            None => None,
        };
        let server = self.server(call, messages);
        let method = Self::method(call, messages);
        let (client, version) = field(SummaryField::Client).map_or((None, None), |text| match text.rsplit_once('/') {
            Some((name, version)) => (Some(name), Some(version)),
            None => (Some(text), None),
        });
        let sum = |wanted| -> u64 { call.ends.iter().filter_map(|(_, end)| end.number::<u64>(wanted)).sum() };
        let one_of = call.ends.first().and_then(|(_, end)| end.number::<u16>(SummaryField::OneOf));
        CallRow {
            id: self.id(call.number),
            at: self.time(call.started()),
            node: &self.node,
            group: field(SummaryField::Group),
            client: RowClient {
                name: client,
                version,
                revision: field(SummaryField::ClientRevision),
                transport: field(SummaryField::ClientTransport).unwrap_or("http"),
                caller: field(SummaryField::Principal).unwrap_or("unknown"),
                session: field(SummaryField::Session),
            },
            mcp: method.is_some(),
            method: method.unwrap_or_else(|| Self::http(call, messages)),
            name: field(SummaryField::Target).map(hide_in_text),
            bridge: self.bridge(call, server.as_ref()),
            server,
            rounds: messages.iter().map(|message| message.round).max().unwrap_or(1),
            outcome,
            error: self.error(call, is_done),
            took_us: micros(took),
            time: RowTime {
                rialto_us: micros(parts.rialto),
                open_us: micros(parts.open),
                server_us: micros(parts.server),
                client_us: micros(parts.client),
            },
            bytes: RowBytes { asked: sum(SummaryField::BytesIn), answered: sum(SummaryField::BytesOut) },
            bodies: bodies_word(call, messages, bodies),
            one_of: one_of.unwrap_or(1).max(1),
            request: field(SummaryField::RequestId),
            relayed_to: field(SummaryField::RelayedTo),
            relayed: field(SummaryField::Relayed).is_some(),
            kept: call.is_kept,
            done: is_done,
        }
    }

    fn time(&self, nanos: u64) -> String {
        let unix = u64::try_from(self.clock.unix_nanos(nanos)).unwrap_or(u64::MAX);
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(unix);
        let mut text = String::new();
        push_rfc3339(&mut text, time);
        text
    }

    /// The method of the message, where one was read.
    fn method<'c>(call: &'c StoredCall, messages: &[RecordedMessage]) -> Option<Cow<'c, str>> {
        let is_named =
            |one: &&RecordedMessage| one.wire == Wire::Client && one.way == Way::In && !one.method.is_empty();
        let read = || messages.iter().find(is_named).map(|one| Cow::Owned(one.method.clone()));
        call.field(SummaryField::Method).map(Cow::Borrowed).or_else(read)
    }

    /// The verb and path of an HTTP request without a message.
    fn http<'c>(call: &'c StoredCall, messages: &[RecordedMessage]) -> Cow<'c, str> {
        let ended = call.field(SummaryField::Http).map(shown_path);
        // A stream that is still open has no summary.
        let head = || messages.first()?.head.as_ref()?.read().target;
        let open = || head().map(|(verb, path)| format!("{verb} {}", shown_path(&path)));
        Cow::Owned(ended.or_else(open).unwrap_or_default())
    }

    fn server<'c>(&self, call: &'c StoredCall, messages: &[RecordedMessage]) -> Option<RowServer<'c>> {
        let name = call.field(SummaryField::Upstream)?;
        let sent = messages.iter().find(|one| one.wire == Wire::Server && one.form == MessageForm::Request);
        let own = sent.and_then(|one| {
            let params = Raw::parse(&one.text).ok()?.get("params")?;
            let [name, uri] = params.pick(["name", "uri"]);
            name.or(uri)?.text().map(|own| hide_in_text(&own).into_owned())
        });
        Some(RowServer {
            name,
            own,
            revision: call.field(SummaryField::ServerRevision),
            transport: call.field(SummaryField::ServerTransport).unwrap_or("http"),
            leased: call.field(SummaryField::Leased).is_some(),
            process: call.field(SummaryField::ServerProcess).and_then(|id| id.parse().ok()),
        })
    }

    fn revisions(call: &StoredCall) -> Option<(Revision, Revision)> {
        let revision = |field| call.field(field).and_then(Revision::parse);
        revision(SummaryField::ClientRevision).zip(revision(SummaryField::ServerRevision))
    }

    fn bridge(&self, call: &StoredCall, server: Option<&RowServer<'_>>) -> &'static str {
        let own = server.and_then(|server| server.own.as_deref());
        let is_renamed = own.is_some_and(|own| Some(own) != call.field(SummaryField::Target));
        Self::revisions(call).map_or("none", |(client, server)| bridge_of(client, server, is_renamed))
    }

    fn error(&self, call: &StoredCall, is_done: bool) -> Option<RowError> {
        let (_, end) = call.last_end().filter(|_| is_done)?;
        let outcome = end.get(SummaryField::Outcome).filter(|outcome| *outcome != "ok")?;
        let status: Option<u16> = end.number(SummaryField::Status);
        let phrase = status.and_then(|status| http::StatusCode::from_u16(status).ok()?.canonical_reason());
        let message = match (end.get(SummaryField::Reason), outcome) {
            (Some(reason), _) => reason.replace('_', " "),
            (None, "refused") => phrase.unwrap_or("refused").to_owned(),
            (None, "tool_error") => "the tool says that it failed".to_owned(),
            (None, "cancelled") => "the client cancelled the call".to_owned(),
            (None, "disconnected") => "the client went away".to_owned(),
            (None, "error") => "the server answered with an error".to_owned(),
            (None, other) => other.to_owned(),
        };
        Some(RowError { code: end.number(SummaryField::ErrorCode), status, message })
    }

    /// A call with its messages and what was changed.
    pub fn detail(&self, call: &StoredCall, bodies: BodyAccess) -> Value {
        let messages = messages_of(call);
        let mut row = serde_json::to_value(self.row_with(call, &messages, bodies)).unwrap_or_default();
        let requests: Vec<&str> = call.ends.iter().filter_map(|(_, end)| end.get(SummaryField::RequestId)).collect();
        row["requests"] = requests.into();
        row["omitted"] = call.omitted.into();
        row["trace"] = call.field(SummaryField::TraceId).into();
        row["owner"] = call.field(SummaryField::RelayedTo).unwrap_or(&self.node).into();
        let shown: Vec<Value> =
            messages.iter().enumerate().map(|(n, one)| self.message(call, (n, one), bodies)).collect();
        row["messages"] = shown.into();
        let revisions = Self::revisions(call);
        let changes: Vec<Value> = changes_of(&messages, revisions).iter().map(|change| change.to_json()).collect();
        row["changes"] = changes.into();
        row["translated"] = revisions.map(|(client, server)| describe_translation(client, server)).into();
        if row["translated"].is_null() {
            row["translated"] = json!([]);
        }
        row
    }

    fn message(&self, call: &StoredCall, (n, one): (usize, &RecordedMessage), bodies: BodyAccess) -> Value {
        let kept = KeptText::of(one);
        let http = one.head.as_ref().map(|head| {
            let head = head.read();
            let text = kept.as_ref().map_or("", |kept| &kept.beginning);
            let hidden = (!one.is_cut()).then(|| self.rules.hidden_values(text));
            let shown = |name, value| self.rules.header((name, value), hidden.as_deref(), bodies);
            let headers: Vec<[String; 2]> =
                head.headers.iter().map(|(name, value)| [name.clone(), shown(name, value)]).collect();
            let (verb, path) = head.target.clone().map_or((None, None), |(verb, path)| (Some(verb), Some(path)));
            json!({ "verb": verb, "path": path.map(|path| shown_path(&path)), "status": head.status, "headers": headers })
        });
        let (text, hidden) = match (kept, bodies) {
            (None, _) => (None, Vec::new()),
            (Some(kept), BodyAccess::Shown) => {
                let shown = self.rules.show_kept(&kept);
                (Some(shown.text), shown.hidden)
            }
            (Some(_), BodyAccess::Shapes) if one.is_cut() => (Some(format!("\"text {}\"", one.length)), Vec::new()),
            (Some(kept), BodyAccess::Shapes) => (Some(shape_of(&kept.beginning)), Vec::new()),
        };
        json!({
            "n": n, "round": one.round, "at_us": micros(one.nanos.saturating_sub(call.started())),
            "wire": if one.wire == Wire::Client { "client" } else { "server" },
            "way": if one.way == Way::In { "in" } else { "out" },
            "kind": one.form.as_str(), "method": (!one.method.is_empty()).then_some(&one.method), "with": one.with,
            "http": http, "bytes": one.length, "cut": one.is_cut(),
            "kept": { "first": one.parts().0.len(), "last": one.parts().1.len() }, "text": text, "hidden": hidden,
        })
    }
}

fn bodies_word(call: &StoredCall, messages: &[RecordedMessage], bodies: BodyAccess) -> &'static str {
    let has_bytes = |one: &&RecordedMessage| one.length > 0;
    if !messages.iter().filter(has_bytes).any(|one| !one.text.is_empty()) {
        return "none";
    }
    match bodies {
        BodyAccess::Shapes => "shape",
        BodyAccess::Shown if call.omitted > 0 || messages.iter().any(RecordedMessage::is_cut) => "cut",
        BodyAccess::Shown => "whole",
    }
}
