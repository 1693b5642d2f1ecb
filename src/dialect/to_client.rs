//! Converts payloads to the client's revision.
//!
//! Every payload comes with the revision it follows. If that is the client's, it passes byte for byte;
//! otherwise members that the client's revision lacks are removed or converted, and members it requires are
//! added.

use super::downgrade;
use super::meta;
use super::{Era, Revision};
use crate::protocol::{ErrorObject, Key, Method, Notification, NotificationMethod, Outcome, Payload, Raw, code, json};

/// The self-description of a server, following the newest revision.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// The `serverInfo` object.
    pub info: Raw,
    /// The server capabilities.
    pub capabilities: Raw,
    /// The instructions, if any.
    pub instructions: Option<Raw>,
}

impl ServerInfo {
    /// Whether the server declares change notifications for lists or resources.
    pub fn announces_changes(&self) -> bool {
        let is_true = |path: &[&str]| self.capabilities.at(path).is_some_and(|flag| flag.as_bytes() == b"true");
        let lists = ["tools", "prompts", "resources"].into_iter().any(|family| is_true(&[family, "listChanged"]));
        lists || is_true(&["resources", "subscribe"])
    }
}

/// How long a client may cache a result, and in which scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheHint {
    /// Time to live in milliseconds.
    pub ttl: u64,
    /// Whether the result may be shared between users.
    pub public: bool,
}

/// Converts an outcome to the revision `to`. `server` provides the identity that every per-request result
/// carries.
pub fn convert_outcome(
    outcome: Outcome,
    method: &Method,
    from: Revision,
    to: Revision,
    server: &ServerInfo,
) -> Outcome {
    if from == to {
        return if to.has_result_envelope() { outcome.map(with_result_type) } else { outcome };
    }
    match outcome {
        Ok(result) => Ok(convert_result(result, method, from, to, server)),
        Err(error) if *method == Method::ToolsCall && is_missing_capability(&error, from, to) => {
            Ok(missing_capability_result(&error).into())
        }
        Err(error) => Err(convert_error(error, method, from, to)),
    }
}

/// Whether [`convert_outcome`] changes no result of the method that says what kind of result it is.
pub fn passes_results_unchanged(method: &Method, from: Revision, to: Revision) -> bool {
    let is_of_handshake_era = |revision: Revision| revision.era() == Era::Handshake;
    from == to || (is_of_handshake_era(from) && is_of_handshake_era(to) && downgrade::passes_unchanged(method, to))
}

