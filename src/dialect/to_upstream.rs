//! What we say to an upstream, in its revision, and how we read what it says of itself.

use std::sync::LazyLock;

use http::HeaderName;
use memchr::memmem::Finder;

use super::headers::{self, HeaderMirror};
use super::to_client::ServerInfo;
use super::{Era, Revision, meta};
use crate::http::codec::RequestEncoder;
use crate::protocol::{ErrorObject, Level, Method, Outcome, Raw, Request, code};

/// Who speaks to the upstream: the client, as the upstream is to see it.
#[derive(Debug, Clone)]
pub struct ClientIdentity {
    /// What it can do.
    pub capabilities: Raw,
    /// Who it is.
    pub info: Raw,
}

/// What a request carries beside its method and parameters.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// What progress is to be reported under.
    pub progress: Option<Raw>,
    /// From which level on log messages are wanted.
    pub level: Option<Level>,
}

/// What an upstream turned out to be.
#[derive(Debug, Clone)]
pub struct ServerHello {
    /// The revision to speak with it.
    pub revision: Revision,
    /// What it says of itself.
    pub server: ServerInfo,
    /// The revisions that it offers, as far as it says.
    pub offered: Vec<String>,
}

/// What an answer to `server/discover` says about the era of an upstream.
#[derive(Debug)]
pub enum Verdict {
    /// It is of the per-request era.
    PerRequest(Box<ServerHello>),
    /// It is of that era, but the request has to name one of these revisions.
    Renegotiate(Revision),
    /// It opens with a handshake, for this reason.
    Handshake(String),
    /// It speaks only revisions that we do not.
    UnsupportedRevision(Vec<String>),
}

/// The members of `_meta` that belong to one hop and are never passed on.
const HOP: [&str; 6] = [
    meta::PROTOCOL_VERSION,
    meta::CLIENT_CAPABILITIES,
    meta::CLIENT_INFO,
    meta::LOG_LEVEL,
    meta::SUBSCRIPTION_ID,
    meta::SERVER_INFO,
];
/// How many of them every request of the per-request era has; the level follows.
const SPOKEN: usize = 3;

/// What a client of one revision can do, as it is told to an upstream of another. Tasks are another
/// thing in each era, and neither has the other's.
pub fn capabilities(able: &Raw, from: Revision, to: Revision) -> Raw {
    if from.era() == to.era() {
        return able.clone();
    }
    let mut edit = able.edit().remove("tasks");
    if let Some(extensions) = able.get("extensions").filter(|all| all.get(TASKS).is_some()) {
        edit = edit.set("extensions", extensions.edit().remove(TASKS).finish());
    }
    match able.get("roots").filter(|_| to.era() == Era::PerRequest) {
        Some(_) => edit.set("roots", Raw::empty()).finish(),
        None => edit.finish(),
    }
}

/// What a server of one revision can do, as it is told to a client of another.
pub fn offers(able: &Raw, from: Revision, to: Revision) -> Raw {
    if from.era() == to.era() {
        return able.clone();
    }
    let edit = able.edit().remove("tasks");
    match able.get("extensions").filter(|all| all.get(TASKS).is_some()) {
        Some(extensions) => edit.set("extensions", extensions.edit().remove(TASKS).finish()).finish(),
        None => edit.finish(),
    }
}

/// Whether a server has tasks, as the newest era has them.
pub fn has_tasks(able: &Raw) -> bool {
    able.at(&["extensions", TASKS]).is_some()
}

/// The extension that is tasks.
pub const TASKS: &str = super::tasks::EXTENSION;

/// What the per-request era carries between the rounds of a call.
static BETWEEN: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| ["inputResponses", "requestState"].map(Finder::new));

