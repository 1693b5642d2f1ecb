//! Mirrored headers (2026-07-28): their value encoding, and `Mcp-Param-*` from the schema of a tool.
//!
//! The body is authoritative; a mirrored header is only compared with it.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderName;

use crate::http::codec::HeaderFields;
use crate::protocol::json::depth_within;
use crate::protocol::{ErrorObject, Raw, code};

/// The header with the revision of a request.
pub static PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The header that mirrors `method`.
pub static METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// The header that mirrors `params.name`, `params.uri` or `params.taskId`.
pub static NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The prefix of headers that mirror arguments.
pub const PARAM_PREFIX: &str = "mcp-param-";
/// The schema keyword that asks for a mirrored header.
pub const HEADER_ANNOTATION: &str = "x-mcp-header";

const BASE64_PREFIX: &str = "=?base64?";
const BASE64_SUFFIX: &str = "?=";
/// The largest integer that every JSON parser represents exactly.
const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// Maximum nesting depth of a schema that is searched for annotations.
const MAX_SCHEMA_DEPTH: usize = 128;

/// An argument that a header mirrors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMirror {
    /// The header name after `Mcp-Param-`, as spelled in the schema.
    pub header: String,
    /// Path of the argument from the root of the arguments.
    pub path: Vec<String>,
    kind: MirrorType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MirrorType {
    Text,
    Integer,
    Boolean,
}

/// Encodes a header value: unchanged where that is safe, in Base64 otherwise.
pub fn encode_value(value: &str) -> Cow<'_, str> {
    let visible = value.bytes().all(|byte| matches!(byte, 0x20..=0x7e | b'\t'));
    let padded = value.starts_with([' ', '\t']) || value.ends_with([' ', '\t']);
    let looks_encoded = value.starts_with(BASE64_PREFIX) && value.ends_with(BASE64_SUFFIX);
    if visible && !value.is_empty() && !padded && !looks_encoded {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("{BASE64_PREFIX}{}{BASE64_SUFFIX}", STANDARD.encode(value)))
}

/// Decodes a header value. Only canonical Base64 is accepted, so that intermediaries cannot disagree on
/// whether two values are equal.
///
/// # Errors
/// A description of what is wrong with the value.
pub fn decode_value(value: &[u8]) -> Result<String, &'static str> {
    let value = value.trim_ascii();
    let inner =
        value.strip_prefix(BASE64_PREFIX.as_bytes()).and_then(|rest| rest.strip_suffix(BASE64_SUFFIX.as_bytes()));
    match inner {
        Some(inner) => {
            let bytes = STANDARD.decode(inner).map_err(|_| "it is not canonical Base64")?;
            String::from_utf8(bytes).map_err(|_| "its Base64 does not hold UTF-8")
        }
        None if value.iter().all(|byte| matches!(byte, 0x20..=0x7e | b'\t')) => {
            Ok(String::from_utf8_lossy(value).into_owned())
        }
        None => Err("it has characters that need the Base64 form"),
    }
}

/// The only value of a header.
///
/// # Errors
/// `-32020` when the header occurs twice: two intermediaries could each use another copy.
pub fn single_value(headers: &HeaderFields, name: impl AsRef<str>) -> Result<Option<&[u8]>, ErrorObject> {
    let name = name.as_ref();
    let mut values = headers.get_all(name);
    let first = values.next();
    match values.next() {
        Some(_) => Err(mismatch(format!("the header `{name}` must stand there once"))),
        None => Ok(first.map(<[u8]>::trim_ascii)),
    }
}

/// A header mismatch error, `-32020`.
pub fn mismatch(why: impl AsRef<str>) -> ErrorObject {
    ErrorObject::new(code::HEADER_MISMATCH, format!("Header mismatch: {}", why.as_ref()))
}

/// The arguments that the schema of a tool wants mirrored.
///
/// # Errors
/// A description of the invalid annotation; such a tool must not be offered.
pub fn parse_mirrors(schema: &Raw) -> Result<Vec<HeaderMirror>, String> {
    let mut found = Vec::new();
    // Most schemas have no annotation; a substring search avoids parsing them. An escaped key can hide one,
    // and only `\u` escapes can spell its letters.
    if contains(schema.as_bytes(), HEADER_ANNOTATION.as_bytes()) || contains(schema.as_bytes(), b"\\u") {
        if !depth_within(schema.as_bytes(), MAX_SCHEMA_DEPTH) {
            return Err(format!("the schema nests more than {MAX_SCHEMA_DEPTH} deep"));
        }
        collect_mirrors(schema, Some(&mut Vec::new()), &mut found)?;
    }
    Ok(found)
}

