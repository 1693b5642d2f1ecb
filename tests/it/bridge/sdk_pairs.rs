//! The official SDKs on both sides: clients of one era, servers of the other, with server requests during calls.

use std::process::Stdio;
use std::time::Duration;

use rialto::gateway::{GatewayConfig, GroupConfig};
use rialto::mcp_client::Target;
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::Rialto;
use crate::peers::{self, carry_out, installed, source};
use crate::servers::{PYTHON_1, PYTHON_2, SdkServer, Served, TYPESCRIPT_1, TYPESCRIPT_2};

/// A client: interpreter, script, pinned revision or probing mode, and the expected revision.
type SdkClient = (&'static str, &'static str, Option<&'static str>, &'static str);

const NODE: &str = "node/node_modules/.bin/node";
const PY1: &str = "py1/bin/python";
const PY2: &str = "py2/bin/python";
const HANDSHAKE: [SdkClient; 4] = [
    (NODE, "node/ask1.mjs", None, "2025-11-25"),
    (NODE, "node/ask2.mjs", None, "2025-11-25"),
    (PY1, "python/ask1.py", None, "2025-11-25"),
    (PY2, "python/ask2.py", Some("legacy"), "2025-11-25"),
];
const PER_REQUEST: [SdkClient; 2] = [
    (NODE, "node/ask2.mjs", Some("2026-07-28"), "2026-07-28"),
    (PY2, "python/ask2.py", Some("2026-07-28"), "2026-07-28"),
];
/// Clients that probe with server/discover.
const PROBING: [SdkClient; 2] =
    [(PY2, "python/ask2.py", Some("auto"), "2026-07-28"), (NODE, "node/ask2.mjs", Some("auto"), "2026-07-28")];
/// Over HTTP+SSE a probing client falls back to a handshake.
const FALLBACK: [SdkClient; 1] = [(PY2, "python/ask2.py", Some("auto"), "2025-11-25")];

async fn child(server: SdkServer, arguments: &[&str]) -> Target {
    let (program, arguments) = server.command(arguments).await;
    Target::command(program, arguments)
}

/// Runs every client against every server and checks that all see the same results.
async fn check_pairs(clients: &[SdkClient], servers: Vec<(&str, Target)>) {
    check_pairs_at("mcp", clients, servers).await;
}

async fn check_pairs_at(path: &str, clients: &[SdkClient], servers: Vec<(&str, Target)>) {
    let rialto = Rialto::with(|settings| {
        let spec = |(name, target): &(&str, Target)| UpstreamSpec::new(name, SpecKind::Target(target.clone()));
        let group = |(name, _): &(&str, Target)| GroupConfig::new(name, [(*name).into()]);
        settings.gateway = GatewayConfig {
            upstreams: servers.iter().map(spec).collect(),
            groups: servers.iter().map(group).collect(),
        };
    })
    .await;
    let urls: Vec<String> = servers.iter().map(|(name, _)| rialto.url(&format!("/{path}/{name}"))).collect();
    let folder = tokio::task::spawn_blocking(installed).await.unwrap();
    for (interpreter, script, revision, expected) in clients {
        let path = if script.starts_with("node/") { folder.join(script) } else { source().join(script) };
        let mut command = Command::new(folder.join(interpreter));
        command.arg(path).args(&urls).stdin(Stdio::null()).kill_on_drop(true);
        if let Some(revision) = revision {
            command.env("PEER_REVISION", revision);
        }
        let output = tokio::time::timeout(Duration::from_secs(90), command.output())
            .await
            .expect("the script exits in time")
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script} {revision:?}: {text}\n{errors}");
        let reports: Vec<Value> = serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(reports.len(), servers.len());
        for (report, (name, _)) in reports.iter().zip(&servers) {
            let context = format!("{script} {revision:?} in front of {name}: {report}");
            assert_eq!(report["revision"], *expected, "{context}");
            assert_eq!(report["echo"], "héllo", "{context}");
            assert_eq!(report["think"], "thoughts on bridges", "{context}");
            let form: Value = serde_json::from_str(report["confirm"].as_str().unwrap()).expect(&context);
            assert_eq!(form, json!({ "action": "accept", "content": { "name": "Ada", "sure": true } }), "{context}");
            let roots: Vec<String> = serde_json::from_str(report["where"].as_str().unwrap()).expect(&context);
            assert_eq!(roots[0].trim_end_matches('/'), "file:///somewhere", "{context}");
        }
    }
}

#[tokio::test]
async fn handshake_sdk_clients_reach_per_request_servers() {
    let http = Served::start(TYPESCRIPT_2, &["http", "0", "modern"]).await;
    // This server speaks both eras; the gateway uses the per-request leg.
    let python = Served::start(PYTHON_2, &["http", "0"]).await;
    let servers = vec![
        ("typescript-http", http.target("/mcp")),
        ("typescript-stdio", child(TYPESCRIPT_2, &["stdio", "modern"]).await),
        ("python-http", python.target("/mcp")),
        ("python-stdio", child(PYTHON_2, &["stdio"]).await),
    ];
    check_pairs(&HANDSHAKE, servers).await;
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
    check_pairs(&PER_REQUEST, servers).await;
}

/// The first TypeScript SDK speaks the handshake era only. It sends requests on the stream of the call, or on the GET
/// stream (`aside`).
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
    check_pairs(&clients, servers).await;
}

/// Servers that each speak one era only.
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
    check_pairs(&PROBING, one_of_each(&modern, &handshake).await).await;
}

#[tokio::test]
async fn probing_clients_fall_back_to_a_handshake_over_sse() {
    let modern = Served::start(TYPESCRIPT_2, &["http", "0", "modern"]).await;
    let handshake = Served::start(TYPESCRIPT_1, &["http", "0"]).await;
    check_pairs_at("sse", &FALLBACK, one_of_each(&modern, &handshake).await).await;
}

/// On stdio the probe arrives before the era of the client is known.
#[tokio::test]
async fn probing_clients_negotiate_over_stdio() {
    let calls = json!([["echo", { "message": "hi" }], ["confirm", {}], ["think", { "prompt": "bridges" }]]);
    let plan = json!({ "calls": calls, "reads": [], "gets": [] });
    for (name, server, arguments) in [
        ("probe-modern", TYPESCRIPT_2, ["stdio", "modern"].as_slice()),
        ("probe-handshake", TYPESCRIPT_1, ["stdio"].as_slice()),
    ] {
        let (program, arguments) = server.command(arguments).await;
        let folder = crate::config::TempFolder::new(name);
        let file = folder.0.join("rialto.toml");
        std::fs::write(&file, format!("[servers.one]\ncommand = {program:?}\nargs = {arguments:?}\n")).unwrap();
        let command = [env!("CARGO_BIN_EXE_rialto"), "stdio", "--config", file.to_str().unwrap()].map(str::to_owned);
        let report = carry_out(peers::PY2, "auto", "stdio", &command, Some(&plan)).await;
        assert_eq!(report["revision"], "2026-07-28", "{name}: {report}");
        for (tool, words) in [("echo", "hi"), ("confirm", "Ada"), ("think", "")] {
            let outcome = report["calls"][tool].to_string();
            assert!(
                outcome.contains(words) && !outcome.contains("failed") && outcome != "null",
                "{name} {tool}: {report}"
            );
        }
    }
}
