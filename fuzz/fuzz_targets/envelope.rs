//! Envelopes: a message that is accepted is the same message after it was written and read again,
//! and writing it once more gives the same bytes. Rialto reads what one peer writes and writes it
//! for another, so a message that changed on the way would be one that nobody sent.
//!
//! Also held here:
//! - the method is the one that stands in the text, as serde_json reads it;
//! - text that serde_json takes is never called "not JSON", and a refusal is itself a message;
//! - `depth_within` survives any bytes, and for JSON it counts as a walk over the values does.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use rialto::protocol::json::depth_within;
use rialto::protocol::{Incoming, Invalid, Message, Raw, code};

/// What the gateway allows by default; the walk below is recursive and needs a bound of its own.
const DEPTH: usize = 128;

/// How many messages a batch may hold; few, so that batches with too many are met.
const MOST: usize = 4;

fuzz_target!(|data: &[u8]| {
    let text = Bytes::copy_from_slice(data);
    depth_is_counted(&text);
    match Incoming::parse(&text, MOST) {
        Ok(Incoming::One(message)) => {
            assert_eq!(Message::parse(&text).as_ref(), Ok(&message));
            says_what_the_text_says(&message, &text);
            survives(&message);
        }
        Ok(Incoming::Batch(items)) => {
            assert!((1..=MOST).contains(&items.len()));
            for item in items {
                item.map_or_else(refusal_survives, |message| survives(&message));
            }
        }
        Err(invalid) => {
            if serde_json::from_slice::<serde_json::Value>(&text).is_ok() {
                assert_eq!(invalid.code, code::INVALID_REQUEST, "valid JSON: {}", invalid.why);
            }
            refusal_survives(invalid);
        }
    }
});

fn survives(message: &Message) {
    let written = message.encode();
    let again = Message::parse(&written).expect("what we write we can read");
    assert_eq!(&again, message);
    assert_eq!(again.encode(), written);
}

fn refusal_survives(invalid: Invalid) {
    survives(&Message::Response(invalid.response()));
}

fn says_what_the_text_says(message: &Message, text: &Bytes) {
    let method = match message {
        Message::Request(request) => Some(request.method.as_str()),
        Message::Notification(notification) => Some(notification.notice.as_str()),
        Message::Response(_) => None,
    };
    let object = Raw::parse(text).expect("a message is JSON");
    let stands_there = object.get("method").map(|raw| raw.read::<String>().expect("an accepted method is a string"));
    assert_eq!(method, stands_there.as_deref());
}

fn depth_is_counted(text: &Bytes) {
    if !depth_within(text, DEPTH) {
        assert!(!depth_within(text, DEPTH - 1));
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
    // Only one of the two yields anything.
    let items = value.items().into_iter();
    let children = items.chain(value.entries().map(|(_, member)| member));
    1 + children.map(|child| depth(&child)).max().unwrap_or(0)
}
