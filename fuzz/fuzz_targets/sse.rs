//! Event streams: however the bytes are cut, the same events come out; and what `message`,
//! `priming` and `endpoint` write is read back.
//!
//! The input is a stream, optionally followed by the byte 0xff and by bytes that the plan is drawn
//! from: where to cut, the decoder's limit, and what to write.
//!
//! A decoder that meets an event over its limit gives up, and what it read in the same push goes
//! with it. So under a limit the pieces must agree on the verdict, and on the events when it is good.
//!
//! The writers' contract: data is UTF-8 and its line breaks, of either kind, are read back as line
//! feeds; ids are ours and hold neither line breaks nor NUL.

#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use rialto::http::sse::{Decoder, Event, KEEP_ALIVE, TooLarge, endpoint, message, priming};

const ROOMY: usize = 1 << 20;

#[derive(Arbitrary, Debug, Default)]
struct Plan<'a> {
    limit: u8,
    /// How long each piece is; the rest comes in one.
    cuts: Vec<u8>,
    frames: Vec<Frame<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Frame<'a> {
    Message { id: Option<&'a str>, data: &'a str },
    Priming { id: &'a str, retry: u64 },
    Endpoint(&'a str),
    KeepAlive,
}

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == 0xff);
    let stream = parts.next().unwrap_or_default();
    let plan: Plan<'_> = Unstructured::new(parts.next().unwrap_or_default()).arbitrary().unwrap_or_default();

    let events = same_in_pieces(stream, ROOMY, &plan.cuts).expect("there is room");
    _ = same_in_pieces(stream, usize::from(plan.limit), &plan.cuts);
    for event in events {
        survives(event);
    }

    let mut written = Vec::new();
    let mut expected = Vec::new();
    for frame in &plan.frames {
        frame.write(&mut written, &mut expected);
    }
    assert_eq!(same_in_pieces(&written, ROOMY, &plan.cuts), Ok(expected));
});

/// Decodes the bytes whole, one by one and in pieces, and gives back what all three agree on.
fn same_in_pieces(bytes: &[u8], limit: usize, cuts: &[u8]) -> Result<Vec<Event>, TooLarge> {
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

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limit: usize) -> Result<Vec<Event>, TooLarge> {
    let mut decoder = Decoder::new(limit);
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(decoder.push(piece)?);
    }
    Ok(events)
}

/// An event that was read is read again when we pass it on.
fn survives(event: Event) {
    let written = message(event.id.as_deref(), event.data.as_bytes());
    let again = Event { name: Some("message".to_owned()), retry: None, ..event };
    assert_eq!(decode([&written[..]], ROOMY), Ok(vec![again]));
}

impl Frame<'_> {
    fn write(&self, out: &mut Vec<u8>, expected: &mut Vec<Event>) {
        let named = |name: &str, id: Option<&str>, data: &str| Event {
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
                expected.push(Event { name: None, id: Some(id.to_owned()), retry: Some(retry), data: String::new() });
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
