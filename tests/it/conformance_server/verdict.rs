//! The suite's verdict on a server, and the differences between two verdicts.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::peers::installed;

/// Ends a suite run that hangs. It takes ten seconds of a processor, which on a busy machine is minutes.
const SUITE_TIMEOUT: Duration = Duration::from_secs(900);
/// Limits concurrent suite runs: some scenarios have short timeouts.
static SUITE_PERMITS: Semaphore = Semaphore::const_new(2);

/// Members whose value changes from run to run: their presence is compared, not their value.
const VOLATILE_MEMBERS: [&str; 16] = [
    "cursor",
    "date",
    "durationMs",
    "elapsedMs",
    "eventId",
    "io.modelcontextprotocol/subscriptionId",
    "last-event-id",
    "lastEventId",
    "lastEventIdUsed",
    "mcp-session-id",
    "nextCursor",
    "requestState",
    "sessionId",
    "sessionIdSent",
    "subscriptionId",
    "taskId",
];
/// Hop-by-hop and server headers, not compared.
const IGNORED_HEADERS: [&str; 10] = [
    "cache-control",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "server",
    "transfer-encoding",
    "vary",
    "x-accel-buffering",
    // Added by the gateway for its log.
    "x-request-id",
];
/// Patterns of volatile text: `d` is a digit, `h` a hexadecimal digit.
const VOLATILE_PATTERNS: [(&str, &str); 3] = [
    ("hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh", "<uuid>"),
    ("dddd-dd-ddTdd:dd:dd.dddZ", "<time>"),
    ("dddd-dd-ddTdd:dd:ddZ", "<time>"),
];
/// Codes and message prefixes of errors that the gateway creates itself; their messages are not compared. All other
/// messages come from the server and are compared.
const GATEWAY_ERRORS: [(i64, &str); 5] = [
    (-32020, "Header mismatch: "),
    (-32022, "Unsupported protocol version "),
    (-32600, "Forbidden: the host "),
    (-32601, "Method not found: "),
    (-32602, "Invalid params: `params._meta` needs "),
];
/// Members of error `data` that the protocol defines; others of gateway errors are not compared.
const DEFINED_ERROR_DATA: [&str; 3] = ["requested", "requiredCapabilities", "supported"];
/// List members of results, which the gateway caches by their TTL.
const LIST_MEMBERS: [&str; 4] = ["prompts", "resourceTemplates", "resources", "tools"];
/// Stands for all checks of a scenario.
pub const ALL_CHECKS: &str = "all";
/// Maximum differences printed per check.
const MAX_PRINTED_FAULTS: usize = 4;

/// A selection of scenarios and their revision.
#[derive(Clone, Copy)]
pub struct Suite {
    pub revision: &'static str,
    arguments: &'static [&'static str],
    /// Opens sessions at `revision` instead of the suite's default.
    pins_revision: bool,
}

/// The requirements of 2026-07-28.
pub const PER_REQUEST: Suite =
    Suite { revision: "2026-07-28", arguments: &["--requirements", "2026-07-28"], pins_revision: false };
/// The requirements of 2025-11-25.
pub const HANDSHAKE: Suite =
    Suite { revision: "2025-11-25", arguments: &["--requirements", "2025-11-25"], pins_revision: false };
/// All scenarios of 2025-06-18.
pub const OLDER: Suite = Suite {
    revision: "2025-06-18",
    arguments: &["--suite", "all", "--spec-version", "2025-06-18"],
    pins_revision: true,
};
/// The suite has one scenario for 2025-03-26; those of 2025-06-18 are run at this revision.
pub const OLDEST: Suite = Suite { revision: "2025-03-26", ..OLDER };

/// The recorded checks by scenario.
pub struct Verdict {
    /// Whether every scored check passed.
    pub passed: bool,
    /// Combined stdout and stderr.
    pub text: String,
    pub scenarios: BTreeMap<String, BTreeMap<String, Check>>,
}

/// A recorded check.
#[derive(Clone, PartialEq)]
pub struct Check {
    pub status: String,
    /// Normalized details and error message.
    pub recorded: Value,
}

