//! Misbehaving stdio children as real processes: exit, restart, kill, and no leaked process or descriptor.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rialto::client::{Client, ClientOptions};
use rialto::dialect::to_upstream::ClientIdentity;
use rialto::failure::{Execution, FailureKind};
use rialto::mcp_client::{ConnectionSettings, Target};
use rialto::protocol::{Method, Raw};
use rialto::upstream::{HealthPhase, Supervisor};
use serde_json::json;
use tokio::sync::mpsc;

use crate::harness::{Rialto, TEST_TIMEOUT, runs_alone, until};
use crate::ports::ReservedPort;

const RIALTO: &str = env!("CARGO_BIN_EXE_rialto");

/// A stdio server started by a shell script. The marker is in the environment of the child and of all its
/// descendants, so that `marked` finds them.
pub fn shell(marker: &str, script: &str) -> Target {
    let mut target = Target::command("sh", ["-c", script]);
    if let Target::Command(command) = &mut target {
        command.environment = vec![("RIALTO".into(), RIALTO.into()), ("MARKER".into(), marker.into())];
    }
    target
}

fn settings() -> ConnectionSettings {
    ConnectionSettings {
        stop_timeout: Duration::from_millis(200),
        ping_interval: Some(Duration::from_millis(100)),
        ..ConnectionSettings::default()
    }
}

async fn connect(target: &Target) -> rialto::error::Result<Client> {
    Client::connect(target, ClientOptions { settings: settings(), ..ClientOptions::default() }).await
}

fn element(name: &str) -> Raw {
    Raw::of(&json!({ "name": name }))
}

async fn assert_works(client: &Client) {
    let result = client.call_tool("getElement", element("Fe")).await.unwrap();
    assert!(result.to_string().contains("Iron"));
}

/// Ids of the processes with this marker in their environment.
pub fn marked(marker: &str) -> Vec<u32> {
    let wanted = format!("MARKER={marker}\0");
    let ids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        let environment = std::fs::read(Path::new("/proc").join(id.to_string()).join("environ")).unwrap_or_default();
        environment.windows(wanted.len()).any(|part| part == wanted.as_bytes())
    })
    .collect()
}

