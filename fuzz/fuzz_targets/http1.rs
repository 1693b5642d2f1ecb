//! HTTP/1.1: whatever arrives, heads are read or refused, and a head that is read is the same once more of it has
//! arrived; a body is the same however it is cut, and never more than has arrived.
//!
//! The first byte says how long the pieces are that the rest arrives in.

#![no_main]

use bytes::BytesMut;
use http::Method as Verb;
use libfuzzer_sys::fuzz_target;
use rialto::http::codec::{Asked, Framing, Head, Piece};

const ROOMY: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((step, text)) = data.split_first() else { return };
    let step = usize::from(*step).max(1);
    let whole = BytesMut::from(text);
    // Requests.
    let mut rest = whole.clone();
    if let Ok(Some(asked)) = Asked::take(&mut rest, 100, ROOMY) {
        let end = text.len() - rest.len();
        assert!(matches!(Asked::take(&mut BytesMut::from(&text[..end - 1]), 100, ROOMY), Ok(None)));
        let mut again = BytesMut::from(&text[..end]);
        let same = Asked::take(&mut again, 100, ROOMY).expect("it was read").expect("it is whole");
        assert_eq!((same.verb, same.uri, same.headers), (asked.verb, asked.uri, asked.headers));
        assert_ne!(asked.framing, Framing::UntilClose);
        body(&asked.framing, &rest, step);
    }
    // Answers.
    let mut rest = whole.clone();
    if let Ok(Some((head, framing))) = Head::take(&mut rest, &Verb::POST) {
        assert!(!(head.keeps() && framing == Framing::UntilClose));
        body(&framing, &rest, step);
    }
    body(&Framing::CHUNKS, &whole, step);
});

/// Reads a body whole and in pieces.
fn body(framing: &Framing, text: &[u8], step: usize) {
    let (one, other) = (read(framing, text, text.len().max(1)), read(framing, text, step));
    assert_eq!(one.is_none(), other.is_none());
    if let (Some(one), Some(other)) = (one, other) {
        assert!(one == other && one.0.len() <= text.len());
    }
}

/// What a body has, and whether that is all of it; nothing where it is none.
fn read(framing: &Framing, text: &[u8], step: usize) -> Option<(Vec<u8>, bool)> {
    let (mut framing, mut arrived, mut all) = (framing.clone(), BytesMut::new(), Vec::new());
    let mut parts = text.chunks(step);
    loop {
        match framing.take(&mut arrived).ok()? {
            Piece::Data(data) => all.extend_from_slice(&data),
            Piece::End => return Some((all, true)),
            Piece::Missing => match parts.next() {
                Some(part) => arrived.extend_from_slice(part),
                None => return Some((all, false)),
            },
        }
    }
}
