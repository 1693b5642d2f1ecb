//! SSE: the decoder yields the same events however the bytes are split, and decodes what `message`, `priming` and
//! `endpoint` write.
//!
//! The input is a stream, optionally followed by the byte 0xff and bytes from which the plan is generated: where to
//! split, the decoder's limit, and the frames to write.
//!
//! A decoder fails at an event over its limit and drops the other events of the same push. So under a limit, all
//! splits must agree on the outcome, and on the events if it is a success.
//!
//! Contract of the writers: data is UTF-8, and its line breaks of either kind are read back as line feeds; ids
//! contain neither line breaks nor NUL.

use rialto::http::sse::{KEEP_ALIVE, SseDecoder, SseEvent, TooLarge, endpoint, message, priming};

use crate::choices::Choices;

const AMPLE_LIMIT: usize = 1 << 20;
/// Splits of a stream, and frames to write.
const MAX_CUTS: u8 = 8;
const MAX_FRAMES: usize = 16;

#[derive(Debug)]
struct Plan<'a> {
    limit: u8,
    /// Length of each piece; the rest is one piece.
    cuts: Vec<u8>,
    frames: Vec<Frame<'a>>,
}

#[derive(Debug)]
enum Frame<'a> {
    Message { id: Option<&'a str>, data: &'a str },
    Priming { id: &'a str, retry: u64 },
    Endpoint(&'a str),
    KeepAlive,
}

pub fn check(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0xff);
    let stream = parts.next().unwrap_or_default();
    let plan = Plan::draw(&mut Choices::new(parts.next().unwrap_or_default()));

    let events = decode_in_pieces(stream, AMPLE_LIMIT, &plan.cuts).expect("the limit is ample");
    _ = decode_in_pieces(stream, usize::from(plan.limit), &plan.cuts);
    for event in events {
        check_forwarding(event);
    }

    let mut written = Vec::new();
    let mut expected = Vec::new();
    for frame in &plan.frames {
        frame.write(&mut written, &mut expected);
    }
    assert_eq!(decode_in_pieces(&written, AMPLE_LIMIT, &plan.cuts), Ok(expected));
}

/// Decodes the bytes in one piece, byte by byte and in pieces; all three must agree.
fn decode_in_pieces(bytes: &[u8], limit: usize, cuts: &[u8]) -> Result<Vec<SseEvent>, TooLarge> {
    let whole = decode([bytes], limit);
    assert_eq!(decode(bytes.chunks(1), limit), whole);
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for cut in cuts {
        let (piece, after) = rest.split_at(usize::from(*cut).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    assert_eq!(decode(pieces, limit), whole);
    whole
}

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limit: usize) -> Result<Vec<SseEvent>, TooLarge> {
    let mut decoder = SseDecoder::new(limit);
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(decoder.push(piece)?);
    }
    Ok(events)
}

/// A decoded event survives being forwarded.
fn check_forwarding(event: SseEvent) {
    let written = message(event.id.as_deref(), event.data.as_bytes());
    let again = SseEvent { name: Some("message".to_owned()), retry: None, ..event };
    assert_eq!(decode([&written[..]], AMPLE_LIMIT), Ok(vec![again]));
}

impl<'a> Plan<'a> {
    fn draw(choices: &mut Choices<'a>) -> Self {
        let (limit, cuts) = (choices.byte(), choices.byte() % MAX_CUTS);
        let cuts = (0..cuts).map(|_| choices.byte()).collect();
        let mut frames = Vec::new();
        while !choices.is_empty() && frames.len() < MAX_FRAMES {
            frames.push(Frame::draw(choices));
        }
        Self { limit, cuts, frames }
    }
}

impl<'a> Frame<'a> {
    fn draw(choices: &mut Choices<'a>) -> Self {
        match choices.byte() % 5 {
            0 => Self::Message { id: None, data: choices.text() },
            1 => Self::Message { id: Some(choices.text()), data: choices.text() },
            2 => Self::Priming { id: choices.text(), retry: u64::from(choices.byte()) << (choices.byte() % 56) },
            3 => Self::Endpoint(choices.text()),
            _ => Self::KeepAlive,
        }
    }

    fn write(&self, out: &mut Vec<u8>, expected: &mut Vec<SseEvent>) {
        let named = |name: &str, id: Option<&str>, data: &str| SseEvent {
            name: Some(name.to_owned()),
            id: id.map(str::to_owned),
            retry: None,
            data: data.replace('\r', "\n"),
        };
        match *self {
            Self::Message { id, .. } if id.is_some_and(|id| !is_id(id)) => {}
            Self::Message { id, data } => {
                out.extend_from_slice(&message(id, data.as_bytes()));
                expected.push(named("message", id, data));
            }
            Self::Priming { id, .. } if !is_id(id) => {}
            Self::Priming { id, retry } => {
                out.extend_from_slice(&priming(id, retry));
                expected.push(SseEvent {
                    name: None,
                    id: Some(id.to_owned()),
                    retry: Some(retry),
                    data: String::new(),
                });
            }
            Self::Endpoint(uri) => {
                out.extend_from_slice(&endpoint(uri));
                expected.push(named("endpoint", None, uri));
            }
            Self::KeepAlive => out.extend_from_slice(KEEP_ALIVE),
        }
    }
}

fn is_id(id: &str) -> bool {
    !id.contains(['\r', '\n', '\0'])
}