/// The mirrored arguments of every tool of a list. Tools with invalid annotations are left out.
pub fn mirrors_of_tools(list: &Raw) -> HashMap<String, Vec<HeaderMirror>> {
    let tools = list.get("tools").map(|tools| tools.items()).unwrap_or_default();
    let mirrored = |tool: &Raw| {
        let name = tool.get("name")?.text()?.into_owned();
        Some((name, parse_mirrors(&tool.get("inputSchema")?).ok()?))
    };
    tools.iter().filter_map(mirrored).collect()
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// Collects the annotations of a schema. `path` is the path of the property, or `None` where an annotation is
/// invalid: anywhere that is not reached through `properties` alone.
fn collect_mirrors(schema: &Raw, path: Option<&mut Vec<String>>, found: &mut Vec<HeaderMirror>) -> Result<(), String> {
    if schema.is_array() {
        return schema.items().iter().try_for_each(|item| collect_mirrors(item, None, found));
    }
    if !schema.is_object() {
        return Ok(());
    }
    let mut path = path;
    if let Some(annotation) = schema.get(HEADER_ANNOTATION) {
        let mirror = parse_annotation(schema, &annotation, path.as_deref())?;
        if found.iter().any(|other| other.header.eq_ignore_ascii_case(&mirror.header)) {
            return Err(format!("`{HEADER_ANNOTATION}` uses `{}` twice", mirror.header));
        }
        found.push(mirror);
    }
    for (key, value) in schema.entries() {
        match (key.as_ref(), path.as_deref_mut()) {
            ("properties", Some(path)) => {
                for (name, property) in value.entries() {
                    path.push(name.into_owned());
                    collect_mirrors(&property, Some(path), found)?;
                    path.pop();
                }
            }
            // Keys below these keywords are property names, not keywords.
            ("properties" | "$defs" | "definitions" | "patternProperties" | "dependentSchemas", _) => {
                for (_, inner) in value.entries() {
                    collect_mirrors(&inner, None, found)?;
                }
            }
            ("const" | "enum" | "default" | "examples" | HEADER_ANNOTATION, _) => {}
            _ => collect_mirrors(&value, None, found)?,
        }
    }
    Ok(())
}

fn parse_annotation(schema: &Raw, annotation: &Raw, path: Option<&Vec<String>>) -> Result<HeaderMirror, String> {
    let header = annotation.text().unwrap_or_default().into_owned();
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if header.is_empty() || !header.bytes().all(token) {
        return Err(format!("`{HEADER_ANNOTATION}` must be a header name, not {annotation}"));
    }
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        return Err(format!("`{HEADER_ANNOTATION}: {header}` may only stand on plain properties"));
    };
    let kind = schema.get("type");
    let kind = match kind.as_ref().and_then(Raw::text).as_deref() {
        Some("string") => MirrorType::Text,
        Some("integer") => MirrorType::Integer,
        Some("boolean") => MirrorType::Boolean,
        _ => return Err(format!("`{HEADER_ANNOTATION}: {header}` needs a string, integer or boolean")),
    };
    Ok(HeaderMirror { header, path: path.clone(), kind })
}

/// The headers to send with a call: names and encoded values.
pub fn mirror_headers(mirrors: &[HeaderMirror], arguments: &Raw) -> Vec<(String, String)> {
    let header = |mirror: &HeaderMirror| {
        let value = mirror.value(arguments)?;
        Some((format!("Mcp-Param-{}", mirror.header), encode_value(&value).into_owned()))
    };
    mirrors.iter().filter_map(header).collect()
}

/// Compares the mirrored headers of a call with its arguments.
///
/// # Errors
/// `-32020` when a header is missing, malformed, present without its argument, or different.
pub fn check_mirrors(mirrors: &[HeaderMirror], arguments: &Raw, headers: &HeaderFields) -> Result<(), ErrorObject> {
    for mirror in mirrors {
        let name = format!("{PARAM_PREFIX}{}", mirror.header.to_ascii_lowercase());
        let received = single_value(headers, name.as_str())?;
        let label = format!("`Mcp-Param-{}`", mirror.header);
        let at = mirror.path.join(".");
        match (mirror.value(arguments), received) {
            (None, None) => {}
            (Some(_), None) => return Err(mismatch(format!("{label} is missing; it mirrors the argument `{at}`"))),
            (None, Some(_)) => return Err(mismatch(format!("{label} is there, but the argument `{at}` is not"))),
            (Some(value), Some(received)) => {
                let received = decode_value(received).map_err(|why| mismatch(format!("{label}: {why}")))?;
                if !mirror.matches(&value, &received) {
                    return Err(mismatch(format!("{label} does not say what the argument `{at}` says")));
                }
            }
        }
    }
    Ok(())
}

// === impl HeaderMirror ===

impl HeaderMirror {
    /// The argument as header text; `None` when it is absent, null, or of a type that the tool itself
    /// refuses.
    fn value(&self, arguments: &Raw) -> Option<String> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let value = arguments.at(&path)?;
        match self.kind {
            MirrorType::Text => value.text().map(Cow::into_owned),
            MirrorType::Boolean => value.read::<bool>().ok().map(|value| value.to_string()),
            MirrorType::Integer => parse_integer(&value.to_string()).map(|value| value.to_string()),
        }
    }

    fn matches(&self, value: &str, received: &str) -> bool {
        match self.kind {
            MirrorType::Integer => parse_integer(received).is_some_and(|received| received.to_string() == value),
            MirrorType::Text | MirrorType::Boolean => value == received,
        }
    }
}

