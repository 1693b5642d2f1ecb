//! The events of one session, kept so that a client that lost its connection can resume.
//!
//! The log belongs to its session, so an id from another session finds nothing here. Positions
//! run through the whole session: an event's id names its stream and its position, is unique in
//! the session, and reading after it yields later events of the same stream only.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// Where an event stands: its stream, and its position in the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId {
    /// The stream.
    pub stream: u32,
    /// The position.
    pub position: u64,
}

/// How much is kept, and how long.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// How many events.
    pub count: usize,
    /// How many bytes of events.
    pub bytes: usize,
    /// How long.
    pub age: Duration,
}

/// The events of one session.
#[derive(Debug, Default)]
pub struct EventLog {
    entries: VecDeque<LoggedEvent>,
    bytes: usize,
    /// The position that was given out last.
    position: u64,
}

#[derive(Debug)]
struct LoggedEvent {
    id: EventId,
    at: Instant,
    event: Bytes,
}

// === impl EventLog ===

impl EventLog {
    /// The position that was given out last.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How many bytes they have together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The id that the next event of a stream gets.
    pub fn next_id(&self, stream: u32) -> EventId {
        EventId { stream, position: self.position + 1 }
    }

    /// A log that goes on after another: its events, and the position that the next one comes after.
    pub fn resumed(events: impl IntoIterator<Item = (EventId, Instant, Bytes)>, position: u64) -> Self {
        let mut log = Self { position, ..Self::default() };
        for (id, at, event) in events {
            log.bytes += event.len();
            log.entries.push_back(LoggedEvent { id, at, event });
        }
        log
    }

    /// The position of the oldest event that is kept, or that the next one will have.
    pub fn first(&self) -> u64 {
        self.entries.front().map_or(self.position + 1, |entry| entry.id.position)
    }

    /// The events of all streams after a position, in order, with when they happened.
    pub fn since(&self, position: u64) -> impl Iterator<Item = (EventId, Instant, &Bytes)> + '_ {
        let from = self.entries.partition_point(|entry| entry.id.position <= position);
        self.entries.range(from..).map(|entry| (entry.id, entry.at, &entry.event))
    }

    /// Keeps an event under [`EventLog::next_id`].
    pub fn append(&mut self, stream: u32, event: Bytes, now: Instant) -> EventId {
        let id = self.next_id(stream);
        self.position = id.position;
        self.bytes += event.len();
        self.entries.push_back(LoggedEvent { id, at: now, event });
        id
    }

    /// The events of one stream after a position, in order.
    pub fn after(&self, id: EventId) -> impl Iterator<Item = (EventId, Bytes)> + '_ {
        let from = self.entries.partition_point(|entry| entry.id.position <= id.position);
        let later = self.entries.range(from..);
        let of_stream = later.filter(move |entry| entry.id.stream == id.stream);
        of_stream.map(|entry| (entry.id, entry.event.clone()))
    }

    /// Drops one stream's events.
    pub fn forget(&mut self, stream: u32) {
        let bytes = &mut self.bytes;
        self.entries.retain(|entry| {
            let keep = entry.id.stream != stream;
            if !keep {
                *bytes -= entry.event.len();
            }
            keep
        });
    }

    /// Drops what is too old or too much, oldest first, and tells what was dropped.
    pub fn trim(&mut self, retention: &Retention, now: Instant, mut dropped: impl FnMut(EventId)) {
        while let Some(first) = self.entries.front() {
            let over = self.entries.len() > retention.count || self.bytes > retention.bytes;
            if !over && now.duration_since(first.at) <= retention.age {
                break;
            }
            self.bytes -= first.event.len();
            dropped(first.id);
            self.entries.pop_front();
        }
        if self.entries.is_empty() {
            // An idle session should not hold room for the events it once had.
            self.entries = VecDeque::new();
        }
    }

    /// How many events are kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

// === impl EventId ===

impl EventId {
    /// Reads an id that we gave out.
    pub fn parse(text: &str) -> Option<Self> {
        let (stream, position) = text.trim().split_once('.')?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(stream) || !digits(position) {
            return None;
        }
        Some(Self { stream: stream.parse().ok()?, position: position.parse().ok()? })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.stream, self.position)
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { count: 1000, bytes: 8 << 20, age: Duration::from_secs(600) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id = EventId { stream: 3, position: 14 };
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
        for bad in ["", "3", "3.", ".1", "a.1", "3.-1", "3.+1", "3.1.2", "99999999999.1"] {
            assert_eq!(EventId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn too_many_too_large_and_too_old_are_dropped() {
        let now = Instant::now();
        let retention = Retention { count: 3, bytes: 10, age: Duration::from_secs(5) };
        let mut log = EventLog::default();
        for _ in 0..4 {
            log.append(1, Bytes::from_static(b"ab"), now);
        }
        let mut dropped = Vec::new();
        log.trim(&retention, now, |id| dropped.push(id.position));
        assert_eq!((log.len(), dropped), (3, vec![1]));
        log.append(2, Bytes::from_static(b"0123456"), now + Duration::from_secs(3));
        log.trim(&retention, now + Duration::from_secs(3), |_| {});
        assert_eq!(log.len(), 2); // 9 bytes; 11 were too many
        log.trim(&retention, now + Duration::from_secs(6), |_| {});
        assert_eq!(log.len(), 1);
        log.trim(&retention, now + Duration::from_secs(60), |_| {});
        assert!(log.is_empty());
    }

    proptest! {
        /// Reading after an id gives what a plain list of everything that was appended would.
        #[test]
        fn reading_agrees_with_a_plain_list(
            streams in prop::collection::vec(0u32..4, 0..40),
            from in 0u64..45,
            stream in 0u32..4,
            forgotten in prop::option::of(0u32..4),
        ) {
            let now = Instant::now();
            let mut log = EventLog::default();
            let mut list = Vec::new();
            for (n, stream) in streams.into_iter().enumerate() {
                let event = Bytes::from(n.to_string());
                list.push((log.append(stream, event.clone(), now), event));
            }
            if let Some(gone) = forgotten {
                log.forget(gone);
                list.retain(|(id, _)| id.stream != gone);
            }
            let expected: Vec<_> = list.into_iter().filter(|(id, _)| id.stream == stream && id.position > from).collect();
            let found: Vec<_> = log.after(EventId { stream, position: from }).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
