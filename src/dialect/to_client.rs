//! What a client gets, in the shapes of its revision.
//!
//! A payload carries the revision whose shapes it has. Where that is the client's own, it goes
//! out byte for byte; otherwise members that the client's revision lacks are taken out or turned
//! into what it has, and members that it requires are put in.

use super::downgrade;
use super::meta;
use super::{Era, Revision};
use crate::protocol::{ErrorObject, Method, Notice, Notification, Outcome, Raw, code, json};

/// What a gateway says of a server, in the shapes of the newest revision.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// Who it is: `name`, `version` and more.
    pub info: Raw,
    /// What it can do.
    pub capabilities: Raw,
    /// How to use it, if it says.
    pub instructions: Option<Raw>,
}

impl ServerInfo {
    /// Whether it says that it tells when something changes.
    pub fn tells_of_changes(&self) -> bool {
        let tells = |path: &[&str]| self.capabilities.at(path).is_some_and(|flag| flag.as_bytes() == b"true");
        let lists = ["tools", "prompts", "resources"].into_iter().any(|family| tells(&[family, "listChanged"]));
        lists || tells(&["resources", "subscribe"])
    }
}

/// How long a client may keep a result, and whether it may show it to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheHint {
    /// Milliseconds.
    pub ttl: u64,
    /// Whether it is the same for everybody.
    pub public: bool,
}

/// An outcome in the shapes of the revision `to`. `server` answers for the identity that the
/// per-request era puts into every result.
pub fn outcome(outcome: Outcome, method: &Method, from: Revision, to: Revision, server: &ServerInfo) -> Outcome {
    if from == to {
        return outcome;
    }
    match outcome {
        Ok(result) => Ok(self::result(result, method, from, to, server)),
        Err(error) if *method == Method::ToolsCall && lacks(&error, from, to) => Ok(unable(&error)),
        Err(error) => Err(self::error(error, method, from, to)),
    }
}

/// Whether a server of the per-request era says what a client of the other would have to be able to
/// do.
fn lacks(error: &ErrorObject, from: Revision, to: Revision) -> bool {
    (from.era(), to.era()) == (Era::PerRequest, Era::Handshake)
        && error.code() == code::MISSING_CAPABILITY
        && error.data().is_some_and(|data| data.get(REQUIRED).is_some())
}

/// The member of an error's data that names capabilities.
const REQUIRED: &str = "requiredCapabilities";

/// The same as the failure of a tool, for clients that have no such error.
fn unable(error: &ErrorObject) -> Raw {
    let needed = error.data().and_then(|data| data.get(REQUIRED)).unwrap_or_else(Raw::empty);
    let text = format!("{}: the server needs {needed}", error.message());
    let content = [serde_json::json!({ "type": "text", "text": text })];
    Raw::of(&serde_json::json!({ "content": content, "isError": true }))
}

fn result(result: Raw, method: &Method, from: Revision, to: Revision, server: &ServerInfo) -> Raw {
    match (from.era(), to.era()) {
        (Era::PerRequest, Era::Handshake) => downgrade::result(&without_envelope(&result), method, to),
        (Era::Handshake, Era::PerRequest) => with_envelope(&downgrade::result(&result, method, to), method, server),
        (Era::Handshake, Era::Handshake) => downgrade::result(&result, method, to),
        (Era::PerRequest, Era::PerRequest) => result,
    }
}

/// Takes out what the per-request era adds to every result.
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

