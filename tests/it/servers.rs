//! Servers on other SDKs, called by `rialto::client` over every transport and revision that they speak.
//!
//! The scripts under `tests/peers` offer the same tools, resources and prompts on different SDKs, so one scenario fits
//! all; the reference server has its own. The SDKs are installed on first use.

mod everything;
mod rmcp_server;
mod strict;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rialto::call::Reply;
use rialto::client::{Client, ClientOptions, Host, ListenRequest, ServerRequestFuture};
use rialto::dialect::Revision;
use rialto::error::Error;
use rialto::failure::FailureKind;
use rialto::mcp_client::{ConnectionSettings, Target};
use rialto::protocol::{ErrorObject, Level, Method, Notification, NotificationMethod, Raw, code};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::{HttpRequest, TEST_TIMEOUT, request};
use crate::peers::{installed, source};

/// A server on another SDK, and what it supports.
#[derive(Clone, Copy)]
pub struct SdkServer {
    interpreter: &'static str,
    script: &'static str,
    /// It also speaks the per-request era.
    both_eras: bool,
    /// It sends resource updates.
    subscriptions: bool,
    /// HTTP status for a session that has ended.
    ended_session_status: u16,
}

const NODE: &str = "node/node_modules/.bin/node";
pub const PYTHON_1: SdkServer = SdkServer {
    interpreter: "py1/bin/python",
    script: "python/server1.py",
    both_eras: false,
    subscriptions: true,
    ended_session_status: 404,
};
pub const PYTHON_2: SdkServer =
    SdkServer { interpreter: "py2/bin/python", script: "python/server2.py", both_eras: true, ..PYTHON_1 };
/// The SDK's own server for the conformance suite.
pub const PYTHON_CONFORMANCE: SdkServer = SdkServer { script: "python/everything.py", ..PYTHON_2 };
/// A server whose two eras differ.
pub const TYPESCRIPT_LEGS: SdkServer = SdkServer { interpreter: NODE, script: "node/legs.mjs", ..PYTHON_2 };
const FASTMCP: SdkServer = SdkServer {
    interpreter: "fastmcp/bin/python",
    script: "python/fastmcp_server.py",
    subscriptions: false,
    ..PYTHON_2
};
pub const TYPESCRIPT_2: SdkServer = SdkServer { interpreter: NODE, script: "node/server2.mjs", ..PYTHON_2 };
pub const TYPESCRIPT_1: SdkServer = SdkServer { interpreter: NODE, script: "node/server1.mjs", ..PYTHON_1 };
pub const EVERYTHING: SdkServer = SdkServer {
    interpreter: NODE,
    script: "node/everything.mjs",
    both_eras: false,
    subscriptions: true,
    ended_session_status: 400,
};

/// Probing (`None`), and every revision pinned.
const REVISIONS: [Option<Revision>; 6] = [
    None,
    Some(Revision::V2024_11_05),
    Some(Revision::V2025_03_26),
    Some(Revision::V2025_06_18),
    Some(Revision::V2025_11_25),
    Some(Revision::V2026_07_28),
];
/// Probing, and the first and last revision of each era: over stdio each costs a process start, so the other transports
/// cover the rest.
const STDIO_REVISIONS: [Option<Revision>; 4] =
    [None, Some(Revision::V2024_11_05), Some(Revision::V2025_11_25), Some(Revision::V2026_07_28)];
const CRASHING: [(SdkServer, Revision); 5] = [
    (PYTHON_1, Revision::NEWEST_HANDSHAKE),
    (PYTHON_2, Revision::NEWEST_HANDSHAKE),
    (PYTHON_2, Revision::NEWEST),
    (TYPESCRIPT_2, Revision::NEWEST_HANDSHAKE),
    (TYPESCRIPT_2, Revision::NEWEST),
];
pub const CLOCK: &str = "test://clock";
const ROOT: &str = "file:///somewhere";

impl SdkServer {
    pub async fn command(self, arguments: &[&str]) -> (String, Vec<String>) {
        let place = tokio::task::spawn_blocking(installed).await.unwrap();
        let script =
            if self.script.starts_with("node/") { place.join(self.script) } else { source().join(self.script) };
        let script = script.to_str().unwrap().to_owned();
        let arguments = std::iter::once(script).chain(arguments.iter().map(|&argument| argument.to_owned()));
        (place.join(self.interpreter).to_str().unwrap().to_owned(), arguments.collect())
    }

    /// The revision negotiated when `pinned` is requested.
    fn negotiated(self, pinned: Option<Revision>, transport: &str) -> Revision {
        let newest = if self.both_eras && transport != "sse" { Revision::NEWEST } else { Revision::NEWEST_HANDSHAKE };
        pinned.unwrap_or(newest)
    }