/// Parses a decimal integer, also in the form `42.0`.
fn parse_integer(text: &str) -> Option<i64> {
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => whole,
        Some(_) => return None,
        None => text,
    };
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    whole.parse().ok().filter(|number| (-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::raw;
    use proptest::prelude::*;

    #[test]
    fn values_are_encoded_only_where_necessary() {
        for (value, encoded) in [
            ("plain", "plain"),
            ("two words", "two words"),
            ("", "=?base64??="),
            (" padded", "=?base64?IHBhZGRlZA==?="),
            ("氢", "=?base64?5rCi?="),
            ("a\r\nb", "=?base64?YQ0KYg==?="),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
            ("=?base64?x", "=?base64?x"),
        ] {
            assert_eq!(encode_value(value), encoded);
            assert_eq!(decode_value(encoded.as_bytes()).unwrap(), value);
        }
        assert_eq!(decode_value(b"  a b\t").unwrap(), "a b");
    }

    #[test]
    fn only_canonical_base64_is_accepted() {
        for bad in
            ["=?base64?5rCi=?=", "=?base64?5r-i?=", "=?base64?YQ?=", "=?base64?YR==?=", "=?base64?//8=?=", "h\u{e9}"]
        {
            assert!(decode_value(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn annotations_are_parsed_and_validated() {
        let good = raw(r#"{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},
            "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"Deep-N"}}}}}"#);
        let found = parse_mirrors(&good).unwrap();
        assert_eq!(found.iter().map(|m| m.path.join(".")).collect::<Vec<_>>(), ["region", "deep.n"]);
        for bad in [
            r#"{"properties":{"a":{"type":"string","x-mcp-header":""}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":5}}}"#,
            r#"{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#,
            r#"{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}"#,
            r#"{"properties":{"a":{"anyOf":[{"type":"string","x-mcp-header":"A"}]}}}"#,
            r#"{"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}"#,
            r#"{"type":"string","x-mcp-header":"A"}"#,
        ] {
            assert!(parse_mirrors(&raw(bad)).is_err(), "{bad}");
        }
        let escaped = raw(r#"{"properties":{"a":{"type":"string","x-mcp-\u0068eader":"A"}}}"#);
        assert_eq!(parse_mirrors(&escaped).unwrap().len(), 1);
        let deep = format!(r#"{}{{"x-mcp-header":1}}{}"#, "[".repeat(4000), "]".repeat(4000));
        assert!(parse_mirrors(&raw(&deep)).is_err());
        let named = raw(r#"{"properties":{"x-mcp-header":{"type":"string"}}}"#);
        assert_eq!(parse_mirrors(&named).unwrap(), []);
    }

    #[test]
    fn mirrored_headers_are_built_and_checked() {
        let schema =
            raw(r#"{"properties":{"s":{"type":"string","x-mcp-header":"S"},"n":{"type":"integer","x-mcp-header":"N"},
            "b":{"type":"boolean","x-mcp-header":"B"}}}"#);
        let mirrors = parse_mirrors(&schema).unwrap();
        let arguments = raw(r#"{"s":"氢","n":42,"b":true}"#);
        let made = mirror_headers(&mirrors, &arguments);
        assert_eq!(made[0], ("Mcp-Param-S".into(), "=?base64?5rCi?=".into()));
        let own: Vec<(&str, &str)> = made.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert!(check_mirrors(&mirrors, &arguments, &HeaderFields::of(&own)).is_ok());
        let empty = raw(r#"{"s":null}"#);
        assert!(check_mirrors(&mirrors, &empty, &HeaderFields::default()).is_ok());
        let numbers = raw(r#"{"n":42}"#);
        for (pairs, good) in [
            (&[("mcp-param-n", "42.0")][..], true),
            (&[("mcp-param-n", " 42 ")], true),
            (&[("mcp-param-n", "43")], false),
            (&[("mcp-param-n", "4.2e1")], false),
            (&[("mcp-param-n", "-9223372036854775808")], false),
            (&[], false),
            (&[("mcp-param-n", "42"), ("mcp-param-n", "42")], false),
            (&[("mcp-param-n", "42"), ("mcp-param-s", "x")], false),
        ] {
            let checked = check_mirrors(&mirrors, &numbers, &HeaderFields::of(pairs));
            assert_eq!(checked.is_ok(), good, "{pairs:?}");
            if let Err(error) = checked {
                assert_eq!(error.code(), code::HEADER_MISMATCH);
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_round_trips(value in ".*") {
            let encoded = encode_value(&value);
            prop_assert!(http::HeaderValue::from_str(&encoded).is_ok());
            prop_assert_eq!(decode_value(encoded.as_bytes()).unwrap(), value);
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode_value(&bytes);
        }
    }
}
