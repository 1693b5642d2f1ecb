//! The gateway as a process with its own config file: SDK clients, reload, admin listener, metrics, request ids.

mod access_log;
mod admin;
mod clock;
mod filters;
mod first_start;
mod metrics;
mod prometheus;
mod reload;
mod request_tracing;
mod sdk_clients;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::task::JoinHandle;

use crate::config::TempFolder;
use crate::harness::{Events, HttpRequest, HttpResponse, TEST_TIMEOUT, initialize, modern, request, until};
use crate::process::{exit_code, rialto, signal};

/// A 2025-06-18 stdio server as a shell script. It appends each tool call to the file `$NOTE`, and waits at start
/// until the file `$GO` exists, if these variables are set.
const SHELL_SERVER: &str = r#"
if [ -n "$GO" ]; then until [ -e "$GO" ]; do sleep 0.02; done; fi
say() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
tool() { printf '{"name":"%s","inputSchema":{"type":"object"}}' "$1"; }
while read -r line; do
    id=${line#*\"id\":}; id=${id%%[,\}]*}
    case "$line" in
    *'"initialize"'*) say '"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"shell","version":"1"}}';;
    *'"tools/list"'*) say "\"result\":{\"tools\":[$(tool answer),$(tool wrong),$(tool crash),$(tool hang)]}";;
    *'"ping"'*) say '"result":{}';;
    *'"tools/call"'*)
        if [ -n "$NOTE" ]; then printf '%s\n' "$line" >>"$NOTE"; fi
        case "$line" in
        *'"answer"'*) say "\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"$SAYS\"}]}";;
        *'"wrong"'*) say '"error":{"code":-32000,"message":"on purpose"}';;
        *'"crash"'*) exit 3;;
        esac;;
    *'"id":'*) say '"error":{"code":-32601,"message":"Method not found"}';;
    esac
done
"#;

/// A gateway process.
struct GatewayProcess {
    folder: TempFolder,
    child: Child,
    address: SocketAddr,
    /// The admin listener, if it is separate.
    admin: Option<SocketAddr>,
    log: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

/// A Streamable HTTP session with a gateway process.
struct Session {
    address: SocketAddr,
    path: &'static str,
    id: String,
}

// === impl Running ===

impl GatewayProcess {
    /// Serves the given config.
    async fn start(name: &str, file: &str) -> Self {
        Self::with(name, file, &[], &[]).await
    }

    async fn with(name: &str, file: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = TempFolder::new(&format!("gateway-{name}"));
        folder.write("rialto.toml", file);
        folder.write("server.sh", SHELL_SERVER);
        Self::start_in(folder, &[&["serve", "--listen", "127.0.0.1:0"], arguments].concat(), variables).await
    }

