//! Converts requests to the upstream's revision, and parses its self-description.

use http::HeaderName;

use super::headers::{self, HeaderMirror};
use super::to_client::ServerInfo;
use super::{Era, Revision, meta};
use crate::http::codec::RequestEncoder;
use crate::protocol::{ErrorObject, Key, Level, Method, Outcome, Payload, Raw, Request, code};

/// The identity presented to the upstream.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    /// The client capabilities.
    pub capabilities: Raw,
    /// The `clientInfo` object.
    pub info: Raw,
}

/// The result of opening a connection to an upstream.
#[derive(Debug, Clone)]
pub struct ServerHello {
    /// The negotiated revision.
    pub revision: Revision,
    /// The server's self-description.
    pub server: ServerInfo,
    /// The revisions that the server offers, if it lists them.
    pub offered: Vec<String>,
}

/// What the outcome of `server/discover` tells about the upstream's era.
#[derive(Debug)]
pub enum Verdict {
    /// The upstream speaks the per-request era.
    PerRequest(Box<ServerHello>),
    /// The upstream speaks the per-request era; repeat the request with this revision.
    Renegotiate(Revision),
    /// The upstream needs a handshake; the text is the reason.
    Handshake(String),
    /// The upstream offers only unknown revisions.
    UnsupportedRevision(Vec<String>),
}

/// The `_meta` keys that belong to one hop and are never forwarded.
const HOP_META_KEYS: [&str; 6] = [
    meta::PROTOCOL_VERSION,
    meta::CLIENT_CAPABILITIES,
    meta::CLIENT_INFO,
    meta::LOG_LEVEL,
    meta::SUBSCRIPTION_ID,
    meta::SERVER_INFO,
];
/// The number of keys at the start of that list which every per-request request must have.
const REQUIRED_META_KEYS: usize = 3;

/// Converts client capabilities for an upstream of another era. The eras define tasks differently, so neither
/// declaration is forwarded.
pub fn client_capabilities(capabilities: &Raw, from: Revision, to: Revision) -> Raw {
    if from.era() == to.era() {
        return capabilities.clone();
    }
    if !capabilities.has_members() {
        return capabilities.clone();
    }
    let mut edit = capabilities.edit().remove("tasks");
    if let Some(extensions) = capabilities.get("extensions").filter(|all| all.get(TASKS).is_some()) {
        edit = edit.set("extensions", extensions.edit().remove(TASKS).finish());
    }
    match capabilities.get("roots").filter(|_| to.era() == Era::PerRequest) {
        Some(_) => edit.set("roots", Raw::empty()).finish(),
        None => edit.finish(),
    }
}

/// Converts server capabilities for a client of another era.
pub fn server_capabilities(capabilities: &Raw, from: Revision, to: Revision) -> Raw {
    if from.era() == to.era() {
        return capabilities.clone();
    }
    let edit = capabilities.edit().remove("tasks");
    match capabilities.get("extensions").filter(|all| all.get(TASKS).is_some()) {
        Some(extensions) => edit.set("extensions", extensions.edit().remove(TASKS).finish()).finish(),
        None => edit.finish(),
    }
}

/// Whether capabilities declare the tasks extension.
pub fn has_tasks(capabilities: &Raw) -> bool {
    capabilities.at(&["extensions", TASKS]).is_some()
}

/// The name of the tasks extension.
pub const TASKS: &str = super::tasks::EXTENSION;

/// The parameters for an upstream of that revision: `_meta` of the previous hop is removed, that of this hop
/// added, every other byte stays. `identity` is asked for only where requests carry it, and so is the log level.
pub fn request_params(
    params: Option<&Payload>,
    revision: Revision,
    identity: impl FnOnce() -> ClientIdentity,
    level: Option<Level>,
) -> Option<Payload> {
    match revision.era() {
        Era::PerRequest => Some(per_request_params(params, revision, &identity(), level)),
        Era::Handshake => params.map(handshake_params),
    }
}

fn per_request_params(
    params: Option<&Payload>,
    revision: Revision,
    identity: &ClientIdentity,
    level: Option<Level>,
) -> Payload {
    let empty = Raw::empty();
    let meta = params.and_then(|params| params.member(Key::Meta));
    let meta = rewrite_meta(meta.as_ref().unwrap_or(&empty), revision, identity, level);
    match params {
        Some(params) => params.with(Key::Meta, &meta),
        None => empty.edit().set(Key::Meta.as_str(), meta).finish().into(),
    }
}

