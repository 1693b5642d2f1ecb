//! Whose time it was: Rialto's, that of opening a connection, the server's, or a person's.

use super::messages::{MessageForm, RecordedMessage};
use super::store::StoredCall;
use crate::recorder::{NoteKind, Way, Wire};

/// The time of a call by part, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeParts {
    /// Rialto's own.
    pub rialto: u64,
    /// Opening a connection.
    pub open: u64,
    /// The server's.
    pub server: u64,
    /// The client's, or that of a person at it.
    pub client: u64,
}

/// What is waited for at one moment.
#[derive(Default)]
struct Waiting {
    open: bool,
    server: usize,
    client: usize,
}

impl TimeParts {
    /// The parts of a call from its first record until `end`.
    pub fn of(call: &StoredCall, messages: &[RecordedMessage], end: u64) -> Self {
        let mut events: Vec<(u64, Event)> =
            messages.iter().enumerate().map(|(at, one)| (one.nanos, Event::of(messages, at, one))).collect();
        for record in &call.records {
            match record.kind {
                NoteKind::Opening => events.push((record.nanos, Event::Opening)),
                NoteKind::Opened => events.push((record.nanos, Event::Opened)),
                _ => {}
            }
        }
        events.sort_by_key(|(nanos, _)| *nanos);
        let (mut parts, mut waiting, mut at) = (Self::default(), Waiting::default(), call.started());
        for (nanos, event) in events {
            parts.add(&waiting, nanos.min(end).saturating_sub(at));
            at = at.max(nanos.min(end));
            waiting.apply(&event);
        }
        parts.add(&waiting, end.saturating_sub(at));
        parts
    }

    fn add(&mut self, waiting: &Waiting, time: u64) {
        let part = match waiting {
            Waiting { client: 1.., .. } => &mut self.client,
            Waiting { open: true, .. } => &mut self.open,
            Waiting { server: 1.., .. } => &mut self.server,
            _ => &mut self.rialto,
        };
        *part += time;
    }
}

/// What a moment changes in what is waited for.
enum Event {
    Opening,
    Opened,
    ServerAsked,
    ServerAnswered,
    ClientAsked,
    ClientAnswered,
    ClientCame,
    Nothing,
}

impl Event {
    fn of(messages: &[RecordedMessage], at: usize, one: &RecordedMessage) -> Self {
        match (one.wire, one.way, one.form) {
            (wire, way, MessageForm::Other) if one.text.is_empty() => Self::of_bodiless(messages, at, (wire, way)),
            (Wire::Server, Way::Out, MessageForm::Request) => Self::ServerAsked,
            (Wire::Server, Way::In, form) if form.as_str() == "response" => Self::ServerAnswered,
            (Wire::Client, Way::Out, MessageForm::Request | MessageForm::InputRequired) => Self::ClientAsked,
            (Wire::Client, Way::In, MessageForm::Request) => Self::ClientCame,
            (Wire::Client, Way::In, form) if form.as_str() == "response" => Self::ClientAnswered,
            _ => Self::Nothing,
        }
    }

    /// Of a message whose bytes are not kept only the way is known. The server has the time from the first message to it
    /// to the last one from it, and the client that between a message to it and its next one.
    fn of_bodiless(messages: &[RecordedMessage], at: usize, (wire, way): (Wire, Way)) -> Self {
        let is_same = |other: &RecordedMessage| other.wire == wire && other.way == way;
        match (wire, way) {
            (Wire::Server, Way::Out) if !messages[..at].iter().any(is_same) => Self::ServerAsked,
            (Wire::Server, Way::In) if !messages[at + 1..].iter().any(is_same) => Self::ServerAnswered,
            (Wire::Client, Way::In) => Self::ClientCame,
            (Wire::Client, Way::Out) => match messages[at + 1..].iter().find(|one| one.wire == Wire::Client) {
                Some(next) if next.way == Way::In => Self::ClientAsked,
                _ => Self::Nothing,
            },
            _ => Self::Nothing,
        }
    }
}

impl Waiting {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Opening => self.open = true,
            Event::Opened => self.open = false,
            Event::ServerAsked => self.server += 1,
            Event::ServerAnswered => self.server = self.server.saturating_sub(1),
            Event::ClientAsked => self.client += 1,
            Event::ClientAnswered => self.client = self.client.saturating_sub(1),
            Event::ClientCame => self.client = 0,
            Event::Nothing => {}
        }
    }
}