    fn speaks(self, pinned: Option<Revision>, transport: &str) -> bool {
        pinned != Some(Revision::NEWEST) || self.negotiated(None, transport) == Revision::NEWEST
    }
}

/// A server process that listens on a port.
pub struct Served {
    pub address: SocketAddr,
    _child: Child,
}

impl Served {
    pub async fn start(server: SdkServer, arguments: &[&str]) -> Self {
        let (program, arguments) = server.command(arguments).await;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(port) = line.strip_prefix("listening on ") {
                    return port.parse::<u16>().unwrap();
                }
            }
            panic!("{} ended before it listened", server.script);
        };
        let port = tokio::time::timeout(TEST_TIMEOUT, port).await.expect("the server listens in time");
        // Drain stdout so that the pipe never fills.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { address: ([127, 0, 0, 1], port).into(), _child: child }
    }

    pub fn target(&self, path: &str) -> Target {
        Target::url(&format!("http://{}{path}", self.address)).unwrap()
    }
}

/// A stdio server whose process writes its pid to a file before it execs the server.
pub struct Spawned {
    pub target: Target,
    pid_file: PathBuf,
}

impl Spawned {
    pub async fn new(server: SdkServer, arguments: &[&str]) -> Self {
        static LAST: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let pid_file =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("child-{}-{number}", std::process::id()));
        let (program, rest) = server.command(arguments).await;
        let script = r#"echo $$ >"$0"; exec "$@""#;
        let shell = ["-c", script, pid_file.to_str().unwrap(), &program].map(str::to_owned);
        Self { target: Target::command("sh", shell.into_iter().chain(rest)), pid_file }
    }

    /// Whether the process is running.
    pub fn is_running(&self) -> bool {
        let id = std::fs::read_to_string(&self.pid_file).expect("the child was started");
        let mut command = std::process::Command::new("kill");
        command.args(["-0", id.trim()]).stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.pid_file);
    }
}

/// Accepts every server request and records requests and notifications.
#[derive(Default)]
struct RecordingHost {
    notifications: Mutex<Vec<Notification>>,
    server_requests: Mutex<Vec<String>>,
}

impl Host for RecordingHost {
    fn capabilities(&self) -> Raw {
        Raw::of(&json!({ "sampling": {}, "elicitation": { "form": {} }, "roots": { "listChanged": true } }))
    }

    fn on_notification(&self, notification: &Notification) {
        self.notifications.lock().unwrap().push(notification.clone());
    }

    fn on_server_request<'a>(&'a self, method: &'a Method, params: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        self.server_requests.lock().unwrap().push(method.as_str().to_owned());
        let params = params.map(value).unwrap_or_default();
        let answer = match method.as_str() {
            "elicitation/create" => {
                let wanted = &params["requestedSchema"]["properties"];
                assert_eq!(wanted["name"]["type"], "string", "{params}");
                let sure = if wanted["sure"].is_object() { "sure" } else { "check" };
                Ok(json!({ "action": "accept", "content": { "name": "Ada", sure: true } }))
            }
            "sampling/createMessage" => {
                let content = &params["messages"][0]["content"];
                let prompt = content["text"].as_str().or(content[0]["text"].as_str()).unwrap();
                let content = json!({ "type": "text", "text": format!("thoughts on {prompt}") });
                Ok(json!({ "role": "assistant", "model": "none", "stopReason": "endTurn", "content": content }))
            }
            "roots/list" => Ok(json!({ "roots": [{ "uri": ROOT, "name": "here" }] })),
            other => Err(ErrorObject::new(code::METHOD_NOT_FOUND, other)),
        };
        Box::pin(async move { answer.map(|answer| Raw::of(&answer).into()) })
    }
}

impl RecordingHost {
    /// Takes the progress values received so far.
    fn take_progress(&self) -> Vec<u64> {
        let mut notices = self.notifications.lock().unwrap();
        let of = |notice: &Notification| {
            let params = value(notice.params.as_ref().unwrap());
            params["progress"].as_f64().unwrap().round() as u64
        };
        let seen = notices.iter().filter(|notice| notice.method == NotificationMethod::Progress).map(of).collect();
        notices.retain(|notice| notice.method != NotificationMethod::Progress);
        seen
    }

    fn has_logged(&self, text: &str) -> bool {
        self.notifications.lock().unwrap().iter().any(|notice| {
            let params = notice.params.as_ref().map(value).unwrap_or_default();
            notice.method == NotificationMethod::Message
                && params["level"] == "info"
                && params["data"].to_string().contains(text)
        })
    }
}

