//! Event log of one session, from which a client resumes a broken stream.
//!
//! Positions count through the whole session. An event id is stream number and position, so it is unique in the
//! session, and a read after it yields later events of that stream only. An id of another session finds nothing.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// SSE event id, written as `STREAM.POSITION`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId {
    /// Stream number within the session.
    pub stream: u32,
    /// Position in the session's log, counted from 1.
    pub position: u64,
}

/// Bounds of an event log.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Most events.
    pub max_events: usize,
    /// Most bytes of events.
    pub max_bytes: usize,
    /// Greatest age of an event.
    pub max_age: Duration,
}

/// Retained events of one session, oldest first.
#[derive(Debug, Default)]
pub struct EventLog {
    entries: VecDeque<LoggedEvent>,
    bytes: usize,
    /// Position of the newest event, also after it was trimmed.
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
    /// Position of the newest event, also after it was trimmed.
    pub fn last_position(&self) -> u64 {
        self.position
    }

    /// Bytes of all retained events.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Id of the next event if it goes to this stream.
    pub fn next_id(&self, stream: u32) -> EventId {
        EventId { stream, position: self.position + 1 }
    }

    /// Restores a log from stored events; the next event comes after `position`.
    pub fn restored(events: impl IntoIterator<Item = (EventId, Instant, Bytes)>, position: u64) -> Self {
        let mut log = Self { position, ..Self::default() };
        for (id, at, event) in events {
            log.bytes += event.len();
            log.entries.push_back(LoggedEvent { id, at, event });
        }
        log
    }

    /// Position of the oldest retained event; that of the next event when the log is empty.
    pub fn first_position(&self) -> u64 {
        self.entries.front().map_or(self.position + 1, |entry| entry.id.position)
    }

    /// Events of all streams after a position, in order, with their time.
    pub fn all_after(&self, position: u64) -> impl Iterator<Item = (EventId, Instant, &Bytes)> + '_ {
        let from = self.entries.partition_point(|entry| entry.id.position <= position);
        self.entries.range(from..).map(|entry| (entry.id, entry.at, &entry.event))
    }

    /// Appends an event under [`EventLog::next_id`].
    pub fn append(&mut self, stream: u32, event: Bytes, now: Instant) -> EventId {
        let id = self.next_id(stream);
        self.position = id.position;
        self.bytes += event.len();
        self.entries.push_back(LoggedEvent { id, at: now, event });
        id
    }

    /// Events of one stream after an id, in order.
    pub fn stream_after(&self, id: EventId) -> impl Iterator<Item = (EventId, Bytes)> + '_ {
        let from = self.entries.partition_point(|entry| entry.id.position <= id.position);
        let later = self.entries.range(from..);
        let of_stream = later.filter(move |entry| entry.id.stream == id.stream);
        of_stream.map(|entry| (entry.id, entry.event.clone()))
    }

    /// Removes the events of one stream.
    pub fn drop_stream(&mut self, stream: u32) {
        let bytes = &mut self.bytes;
        self.entries.retain(|entry| {
            let keep = entry.id.stream != stream;
            if !keep {
                *bytes -= entry.event.len();
            }
            keep
        });
    }

    /// Drops the oldest events until the log is within its bounds; calls `dropped` for each.
    pub fn trim(&mut self, retention: &Retention, now: Instant, mut dropped: impl FnMut(EventId)) {
        while let Some(first) = self.entries.front() {
            let over = self.entries.len() > retention.max_events || self.bytes > retention.max_bytes;
            if !over && now.duration_since(first.at) <= retention.max_age {
                break;
            }
            self.bytes -= first.event.len();
            dropped(first.id);
            self.entries.pop_front();
        }
        if self.entries.is_empty() {
            // Frees the buffer, so that an idle session holds no memory for past events.
            self.entries = VecDeque::new();
        }
    }

    /// Number of retained events.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the log has no events.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

// === impl EventId ===

impl EventId {
    /// Parses the form that `Display` writes, as found in `Last-Event-ID`.
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
        Self { max_events: 1000, max_bytes: 8 << 20, max_age: Duration::from_secs(600) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn event_ids_round_trip_and_malformed_ones_are_refused() {
        let id = EventId { stream: 3, position: 14 };
        assert_eq!(EventId::parse(&id.to_string()), Some(id));
        for bad in ["", "3", "3.", ".1", "a.1", "3.-1", "3.+1", "3.1.2", "99999999999.1"] {
            assert_eq!(EventId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn events_over_count_bytes_or_age_are_trimmed() {
        let now = Instant::now();
        let retention = Retention { max_events: 3, max_bytes: 10, max_age: Duration::from_secs(5) };
        let mut log = EventLog::default();
        for _ in 0..4 {
            log.append(1, Bytes::from_static(b"ab"), now);
        }
        let mut dropped = Vec::new();
        log.trim(&retention, now, |id| dropped.push(id.position));
        assert_eq!((log.len(), dropped), (3, vec![1]));
        log.append(2, Bytes::from_static(b"0123456"), now + Duration::from_secs(3));
        log.trim(&retention, now + Duration::from_secs(3), |_| {});
        assert_eq!(log.len(), 2); // 9 bytes are left; 11 were over the limit
        log.trim(&retention, now + Duration::from_secs(6), |_| {});
        assert_eq!(log.len(), 1);
        log.trim(&retention, now + Duration::from_secs(60), |_| {});
        assert!(log.is_empty());
    }

    proptest! {
        /// Model test: the log behaves as a plain list of all appended events.
        #[test]
        fn stream_reads_match_a_list_model(
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
            if let Some(dropped) = forgotten {
                log.drop_stream(dropped);
                list.retain(|(id, _)| id.stream != dropped);
            }
            let expected: Vec<_> = list.into_iter().filter(|(id, _)| id.stream == stream && id.position > from).collect();
            let found: Vec<_> = log.stream_after(EventId { stream, position: from }).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
