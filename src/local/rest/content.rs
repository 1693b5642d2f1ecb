//! Conversion of API responses into tool results.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use mime::Mime;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::arguments::truncated;
use super::body::{is_json, parse_media_type};
use crate::protocol::Raw;
use crate::protocol::json::depth_within;

/// Bytes of an error response that are passed to the client.
const MAX_ERROR_BODY_BYTES: usize = 8 << 10;
/// Size limit for a binary body that is passed on in Base64.
const MAX_BINARY_BYTES: usize = 4 << 20;

/// Response of the API.
#[derive(Debug)]
pub(super) struct ApiResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Request URL without its query, which may hold secrets.
    pub(super) resource_uri: String,
}

/// A `tools/call` result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    content: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<Raw>,
    is_error: bool,
    result_type: &'static str,
    #[serde(rename = "_meta")]
    meta: &'a RawValue,
}

/// Tool result of a response; `result_path` selects a part of a JSON body, which may nest `max_depth` deep.
pub(super) fn tool_result(response: &ApiResponse, result_path: Option<&str>, max_depth: usize, meta: &RawValue) -> Raw {
    let status = response.status;
    let encoding = response.headers.get(CONTENT_ENCODING).filter(|encoding| *encoding != "identity");
    if let Some(encoding) = encoding {
        let name = encoding.to_str().unwrap_or_default();
        return error_result(&format!("{status}: the answer is encoded as {name:?}, which was not asked for"), meta);
    }
    if !status.is_success() {
        return error_result(&describe_error(response), meta);
    }
    if response.body.is_empty() {
        return success_result(text_content(&status.to_string()), None, meta);
    }
    let media_type = media_type(&response.headers);
    let json = media_type.as_ref().is_none_or(is_json).then(|| strip_bom(&response.body));
    if let Some(json) = json.and_then(|body| Raw::parse(&body).ok()) {
        return match depth_within(json.as_bytes(), max_depth) {
            true => json_result(&json, result_path, meta),
            false => error_result(&format!("the answer nests more than {max_depth} levels deep"), meta),
        };
    }
    if let Some(result_path) = result_path {
        return error_result(
            &format!("the answer is no JSON, so there is no {result_path:?} in it: {}", describe_error(response)),
            meta,
        );
    }
    success_result(non_json_content(response, media_type.as_ref()), None, meta)
}

/// Tool result with `isError` and a sentence.
pub(super) fn error_result(why: &str, meta: &RawValue) -> Raw {
    Raw::of(&ToolResult {
        content: text_content(why),
        structured_content: None,
        is_error: true,
        result_type: "complete",
        meta,
    })
}

fn success_result(content: Value, structured_content: Option<Raw>, meta: &RawValue) -> Raw {
    Raw::of(&ToolResult { content, structured_content, is_error: false, result_type: "complete", meta })
}

