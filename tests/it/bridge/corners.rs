//! The official SDKs on both sides, clients of one era in front of servers that refuse it, asked in
//! the middle of calls.

use std::process::Stdio;
use std::time::Duration;

use rialto::gateway::{Layout, Plan};
use rialto::upstream::{Spec, SpecKind, Target};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::Rialto;
use crate::peers::{installed, source};
use crate::servers::{Make, PYTHON_1, PYTHON_2, Served, TYPESCRIPT_2};

/// A client: what runs it, its script, and the revision that it is pinned to.
type Peer = (&'static str, &'static str, Option<&'static str>);

const NODE: &str = "node/node_modules/.bin/node";
const HANDSHAKE: [Peer; 3] =
    [(NODE, "node/ask1.mjs", None), (NODE, "node/ask2.mjs", None), ("py1/bin/python", "python/ask1.py", None)];
const PER_REQUEST: [Peer; 2] =
    [(NODE, "node/ask2.mjs", Some("2026-07-28")), ("py2/bin/python", "python/ask2.py", Some("2026-07-28"))];

async fn child(make: Make, arguments: &[&str]) -> Target {
    let (program, arguments) = make.command(arguments).await;
    Target::command(program, arguments)
}

/// Every client in front of every server; all of them see the same.
async fn meet(clients: &[Peer], servers: Vec<(&str, Target)>) {
    let rialto = Rialto::with(|settings| {
        let spec = |(name, target): &(&str, Target)| Spec::new(name, SpecKind::Target(target.clone()));
        let plan = |(name, _): &(&str, Target)| Plan::new(name, [(*name).into()]);
        settings.layout =
            Layout { upstreams: servers.iter().map(spec).collect(), groups: servers.iter().map(plan).collect() };
    })
    .await;
    let urls: Vec<String> = servers.iter().map(|(name, _)| rialto.url(&format!("/mcp/{name}"))).collect();
    let place = tokio::task::spawn_blocking(installed).await.unwrap();
    for (interpreter, script, revision) in clients {
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
async fn clients_of_the_handshake_era_and_servers_of_the_newest() {
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
async fn clients_of_the_newest_revision_and_servers_of_the_handshake_era() {
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