fn value(raw: &Raw) -> Value {
    raw.read().unwrap()
}

/// One member of each list item, sorted.
fn names(list: &[Raw], member: &str) -> Vec<String> {
    let mut names: Vec<String> =
        list.iter().map(|item| value(item)[member].as_str().unwrap_or_default().to_owned()).collect();
    names.sort();
    names
}

fn text(result: &Raw) -> String {
    value(result)["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}")).to_owned()
}

fn json_text(result: &Raw) -> Value {
    serde_json::from_str(&text(result)).unwrap_or_else(|error| panic!("{error}: {result}"))
}

async fn in_time<T>(what: &str, waited: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, waited).await.unwrap_or_else(|_| panic!("never: {what}"))
}

async fn connect(target: &Target, revision: Option<Revision>) -> rialto::error::Result<(Client, Arc<RecordingHost>)> {
    let host = Arc::new(RecordingHost::default());
    // SDK servers start slowly while all tests run at once.
    let settings = ConnectionSettings {
        revision,
        idle_timeout: TEST_TIMEOUT,
        discovery_timeout: TEST_TIMEOUT,
        ..ConnectionSettings::default()
    };
    let options = ClientOptions {
        settings,
        host: Arc::clone(&host) as Arc<dyn Host>,
        level: Some(Level::Info),
        ..ClientOptions::default()
    };
    Ok((Client::connect(target, options).await?, host))
}

/// Calls a tool and requires success.
async fn call(client: &Client, name: &str, arguments: Value) -> Raw {
    let result = in_time(name, client.call_tool(name, Raw::of(&arguments))).await;
    let result = result.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_ne!(value(&result)["isError"], true, "{name}: {result}");
    result
}

/// Starts a call, waits for progress and cancels it.
async fn start_and_cancel(client: &Client, name: &str, arguments: Value) {
    let params = Raw::of(&json!({ "name": name, "arguments": arguments }));
    let mut replies = client.begin(Method::ToolsCall, Some(params));
    loop {
        match in_time("progress of a call", replies.next()).await {
            Some(Reply::Notification(notice)) if notice.method == NotificationMethod::Progress => return,
            Some(Reply::Notification(_)) => {}
            other => panic!("no progress but {other:?}"),
        }
    }
}

/// Subscribes to a resource and waits for an update.
async fn wait_for_update(client: &Client, uri: &str) {
    let filter = ListenRequest { resources: vec![uri.into()], ..ListenRequest::default() };
    let mut listening = in_time("listening", client.listen(filter)).await.unwrap();
    let update = in_time("an update", listening.next()).await.expect("the stream stays open");
    assert_eq!(update.method, NotificationMethod::ResourceUpdated);
    assert_eq!(value(update.params.as_ref().unwrap())["uri"], uri);
}

/// Uses everything that the servers under `tests/peers` offer.
async fn scenario(server: SdkServer, client: &Client, host: &RecordingHost) {
    let revision = client.revision();
    check_lists(client).await;
    assert_eq!(text(&call(client, "echo", json!({ "message": "héllo" })).await), "héllo");
    crate::harness::until("the log message is seen", || host.has_logged("echo: h")).await;
    let counted = call(client, "count", json!({ "to": 5, "delayMs": 10 })).await;
    assert_eq!(text(&counted), "counted to 5");
    assert_eq!(host.take_progress(), [1, 2, 3, 4, 5]);
    check_server_requests(revision, client, host).await;
    let failed = in_time("fail", client.call_tool("fail", Raw::empty())).await.unwrap();
    assert_eq!(value(&failed)["isError"], true, "{failed}");
    assert!(text(&failed).contains("on purpose"), "{failed}");
    if revision.features().structured_content {
        assert_eq!(value(&call(client, "structured", json!({})).await)["structuredContent"], json!({ "running": 0 }));
    }
    for (uri, expected) in [("test://static", "always the same"), ("test://item/7", "item 7")] {
        let read = in_time(uri, client.read(uri)).await.unwrap();
        assert_eq!(value(&read)["contents"][0]["text"], expected, "{read}");
    }
    let missing = in_time("a resource that is missing", client.read("other://nothing")).await.unwrap_err();
    assert!(matches!(missing, Error::ErrorResponse(_)), "{missing}");
    let greeting = in_time("greet", client.prompt("greet", Raw::of(&json!({ "name": "Ada" })))).await.unwrap();
    assert_eq!(value(&greeting)["messages"][0]["content"]["text"], "Hello, Ada", "{greeting}");
    let argument =
        json!({ "ref": { "type": "ref/prompt", "name": "greet" }, "argument": { "name": "name", "value": "A" } });
    let completed = in_time("completion", client.request(Method::Complete, Some(Raw::of(&argument)))).await.unwrap();
    assert_eq!(value(&completed)["completion"]["values"], json!(["Ada", "Alan"]), "{completed}");
    if server.subscriptions {
        wait_for_update(client, CLOCK).await;
    }
    start_and_cancel(client, "count", json!({ "to": 100_000, "delayMs": 10 })).await;
    wait_idle(client).await;
}