/// Input rounds do not exist in the handshake era.
fn handshake_params(params: &Payload) -> Payload {
    let has_round = [Key::InputResponses, Key::RequestState].iter().any(|param| params.has(*param));
    let meta = match params.member(Key::Meta) {
        Some(meta) => meta.without(|key, _| is_hop_key(key)),
        None if !has_round => return params.clone(),
        None => Raw::empty(),
    };
    let keeps_meta = meta.has_members();
    let rest = params.without(|key, _| match key {
        b"_meta" => !keeps_meta,
        b"inputResponses" | b"requestState" => true,
        _ => false,
    });
    match keeps_meta {
        true => Payload::from(rest).with(Key::Meta, &meta),
        false => rest.into(),
    }
}

/// Whether a member of `_meta` belongs to one hop.
fn is_hop_key(key: &[u8]) -> bool {
    key == b"progressToken" || HOP_META_KEYS.iter().any(|hop_key| hop_key.as_bytes() == key)
}

/// Whether `_meta` already has exactly the members of this hop. Between two peers of one revision it does,
/// and the bytes are reused.
fn is_meta_current(meta: &Raw, revision: Revision, identity: &ClientIdentity, level: Option<Level>) -> bool {
    let is_text = |value: &[u8], text: &str| {
        let inner = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        inner == Some(text.as_bytes())
    };
    let mut present = [false; REQUIRED_META_KEYS + 1];
    let as_wanted = meta.all_members(|key, value| {
        let (which, wanted) = match std::str::from_utf8(key) {
            Ok(meta::PROTOCOL_VERSION) => (0, is_text(value, revision.as_str())),
            Ok(meta::CLIENT_CAPABILITIES) => (1, value == identity.capabilities.as_bytes()),
            Ok(meta::CLIENT_INFO) => (2, value == identity.info.as_bytes()),
            Ok(meta::LOG_LEVEL) => (3, level.is_some_and(|level| is_text(value, level.as_str()))),
            // These differ on every hop.
            Ok(meta::SUBSCRIPTION_ID | meta::SERVER_INFO | "progressToken") | Err(_) => return false,
            // An escaped key could be any key.
            Ok(other) => return !other.contains('\\'),
        };
        wanted && !std::mem::replace(&mut present[which], true)
    });
    as_wanted && present == [true, true, true, level.is_some()]
}

/// Replaces the `_meta` members of the previous hop by those of this hop, in the per-request era.
fn rewrite_meta(meta: &Raw, revision: Revision, identity: &ClientIdentity, level: Option<Level>) -> Raw {
    if is_meta_current(meta, revision, identity, level) {
        return meta.clone();
    }
    let kept = meta.without(|key, _| is_hop_key(key));
    let mut edit = kept
        .edit()
        .set(meta::PROTOCOL_VERSION, Raw::of(revision.as_str()))
        .set(meta::CLIENT_CAPABILITIES, identity.capabilities.clone())
        .set(meta::CLIENT_INFO, identity.info.clone());
    if let Some(level) = level {
        edit = edit.set(meta::LOG_LEVEL, Raw::of(level.as_str()));
    }
    edit.finish()
}

/// Writes the version header.
pub fn put_version_header(head: &mut RequestEncoder, revision: Revision) {
    head.put_static(&headers::PROTOCOL_VERSION, revision.as_str());
}

/// Writes the version header and, in the per-request era, the mirrored headers. A name that is not a valid
/// header name is left out.
pub fn put_headers(head: &mut RequestEncoder, request: &Request, revision: Revision, mirrors: &[HeaderMirror]) {
    put_version_header(head, revision);
    if revision.era() == Era::Handshake {
        return;
    }
    head.put_text(&headers::METHOD, request.method.as_str());
    let params = request.params.as_ref();
    let name = request.method.name_member().and_then(|member| params?.text_of(member));
    if let Some(name) = name {
        head.put_text(&headers::NAME, &headers::encode_value(&name));
    }
    if request.method == Method::ToolsCall && !mirrors.is_empty() {
        let arguments = params.and_then(|params| params.member(Key::Arguments)).unwrap_or_else(Raw::empty);
        for (name, value) in headers::mirror_headers(mirrors, &arguments) {
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                head.put_text(&name, &value);
            }
        }
    }
}

/// The parameters of `initialize`.
pub fn initialize_params(revision: Revision, identity: &ClientIdentity) -> Raw {
    let empty = Raw::empty();
    let edit = empty.edit().set("protocolVersion", Raw::of(revision.as_str()));
    edit.set("capabilities", identity.capabilities.clone()).set("clientInfo", identity.info.clone()).finish()
}

