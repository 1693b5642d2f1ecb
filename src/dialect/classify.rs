//! Classifies client messages by era and checks them against the rules of their revision.
//!
//! One URL serves both eras, so the message itself decides which era it belongs to.

use super::headers::{self, mismatch, single_value};
use super::meta::{MetaFields, ParsedMeta};
use super::{Era, Revision, has_method};
use crate::http::codec::HeaderFields;
use crate::protocol::{ErrorObject, Id, Key, Message, Method, Notification, Raw, Request, code};

/// How a message is handled.
#[derive(Debug, PartialEq, Eq)]
pub enum MessageClass {
    /// `initialize`: opens a session.
    Handshake,
    /// Belongs to a session.
    Session,
    /// A per-request message with its `_meta`.
    PerRequest(RequestMeta),
}

/// The `_meta` of a per-request message. Looked up once, to determine the era.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RequestMeta {
    meta: MetaFields,
}

/// A per-request request that passed the checks.
#[derive(Debug)]
pub struct CheckedRequest {
    /// The revision of the request.
    pub revision: Revision,
    /// The parsed `_meta`.
    pub meta: ParsedMeta,
}

/// A request that is refused before it is handled; the error is the whole response.
#[derive(Debug)]
pub struct RefusedRequest {
    /// The id of the request, if it has one.
    pub id: Option<Id>,
    /// The error to respond with.
    pub error: ErrorObject,
}

/// Classifies a message by its body; a header alone never moves a message to another era.
///
/// # Errors
/// When the version header names a revision that the body does not follow.
pub fn classify(message: &Message, headers: &HeaderFields) -> Result<MessageClass, RefusedRequest> {
    let named = header_revision(headers);
    let per_request_header = named.is_some_and(|revision| revision.era() == Era::PerRequest);
    match message {
        Message::Request(request) if request.method == Method::Initialize => {
            let request_meta = RequestMeta::from_request(request);
            if names_per_request_revision(&request_meta) {
                return Ok(MessageClass::PerRequest(request_meta));
            }
            if per_request_header {
                let why = "`initialize` does not exist in the revision that `MCP-Protocol-Version` names";
                return Err(request.refuse(mismatch(why)));
            }
            Ok(MessageClass::Handshake)
        }
        Message::Request(request) => {
            let request_meta = RequestMeta::from_request(request);
            if request_meta.meta.claims_per_request() {
                return Ok(MessageClass::PerRequest(request_meta));
            }
            // The header announces the per-request era but the body lacks its `_meta`.
            match per_request_header.then(|| request_meta.meta.read()) {
                Some(Err(error)) => Err(request.refuse(error)),
                _ => Ok(MessageClass::Session),
            }
        }
        Message::Notification(Notification { params, .. }) => {
            let meta = MetaFields::of(params.as_ref().and_then(|params| params.get(Key::Meta.as_str())).as_ref());
            let per_request = per_request_header || meta.claims_per_request();
            Ok(if per_request { MessageClass::PerRequest(RequestMeta { meta }) } else { MessageClass::Session })
        }
        Message::Response(_) => Ok(MessageClass::Session),
    }
}

impl RequestMeta {
    /// Looks up the `_meta` of a request.
    pub fn from_request(request: &Request) -> Self {
        let meta = request.params.as_ref().and_then(|params| params.member(Key::Meta));
        Self { meta: MetaFields::of(meta.as_ref()) }
    }
}

/// The revision in the version header, if it is a known one.
pub fn header_revision(headers: &HeaderFields) -> Option<Revision> {
    let value = headers.get(&headers::PROTOCOL_VERSION)?;
    Revision::parse(value.trim_ascii())
}

/// Whether `_meta` is complete and names a per-request revision.
fn names_per_request_revision(request_meta: &RequestMeta) -> bool {
    let Ok(meta) = request_meta.meta.clone().read() else { return false };
    Revision::parse(&meta.version).is_some_and(|revision| revision.era() == Era::PerRequest)
}

/// Checks the version header of a request in a session. The session knows its revision, so a missing header
/// is accepted and another known revision has no effect.
///
/// # Errors
/// When the header names an unknown revision or one without sessions.
pub fn check_session_version(headers: &HeaderFields) -> Result<(), ErrorObject> {
    let Some(value) = single_value(headers, &headers::PROTOCOL_VERSION)? else {
        return Ok(());
    };
    let revision = Revision::parse(value);
    match revision.map(Revision::era) {
        Some(Era::Handshake) => Ok(()),
        _ => Err(ErrorObject::new(
            code::INVALID_REQUEST,
            format!(
                "Bad Request: unsupported protocol version {:?} (sessions speak {})",
                String::from_utf8_lossy(value),
                supported_versions(Era::Handshake).join(", ")
            ),
        )),
    }
}

/// Whether the version header names a revision with priming events.
pub fn accepts_priming_events(headers: &HeaderFields) -> bool {
    let version = single_value(headers, &headers::PROTOCOL_VERSION).ok().flatten();
    let revision = version.and_then(Revision::parse);
    revision.is_some_and(|revision| revision.features().priming_events)
}

/// Checks a per-request request. The order of the checks decides the error of a request with several faults:
/// headers against body first, then revision and method.
///
/// # Errors
/// The first check that fails.
pub fn check_request(
    request: &Request,
    request_meta: RequestMeta,
    headers: &HeaderFields,
) -> Result<CheckedRequest, RefusedRequest> {
    let refuse = |error| request.refuse(error);
    let version = single_value(headers, &headers::PROTOCOL_VERSION).map_err(refuse)?;
    let method = single_value(headers, &headers::METHOD).map_err(refuse)?;
    let name = single_value(headers, &headers::NAME).map_err(refuse)?;
    let meta = request_meta.meta.read().map_err(refuse)?;
    check_header("MCP-Protocol-Version", version, &meta.version).map_err(refuse)?;
    check_header("Mcp-Method", method, request.method.as_str()).map_err(refuse)?;
    check_name_header(request, name).map_err(refuse)?;
    check_served(request, meta)
}

