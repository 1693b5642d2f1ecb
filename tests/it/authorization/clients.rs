//! Official clients that log in by themselves: from the challenge to the metadata, the authorization server and back.

use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::scopes::with_rules;
use super::*;
use crate::authorization_server::OTHER_CLIENT;
use crate::peers;
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// A script that logs in, and the interpreter that runs it.
struct LoginPeer {
    interpreter: &'static str,
    script: &'static str,
    revision: Option<&'static str>,
}

const NODE: &str = "node/node_modules/.bin/node";
const TS1: LoginPeer = LoginPeer { interpreter: NODE, script: "node/login1.mjs", revision: None };
const TS2: LoginPeer = LoginPeer { interpreter: NODE, script: "node/login2.mjs", revision: Some("2025-11-25") };
const TS2_PER_REQUEST: LoginPeer =
    LoginPeer { interpreter: NODE, script: "node/login2.mjs", revision: Some("2026-07-28") };
/// The SDK of 2025-03-26.
const TS0: LoginPeer = LoginPeer { interpreter: NODE, script: "node/login0.mjs", revision: None };
const PY1: LoginPeer = LoginPeer { interpreter: "py1/bin/python", script: "python/login1.py", revision: None };
const PY2: LoginPeer =
    LoginPeer { interpreter: "py2/bin/python", script: "python/login2.py", revision: Some("legacy") };
const PY2_PER_REQUEST: LoginPeer =
    LoginPeer { interpreter: "py2/bin/python", script: "python/login2.py", revision: Some("2026-07-28") };

/// Runs a script with the person `ann`; a client id of `-` lets the client register itself.
async fn run(peer: &LoginPeer, gateway: &Configured, client: &str, tools: &[&str]) -> Value {
    let output = output(peer, gateway, client, tools).await;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {text}\n{errors}", peer.script);
    serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}\n{errors}"))
}

async fn output(peer: &LoginPeer, gateway: &Configured, client: &str, tools: &[&str]) -> Output {
    tokio::task::spawn_blocking(peers::installed).await.unwrap();
    let mut command = peers::script(peer.interpreter, peer.script);
    command.args([&gateway.resource(), "ann", client]).args(tools).stdin(Stdio::null());
    if let Some(revision) = peer.revision {
        command.env("PEER_REVISION", revision);
    }
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("it ends in time");
    output.unwrap()
}

/// A client that nobody knows registers itself, logs in and calls.
async fn logs_in(peer: &LoginPeer) {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let upstream = ScriptedServer::start("db", ServerTransport::Http).await;
    let gateway = Configured::start("client", &with_rules(&server, &upstream)).await;
    let report = run(peer, &gateway, "-", &["do"]).await;
    assert_eq!(report["calls"][0]["isError"], false, "{report}");
    assert!(report["offered"].as_array().unwrap().contains(&json!("do")), "{report}");
    assert_eq!(report["askedScopes"], json!(["mcp:read"]), "the scopes of the challenge: {report}");
    assert_eq!(upstream.count("tools/call"), 1);
    assert_eq!((server.requests("POST /reg"), server.requests("POST /token")), (1, 1));
}

/// A client whose token lacks a scope asks for it and makes the same call again.
async fn steps_up(peer: &LoginPeer) {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let upstream = ScriptedServer::start("db", ServerTransport::Http).await;
    let gateway = Configured::start("step-up", &with_rules(&server, &upstream)).await;
    let report = run(peer, &gateway, OTHER_CLIENT, &["do", "echo", "do"]).await;
    assert_eq!(report["askedScopes"], json!(["mcp:read", "mcp:read mcp:write"]), "{report}");
    assert_ne!(report["sameSession"], false, "{report}");
    assert_eq!(upstream.count("tools/call"), 3);
    assert_eq!(server.requests("POST /token"), 2);
}

macro_rules! clients {
    ($($name:ident: $peer:ident;)+) => {
        $(mod $name {
            #[tokio::test]
            async fn logs_in() {
                super::logs_in(&super::$peer).await;
            }

            #[tokio::test]
            async fn steps_up() {
                super::steps_up(&super::$peer).await;
            }
        })+
    };
}

clients! {
    typescript_1: TS1;
    typescript_2: TS2;
    typescript_2_per_request: TS2_PER_REQUEST;
    python_1: PY1;
    python_2: PY2;
    python_2_per_request: PY2_PER_REQUEST;
}

/// A client of 2025-03-26 knows no metadata of protected resources, no `resource` and no scopes of challenges: it asks the
/// origin of the gateway, and its token is for what the authorization server takes for granted.
#[tokio::test]
async fn a_client_of_2025_03_26_logs_in_with_legacy_metadata() {
    let resource = "http://127.0.0.1:9/granted";
    let server = AuthorizationServer::oidc_provider(&[("DEFAULT_RESOURCE", resource)]).await;
    let upstream = ScriptedServer::start("db", ServerTransport::Http).await;
    let rules = with_rules(&server, &upstream);
    let table = rules.replace("leeway =", &format!("audiences = [\"{resource}\"]\nleeway ="));
    let without = Configured::start("legacy-off", &table).await;
    let output = output(&TS0, &without, "-", &["do"]).await;
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(server.requests("POST /reg"), 0, "nothing tells it where to log in");
    let gateway = Configured::with("legacy", &table, |settings| settings.policy.legacy_metadata = true).await;
    let report = run(&TS0, &gateway, "-", &["do"]).await;
    assert_eq!((&report["calls"][0]["isError"], &report["sameSession"]), (&json!(false), &json!(true)), "{report}");
    assert_eq!((server.requests("POST /reg"), server.requests("POST /token")), (1, 1));
    assert_eq!(gateway.principals(), [format!("{}|ann", server.issuer)]);
    assert_eq!(upstream.count("tools/call"), 1);
}

/// Where only tokens of the file are accepted, a client fails at once: there is nothing to log in at.
#[tokio::test]
async fn a_client_ends_where_it_cannot_log_in() {
    let gateway = Configured::start("tokens-only", "[access.tokens]\nann = \"t0ken\"\n").await;
    for peer in [TS1, TS2, PY2] {
        let output = output(&peer, &gateway, "-", &["getElement"]).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{}: {errors}", peer.script);
    }
    assert_eq!(gateway.rialto.inbound.sessions.count(), 0);
}
