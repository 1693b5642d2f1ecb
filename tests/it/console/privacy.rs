//! What never leaves the process by the console: secrets of the configuration, whole ids, and anything to the disk.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::process::Child;

use super::DOCUMENT;
use crate::config::TempFolder;
use crate::harness::{HttpRequest, PER_REQUEST, TEST_TIMEOUT, call, initialize, modern, notification, until};
use crate::process::rialto;
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// The program itself, with everything that it could write in one folder.
pub struct Gateway {
    child: Child,
    pub address: SocketAddr,
    /// What requests to the API show.
    pub key: String,
    pub folder: TempFolder,
}

/// Where a text came from, and the text.
pub type Said = (String, String);

pub const TOPICS: &str = "call,gone,figures,server,question,session,node,attention,reload,try";

impl Gateway {
    pub async fn start(name: &str, config: &str) -> Self {
        let folder = TempFolder::new(name);
        folder.write("rialto.toml", config);
        for place in ["run", "tmp", "child"] {
            std::fs::create_dir_all(folder.0.join(place)).unwrap();
        }
        let log = std::fs::File::create(folder.0.join("log")).unwrap();
        let mut command = rialto();
        command.args(["serve", "--config", "rialto.toml"]).current_dir(&folder.0).env("RIALTO_LOG", "trace");
        command.env("XDG_RUNTIME_DIR", folder.0.join("run")).env("TMPDIR", folder.0.join("tmp"));
        command.env("HOME", &folder.0).env("XDG_CACHE_HOME", &folder.0).env("XDG_CONFIG_HOME", &folder.0);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let file = folder.0.join(format!("run/rialto/console-{}.json", child.id().unwrap()));
        until("the console is announced", || std::fs::read(&file).is_ok_and(|text| text.ends_with(b"}"))).await;
        let running: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let address = running["url"].as_str().unwrap().strip_prefix("http://").unwrap();
        let address = address.strip_suffix("/console").unwrap().parse().unwrap();
        let key = running["key"].as_str().unwrap().to_owned();
        Self { child, address, key, folder }
    }

    pub fn api(&self, verb: &'static str, path: &str) -> HttpRequest {
        let request = HttpRequest::to(self.address, verb, &format!("/admin/v1/{path}"));
        let request = request.header("authorization", &format!("Bearer {}", self.key));
        if verb == "GET" { request } else { request.header("content-type", "application/json") }
    }