/// The parameters of a request as an upstream of that revision wants them: what belongs to the
/// hop before is taken out, what this hop needs is put in, everything else stays as it came.
pub fn params(params: Option<&Raw>, revision: Revision, speaker: &ClientIdentity, extras: &Extras) -> Option<Raw> {
    if let (Some(params), Era::PerRequest) = (params, revision.era()) {
        return Some(
            params.changed("_meta", |meta| rewrite_meta(&meta.unwrap_or_else(Raw::empty), revision, speaker, extras)),
        );
    }
    let empty = Raw::empty();
    let came = meta::of(params);
    let meta = rewrite_meta(came.as_ref().unwrap_or(&empty), revision, speaker, extras);
    let some_meta = meta.has_members();
    match params {
        None if !some_meta => None,
        // There is nothing to change.
        Some(params) if came.is_none() && !some_meta && !BETWEEN.iter().any(|key| params.may_have(key)) => {
            Some(params.clone())
        }
        _ => {
            let mut params = params.unwrap_or(&empty).clone();
            if revision.era() == Era::Handshake {
                // What one era carries between rounds means nothing in the other.
                params = params.without(|key, _| matches!(key, b"inputResponses" | b"requestState"));
            }
            let edit = if some_meta { params.edit().set("_meta", meta) } else { params.edit().remove("_meta") };
            Some(edit.finish())
        }
    }
}

/// Whether `_meta` says what this hop needs already, once, and nothing of another hop. It does between two of the
/// same revision, and then nothing has to be written anew.
fn is_said(meta: &Raw, revision: Revision, speaker: &ClientIdentity, extras: &Extras) -> bool {
    let is_text = |value: &[u8], text: &str| {
        let inner = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        inner == Some(text.as_bytes())
    };
    let mut said = [false; SPOKEN + 1];
    let as_wanted = meta.all(|key, value| {
        let (which, wanted) = match std::str::from_utf8(key) {
            Ok(meta::PROTOCOL_VERSION) => (0, is_text(value, revision.facts().name)),
            Ok(meta::CLIENT_CAPABILITIES) => (1, value == speaker.capabilities.as_bytes()),
            Ok(meta::CLIENT_INFO) => (2, value == speaker.info.as_bytes()),
            Ok(meta::LOG_LEVEL) => (3, extras.level.is_some_and(|level| is_text(value, level.as_str()))),
            // It is another one on each hop.
            Ok(meta::SUBSCRIPTION_ID | meta::SERVER_INFO | "progressToken") | Err(_) => return false,
            // An escape may stand for anything.
            Ok(other) => return !other.contains('\\'),
        };
        wanted && !std::mem::replace(&mut said[which], true)
    });
    as_wanted && extras.progress.is_none() && said == [true, true, true, extras.level.is_some()]
}

/// `_meta` with what this hop needs in it, and nothing of the hop before.
fn rewrite_meta(meta: &Raw, revision: Revision, speaker: &ClientIdentity, extras: &Extras) -> Raw {
    let per_request = revision.era() == Era::PerRequest;
    if per_request && is_said(meta, revision, speaker, extras) {
        return meta.clone();
    }
    if !per_request && extras.progress.is_none() && !meta.has_members() {
        return meta.clone();
    }
    let mut edit = match &extras.progress {
        Some(token) => meta.edit().set("progressToken", token.clone()),
        None => meta.edit().remove("progressToken"),
    };
    let mut dropped = &HOP[..];
    if per_request {
        edit = edit
            .set(meta::PROTOCOL_VERSION, Raw::of(revision.facts().name))
            .set(meta::CLIENT_CAPABILITIES, speaker.capabilities.clone())
            .set(meta::CLIENT_INFO, speaker.info.clone());
        dropped = &HOP[SPOKEN..];
        if let Some(level) = extras.level {
            edit = edit.set(meta::LOG_LEVEL, Raw::of(level.as_str()));
            dropped = &HOP[SPOKEN + 1..];
        }
    }
    for key in dropped {
        edit = edit.remove(*key);
    }
    edit.finish()
}

/// Writes the header that names a revision.
pub fn version(head: &mut RequestEncoder, revision: Revision) {
    head.put_static(&headers::PROTOCOL_VERSION, revision.facts().name);
}

/// Writes the headers that mirror a request to an upstream over HTTP. A value that no header can have is left out: it
/// would not be understood, either.
pub fn mirrored(head: &mut RequestEncoder, request: &Request, revision: Revision, mirrors: &[HeaderMirror]) {
    version(head, revision);
    if revision.era() == Era::Handshake {
        return;
    }
    head.put_text(&headers::METHOD, request.method.as_str());
    let member = |key: &str| request.params.as_ref().and_then(|params| params.get(key));
    if let Some(name) = request.method.name_member().and_then(member).as_ref().and_then(Raw::text) {
        head.put_text(&headers::NAME, &headers::encode(&name));
    }
    if request.method == Method::ToolsCall && !mirrors.is_empty() {
        let arguments = member("arguments").unwrap_or_else(Raw::empty);
        for (name, value) in headers::make(mirrors, &arguments) {
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                head.put_text(&name, &value);
            }
        }
    }
}

