//! One run with every kind of credential, and a search for them in everything that the gateway has written.

use std::net::SocketAddr;
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::*;
use crate::authorization_server::SECRET;
use crate::harness::{HttpRequest, TEST_TIMEOUT, call, modern};
use crate::process::{exit_code, rialto, signal};
use crate::redis::RedisServer;
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// Secrets of the file. The names of what they are for are no part of them.
const STATIC_TOKEN: &str = "5tat1c-caller-tok";
const LIMITED_TOKEN: &str = "l1m1ted-caller-tok";
const OPERATOR_TOKEN: &str = "0perat0r-tok";
const STORE_PASSWORD: &str = "5t0re-passw";
const SEALING_KEY: &str = "5eal1ng-key-0123456789";
const DIGEST_KEY: &str = "d1gest-key-0123456789";
const SERVER_TOKEN: &str = "5erver-bearer-tok";
const SERVER_HEADER: &str = "5erver-header-value";
const SERVER_QUERY: &str = "5erver-query-value";
const CHILD_VARIABLE: &str = "ch1ld-variable-value";
const CHILD_ARGUMENT: &str = "ch1ld-argument-value";
/// What is sent as an argument, a cookie and a guess.
const SENT_ARGUMENT: &str = "5ent-argument-value";
const SENT_COOKIE: &str = "5ent-cookie-value";
const GUESS: &str = "gue55ed-tok";

/// Everything that was written so far, by where.
#[derive(Default)]
struct Written {
    texts: Vec<(String, String)>,
}

impl Written {
    fn add(&mut self, place: &str, text: impl Into<String>) {
        self.texts.push((place.to_owned(), text.into()));
    }

    /// Sends a request and keeps all of its response; returns the status and the body.
    async fn send(&mut self, place: &str, request: HttpRequest) -> (u16, String) {
        let response = request.go().await;
        let (status, headers) = (response.status, format!("{:?}", response.headers));
        let body = response.text().await;
        self.add(place, format!("{headers}\n{body}"));
        (status, body)
    }

    /// Runs the binary and keeps its output.
    async fn run(&mut self, arguments: &[&str]) -> bool {
        let running = rialto().args(arguments).stdin(Stdio::null()).output();
        let output = tokio::time::timeout(3 * TEST_TIMEOUT, running).await.expect("it ends in time").unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        self.add(&arguments.join(" "), text);
        output.status.success()
    }

    fn assert_free_of(&self, secrets: &[(&str, String)]) {
        for (place, text) in &self.texts {
            assert!(!text.is_empty(), "nothing was written: {place}");
            for (name, secret) in secrets {
                if let Some(at) = text.find(secret.as_str()) {
                    let (from, to) =
                        (text.floor_char_boundary(at.saturating_sub(300)), text.floor_char_boundary(at + 300));
                    panic!("{name} is in {place}: {}", &text[from..to]);
                }
            }
        }
    }
}

fn file_with_secrets(key_lines: &str, servers: [&AuthorizationServer; 2], upstream: SocketAddr, store: u16) -> String {
    let [corp, id] = servers.map(|server| &server.issuer);
    let program = env!("CARGO_BIN_EXE_rialto");
    format!(
        r#"
listen = "127.0.0.1:0"
workers = 1
store = "redis://:{STORE_PASSWORD}@127.0.0.1:{store}"

[cluster]
sealing_key = "{SEALING_KEY}"

[admin]
token = "{OPERATOR_TOKEN}"

[audit]
output = "file:audit.jsonl"
arguments = "digest"
digest_key = "{DIGEST_KEY}"

[access]
scopes = ["mcp:read"]

[access.tokens]
ann = "{STATIC_TOKEN}"
lim = "{LIMITED_TOKEN}"

[access.issuers.corp]
issuer = "{corp}"

[access.issuers.id]
issuer = "{id}"
token_format = "opaque"
client_id = "rialto"
client_secret = "{SECRET}"

[servers.db]
url = "http://{upstream}/mcp?key={SERVER_QUERY}"
headers = {{ Authorization = "Bearer {SERVER_TOKEN}", X-Api-Key = "{SERVER_HEADER}" }}

[servers.child]
command = "{program}"
cwd = "child"
args = ["stdio", "--token", "ann={CHILD_ARGUMENT}"]
env = {{ CHILD_SECRET = "{CHILD_VARIABLE}" }}

[[policy.rules]]
principals = ["*"]
allow = {{ tools = ["db/do", "child/getElement"] }}

[[policy.rules]]
principals = ["*"]
allow = {{ tools = ["child/getElementByPosition"] }}
when = {{ "/message" = ["other"] }}

[[policy.rules]]
principals = ["issuer:corp"]
require_scopes = ["mcp:write"]
allow = {{ tools = ["db/echo"] }}

[[policy.rules]]
principals = ["*"]
deny = {{ tools = ["child/survey*"] }}

[[policy.limits]]
name = "few"
principals = ["token:lim"]
per = ["caller"]
rate = "1/h"
burst = 1

{key_lines}
"#
    )
}