/// Says `complete` where a server left it unsaid, as receivers are told to assume.
fn with_result_type(result: Payload) -> Payload {
    match result.is_object() && !result.has(Key::ResultType) {
        true => result.with(Key::ResultType, &Raw::constant(r#""complete""#)),
        false => result,
    }
}

/// Whether a per-request server reports a missing client capability to a handshake-era client.
fn is_missing_capability(error: &ErrorObject, from: Revision, to: Revision) -> bool {
    (from.era(), to.era()) == (Era::PerRequest, Era::Handshake)
        && error.code() == code::MISSING_CAPABILITY
        && error.data().is_some_and(|data| data.get(REQUIRED_CAPABILITIES).is_some())
}

/// The member of error data that lists the required capabilities.
const REQUIRED_CAPABILITIES: &str = "requiredCapabilities";

/// A missing-capability error as a failed tool result, for clients that lack the error code.
fn missing_capability_result(error: &ErrorObject) -> Raw {
    let needed = error.data().and_then(|data| data.get(REQUIRED_CAPABILITIES)).unwrap_or_else(Raw::empty);
    let text = format!("{}: the server needs {needed}", error.message());
    let content = [serde_json::json!({ "type": "text", "text": text })];
    Raw::of(&serde_json::json!({ "content": content, "isError": true }))
}

fn convert_result(result: Payload, method: &Method, from: Revision, to: Revision, server: &ServerInfo) -> Payload {
    match (from.era(), to.era()) {
        (Era::PerRequest, Era::Handshake) => without_envelope(&downgrade::result(result, method, to)).into(),
        (Era::Handshake, Era::PerRequest) => {
            with_envelope(&downgrade::result(result, method, to), method, server).into()
        }
        (Era::Handshake, Era::Handshake) => downgrade::result(result, method, to),
        (Era::PerRequest, Era::PerRequest) => result,
    }
}

/// Removes the members that the per-request era adds to every result.
fn without_envelope(result: &Raw) -> Raw {
    let server_info = meta::SERVER_INFO.as_bytes();
    let mut mixed = false;
    let stripped = result.without(|key, value| match key {
        b"resultType" | b"ttlMs" | b"cacheScope" => true,
        b"_meta" => {
            let is_ours = |member: json::Member| value[member.key.start + 1..member.key.end - 1] == *server_info;
            let others = json::members(value).filter(|member| !is_ours(member.clone())).count();
            mixed = others > 0 && others < json::members(value).count();
            others == 0
        }
        _ => false,
    });
    match stripped.get("_meta").filter(|_| mixed) {
        Some(meta) => stripped.edit().set("_meta", meta.edit().remove(meta::SERVER_INFO).finish()).finish(),
        None => stripped,
    }
}

/// Adds the members that the per-request era requires in every result.
fn with_envelope(result: &Payload, method: &Method, server: &ServerInfo) -> Raw {
    let mut edit = result.edit().set("resultType", Raw::constant(r#""complete""#));
    if is_cacheable(method) {
        edit = edit.set("ttlMs", Raw::constant("0")).set("cacheScope", Raw::constant(r#""private""#));
    }
    if *method == Method::ToolsCall && !result.has(Key::Content) {
        edit = edit.set("content", Raw::constant("[]"));
    }
    let meta =
        result.member(Key::Meta).unwrap_or_else(Raw::empty).edit().set(meta::SERVER_INFO, server.info.clone()).finish();
    edit.set("_meta", meta).finish()
}

/// Whether results of this method carry a cache hint.
pub fn is_cacheable(method: &Method) -> bool {
    matches!(
        method,
        Method::Discover
            | Method::ToolsList
            | Method::PromptsList
            | Method::ResourcesList
            | Method::TemplatesList
            | Method::ResourcesRead
    )
}

fn convert_error(error: ErrorObject, method: &Method, from: Revision, to: Revision) -> ErrorObject {
    let missing = from.features().resource_not_found;
    let about_uri = || error.data().is_some_and(|data| data.get("uri").is_some());
    if *method == Method::ResourcesRead
        && error.code() == missing
        && (missing == code::RESOURCE_NOT_FOUND || about_uri())
    {
        return error.with_code(to.features().resource_not_found);
    }
    // Codes reserved by the newest revision have another meaning in the other era, so the original is moved
    // to `data`.
    let reserved = (-32099..=-32020).contains(&error.code()) && from.era() != to.era();
    if reserved {
        let mut data = Raw::empty().edit().set("code", Raw::of(&error.code())).finish();
        if let Some(own) = error.data() {
            data = data.edit().set("data", own).finish();
        }
        return error.with_code(code::INTERNAL_ERROR).with_data(data);
    }
    error
}

/// Converts a notification to the revision `to`.
pub fn convert_notification(notification: Notification, to: Revision) -> Notification {
    let strip = notification.method == NotificationMethod::Progress && !to.features().progress_message;
    let Some(params) = notification.params.as_ref().filter(|_| strip) else {
        return notification;
    };
    let params = params.edit().remove("message").finish();
    Notification::new(NotificationMethod::Progress, Some(params))
}

/// The result of `initialize`.
pub fn initialize_result(server: &ServerInfo, to: Revision) -> Raw {
    let features = to.features();
    let mut capabilities = server.capabilities.edit();
    if !features.completions_capability {
        capabilities = capabilities.remove("completions");
    }
    let mut info = server.info.edit();
    if !features.titles {
        info = info.remove("title");
    }
    if !features.icons {
        info = info.remove("icons").remove("description").remove("websiteUrl");
    }
    let mut result = Raw::empty();
    result = result.edit().set("protocolVersion", Raw::of(features.name)).finish();
    result = result.edit().set("capabilities", capabilities.finish()).set("serverInfo", info.finish()).finish();
    match &server.instructions {
        Some(instructions) => result.edit().set("instructions", instructions.clone()).finish(),
        None => result,
    }
}

/// The result of `server/discover`.
pub fn discover_result(server: &ServerInfo, hint: CacheHint) -> Raw {
    let scope = if hint.public { "public" } else { "private" };
    let versions = super::classify::supported_versions(Era::PerRequest);
    let result = Raw::of(&serde_json::json!({
        "resultType": "complete",
        "supportedVersions": versions,
        "ttlMs": hint.ttl,
        "cacheScope": scope,
    }));
    let result = result.edit().set("capabilities", server.capabilities.clone()).finish();
    let result = meta::with_member(Some(&result), meta::SERVER_INFO, server.info.clone());
    match &server.instructions {
        Some(instructions) => result.edit().set("instructions", instructions.clone()).finish(),
        None => result,
    }
}

/// An `input_required` result with its server requests by key.
pub fn input_required(input_requests: &[(String, Raw)], state: &str, server: &ServerInfo) -> Raw {
    let empty = Raw::empty();
    let mut requests = empty.edit();
    for (key, request) in input_requests {
        requests = requests.set(key.as_str(), request.clone());
    }
    let result = Raw::constant(r#"{"resultType":"input_required"}"#);
    let result = result.edit().set("inputRequests", requests.finish()).set("requestState", Raw::of(state)).finish();
    meta::with_member(Some(&result), meta::SERVER_INFO, server.info.clone())
}

/// The acknowledgement of a listen call: the part of the filter that is granted.
pub fn listen_ack(subscription_id: &Raw, granted: Raw) -> Notification {
    let params = Raw::empty().edit().set("notifications", granted).finish();
    Notification::new(NotificationMethod::Acknowledged, Some(with_subscription_id(Some(&params), subscription_id)))
}

/// Adds the id of the listen request to `_meta`.
pub fn with_subscription_id(params: Option<&Raw>, subscription_id: &Raw) -> Raw {
    meta::with_member(params, meta::SUBSCRIPTION_ID, subscription_id.clone())
}

/// The final result of a listen call.
pub fn listen_result(subscription_id: &Raw) -> Raw {
    let result = Raw::constant(r#"{"resultType":"complete"}"#);
    with_subscription_id(Some(&result), subscription_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::raw;

    fn server() -> ServerInfo {
        ServerInfo {
            info: raw(r#"{"name":"s","version":"1","title":"S","websiteUrl":"x"}"#),
            capabilities: raw(r#"{"tools":{},"completions":{}}"#),
            instructions: None,
        }
    }

    #[test]
    fn same_revision_passes_unchanged() {
        let text = raw(r#"{ "resultType":"complete" , "x":1e5}"#);
        let same =
            convert_outcome(Ok(text.clone().into()), &Method::ToolsCall, Revision::NEWEST, Revision::NEWEST, &server());
        assert_eq!(same.unwrap(), text.into());
    }

    #[test]
    fn result_envelope_is_removed_and_added() {
        let modern = raw(
            r#"{"resultType":"complete","ttlMs":5,"cacheScope":"public","tools":[],"_meta":{"io.modelcontextprotocol/serverInfo":{}}}"#,
        );
        let old = convert_outcome(
            Ok(modern.into()),
            &Method::ToolsList,
            Revision::NEWEST,
            Revision::NEWEST_HANDSHAKE,
            &server(),
        )
        .unwrap();
        assert_eq!(old.to_string(), r#"{"tools":[]}"#);
        let new = convert_outcome(Ok(old), &Method::ToolsList, Revision::NEWEST_HANDSHAKE, Revision::NEWEST, &server())
            .unwrap();
        for (path, value) in [
            (&["resultType"][..], r#""complete""#),
            (&["ttlMs"], "0"),
            (&["cacheScope"], r#""private""#),
            (&["_meta", meta::SERVER_INFO, "name"], r#""s""#),
        ] {
            assert_eq!(new.at(path).unwrap().to_string(), value);
        }
    }

    #[test]
    fn resource_not_found_code_follows_the_era() {
        let error = ErrorObject::new(-32602, "x").with_data(raw(r#"{"uri":"a:b"}"#));
        let old = convert_outcome(
            Err(error),
            &Method::ResourcesRead,
            Revision::NEWEST,
            Revision::NEWEST_HANDSHAKE,
            &server(),
        );
        let old = old.unwrap_err();
        assert_eq!(old.code(), -32002);
        let new =
            convert_outcome(Err(old), &Method::ResourcesRead, Revision::NEWEST_HANDSHAKE, Revision::NEWEST, &server());
        assert_eq!(new.unwrap_err().code(), -32602);
    }

    #[test]
    fn reserved_codes_are_wrapped_across_eras() {
        let error = ErrorObject::new(-32050, "x").with_data(raw(r#"{"n":1.50}"#));
        let new =
            convert_outcome(Err(error), &Method::ToolsCall, Revision::NEWEST_HANDSHAKE, Revision::NEWEST, &server());
        let new = new.unwrap_err();
        assert_eq!(new.code(), -32603);
        assert_eq!(new.data().unwrap().to_string(), r#"{"code":-32050,"data":{"n":1.50}}"#);
    }

    #[test]
    fn missing_capability_becomes_a_failed_tool_result() {
        let error = ErrorObject::new(-32021, "No").with_data(raw(r#"{"requiredCapabilities":{"sampling":{}}}"#));
        let to = Revision::NEWEST_HANDSHAKE;
        let called = convert_outcome(Err(error.clone()), &Method::ToolsCall, Revision::NEWEST, to, &server()).unwrap();
        assert_eq!(
            called.to_string(),
            r#"{"content":[{"text":"No: the server needs {\"sampling\":{}}","type":"text"}],"isError":true}"#
        );
        let read =
            convert_outcome(Err(error.clone()), &Method::ResourcesRead, Revision::NEWEST, to, &server()).unwrap_err();
        assert_eq!(read.code(), -32603);
        // From a handshake-era server the code has no defined meaning.
        let other = convert_outcome(Err(error), &Method::ToolsCall, to, Revision::NEWEST, &server()).unwrap_err();
        assert_eq!(other.code(), -32603);
    }

    #[test]
    fn discover_result_keeps_capabilities_byte_for_byte() {
        let able = raw(r#"{"tools":{},"experimental":{"big":12345678901234567890123,"b":1.0,"a":1}}"#);
        let server = ServerInfo { capabilities: able.clone(), ..server() };
        let found = discover_result(&server, CacheHint { ttl: 1, public: true });
        assert_eq!(found.get("capabilities"), Some(able));
    }

    #[test]
    fn initialize_result_has_only_members_of_the_revision() {
        let oldest = initialize_result(&server(), Revision::in_era(Era::Handshake).next().unwrap());
        assert_eq!(
            oldest.to_string(),
            r#"{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#
        );
    }
}
