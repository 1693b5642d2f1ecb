//! The binary as a process: signals, stdio and command-line errors.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::harness::{TEST_TIMEOUT, initialize, modern, request};

pub fn rialto() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rialto"));
    command
        .kill_on_drop(true)
        .env_remove("RIALTO_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Starts `rialto serve` and returns the process, its stdout and its address.
pub async fn spawn_gateway(arguments: &[&str]) -> (Child, BufReader<ChildStdout>, String) {
    let mut child =
        rialto().args(["serve", "--listen", "127.0.0.1:0"]).args(arguments).stderr(Stdio::null()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    tokio::time::timeout(TEST_TIMEOUT, output.read_line(&mut line)).await.unwrap().unwrap();
    let (_, rest) = line.split_once("http://").unwrap();
    let (address, _) = rest.split_once("/mcp").unwrap();
    (child, output, address.to_owned())
}

pub fn signal(child: &Child, name: &str) {
    let id = child.id().unwrap().to_string();
    let status = std::process::Command::new("kill").args([name, &id]).status().unwrap();
    assert!(status.success());
}

pub async fn exit_code(mut child: Child) -> Option<i32> {
    tokio::time::timeout(TEST_TIMEOUT, child.wait()).await.expect("the process exits in time").unwrap().code()
}

/// Posts a body over raw HTTP/1.1 and returns the whole response.
async fn post(address: &str, body: &Value) -> String {
    let body = body.to_string();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn sigterm_and_sigint_shut_down_gracefully() {
    for name in ["-TERM", "-INT"] {
        let (child, _output, address) = spawn_gateway(&[]).await;
        assert!(post(&address, &initialize("2025-11-25")).await.starts_with("HTTP/1.1 200"));
        signal(&child, name);
        assert_eq!(exit_code(child).await, Some(0), "{name}");
    }
}

#[tokio::test]
async fn a_second_signal_stops_without_drain() {
    let (child, _output, address) = spawn_gateway(&["--shutdown-timeout", "60"]).await;
    let answer = post(&address, &initialize("2025-11-25")).await;
    let id = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap().to_owned();
    let body = crate::harness::survey(1, 118, 5000).to_string();
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\nmcp-session-id: {id}\r\ncontent-type: application/json\r\naccept: */*\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    signal(&child, "-TERM");
    // 503 shows that the first signal was received: the gateway drains and refuses new requests.
    let refused = async {
        while !post(&address, &initialize("2025-11-25")).await.starts_with("HTTP/1.1 503") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, refused).await.unwrap();
    signal(&child, "-TERM");
    assert_eq!(exit_code(child).await, Some(130));
}

#[tokio::test]
async fn stdio_writes_only_messages_to_stdout() {
    let mut child = rialto().args(["stdio", "--log", "trace"]).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines = [
        initialize("2025-11-25"),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        request(1, "tools/list", json!({})),
        request(2, "tools/call", json!({ "name": "getElement", "arguments": { "name": "金" } })),
    ];
    for line in lines {
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    drop(input);
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).await.unwrap();
    let messages: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(messages.len(), 3);
    assert!(messages[2]["result"]["content"][0]["text"].as_str().unwrap().contains("Gold"));
    assert_eq!(exit_code(child).await, Some(0));
}

#[tokio::test]
async fn sigterm_stops_stdio() {
    let mut child = rialto().arg("stdio").spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(format!("{}\n", modern(json!(1), "server/discover", json!({}))).as_bytes()).await.unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).await.unwrap();
    signal(&child, "-TERM");
    assert_eq!(exit_code(child).await, Some(0));
}

#[tokio::test]
async fn invalid_arguments_exit_with_a_code_and_an_explanation() {
    for (arguments, code, word) in [
        (&["serve", "--listen", "nonsense"][..], 2, "--listen"),
        (&["serve", "--token", "nameless"], 2, "NAME=TOKEN"),
        (&["serve", "--sse-heartbeat-ms", "0"], 2, "--sse-heartbeat-ms"),
        (&["serve", "--log", "rialto=loud=no"], 2, "log filter"),
        (&["frobnicate"], 2, "frobnicate"),
        (&["serve", "--listen", "192.0.2.1:1"], 1, "choose another address"),
    ] {
        let output = rialto().args(arguments).output().await.unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(word), "{arguments:?}: {error}");
    }
}

#[tokio::test]
async fn invalid_variables_are_refused_by_the_name_of_their_flag() {
    for (variable, value, word) in [
        ("RIALTO_HTTP1", "nginx", "--http1"),
        ("RIALTO_HEADER_TIMEOUT", "0", "--header-timeout"),
        ("RIALTO_BODY_TIMEOUT", "soon", "--body-timeout"),
        ("RIALTO_KEEP_ALIVE_TIMEOUT", "0", "--keep-alive-timeout"),
        ("RIALTO_WRITE_STALL_TIMEOUT", "-1", "--write-stall-timeout"),
        ("RIALTO_STORE", "redis://:s3cret@a,b", "--store"),
        ("RIALTO_LOG", "rialto=loud", "--log"),
    ] {
        let output = rialto().arg("serve").env(variable, value).output().await.unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{variable}: {error}");
        assert!(error.contains(word) && !error.contains("s3cret"), "{variable}: {error}");
    }
}