/// The parameters of `initialize`.
pub fn initialize(revision: Revision, speaker: &ClientIdentity) -> Raw {
    let empty = Raw::empty();
    let edit = empty.edit().set("protocolVersion", Raw::of(revision.facts().name));
    edit.set("capabilities", speaker.capabilities.clone()).set("clientInfo", speaker.info.clone()).finish()
}

/// Reads the answer to `initialize`.
///
/// # Errors
/// A sentence about what is wrong with it.
pub fn read_handshake(result: &Raw) -> Result<ServerHello, String> {
    let version = result.get("protocolVersion");
    let Some(version) = version.as_ref().and_then(Raw::text) else {
        return Err("its answer to `initialize` has no `protocolVersion`".into());
    };
    let revision = Revision::parse(&version).filter(|revision| revision.era() == Era::Handshake);
    let Some(revision) = revision else {
        let ours = super::classify::supported(Era::Handshake).join(", ");
        return Err(format!("it wants to speak {version}, and we speak {ours}"));
    };
    let server = ServerInfo {
        info: result.get("serverInfo").unwrap_or_else(Raw::empty),
        capabilities: result.get("capabilities").unwrap_or_else(Raw::empty),
        instructions: result.get("instructions"),
    };
    Ok(ServerHello { revision, server, offered: vec![version.into_owned()] })
}

/// Reads the answer to `server/discover`, or what came instead of one. Only codes that this era
/// alone has are a sign of it; every other error says that the method is not known. `again` is
/// whether it may still be asked again.
pub fn verdict(outcome: &Outcome, again: bool) -> Verdict {
    match outcome {
        Ok(result) => discovered(result),
        Err(error) if error.code() == code::UNSUPPORTED_VERSION => {
            let supported: Vec<String> = data_list(error, "supported");
            let handshake = offers_handshake(&supported);
            match best(&supported) {
                // Even when it is the one that was asked for: what it offers counts, not why it refused.
                Some(revision) if again || !handshake => Verdict::Renegotiate(revision),
                _ if handshake => Verdict::Handshake(format!("it offers {}", supported.join(", "))),
                _ => Verdict::UnsupportedRevision(supported),
            }
        }
        Err(error) => {
            Verdict::Handshake(format!("it answered `server/discover` with {}: {}", error.code(), error.message()))
        }
    }
}

