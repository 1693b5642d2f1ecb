//! What an API answered, as the result of a tool.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::arguments::truncated;
use super::body::is_json;
use crate::protocol::Raw;

/// How much of a body that explains a failure is passed on.
const EXPLANATION: usize = 8 << 10;
/// The most bytes that are passed on in Base64.
const LARGEST_BINARY: usize = 4 << 20;

/// What an API answered.
#[derive(Debug)]
pub(super) struct ApiResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Where it is from, as it may be shown.
    pub(super) place: String,
}

/// The members of a result that a tool makes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Finished<'a> {
    content: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<Raw>,
    is_error: bool,
    result_type: &'static str,
    #[serde(rename = "_meta")]
    meta: &'a RawValue,
}

/// The result of a call; `pick` is what is wanted of a JSON answer.
pub(super) fn result(answered: &ApiResponse, pick: Option<&str>, meta: &RawValue) -> Raw {
    let status = answered.status;
    let encoding = answered.headers.get(CONTENT_ENCODING).filter(|encoding| *encoding != "identity");
    if let Some(encoding) = encoding {
        let said = encoding.to_str().unwrap_or_default();
        return failure(&format!("{status}: the answer is encoded as {said:?}, which was not asked for"), meta);
    }
    if !status.is_success() {
        return failure(&explained(answered), meta);
    }
    if answered.body.is_empty() {
        return finished(text(&status.to_string()), None, meta);
    }
    let media = media(&answered.headers);
    let json = (media.is_empty() || is_json(&media)).then(|| unmarked(&answered.body));
    if let Some(json) = json.and_then(|body| Raw::parse(&body).ok()) {
        return structured(&json, pick, meta);
    }
    if let Some(pick) = pick {
        return failure(
            &format!("the answer is no JSON, so there is no {pick:?} in it: {}", explained(answered)),
            meta,
        );
    }
    finished(content(answered, &media), None, meta)
}

/// The result of a call that failed, with a sentence.
pub(super) fn failure(why: &str, meta: &RawValue) -> Raw {
    Raw::of(&Finished { content: text(why), structured_content: None, is_error: true, result_type: "complete", meta })
}

fn finished(content: Value, structured_content: Option<Raw>, meta: &RawValue) -> Raw {
    Raw::of(&Finished { content, structured_content, is_error: false, result_type: "complete", meta })
}

