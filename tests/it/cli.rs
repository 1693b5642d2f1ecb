//! The client subcommands: probe, tools, call, resources, read, prompts, prompt, listen.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use crate::harness::{Rialto, TEST_TIMEOUT};
use crate::process::rialto;
use crate::scripted_server::{InjectedFault, ScriptedServer, ServerTransport};

struct CommandOutput {
    code: i32,
    output: String,
    errors: String,
}

async fn run(arguments: &[&str]) -> CommandOutput {
    let mut command = rialto();
    let output = tokio::time::timeout(TEST_TIMEOUT, command.args(arguments).stdin(Stdio::null()).output());
    let output = output.await.expect("the command exits in time").unwrap();
    CommandOutput {
        code: output.status.code().unwrap(),
        output: String::from_utf8(output.stdout).unwrap(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

impl CommandOutput {
    fn json(&self) -> Value {
        serde_json::from_str(&self.output).unwrap_or_else(|error| panic!("{error}: {} {}", self.output, self.errors))
    }
}

#[tokio::test]
async fn probe_reports_transport_revision_and_server() {
    let rialto = Rialto::start().await;
    for (path, arguments, transport, revision, session) in [
        ("/mcp", &[][..], "streamable-http", "2026-07-28", false),
        ("/mcp", &["--revision", "2025-06-18"], "streamable-http", "2025-06-18", true),
        ("/sse", &[], "sse", "2025-11-25", false),
        ("/sse", &["--transport", "sse", "--revision", "2024-11-05"], "sse", "2024-11-05", false),
    ] {
        let url = rialto.url(path);
        let ran = run(&[&["probe", "--json"], arguments, &[url.as_str()]].concat()).await;
        let found = ran.json();
        assert_eq!((&found["transport"], &found["revision"]), (&json!(transport), &json!(revision)), "{found}");
        assert_eq!(found["session"], session);
        assert_eq!(found["server"]["name"], "elements");
        assert!(found["why"].is_string());
        let shown = run(&[&["probe"], arguments, &[url.as_str()]].concat()).await;
        assert!(shown.output.contains(transport) && shown.output.contains(revision), "{}", shown.output);
    }
    crate::harness::until("every session is ended", || rialto.inbound.sessions.count() == 0).await;
}

#[tokio::test]
async fn lists_print_as_tables_or_json() {
    let rialto = Rialto::start().await;
    let url = rialto.url("/mcp");
    for (command, member, word) in [
        ("tools", "tools", "getElement"),
        ("resources", "resources", "elements://table"),
        ("prompts", "prompts", "describeElement"),
    ] {
        let table = run(&[command, &url]).await;
        assert!(table.code == 0 && table.output.contains(word), "{}", table.output);
        let listed = run(&[command, "--json", &url]).await.json();
        assert!(!listed[member].as_array().unwrap().is_empty());
    }
    let read = run(&["read", &url, "elements://symbol/Au"]).await;
    assert!(read.output.contains("Gold"));
    let prompt = run(&["prompt", &url, "describeElement", "name=Au"]).await;
    assert!(prompt.output.starts_with("user: ") && prompt.output.contains("Gold"));
}

#[tokio::test]
async fn call_exit_codes_name_the_failure() {
    let rialto = Rialto::start().await;
    let url = rialto.url("/mcp");
    let url = url.as_str();
    for (arguments, code, word) in [
        (&["call", url, "getElement", "name=Fe"][..], 0, "Iron"),
        (&["call", url, "getElementByPosition", "position=79"], 0, "Gold"),
        (&["call", url, "getElementByPosition", "position:=79"], 0, "Gold"),
        (&["call", url, "getElement", "name=Nope"], 1, "元素不存在"),
        (&["call", url, "getElement"], 2, "\"name\" is missing"),
        (&["call", url, "getElement", "nmae=Fe"], 2, "did you mean \"name\"?"),
        (&["call", url, "getElmeent", "name=Fe"], 2, "did you mean \"getElement\"?"),
        (&["call", url, "getElementByPosition", "position=iron"], 2, "must be an integer"),
        (&["call", url], 2, "which tool"),
        (&["call", "ftp://x", "y"], 2, "is no HTTP address"),
        (&["call"], 2, "which server"),
        (&["call", "http://127.0.0.1:1/mcp", "x"], 3, "is the server running?"),
        (&["call", "--unchecked", url, "nope"], 4, "-32602"),
        (&["read", url, "elements://nope"], 4, "no resource"),
        (&["call", "getElement", "name=Fe", "--", "no-such-program"], 3, "is it installed"),
    ] {
        let ran = run(arguments).await;
        let printed = format!("{}{}", ran.output, ran.errors);
        assert_eq!(ran.code, code, "{arguments:?}: {printed}");
        assert!(printed.contains(word), "{arguments:?}: {printed}");
    }
    let result = run(&["call", "--json", url, "getElement", "name=Fe"]).await.json();
    assert_eq!(result["structuredContent"]["symbol"], "Fe");
}

#[tokio::test]
async fn a_command_after_dashes_is_the_server() {
    let server = env!("CARGO_BIN_EXE_rialto");
    let ran = run(&["call", "getElement", "name=W", "--", server, "stdio"]).await;
    assert!(ran.output.contains("Tungsten"), "{}", ran.errors);
    let ran = run(&["probe", "--json", "--", server, "stdio"]).await;
    assert_eq!(ran.json()["transport"], "stdio");
}

#[tokio::test]
async fn a_server_name_from_the_config_is_a_target() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("servers-{}.json", std::process::id()));
    let servers = json!({ "mcpServers": { "table": { "command": env!("CARGO_BIN_EXE_rialto"), "args": ["stdio"] } } });
    std::fs::write(&file, servers.to_string()).unwrap();
    let path = file.to_str().unwrap();
    let ran = run(&["call", "--config", path, "table", "getElement", "name=Ag"]).await;
    assert!(ran.output.contains("Silver"), "{}", ran.errors);
    let ran = run(&["tools", "--config", path, "tabel"]).await;
    assert!(ran.code == 2 && ran.errors.contains("did you mean \"table\"?"), "{}", ran.errors);
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn arguments_are_read_from_a_file() {
    let rialto = Rialto::start().await;
    let url = rialto.url("/mcp");
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("arguments-{}.json", std::process::id()));
    std::fs::write(&file, r#"{"name":"He"}"#).unwrap();
    let path = file.to_str().unwrap();
    let ran = run(&["call", &url, "getElement", "--args", path]).await;
    assert!(ran.output.contains("Helium"), "{}", ran.errors);
    let ran = run(&["call", &url, "getElement", "--args", path, "name=Ne"]).await;
    assert!(ran.output.contains("Neon"), "arguments on the command line override the file: {}", ran.output);
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn credentials_are_sent_and_never_logged() {
    let tokens = ["ann=s3cret".to_owned()];
    let rialto =
        Rialto::with(|settings| settings.policy.tokens = rialto::policy::Tokens::parse(&tokens).unwrap()).await;
    let url = rialto.url("/mcp");
    let ran = run(&["tools", &url]).await;
    assert_eq!(ran.code, 3);
    assert!(ran.errors.contains("401") && ran.errors.contains("credentials"), "{}", ran.errors);
    let ran = run(&["tools", "--log", "trace", "-H", "Authorization: Bearer s3cret", &url]).await;
    assert_eq!(ran.code, 0, "{}", ran.errors);
    assert!(!ran.errors.contains("s3cret"), "the token is in the log");
}

/// Sends SIGINT to a client command and returns its exit code.
async fn interrupt(mut child: Child) -> Option<i32> {
    crate::process::signal(&child, "-INT");
    tokio::time::timeout(TEST_TIMEOUT, child.wait()).await.unwrap().unwrap().code()
}

#[tokio::test]
async fn sigint_cancels_the_call() {
    let server = ScriptedServer::start("server", ServerTransport::Http).await;
    let spec = UpstreamSpec::new("server", SpecKind::Target(server.target()));
    let groups = vec![GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&spec.name)])];
    let mut gateway = Rialto::with(|settings| settings.gateway = GatewayConfig { upstreams: vec![spec], groups }).await;
    let call = ["call", &gateway.url("/mcp"), "do", r#"steps:=[{"wait":"go"}]"#];
    let child = rialto().args(call).spawn().unwrap();
    // The call itself: the client asks for other things before.
    server.wait_received("tools/call", 1).await;
    assert_eq!(interrupt(child).await, Some(130));
    gateway.begin_stop();
    assert!(gateway.stopped().await, "no call is running");
}

#[tokio::test]
async fn sigint_ends_a_client_that_connects() {
    let server = ScriptedServer::start("server", ServerTransport::PerRequest).await;
    server.inject_fault("server/discover", InjectedFault::Hang);
    let url = format!("http://{}/mcp", server.address);
    let child = rialto().args(["call", &url, "echo"]).spawn().unwrap();
    server.wait_received("server/discover", 1).await;
    assert_eq!(interrupt(child).await, Some(130));
}

#[tokio::test]
async fn listen_prints_resource_updates() {
    let server =
        Rialto::with(|settings| settings.gateway = rialto::app::builtin_config(Duration::from_millis(50))).await;
    for revision in ["2026-07-28", "2025-06-18"] {
        let mut child = rialto();
        child.args(["listen", "--revision", revision, &server.url("/mcp"), "elements://spotlight"]);
        let mut child = child.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(TEST_TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
        assert_eq!(line, "notifications/resources/updated elements://spotlight", "{revision}");
        child.start_kill().unwrap();
    }
}

#[tokio::test]
async fn shell_completions_are_printed() {
    let ran = run(&["completions", "bash"]).await;
    assert!(ran.code == 0 && ran.output.contains("complete -F _rialto"));
}
