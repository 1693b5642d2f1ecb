//! The official SDKs on both sides, clients of one era in front of servers that refuse it, asked in
//! the middle of calls.

use std::process::Stdio;
use std::time::Duration;

use rialto::gateway::{GatewayConfig, GroupConfig};
use rialto::mcp_client::Target;
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::Rialto;
use crate::peers::{self, carry_out, installed, source};
use crate::servers::{Make, PYTHON_1, PYTHON_2, Served, TYPESCRIPT_1, TYPESCRIPT_2};

/// A client: what runs it, its script, the revision that it is pinned to or how it finds out, and what it is to come to.
type Peer = (&'static str, &'static str, Option<&'static str>, &'static str);

const NODE: &str = "node/node_modules/.bin/node";
const PY1: &str = "py1/bin/python";
const PY2: &str = "py2/bin/python";
const HANDSHAKE: [Peer; 4] = [
    (NODE, "node/ask1.mjs", None, "2025-11-25"),
    (NODE, "node/ask2.mjs", None, "2025-11-25"),
    (PY1, "python/ask1.py", None, "2025-11-25"),
    (PY2, "python/ask2.py", Some("legacy"), "2025-11-25"),
];
const PER_REQUEST: [Peer; 2] = [
    (NODE, "node/ask2.mjs", Some("2026-07-28"), "2026-07-28"),
    (PY2, "python/ask2.py", Some("2026-07-28"), "2026-07-28"),
];
/// They ask what is there, and go on as they are told.
const PROBING: [Peer; 2] =
    [(PY2, "python/ask2.py", Some("auto"), "2026-07-28"), (NODE, "node/ask2.mjs", Some("auto"), "2026-07-28")];
/// Where the older transport is what there is, nobody of the newest revision can be.
const FALLING_BACK: [Peer; 1] = [(PY2, "python/ask2.py", Some("auto"), "2025-11-25")];

async fn child(make: Make, arguments: &[&str]) -> Target {
    let (program, arguments) = make.command(arguments).await;
    Target::command(program, arguments)
}

/// Every client in front of every server; all of them see the same.
async fn meet(clients: &[Peer], servers: Vec<(&str, Target)>) {
    meet_at("mcp", clients, servers).await;
}

async fn meet_at(path: &str, clients: &[Peer], servers: Vec<(&str, Target)>) {
    let rialto = Rialto::with(|settings| {
        let spec = |(name, target): &(&str, Target)| UpstreamSpec::new(name, SpecKind::Target(target.clone()));
        let plan = |(name, _): &(&str, Target)| GroupConfig::new(name, [(*name).into()]);
        settings.layout =
            GatewayConfig { upstreams: servers.iter().map(spec).collect(), groups: servers.iter().map(plan).collect() };
    })
    .await;
    let urls: Vec<String> = servers.iter().map(|(name, _)| rialto.url(&format!("/{path}/{name}"))).collect();
    let place = tokio::task::spawn_blocking(installed).await.unwrap();
    for (interpreter, script, revision, expected) in clients {
        let path = if script.starts_with("node/") { place.join(script) } else { source().join(script) };
        let mut command = Command::new(place.join(interpreter));
        command.arg(path).args(&urls).stdin(Stdio::null()).kill_on_drop(true);
        if let Some(revision) = revision {
            command.env("PEER_REVISION", revision);
        }
        let output = tokio::time::timeout(Duration::from_secs(90), command.output()).await.expect("an end").unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script} {revision:?}: {text}\n{errors}");
        let seen: Vec<Value> = serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(seen.len(), servers.len());
        for (said, (name, _)) in seen.iter().zip(&servers) {
            let context = format!("{script} {revision:?} in front of {name}: {said}");
            assert_eq!(said["revision"], *expected, "{context}");
            assert_eq!(said["echo"], "héllo", "{context}");
            assert_eq!(said["think"], "thoughts on bridges", "{context}");
            let form: Value = serde_json::from_str(said["confirm"].as_str().unwrap()).expect(&context);
            assert_eq!(form, json!({ "action": "accept", "content": { "name": "Ada", "sure": true } }), "{context}");
            let roots: Vec<String> = serde_json::from_str(said["where"].as_str().unwrap()).expect(&context);
            assert_eq!(roots[0].trim_end_matches('/'), "file:///somewhere", "{context}");
        }
    }
}