/// Waits until no `count` call is running at the server.
async fn wait_idle(client: &Client) {
    let idle = async {
        // Revisions without structured content carry it as text.
        while json_text(&call(client, "structured", json!({})).await) != json!({ "running": 0 }) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time("the server stopped counting", idle).await;
}

async fn check_lists(client: &Client) {
    let tools = in_time("tools", client.tools()).await.unwrap();
    let all = ["confirm", "count", "crash", "echo", "fail", "structured", "think", "where"];
    assert_eq!(names(&tools, "name"), all);
    let resources = in_time("resources", client.resources()).await.unwrap();
    assert_eq!(names(&resources, "uri"), [CLOCK, "test://static"]);
    let templates = in_time("templates", client.templates()).await.unwrap();
    assert_eq!(names(&templates, "uriTemplate"), ["test://item/{id}"]);
    let prompts = in_time("prompts", client.prompts()).await.unwrap();
    assert_eq!(names(&prompts, "name"), ["greet"]);
}

async fn check_server_requests(revision: Revision, client: &Client, host: &RecordingHost) {
    // Elicitation came with 2025-06-18.
    if revision >= Revision::V2025_06_18 {
        let confirmed = json_text(&call(client, "confirm", json!({})).await);
        assert_eq!(confirmed, json!({ "action": "accept", "content": { "name": "Ada", "sure": true } }));
        assert_eq!(host.server_requests.lock().unwrap().pop().unwrap(), "elicitation/create");
    }
    let thought = text(&call(client, "think", json!({ "prompt": "bridges" })).await);
    assert_eq!(thought, "thoughts on bridges");
    let roots = json_text(&call(client, "where", json!({})).await);
    assert_eq!(roots, json!([ROOT]));
    assert_eq!(*host.server_requests.lock().unwrap(), ["sampling/createMessage", "roots/list"]);
}

/// Checks that an ended session is unknown to the server.
async fn assert_session_ended(server: SdkServer, address: SocketAddr, revision: Revision, session: &str) {
    let ping = HttpRequest::to(address, "POST", "/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", revision.as_str())
        .header("mcp-session-id", session)
        .body(request(1, "ping", json!({})).to_string());
    assert_eq!(ping.status().await, server.ended_session_status);
}

async fn over_http(server: SdkServer, arguments: &[&str], revisions: &[Option<Revision>]) {
    let served = Served::start(server, arguments).await;
    let transport = if arguments[0] == "sse" { "sse" } else { "streamable-http" };
    let target = served.target(if transport == "sse" { "/sse" } else { "/mcp" });
    for &pinned in revisions {
        if !server.speaks(pinned, transport) {
            assert_refused(&target, pinned).await;
            continue;
        }
        let (client, host) = connect(&target, pinned).await.unwrap_or_else(|error| panic!("{pinned:?}: {error}"));
        assert_eq!(
            (client.probe_report().transport, client.revision()),
            (transport, server.negotiated(pinned, transport))
        );
        if server.script == EVERYTHING.script {
            everything::scenario(&client, &host).await;
        } else {
            scenario(server, &client, &host).await;
        }
        let (session, revision) = (client.session_id(), client.revision());
        assert_eq!(session.is_some(), transport != "sse" && revision.has_sessions(), "{session:?}");
        in_time("closed", client.close()).await;
        if let Some(session) = session {
            assert_session_ended(server, served.address, revision, &session).await;
        }
    }
}

async fn over_stdio(server: SdkServer, arguments: &[&str], revisions: &[Option<Revision>]) {
    for &pinned in revisions {
        let spawned = Spawned::new(server, arguments).await;
        if !server.speaks(pinned, "stdio") {
            assert_refused(&spawned.target, pinned).await;
            crate::harness::until("the child has exited", || !spawned.is_running()).await;
            continue;
        }
        let connected = connect(&spawned.target, pinned).await;
        let (client, host) = connected.unwrap_or_else(|error| panic!("{pinned:?}: {error}"));
        assert_eq!((client.probe_report().transport, client.revision()), ("stdio", server.negotiated(pinned, "stdio")));
        assert!(spawned.is_running());
        if server.script == EVERYTHING.script {
            everything::scenario(&client, &host).await;
        } else {
            scenario(server, &client, &host).await;
        }
        in_time("closed", client.close()).await;
        assert!(!spawned.is_running(), "{pinned:?}: the child outlives its connection");
    }
}

/// Checks that a pinned revision is refused.
async fn assert_refused(target: &Target, pinned: Option<Revision>) {
    let error = connect(target, pinned).await.err().unwrap_or_else(|| panic!("{pinned:?} is spoken"));
    assert_eq!(error.kind(), Some(FailureKind::NoCommonRevision), "{error}");
}

/// A server that exits during a call fails this call and later ones.
async fn check_crash(target: &Target, revision: Revision) {
    let (client, _) = connect(target, Some(revision)).await.unwrap_or_else(|error| panic!("{revision}: {error}"));
    for (name, arguments) in [("crash", json!({})), ("echo", json!({ "message": "anybody there?" }))] {
        let ended = in_time("the call ends", client.call_tool(name, Raw::of(&arguments))).await;
        assert!(ended.is_err(), "{name}: {ended:?}");
    }
    in_time("closed", client.close()).await;
}

#[tokio::test]
async fn a_server_crash_ends_calls_over_stdio() {
    for (server, revision) in CRASHING {
        let spawned = Spawned::new(server, &["stdio"]).await;
        check_crash(&spawned.target, revision).await;
        assert!(!spawned.is_running());
    }
}

#[tokio::test]
async fn a_server_crash_ends_calls_over_http() {
    for (server, revision) in CRASHING {
        let served = Served::start(server, &["http", "0"]).await;
        check_crash(&served.target("/mcp"), revision).await;
    }
    let served = Served::start(PYTHON_1, &["sse", "0"]).await;
    check_crash(&served.target("/sse"), Revision::NEWEST_HANDSHAKE).await;
}

macro_rules! servers {
    ($($name:ident: $server:ident, $($transport:ident),+;)+) => {
        $(mod $name {
            use super::*;

            $(servers!(@ $transport $server);)+
        })+
    };
    (@ stdio $server:ident) => {
        #[tokio::test]
        async fn stdio() {
            over_stdio($server, &["stdio"], &STDIO_REVISIONS).await;
        }
    };
    (@ http $server:ident) => {
        #[tokio::test]
        async fn streamable_http() {
            over_http($server, &["http", "0"], &REVISIONS).await;
        }
    };
    (@ sse $server:ident) => {
        #[tokio::test]
        async fn http_and_sse() {
            // HTTP+SSE has no per-request era, so 2026-07-28 is not pinned.
            over_http($server, &["sse", "0"], &REVISIONS[..5]).await;
        }
    };
}

servers! {
    python_1: PYTHON_1, stdio, http, sse;
    python_2: PYTHON_2, stdio, http, sse;
    fastmcp: FASTMCP, stdio, http, sse;
    typescript_1: TYPESCRIPT_1, stdio, http;
    typescript_2: TYPESCRIPT_2, stdio, http;
}

/// Servers restricted to one era on an SDK of both.
mod one_era {
    use super::*;

    const HANDSHAKE: SdkServer = SdkServer { both_eras: false, ..TYPESCRIPT_2 };
    const REVISIONS: [Option<Revision>; 2] = [None, Some(Revision::NEWEST)];

    #[tokio::test]
    async fn per_request_over_stdio() {
        over_stdio(TYPESCRIPT_2, &["stdio", "modern"], &REVISIONS).await;
        let spawned = Spawned::new(TYPESCRIPT_2, &["stdio", "modern"]).await;
        assert!(connect(&spawned.target, Some(Revision::NEWEST_HANDSHAKE)).await.is_err());
    }

    #[tokio::test]
    async fn per_request_over_http() {
        over_http(TYPESCRIPT_2, &["http", "0", "modern"], &REVISIONS).await;
        let served = Served::start(TYPESCRIPT_2, &["http", "0", "modern"]).await;
        assert!(connect(&served.target("/mcp"), Some(Revision::NEWEST_HANDSHAKE)).await.is_err());
    }

    #[tokio::test]
    async fn handshake_over_stdio() {
        over_stdio(HANDSHAKE, &["stdio", "handshake"], &REVISIONS).await;
    }

    #[tokio::test]
    async fn handshake_over_http() {
        over_http(HANDSHAKE, &["http", "0", "handshake"], &REVISIONS).await;
    }
}
