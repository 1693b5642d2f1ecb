//! What the suite says of a server, and what it says differently of another.

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

/// A suite is done in a few seconds, unless the machine has a lot else to do.
const PATIENCE: Duration = Duration::from_secs(180);
/// How many suites run at once. Some scenarios have short clocks of their own.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

/// What changes from run to run, whoever answers. That it is there counts, what it says does not.
const VOLATILE: [&str; 16] = [
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
/// Headers that belong to the hop and say nothing of what is answered.
const OF_THE_HOP: [&str; 10] = [
    "cache-control",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "server",
    "transfer-encoding",
    "vary",
    "x-accel-buffering",
    // The gateway's own name for a request, to be found again in its log.
    "x-request-id",
];
/// Things that are recognized by their form: `d` is a digit, `h` a hexadecimal one.
const FORMS: [(&str, &str); 3] = [
    ("hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh", "<uuid>"),
    ("dddd-dd-ddTdd:dd:dd.dddZ", "<time>"),
    ("dddd-dd-ddTdd:dd:ddZ", "<time>"),
];
/// How errors begin that the gateway answers without asking anybody, with their codes. What it goes on
/// to say is for a person to read, and nobody's but its own. The words of all others have passed
/// through it, and are compared.
const OWN_WORDS: [(i64, &str); 5] = [
    (-32020, "Header mismatch: "),
    (-32022, "Unsupported protocol version "),
    (-32600, "Forbidden: the host "),
    (-32601, "Method not found: "),
    (-32602, "Invalid params: `params._meta` needs "),
];
/// What the protocol defines of the `data` of an error. The rest is as free as the words.
const DEFINED: [&str; 3] = ["requested", "requiredCapabilities", "supported"];
/// The members of results that are lists, which the gateway keeps for as long as it is told to.
const LISTS: [&str; 4] = ["prompts", "resourceTemplates", "resources", "tools"];
/// Stands for all checks of a scenario.
pub const WHOLE: &str = "all";
/// How many differences inside one check are shown.
const SHOWN: usize = 4;

/// A selection of scenarios, and the revision that is spoken in them.
#[derive(Clone, Copy)]
pub struct Suite {
    pub revision: &'static str,
    arguments: &'static [&'static str],
    /// The sessions are opened at the revision, not at the suite's own.
    older_wire: bool,
}

/// The suite's own words on 2026-07-28.
pub const PER_REQUEST: Suite =
    Suite { revision: "2026-07-28", arguments: &["--requirements", "2026-07-28"], older_wire: false };
/// The same for 2025-11-25.
pub const HANDSHAKE: Suite =
    Suite { revision: "2025-11-25", arguments: &["--requirements", "2025-11-25"], older_wire: false };
/// All that the suite has for 2025-06-18.
pub const OLDER: Suite =
    Suite { revision: "2025-06-18", arguments: &["--suite", "all", "--spec-version", "2025-06-18"], older_wire: true };
/// The suite has one scenario for this revision. Those of the next work on its wire just as well.
pub const OLDEST: Suite = Suite { revision: "2025-03-26", ..OLDER };

/// What was recorded, by scenario and check.
pub struct Verdict {
    /// Whether everything that is scored passed.
    pub passed: bool,
    /// What was printed.
    pub text: String,
    pub scenarios: BTreeMap<String, BTreeMap<String, Check>>,
}

/// What was recorded of one check.
#[derive(Clone, PartialEq)]
pub struct Check {
    pub status: String,
    /// Its details, with the error message, if any; without what changes from run to run.
    pub seen: Value,
}

/// A check that is not the same.
#[derive(Debug)]
pub struct Difference {
    pub scenario: String,
    pub check: String,
    pub what: What,
}

/// In what way it is not.
#[derive(Debug)]
pub enum What {
    Missing,
    Added,
    Status(String),
    Details(Vec<Fault>),
}