    /// Waits until an answer is as it should be.
    pub async fn wait(&self, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        loop {
            let (_, answer) = self.api("GET", path).json().await;
            if holds(&answer) {
                return answer;
            }
            assert!(tokio::time::Instant::now() < deadline, "{path}: {answer:#}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Waits until servers are ready and calls are recorded, with or without bodies.
    pub async fn watch(&self, servers: usize, bodies: bool) {
        let ready = |answer: &Value| {
            let items = answer["items"].as_array().cloned().unwrap_or_default();
            items.len() == servers && items.iter().all(|server| server["phase"] == "ready")
        };
        self.wait("servers", ready).await;
        let change = json!({ "bodies": bodies }).to_string();
        assert_eq!(self.api("PUT", "recording").body(change).status().await, 200);
        self.wait("recording", |recording| recording["on"] == true).await;
    }

    pub fn post(&self, path: &str, body: &Value) -> HttpRequest {
        HttpRequest::to(self.address, "POST", path)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(body.to_string())
    }

    /// Everything that GET answers, with what it is for; each path of the document is among them.
    pub async fn everything(&self) -> Vec<Said> {
        let mut asked: BTreeSet<String> = BTreeSet::new();
        let mut said = Vec::new();
        let ids = |page: &Value, key: &str| -> Vec<String> {
            page["items"].as_array().unwrap().iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
        };
        let names =
            |path: &'static str, key: &'static str| async move { ids(&self.api("GET", path).json().await.1, key) };
        let mut paths: Vec<String> =
            ["me", "openapi.json", "overview", "servers", "groups", "sessions", "questions", "calls", "recording"]
                .map(str::to_owned)
                .to_vec();
        paths.extend(["bridge", "config", "nodes"].map(str::to_owned));
        for server in names("servers", "name").await {
            paths.push(format!("servers/{server}"));
            paths.push(format!("servers/{server}/log"));
            for kind in ["tools", "prompts", "resources", "templates"] {
                paths.push(format!("servers/{server}/lists/{kind}"));
            }
        }
        for group in names("groups", "name").await {
            paths.push(format!("groups/{group}?as={PER_REQUEST}"));
            paths.push(format!("groups/{group}/why?name=absent"));
        }
        for session in names("sessions", "id").await {
            paths.push(format!("sessions/{session}"));
        }
        for call in names("calls?limit=500", "id").await {
            paths.push(format!("calls/{call}"));
            paths.extend(["rialto", "har", "curl"].map(|form| format!("calls/{call}/export?as={form}")));
            let (_, detail) = self.api("GET", &format!("calls/{call}")).json().await;
            let count = detail["messages"].as_array().map_or(0, Vec::len);
            paths.extend((0..count).map(|n| format!("calls/{call}/messages/{n}")));
        }
        for path in paths {
            let answer = self.api("GET", &path).go().await;
            assert!(answer.status < 500, "{path}: {}", answer.status);
            let headers = format!("{:?}", answer.headers);
            said.push((format!("GET {path}"), format!("{headers}\n{}", answer.text().await)));
            asked.insert(template(&path));
        }
        let all: BTreeSet<String> = DOCUMENT["paths"]
            .as_object()
            .unwrap()
            .iter()
            .filter(|(path, item)| item.get("get").is_some() && !["/live", "/try/{try}"].contains(&path.as_str()))
            .map(|(path, _)| path.clone())
            .collect();
        assert_eq!(asked, all, "every resource was asked for");
        said
    }

    /// A call that an operator tries, to its end, as it is told; and what was probed and checked.
    pub async fn acts(&self, server: &str, arguments: &Value) -> Vec<Said> {
        let body = json!({ "group": server, "name": "do", "arguments": arguments }).to_string();
        let (_, begun) = self.api("POST", "try").body(body).json().await;
        let path = format!("try/{}", begun["try"].as_str().unwrap());
        let done = self.wait(&path, |state| state["state"] == "done").await;
        let probe = self.api("POST", "probe").body(json!({ "server": server }).to_string()).go().await;
        let check = self.api("POST", "config/check").body("{\"add\":\"https://x.example/mcp\"}").go().await;
        vec![
            ("try".to_owned(), done.to_string()),
            ("probe".to_owned(), probe.text().await),
            ("check".to_owned(), check.text().await),
        ]
    }

    pub async fn stop(mut self) -> TempFolder {
        crate::process::signal(&self.child, "-TERM");
        tokio::time::timeout(TEST_TIMEOUT, self.child.wait()).await.unwrap().unwrap();
        self.folder
    }
}

/// The path of the document that a path is one of.
fn template(path: &str) -> String {
    let path = path.split('?').next().unwrap();
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &&String| {
        let wanted: Vec<&str> = template[1..].split('/').collect();
        wanted.len() == parts.len() && wanted.iter().zip(&parts).all(|(one, part)| one.starts_with('{') || one == part)
    };
    DOCUMENT["paths"].as_object().unwrap().keys().find(fits).unwrap_or_else(|| panic!("{path}")).clone()
}

pub fn assert_free_of(said: &[Said], secrets: &[(&str, String)]) {
    for (place, text) in said {
        for (name, secret) in secrets {
            if let Some(at) = text.find(secret.as_str()) {
                let (from, to) = (text.floor_char_boundary(at.saturating_sub(300)), text.floor_char_boundary(at + 200));
                panic!("{name} is in {place}: {}", &text[from..to]);
            }
        }
    }
}

/// Everything that a stream says until it has said as much as is waited for.
pub async fn stream(gateway: &Gateway, holds: impl Fn(&str) -> bool) -> String {
    read_stream(gateway.api("GET", &format!("live?topics={TOPICS}")), holds).await
}

pub async fn read_stream(request: HttpRequest, holds: impl Fn(&str) -> bool) -> String {
    let mut events = request.go().await;
    let mut text = String::new();
    let reading = async {
        while !holds(&text) {
            let piece = events.piece().await.expect("the stream goes on").unwrap();
            text.push_str(&String::from_utf8_lossy(&piece));
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reading).await.unwrap_or_else(|_| panic!("the stream says too little"));
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_the_file_is_in_no_answer_event_export_or_log() {
    let header = "secret-of-header-K3f9Lq";
    let variable = "secret-of-variable-Zw81/+";
    let db = ScriptedServer::start("db", ServerTransport::Http).await;
    let program = env!("CARGO_BIN_EXE_rialto");
    let config = format!(
        r#"
listen = "127.0.0.1:0"
workers = 1
[servers.db]
url = "http://{}/mcp"
headers = {{ X-Own = "{header}" }}
[servers.child]
command = "bash"
cwd = "child"
args = ["-c", "echo the variable is $CHILD_SECRET >&2; exec {program} stdio"]
env = {{ CHILD_SECRET = "{variable}" }}
[groups.default]
servers = ["db", "child"]
[groups.db]
servers = ["db"]
"#,
        db.address
    );
    for bodies in [true, false] {
        let gateway = Gateway::start(&format!("console-secrets-{bodies}"), &config).await;
        gateway.watch(2, bodies).await;
        let listening = stream(&gateway, |text| text.matches("\"done\":true").count() >= 10);
        let traffic = put_secrets_into_traffic(&gateway, [header, variable]);
        let (events, ()) = tokio::join!(listening, traffic);
        assert!(events.contains("event: call"), "{events}");
        let mut said = gateway.everything().await;
        let arguments = json!({ "result": { "content": [{ "type": "text", "text": header }], variable: 1 } });
        said.extend(gateway.acts("db", &arguments).await);
        said.push(("events".to_owned(), events));
        let log = gateway.wait("servers/child/log", |log| log.to_string().contains("the variable is")).await;
        said.push(("standard error".to_owned(), log.to_string()));
        let shown: String = said.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(shown.contains("harmless-text-beside-the-secret"), bodies, "what is no secret is shown with bodies");
        let folder = gateway.stop().await;
        said.push(("log".to_owned(), std::fs::read_to_string(folder.0.join("log")).unwrap()));
        let encoded = |secret: &str| STANDARD.encode(secret);
        assert_free_of(
            &said,
            &[
                ("the header", header.to_owned()),
                ("the variable", variable.to_owned()),
                ("the header in Base64", encoded(header)),
                ("the variable in Base64", encoded(variable)),
                ("the variable in JSON", variable.replace('/', "\\/")),
            ],
        );
    }
}

/// Calls whose arguments, results, headers, names and errors have the secrets.
async fn put_secrets_into_traffic(gateway: &Gateway, secrets: [&str; 2]) {
    let initialized = gateway.post("/mcp/db", &initialize("2025-11-25")).go().await;
    let session = initialized.header("mcp-session-id").unwrap().to_owned();
    let in_session = |body: &Value| gateway.post("/mcp/db", body).header("mcp-session-id", &session);
    in_session(&notification("notifications/initialized", json!({}))).status().await;
    for secret in secrets {
        let beside = format!("harmless-text-beside-the-secret {secret}, and in Base64 {}", STANDARD.encode(secret));
        let result = json!({ "content": [{ "type": "text", "text": beside }], secret: "as a key" });
        let error = json!({ "code": -32000, "message": beside, "data": { "of": [secret] } });
        for arguments in [
            json!({ "plain": secret, secret: "as a key", "result": result }),
            json!({ "deep": [{ "x": format!("a{secret}b") }], "error": error }),
        ] {
            let steps = json!([{ "progress": 1 }, { "log": { "level": "info", "data": secret } }]);
            let mut with_steps = arguments.clone();
            with_steps["steps"] = steps;
            let answer = in_session(&call(1, "do", with_steps)).header("x-custom", secret).go().await;
            assert_eq!(answer.status, 200);
            let text = answer.text().await;
            assert!(text.contains(secret), "the client gets it: {text}");
            let params = json!({ "name": "do", "arguments": arguments });
            let body = modern(secret.into(), "tools/call", params.clone());
            let request = gateway.post(&format!("/mcp/db?key={secret}"), &body).modern_headers("tools/call", &params);
            request.header("x-request-id", secret).status().await;
        }
        let mut named = initialize("2025-11-25");
        named["params"]["clientInfo"] = json!({ "name": secret, "version": secret });
        gateway.post("/mcp/db", &named).status().await;
        in_session(&call(1, secret, json!({}))).status().await;
        in_session(&json!({ "jsonrpc": "2.0", "id": 1, "method": secret })).status().await;
        let params = json!({ "name": "child__getElement", "arguments": { "name": secret } });
        let body = modern(1.into(), "tools/call", params.clone());
        gateway.post("/mcp", &body).modern_headers("tools/call", &params).status().await;
        gateway.post(&format!("/mcp/{secret}"), &body).status().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_ids_of_sessions_and_request_states_are_in_no_answer() {
    const SERVER_STATE: &str = "state-that-the-server-seals-0123456789";
    const SERVER_CURSOR: &str = "cursor-that-the-server-seals-0123456789";
    let db = ScriptedServer::start("db-with-ids", ServerTransport::Http).await;
    let config = format!(
        "listen = \"127.0.0.1:0\"\nworkers = 1\n[servers.{name}]\nurl = \"http://{}/mcp\"\n\
         [groups.default]\nservers = [\"{name}\"]\npage_size = 1\n",
        db.address,
        name = db.name
    );
    let gateway = Gateway::start("console-ids", &config).await;
    gateway.watch(1, true).await;
    let listening = stream(&gateway, |text| text.contains("event: question") && text.contains("event: session"));
    let traffic = async {
        let initialized = gateway.post("/mcp", &initialize("2025-11-25")).go().await;
        let session = initialized.header("mcp-session-id").unwrap().to_owned();
        let in_session = |body: &Value| gateway.post("/mcp", body).header("mcp-session-id", &session);
        in_session(&notification("notifications/initialized", json!({}))).status().await;
        let result = json!({ "content": [], "requestState": SERVER_STATE, "nextCursor": SERVER_CURSOR });
        let arguments = json!({ "result": result, "sessionId": SERVER_STATE });
        assert_eq!(in_session(&call(1, "do", arguments)).status().await, 200);
        let list = |params| in_session(&json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": params }));
        let (_, page) = list(json!({})).answer().await;
        let cursor = page["result"]["nextCursor"].as_str().unwrap_or_else(|| panic!("{page}")).to_owned();
        assert_eq!(list(json!({ "cursor": cursor })).status().await, 200);
        let sse = HttpRequest::to(gateway.address, "GET", "/sse").header("accept", "text/event-stream").go().await;
        let mut events = sse.events();
        let endpoint = events.next().await.unwrap().data;
        assert_eq!(gateway.post(&endpoint, &initialize("2024-11-05")).status().await, 202);
        let ask = json!({ "method": "elicitation/create", "params": { "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } } });
        let params = json!({ "name": "do", "arguments": { "steps": [{ "ask": ask }] } });
        let mut body = modern(1.into(), "tools/call", params.clone());
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
            json!({ "elicitation": { "form": {} } });
        let (_, asked) = gateway.post("/mcp", &body).modern_headers("tools/call", &params).answer().await;
        let state = asked["result"]["requestState"].as_str().unwrap_or_else(|| panic!("{asked}")).to_owned();
        (session, endpoint, (state, cursor), events)
    };
    let (events, (session, endpoint, (state, cursor), sse)) = tokio::join!(listening, traffic);
    let (_, sse_session) = endpoint.rsplit_once(['=', '/']).unwrap();
    let mut said = gateway.everything().await;
    said.push(("events".to_owned(), events));
    let shown: String = said.iter().map(|(_, text)| text.as_str()).collect();
    let server_sessions: BTreeSet<String> =
        db.read_received(|message| Some(message.session.clone())).into_iter().collect();
    for id in [&session, &state, &cursor].into_iter().chain(server_sessions.iter().filter(|id| !id.is_empty())) {
        assert!(shown.contains(&id[..6]), "their beginnings are shown: {id}");
    }
    let bare = session.rsplit(':').next().unwrap().to_owned();
    let mut whole = vec![
        ("the session", bare),
        ("the HTTP+SSE session", sse_session.to_owned()),
        ("the request state", state),
        ("the state of the server", SERVER_STATE.to_owned()),
        ("the cursor of the server", SERVER_CURSOR.to_owned()),
    ];
    assert!(server_sessions.iter().any(|id| !id.is_empty()), "the server has sessions of its own");
    whole.extend(server_sessions.into_iter().filter(|id| !id.is_empty()).map(|id| ("the session at the server", id)));
    for (name, id) in &whole {
        assert!(id.len() >= 8, "{name}: {id}");
    }
    assert_free_of(&said, &whole);
    // What a client of a revision would see of a group is no traffic; it is shown byte for byte, with its cursor.
    said.retain(|(place, _)| !place.starts_with("GET groups/"));
    assert_free_of(&said, &[("the cursor", cursor.clone())]);
    whole.push(("the cursor", cursor));
    drop(sse);
    let folder = gateway.stop().await;
    let log = std::fs::read_to_string(folder.0.join("log")).unwrap();
    assert_free_of(&[("log".to_owned(), log)], &whole);
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() && !path.is_symlink() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_traffic_is_written_to_disk() {
    const MARKER: &str = "marker-that-is-only-in-traffic";
    let db = ScriptedServer::start("db", ServerTransport::Http).await;
    let config = format!(
        "listen = \"127.0.0.1:0\"\nworkers = 1\n[admin]\nrecord = \"always\"\nbodies = \"always\"\n\
         record_bytes = \"1MiB\"\n[servers.db]\nurl = \"http://{}/mcp\"\n",
        db.address
    );
    let gateway = Gateway::start("console-disk", &config).await;
    gateway.watch(1, true).await;
    // More than the rings hold, so that what is let go is looked for, too.
    for n in 0..60 {
        let filler = format!("{MARKER} {n} {}", "x".repeat(30_000));
        let params = json!({ "name": "do", "arguments": { "message": filler } });
        let body = modern(1.into(), "tools/call", params.clone());
        assert_eq!(gateway.post("/mcp", &body).modern_headers("tools/call", &params).status().await, 200);
    }
    let calls = gateway.wait("calls?q=method:tools/call", |calls| calls["items"][0]["done"] == true).await;
    let id = calls["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(gateway.api("PUT", &format!("calls/{id}/kept")).status().await, 204);
    let export = gateway.api("GET", &format!("calls/{id}/export?as=har")).go().await.text().await;
    assert!(export.contains(MARKER), "it is there to be found: {export}");
    let replay = gateway.api("POST", &format!("calls/{id}/replay")).body("{\"side\":\"client\"}").status().await;
    assert_eq!(replay, 202);
    let process = gateway.child.id().unwrap();
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let open = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let own = gateway.folder.0.canonicalize().unwrap();
    for file in open.filter(|file| file.is_file() && !file.starts_with(&own)) {
        let is_written = std::fs::metadata(&file).is_ok_and(|file| !file.permissions().readonly() && file.len() > 0);
        let text = if is_written { std::fs::read(&file).unwrap_or_default() } else { Vec::new() };
        assert!(!contains(&text, MARKER.as_bytes()), "{}", file.display());
    }
    let folder = gateway.stop().await;
    let written = files(&folder.0);
    assert!(written.iter().any(|file| file.ends_with("log")), "{written:?}");
    for file in written {
        assert!(!contains(&std::fs::read(&file).unwrap(), MARKER.as_bytes()), "{}", file.display());
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}