/// Checks a per-request request without headers, as received on stdio.
///
/// # Errors
/// When `_meta` is incomplete, or the revision or method is not served.
pub fn check_body(request: &Request, request_meta: RequestMeta) -> Result<CheckedRequest, RefusedRequest> {
    let meta = request_meta.meta.read().map_err(|error| request.refuse(error))?;
    check_served(request, meta)
}

fn check_served(request: &Request, meta: ParsedMeta) -> Result<CheckedRequest, RefusedRequest> {
    let revision = Revision::parse(&meta.version).filter(|revision| revision.era() == Era::PerRequest);
    let Some(revision) = revision else {
        return Err(request.refuse(unsupported_version(&meta.version)));
    };
    if !has_method(Era::PerRequest, &request.method) {
        return Err(request.refuse(method_not_found(&request.method)));
    }
    Ok(CheckedRequest { revision, meta })
}

fn check_header(label: &str, header: Option<&[u8]>, body: &str) -> Result<(), ErrorObject> {
    match header {
        None => Err(mismatch(format!("the header `{label}` is required"))),
        Some(value) if value == body.as_bytes() => Ok(()),
        Some(_) => Err(mismatch(format!("the header `{label}` does not say what the body says"))),
    }
}

fn check_name_header(request: &Request, header: Option<&[u8]>) -> Result<(), ErrorObject> {
    let Some(member) = request.method.name_member() else { return Ok(()) };
    let Some(body) = request.params.as_ref().and_then(|params| params.text_of(member)) else { return Ok(()) };
    let Some(value) = header else {
        return Err(mismatch(format!("the header `Mcp-Name` is required; it mirrors `params.{}`", member.as_str())));
    };
    let value = headers::decode_value(value).map_err(|why| mismatch(format!("`Mcp-Name`: {why}")))?;
    if value == body {
        return Ok(());
    }
    Err(mismatch(format!("the header `Mcp-Name` does not say what `params.{}` says", member.as_str())))
}

/// The names of the revisions of an era.
pub fn supported_versions(era: Era) -> Vec<&'static str> {
    Revision::in_era(era).map(|revision| revision.as_str()).collect()
}

/// The error for a revision that is not served.
pub fn unsupported_version(requested: &str) -> ErrorObject {
    let supported = supported_versions(Era::PerRequest);
    let data = serde_json::json!({ "supported": supported, "requested": requested });
    let message = format!("Unsupported protocol version {requested:?}: this server speaks {}", supported.join(", "));
    ErrorObject::new(code::UNSUPPORTED_VERSION, message).with_data(Raw::of(&data))
}

/// The error for a method that does not exist.
pub fn method_not_found(method: &Method) -> ErrorObject {
    ErrorObject::new(code::METHOD_NOT_FOUND, format!("Method not found: {method}"))
}

impl Request {
    /// Refuses this request with an error.
    pub fn refuse(&self, error: ErrorObject) -> RefusedRequest {
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

    const META: &str =
        r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    const OLD: &str =
        r#"{"io.modelcontextprotocol/protocolVersion":"2025-06-18","io.modelcontextprotocol/clientCapabilities":{}}"#;
    const UNKNOWN: &str =
        r#"{"io.modelcontextprotocol/protocolVersion":"v999","io.modelcontextprotocol/clientCapabilities":{}}"#;

    #[test]
    fn the_body_decides_the_class() {
        let modern = [("mcp-protocol-version", "2026-07-28")];
        let per_request = || MessageClass::PerRequest(RequestMeta::default());
        let cases: [(Message, Pairs<'_>, Result<MessageClass, i64>); 11] = [
            (Message::Request(request("tools/list", META, "")), &[], Ok(per_request())),
            (
                Message::Request(request("tools/list", r#"{"io.modelcontextprotocol/protocolVersion":5}"#, "")),
                &[],
                Ok(per_request()),
            ),
            (Message::Request(request("initialize", META, "")), &[], Ok(per_request())),
            (Message::Request(request("initialize", OLD, "")), &[], Ok(MessageClass::Handshake)),
            (Message::Request(request("initialize", "{}", "")), &[], Ok(MessageClass::Handshake)),
            (Message::Request(request("initialize", "{}", "")), &modern, Err(code::HEADER_MISMATCH)),
            (Message::Request(request("tools/list", "{}", "")), &[], Ok(MessageClass::Session)),
            (Message::Request(request("tools/list", "{}", "")), &modern, Err(code::INVALID_PARAMS)),
            (message(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#), &[], Ok(MessageClass::Session)),
            (message(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#), &modern, Ok(per_request())),
            (message(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), &modern, Ok(MessageClass::Session)),
        ];
        for (message, pairs, expected) in cases {
            let path = classify(&message, &HeaderFields::of(pairs)).map_err(|refused| refused.error.code());
            let kind =
                |path: &Result<MessageClass, i64>| path.as_ref().map(std::mem::discriminant).map_err(|code| *code);
            assert_eq!(kind(&path), kind(&expected), "{message:?}");
        }
    }

    /// Rows with several faults must fail with the error of the first check.
    #[test]
    fn first_failing_check_decides_the_error() {
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
            let checked = check_request(&request, RequestMeta::from_request(&request), &HeaderFields::of(&pairs));
            let code = checked.map_or_else(|refused| refused.error.code(), |_| 0);
            assert_eq!(code, expected, "{request:?} {pairs:?}");
        }
    }
}