/// A place in the details of a check, and what is not the same there.
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
        let _turn = AT_ONCE.acquire().await.unwrap();
        let modules = place.join("node/node_modules/.bin");
        let results = Results::new();
        let mut command = Command::new(modules.join("node"));
        if self.older_wire {
            command.arg("--import").arg(place.join("node/older-wire.mjs")).env("OLDER_WIRE", self.revision);
        }
        command.arg(modules.join("conformance")).args(["server", "--url", url]).args(self.arguments);
        command.arg("--output-dir").arg(&results.0).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("an end in time").unwrap();
        let text = [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).join("\n");
        let scenarios = results.read(url);
        assert!(!scenarios.is_empty(), "nothing was run:\n{text}");
        Verdict { passed: output.status.success(), text, scenarios }
    }
}

/// The folder of one run, for as long as it is needed.
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

/// The checks of one scenario. Where several have one name, all but the first have a number, too.
pub fn checks(recorded: &[Value], url: &str) -> BTreeMap<String, Check> {
    let mut checks = BTreeMap::new();
    for check in recorded {
        let name = check["id"].as_str().unwrap();
        let numbered = (2..).map(|number| format!("{name}#{number}"));
        let free = std::iter::once(name.to_owned()).chain(numbered).find(|name| !checks.contains_key(name));
        let mut seen = Map::new();
        for member in ["errorMessage", "details"] {
            if let Some(value) = check.get(member) {
                seen.insert(member.into(), normalized(value, url));
            }
        }
        let status = check["status"].as_str().unwrap().to_owned();
        checks.insert(free.unwrap(), Check { status, seen: seen.into() });
    }
    checks
}

// === normalizing ===

/// A value without what changes from run to run.
pub fn normalized(value: &Value, url: &str) -> Value {
    match value {
        Value::Object(members) => {
            // An event as a stream has it.
            let is_event = members.contains_key("id") && members.contains_key("data") && members.len() <= 3;
            members.iter().filter_map(|(key, value)| Some((key.clone(), member(key, value, is_event, url)?))).collect()
        }
        Value::Array(items) => items.iter().map(|item| normalized(item, url)).collect(),
        Value::String(text) => plain(text, url).into(),
        other => other.clone(),
    }
}

/// One member of an object; nothing if it says nothing.
fn member(key: &str, value: &Value, is_event: bool, url: &str) -> Option<Value> {
    let varies = VOLATILE.contains(&key) || (is_event && key == "id");
    match value {
        Value::String(_) | Value::Number(_) if varies => Some(format!("<{key}>").into()),
        Value::Object(headers) if key == "headers" => {
            let counts = |(name, _): &(&String, &Value)| !OF_THE_HOP.contains(&name.to_ascii_lowercase().as_str());
            let headers: Map<String, Value> =
                headers.iter().filter(counts).map(|(n, v)| (n.clone(), v.clone())).collect();
            Some(normalized(&headers.into(), url))
        }
        // The message of an event is recorded as it was written.
        Value::String(text) if key == "data" => match serde_json::from_str(text) {
            Ok(message @ Value::Object(_)) => Some(normalized(&message, url)),
            _ => Some(plain(text, url).into()),
        },
        // What is not JSON as a whole is recorded as text: a stream, for one. With one message in it,
        // it says what that message would say by itself.
        Value::String(text) if key == "responseBody" => match only_message(text) {
            Some(message) => Some(normalized(&message, url)),
            None => Some(plain(text, url).into()),
        },
        value => Some(normalized(value, url)),
    }
}

/// The message in a stream of events, if it has one and no other. An event without data is none: it is
/// there to give an id.
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

/// Text without addresses, and without what is recognized by its form.
fn plain(text: &str, url: &str) -> String {
    let authority = url.strip_prefix("http://").and_then(|rest| rest.split('/').next()).unwrap();
    let (_, port) = authority.rsplit_once(':').unwrap();
    let text = text.replace(url, "<url>").replace(&format!(":{port}"), ":<port>");
    FORMS.iter().fold(text, |text, (form, name)| without(&text, form, name))
}