fn discovered(result: &Raw) -> Verdict {
    let offered: Vec<String> = match result.get("supportedVersions").map(|list| list.read()) {
        Some(Ok(offered)) => offered,
        _ => return Verdict::Handshake("its answer to `server/discover` names no versions".into()),
    };
    let Some(revision) = best(&offered) else {
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

/// The newest revision of the per-request era on a list.
fn best(names: &[String]) -> Option<Revision> {
    let known = names.iter().filter_map(|name| Revision::parse(name));
    known.filter(|revision| revision.era() == Era::PerRequest).max()
}

fn offers_handshake(names: &[String]) -> bool {
    names.iter().any(|name| Revision::parse(name).is_some_and(|revision| revision.era() == Era::Handshake))
}

fn data_list(error: &ErrorObject, key: &str) -> Vec<String> {
    let list = error.data().and_then(|data| data.get(key));
    list.and_then(|list| list.read().ok()).unwrap_or_default()
}

/// What an upstream of the per-request era wants to know before it goes on.
#[derive(Debug)]
pub struct InputRequired {
    /// Each question under its key.
    pub questions: Vec<(String, Method, Option<Raw>)>,
    /// What the retry has to carry along, exactly.
    pub state: Option<Raw>,
}

/// How many things may be asked in one round.
const MOST_QUESTIONS: usize = 64;

/// Reads a result that asks for input; nothing when it is a plain result.
///
/// # Errors
/// A sentence about what is wrong with it.
pub fn input_required(result: &Raw) -> Result<Option<InputRequired>, String> {
    let kind = result.get("resultType");
    if kind.as_ref().and_then(Raw::text).as_deref() != Some("input_required") {
        return Ok(None);
    }
    let state = result.get("requestState");
    let asked = result.get("inputRequests");
    if asked.is_none() && state.is_none() {
        return Err("it asks for input, but neither what nor how to go on".into());
    }
    Ok(Some(InputRequired { questions: input_requests(asked.as_ref())?, state }))
}

/// Reads what is asked, each under its key.
///
/// # Errors
/// A sentence about what is wrong with it.
pub fn input_requests(asked: Option<&Raw>) -> Result<Vec<(String, Method, Option<Raw>)>, String> {
    let mut questions = Vec::new();
    for (key, question) in asked.iter().flat_map(|asked| asked.entries()) {
        if questions.len() == MOST_QUESTIONS {
            return Err(format!("it asks more than {MOST_QUESTIONS} things at once"));
        }
        let method = question.get("method");
        let method = method.as_ref().and_then(Raw::text);
        match method.as_deref() {
            Some(name @ ("elicitation/create" | "sampling/createMessage" | "roots/list")) => {
                questions.push((key.into_owned(), Method::from(name), question.get("params")));
            }
            other => return Err(format!("it asks {other:?}, which no client can answer")),
        }
    }
    Ok(questions)
}

/// The parameters of the retry after questions were answered.
pub fn retried(params: Option<&Raw>, answers: &[(String, Raw)], state: Option<&Raw>) -> Raw {
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
    use bytes::Bytes;

    fn raw(text: &str) -> Raw {
        Raw::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn speaker() -> ClientIdentity {
        ClientIdentity { capabilities: raw(r#"{"roots":{}}"#), info: raw(r#"{"name":"n"}"#) }
    }

    #[test]
    fn what_belongs_to_a_hop_stays_there() {
        let came = raw(
            r#"{"name":"t","_meta":{"progressToken":"theirs","io.modelcontextprotocol/protocolVersion":"x","vendor/a":1.0}}"#,
        );
        let extras = Extras { progress: Some(raw("7")), level: Some(Level::Info) };
        let old = params(Some(&came), Revision::NEWEST_HANDSHAKE, &speaker(), &extras).unwrap();
        assert_eq!(old.to_string(), r#"{"name":"t","_meta":{"progressToken":7,"vendor/a":1.0}}"#);
        let new = params(Some(&came), Revision::NEWEST, &speaker(), &extras).unwrap();
        for (path, value) in [
            (&["_meta", meta::PROTOCOL_VERSION][..], r#""2026-07-28""#),
            (&["_meta", meta::CLIENT_CAPABILITIES], r#"{"roots":{}}"#),
            (&["_meta", meta::LOG_LEVEL], r#""info""#),
            (&["_meta", "vendor/a"], "1.0"),
            (&["name"], r#""t""#),
        ] {
            assert_eq!(new.at(path).unwrap().to_string(), value);
        }
        assert_eq!(params(None, Revision::NEWEST_HANDSHAKE, &speaker(), &Extras::default()), None);
        let bare = raw(r#"{"cursor":""}"#);
        assert_eq!(params(Some(&bare), Revision::NEWEST_HANDSHAKE, &speaker(), &Extras::default()), Some(bare));
    }

    /// Between two of the newest revision most messages pass as they are.
    #[test]
    fn what_is_said_already_is_not_written_anew() {
        let said = |more: &str| {
            raw(&format!(
                r#"{{"name":"t","_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{{"name":"n"}},"io.modelcontextprotocol/clientCapabilities":{{"roots":{{}}}}{more}}}}}"#
            ))
        };
        let passes = |came: &Raw, extras: &Extras| {
            let passed = params(Some(came), Revision::NEWEST, &speaker(), extras).unwrap();
            passed.as_bytes().as_ptr() == came.as_bytes().as_ptr()
        };
        let (none, info) = (Extras::default(), Extras { level: Some(Level::Info), ..Extras::default() });
        assert!(passes(&said(""), &none));
        assert!(passes(&said(r#","vendor/a":1.0"#), &none));
        assert!(passes(&said(r#","io.modelcontextprotocol/logLevel":"info""#), &info));
        for other in [
            r#","progressToken":1"#,
            r#","io.modelcontextprotocol/logLevel":"info""#,
            r#","io.modelcontextprotocol/serverInfo":{}"#,
            r#","io.modelcontextprotocol/clientInfo":{"name":"other"}"#,
            r#","io.modelcontextprotocol\/subscriptionId":1"#,
        ] {
            assert!(!passes(&said(other), &none), "{other}");
        }
        let twice = said("").to_string().replace("clientInfo\":{\"name\":\"n\"}", "protocolVersion\":\"2026-07-28\"");
        let passed = params(Some(&raw(&twice)), Revision::NEWEST, &speaker(), &none).unwrap();
        assert_eq!(passed.at(&["_meta", meta::CLIENT_INFO]).unwrap().to_string(), r#"{"name":"n"}"#, "{twice}");
        assert!(!passes(&said(""), &info));
        assert!(!passes(&said(""), &Extras { progress: Some(raw("7")), ..none }));
        let other = ClientIdentity { capabilities: Raw::empty(), ..speaker() };
        let passed = params(Some(&said("")), Revision::NEWEST, &other, &none).unwrap();
        assert_eq!(passed.at(&["_meta", meta::CLIENT_CAPABILITIES]).unwrap().to_string(), "{}");
    }

    #[test]
    fn whatever_a_client_says_of_itself_is_passed_on() {
        let info = raw(r#"{"name":"\ud800","n":1e999,"big":12345678901234567890123}"#);
        let params = initialize(Revision::NEWEST_HANDSHAKE, &ClientIdentity { info: info.clone(), ..speaker() });
        assert_eq!(params.get("clientInfo"), Some(info));
    }

    #[test]
    fn answers_to_a_probe_are_told_apart() {
        let error = |code: i64, data: Option<&str>| {
            let error = ErrorObject::new(code, "m");
            Err(data.map_or(error.clone(), |data| error.with_data(raw(data))))
        };
        let kind_when = |outcome: Outcome, again: bool| match verdict(&outcome, again) {
            Verdict::PerRequest(_) => "per-request",
            Verdict::Renegotiate(_) => "renegotiate",
            Verdict::Handshake(_) => "handshake",
            Verdict::UnsupportedRevision(_) => "stranger",
        };
        let kind = |outcome: Outcome| kind_when(outcome, true);
        assert_eq!(kind(Ok(raw(r#"{"supportedVersions":["2025-11-25","2026-07-28"]}"#))), "per-request");
        assert_eq!(kind(Ok(raw(r#"{"supportedVersions":["2025-11-25"]}"#))), "handshake");
        assert_eq!(kind(Ok(raw(r#"{"supportedVersions":["2099-01-01"]}"#))), "stranger");
        assert_eq!(kind(Ok(raw("{}"))), "handshake");
        assert_eq!(kind(error(-32601, None)), "handshake");
        assert_eq!(kind(error(-32602, None)), "handshake");
        assert_eq!(kind(error(-32022, Some(r#"{"supported":["2025-06-18"]}"#))), "handshake");
        assert_eq!(kind(error(-32022, Some(r#"{"supported":["2099-01-01"]}"#))), "stranger");
        // The revision that was just refused is worth a second try, but not a third.
        assert_eq!(kind(error(-32022, Some(r#"{"supported":["2026-07-28"]}"#))), "renegotiate");
        let both = || error(-32022, Some(r#"{"supported":["2025-11-25","2026-07-28"]}"#));
        assert_eq!(kind(both()), "renegotiate");
        assert_eq!(kind_when(both(), false), "handshake");
    }

    #[test]
    fn questions_are_read_and_retries_written() {
        let result = raw(
            r#"{"resultType":"input_required","inputRequests":{"u1":{"method":"roots/list"}},"requestState":"s\u0031"}"#,
        );
        let asked = input_required(&result).unwrap().unwrap();
        assert_eq!(asked.questions[0].0, "u1");
        let before = raw(r#"{"name":"t","requestState":"old"}"#);
        let retry = retried(Some(&before), &[("u1".into(), raw(r#"{"roots":[]}"#))], asked.state.as_ref());
        assert_eq!(retry.to_string(), r#"{"name":"t","requestState":"s\u0031","inputResponses":{"u1":{"roots":[]}}}"#);
        assert!(input_required(&raw(r#"{"resultType":"input_required"}"#)).is_err());
        assert!(input_required(&raw(r#"{"resultType":"complete"}"#)).unwrap().is_none());
        assert!(input_required(&raw(r#"{"content":[]}"#)).unwrap().is_none());
    }
}
