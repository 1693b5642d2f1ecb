//! What a client sends, told apart by era and checked by the rules of its revision.
//!
//! One address serves both eras, so each message says by itself which it belongs to.

use http::HeaderMap;

use super::headers::{self, mismatch, single};
use super::meta::{self, Meta, Said};
use super::{Era, Revision, has_method};
use crate::protocol::{ErrorObject, Id, Message, Method, Notification, Raw, Request, code};

/// Which path a message takes.
#[derive(Debug, PartialEq, Eq)]
pub enum Path {
    /// Opens a session.
    Handshake,
    /// Belongs to a session.
    Session,
    /// Stands by itself, and says this of itself.
    PerRequest(Told),
}

/// What a message of the per-request era says of itself. It is looked for once, to know the era.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Told {
    meta: Said,
    /// The member that a header has to mirror.
    name: Option<Raw>,
}

/// A request of the per-request era that passed the checks.
#[derive(Debug)]
pub struct Checked {
    /// The revision it speaks.
    pub revision: Revision,
    /// What it says of itself.
    pub meta: Meta,
}

/// A request that is refused before it is handled: the whole answer is the error.
#[derive(Debug)]
pub struct RefusedRequest {
    /// The id of the request, where it has one.
    pub id: Option<Id>,
    /// Why.
    pub error: ErrorObject,
}

/// Decides the path of a message by its body; a header alone never moves a message to another
/// era.
///
/// # Errors
/// When the header names a revision that the body does not follow.
pub fn classify(message: &Message, headers: &HeaderMap) -> Result<Path, RefusedRequest> {
    let named = named_revision(headers);
    let modern_header = named.is_some_and(|revision| revision.era() == Era::PerRequest);
    match message {
        Message::Request(request) if request.method == Method::Initialize => {
            let told = Told::of(request);
            if speaks_per_request(&told) {
                return Ok(Path::PerRequest(told));
            }
            if modern_header {
                let why = "`initialize` does not exist in the revision that `MCP-Protocol-Version` names";
                return Err(request.refused(mismatch(why)));
            }
            Ok(Path::Handshake)
        }
        Message::Request(request) => {
            let told = Told::of(request);
            if told.meta.claims() {
                return Ok(Path::PerRequest(told));
            }
            // A header may promise what is not there.
            match modern_header.then(|| told.meta.read()) {
                Some(Err(error)) => Err(request.refused(error)),
                _ => Ok(Path::Session),
            }
        }
        Message::Notification(Notification { params, .. }) => {
            let meta = Said::of(meta::of(params.as_ref()).as_ref());
            let per_request = modern_header || meta.claims();
            Ok(if per_request { Path::PerRequest(Told { meta, name: None }) } else { Path::Session })
        }
        Message::Response(_) => Ok(Path::Session),
    }
}

impl Told {
    /// What a request says of itself.
    pub fn of(request: &Request) -> Self {
        let params = request.params.as_ref();
        let [meta, name] = match request.method.name_member() {
            Some(member) => meta::and(member, params),
            None => [meta::of(params), None],
        };
        Self { meta: Said::of(meta.as_ref()), name }
    }
}

/// The known revision that the version header names.
pub fn named_revision(headers: &HeaderMap) -> Option<Revision> {
    let value = headers.get(&headers::PROTOCOL_VERSION)?;
    Revision::parse(value.to_str().ok()?.trim())
}

/// Whether `_meta` is whole and names a revision of the per-request era.
fn speaks_per_request(told: &Told) -> bool {
    let Ok(meta) = told.meta.clone().read() else { return false };
    Revision::parse(&meta.version).is_some_and(|revision| revision.era() == Era::PerRequest)
}

/// Checks the version header of a request in a session. The session knows its revision, so a
/// missing header is no fault and another known revision changes nothing.
///
/// # Errors
/// When the header names a revision that has no sessions, or none at all.
pub fn check_session_version(headers: &HeaderMap) -> Result<(), ErrorObject> {
    let Some(value) = single(headers, &headers::PROTOCOL_VERSION)? else {
        return Ok(());
    };
    let name = String::from_utf8_lossy(value);
    match Revision::parse(&name).map(Revision::era) {
        Some(Era::Handshake) => Ok(()),
        _ => Err(ErrorObject::new(
            code::INVALID_REQUEST,
            format!(
                "Bad Request: unsupported protocol version {name:?} (sessions speak {})",
                supported(Era::Handshake).join(", ")
            ),
        )),
    }
}