/// Parses the result of `initialize`.
///
/// # Errors
/// A description of what is wrong with the result.
pub fn parse_initialize_result(result: &Raw) -> Result<ServerHello, String> {
    let version = result.get("protocolVersion");
    let Some(version) = version.as_ref().and_then(Raw::text) else {
        return Err("`initialize` result has no `protocolVersion`".into());
    };
    let revision = Revision::parse(&*version).filter(|revision| revision.era() == Era::Handshake);
    let Some(revision) = revision else {
        let ours = super::classify::supported_versions(Era::Handshake).join(", ");
        return Err(format!("server negotiated the unsupported revision {version}; supported are {ours}"));
    };
    let server = ServerInfo {
        info: result.get("serverInfo").unwrap_or_else(Raw::empty),
        capabilities: result.get("capabilities").unwrap_or_else(Raw::empty),
        instructions: result.get("instructions"),
    };
    Ok(ServerHello { revision, server, offered: vec![version.into_owned()] })
}

/// Parses the outcome of `server/discover`. Only error codes of the per-request era prove that era; any other
/// error means that the method is unknown. `again` is whether the request may be repeated.
pub fn parse_discover_outcome(outcome: &Outcome, again: bool) -> Verdict {
    match outcome {
        Ok(result) => parse_discover_result(result),
        Err(error) if error.code() == code::UNSUPPORTED_VERSION => {
            let supported: Vec<String> = data_list(error, "supported");
            let handshake = offers_handshake(&supported);
            match newest_per_request(&supported) {
                // Even if it is the revision just refused: the offer counts, not the reason.
                Some(revision) if again || !handshake => Verdict::Renegotiate(revision),
                _ if handshake => Verdict::Handshake(format!("it offers {}", supported.join(", "))),
                _ => Verdict::UnsupportedRevision(supported),
            }
        }
        Err(error) => {
            Verdict::Handshake(format!("`server/discover` failed with {}: {}", error.code(), error.message()))
        }
    }
}

fn parse_discover_result(result: &Raw) -> Verdict {
    let offered: Vec<String> = match result.get("supportedVersions").map(|list| list.read()) {
        Some(Ok(offered)) => offered,
        _ => return Verdict::Handshake("`server/discover` result has no `supportedVersions`".into()),
    };
    let Some(revision) = newest_per_request(&offered) else {
        return if offers_handshake(&offered) {
            Verdict::Handshake(format!("it offers {} only", offered.join(", ")))
        } else {
            Verdict::UnsupportedRevision(offered)
        };
    };
    let info = result.at(&["_meta", meta::SERVER_INFO]).or_else(|| result.get("serverInfo"));
    let server = ServerInfo {
        info: info.unwrap_or_else(Raw::empty),
        capabilities: result.get("capabilities").unwrap_or_else(Raw::empty),
        instructions: result.get("instructions"),
    };
    Verdict::PerRequest(Box::new(ServerHello { revision, server, offered }))
}

/// The newest per-request revision of a list.
fn newest_per_request(names: &[String]) -> Option<Revision> {
    let known = names.iter().filter_map(Revision::parse);
    known.filter(|revision| revision.era() == Era::PerRequest).max()
}

fn offers_handshake(names: &[String]) -> bool {
    names.iter().any(|name| Revision::parse(name).is_some_and(|revision| revision.era() == Era::Handshake))
}

fn data_list(error: &ErrorObject, key: &str) -> Vec<String> {
    let list = error.data().and_then(|data| data.get(key));
    list.and_then(|list| list.read().ok()).unwrap_or_default()
}

/// An `input_required` result of a per-request upstream.
#[derive(Debug)]
pub struct InputRequired {
    /// Key, method and parameters of each server request.
    pub requests: Vec<(String, Method, Option<Raw>)>,
    /// The request state to send back unchanged.
    pub state: Option<Raw>,
}

/// Maximum number of server requests in one round.
const MAX_INPUT_REQUESTS: usize = 64;

/// Whether a result asks the client for input instead of completing the request.
pub fn is_input_required(result: &Payload) -> bool {
    result.text_of(Key::ResultType).as_deref() == Some("input_required")
}

/// Parses an `input_required` result; `None` for any other result.
///
/// # Errors
/// A description of what is wrong with the result.
pub fn input_required(result: &Payload) -> Result<Option<InputRequired>, String> {
    if !is_input_required(result) {
        return Ok(None);
    }
    let state = result.member(Key::RequestState);
    let input = result.member(Key::InputRequests);
    if input.is_none() && state.is_none() {
        return Err("it asks for input, but neither what nor how to go on".into());
    }
    Ok(Some(InputRequired { requests: input_requests(input.as_ref())?, state }))
}