pub fn marker(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

pub async fn gone(marker: &str) {
    until("the marked processes have exited", || marked(marker).is_empty()).await;
}

#[tokio::test]
async fn non_json_lines_on_stdout_are_skipped() {
    let marker = marker("rubbish");
    let target = shell(&marker, r#"echo 'Starting up...'; echo '{"broken'; printf '\377\376\n'; exec "$RIALTO" stdio"#);
    let client = connect(&target).await.unwrap();
    assert_works(&client).await;
    client.close().await;
    gone(&marker).await;
}

#[tokio::test]
async fn an_oversized_stdout_line_is_skipped() {
    let marker = marker("huge");
    let target = shell(&marker, r#"head -c 100000000 /dev/zero | tr '\0' x; echo; exec "$RIALTO" stdio"#);
    let client = connect(&target).await.unwrap();
    assert_works(&client).await;
    client.close().await;
    gone(&marker).await;
}

#[tokio::test]
async fn a_flood_of_stderr_and_rubbish_does_not_flood_the_log() {
    let script = r#"yes 'nothing that anybody would want to read, again and again' | head -c 32000000 >&2
        yes 'no message' | head -n 200000; echo 'the end' >&2; exec "$0" stdio"#;
    let mut command = tokio::process::Command::new(RIALTO);
    command.args(["call", "getElement", "name=Fe", "--log", "info", "--", "sh", "-c", script, RIALTO]);
    let output = tokio::time::timeout(TEST_TIMEOUT, command.kill_on_drop(true).output()).await.unwrap().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(String::from_utf8_lossy(&output.stdout).contains("Iron"), "{}", &log[..log.len().min(2000)]);
    // What is counted is told once more.
    assert!(log.contains("upstream floods the log") && log.contains("log lines about an upstream left out"));
    assert!(log.len() < 2_000_000, "{} bytes", log.len());
}

#[tokio::test]
async fn a_child_exit_during_a_call_reports_signal_and_stderr() {
    let marker = marker("ends");
    let target = shell(&marker, r#"echo 'out of cheese' >&2; exec "$RIALTO" stdio"#);
    let client = connect(&target).await.unwrap();
    let survey = Raw::of(&json!({ "name": "surveyElements", "arguments": { "count": 118, "delayMs": 1000 } }));
    let mut replies = client.begin(Method::ToolsCall, Some(survey));
    let waiting = tokio::spawn(async move { replies.next().await });
    until("the child is running", || !marked(&marker).is_empty()).await;
    for id in marked(&marker) {
        let _ = std::process::Command::new("kill").args(["-KILL", &id.to_string()]).status();
    }
    let reply = tokio::time::timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    let rialto::call::Reply::End(answer) = reply.unwrap() else { panic!("expected the end of the call") };
    let failure = answer.outcome.unwrap_err().failure().unwrap().clone();
    assert_eq!((failure.kind(), failure.execution()), (FailureKind::ChildExited, Execution::MayHaveRun));
    assert!(failure.to_string().contains("signal: 9") && failure.to_string().contains("out of cheese"), "{failure}");
    // Later calls fail at once with the same cause.
    let error = client.call_tool("getElement", element("H")).await.unwrap_err();
    assert!(error.to_string().contains("signal: 9"), "{error}");
    client.close().await;
    gone(&marker).await;
}

#[tokio::test]
async fn a_child_that_exits_at_start_reports_status_and_stderr() {
    let target = shell("at-once", "echo 'no licence' >&2; exit 3");
    let error = connect(&target).await.err().unwrap();
    assert_eq!(error.kind(), Some(FailureKind::ChildExited));
    assert!(error.to_string().contains("exit status: 3") && error.to_string().contains("no licence"), "{error}");
    let error = connect(&Target::command("no-such-program-anywhere", [""; 0])).await.err().unwrap();
    assert!(error.to_string().contains("is it installed"), "{error}");
}

#[tokio::test]
async fn a_child_that_exits_on_the_discovery_probe_is_restarted() {
    let marker = marker("probed");
    // Exits on any first message but initialize, as some servers do.
    let script = r#"read -r line; case "$line" in *'"initialize"'*) { echo "$line"; cat; } | "$RIALTO" stdio;; *) exit 1;; esac"#;
    // The exit races with the pending probe; the result must be the same whichever is seen first.
    for _ in 0..20 {
        let client = connect(&shell(&marker, script)).await.unwrap();
        assert_eq!(client.revision().to_string(), "2025-11-25");
        assert_eq!(client.probe_report().oddities.len(), 1, "{:?}", client.probe_report());
        assert_works(&client).await;
        client.close().await;
    }
    gone(&marker).await;
}

#[tokio::test]
async fn closing_ends_a_child_with_a_call_in_flight() {
    let marker = marker("busy");
    let client = connect(&shell(&marker, r#"exec "$RIALTO" stdio"#)).await.unwrap();
    let survey = Raw::of(&json!({ "name": "surveyElements", "arguments": { "count": 118, "delayMs": 1000 } }));
    let mut replies = client.begin(Method::ToolsCall, Some(survey));
    assert!(matches!(replies.next().await, Some(rialto::call::Reply::Notification(_))));
    client.close().await;
    gone(&marker).await;
    let mut last = replies.next().await;
    while let Some(rialto::call::Reply::Notification(_)) = last {
        last = replies.next().await;
    }
    let Some(rialto::call::Reply::End(answer)) = last else { panic!("expected the end of the call") };
    assert!(answer.outcome.unwrap_err().message().contains("closed"));
}

#[tokio::test]
async fn a_listen_stream_ends_with_the_child() {
    let marker = marker("listens");
    let target = shell(&marker, r#"exec "$RIALTO" stdio"#);
    for revision in ["2025-11-25", "2026-07-28"] {
        let settings = ConnectionSettings { revision: rialto::dialect::Revision::parse(revision), ..settings() };
        let client = Client::connect(&target, ClientOptions { settings, ..ClientOptions::default() }).await.unwrap();
        let request = rialto::client::ListenRequest { lists: true, resources: Vec::new() };
        let mut listening = client.listen(request).await.unwrap();
        for id in marked(&marker) {
            let _ = std::process::Command::new("kill").args(["-KILL", &id.to_string()]).status();
        }
        let ended = tokio::time::timeout(TEST_TIMEOUT, listening.next()).await.expect("the stream ends in time");
        assert!(ended.is_none(), "{revision}");
        client.close().await;
    }
}

#[tokio::test]
async fn a_child_that_ignores_sigterm_is_killed() {
    let marker = marker("ignores");
    let client = connect(&shell(&marker, r#"trap '' TERM; "$RIALTO" stdio; sleep 1000; sleep 1000"#)).await.unwrap();
    assert_works(&client).await;
    client.close().await;
    gone(&marker).await;
}

#[tokio::test]
async fn the_process_group_of_a_child_is_killed() {
    let marker = marker("forks");
    let client = connect(&shell(&marker, r#"sleep 1000 & sleep 1000 & exec "$RIALTO" stdio"#)).await.unwrap();
    assert!(marked(&marker).len() >= 3);
    client.close().await;
    gone(&marker).await;

    let client = connect(&shell(&marker, r#"sleep 1000 & exec "$RIALTO" stdio"#)).await.unwrap();
    drop(client); // without close
    gone(&marker).await;
}

/// A gateway process whose child has descendants, one of them outside of its process group; all carry the marker.
async fn gateway_with_descendants(marker: &str) -> (tokio::process::Child, impl Sized) {
    let mut outer = tokio::process::Command::new(RIALTO);
    let set = format!("MARKER={marker}");
    outer.args(["call", "surveyElements", "delayMs=200", "--env", &set, "--", "sh", "-c"]);
    outer.args([r#"sleep 1000 & setsid sleep 1000 & trap '' TERM HUP; "$0" stdio; sleep 1000"#, RIALTO]);
    outer.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).kill_on_drop(true);
    let mut outer = outer.spawn().unwrap();
    // Progress comes from the innermost process, so all of them are running once it is seen.
    let mut errors = tokio::io::BufReader::new(outer.stderr.take().unwrap());
    let mut line = String::new();
    tokio::io::AsyncBufReadExt::read_line(&mut errors, &mut line).await.unwrap();
    assert!(line.starts_with("progress: 1/"), "{line}");
    assert!(marked(marker).len() >= 4);
    (outer, errors)
}

/// Ids of the reapers of a gateway process: its children that were given its tag as an argument.
fn reapers_of(gateway: u32) -> Vec<u32> {
    let tag = format!("\0RIALTO_CHILD_OF={gateway}-");
    let ids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        let arguments = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        arguments.windows(tag.len()).any(|part| part == tag.as_bytes())
    })
    .collect()
}

/// Sends a signal to all of them at once.
pub fn signal_all(signal: &str, ids: &[u32]) {
    let ids = ids.iter().map(u32::to_string);
    assert!(std::process::Command::new("kill").arg(signal).args(ids).status().unwrap().success());
}

#[tokio::test]
async fn no_child_outlives_sigkill_of_the_gateway() {
    let marker = marker("killed");
    let (mut outer, _errors) = gateway_with_descendants(&marker).await;
    outer.start_kill().unwrap(); // SIGKILL: no chance to clean up
    outer.wait().await.unwrap();
    gone(&marker).await;
}

#[tokio::test]
async fn a_reaper_that_died_is_replaced_and_knows_the_children() {
    let marker = marker("reaper-first");
    let (mut outer, _errors) = gateway_with_descendants(&marker).await;
    let gateway = outer.id().unwrap();
    let first = reapers_of(gateway);
    signal_all("-KILL", &first);
    let is_new = |id: &u32| !first.contains(id);
    until("the reapers are replaced", || reapers_of(gateway).iter().filter(|id| is_new(id)).count() == first.len())
        .await;
    outer.start_kill().unwrap();
    outer.wait().await.unwrap();
    gone(&marker).await;
}

#[tokio::test]
async fn no_child_outlives_sigkill_of_the_gateway_and_a_reaper_at_once() {
    for first in [0, 1] {
        let marker = marker(&format!("both-{first}"));
        let (mut outer, _errors) = gateway_with_descendants(&marker).await;
        let gateway = outer.id().unwrap();
        signal_all("-KILL", &[reapers_of(gateway)[first], gateway]);
        outer.wait().await.unwrap();
        gone(&marker).await;
    }
}

#[tokio::test]
async fn a_thousand_connections_leak_no_sockets_pipes_or_processes() {
    // The tests beside it open files, too.
    if !runs_alone("children::a_thousand_connections_leak_no_sockets_pipes_or_processes") {
        return;
    }
    let rialto = Rialto::start().await;
    let target = Target::url(&rialto.url("/mcp")).unwrap();
    let pinned = ConnectionSettings { revision: rialto::dialect::Revision::parse("2025-11-25"), ..settings() };
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let open = |target: Target, settings: ConnectionSettings| async move {
        let client = Client::connect(&target, ClientOptions { settings, ..ClientOptions::default() }).await.unwrap();
        client.close().await;
    };
    open(target.clone(), pinned.clone()).await;
    let before = files();
    for _ in 0..1000 {
        open(target.clone(), pinned.clone()).await;
    }
    until("every session is ended", || rialto.inbound.sessions.count() == 0).await;
    until("every socket is closed or pooled", || files() < before + 20).await;

    let marker = marker("cycles");
    for _ in 0..1000 {
        let client = connect(&shell(&marker, r#"exec "$RIALTO" stdio"#)).await.unwrap();
        client.close().await;
    }
    gone(&marker).await;
    until("no pipe is left", || files() < before + 20).await;
}

fn supervised(target: Target) -> (Supervisor, mpsc::Receiver<rialto::mcp_client::Unsolicited>) {
    let (sender, receiver) = mpsc::channel(64);
    let identity =
        ClientIdentity { capabilities: Raw::empty(), info: Raw::of(&json!({ "name": "test", "version": "1" })) };
    (Supervisor::start(target, settings(), identity, sender), receiver)
}

async fn wait_for_phase(supervisor: &Supervisor, wanted: HealthPhase) {
    let mut watch = supervisor.watch_health();
    let reached = watch.wait_for(|health| health.phase == wanted);
    tokio::time::timeout(TEST_TIMEOUT, reached).await.expect("the health phase is reached in time").unwrap();
}

#[tokio::test]
async fn a_killed_child_is_restarted() {
    let marker = marker("heals");
    let (supervisor, _notifications) = supervised(shell(&marker, r#"exec "$RIALTO" stdio"#));
    wait_for_phase(&supervisor, HealthPhase::Ready).await;
    for round in 1..=3 {
        for id in marked(&marker) {
            let _ = std::process::Command::new("kill").args(["-KILL", &id.to_string()]).status();
        }
        let mut watch = supervisor.watch_health();
        let healed = watch.wait_for(|health| health.connects > round && health.phase == HealthPhase::Ready);
        tokio::time::timeout(TEST_TIMEOUT, healed).await.expect("the child is restarted in time").unwrap();
    }
    supervisor.stop().await;
    gone(&marker).await;
}

#[tokio::test]
async fn the_supervisor_reconnects_when_the_upstream_returns() {
    let port = ReservedPort::new();
    let start = || Rialto::with(|settings| settings.listen = port.address);
    let mut first = start().await;
    let (supervisor, _notifications) = supervised(Target::url(&first.url("/mcp")).unwrap());
    let connection = supervisor.connection(TEST_TIMEOUT).await.unwrap();
    assert_eq!(connection.server().info.get("name").unwrap().to_string(), r#""elements""#);
    drop(connection);
    first.begin_stop();
    assert!(first.stopped().await);
    wait_for_phase(&supervisor, HealthPhase::Down).await;
    let error = supervisor.connection(TEST_TIMEOUT).await.unwrap_err();
    assert_eq!(error.kind(), Some(FailureKind::Unreachable), "{error}");
    let _second = start().await;
    wait_for_phase(&supervisor, HealthPhase::Ready).await;
    supervisor.stop().await;
}

#[tokio::test]
async fn a_lost_upstream_session_is_initialized_again() {
    let rialto = Arc::new(Rialto::start().await);
    let target = Target::url(&rialto.url("/mcp")).unwrap();
    let pinned = ConnectionSettings { revision: rialto::dialect::Revision::parse("2025-06-18"), ..settings() };
    let client =
        Client::connect(&target, ClientOptions { settings: pinned, ..ClientOptions::default() }).await.unwrap();
    let before = client.session_id().unwrap();
    rialto.inbound.sessions.close_all();
    assert_works(&client).await;
    assert_ne!(client.session_id().unwrap(), before);
    client.close().await;
    until("the new session is ended", || rialto.inbound.sessions.count() == 0).await;
}