/// A check that differs.
#[derive(Debug)]
pub struct Difference {
    pub scenario: String,
    pub check: String,
    pub kind: DifferenceKind,
}

/// How a check differs.
#[derive(Debug)]
pub enum DifferenceKind {
    Missing,
    Added,
    Status(StatusChange),
    Details(Vec<Fault>),
}

/// The status of a check without and with the gateway.
#[derive(Debug)]
pub struct StatusChange {
    alone: String,
    through: String,
    /// The message of the suite.
    why: String,
}

/// A path in the details of a check and the difference there.
#[derive(Debug)]
pub struct Fault {
    pub place: String,
    what: String,
}

// === impl Suite ===

impl Suite {
    /// Runs the suite against a server.
    pub async fn run(self, url: &str) -> Verdict {
        let place = tokio::task::spawn_blocking(installed).await.unwrap();
        let _turn = SUITE_PERMITS.acquire().await.unwrap();
        let modules = place.join("node/node_modules/.bin");
        let (results, written) = (Results::new(), Results::new());
        let output_file = written.0.join("output");
        let output = fs::File::create(&output_file).unwrap();
        let mut command = Command::new(modules.join("node"));
        if self.pins_revision {
            command.arg("--import").arg(place.join("node/older-wire.mjs")).env("OLDER_WIRE", self.revision);
        }
        command.arg(modules.join("conformance")).args(["server", "--url", url]).args(self.arguments);
        command.arg("--output-dir").arg(&results.0).stdin(Stdio::null()).kill_on_drop(true);
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let status = tokio::time::timeout(SUITE_TIMEOUT, command.status()).await;
        let text = String::from_utf8_lossy(&fs::read(&output_file).unwrap()).into_owned();
        let status = status.unwrap_or_else(|_| panic!("the suite does not end:\n{text}")).unwrap();
        let scenarios = results.read(url);
        assert!(!scenarios.is_empty(), "no scenario ran:\n{text}");
        Verdict { passed: status.success(), text, scenarios }
    }
}

/// The results folder of one run, removed on drop.
struct Results(PathBuf);