/// A request of the per-request era with a credential.
fn calling(address: SocketAddr, authorization: &str, tool: &str, path: &str) -> HttpRequest {
    let arguments = json!({ "message": SENT_ARGUMENT });
    let body = modern(1.into(), "tools/call", json!({ "name": tool, "arguments": arguments }));
    HttpRequest::to(address, "POST", path)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("cookie", &format!("session={SENT_COOKIE}"))
        .header("authorization", authorization)
        .modern_headers("tools/call", &body["params"])
        .body(body.to_string())
}

#[tokio::test]
async fn no_secret_is_in_anything_that_is_written() {
    let mut written = Written::default();
    let corp = AuthorizationServer::oidc_provider(&[]).await;
    let id = AuthorizationServer::oidc_provider(&[("FORMAT", "opaque")]).await;
    let upstream = ScriptedServer::start("db", ServerTransport::Http).await;
    let store = RedisServer::with_password(STORE_PASSWORD).await;
    let made = rialto().args(["key", "new", "ci"]).output().await.unwrap();
    let made = String::from_utf8(made.stdout).unwrap();
    let (key, key_lines) = made.split_once("\n\n").unwrap();

    let folder = TempFolder::new("secrets");
    let text = file_with_secrets(key_lines, [&corp, &id], upstream.address, store.port());
    folder.write("rialto.toml", &text);
    // Without a file of its own there the child would read this one, and start itself.
    std::fs::create_dir_all(folder.0.join("child")).unwrap();
    let log = std::fs::File::create(folder.0.join("log")).unwrap();
    let mut gateway =
        rialto().arg("serve").current_dir(&folder.0).env("RIALTO_LOG", "trace").stderr(log).spawn().unwrap();
    let mut output = BufReader::new(gateway.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(3 * TEST_TIMEOUT, output.next_line()).await.unwrap().unwrap().expect("it serves");
    let address: SocketAddr = line.split_once("http://").unwrap().1.split_once('/').unwrap().0.parse().unwrap();
    written.add("standard output", line);
    let ready = async {
        while HttpRequest::to(address, "GET", "/readyz").status().await != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(3 * TEST_TIMEOUT, ready).await.expect("it gets ready");

    let resource = format!("http://{address}/mcp");
    let signed = corp.log_in("ann", SCOPE, Some(&resource)).await;
    let opaque = id.log_in("ann", SCOPE, Some(&resource)).await;
    let basic = STANDARD.encode(format!("rialto:{SECRET}"));
    let mut secrets: Vec<(&str, String)> = [
        ("the static token", STATIC_TOKEN),
        ("the limited token", LIMITED_TOKEN),
        ("the operators' token", OPERATOR_TOKEN),
        ("the password of the store", STORE_PASSWORD),
        ("the sealing key", SEALING_KEY),
        ("the key of digests", DIGEST_KEY),
        ("the bearer token of a server", SERVER_TOKEN),
        ("the header of a server", SERVER_HEADER),
        ("the query of a server", SERVER_QUERY),
        ("a variable of a child", CHILD_VARIABLE),
        ("an argument of a child", CHILD_ARGUMENT),
        ("an argument of a call", SENT_ARGUMENT),
        ("a cookie", SENT_COOKIE),
        ("a guess", GUESS),
        ("the client secret", SECRET),
        ("the client secret in its header", &basic),
        ("the API key", &key[14..57]),
        ("the opaque token", &opaque.access_token),
    ]
    .map(|(name, secret)| (name, secret.to_owned()))
    .to_vec();
    for token in [&signed.access_token, signed.id_token.as_ref().unwrap()] {
        // The header is the same for all tokens of an issuer and says nothing.
        secrets.extend(token.split('.').skip(1).map(|part| ("a signed token", part.to_owned())));
    }
    for tokens in [&signed, &opaque] {
        secrets.extend(tokens.refresh_token.iter().map(|token| ("a refresh token", token.clone())));
    }

    // Every credential, in its place: what is allowed, hidden, denied and unknown.
    for credential in [STATIC_TOKEN, key, &signed.access_token, &opaque.access_token] {
        let credential = bearer(credential);
        for (tool, is_known) in [("db__do", true), ("child__surveyElements", false), ("nothing", false)] {
            let (status, body) = written.send(tool, calling(address, &credential, tool, "/mcp")).await;
            assert_eq!((status, body.contains("Unknown tool")), (200, !is_known), "{tool}: {body}");
            // The server repeats what it was sent, which is for the caller.
            if is_known {
                written.texts.pop();
            }
        }
    }
    let reader = bearer(&signed.access_token);
    let by_arguments = calling(address, &reader, "child__getElementByPosition", "/mcp");
    let (_, refused) = written.send("arguments that are not allowed", by_arguments).await;
    assert!(refused.contains("\"error\"") || refused.contains("\"isError\":true"), "{refused}");
    assert_eq!(written.send("a scope that is missing", calling(address, &reader, "db__echo", "/mcp")).await.0, 403);
    let limited = bearer(LIMITED_TOKEN);
    let statuses = [
        written.send("within a limit", calling(address, &limited, "nothing", "/mcp")).await.0,
        written.send("beyond a limit", calling(address, &limited, "nothing", "/mcp")).await.0,
    ];
    assert_eq!(statuses, [200, 429]);
    // A session, whose events are kept in the store.
    let opening = HttpRequest::to(address, "POST", "/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("authorization", &reader);
    let opened = opening.body(initialize("2025-11-25").to_string()).go().await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let in_session = HttpRequest::to(address, "POST", "/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-session-id", &session)
        .header("authorization", &reader);
    let body = call(1, "child__getElement", json!({ "name": "Fe", "password": SENT_ARGUMENT }));
    assert_eq!(written.send("a session", in_session.body(body.to_string())).await.0, 200);
    // Credentials that are wrong, or in the wrong place.
    let wrong = |secret: &str| {
        let (rest, last) = secret.split_at(secret.len() - 1);
        format!("Bearer {rest}{}", if last == "x" { "w" } else { "x" })
    };
    for (authorization, path, expected) in [
        (wrong(STATIC_TOKEN), "/mcp".to_owned(), 401),
        (wrong(key), "/mcp".to_owned(), 401),
        (wrong(&signed.access_token), "/mcp".to_owned(), 401),
        (bearer(signed.id_token.as_ref().unwrap()), "/mcp".to_owned(), 401),
        (bearer(GUESS), "/mcp".to_owned(), 401),
        (format!("Basic {}", STANDARD.encode(format!("ann:{GUESS}"))), "/mcp".to_owned(), 401),
        (bearer(&format!("{STATIC_TOKEN} {GUESS}")), "/mcp".to_owned(), 400),
        (bearer(STATIC_TOKEN), format!("/mcp?access_token={STATIC_TOKEN}"), 400),
        (bearer(OPERATOR_TOKEN), "/mcp".to_owned(), 401),
    ] {
        let (status, body) = written.send("a rejection", calling(address, &authorization, "db__do", &path)).await;
        assert_eq!(status, expected, "{authorization} {path}: {body}");
    }
    // A server that fails, and the file while it is served and while it is wrong.
    upstream.stop();
    let failed = written.send("a server that is away", calling(address, &bearer(STATIC_TOKEN), "db__do", "/mcp")).await;
    assert!(failed.1.contains("error") || failed.1.contains("isError"), "{failed:?}");
    folder
        .write("rialto.toml", &text.replace("workers = 1", &format!("wrokers = 1\n[access.tokens]\nx = \"{GUESS}\"")));
    let path = folder.0.join("rialto.toml");
    let file = path.to_str().unwrap();
    assert!(!written.run(&["check", file]).await);
    let refused_reload = || {
        std::fs::read_to_string(folder.0.join("audit.jsonl"))
            .unwrap()
            .contains("\"event\":\"config\",\"outcome\":\"failed\"")
    };
    crate::harness::until("the file was read again", refused_reload).await;
    upstream.restart().await;
    folder.write("rialto.toml", &text);
    for arguments in [&["check", file][..], &["check", file, "--json"], &["check", file, "--as", "token:ann"]] {
        assert!(written.run(arguments).await, "{:?}", written.texts.last());
    }
    let operator = bearer(OPERATOR_TOKEN);
    for path in ["/admin/status", "/metrics"] {
        let asked = HttpRequest::to(address, "GET", path).header("authorization", &operator);
        let (status, body) = written.send(path, asked).await;
        assert!(status == 200 && body.contains("db"), "{path}: {status} {body}");
    }
    signal(&gateway, "-TERM");
    assert_eq!(exit_code(gateway).await, Some(0));
    while let Some(line) = output.next_line().await.unwrap() {
        written.add("standard output", format!("{line}\n"));
    }
    let log = std::fs::read_to_string(folder.0.join("log")).unwrap();
    assert!(log.contains("TRACE"), "the log has every level");
    written.add("the log", log);
    let audit = std::fs::read_to_string(folder.0.join("audit.jsonl")).unwrap();
    written.add("the audit log", audit.clone());
    written.assert_free_of(&secrets);

    // Each decision has its event.
    let events: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (kind, outcome) in [
        ("admission", "allowed"),
        ("admission", "unauthenticated"),
        ("call", "allowed"),
        ("call", "hidden"),
        ("call", "denied"),
        ("step_up", "step_up"),
        ("rate_limit", "rate_limited"),
        ("admin", "allowed"),
        ("config", "failed"),
    ] {
        let is_such = |event: &Value| event["event"] == kind && event["outcome"] == outcome;
        assert!(events.iter().any(is_such), "{kind} {outcome} is not in {audit}");
    }
}