/// Text with a name for everything of some form.
fn without(text: &str, form: &str, name: &str) -> String {
    let fits = |candidate: &str| {
        let pair = |(letter, place): (u8, u8)| match place {
            b'd' => letter.is_ascii_digit(),
            b'h' => letter.is_ascii_hexdigit(),
            place => letter == place,
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

/// What is said differently of `through` than of `alone`. The details of the `overviews` show what a
/// whole group offers, which may be more.
pub fn differences(alone: &Verdict, through: &Verdict, overviews: &[&str]) -> Vec<Difference> {
    let mut found = Vec::new();
    for (scenario, what) in unmatched(&alone.scenarios, &through.scenarios) {
        found.push(Difference { scenario, check: WHOLE.into(), what });
    }
    for (scenario, checks) in &alone.scenarios {
        let Some(others) = through.scenarios.get(scenario) else { continue };
        for (check, what) in unmatched(checks, others) {
            found.push(Difference { scenario: scenario.clone(), check, what });
        }
        for (name, check) in checks {
            let Some(other) = others.get(name) else { continue };
            let overview = overviews.contains(&name.as_str());
            if let Some(what) = difference(scenario, name, check, other, overview) {
                found.push(Difference { scenario: scenario.clone(), check: name.clone(), what });
            }
        }
    }
    found
}

/// What only one of two maps has.
fn unmatched<V>(ones: &BTreeMap<String, V>, others: &BTreeMap<String, V>) -> Vec<(String, What)> {
    let missing = ones.keys().filter(|name| !others.contains_key(*name)).map(|name| (name.clone(), What::Missing));
    let added = others.keys().filter(|name| !ones.contains_key(*name)).map(|name| (name.clone(), What::Added));
    missing.chain(added).collect()
}

fn difference(scenario: &str, name: &str, one: &Check, other: &Check, overview: bool) -> Option<What> {
    if one.status != other.status {
        let why = other.seen["errorMessage"].as_str().or(one.seen["errorMessage"].as_str()).unwrap_or_default();
        return Some(What::Status(format!("{} became {}: {why}", one.status, other.status)));
    }
    let mut comparison = Comparison { scenario, check: name, overview, faults: Vec::new() };
    comparison.values("", &one.seen, &other.seen);
    (!comparison.faults.is_empty()).then_some(What::Details(comparison.faults))
}

/// What is not the same inside a check.
struct Comparison<'a> {
    scenario: &'a str,
    check: &'a str,
    /// More is as good.
    overview: bool,
    faults: Vec<Fault>,
}

impl Comparison<'_> {
    fn values(&mut self, path: &str, one: &Value, other: &Value) {
        match (one, other) {
            (Value::Object(ones), Value::Object(others)) => self.objects(path, ones, others),
            (Value::Array(ones), Value::Array(others)) if self.overview => {
                // All of them are there, in their order; others may be in between.
                let mut others = others.iter();
                for one in ones {
                    if !others.any(|other| self.is_within(one, other)) {
                        self.fault(path, format!(" misses {}, or has it elsewhere", short(one)));
                    }
                }
            }
            (Value::Array(ones), Value::Array(others)) if ones.len() == others.len() => {
                for (index, (one, other)) in ones.iter().zip(others).enumerate() {
                    self.values(&format!("{path}[{index}]"), one, other);
                }
            }
            (Value::Number(one), Value::Number(other))
                if self.overview && path.ends_with("Count") && one.as_f64() <= other.as_f64() => {}
            (one, other) if one != other => self.fault(path, format!(": {} became {}", short(one), short(other))),
            _ => {}
        }
    }

    fn objects(&mut self, path: &str, ones: &Map<String, Value>, others: &Map<String, Value>) {
        for (key, value) in ones {
            let path = format!("{path}.{key}");
            match others.get(key) {
                Some(other) if key == "error" && is_own(other) => self.own_errors(&path, value, other),
                Some(other) if key == "ttlMs" && self.is_hint_of_list(ones) && is_left_of(other, value) => {}
                Some(other) if key == "messagesValidated" && self.is_polling() && *value != 0 && *other != 0 => {}
                Some(other) if key == "body" && is_unread(ones) && is_answer(other) => {}
                Some(other) => self.values(&path, value, other),
                None => self.fault(&path, format!(" is missing; it was {}", short(value))),
            }
        }
        let overview = self.overview;
        for (key, value) in others.iter().filter(|(key, _)| !overview && !ones.contains_key(*key)) {
            self.fault(&format!("{path}.{key}"), format!(" was not there: {}", short(value)));
        }
    }

    /// Errors, of which the other is the gateway's own. The code counts, and what is defined of the data.
    fn own_errors(&mut self, path: &str, one: &Value, other: &Value) {
        let [one, other] = [one, other].map(|error| {
            let mut error = error.clone();
            if let Some(members) = error.as_object_mut() {
                members.remove("message");
                let data = members.remove("data");
                let data = data.as_ref().and_then(Value::as_object).into_iter().flatten();
                let defined = data.filter(|(key, _)| DEFINED.contains(&key.as_str()));
                let defined: Map<_, _> = defined.map(|(key, value)| (key.clone(), value.clone())).collect();
                members.insert("data".into(), defined.into());
            }
            error
        });
        self.values(path, &one, &other);
    }

    /// Whether an object has the hint on how long a list may be kept: the list itself, or what a check
    /// says of it.
    fn is_hint_of_list(&self, object: &Map<String, Value>) -> bool {
        let is_list = || LISTS.iter().any(|list| object.get(*list).is_some_and(Value::is_array));
        match object.get("endpoint").and_then(Value::as_str) {
            Some(endpoint) => endpoint.ends_with("/list"),
            None => is_list() || (object.contains_key("hasTtlMs") && self.check.ends_with("-list-caching-hints")),
        }
    }

    /// Whether the suite asks until something is done. How often it does is a matter of time.
    fn is_polling(&self) -> bool {
        self.scenario.starts_with("tasks-")
    }

    fn is_within(&self, one: &Value, other: &Value) -> bool {
        let mut comparison = Comparison { overview: true, faults: Vec::new(), ..*self };
        comparison.values("", one, other);
        comparison.faults.is_empty()
    }

    fn fault(&mut self, path: &str, what: String) {
        self.faults.push(Fault { place: path.trim_start_matches('.').to_owned(), what });
    }
}

/// Whether an error is in the words of the gateway.
fn is_own(error: &Value) -> bool {
    let message = error["message"].as_str().unwrap_or_default();
    OWN_WORDS.iter().any(|(code, words)| error["code"] == *code && message.starts_with(words))
}

/// Whether a time is what can be left of another: none of nothing, and some of anything else. A list
/// that has been kept for a while may be kept that much shorter, and never longer.
fn is_left_of(left: &Value, whole: &Value) -> bool {
    match (left.as_u64(), whole.as_u64()) {
        (Some(0), Some(0)) => true,
        (Some(left), Some(whole)) => 0 < left && left <= whole,
        _ => false,
    }
}

/// Whether what was answered was not looked at. Some checks read JSON only, and have null for a stream
/// or plain text; but with this status there is nothing to read.
fn is_unread(answered: &Map<String, Value>) -> bool {
    answered["body"].is_null() && answered.get("statusCode").is_some_and(|status| *status != 202)
}

/// Whether a body is one answer.
fn is_answer(body: &Value) -> bool {
    body["jsonrpc"] == "2.0" && (body.get("result").is_some() || body.get("error").is_some())
}

/// A value, cut off where it gets long.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

// === impl Difference ===

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {}: ", self.scenario, self.check)?;
        match &self.what {
            What::Missing => write!(f, "is missing"),
            What::Added => write!(f, "was not there"),
            What::Status(change) => write!(f, "{change}"),
            What::Details(faults) => {
                let shown = faults.iter().take(SHOWN).map(|fault| format!("{}{}", fault.place, fault.what));
                write!(f, "{}", shown.collect::<Vec<_>>().join("; "))?;
                match faults.len().saturating_sub(SHOWN) {
                    0 => Ok(()),
                    more => write!(f, "; and {more} more"),
                }
            }
        }
    }
}
