//! Outputs of the audit log: pipes that nobody reads, full disks, log rotation, and the binary with `[audit]`.

use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};

use rialto::audit::{AuditOutput, QUEUE_CAPACITY};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Audited, open, read_events};
use crate::config::TempFolder;
use crate::harness::{TEST_TIMEOUT, initialize, modern, until};
use crate::process::{exit_code, rialto, signal};

/// Sends that many requests without a token on one connection, and reads the rejections.
async fn be_rejected(audited: &Audited, count: usize) {
    const BATCH: usize = 200;
    let mut stream = TcpStream::connect(audited.rialto.address).await.unwrap();
    let one = format!("GET /mcp HTTP/1.1\r\nhost: {}\r\n\r\n", audited.rialto.address);
    for _ in 0..count.div_ceil(BATCH) {
        let (mut read_half, mut write_half) = stream.split();
        let requests = one.repeat(BATCH);
        let reading = async {
            let (mut seen, mut buffer) = (Vec::new(), [0; 16 << 10]);
            while seen.windows(12).filter(|window| window == b"HTTP/1.1 401").count() < BATCH || !seen.ends_with(b"}") {
                let read = read_half.read(&mut buffer).await.unwrap();
                assert!(read > 0, "the connection stays open");
                seen.extend_from_slice(&buffer[..read]);
            }
        };
        let exchange =
            async { tokio::join!(async { write_half.write_all(requests.as_bytes()).await.unwrap() }, reading) };
        tokio::time::timeout(TEST_TIMEOUT, exchange).await.expect("rejections in time");
    }
}

#[tokio::test]
async fn an_unread_pipe_costs_events_and_no_call() {
    let folder = TempFolder::new("audit-pipe");
    let pipe = folder.0.join("pipe");
    let _ = std::fs::remove_file(&pipe);
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let audited = Audited::start("pipe-gateway", |audit| audit.output = AuditOutput::File(pipe.clone())).await;
    be_rejected(&audited, QUEUE_CAPACITY + 2000).await;
    let audit = audited.rialto.inbound.gateway.audit().clone();
    let lost = audit.lost();
    assert!(lost > 0, "the pipe and the queue are full");
    let session = open(&audited).await;
    let iron = json!({ "name": "one__getElement", "arguments": { "name": "Fe" } });
    assert_eq!(session.ask("tools/call", iron).await["result"]["isError"], false);
    assert!(audit.lost() > lost, "the call was not recorded");
    let metrics = audited.rialto.inbound.admin.metrics();
    assert!(metrics.contains(&format!("rialto_audit_lost_events_total {}", audit.lost())), "{metrics}");

    // Once somebody reads, the number of lost events stands in the log.
    let reader = std::thread::spawn(move || {
        let mut file = std::fs::OpenOptions::new().read(true).custom_flags(0o4000).open(&pipe).unwrap(); // O_NONBLOCK
        let (mut text, mut buffer) = (Vec::new(), [0; 64 << 10]);
        let deadline = std::time::Instant::now() + TEST_TIMEOUT;
        while !String::from_utf8_lossy(&text).contains("\"event\":\"loss\"") {
            assert!(std::time::Instant::now() < deadline, "the loss is reported");
            match file.read(&mut buffer) {
                Ok(count) => text.extend_from_slice(&buffer[..count]),
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
            }
        }
        String::from_utf8(text).unwrap()
    });
    let text = tokio::task::spawn_blocking(|| reader.join().unwrap()).await.unwrap();
    let line = text.lines().find(|line| line.contains("\"event\":\"loss\"")).unwrap();
    let loss: Value = serde_json::from_str(line).unwrap();
    assert!(loss["lost"].as_u64().unwrap() > 0, "{loss}");
}

#[tokio::test]
async fn a_full_disk_costs_events_and_no_call() {
    let audited = Audited::start("full", |audit| audit.output = AuditOutput::File("/dev/full".into())).await;
    let session = open(&audited).await;
    for _ in 0..3 {
        let iron = json!({ "name": "one__getElement", "arguments": { "name": "Fe" } });
        assert_eq!(session.ask("tools/call", iron).await["result"]["isError"], false);
    }
    let audit = audited.rialto.inbound.gateway.audit();
    until("all events are counted as lost", || audit.lost() == 4).await;
}

#[tokio::test]
async fn lossless_refuses_calls_until_the_log_can_be_written() {
    let folder = TempFolder::new("audit-lossless");
    let (link, real) = (folder.0.join("link"), folder.0.join("real"));
    let _ = (std::fs::remove_file(&link), std::fs::remove_file(&real));
    symlink("/dev/full", &link).unwrap();
    let audited = Audited::start("lossless-gateway", |audit| {
        audit.output = AuditOutput::File(link.clone());
        audit.lossless = true;
    })
    .await;
    let opening = initialize("2025-11-25");
    assert_eq!(audited.post(&opening).status().await, 200, "the log is not known to be full yet");
    let audit = audited.rialto.inbound.gateway.audit();
    until("the failure is noticed", || audit.must_refuse()).await;
    let refused = audited.post(&opening).go().await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert!(refused.text().await.contains("cannot record calls right now"));
    assert_eq!(audited.rialto.send("GET", "/healthz").status().await, 200);

    std::fs::remove_file(&link).unwrap();
    symlink(&real, &link).unwrap();
    until("the log can be written again", || !audit.must_refuse()).await;
    assert_eq!(audited.post(&opening).status().await, 200);
    audit.flush(TEST_TIMEOUT).await;
    let events = read_events(&std::fs::read_to_string(&real).unwrap());
    let sessions = events.iter().filter(|event| event["outcome"] == "allowed").count();
    assert_eq!((sessions, audit.lost()), (2, 0), "nothing is lost: {events:?}");
}

