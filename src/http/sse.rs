//! Server-sent events: encoding of single events and an incremental decoder with a size limit.

use bytes::{BufMut, Bytes, BytesMut};

/// One server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The `event` field; absent means `message`.
    pub name: Option<String>,
    /// The `id` field.
    pub id: Option<String>,
    /// The `retry` field, in milliseconds.
    pub retry: Option<u64>,
    /// The `data` lines, joined by line feeds.
    pub data: String,
}

/// Comment that keeps an idle stream open through proxies.
pub const KEEP_ALIVE: &[u8] = b": keepalive\n\n";

/// Encodes a `message` event. Line breaks in `data` become further `data` lines.
pub fn message(id: Option<&str>, data: &[u8]) -> Bytes {
    encode_event("message", id, data)
}

/// Encodes an `endpoint` event whose data is a URI.
pub fn endpoint(uri: &str) -> Bytes {
    encode_event("endpoint", None, uri.as_bytes())
}

/// Encodes an event without data that gives the client an id to resume from and a reconnection delay in milliseconds.
pub fn priming(id: &str, retry: u64) -> Bytes {
    Bytes::from(format!("id: {id}\nretry: {retry}\ndata: \n\n"))
}

/// Encodes an event that only sets the client's reconnection delay.
pub fn retry(milliseconds: u64) -> Bytes {
    Bytes::from(format!("retry: {milliseconds}\n\n"))
}

fn encode_event(name: &str, id: Option<&str>, data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(data.len() + 48);
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    if let Some(id) = id {
        out.extend_from_slice(b"\nid: ");
        out.extend_from_slice(id.as_bytes());
    }
    // Line breaks are legal white space in JSON; each line needs its own `data` field.
    for line in data.split(|byte| matches!(byte, b'\n' | b'\r')) {
        out.extend_from_slice(b"\ndata: ");
        out.extend_from_slice(line);
    }
    out.put_slice(b"\n\n");
    out.freeze()
}

/// Incremental decoder: accepts a stream in chunks of any size and bounds the size of an event.
#[derive(Debug)]
pub struct SseDecoder {
    buffer: BytesMut,
    /// Bytes of `buffer` already searched for a line end, so that each byte is searched once.
    searched: usize,
    /// The last line ended with CR, so an LF that follows belongs to the same line end.
    skip_line_feed: bool,
    /// The byte order mark is only skipped on the first line.
    past_first_line: bool,
    event: SseEvent,
    has_data: bool,
    /// Bytes of the current event so far.
    event_bytes: usize,
    max_event_bytes: usize,
    /// Every line is the data of an event of its own: newline-delimited JSON.
    is_lines: bool,
}

/// An event or a line exceeds the decoder's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