impl Results {
    fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-server-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn read(&self, url: &str) -> BTreeMap<String, BTreeMap<String, Check>> {
        let folders = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let scenario = |folder: PathBuf| {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            let (name, _time) = name.split_at(name.len() - "-2026-01-01T00-00-00-000Z".len());
            let text = fs::read_to_string(folder.join("checks.json")).ok()?;
            let recorded: Vec<Value> = serde_json::from_str(&text).unwrap();
            Some((name.strip_prefix("server-").unwrap().to_owned(), checks(&recorded, url)))
        };
        folders.filter_map(scenario).collect()
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The checks of one scenario by id; duplicates get a number: `id#2`.
pub fn checks(recorded: &[Value], url: &str) -> BTreeMap<String, Check> {
    let mut checks = BTreeMap::new();
    for check in recorded {
        let name = check["id"].as_str().unwrap();
        let numbered = (2..).map(|number| format!("{name}#{number}"));
        let free = std::iter::once(name.to_owned()).chain(numbered).find(|name| !checks.contains_key(name));
        let mut members = Map::new();
        for member in ["errorMessage", "details"] {
            if let Some(value) = check.get(member) {
                members.insert(member.into(), normalized(value, url));
            }
        }
        let status = check["status"].as_str().unwrap().to_owned();
        checks.insert(free.unwrap(), Check { status, recorded: members.into() });
    }
    checks
}

// === normalizing ===

/// A value without volatile parts.
pub fn normalized(value: &Value, url: &str) -> Value {
    match value {
        Value::Object(members) => {
            // A recorded SSE event.
            let is_event = members.contains_key("id") && members.contains_key("data") && members.len() <= 3;
            members.iter().filter_map(|(key, value)| Some((key.clone(), member(key, value, is_event, url)?))).collect()
        }
        Value::Array(items) => items.iter().map(|item| normalized(item, url)).collect(),
        Value::String(text) => plain(text, url).into(),
        other => other.clone(),
    }
}

/// A normalized member, or `None` if it is not compared.
fn member(key: &str, value: &Value, is_event: bool, url: &str) -> Option<Value> {
    let varies = VOLATILE_MEMBERS.contains(&key) || (is_event && key == "id");
    match value {
        Value::String(_) | Value::Number(_) if varies => Some(format!("<{key}>").into()),
        Value::Object(headers) if key == "headers" => {
            let counts = |(name, _): &(&String, &Value)| !IGNORED_HEADERS.contains(&name.to_ascii_lowercase().as_str());
            let headers: Map<String, Value> =
                headers.iter().filter(counts).map(|(n, v)| (n.clone(), v.clone())).collect();
            Some(normalized(&headers.into(), url))
        }
        // The data of an SSE event is recorded as text.
        Value::String(text) if key == "data" => match serde_json::from_str(text) {
            Ok(message @ Value::Object(_)) => Some(normalized(&message, url)),
            _ => Some(plain(text, url).into()),
        },
        // An SSE body is recorded as text; with a single message it is equivalent to that message as JSON.
        Value::String(text) if key == "responseBody" => match only_message(text) {
            Some(message) => Some(normalized(&message, url)),
            None => Some(plain(text, url).into()),
        },
        value => Some(normalized(value, url)),
    }
}

/// The only message in an SSE body. Priming events, which have no data, are skipped.
fn only_message(text: &str) -> Option<Value> {
    let mut messages = Vec::new();
    for event in text.split("\n\n").filter(|event| !event.trim().is_empty()) {
        let mut data = Vec::new();
        for line in event.lines().filter(|line| !line.is_empty()) {
            match line.split_once(':')? {
                ("data", value) => data.push(value.strip_prefix(' ').unwrap_or(value)),
                ("event", value) if value.trim() != "message" => return None,
                ("" | "event" | "id" | "retry", _) => {}
                _ => return None,
            }
        }
        let data = data.join("\n");
        if !data.is_empty() {
            messages.push(serde_json::from_str(&data).ok()?);
        }
    }
    match <[Value; 1]>::try_from(messages) {
        Ok([message @ Value::Object(_)]) => Some(message),
        _ => None,
    }
}

/// Text with addresses and volatile patterns replaced.
fn plain(text: &str, url: &str) -> String {
    let authority = url.strip_prefix("http://").and_then(|rest| rest.split('/').next()).unwrap();
    let (_, port) = authority.rsplit_once(':').unwrap();
    let text = text.replace(url, "<url>").replace(&format!(":{port}"), ":<port>");
    VOLATILE_PATTERNS.iter().fold(text, |text, (form, name)| without(&text, form, name))
}

/// Replaces everything that matches a pattern by a name.
fn without(text: &str, form: &str, name: &str) -> String {
    let fits = |candidate: &str| {
        let pair = |(byte, pattern): (u8, u8)| match pattern {
            b'd' => byte.is_ascii_digit(),
            b'h' => byte.is_ascii_hexdigit(),
            pattern => byte == pattern,
        };
        candidate.len() == form.len() && candidate.bytes().zip(form.bytes()).all(pair)
    };
    let mut result = String::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        match rest.get(..form.len()) {
            Some(candidate) if fits(candidate) => {
                result.push_str(name);
                rest = &rest[form.len()..];
            }
            _ => {
                result.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    result
}

// === comparing ===

/// The differences of `through` from `alone`. The details of `list_checks` may have extra entries.
pub fn differences(alone: &Verdict, through: &Verdict, list_checks: &[&str]) -> Vec<Difference> {
    let mut found = Vec::new();
    for (scenario, what) in unmatched(&alone.scenarios, &through.scenarios) {
        found.push(Difference { scenario, check: ALL_CHECKS.into(), kind: what });
    }
    for (scenario, checks) in &alone.scenarios {
        let Some(others) = through.scenarios.get(scenario) else { continue };
        for (check, what) in unmatched(checks, others) {
            found.push(Difference { scenario: scenario.clone(), check, kind: what });
        }
        for (name, check) in checks {
            let Some(other) = others.get(name) else { continue };
            let allow_extra = list_checks.contains(&name.as_str());
            if let Some(what) = difference(scenario, name, check, other, allow_extra) {
                found.push(Difference { scenario: scenario.clone(), check: name.clone(), kind: what });
            }
        }
    }
    found
}

/// Keys that only one of two maps has.
fn unmatched<V>(ones: &BTreeMap<String, V>, others: &BTreeMap<String, V>) -> Vec<(String, DifferenceKind)> {
    let missing =
        ones.keys().filter(|name| !others.contains_key(*name)).map(|name| (name.clone(), DifferenceKind::Missing));
    let added =
        others.keys().filter(|name| !ones.contains_key(*name)).map(|name| (name.clone(), DifferenceKind::Added));
    missing.chain(added).collect()
}

fn difference(scenario: &str, name: &str, one: &Check, other: &Check, allow_extra: bool) -> Option<DifferenceKind> {
    if one.status != other.status {
        let why = other.recorded["errorMessage"].as_str().or(one.recorded["errorMessage"].as_str()).unwrap_or_default();
        let (alone, through, why) = (one.status.clone(), other.status.clone(), why.to_owned());
        return Some(DifferenceKind::Status(StatusChange { alone, through, why }));
    }
    let mut comparison = Comparison { scenario, check: name, allow_extra, faults: Vec::new() };
    comparison.values("", &one.recorded, &other.recorded);
    (!comparison.faults.is_empty()).then_some(DifferenceKind::Details(comparison.faults))
}

/// Compares the details of one check.
struct Comparison<'a> {
    scenario: &'a str,
    check: &'a str,
    /// Extra entries are allowed.
    allow_extra: bool,
    faults: Vec<Fault>,
}

impl Comparison<'_> {
    fn values(&mut self, path: &str, one: &Value, other: &Value) {
        match (one, other) {
            (Value::Object(ones), Value::Object(others)) => self.objects(path, ones, others),
            (Value::Array(ones), Value::Array(others)) if self.allow_extra => {
                // Every entry is present in order; extra entries may be in between.
                let mut others = others.iter();
                for one in ones {
                    if !others.any(|other| self.is_within(one, other)) {
                        self.fault(path, format!(" misses {}, or has it elsewhere", truncated(one)));
                    }
                }
            }
            (Value::Array(ones), Value::Array(others)) if ones.len() == others.len() => {
                for (index, (one, other)) in ones.iter().zip(others).enumerate() {
                    self.values(&format!("{path}[{index}]"), one, other);
                }
            }
            (Value::Number(one), Value::Number(other))
                if self.allow_extra && path.ends_with("Count") && one.as_f64() <= other.as_f64() => {}
            (one, other) if one != other => {
                self.fault(path, format!(": {} became {}", truncated(one), truncated(other)));
            }
            _ => {}
        }
    }

    fn objects(&mut self, path: &str, ones: &Map<String, Value>, others: &Map<String, Value>) {
        for (key, value) in ones {
            let path = format!("{path}.{key}");
            match others.get(key) {
                Some(other) if key == "error" && is_gateway_error(other) => self.gateway_errors(&path, value, other),
                Some(other) if key == "ttlMs" && self.is_hint_of_list(ones) && is_remaining_ttl(other, value) => {}
                Some(other) if key == "messagesValidated" && self.is_polling() && *value != 0 && *other != 0 => {}
                // The gateway may announce that a list has changed, as when it has reached another leg of the server.
                Some(other) if key == "messagesValidated" && *value != 0 && other.as_u64() > value.as_u64() => {}
                Some(other) if key == "body" && is_unread(ones) && is_response(other) => {}
                Some(other) => self.values(&path, value, other),
                None => self.fault(&path, format!(" is missing; it was {}", truncated(value))),
            }
        }
        let allow_extra = self.allow_extra;
        for (key, value) in others.iter().filter(|(key, _)| !allow_extra && !ones.contains_key(*key)) {
            self.fault(&format!("{path}.{key}"), format!(" was not there: {}", truncated(value)));
        }
    }

    /// Compares an error with a gateway error: the code and the defined data members.
    fn gateway_errors(&mut self, path: &str, one: &Value, other: &Value) {
        let [one, other] = [one, other].map(|error| {
            let mut error = error.clone();
            if let Some(members) = error.as_object_mut() {
                members.remove("message");
                let data = members.remove("data");
                let data = data.as_ref().and_then(Value::as_object).into_iter().flatten();
                let defined = data.filter(|(key, _)| DEFINED_ERROR_DATA.contains(&key.as_str()));
                let defined: Map<_, _> = defined.map(|(key, value)| (key.clone(), value.clone())).collect();
                members.insert("data".into(), defined.into());
            }
            error
        });
        self.values(path, &one, &other);
    }

    /// Whether an object carries the cache hint of a list: the list itself, or a check about it.
    fn is_hint_of_list(&self, object: &Map<String, Value>) -> bool {
        let is_list = || LIST_MEMBERS.iter().any(|list| object.get(*list).is_some_and(Value::is_array));
        match object.get("endpoint").and_then(Value::as_str) {
            Some(endpoint) => endpoint.ends_with("/list"),
            None => is_list() || (object.contains_key("hasTtlMs") && self.check.ends_with("-list-caching-hints")),
        }
    }

    /// Whether the scenario polls a task; the poll count depends on timing.
    fn is_polling(&self) -> bool {
        self.scenario.starts_with("tasks-")
    }

    fn is_within(&self, one: &Value, other: &Value) -> bool {
        let mut comparison = Comparison { allow_extra: true, faults: Vec::new(), ..*self };
        comparison.values("", one, other);
        comparison.faults.is_empty()
    }

    fn fault(&mut self, path: &str, what: String) {
        self.faults.push(Fault { place: path.trim_start_matches('.').to_owned(), what });
    }
}

/// Whether the gateway created this error.
fn is_gateway_error(error: &Value) -> bool {
    let message = error["message"].as_str().unwrap_or_default();
    GATEWAY_ERRORS.iter().any(|(code, prefix)| error["code"] == *code && message.starts_with(prefix))
}

/// Whether a TTL is a valid remainder of the original: a cached list may have a shorter TTL, never a longer one, and
/// zero only for zero.
fn is_remaining_ttl(left: &Value, whole: &Value) -> bool {
    match (left.as_u64(), whole.as_u64()) {
        (Some(0), Some(0)) => true,
        (Some(left), Some(whole)) => 0 < left && left <= whole,
        _ => false,
    }
}

/// Whether the suite did not parse the body: some checks record null for SSE or text. A 202 has no body.
fn is_unread(answered: &Map<String, Value>) -> bool {
    answered["body"].is_null() && answered.get("statusCode").is_some_and(|status| *status != 202)
}

/// Whether a body is one JSON-RPC response.
fn is_response(body: &Value) -> bool {
    body["jsonrpc"] == "2.0" && (body.get("result").is_some() || body.get("error").is_some())
}

/// A value as text, truncated.
fn truncated(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

// === impl Difference ===

impl Difference {
    /// Whether the gateway makes the check fail, or warn where it did not.
    pub fn is_worse(&self) -> bool {
        let severity = |status: &str| ["WARNING", "FAILURE"].iter().position(|name| *name == status);
        match &self.kind {
            DifferenceKind::Status(change) => severity(&change.through) > severity(&change.alone),
            _ => false,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {}: ", self.scenario, self.check)?;
        match &self.kind {
            DifferenceKind::Missing => write!(f, "is missing"),
            DifferenceKind::Added => write!(f, "was not there"),
            DifferenceKind::Status(StatusChange { alone, through, why }) => {
                write!(f, "{alone} became {through}: {why}")
            }
            DifferenceKind::Details(faults) => {
                let shown =
                    faults.iter().take(MAX_PRINTED_FAULTS).map(|fault| format!("{}{}", fault.place, fault.what));
                write!(f, "{}", shown.collect::<Vec<_>>().join("; "))?;
                match faults.len().saturating_sub(MAX_PRINTED_FAULTS) {
                    0 => Ok(()),
                    more => write!(f, "; and {more} more"),
                }
            }
        }
    }
}