fn text_content(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

/// Tool result of a JSON body: its text unchanged, and as structured content.
fn json_result(json: &Raw, result_path: Option<&str>, meta: &RawValue) -> Raw {
    let picked = match result_path {
        None => json.clone(),
        Some(result_path) => match select_path(json, result_path) {
            Some(picked) => picked,
            None => {
                let shown = String::from_utf8_lossy(json.as_bytes());
                return error_result(
                    &format!("there is no {result_path:?} in the answer: {}", truncated(&shown, MAX_ERROR_BODY_BYTES)),
                    meta,
                );
            }
        },
    };
    let plain = if result_path.is_some() { picked.text() } else { None };
    let body_text = plain.unwrap_or_else(|| String::from_utf8_lossy(picked.as_bytes()));
    let value = match picked.is_object() {
        true => picked.clone(),
        false => Raw::empty().edit().set("result", picked.clone()).finish(),
    };
    success_result(text_content(&body_text), Some(value), meta)
}

/// Selects a value by JSON pointer (`/a/0`) or dotted path (`a.0`).
fn select_path(json: &Raw, result_path: &str) -> Option<Raw> {
    let steps: Vec<String> = match result_path.strip_prefix('/') {
        Some(pointer) => pointer.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect(),
        None => result_path.split('.').map(str::to_owned).collect(),
    };
    let mut current = json.clone();
    for step in steps {
        current = match current.is_array() {
            true => current.items().into_iter().nth(step.parse().ok()?)?,
            false => current.get(&step)?,
        };
    }
    Some(current)
}

/// Content blocks of a body that is not JSON.
fn non_json_content(response: &ApiResponse, media_type: Option<&Mime>) -> Value {
    let body = &response.body;
    let shown = media_type.unwrap_or(&mime::APPLICATION_OCTET_STREAM).essence_str();
    let kind = media_type.map_or("", |media_type| media_type.type_().as_str());
    if matches!(kind, "image" | "audio") && shown != "image/svg+xml" && body.len() <= MAX_BINARY_BYTES {
        return json!([{ "type": kind, "data": BASE64_STANDARD.encode(body), "mimeType": shown }]);
    }
    if let Some(body_text) = decode_text(response, media_type) {
        return text_content(&body_text);
    }
    if body.len() > MAX_BINARY_BYTES {
        return text_content(&format!(
            "{}: {} bytes of {shown}, which is too much to pass on",
            response.status,
            body.len()
        ));
    }
    let resource = json!({ "uri": response.resource_uri, "mimeType": shown, "blob": BASE64_STANDARD.encode(body) });
    json!([{ "type": "resource", "resource": resource }])
}

/// Body as text; `None` for binary media types.
fn decode_text(response: &ApiResponse, media_type: Option<&Mime>) -> Option<String> {
    const TEXT_SUBTYPES: [&str; 7] =
        ["xml", "javascript", "yaml", "x-yaml", "x-ndjson", "jsonl", "x-www-form-urlencoded"];
    let body = strip_bom(&response.body);
    let is_text = |media_type: &Mime| {
        media_type.type_() == mime::TEXT
            || media_type.suffix() == Some(mime::XML)
            || is_json(media_type)
            || (media_type.type_() == mime::APPLICATION && TEXT_SUBTYPES.contains(&media_type.subtype().as_str()))
    };
    if !media_type.is_none_or(is_text) {
        return None;
    }
    match (std::str::from_utf8(&body), media_type) {
        (Ok(text), _) => Some(text.to_owned()),
        (Err(_), None) => None,
        (Err(_), Some(media_type)) if is_latin1(media_type) => {
            Some(body.iter().map(|byte| char::from(*byte)).collect())
        }
        (Err(_), Some(_)) => Some(String::from_utf8_lossy(&body).into_owned()),
    }
}

/// Status line and body excerpt of a failed request.
fn describe_error(response: &ApiResponse) -> String {
    let media_type = media_type(&response.headers);
    let status = response.status;
    if response.body.is_empty() {
        return status.to_string();
    }
    match decode_text(response, media_type.as_ref()) {
        Some(body_text) if body_text.len() > MAX_ERROR_BODY_BYTES => {
            format!("{status}\n\n{}…", truncated(&body_text, MAX_ERROR_BODY_BYTES))
        }
        Some(body_text) => format!("{status}\n\n{}", body_text.trim()),
        None => {
            let shown = media_type.unwrap_or(mime::APPLICATION_OCTET_STREAM);
            format!("{status}, with {} bytes of {}", response.body.len(), shown.essence_str())
        }
    }
}

fn media_type(headers: &HeaderMap) -> Option<Mime> {
    parse_media_type(headers.get(CONTENT_TYPE)?.to_str().ok()?)
}

fn is_latin1(media_type: &Mime) -> bool {
    let charset = media_type.get_param(mime::CHARSET);
    charset.is_some_and(|charset| matches!(charset.as_str(), "iso-8859-1" | "latin1" | "windows-1252"))
}

/// Body without a UTF-8 byte order mark.
fn strip_bom(body: &Bytes) -> Bytes {
    if body.starts_with(b"\xef\xbb\xbf") { body.slice(3..) } else { body.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, media_type: &str, body: &[u8], result_path: Option<&str>) -> Value {
        let mut headers = HeaderMap::new();
        if !media_type.is_empty() {
            headers.insert(CONTENT_TYPE, media_type.parse().unwrap());
        }
        let body = Bytes::copy_from_slice(body);
        let status = StatusCode::from_u16(status).unwrap();
        let response = ApiResponse { status, headers, body, resource_uri: "http://h/x".to_owned() };
        let meta = RawValue::from_string("{}".to_owned()).unwrap();
        let mut result: Value = tool_result(&response, result_path, 128, &meta).read().unwrap();
        assert_eq!(result["resultType"], "complete");
        let members = result.as_object_mut().unwrap();
        members.remove("resultType");
        members.remove("_meta");
        result
    }

    #[test]
    fn responses_become_content_blocks() {
        let text = |text: &str| json!([{ "type": "text", "text": text }]);
        for (status, media_type, body, expected) in [
            (
                200,
                "application/json",
                &b"{ \"a\": 1.50 }"[..],
                json!({ "content": text("{ \"a\": 1.50 }"), "structuredContent": { "a": 1.5 }, "isError": false }),
            ),
            (
                200,
                "application/hal+json; charset=utf-8",
                b"[1]",
                json!({ "content": text("[1]"), "structuredContent": { "result": [1] }, "isError": false }),
            ),
            (
                200,
                "",
                b"null",
                json!({ "content": text("null"), "structuredContent": { "result": null }, "isError": false }),
            ),
            (200, "application/json", b"{oops", json!({ "content": text("{oops"), "isError": false })),
            (200, "text/html; charset=ISO-8859-1", b"caf\xe9", json!({ "content": text("café"), "isError": false })),
            (200, "", b"plain", json!({ "content": text("plain"), "isError": false })),
            (204, "", b"", json!({ "content": text("204 No Content"), "isError": false })),
            (
                200,
                "image/png",
                b"\x89P",
                json!({ "content": [{ "type": "image", "data": "iVA=", "mimeType": "image/png" }], "isError": false }),
            ),
            (
                200,
                "application/pdf",
                b"%PDF",
                json!({ "content": [{ "type": "resource", "resource": { "uri": "http://h/x", "mimeType": "application/pdf", "blob": "JVBERg==" } }], "isError": false }),
            ),
            (
                404,
                "application/json",
                b"{\"message\":\"none\"}",
                json!({ "content": text("404 Not Found\n\n{\"message\":\"none\"}"), "isError": true }),
            ),
            (
                503,
                "image/png",
                b"\x89P",
                json!({ "content": text("503 Service Unavailable, with 2 bytes of image/png"), "isError": true }),
            ),
        ] {
            assert_eq!(answer(status, media_type, body, None), expected);
        }
    }

    #[test]
    fn result_path_selects_a_value() {
        let body = br#"{"a":{"b/c":[10,{"d":"x"}]},"s":"text"}"#;
        let picked = |result_path: &str| answer(200, "application/json", body, Some(result_path));
        assert_eq!(picked("/a/b~1c/1")["structuredContent"], json!({ "d": "x" }));
        assert_eq!(picked("a.b/c.0")["structuredContent"], json!({ "result": 10 }));
        assert_eq!(picked("s")["content"][0]["text"], "text");
        assert_eq!(picked("a.x")["isError"], true);
        assert_eq!(answer(200, "text/plain", b"x", Some("a"))["isError"], true);
    }

    #[test]
    fn large_bodies_are_described_or_truncated() {
        let body = vec![0xff; MAX_BINARY_BYTES + 1];
        let body_text = answer(200, "application/zip", &body, None);
        assert_eq!(
            body_text["content"][0]["text"],
            "200 OK: 4194305 bytes of application/zip, which is too much to pass on"
        );
        let long = vec![b'x'; 3 * MAX_ERROR_BODY_BYTES];
        assert!(
            answer(500, "text/plain", &long, None)["content"][0]["text"].as_str().unwrap().len()
                < MAX_ERROR_BODY_BYTES + 100
        );
    }
}