impl SseDecoder {
    /// A decoder that refuses events of more than `limit` bytes.
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            skip_line_feed: false,
            past_first_line: false,
            event: SseEvent::default(),
            has_data: false,
            event_bytes: 0,
            max_event_bytes,
            is_lines: false,
        }
    }

    /// A decoder of newline-delimited JSON, which makes an event of every line.
    pub fn of_lines(max_line_bytes: usize) -> Self {
        Self { is_lines: true, ..Self::new(max_line_bytes) }
    }

    /// Appends a chunk and returns the events that it completes. Events without data, id and retry are dropped; one with
    /// an id or a retry but no data only affects resumption.
    ///
    /// # Errors
    /// When one event exceeds the limit; the stream cannot be decoded any further.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, TooLarge> {
        let mut events = Vec::new();
        self.buffer.extend_from_slice(bytes);
        while let Some(line) = self.next_line() {
            self.event_bytes += line.len() + 1;
            if self.event_bytes > self.max_event_bytes {
                return Err(TooLarge);
            }
            if self.is_lines {
                self.event_bytes = 0;
                events.extend(event_of_line(&line));
                continue;
            }
            if !line.is_empty() {
                self.apply_field(&line);
                continue;
            }
            self.event_bytes = 0;
            let event = std::mem::take(&mut self.event);
            let is_relevant = std::mem::take(&mut self.has_data) || event.id.is_some() || event.retry.is_some();
            if is_relevant {
                events.push(event);
            }
        }
        if self.event_bytes + self.buffer.len() > self.max_event_bytes {
            return Err(TooLarge);
        }
        Ok(events)
    }

    /// The last line of newline-delimited JSON, which may lack its line end; an SSE event that is cut off counts for nothing.
    pub fn finish(&mut self) -> Option<SseEvent> {
        let rest = std::mem::take(&mut self.buffer);
        event_of_line(&rest).filter(|_| self.is_lines)
    }

    /// The next complete line, without its line end.
    fn next_line(&mut self) -> Option<Bytes> {
        if self.skip_line_feed && !self.buffer.is_empty() {
            self.skip_line_feed = false;
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
        self.skip_line_feed = self.buffer[end] == b'\r';
        let mut line = self.buffer.split_to(end + 1).freeze();
        line.truncate(end);
        if !std::mem::replace(&mut self.past_first_line, true) && line.starts_with(b"\xef\xbb\xbf") {
            self.event_bytes += 3; // The mark counts, however the bytes are chunked.
            return Some(line.slice(3..));
        }
        Some(line)
    }

    fn apply_field(&mut self, line: &[u8]) {
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(0) => return, // comment line
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

/// The event whose data is a line; none for a blank one.
fn event_of_line(line: &[u8]) -> Option<SseEvent> {
    let line = line.trim_ascii();
    (!line.is_empty()).then(|| SseEvent { data: String::from_utf8_lossy(line).into_owned(), ..SseEvent::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(bytes: &[u8]) -> Vec<SseEvent> {
        SseDecoder::new(1 << 20).push(bytes).unwrap()
    }

    #[test]
    fn encoded_events_are_decoded() {
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
    fn cr_lf_and_crlf_end_a_line() {
        let events = decode(b"\xef\xbb\xbfdata: a\r\ndata:b\rdata: c\n\r\n: note\n\ndata\n\n");
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].data, "a\nb\nc");
        assert_eq!(events[1].data, "");
    }

    #[test]
    fn lines_are_events_of_their_own() {
        let mut decoder = SseDecoder::of_lines(8);
        let data = |events: Vec<SseEvent>| events.into_iter().map(|event| event.data).collect::<Vec<_>>();
        assert_eq!(data(decoder.push(b"{\"a\":1}\r\n\n {").unwrap()), [r#"{"a":1}"#]);
        assert_eq!(data(decoder.push(b"}\nlast").unwrap()), ["{}"]);
        assert_eq!(data(decoder.finish().into_iter().collect()), ["last"]);
        assert_eq!(decoder.finish(), None);
        assert_eq!(decoder.push(b"123456789"), Err(TooLarge));
        let mut events = SseDecoder::new(64);
        assert_eq!((events.push(b"data: cut off\n"), events.finish()), (Ok(Vec::new()), None));
    }

    #[test]
    fn retry_with_other_than_digits_is_ignored() {
        let events = decode(b"retry: 5\nretry: x\nretry: +7\ndata: 1\n\n");
        assert_eq!(events[0].retry, Some(5));
    }

    #[test]
    fn byte_order_mark_counts_towards_the_limit_in_any_chunking() {
        let bytes = b"\xef\xbb\xbf\n";
        let mut decoder = SseDecoder::new(1);
        assert_eq!(decoder.push(bytes), Err(TooLarge));
        let mut decoder = SseDecoder::new(1);
        assert!(bytes.iter().any(|byte| decoder.push(&[*byte]).is_err()));
    }

    #[test]
    fn event_over_the_limit_is_refused() {
        assert_eq!(SseDecoder::new(17).push(b"data: 0123456789\n\n").map(|e| e.len()), Err(TooLarge));
        assert_eq!(SseDecoder::new(18).push(b"data: 0123456789\n\n").map(|e| e.len()), Ok(1));
        assert_eq!(SseDecoder::new(16).push(&[b'x'; 64]), Err(TooLarge));
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_the_events(data in "[ -~\n\r]{0,40}", id in "[a-z0-9.]{1,8}", cuts in prop::collection::vec(0usize..200, 0..6)) {
            let mut bytes = message(Some(&id), data.as_bytes()).to_vec();
            bytes.extend_from_slice(&message(None, b"{}"));
            let expected = decode(&bytes);
            let mut decoder = SseDecoder::new(1 << 20);
            let mut events = Vec::new();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                events.extend(decoder.push(&bytes[from..cut]).unwrap());
                from = cut;
            }
            prop_assert_eq!(&events, &expected);
            prop_assert_eq!(expected.len(), 2);
            prop_assert_eq!(expected[0].data.clone(), data.replace('\r', "\n"));
        }
    }
}
