//! Mirrored headers: any string survives the value codec, and the headers made for a call are accepted for that call.
//!
//! The whole input is used as a header value. Split at the byte 0xff, which cannot occur in JSON, it is a tool's
//! input schema and the arguments of a call.
//!
//! Codec: `decode_value` accepts any bytes, a decoded value survives being encoded again, and `encode_value` always produces a
//! valid header value.
//!
//! Schemas: `parse_mirrors` accepts any JSON of any depth, and a schema whose strings are written with escapes gives the
//! same mirrors. The headers made from it match what serde_json reads in the arguments and are accepted; with one
//! header missing or changed, the call is refused.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use rialto::dialect::headers::{check_mirrors, decode_value, encode_value, mirror_headers, parse_mirrors};
use rialto::protocol::Raw;
use rialto::protocol::json::depth_within;
use serde_json::Value;

/// Default depth limit of the gateway; also bounds the recursion of `respell`.
const MAX_DEPTH: usize = 128;

pub fn check(data: &[u8]) {
    if let Ok(value) = decode_value(data) {
        check_round_trip(&value);
    }
    if let Ok(value) = std::str::from_utf8(data) {
        check_round_trip(value);
    }
    let mut parts = data.splitn(2, |byte| *byte == 0xff);
    let Some(schema) = parts.next().and_then(json) else { return };
    let arguments = parts.next().and_then(json).unwrap_or(Raw::empty());
    check_mirrored_call(&schema, &arguments);
}

fn json(text: &[u8]) -> Option<Raw> {
    Raw::parse(&Bytes::copy_from_slice(text)).ok()
}

fn check_round_trip(value: &str) {
    let encoded = encode_value(value);
    assert!(HeaderValue::from_str(&encoded).is_ok());
    assert_eq!(decode_value(encoded.as_bytes()).as_deref(), Ok(value));
    // Intermediaries may add whitespace.
    assert_eq!(decode_value(format!(" {encoded}\t").as_bytes()).as_deref(), Ok(value));
}

fn check_mirrored_call(schema: &Raw, arguments: &Raw) {
    let found = parse_mirrors(schema);
    if depth_within(schema.as_bytes(), MAX_DEPTH) {
        let mut escaped = String::new();
        respell(schema, &mut escaped);
        let escaped = Raw::parse(&escaped.into()).expect("only the spelling changed");
        assert_eq!(parse_mirrors(&escaped).as_ref().ok(), found.as_ref().ok(), "{escaped}");
    }

    let Ok(found) = found else { return };
    let made = mirror_headers(&found, arguments);
    let mut headers = HeaderMap::new();
    for (name, value) in &made {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        assert!(headers.insert(name, value.parse().expect("a header value")).is_none(), "each header once");
    }
    check_mirrors(&found, arguments, &(&headers).into()).expect("our own headers are accepted");

    for (name, value) in &made {
        let mirror = found.iter().find(|mirror| *name == format!("Mcp-Param-{}", mirror.header));
        let path: Vec<&str> = mirror.expect("a mirror of it").path.iter().map(String::as_str).collect();
        let decoded = decode_value(value.as_bytes()).expect("our own value");
        let argument = arguments.at(&path).expect("an argument");
        match argument.read::<Value>().expect("a plain value") {
            Value::String(text) => assert_eq!(decoded, text),
            Value::Bool(flag) => assert_eq!(decoded, flag.to_string()),
            Value::Number(_) => {
                let decoded: i64 = decoded.parse().expect("an integer");
                assert!(decoded.unsigned_abs() < 1 << 53, "every reader keeps it exactly");
                // Read by the standard library, which rounds exactly; serde_json may be off by one unit in the last place.
                assert_eq!(Ok(decoded as f64), argument.to_string().parse());
            }
            other => panic!("{other} has no header"),
        }

        let mut fewer = headers.clone();
        fewer.remove(name);
        assert!(check_mirrors(&found, arguments, &(&fewer).into()).is_err(), "{name} is missing");
        let mut other = headers.clone();
        other.insert(
            HeaderName::from_bytes(name.as_bytes()).expect("a header name"),
            encode_value(&format!("{decoded}x")).parse().expect("a header value"),
        );
        assert!(check_mirrors(&found, arguments, &(&other).into()).is_err(), "{name} has another value");
    }
}

/// Writes the value with every character of its strings escaped.
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
