//! HTTP/1.1 codec: a head is complete with its last byte and not before; a body decodes to the same data however it is
//! split, and never to more data than there was.
//!
//! The first byte of the input is the size of the pieces.

#![no_main]

use bytes::BytesMut;
use http::Method as Verb;
use libfuzzer_sys::fuzz_target;
use rialto::http::codec::{BodyDecoder, Decoded, HeadRules, RequestHead, ResponseHead};

const RULES: HeadRules = HeadRules { max_headers: 100, max_bytes: 1 << 20, frequent_names: &[] };

fuzz_target!(|data: &[u8]| {
    let Some((step, text)) = data.split_first() else { return };
    let step = usize::from(*step).max(1);
    let whole = BytesMut::from(text);
    // Requests.
    let mut rest = whole.clone();
    if let Ok(Some(head)) = RequestHead::parse(&mut rest, &RULES) {
        let end = text.len() - rest.len();
        assert!(matches!(RequestHead::parse(&mut BytesMut::from(&text[..end - 1]), &RULES), Ok(None)));
        let mut again = BytesMut::from(&text[..end]);
        let same = RequestHead::parse(&mut again, &RULES).expect("it parsed before").expect("it is complete");
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

/// The decoded data and whether the end was reached; `None` if the body is malformed.
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
