//! HTTP/1.1 codec: parsing it from parses also parses, and no earlier, when its last byte arrives; a body decodes the same in
//! any chunking and never to more data than it holds.
//!
//! The first input byte of the input is the chunk size.

#![no_main]

use bytes::BytesMut;
use http::Method as Verb;
use libfuzzer_sys::fuzz_target;
use rialto::http::codec::{BodyDecoder, Decoded, RequestHead, ResponseHead};

const MAX_HEAD_BYTES: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((step, text)) = data.split_first() else { return };
    let step = usize::from(*step).max(1);
    let whole = BytesMut::from(text);
    // Requests.
    let mut rest = whole.clone();
    if let Ok(Some(head)) = RequestHead::parse(&mut rest, 100, MAX_HEAD_BYTES) {
        let end = text.len() - rest.len();
        assert!(matches!(RequestHead::parse(&mut BytesMut::from(&text[..end - 1]), 100, MAX_HEAD_BYTES), Ok(None)));
        let mut again = BytesMut::from(&text[..end]);
        let same = RequestHead::parse(&mut again, 100, MAX_HEAD_BYTES).expect("it parsed before").expect("it is complete");
        assert_eq!((same.verb, same.uri, same.headers), (head.verb, head.uri, head.headers));
        assert_ne!(head.framing, BodyDecoder::UntilClose);
        check_body(&head.framing, &rest, step);
    }
    // Responses.
    let mut rest = whole.clone();
    if let Ok(Some((head, decoder))) = ResponseHead::parse(&mut rest, &Verb::POST) {
        assert!(!(head.keep_alive() && decoder == BodyDecoder::UntilClose));
        check_body(&decoder, &rest, step);
    }
    check_body(&BodyDecoder::CHUNKED, &whole, step);
});

/// Decodes a body at once and in chunks of `step` bytes.
fn check_body(decoder: &BodyDecoder, text: &[u8], step: usize) {
    let (one, other) = (read(decoder, text, text.len().max(1)), read(decoder, text, step));
    assert_eq!(one.is_none(), other.is_none());
    if let (Some(one), Some(other)) = (one, other) {
        assert!(one == other && one.0.len() <= text.len());
    }
}

/// The data of a decoded and whether its end was reached; `None` if it is malformed.
fn read(decoder: &BodyDecoder, text: &[u8], step: usize) -> Option<(Vec<u8>, bool)> {
    let (mut decoder, mut buffer, mut all) = (decoder.clone(), BytesMut::new(), Vec::new());
    let mut parts = text.chunks(step);
    loop {
        match decoder.decode(&mut buffer).ok()? {
            Decoded::Data(data) => all.extend_from_slice(&data),
            Decoded::End => return Some((all, true)),
            Decoded::NeedMore => match parts.next() {
                Some(part) => buffer.extend_from_slice(part),
                None => return Some((all, false)),
            },
        }
    }
}