/// Whether the client of a request in a session knows events that carry an id and no message.
pub fn takes_priming_events(headers: &HeaderMap) -> bool {
    let version = single(headers, &headers::PROTOCOL_VERSION).ok().flatten();
    let revision = version.and_then(|version| Revision::parse(&String::from_utf8_lossy(version)));
    revision.is_some_and(|revision| revision.facts().primed)
}

/// The checks on a request of the per-request era, in the order that decides which answer a
/// request with several faults gets: its headers against its body first, then whether we serve
/// what it asks.
///
/// # Errors
/// The first check that fails.
pub fn check(request: &Request, told: Told, headers: &HeaderMap) -> Result<Checked, RefusedRequest> {
    let refuse = |error| request.refused(error);
    let version = single(headers, &headers::PROTOCOL_VERSION).map_err(refuse)?;
    let method = single(headers, &headers::METHOD).map_err(refuse)?;
    let name = single(headers, &headers::NAME).map_err(refuse)?;
    let meta = told.meta.read().map_err(refuse)?;
    agree("MCP-Protocol-Version", version, &meta.version).map_err(refuse)?;
    agree("Mcp-Method", method, request.method.as_str()).map_err(refuse)?;
    check_name(request, told.name.as_ref(), name).map_err(refuse)?;
    accept(request, meta)
}

/// The part of the checks that does not look at headers: what stdio is left with.
///
/// # Errors
/// When the request's `_meta` is not whole, or names what we do not serve.
pub fn check_body(request: &Request, told: Told) -> Result<Checked, RefusedRequest> {
    let meta = told.meta.read().map_err(|error| request.refused(error))?;
    accept(request, meta)
}

fn accept(request: &Request, meta: Meta) -> Result<Checked, RefusedRequest> {
    let revision = Revision::parse(&meta.version).filter(|revision| revision.era() == Era::PerRequest);
    let Some(revision) = revision else {
        return Err(request.refused(unsupported(&meta.version)));
    };
    if !has_method(Era::PerRequest, &request.method) {
        return Err(request.refused(method_not_found(&request.method)));
    }
    Ok(Checked { revision, meta })
}

fn agree(label: &str, header: Option<&[u8]>, body: &str) -> Result<(), ErrorObject> {
    match header {
        None => Err(mismatch(format!("the header `{label}` is required"))),
        Some(value) if value == body.as_bytes() => Ok(()),
        Some(_) => Err(mismatch(format!("the header `{label}` does not say what the body says"))),
    }
}

fn check_name(request: &Request, body: Option<&Raw>, header: Option<&[u8]>) -> Result<(), ErrorObject> {
    let Some(member) = request.method.name_member() else { return Ok(()) };
    let Some(body) = body.and_then(Raw::text) else { return Ok(()) };
    let Some(value) = header else {
        return Err(mismatch(format!("the header `Mcp-Name` is required; it mirrors `params.{member}`")));
    };
    let value = headers::decode(value).map_err(|why| mismatch(format!("`Mcp-Name`: {why}")))?;
    if value == body {
        return Ok(());
    }
    Err(mismatch(format!("the header `Mcp-Name` does not say what `params.{member}` says")))
}

/// The revisions of an era, by name.
pub fn supported(era: Era) -> Vec<&'static str> {
    Revision::of(era).map(|revision| revision.facts().name).collect()
}

/// The error for a revision that is not served.
pub fn unsupported(requested: &str) -> ErrorObject {
    let supported = supported(Era::PerRequest);
    let data = serde_json::json!({ "supported": supported, "requested": requested });
    let message = format!("Unsupported protocol version {requested:?}: this server speaks {}", supported.join(", "));
    ErrorObject::new(code::UNSUPPORTED_VERSION, message).with_data(Raw::of(&data))
}

/// The error for a method that does not exist.
pub fn method_not_found(method: &Method) -> ErrorObject {
    ErrorObject::new(code::METHOD_NOT_FOUND, format!("Method not found: {method}"))
}

