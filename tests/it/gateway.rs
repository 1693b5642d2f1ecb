//! A whole gateway as a process, with a file of its own: used by clients of other makes, reloaded, and
//! watched by those who operate it.

mod beginnings;
mod clients;
mod figures;
mod operations;
mod reload;
mod traces;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::task::JoinHandle;

use crate::config::Folder;
use crate::harness::{Events, PATIENCE, Received, Sending, initialize, request, until};
use crate::process::{exit_code, rialto, signal};

/// A server in a shell, of 2025-06-18, that notes every call of a tool in the file `$NOTE`. It is not there
/// before the file `$GO` is, if that is named.
const SHELL: &str = r#"
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

/// A gateway as a process.
struct Running {
    folder: Folder,
    child: Child,
    address: SocketAddr,
    /// Where its operators are served, if not there.
    admin: Option<SocketAddr>,
    log: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

/// A session of Streamable HTTP with a process.
struct Session {
    address: SocketAddr,
    path: &'static str,
    id: String,
}

// === impl Running ===

impl Running {
    /// Serves a file.
    async fn start(name: &str, file: &str) -> Self {
        Self::with(name, file, &[], &[]).await
    }

    async fn with(name: &str, file: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = Folder::new(&format!("gateway-{name}"));
        folder.write("rialto.toml", file);
        folder.write("server.sh", SHELL);
        Self::within(folder, &[&["serve", "--listen", "127.0.0.1:0"], arguments].concat(), variables).await
    }

    /// Starts the binary in a folder, and waits until it says where it listens.
    async fn within(folder: Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = rialto();
        command.current_dir(&folder.0).env_remove("RIALTO_CONFIG").envs(variables.iter().copied());
        let mut child = command.args(arguments).stdin(Stdio::null()).spawn().unwrap();
        let log: Arc<Mutex<String>> = Arc::default();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let kept = Arc::clone(&log);
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let mut kept = kept.lock().unwrap();
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let place = |line: String| {
            let (_, rest) = line.split_once("http://").unwrap();
            rest.split(['/', ' ']).next().unwrap().parse::<SocketAddr>().unwrap()
        };
        let first = tokio::time::timeout(PATIENCE, output.next_line()).await.expect("an address in time").unwrap();
        let address = place(first.unwrap_or_else(|| panic!("it ended: {}", log.lock().unwrap())));
        let has_admin =
            std::fs::read_to_string(folder.0.join("rialto.toml")).is_ok_and(|text| text.contains("[admin]"));
        let admin = match has_admin {
            true => Some(place(output.next_line().await.unwrap().unwrap())),
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

    /// Waits until the log has a word.
    async fn logged(&self, word: &str) {
        until(word, || self.log.lock().unwrap().contains(word)).await;
    }

    /// Puts another file in the place of the one that is there.
    fn replace(&self, text: &str) {
        self.folder.write("rialto.toml.new", text);
        std::fs::rename(self.path("rialto.toml.new"), self.path("rialto.toml")).unwrap();
    }

    fn hang_up(&self) {
        signal(&self.child, "-HUP");
    }

    fn get(&self, path: &str) -> Sending {
        Sending::to(self.address, "GET", path)
    }

    /// Asks where operators are served.
    fn operate(&self, path: &str) -> Sending {
        Sending::to(self.admin.unwrap_or(self.address), "GET", path)
    }

    async fn status(&self) -> Value {
        self.operate("/admin/status").go().await.json().await
    }

    async fn ready(&self) -> (u16, String) {
        let received = self.operate("/readyz").go().await;
        (received.status, received.text().await)
    }

    /// Waits until the status is as it should be.
    async fn until_status(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let status = self.status().await;
            if holds(&status) {
                return status;
            }
            assert!(tokio::time::Instant::now() < deadline, "never: {what}: {status:#}\n{}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Waits until all upstreams are connected, and seen in the group of all.
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
        let told = session.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).status().await;
        assert_eq!(told, 202);
        session
    }

    /// Stops it in order, and gives its log.
    async fn stop(self) -> String {
        signal(&self.child, "-TERM");
        assert_eq!(exit_code(self.child).await, Some(0));
        tokio::time::timeout(PATIENCE, self.reading).await.expect("an end of the log").unwrap();
        self.log.lock().unwrap().clone()
    }
}

// === impl Session ===

impl Session {
    fn post(&self, body: &Value) -> Sending {
        let sending = Sending::to(self.address, "POST", self.path)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(body.to_string());
        if self.id.is_empty() { sending } else { sending.header("mcp-session-id", &self.id) }
    }

    /// Sends a request, and gives its answer, whether that comes as JSON or in a stream.
    async fn ask(&self, method: &str, params: Value) -> Value {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed);
        answer_of(self.post(&request(id, method, params)).go().await).await
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// The names on the list of tools.
    async fn tools(&self) -> Vec<String> {
        names(&self.ask("tools/list", json!({})).await["result"]["tools"], "name")
    }

    async fn listen(&self) -> Events {
        let sending = Sending::to(self.address, "GET", self.path).header("accept", "text/event-stream");
        sending.header("mcp-session-id", &self.id).go().await.events()
    }

    async fn close(&self) {
        let sending = Sending::to(self.address, "DELETE", self.path).header("mcp-session-id", &self.id);
        assert!(sending.status().await < 300);
    }
}

async fn answer_of(received: Received) -> Value {
    if !received.is_events() {
        return received.json().await;
    }
    received.events().rest().await.pop().expect("an answer")
}

/// One member of each item of a list.
fn names(list: &Value, member: &str) -> Vec<String> {
    let items = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    items.iter().map(|item| item[member].as_str().unwrap().to_owned()).collect()
}

/// A table of the file for a server in a shell.
fn shell(name: &str, variables: &[(&str, &str)]) -> String {
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

/// The phase of an upstream, in a status.
fn phase<'s>(status: &'s Value, upstream: &str) -> Option<&'s str> {
    let upstreams = status["upstreams"].as_array().unwrap();
    upstreams.iter().find(|one| one["name"] == upstream).and_then(|one| one["phase"].as_str())
}