/// Puts in what the per-request era requires of every result.
fn with_envelope(result: &Raw, method: &Method, server: &ServerInfo) -> Raw {
    let [content, meta] = result.pick(["content", "_meta"]);
    let mut edit = result.edit().set("resultType", Raw::constant(r#""complete""#));
    if cached(method) {
        edit = edit.set("ttlMs", Raw::constant("0")).set("cacheScope", Raw::constant(r#""private""#));
    }
    if *method == Method::ToolsCall && content.is_none() {
        edit = edit.set("content", Raw::constant("[]"));
    }
    let meta = meta.unwrap_or_else(Raw::empty).edit().set(meta::SERVER_INFO, server.info.clone()).finish();
    edit.set("_meta", meta).finish()
}

/// Whether results of this method carry a cache hint.
pub fn cached(method: &Method) -> bool {
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

fn error(error: ErrorObject, method: &Method, from: Revision, to: Revision) -> ErrorObject {
    let missing = from.facts().resource_not_found;
    let about_uri = || error.data().is_some_and(|data| data.get("uri").is_some());
    if *method == Method::ResourcesRead
        && error.code() == missing
        && (missing == code::RESOURCE_NOT_FOUND || about_uri())
    {
        return error.with_code(to.facts().resource_not_found);
    }
    // Codes that the newest revision reserves mean nothing, or something else, elsewhere.
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

/// A notification in the shapes of the revision `to`.
pub fn notification(notification: Notification, to: Revision) -> Notification {
    let strip = notification.notice == Notice::Progress && !to.facts().progress_message;
    let Some(params) = notification.params.as_ref().filter(|_| strip) else {
        return notification;
    };
    let params = params.edit().remove("message").finish();
    Notification::new(Notice::Progress, Some(params))
}

/// The answer to `initialize`.
pub fn handshake(server: &ServerInfo, to: Revision) -> Raw {
    let facts = to.facts();
    let mut capabilities = server.capabilities.edit();
    if !facts.completions_capability {
        capabilities = capabilities.remove("completions");
    }
    let mut info = server.info.edit();
    if !facts.titles {
        info = info.remove("title");
    }
    if !facts.icons {
        info = info.remove("icons").remove("description").remove("websiteUrl");
    }
    let mut result = Raw::empty();
    result = result.edit().set("protocolVersion", Raw::of(facts.name)).finish();
    result = result.edit().set("capabilities", capabilities.finish()).set("serverInfo", info.finish()).finish();
    match &server.instructions {
        Some(instructions) => result.edit().set("instructions", instructions.clone()).finish(),
        None => result,
    }
}

/// The answer to `server/discover`.
pub fn discovery(server: &ServerInfo, hint: CacheHint) -> Raw {
    let scope = if hint.public { "public" } else { "private" };
    let versions = super::classify::supported(Era::PerRequest);
    let result = Raw::of(&serde_json::json!({
        "resultType": "complete",
        "supportedVersions": versions,
        "ttlMs": hint.ttl,
        "cacheScope": scope,
    }));
    let result = result.edit().set("capabilities", server.capabilities.clone()).finish();
    let result = meta::with(Some(&result), meta::SERVER_INFO, server.info.clone());
    match &server.instructions {
        Some(instructions) => result.edit().set("instructions", instructions.clone()).finish(),
        None => result,
    }
}

/// A result that asks for input, each question under its key.
pub fn input_required(asked: &[(String, Raw)], state: &str, server: &ServerInfo) -> Raw {
    let empty = Raw::empty();
    let mut requests = empty.edit();
    for (key, request) in asked {
        requests = requests.set(key.as_str(), request.clone());
    }
    let result = Raw::constant(r#"{"resultType":"input_required"}"#);
    let result = result.edit().set("inputRequests", requests.finish()).set("requestState", Raw::of(state)).finish();
    meta::with(Some(&result), meta::SERVER_INFO, server.info.clone())
}

/// The first word on a listen stream: what of the wishes is honoured.
pub fn listen_ack(subscription: &Raw, honoured: Raw) -> Notification {
    let params = Raw::empty().edit().set("notifications", honoured).finish();
    Notification::new(Notice::Acknowledged, Some(subscribed(Some(&params), subscription)))
}

/// Marks what goes out on a listen stream with the id of its request.
pub fn subscribed(params: Option<&Raw>, subscription: &Raw) -> Raw {
    meta::with(params, meta::SUBSCRIPTION_ID, subscription.clone())
}

/// The last word on a listen stream.
pub fn listen_result(subscription: &Raw) -> Raw {
    let result = Raw::constant(r#"{"resultType":"complete"}"#);
    subscribed(Some(&result), subscription)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn raw(text: &str) -> Raw {
        Raw::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn server() -> ServerInfo {
        ServerInfo {
            info: raw(r#"{"name":"s","version":"1","title":"S","websiteUrl":"x"}"#),
            capabilities: raw(r#"{"tools":{},"completions":{}}"#),
            instructions: None,
        }
    }

    #[test]
    fn the_same_revision_is_untouched() {
        let text = raw(r#"{ "resultType":"complete" , "x":1e5}"#);
        let same = outcome(Ok(text.clone()), &Method::ToolsCall, Revision::NEWEST, Revision::NEWEST, &server());
        assert_eq!(same.unwrap(), text);
    }

    #[test]
    fn the_envelope_comes_and_goes() {
        let modern = raw(
            r#"{"resultType":"complete","ttlMs":5,"cacheScope":"public","tools":[],"_meta":{"io.modelcontextprotocol/serverInfo":{}}}"#,
        );
        let old =
            outcome(Ok(modern), &Method::ToolsList, Revision::NEWEST, Revision::NEWEST_HANDSHAKE, &server()).unwrap();
        assert_eq!(old.to_string(), r#"{"tools":[]}"#);
        let new =
            outcome(Ok(old), &Method::ToolsList, Revision::NEWEST_HANDSHAKE, Revision::NEWEST, &server()).unwrap();
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
    fn a_missing_resource_has_the_code_of_the_era() {
        let error = ErrorObject::new(-32602, "x").with_data(raw(r#"{"uri":"a:b"}"#));
        let old = outcome(Err(error), &Method::ResourcesRead, Revision::NEWEST, Revision::NEWEST_HANDSHAKE, &server());
        let old = old.unwrap_err();
        assert_eq!(old.code(), -32002);
        let new = outcome(Err(old), &Method::ResourcesRead, Revision::NEWEST_HANDSHAKE, Revision::NEWEST, &server());
        assert_eq!(new.unwrap_err().code(), -32602);
    }

    #[test]
    fn codes_of_another_era_are_wrapped_and_kept() {
        let error = ErrorObject::new(-32050, "x").with_data(raw(r#"{"n":1.50}"#));
        let new = outcome(Err(error), &Method::ToolsCall, Revision::NEWEST_HANDSHAKE, Revision::NEWEST, &server());
        let new = new.unwrap_err();
        assert_eq!(new.code(), -32603);
        assert_eq!(new.data().unwrap().to_string(), r#"{"code":-32050,"data":{"n":1.50}}"#);
    }

    #[test]
    fn a_missing_capability_is_the_failure_of_a_tool() {
        let error = ErrorObject::new(-32021, "No").with_data(raw(r#"{"requiredCapabilities":{"sampling":{}}}"#));
        let to = Revision::NEWEST_HANDSHAKE;
        let called = outcome(Err(error.clone()), &Method::ToolsCall, Revision::NEWEST, to, &server()).unwrap();
        assert_eq!(
            called.to_string(),
            r#"{"content":[{"text":"No: the server needs {\"sampling\":{}}","type":"text"}],"isError":true}"#
        );
        let read = outcome(Err(error.clone()), &Method::ResourcesRead, Revision::NEWEST, to, &server()).unwrap_err();
        assert_eq!(read.code(), -32603);
        // The other way round the code is only a number that somebody chose.
        let other = outcome(Err(error), &Method::ToolsCall, to, Revision::NEWEST, &server()).unwrap_err();
        assert_eq!(other.code(), -32603);
    }

    #[test]
    fn a_server_is_told_of_as_it_tells_of_itself() {
        let able = raw(r#"{"tools":{},"experimental":{"big":12345678901234567890123,"b":1.0,"a":1}}"#);
        let server = ServerInfo { capabilities: able.clone(), ..server() };
        let found = discovery(&server, CacheHint { ttl: 1, public: true });
        assert_eq!(found.get("capabilities"), Some(able));
    }

    #[test]
    fn handshakes_name_only_what_the_revision_has() {
        let oldest = handshake(&server(), Revision::of(Era::Handshake).next().unwrap());
        assert_eq!(
            oldest.to_string(),
            r#"{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#
        );
    }
}