impl Request {
    /// This request, refused.
    pub fn refused(&self, error: ErrorObject) -> RefusedRequest {
        let id = Some(self.id.clone());
        RefusedRequest { id, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn message(text: &str) -> Message {
        Message::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn request(method: &str, meta: &str, more: &str) -> Request {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"_meta":{meta}{more}}}}}"#);
        let Message::Request(request) = message(&text) else { panic!() };
        request
    }

    type Pairs<'a> = &'a [(&'static str, &'a str)];

    fn headers(pairs: Pairs<'_>) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    const META: &str =
        r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    const OLD: &str =
        r#"{"io.modelcontextprotocol/protocolVersion":"2025-06-18","io.modelcontextprotocol/clientCapabilities":{}}"#;
    const UNKNOWN: &str =
        r#"{"io.modelcontextprotocol/protocolVersion":"v999","io.modelcontextprotocol/clientCapabilities":{}}"#;

    #[test]
    fn the_body_decides_the_path() {
        let modern = [("mcp-protocol-version", "2026-07-28")];
        let per_request = || Path::PerRequest(Told::default());
        let cases: [(Message, Pairs<'_>, Result<Path, i64>); 11] = [
            (Message::Request(request("tools/list", META, "")), &[], Ok(per_request())),
            (
                Message::Request(request("tools/list", r#"{"io.modelcontextprotocol/protocolVersion":5}"#, "")),
                &[],
                Ok(per_request()),
            ),
            (Message::Request(request("initialize", META, "")), &[], Ok(per_request())),
            (Message::Request(request("initialize", OLD, "")), &[], Ok(Path::Handshake)),
            (Message::Request(request("initialize", "{}", "")), &[], Ok(Path::Handshake)),
            (Message::Request(request("initialize", "{}", "")), &modern, Err(code::HEADER_MISMATCH)),
            (Message::Request(request("tools/list", "{}", "")), &[], Ok(Path::Session)),
            (Message::Request(request("tools/list", "{}", "")), &modern, Err(code::INVALID_PARAMS)),
            (message(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#), &[], Ok(Path::Session)),
            (message(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#), &modern, Ok(per_request())),
            (message(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), &modern, Ok(Path::Session)),
        ];
        for (message, pairs, expected) in cases {
            let path = classify(&message, &headers(pairs)).map_err(|refused| refused.error.code());
            let kind = |path: &Result<Path, i64>| path.as_ref().map(std::mem::discriminant).map_err(|code| *code);
            assert_eq!(kind(&path), kind(&expected), "{message:?}");
        }
    }

    /// Each row fails one check or several; the first one answers.
    #[test]
    fn the_checks_answer_in_order() {
        let v = ("mcp-protocol-version", "2026-07-28");
        let list = ("mcp-method", "tools/list");
        let call = ("mcp-method", "tools/call");
        let named = |name| format!(r#","name":"{name}""#);
        let cases = vec![
            (request("tools/list", META, ""), vec![v, list], 0),
            (request("tools/list", META, ""), vec![v, list, list], code::HEADER_MISMATCH),
            (request("tools/list", "{}", ""), vec![v, list], code::INVALID_PARAMS),
            (
                request("tools/list", r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#, ""),
                vec![v, list],
                code::INVALID_PARAMS,
            ),
            (request("tools/list", META, ""), vec![list], code::HEADER_MISMATCH),
            (request("tools/list", UNKNOWN, ""), vec![v, list], code::HEADER_MISMATCH),
            (
                request("tools/list", UNKNOWN, ""),
                vec![("mcp-protocol-version", "v999"), list],
                code::UNSUPPORTED_VERSION,
            ),
            (
                request("tools/list", OLD, ""),
                vec![("mcp-protocol-version", "2025-06-18"), list],
                code::UNSUPPORTED_VERSION,
            ),
            (request("tools/list", META, ""), vec![v], code::HEADER_MISMATCH),
            (request("tools/list", META, ""), vec![v, ("mcp-method", "TOOLS/LIST")], code::HEADER_MISMATCH),
            (request("tools/call", META, &named("a")), vec![v, call], code::HEADER_MISMATCH),
            (request("tools/call", META, &named("a")), vec![v, call, ("mcp-name", "b")], code::HEADER_MISMATCH),
            (request("tools/call", META, &named("a")), vec![v, call, ("mcp-name", "  a ")], 0),
            (request("tools/call", META, &named("氢")), vec![v, call, ("mcp-name", "=?base64?5rCi?=")], 0),
            (
                request("tools/call", META, &named("a")),
                vec![v, call, ("mcp-name", "=?base64?YQ?=")],
                code::HEADER_MISMATCH,
            ),
            (request("ping", META, ""), vec![v, ("mcp-method", "ping")], code::METHOD_NOT_FOUND),
            (request("initialize", META, ""), vec![v, ("mcp-method", "initialize")], code::METHOD_NOT_FOUND),
        ];
        for (request, pairs, expected) in cases {
            let checked = check(&request, Told::of(&request), &headers(&pairs));
            let code = checked.map_or_else(|refused| refused.error.code(), |_| 0);
            assert_eq!(code, expected, "{request:?} {pairs:?}");
        }
    }
}