/// Parses `inputRequests` into key, method and parameters.
///
/// # Errors
/// A description of the invalid entry.
pub fn input_requests(input: Option<&Raw>) -> Result<Vec<(String, Method, Option<Raw>)>, String> {
    let mut requests = Vec::new();
    for (key, request) in input.iter().flat_map(|input| input.entries()) {
        if requests.len() == MAX_INPUT_REQUESTS {
            return Err(format!("it asks more than {MAX_INPUT_REQUESTS} things at once"));
        }
        let method = request.get("method");
        let method = method.as_ref().and_then(Raw::text);
        match method.as_deref() {
            Some(name @ ("elicitation/create" | "sampling/createMessage" | "roots/list")) => {
                requests.push((key.into_owned(), Method::from(name), request.get("params")));
            }
            other => return Err(format!("it asks {other:?}, which no client can answer")),
        }
    }
    Ok(requests)
}

/// The parameters for the next round: input responses and request state.
pub fn retry_params(params: Option<&Raw>, answers: &[(String, Raw)], state: Option<&Raw>) -> Raw {
    let empty = Raw::empty();
    let mut responses = empty.edit();
    for (key, answer) in answers {
        responses = responses.set(key.as_str(), answer.clone());
    }
    let responses = responses.finish();
    let mut edit = params.unwrap_or(&empty).edit().remove("requestState").remove("inputResponses");
    if !answers.is_empty() {
        edit = edit.set("inputResponses", responses);
    }
    if let Some(state) = state {
        edit = edit.set("requestState", state.clone());
    }
    edit.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::raw;

    fn identity() -> ClientIdentity {
        ClientIdentity { capabilities: raw(r#"{"roots":{}}"#), info: raw(r#"{"name":"n"}"#) }
    }

    #[test]
    fn hop_members_of_meta_are_not_forwarded() {
        let incoming: Payload = raw(
            r#"{"name":"t","_meta":{"progressToken":"theirs","io.modelcontextprotocol/protocolVersion":"x","vendor/a":1.0}}"#,
        )
        .into();
        let level = Some(Level::Info);
        let old = request_params(Some(&incoming), Revision::NEWEST_HANDSHAKE, identity, level).unwrap();
        assert_eq!(old.to_string(), r#"{"name":"t","_meta":{"vendor/a":1.0}}"#);
        let new = request_params(Some(&incoming), Revision::NEWEST, identity, level).unwrap();
        for (path, value) in [
            (&["_meta", meta::PROTOCOL_VERSION][..], r#""2026-07-28""#),
            (&["_meta", meta::CLIENT_CAPABILITIES], r#"{"roots":{}}"#),
            (&["_meta", meta::LOG_LEVEL], r#""info""#),
            (&["_meta", "vendor/a"], "1.0"),
            (&["name"], r#""t""#),
        ] {
            assert_eq!(new.at(path).unwrap().to_string(), value);
        }
        assert_eq!(request_params(None, Revision::NEWEST_HANDSHAKE, identity, None), None);
        let bare: Payload = raw(r#"{"cursor":""}"#).into();
        assert_eq!(request_params(Some(&bare), Revision::NEWEST_HANDSHAKE, identity, None), Some(bare));
        let resumed: Payload = raw(r#"{"inputResponses":{},"name":"t","r\u0065questState":"s","_meta":{}}"#).into();
        let old = request_params(Some(&resumed), Revision::NEWEST_HANDSHAKE, identity, None).unwrap();
        assert_eq!(old.to_string(), r#"{"name":"t"}"#);
    }

    /// Between two peers of the newest revision most messages pass without a copy.
    #[test]
    fn current_meta_passes_without_a_copy() {
        let present = |more: &str| {
            raw(&format!(
                r#"{{"name":"t","_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{{"name":"n"}},"io.modelcontextprotocol/clientCapabilities":{{"roots":{{}}}}{more}}}}}"#
            ))
        };
        let passes = |incoming: &Raw, level: Option<Level>| {
            let passed = request_params(Some(&incoming.clone().into()), Revision::NEWEST, identity, level).unwrap();
            passed.as_bytes().as_ptr() == incoming.as_bytes().as_ptr()
        };
        assert!(passes(&present(""), None));
        assert!(passes(&present(r#","vendor/a":1.0"#), None));
        assert!(passes(&present(r#","io.modelcontextprotocol/logLevel":"info""#), Some(Level::Info)));
        for other in [
            r#","progressToken":1"#,
            r#","io.modelcontextprotocol/logLevel":"info""#,
            r#","io.modelcontextprotocol/serverInfo":{}"#,
            r#","io.modelcontextprotocol/clientInfo":{"name":"other"}"#,
            r#","io.modelcontextprotocol\/subscriptionId":1"#,
        ] {
            assert!(!passes(&present(other), None), "{other}");
        }
        let twice =
            present("").to_string().replace("clientInfo\":{\"name\":\"n\"}", "protocolVersion\":\"2026-07-28\"");
        let passed = request_params(Some(&raw(&twice).into()), Revision::NEWEST, identity, None).unwrap();
        assert_eq!(passed.at(&["_meta", meta::CLIENT_INFO]).unwrap().to_string(), r#"{"name":"n"}"#, "{twice}");
        assert!(!passes(&present(""), Some(Level::Info)));
        let other = ClientIdentity { capabilities: Raw::empty(), ..identity() };
        let passed = request_params(Some(&present("").into()), Revision::NEWEST, || other, None).unwrap();
        assert_eq!(passed.at(&["_meta", meta::CLIENT_CAPABILITIES]).unwrap().to_string(), "{}");
    }

    #[test]
    fn client_info_is_forwarded_unchanged() {
        let info = raw(r#"{"name":"\ud800","n":1e999,"big":12345678901234567890123}"#);
        let params =
            initialize_params(Revision::NEWEST_HANDSHAKE, &ClientIdentity { info: info.clone(), ..identity() });
        assert_eq!(params.get("clientInfo"), Some(info));
    }

    #[test]
    fn discover_outcomes_are_classified() {
        let error = |code: i64, data: Option<&str>| {
            let error = ErrorObject::new(code, "m");
            Err(data.map_or(error.clone(), |data| error.with_data(raw(data))))
        };
        let kind_when = |outcome: Outcome, again: bool| match parse_discover_outcome(&outcome, again) {
            Verdict::PerRequest(_) => "per-request",
            Verdict::Renegotiate(_) => "renegotiate",
            Verdict::Handshake(_) => "handshake",
            Verdict::UnsupportedRevision(_) => "stranger",
        };
        let kind = |outcome: Outcome| kind_when(outcome, true);
        assert_eq!(kind(Ok(raw(r#"{"supportedVersions":["2025-11-25","2026-07-28"]}"#).into())), "per-request");
        assert_eq!(kind(Ok(raw(r#"{"supportedVersions":["2025-11-25"]}"#).into())), "handshake");
        assert_eq!(kind(Ok(raw(r#"{"supportedVersions":["2099-01-01"]}"#).into())), "stranger");
        assert_eq!(kind(Ok(raw("{}").into())), "handshake");
        assert_eq!(kind(error(-32601, None)), "handshake");
        assert_eq!(kind(error(-32602, None)), "handshake");
        assert_eq!(kind(error(-32022, Some(r#"{"supported":["2025-06-18"]}"#))), "handshake");
        assert_eq!(kind(error(-32022, Some(r#"{"supported":["2099-01-01"]}"#))), "stranger");
        // A revision that was just refused is tried a second time, not a third.
        assert_eq!(kind(error(-32022, Some(r#"{"supported":["2026-07-28"]}"#))), "renegotiate");
        let both = || error(-32022, Some(r#"{"supported":["2025-11-25","2026-07-28"]}"#));
        assert_eq!(kind(both()), "renegotiate");
        assert_eq!(kind_when(both(), false), "handshake");
    }

    #[test]
    fn input_requests_are_parsed_and_retries_built() {
        let result = raw(
            r#"{"resultType":"input_required","inputRequests":{"u1":{"method":"roots/list"}},"requestState":"s\u0031"}"#,
        );
        let input = input_required(&result.into()).unwrap().unwrap();
        assert_eq!(input.requests[0].0, "u1");
        let before = raw(r#"{"name":"t","requestState":"old"}"#);
        let retry = retry_params(Some(&before), &[("u1".into(), raw(r#"{"roots":[]}"#))], input.state.as_ref());
        assert_eq!(retry.to_string(), r#"{"name":"t","requestState":"s\u0031","inputResponses":{"u1":{"roots":[]}}}"#);
        assert!(input_required(&raw(r#"{"resultType":"input_required"}"#).into()).is_err());
        assert!(input_required(&raw(r#"{"resultType":"complete"}"#).into()).unwrap().is_none());
        assert!(input_required(&raw(r#"{"content":[]}"#).into()).unwrap().is_none());
    }
}