#[tokio::test]
async fn lines_cut_by_a_full_file_system_are_removed() {
    // A limit of the file size makes writes fail in the middle of a line, as a full disk does.
    let folder = TempFolder::new("audit-limit");
    folder.write("rialto.toml", "[audit]\noutput = \"file:audit.jsonl\"\n");
    let _ = std::fs::remove_file(folder.0.join("audit.jsonl"));
    let script = "trap '' XFSZ; ulimit -f 2; exec \"$0\" serve --listen 127.0.0.1:0";
    let mut command = tokio::process::Command::new("bash");
    command.args(["-c", script, env!("CARGO_BIN_EXE_rialto")]).current_dir(&folder.0).env_remove("RIALTO_CONFIG");
    let mut child = command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let address = address_of(child.stdout.as_mut().unwrap()).await;
    for _ in 0..30 {
        assert!(call_once(&address).await.contains("Iron"));
    }
    signal(&child, "-TERM");
    assert_eq!(exit_code(child).await, Some(0));
    let text = std::fs::read_to_string(folder.0.join("audit.jsonl")).unwrap();
    let events = read_events(&text);
    assert!(!events.is_empty() && text.len() <= 2048, "{} bytes", text.len());
}

async fn address_of(output: &mut tokio::process::ChildStdout) -> String {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut line = String::new();
    let mut output = BufReader::new(output);
    tokio::time::timeout(TEST_TIMEOUT, output.read_line(&mut line)).await.unwrap().unwrap();
    let (_, rest) = line.split_once("http://").unwrap();
    rest.split_once("/mcp").unwrap().0.to_owned()
}

/// A call of the per-request era on a connection of its own; returns the whole response.
async fn call_once(address: &str) -> String {
    let params = json!({ "name": "getElement", "arguments": { "name": "Fe" } });
    let body = modern(1.into(), "tools/call", params).to_string();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: application/json, \
         text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: getElement\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test]
async fn the_file_is_reopened_after_rotation_and_reloads_are_recorded() {
    let folder = TempFolder::new("audit-rotation");
    let config = "[audit]\noutput = \"file:audit.jsonl\"\ndigest_key = \"s3cret-digest-key\"\n";
    folder.write("rialto.toml", config);
    let (file, rotated) = (folder.0.join("audit.jsonl"), folder.0.join("audit.1"));
    let _ = (std::fs::remove_file(&file), std::fs::remove_file(&rotated));
    let mut command = rialto();
    command.current_dir(&folder.0).env_remove("RIALTO_CONFIG").args(["serve", "--listen", "127.0.0.1:0"]);
    let mut child = command.spawn().unwrap();
    let mut log = child.stderr.take().unwrap();
    let address = address_of(child.stdout.as_mut().unwrap()).await;
    assert!(call_once(&address).await.contains("Iron"));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let events = |path: &std::path::Path| read_events(&std::fs::read_to_string(path).unwrap_or_default());
    until("the start and the call are written", || events(&file).len() == 3).await;
    std::fs::rename(&file, &rotated).unwrap();
    signal(&child, "-HUP");
    let has =
        |outcome: &str| events(&file).iter().any(|event| event["event"] == "config" && event["outcome"] == outcome);
    until("the reload is in the new file", || has("allowed")).await;
    assert!(call_once(&address).await.contains("Iron"));
    until("so is the next call", || events(&file).iter().any(|event| event["event"] == "call")).await;
    assert_eq!(events(&rotated).len(), 3);
    folder.write("rialto.toml", &format!("{config}arguments = \"everything\"\n"));
    until("a refused file is recorded", || has("failed")).await;
    signal(&child, "-TERM");
    assert_eq!(exit_code(child).await, Some(0));
    let mut text = String::new();
    log.read_to_string(&mut text).await.unwrap();
    assert!(!text.contains("s3cret-digest-key"), "{text}");
}

#[tokio::test]
async fn mistakes_in_the_settings_are_reported() {
    let folder = TempFolder::new("audit-mistakes");
    let run = async |file: &str, arguments: &[&str]| {
        folder.write("rialto.toml", file);
        let mut command = rialto();
        command.current_dir(&folder.0).env_remove("RIALTO_CONFIG").args(arguments).stdin(std::process::Stdio::null());
        let output = tokio::time::timeout(TEST_TIMEOUT, command.output()).await.unwrap().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = run("[audit]\noutput = \"syslog\"\nredact = [\"password\"]\n", &["check"]).await;
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("2:10: error: `output` in [audit] is no output"), "{errors}");
    assert!(errors.contains("3:11: error: \"password\" is no JSON Pointer; write it as \"/password\""), "{errors}");
    let missing = "[audit]\noutput = \"file:none/audit.jsonl\"\n";
    let (code, errors) = run(missing, &["serve", "--listen", "127.0.0.1:0"]).await;
    assert!(code == 1 && errors.contains("the audit log none/audit.jsonl cannot be opened"), "{errors}");
    let (code, errors) = run("[audit]\noutput = \"stdout\"\n", &["stdio"]).await;
    assert!(code == 1 && errors.contains("the audit log cannot go to stdout"), "{errors}");
}