#[tokio::test]
async fn handshake_sdk_clients_reach_per_request_servers() {
    let http = Served::start(TYPESCRIPT_2, &["http", "0", "modern"]).await;
    // This one speaks both, and is spoken to in the newest.
    let python = Served::start(PYTHON_2, &["http", "0"]).await;
    let servers = vec![
        ("typescript-http", http.target("/mcp")),
        ("typescript-stdio", child(TYPESCRIPT_2, &["stdio", "modern"]).await),
        ("python-http", python.target("/mcp")),
        ("python-stdio", child(PYTHON_2, &["stdio"]).await),
    ];
    meet(&HANDSHAKE, servers).await;
}

#[tokio::test]
async fn per_request_sdk_clients_reach_handshake_servers() {
    let python = Served::start(PYTHON_1, &["http", "0"]).await;
    let sse = Served::start(PYTHON_1, &["sse", "0"]).await;
    let typescript = Served::start(TYPESCRIPT_2, &["http", "0", "handshake"]).await;
    let servers = vec![
        ("python-http", python.target("/mcp")),
        ("python-sse", sse.target("/sse")),
        ("python-stdio", child(PYTHON_1, &["stdio"]).await),
        ("typescript-http", typescript.target("/mcp")),
        ("typescript-stdio", child(TYPESCRIPT_2, &["stdio", "handshake"]).await),
    ];
    meet(&PER_REQUEST, servers).await;
}

/// The first TypeScript SDK knows the handshake era only. It asks on the stream of the call, or aside.
#[tokio::test]
async fn clients_of_both_eras_reach_typescript_sdk_1_servers() {
    let http = Served::start(TYPESCRIPT_1, &["http", "0"]).await;
    let aside = Served::start(TYPESCRIPT_1, &["http", "0", "aside"]).await;
    let servers = vec![
        ("http", http.target("/mcp")),
        ("aside", aside.target("/mcp")),
        ("stdio", child(TYPESCRIPT_1, &["stdio"]).await),
    ];
    let clients = [PER_REQUEST.as_slice(), &HANDSHAKE].concat();
    meet(&clients, servers).await;
}

/// A server of each era, of which none knows the other.
async fn one_of_each(modern: &Served, handshake: &Served) -> Vec<(&'static str, Target)> {
    vec![
        ("modern-http", modern.target("/mcp")),
        ("modern-stdio", child(TYPESCRIPT_2, &["stdio", "modern"]).await),
        ("handshake-http", handshake.target("/mcp")),
        ("handshake-stdio", child(PYTHON_1, &["stdio"]).await),
    ]
}

#[tokio::test]
async fn probing_clients_negotiate_the_newest_revision() {
    let modern = Served::start(TYPESCRIPT_2, &["http", "0", "modern"]).await;
    let handshake = Served::start(TYPESCRIPT_1, &["http", "0"]).await;
    meet(&PROBING, one_of_each(&modern, &handshake).await).await;
}

#[tokio::test]
async fn probing_clients_fall_back_to_a_handshake_over_sse() {
    let modern = Served::start(TYPESCRIPT_2, &["http", "0", "modern"]).await;
    let handshake = Served::start(TYPESCRIPT_1, &["http", "0"]).await;
    meet_at("sse", &FALLING_BACK, one_of_each(&modern, &handshake).await).await;
}

/// On a pipe the probe comes before anything that says which era the client is of.
#[tokio::test]
async fn probing_clients_negotiate_over_stdio() {
    let calls = json!([["echo", { "message": "hi" }], ["confirm", {}], ["think", { "prompt": "bridges" }]]);
    let plan = json!({ "calls": calls, "reads": [], "gets": [] });
    for (name, make, arguments) in [
        ("probe-modern", TYPESCRIPT_2, ["stdio", "modern"].as_slice()),
        ("probe-handshake", TYPESCRIPT_1, ["stdio"].as_slice()),
    ] {
        let (program, arguments) = make.command(arguments).await;
        let folder = crate::config::Folder::new(name);
        let file = folder.0.join("rialto.toml");
        std::fs::write(&file, format!("[servers.one]\ncommand = {program:?}\nargs = {arguments:?}\n")).unwrap();
        let command = [env!("CARGO_BIN_EXE_rialto"), "stdio", "--config", file.to_str().unwrap()].map(str::to_owned);
        let report = carry_out(peers::PY2, "auto", "stdio", &command, Some(&plan)).await;
        assert_eq!(report["revision"], "2026-07-28", "{name}: {report}");
        for (tool, words) in [("echo", "hi"), ("confirm", "Ada"), ("think", "")] {
            let told = report["calls"][tool].to_string();
            assert!(told.contains(words) && !told.contains("failed") && told != "null", "{name} {tool}: {report}");
        }
    }
}
