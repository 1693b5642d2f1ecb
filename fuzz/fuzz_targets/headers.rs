//! Mirrored headers: any text survives the value codec, and the headers that are made for a call
//! are those that are accepted for it.
//!
//! The input, taken whole, is a header value. Taken apart at the byte 0xff, which no JSON holds, it
//! is a tool's schema and the arguments of a call.
//!
//! Held for the codec: `decode` survives any bytes, and a value that it takes says the same after it
//! was encoded again; what `encode` writes is a legal header value.
//!
//! Held for schemas: `mirrors` survives any JSON, of any depth, and a schema that spells its strings
//! with escapes asks for the same headers. The headers made from it say what serde_json reads in the
//! arguments and are accepted; without any one of them, or with another value in it, the call is
//! refused.

#![no_main]

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use rialto::dialect::headers::{check, decode, encode, make, mirrors};
use rialto::protocol::Raw;
use rialto::protocol::json::depth_within;
use serde_json::Value;

/// What the gateway allows by default; `respell` is recursive and needs a bound of its own.
const DEPTH: usize = 128;

fuzz_target!(|data: &[u8]| {
    if let Ok(value) = decode(data) {
        survives(&value);
    }
    if let Ok(value) = std::str::from_utf8(data) {
        survives(value);
    }
    let mut parts = data.splitn(2, |byte| *byte == 0xff);
    let Some(schema) = parts.next().and_then(json) else { return };
    let arguments = parts.next().and_then(json).unwrap_or(Raw::empty());
    calls_agree(&schema, &arguments);
});

fn json(text: &[u8]) -> Option<Raw> {
    Raw::parse(&Bytes::copy_from_slice(text)).ok()
}

fn survives(value: &str) {
    let encoded = encode(value);
    assert!(HeaderValue::from_str(&encoded).is_ok());
    assert_eq!(decode(encoded.as_bytes()).as_deref(), Ok(value));
    // Hops may pad a value.
    assert_eq!(decode(format!(" {encoded}\t").as_bytes()).as_deref(), Ok(value));
}

fn calls_agree(schema: &Raw, arguments: &Raw) {
    let found = mirrors(schema);
    if depth_within(schema.as_bytes(), DEPTH) {
        let mut escaped = String::new();
        respell(schema, &mut escaped);
        let escaped = Raw::parse(&escaped.into()).expect("only the spelling changed");
        assert_eq!(mirrors(&escaped).as_ref().ok(), found.as_ref().ok(), "{escaped}");
    }

    let Ok(found) = found else { return };
    let made = make(&found, arguments);
    let mut headers = HeaderMap::new();
    for (name, value) in &made {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        assert!(headers.insert(name, value.parse().expect("a header value")).is_none(), "each header once");
    }
    check(&found, arguments, &headers).expect("our own headers are accepted");

    for (name, value) in &made {
        let mirror = found.iter().find(|mirror| *name == format!("Mcp-Param-{}", mirror.header));
        let path: Vec<&str> = mirror.expect("a mirror of it").path.iter().map(String::as_str).collect();
        let said = decode(value.as_bytes()).expect("our own value");
        match arguments.at(&path).expect("an argument").read::<Value>().expect("a plain value") {
            Value::String(text) => assert_eq!(said, text),
            Value::Bool(flag) => assert_eq!(said, flag.to_string()),
            Value::Number(number) => {
                let said: i64 = said.parse().expect("an integer");
                assert!(said.unsigned_abs() < 1 << 53, "every reader keeps it exactly");
                assert_eq!(Some(said as f64), number.as_f64());
            }
            other => panic!("{other} has no header"),
        }

        let mut fewer = headers.clone();
        fewer.remove(name);
        assert!(check(&found, arguments, &fewer).is_err(), "{name} is missing");
        let mut other = headers.clone();
        other.insert(
            HeaderName::from_bytes(name.as_bytes()).expect("a header name"),
            encode(&format!("{said}x")).parse().expect("a header value"),
        );
        assert!(check(&found, arguments, &other).is_err(), "{name} says something else");
    }
}

/// Writes the value with every character of its strings as an escape.
fn respell(value: &Raw, out: &mut String) {
    if value.is_array() {
        out.push('[');
        for (n, item) in value.items().iter().enumerate() {
            out.push_str(if n > 0 { "," } else { "" });
            respell(item, out);
        }
        out.push(']');
    } else if value.is_object() {
        out.push('{');
        for (n, (key, member)) in value.entries().enumerate() {
            out.push_str(if n > 0 { "," } else { "" });
            escape(&key, out);
            out.push(':');
            respell(&member, out);
        }
        out.push('}');
    } else if let Some(text) = value.text() {
        escape(&text, out);
    } else {
        out.push_str(&value.to_string());
    }
}

fn escape(text: &str, out: &mut String) {
    out.push('"');
    out.extend(text.encode_utf16().map(|unit| format!("\\u{unit:04x}")));
    out.push('"');
}
