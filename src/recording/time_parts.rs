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
        let mut events: Vec<(u64, Event<'_>)> = messages.iter().map(|one| (one.nanos, Event::Message(one))).collect();
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

enum Event<'m> {
    Opening,
    Opened,
    Message(&'m RecordedMessage),
}

impl Waiting {
    fn apply(&mut self, event: &Event<'_>) {
        match event {
            Event::Opening => self.open = true,
            Event::Opened => self.open = false,
            Event::Message(message) => match (message.wire, message.way, message.form) {
                (Wire::Server, Way::Out, MessageForm::Request) => self.server += 1,
                (Wire::Server, Way::In, form) if form.as_str() == "response" => {
                    self.server = self.server.saturating_sub(1);
                }
                (Wire::Client, Way::Out, MessageForm::Request | MessageForm::InputRequired) => self.client += 1,
                (Wire::Client, Way::In, MessageForm::Request) => self.client = 0,
                (Wire::Client, Way::In, form) if form.as_str() == "response" => {
                    self.client = self.client.saturating_sub(1);
                }
                _ => {}
            },
        }
    }
}
