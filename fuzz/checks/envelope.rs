//! JSON-RPC envelopes: an accepted message survives encoding and parsing unchanged, and encoding it again gives the same
//! bytes. Rialto forwards messages between peers, so a message that changes on the way would be one that nobody
//! sent.
//!
//! Also checked:
//! - the parsed method equals the one that serde_json reads;
//! - text that serde_json accepts is never a parse error, and the error response is itself a valid message;
//! - `depth_within` accepts any bytes, and for JSON it agrees with a walk over the values.

use bytes::Bytes;
use rialto::protocol::json::depth_within;
use rialto::protocol::{Incoming, Invalid, Message, Raw, code};

/// Default depth limit of the gateway; also bounds the recursive walk below.
const MAX_DEPTH: usize = 128;

/// Batch limit; small, so that the fuzzer reaches batches over the limit.
const MAX_BATCH: usize = 4;

pub fn check(data: &[u8]) {
    let text = Bytes::copy_from_slice(data);
    check_depth(&text);
    match Incoming::parse(&text, MAX_BATCH) {
        Ok(Incoming::One(message)) => {
            assert_eq!(Message::parse(&text).as_ref(), Ok(&message));
            check_method(&message, &text);
            check_round_trip(&message);
        }
        Ok(Incoming::Batch(items)) => {
            assert!((1..=MAX_BATCH).contains(&items.len()));
            for item in items {
                item.map_or_else(check_error_response, |message| check_round_trip(&message));
            }
        }
        Err(invalid) => {
            if serde_json::from_slice::<serde_json::Value>(&text).is_ok() {
                assert_eq!(invalid.code, code::INVALID_REQUEST, "valid JSON: {}", invalid.reason);
            }
            check_error_response(invalid);
        }
    }
}

fn check_round_trip(message: &Message) {
    let written = message.encode();
    let again = Message::parse(&written).expect("an encoded message can be parsed");
    assert_eq!(&again, message);
    assert_eq!(again.encode(), written);
}

fn check_error_response(invalid: Invalid) {
    check_round_trip(&Message::Response(invalid.response()));
}

fn check_method(message: &Message, text: &Bytes) {
    let method = match message {
        Message::Request(request) => Some(request.method.as_str()),
        Message::Notification(notification) => Some(notification.method.as_str()),
        Message::Response(_) => None,
    };
    let object = Raw::parse(text).expect("a message is JSON");
    let expected = object.get("method").map(|raw| raw.read::<String>().expect("an accepted method is a string"));
    assert_eq!(method, expected.as_deref());
}

fn check_depth(text: &Bytes) {
    if !depth_within(text, MAX_DEPTH) {
        assert!(!depth_within(text, MAX_DEPTH - 1));
        return;
    }
    if let Ok(value) = Raw::parse(text) {
        let depth = depth(&value);
        assert!(depth_within(text, depth));
        assert!(depth == 0 || !depth_within(text, depth - 1));
    }
}

fn depth(value: &Raw) -> usize {
    if !value.is_array() && !value.is_object() {
        return 0;
    }
    // Only one of the two iterators is non-empty.
    let items = value.items().into_iter();
    let children = items.chain(value.entries().map(|(_, member)| member));
    1 + children.map(|child| depth(&child)).max().unwrap_or(0)
}