fn text(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

/// JSON as text, as it came, and as a value.
fn structured(json: &Raw, pick: Option<&str>, meta: &RawValue) -> Raw {
    let picked = match pick {
        None => json.clone(),
        Some(pick) => match picked(json, pick) {
            Some(picked) => picked,
            None => {
                let shown = String::from_utf8_lossy(json.as_bytes());
                return failure(
                    &format!("there is no {pick:?} in the answer: {}", truncated(&shown, EXPLANATION)),
                    meta,
                );
            }
        },
    };
    let plain = if pick.is_some() { picked.text() } else { None };
    let said = plain.unwrap_or_else(|| String::from_utf8_lossy(picked.as_bytes()));
    let value = match picked.is_object() {
        true => picked.clone(),
        false => Raw::empty().edit().set("result", picked.clone()).finish(),
    };
    finished(text(&said), Some(value), meta)
}

/// What a JSON pointer or a dotted path leads to.
fn picked(json: &Raw, pick: &str) -> Option<Raw> {
    let steps: Vec<String> = match pick.strip_prefix('/') {
        Some(pointer) => pointer.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect(),
        None => pick.split('.').map(str::to_owned).collect(),
    };
    let mut here = json.clone();
    for step in steps {
        here = match here.is_array() {
            true => here.items().into_iter().nth(step.parse().ok()?)?,
            false => here.get(&step)?,
        };
    }
    Some(here)
}

/// What is no JSON.
fn content(answered: &ApiResponse, media: &str) -> Value {
    let body = &answered.body;
    let kind = media.split('/').next().unwrap_or_default();
    if matches!(kind, "image" | "audio") && media != "image/svg+xml" && body.len() <= LARGEST_BINARY {
        return json!([{ "type": kind, "data": BASE64_STANDARD.encode(body), "mimeType": media }]);
    }
    if let Some(said) = readable(answered, media) {
        return text(&said);
    }
    let shown = if media.is_empty() { "application/octet-stream" } else { media };
    if body.len() > LARGEST_BINARY {
        return text(&format!("{}: {} bytes of {shown}, which is too much to pass on", answered.status, body.len()));
    }
    let resource = json!({ "uri": answered.place, "mimeType": shown, "blob": BASE64_STANDARD.encode(body) });
    json!([{ "type": "resource", "resource": resource }])
}

/// The body as text, if it is that.
fn readable(answered: &ApiResponse, media: &str) -> Option<String> {
    let body = unmarked(&answered.body);
    let known = media.starts_with("text/")
        || media.ends_with("+xml")
        || is_json(media)
        || ["xml", "javascript", "yaml", "x-yaml", "x-ndjson", "jsonl", "x-www-form-urlencoded", "problem+json"]
            .iter()
            .any(|end| media.strip_prefix("application/") == Some(end));
    if !known && !media.is_empty() {
        return None;
    }
    match std::str::from_utf8(&body) {
        Ok(text) => Some(text.to_owned()),
        Err(_) if media.is_empty() => None,
        Err(_) if latin(&answered.headers) => Some(body.iter().map(|byte| char::from(*byte)).collect()),
        Err(_) => Some(String::from_utf8_lossy(&body).into_owned()),
    }
}

/// A failure in the words of the API.
fn explained(answered: &ApiResponse) -> String {
    let media = media(&answered.headers);
    let status = answered.status;
    if answered.body.is_empty() {
        return status.to_string();
    }
    match readable(answered, &media) {
        Some(said) if said.len() > EXPLANATION => format!("{status}\n\n{}…", truncated(&said, EXPLANATION)),
        Some(said) => format!("{status}\n\n{}", said.trim()),
        None => format!("{status}, with {} bytes of {media}", answered.body.len()),
    }
}

/// The media type without its parameters.
fn media(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn latin(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let value = value.to_ascii_lowercase();
    ["iso-8859-1", "latin1", "windows-1252"].iter().any(|name| value.contains(name))
}

/// The bytes without the mark that some put in front of text.
fn unmarked(body: &Bytes) -> Bytes {
    if body.starts_with(b"\xef\xbb\xbf") { body.slice(3..) } else { body.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, media: &str, body: &[u8], pick: Option<&str>) -> Value {
        let mut headers = HeaderMap::new();
        if !media.is_empty() {
            headers.insert(CONTENT_TYPE, media.parse().unwrap());
        }
        let body = Bytes::copy_from_slice(body);
        let status = StatusCode::from_u16(status).unwrap();
        let answered = ApiResponse { status, headers, body, place: "http://h/x".to_owned() };
        let meta = RawValue::from_string("{}".to_owned()).unwrap();
        let mut result: Value = result(&answered, pick, &meta).read().unwrap();
        assert_eq!(result["resultType"], "complete");
        let members = result.as_object_mut().unwrap();
        members.remove("resultType");
        members.remove("_meta");
        result
    }

    #[test]
    fn answers_become_content() {
        let text = |text: &str| json!([{ "type": "text", "text": text }]);
        for (status, media, body, expected) in [
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
            assert_eq!(answer(status, media, body, None), expected);
        }
    }

    #[test]
    fn a_part_is_picked() {
        let body = br#"{"a":{"b/c":[10,{"d":"x"}]},"s":"text"}"#;
        let picked = |pick: &str| answer(200, "application/json", body, Some(pick));
        assert_eq!(picked("/a/b~1c/1")["structuredContent"], json!({ "d": "x" }));
        assert_eq!(picked("a.b/c.0")["structuredContent"], json!({ "result": 10 }));
        assert_eq!(picked("s")["content"][0]["text"], "text");
        assert_eq!(picked("a.x")["isError"], true);
        assert_eq!(answer(200, "text/plain", b"x", Some("a"))["isError"], true);
    }

    #[test]
    fn what_is_too_large_is_described() {
        let body = vec![0xff; LARGEST_BINARY + 1];
        let said = answer(200, "application/zip", &body, None);
        assert_eq!(
            said["content"][0]["text"],
            "200 OK: 4194305 bytes of application/zip, which is too much to pass on"
        );
        let long = vec![b'x'; 3 * EXPLANATION];
        assert!(
            answer(500, "text/plain", &long, None)["content"][0]["text"].as_str().unwrap().len() < EXPLANATION + 100
        );
    }
}