    /// Starts the binary in a folder and waits until it prints its address.
    async fn start_in(folder: TempFolder, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = rialto();
        command.current_dir(&folder.0).env_remove("RIALTO_CONFIG").envs(variables.iter().copied());
        let mut child = command.args(arguments).stdin(Stdio::null()).spawn().unwrap();
        let log: Arc<Mutex<String>> = Arc::default();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log_writer = Arc::clone(&log);
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let mut log = log_writer.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let parse_address = |line: String| {
            let (_, rest) = line.split_once("http://").unwrap();
            rest.split(['/', ' ']).next().unwrap().parse::<SocketAddr>().unwrap()
        };
        let first = tokio::time::timeout(TEST_TIMEOUT, output.next_line()).await.expect("an address in time").unwrap();
        let address = parse_address(first.unwrap_or_else(|| panic!("the process exited: {}", log.lock().unwrap())));
        // The starter file has the section as a comment.
        let has_section = |text: String| text.lines().any(|line| line.trim_start().starts_with("[admin]"));
        let has_admin = std::fs::read_to_string(folder.0.join("rialto.toml")).is_ok_and(has_section);
        let admin = match has_admin {
            true => Some(parse_address(output.next_line().await.unwrap().unwrap())),
            false => None,
        };
        Self { folder, child, address, admin, log, reading }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log contains a text.
    async fn wait_for_log(&self, word: &str) {
        until(word, || self.log.lock().unwrap().contains(word)).await;
    }

    /// Replaces the config file atomically.
    fn replace_config(&self, text: &str) {
        self.folder.write("rialto.toml.new", text);
        std::fs::rename(self.path("rialto.toml.new"), self.path("rialto.toml")).unwrap();
    }

    fn send_sighup(&self) {
        signal(&self.child, "-HUP");
    }

    fn get(&self, path: &str) -> HttpRequest {
        HttpRequest::to(self.address, "GET", path)
    }

    /// A GET request to the admin listener.
    fn admin_get(&self, path: &str) -> HttpRequest {
        HttpRequest::to(self.admin.unwrap_or(self.address), "GET", path)
    }

    async fn status(&self) -> Value {
        self.admin_get("/admin/status").go().await.json().await
    }

    async fn ready(&self) -> (u16, String) {
        let received = self.admin_get("/readyz").go().await;
        (received.status, received.text().await)
    }

    /// Polls the status until a condition holds.
    async fn until_status(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        loop {
            let status = self.status().await;
            if holds(&status) {
                return status;
            }
            assert!(tokio::time::Instant::now() < deadline, "never: {what}: {status:#}\n{}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Waits until all upstreams are connected and their tools are in the default group.
    async fn until_ready(&self) -> Value {
        self.until_status("all upstreams are ready", |status| {
            let upstreams = status["upstreams"].as_array().unwrap();
            let tools: u64 = upstreams.iter().filter_map(|upstream| upstream["lists"]["tools"].as_u64()).sum();
            upstreams.iter().all(|upstream| upstream["phase"] == "ready")
                && status["ready"] == true
                && status["groups"][0]["lists"]["tools"] == tools
        })
        .await
    }

    async fn open(&self, path: &'static str) -> Session {
        let mut session = Session { address: self.address, path, id: String::new() };
        let received = session.post(&initialize("2025-11-25")).go().await;
        assert_eq!(received.status, 200);
        session.id = received.header("mcp-session-id").expect("a session id").into();
        let status = session.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).status().await;
        assert_eq!(status, 202);
        session
    }

    /// Stops the process gracefully and returns its log.
    async fn stop(self) -> String {
        signal(&self.child, "-TERM");
        assert_eq!(exit_code(self.child).await, Some(0));
        tokio::time::timeout(TEST_TIMEOUT, self.reading).await.expect("the log ends").unwrap();
        self.log.lock().unwrap().clone()
    }
}

// === impl Session ===

impl Session {
    fn post(&self, body: &Value) -> HttpRequest {
        let sending = HttpRequest::to(self.address, "POST", self.path)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(body.to_string());
        if self.id.is_empty() { sending } else { sending.header("mcp-session-id", &self.id) }
    }

    /// Sends a request and returns its response, from JSON or from SSE.
    async fn ask(&self, method: &str, params: Value) -> Value {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed);
        read_response(self.post(&request(id, method, params)).go().await).await
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// The listed tool names.
    async fn tools(&self) -> Vec<String> {
        names(&self.ask("tools/list", json!({})).await["result"]["tools"], "name")
    }

    async fn listen(&self) -> Events {
        let sending = HttpRequest::to(self.address, "GET", self.path).header("accept", "text/event-stream");
        sending.header("mcp-session-id", &self.id).go().await.events()
    }

    async fn close(&self) {
        let sending = HttpRequest::to(self.address, "DELETE", self.path).header("mcp-session-id", &self.id);
        assert!(sending.status().await < 300);
    }
}

/// Sends a request of the per-request era, of a client that can be asked, and returns its result.
async fn modern_request(rialto: &GatewayProcess, method: &str, params: Value) -> Value {
    let mut body = modern(1.into(), method, params.clone());
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({ "elicitation": { "form": {} } });
    let sending = HttpRequest::to(rialto.address, "POST", "/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .body(body.to_string());
    read_response(sending.modern_headers(method, &params).go().await).await["result"].clone()
}

async fn read_response(received: HttpResponse) -> Value {
    if !received.is_events() {
        return received.json().await;
    }
    received.events().rest().await.pop().expect("a response")
}

/// One member of each item of a list.
fn names(list: &Value, member: &str) -> Vec<String> {
    let items = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    items.iter().map(|item| item[member].as_str().unwrap().to_owned()).collect()
}

/// The config table of a shell server.
fn shell_server(name: &str, variables: &[(&str, &str)]) -> String {
    let variables: Vec<String> = variables.iter().map(|(key, value)| format!("{key} = {value:?}")).collect();
    let variables = variables.join(", ");
    format!(
        r#"
        [servers.{name}]
        command = "sh"
        args = ["server.sh"]
        env = {{ {variables} }}
        revision = "2025-06-18"
        stop_timeout = "200ms"
        "#
    )
}

/// The health phase of an upstream in a status document.
fn phase<'s>(status: &'s Value, upstream: &str) -> Option<&'s str> {
    let upstreams = status["upstreams"].as_array().unwrap();
    upstreams.iter().find(|one| one["name"] == upstream).and_then(|one| one["phase"].as_str())
}
