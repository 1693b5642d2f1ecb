//! The event-stream format: events to bytes, and bytes back to events.

use bytes::{BufMut, Bytes, BytesMut};

/// One event of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The `event` field; absent means `message`.
    pub name: Option<String>,
    /// The `id` field.
    pub id: Option<String>,
    /// The `retry` field, in milliseconds.
    pub retry: Option<u64>,
    /// The `data` lines, joined.
    pub data: String,
}

/// A comment that keeps a quiet stream open.
pub const KEEP_ALIVE: &[u8] = b": keepalive\n\n";

/// One event with a message in it. `data` must be one line, as JSON without line breaks is.
pub fn message(id: Option<&str>, data: &[u8]) -> Bytes {
    named("message", id, data)
}

/// The first event of an HTTP+SSE stream: where to send messages.
pub fn endpoint(uri: &str) -> Bytes {
    named("endpoint", None, uri.as_bytes())
}

/// An event that only tells the client from where to resume, and how long to wait before.
pub fn priming(id: &str, retry: u64) -> Bytes {
    Bytes::from(format!("id: {id}\nretry: {retry}\ndata: \n\n"))
}

/// Only tells the client how long to wait before it reconnects.
pub fn retry(milliseconds: u64) -> Bytes {
    Bytes::from(format!("retry: {milliseconds}\n\n"))
}

fn named(name: &str, id: Option<&str>, data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(data.len() + 48);
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    if let Some(id) = id {
        out.extend_from_slice(b"\nid: ");
        out.extend_from_slice(id.as_bytes());
    }
    // Line breaks are legal white space in JSON; each line of data needs the field's name.
    for line in data.split(|byte| matches!(byte, b'\n' | b'\r')) {
        out.extend_from_slice(b"\ndata: ");
        out.extend_from_slice(line);
    }
    out.put_slice(b"\n\n");
    out.freeze()
}

/// Reads events from bytes that arrive in any pieces.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    /// How much of `buffer` is known to hold no line end.
    searched: usize,
    /// A carriage return ended the last line, so a line feed that follows belongs to it.
    after_return: bool,
    begun: bool,
    event: Event,
    has_data: bool,
    size: usize,
    limit: usize,
}

/// An event or a line is larger than the decoder's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

impl Decoder {
    /// A decoder that refuses events larger than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            after_return: false,
            begun: false,
            event: Event::default(),
            has_data: false,
            size: 0,
            limit,
        }
    }

    /// Takes bytes in and gives back the events that they complete. Events that say nothing are
    /// dropped; one with an id or a time to wait but no data only tells how to resume.
    ///
    /// # Errors
    /// When one event is larger than the limit; the stream cannot be read on.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLarge> {
        let mut events = Vec::new();
        self.buffer.extend_from_slice(bytes);
        while let Some(line) = self.line() {
            self.size += line.len() + 1;
            if self.size > self.limit {
                return Err(TooLarge);
            }
            if !line.is_empty() {
                self.field(&line);
                continue;
            }
            self.size = 0;
            let event = std::mem::take(&mut self.event);
            let worth = std::mem::take(&mut self.has_data) || event.id.is_some() || event.retry.is_some();
            if worth {
                events.push(event);
            }
        }
        if self.size + self.buffer.len() > self.limit {
            return Err(TooLarge);
        }
        Ok(events)
    }

    /// The next whole line, without its end.
    fn line(&mut self) -> Option<Bytes> {
        if self.after_return && !self.buffer.is_empty() {
            self.after_return = false;
            if self.buffer[0] == b'\n' {
                let _ = self.buffer.split_to(1);
            }
        }
        let rest = &self.buffer[self.searched..];
        let Some(found) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            self.searched = self.buffer.len();
            return None;
        };
        let end = self.searched + found;
        self.searched = 0;
        self.after_return = self.buffer[end] == b'\r';
        let mut line = self.buffer.split_to(end + 1).freeze();
        line.truncate(end);
        if !std::mem::replace(&mut self.begun, true) && line.starts_with(b"\xef\xbb\xbf") {
            self.size += 3; // it counts, however the bytes arrive
            return Some(line.slice(3..));
        }
        Some(line)
    }

    fn field(&mut self, line: &[u8]) {
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(0) => return, // a comment
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = String::from_utf8_lossy(value);
        match name {
            b"event" => self.event.name = Some(text.into_owned()),
            b"id" if !value.contains(&0) => self.event.id = Some(text.into_owned()),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.event.retry = text.parse().ok().or(self.event.retry);
            }
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(&text);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(bytes: &[u8]) -> Vec<Event> {
        Decoder::new(1 << 20).push(bytes).unwrap()
    }

    #[test]
    fn what_we_write_we_read() {
        let mut bytes = priming("0.0", 3000).to_vec();
        bytes.extend_from_slice(KEEP_ALIVE);
        bytes.extend_from_slice(&message(Some("0.1"), br#"{"a":1}"#));
        bytes.extend_from_slice(&endpoint("/message?sessionId=x"));
        let events = decode(&bytes);
        assert_eq!(events.len(), 3);
        assert_eq!((events[0].id.as_deref(), events[0].retry, events[0].data.as_str()), (Some("0.0"), Some(3000), ""));
        assert_eq!((events[1].id.as_deref(), events[1].data.as_str()), (Some("0.1"), r#"{"a":1}"#));
        assert_eq!(events[2].name.as_deref(), Some("endpoint"));
    }

    #[test]
    fn every_kind_of_line_end_counts() {
        let events = decode(b"\xef\xbb\xbfdata: a\r\ndata:b\rdata: c\n\r\n: note\n\ndata\n\n");
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].data, "a\nb\nc");
        assert_eq!(events[1].data, "");
    }

    #[test]
    fn only_digits_are_a_time_to_wait() {
        let events = decode(b"retry: 5\nretry: x\nretry: +7\ndata: 1\n\n");
        assert_eq!(events[0].retry, Some(5));
    }

    #[test]
    fn a_mark_at_the_beginning_counts_however_it_is_cut() {
        let bytes = b"\xef\xbb\xbf\n";
        let mut decoder = Decoder::new(1);
        assert_eq!(decoder.push(bytes), Err(TooLarge));
        let mut decoder = Decoder::new(1);
        assert!(bytes.iter().any(|byte| decoder.push(&[*byte]).is_err()));
    }

    #[test]
    fn an_event_over_the_limit_is_refused() {
        assert_eq!(Decoder::new(17).push(b"data: 0123456789\n\n").map(|e| e.len()), Err(TooLarge));
        assert_eq!(Decoder::new(18).push(b"data: 0123456789\n\n").map(|e| e.len()), Ok(1));
        assert_eq!(Decoder::new(16).push(&[b'x'; 64]), Err(TooLarge));
    }

    proptest! {
        /// However the bytes are cut, the same events come out.
        #[test]
        fn pieces_do_not_matter(data in "[ -~\n\r]{0,40}", id in "[a-z0-9.]{1,8}", cuts in prop::collection::vec(0usize..200, 0..6)) {
            let mut bytes = message(Some(&id), data.as_bytes()).to_vec();
            bytes.extend_from_slice(&message(None, b"{}"));
            let whole = decode(&bytes);
            let mut decoder = Decoder::new(1 << 20);
            let mut pieces = Vec::new();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                pieces.extend(decoder.push(&bytes[from..cut]).unwrap());
                from = cut;
            }
            prop_assert_eq!(&pieces, &whole);
            prop_assert_eq!(whole.len(), 2);
            prop_assert_eq!(whole[0].data.clone(), data.replace('\r', "\n"));
        }
    }
}
