//! Every way in which a call can fail, on every transport: the client's sentence, the kind, whether the call can have
//! run, and when to try again. Servers are real processes and sockets.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rialto::client::{Client, ClientOptions};
use rialto::dialect::Revision;
use rialto::error::Error;
use rialto::failure::{Execution, Failure, FailureKind, client_text};
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::mcp_client::{ConnectionSettings, HttpTransport, Target};
use rialto::protocol::Raw;
use rialto::upstream::{HealthPhase, List, SpecKind, UpstreamSpec};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};

use crate::harness::{PER_REQUEST, Rialto, TEST_TIMEOUT, call, request, until};
use crate::ports::ReservedPort;
use crate::scripted_server::{InjectedFault, ScriptedServer, ServerTransport};

const HTTP_TRANSPORTS: [ServerTransport; 3] =
    [ServerTransport::Http, ServerTransport::Sse, ServerTransport::PerRequest];
const ALL_TRANSPORTS: [ServerTransport; 4] =
    [ServerTransport::Http, ServerTransport::Sse, ServerTransport::PerRequest, ServerTransport::Stdio];
const CLIENT_REVISIONS: [&str; 2] = ["2025-11-25", PER_REQUEST];

const NOT_RUN: &str = "the call was not carried out";
const MAY_HAVE_RUN: &str = "the call may have been carried out";
const IDLE_TIMEOUT: Duration = Duration::from_millis(700);
const TOTAL_TIMEOUT: Duration = Duration::from_millis(1500);
const MESSAGE_BYTES: usize = 64 << 10;

/// What the client is told.
#[derive(Debug, PartialEq)]
struct Told {
    text: String,
    kind: String,
    may_have_run: bool,
    retry_after_ms: Option<u64>,
}

impl Told {
    fn of_error(answer: &Value) -> Self {
        let error = &answer["error"];
        assert_eq!(error["code"], -32603, "{answer}");
        assert_eq!(error["data"]["upstream"], "bad", "{answer}");
        Self {
            text: error["message"].as_str().unwrap().to_owned(),
            kind: error["data"]["failure"].as_str().unwrap().to_owned(),
            may_have_run: error["data"]["mayHaveRun"].as_bool().unwrap(),
            retry_after_ms: error["data"]["retryAfterMs"].as_u64(),
        }
    }

    fn new(kind: &str, what: &str, advice: &str) -> Self {
        let may_have_run = advice == MAY_HAVE_RUN;
        Self {
            text: format!("Upstream \"bad\" {what}; {advice}"),
            kind: kind.into(),
            may_have_run,
            retry_after_ms: None,
        }
    }

    fn not_run(kind: &str, what: &str, advice: &str) -> Self {
        Self::new(kind, what, &format!("{NOT_RUN}{advice}"))
    }

    fn after(self, milliseconds: u64) -> Self {
        Self { retry_after_ms: Some(milliseconds), ..self }
    }
}

/// A timeout that no call of a test reaches, however busy the machine is.
const OUT_OF_REACH: Duration = TEST_TIMEOUT.saturating_mul(3);

/// The upstream `bad`, with short timeouts but those of calls.
fn upstream(target: Target) -> UpstreamSpec {
    let mut spec = UpstreamSpec::new("bad", SpecKind::Target(target));
    spec.settings = ConnectionSettings {
        stop_timeout: Duration::from_millis(500),
        ping_interval: Some(Duration::from_millis(200)),
        connect_timeout: Duration::from_secs(2),
        discovery_timeout: Duration::from_secs(2),
        idle_timeout: OUT_OF_REACH,
        total_timeout: OUT_OF_REACH,
        message_bytes: MESSAGE_BYTES,
        ..ConnectionSettings::default()
    };
    spec
}

/// The upstream `bad` whose silence ends a call soon.
fn impatient(target: Target) -> UpstreamSpec {
    let mut spec = upstream(target);
    spec.settings.idle_timeout = IDLE_TIMEOUT;
    spec
}

/// A gateway that serves the upstream alone, with its tools known.
async fn serve(spec: UpstreamSpec) -> Rialto {
    let group = GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&spec.name)]);
    let config = GatewayConfig { upstreams: vec![spec], groups: vec![group] };
    let rialto = Rialto::with(|settings| settings.gateway = config).await;
    until("the tools are known", || rialto.group().view(Revision::NEWEST).find_by_name(List::Tools, "echo").is_some())
        .await;
    rialto
}

fn phase(rialto: &Rialto) -> HealthPhase {
    rialto.inbound.gateway.upstreams()[0].state().health.phase
}

/// The answer to a tool call of a client that speaks `revision`.
async fn answer(rialto: &Rialto, revision: &str, tool: &str, arguments: Value) -> Value {
    if revision == PER_REQUEST {
        let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "token" } });
        return rialto.modern("tools/call", params).answer().await.1;
    }
    let session = rialto.open(revision).await;
    session.post(&call(1, tool, arguments)).answer().await.1
}

async fn told(rialto: &Rialto, revision: &str, tool: &str, arguments: Value) -> Told {
    Told::of_error(&answer(rialto, revision, tool, arguments).await)
}

#[tokio::test]
async fn an_http_status_tells_whether_the_call_can_have_run() {
    let later = |status, delay: &str| InjectedFault::RetryLater(status, delay.into());
    let raw = |status, body: &str| InjectedFault::RawResponse(status, body.into());
    let operator = "; the operator must correct them";
    for transport in HTTP_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let rialto = serve(upstream(bad.target())).await;
        for (fault, expected) in [
            (raw(401, "who?"), Told::not_run("credentials", "refused the gateway's credentials (401)", operator)),
            (raw(403, "no"), Told::not_run("credentials", "refused the gateway's credentials (403)", operator)),
            (raw(429, ""), Told::not_run("rate_limited", "limits the rate of calls (429)", "; try again later")),
            (
                later(429, "3"),
                Told::not_run("rate_limited", "limits the rate of calls (429)", "; try again in 3 s").after(3000),
            ),
            (raw(503, ""), Told::not_run("unavailable", "is unavailable (503)", "; try again later")),
            (later(503, "7"), Told::not_run("unavailable", "is unavailable (503)", "; try again in 7 s").after(7000)),
            (
                raw(429, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"slow down"}}"#),
                Told::not_run("rate_limited", "limits the rate of calls (429)", "; try again later"),
            ),
            (raw(413, ""), Told::not_run("http_status", "answered with HTTP status 413", "")),
            (raw(500, "oops"), Told::new("http_status", "answered with HTTP status 500", MAY_HAVE_RUN)),
            (later(502, "9"), Told::new("http_status", "answered with HTTP status 502", MAY_HAVE_RUN).after(9000)),
        ] {
            for revision in CLIENT_REVISIONS {
                bad.inject_fault("tools/call", fault.clone());
                assert_eq!(told(&rialto, revision, "echo", json!({})).await, expected, "{transport:?} {revision}");
            }
        }
    }
}

#[tokio::test]
async fn a_date_in_retry_after_is_a_delay() {
    let bad = ScriptedServer::start("bad", ServerTransport::Http).await;
    let rialto = serve(upstream(bad.target())).await;
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
    bad.inject_fault("tools/call", InjectedFault::RetryLater(503, date));
    let told = told(&rialto, PER_REQUEST, "echo", json!({})).await;
    let delay = told.retry_after_ms.unwrap();
    assert!((80_000..=100_000).contains(&delay), "{delay}");
    assert!(told.text.contains("; try again in "), "{told:?}");
}

#[tokio::test]
async fn silence_and_the_total_timeout_have_texts_of_their_own() {
    let steps: Vec<Value> = (1..100).flat_map(|n| [json!({ "progress": n }), json!({ "pause": 50 })]).collect();
    for transport in ALL_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let mut spec = upstream(bad.target());
        spec.settings.total_timeout = TOTAL_TIMEOUT;
        let rialto = serve(spec).await;
        for revision in CLIENT_REVISIONS {
            let busy = told(&rialto, revision, "do", json!({ "steps": steps })).await;
            assert_eq!(busy, Told::new("timed_out", "did not finish within 1500 ms", MAY_HAVE_RUN), "{transport:?}");
        }
        let rialto = serve(impatient(bad.target())).await;
        bad.inject_fault("tools/call", InjectedFault::Hang);
        for revision in CLIENT_REVISIONS {
            let silent = told(&rialto, revision, "echo", json!({})).await;
            assert_eq!(silent, Told::new("silent", "was silent for 700 ms", MAY_HAVE_RUN), "{transport:?}");
        }
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused() {
    let large = json!({ "content": [{ "type": "text", "text": "x".repeat(MESSAGE_BYTES) }] });
    for transport in ALL_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let rialto = serve(upstream(bad.target())).await;
        let large = large.clone();
        bad.inject_fault("tools/call", InjectedFault::Result(Arc::new(move |_| large.clone())));
        let expected = Told::new("too_large", "sent a message of more than 65536 bytes", MAY_HAVE_RUN);
        assert_eq!(told(&rialto, PER_REQUEST, "echo", json!({})).await, expected, "{transport:?}");
    }
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        let bad = ScriptedServer::start("bad", transport).await;
        let rialto = serve(upstream(bad.target())).await;
        bad.inject_fault("tools/call", InjectedFault::RawResponse(200, "x".repeat(MESSAGE_BYTES + 1)));
        let told = told(&rialto, PER_REQUEST, "echo", json!({})).await;
        assert_eq!(told.kind, "too_large", "a body of JSON: {told:?}");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_json_violates_the_protocol() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        let bad = ScriptedServer::start("bad", transport).await;
        let rialto = serve(upstream(bad.target())).await;
        for body in ["<html>s3cret", "", r#"{"jsonrpc":"2.0","id":"other","result":{}}"#] {
            bad.inject_fault("tools/call", InjectedFault::RawResponse(200, body.into()));
            let expected = Told::new("protocol", "violated the protocol", MAY_HAVE_RUN);
            assert_eq!(told(&rialto, "2025-11-25", "echo", json!({})).await, expected, "{transport:?}");
        }
    }
    // Over HTTP+SSE the answer to the POST is not the answer to the call, which is missed on the stream.
    let bad = ScriptedServer::start("bad", ServerTransport::Sse).await;
    let rialto = serve(impatient(bad.target())).await;
    bad.inject_fault("tools/call", InjectedFault::RawResponse(200, "<html>".into()));
    assert_eq!(told(&rialto, "2025-11-25", "echo", json!({})).await.kind, "silent");
}

#[tokio::test]
async fn a_connection_that_breaks_after_sending_leaves_the_outcome_open() {
    for transport in ALL_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let rialto = serve(upstream(bad.target())).await;
        bad.inject_fault("tools/call", InjectedFault::Hang);
        let (told, ()) = tokio::join!(told(&rialto, "2025-11-25", "echo", json!({})), async {
            bad.wait_received("tools/call", 1).await;
            bad.stop();
        });
        let expected = match transport {
            ServerTransport::Stdio => Told::new("child_exited", "exited before it answered", MAY_HAVE_RUN),
            _ => Told::new("broken", "closed the connection before it answered", MAY_HAVE_RUN),
        };
        assert_eq!(told, expected, "{transport:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_means_that_the_call_was_not_carried_out() {
    for transport in ALL_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let rialto = serve(upstream(bad.target())).await;
        bad.stop();
        until("the upstream is down", || phase(&rialto) == HealthPhase::Down).await;
        let expected = match transport {
            // The child itself starts, and exits when it cannot reach its server.
            ServerTransport::Stdio => Told::not_run("child_exited", "exited before it answered", "; try again later"),
            _ => Told::not_run("unreachable", "cannot be reached", "; try again later"),
        };
        for revision in CLIENT_REVISIONS {
            assert_eq!(told(&rialto, revision, "echo", json!({})).await, expected, "{transport:?}");
        }
    }
}

#[tokio::test]
async fn a_lost_server_that_refuses_the_handshake_is_reported_by_its_reason() {
    for transport in HTTP_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let rialto = serve(upstream(bad.target())).await;
        bad.stop();
        until("the upstream is down", || phase(&rialto) == HealthPhase::Down).await;
        for method in ["initialize", "server/discover", "GET"] {
            bad.inject_fault(method, InjectedFault::RetryLater(503, "60".into()));
        }
        bad.restart().await;
        let kind =
            |rialto: &Rialto| rialto.inbound.gateway.upstreams()[0].state().health.failure.as_ref().map(Failure::kind);
        until("the reason is known", || kind(&rialto) == Some(FailureKind::Unavailable)).await;
        let told = told(&rialto, "2025-11-25", "echo", json!({})).await;
        assert_eq!((told.kind.as_str(), told.may_have_run), ("unavailable", false), "{transport:?}");
        assert!(
            told.text.starts_with("Upstream \"bad\" is unavailable (503); the call was not carried out"),
            "{told:?}"
        );
        // What is left of the delay, counted from the refusal.
        let delay = told.retry_after_ms.unwrap();
        assert!((30_000..60_000).contains(&delay), "{transport:?}: {delay}");
    }
}

#[tokio::test]
async fn a_redirect_to_another_origin_is_not_followed_and_has_run_nothing() {
    for transport in HTTP_TRANSPORTS {
        let (bad, other) = (ScriptedServer::start("bad", transport).await, ScriptedServer::start("o", transport).await);
        let rialto = serve(upstream(bad.target())).await;
        for status in [301, 302, 307, 308] {
            let elsewhere = format!("http://{}/mcp?key=s3cret", other.address);
            bad.inject_fault("tools/call", InjectedFault::Redirect(status, elsewhere));
            let expected = Told::not_run("http_status", &format!("answered with HTTP status {status}"), "");
            for revision in CLIENT_REVISIONS {
                assert_eq!(told(&rialto, revision, "echo", json!({})).await, expected, "{transport:?} {revision}");
            }
        }
        assert_eq!(other.count("tools/call"), 0, "{transport:?}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_the_handshake_has_not_run_the_call() {
    for transport in ALL_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        for method in ["server/discover", "initialize"] {
            let error = json!({ "code": -32050, "message": "s3cret: go away" });
            bad.inject_fault(method, InjectedFault::Error(error));
        }
        let config = GatewayConfig {
            groups: vec![GroupConfig::new(DEFAULT_GROUP, ["bad".into()])],
            upstreams: vec![upstream(bad.target())],
        };
        let rialto = Rialto::with(|settings| settings.gateway = config).await;
        until("the upstream is down", || phase(&rialto) == HealthPhase::Down).await;
        let expected = Told::not_run("handshake_refused", "refused the handshake with error -32050", "");
        let (_, answer) = rialto.modern("resources/read", json!({ "uri": "res://one" })).answer().await;
        assert_eq!(Told::of_error(&answer), expected, "{transport:?}");
    }
}

#[tokio::test]
async fn a_client_that_answers_no_question_is_told_so() {
    let bad = ScriptedServer::start("bad", ServerTransport::PerRequest).await;
    let rialto = serve(upstream(bad.target())).await;
    let ask = json!({ "method": "elicitation/create", "params": { "message": "?", "requestedSchema": {} } });
    let asking = json!({ "resultType": "input_required", "inputRequests": { "q": ask }, "requestState": "mine" });
    for method in ["resources/read", "tools/call"] {
        let asking = asking.clone();
        bad.inject_fault(method, InjectedFault::Result(Arc::new(move |_| asking.clone())));
    }
    let session = rialto.open("2025-11-25").await;
    let (_, answer) = session.post(&request(1, "resources/read", json!({ "uri": "res://one" }))).answer().await;
    let told = Told::of_error(&answer);
    assert_eq!((told.kind.as_str(), told.may_have_run, told.retry_after_ms), ("client_unanswered", true, None));
    assert_eq!(told.text, format!("The client did not answer a request of the server; {MAY_HAVE_RUN}"));
    // The model of a tool call reads why.
    let (_, answer) = session.post(&call(2, "echo", json!({}))).answer().await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert_eq!(answer["result"]["content"][0]["text"], "the client did not answer: the client cannot be asked this");
}

/// A server that asks without end, or for something that is no question: its failure is none of the tool.
#[tokio::test]
async fn a_tool_call_whose_server_asks_wrongly_ends_with_the_typed_failure() {
    let bad = ScriptedServer::start("bad", ServerTransport::PerRequest).await;
    let mut spec = upstream(bad.target());
    spec.settings.max_input_rounds = 0;
    let rialto = serve(spec).await;
    for requests in [json!({}), json!(["s3cret"])] {
        let asking = json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "mine" });
        bad.inject_fault("tools/call", InjectedFault::Result(Arc::new(move |_| asking.clone())));
        let expected = Told::new("protocol", "violated the protocol", MAY_HAVE_RUN);
        assert_eq!(told(&rialto, "2025-11-25", "echo", json!({})).await, expected);
    }
}

#[tokio::test]
async fn the_lease_limit_is_reached_before_anything_is_sent() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio] {
        let bad = ScriptedServer::start("bad", transport).await;
        let mut spec = upstream(bad.target());
        spec.max_leases = 1;
        let rialto = serve(spec).await;
        let first = rialto.open("2025-11-25").await;
        let waiting = json!({ "name": "echo", "arguments": { "steps": [{ "wait": "go" }] } });
        let busy = first.post(&crate::harness::request(7, "tools/call", waiting));
        let busy = tokio::spawn(async move { busy.go().await.text().await });
        bad.wait_received("tools/call", 1).await;
        let calls = bad.count("tools/call");
        let expected = Told::not_run("limit_reached", "has as many clients as it may have", "; try again later");
        assert_eq!(told(&rialto, "2025-11-25", "echo", json!({})).await, expected, "{transport:?}");
        assert_eq!(bad.count("tools/call"), calls);
        bad.open("go");
        assert!(busy.await.unwrap().contains("\"result\""), "{transport:?}");
    }
}

/// A stdio server in a few lines of shell that runs `on_call` when a tool is called.
fn shell_server(on_call: &str) -> Target {
    let script = r#"
        reply() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
        while read -r line; do
            rest=${line#*\"id\":}; id=${rest%%[,\}]*}
            case $line in
                *'"server/discover"'*) reply '"error":{"code":-32601,"message":"unknown"}' ;;
                *'"initialize"'*) reply '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
                *'"tools/list"'*) reply '"result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}' ;;
                *'"ping"'*) reply '"result":{}' ;;
                *'"tools/call"'*) eval "$0" ;;
            esac
        done"#;
    Target::command("bash", ["-c", script, on_call])
}

#[tokio::test]
async fn a_child_fails_in_its_own_ways() {
    for (on_call, expected) in [
        ("exit 3", Told::new("child_exited", "exited before it answered", MAY_HAVE_RUN)),
        ("echo garbage", Told::new("silent", "was silent for 700 ms", MAY_HAVE_RUN)),
        ("sleep 2", Told::new("silent", "was silent for 700 ms", MAY_HAVE_RUN)),
        // A long line that begins no message is rubbish like a short one.
        ("head -c 70000 /dev/zero | tr '\\0' x; echo", Told::new("silent", "was silent for 700 ms", MAY_HAVE_RUN)),
        (
            "printf '{'; head -c 70000 /dev/zero | tr '\\0' x; echo",
            Told::new("too_large", "sent a message of more than 65536 bytes", MAY_HAVE_RUN),
        ),
    ] {
        // Where the child is not to be found silent it may take its time.
        let make = if expected.kind == "silent" { impatient } else { upstream };
        let rialto = serve(make(shell_server(on_call))).await;
        assert_eq!(told(&rialto, "2025-11-25", "echo", json!({})).await, expected, "{on_call}");
    }
}

/// The failure of connecting to a target directly.
async fn connect_failure(target: &Target, change: impl FnOnce(&mut ConnectionSettings)) -> Failure {
    let mut settings = upstream(target.clone()).settings;
    change(&mut settings);
    let connecting = Client::connect(target, ClientOptions { settings, ..ClientOptions::default() });
    match tokio::time::timeout(TEST_TIMEOUT, connecting).await.expect("an error in time") {
        Err(Error::Failure(failure)) => failure.of_upstream(&"bad".into()),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("the connection was opened"),
    }
}

fn url_targets(url: &str) -> [Target; 2] {
    let streamable = Target::url(url).unwrap();
    let mut sse = streamable.clone();
    if let Target::Url(address) = &mut sse {
        address.transport = Some(HttpTransport::Sse);
    }
    [streamable, sse]
}

#[tokio::test]
async fn a_connection_that_is_not_accepted_times_out() {
    // The kernel drops connection attempts once the queue of a listener that accepts none is full.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        queued.push(stream);
    }
    for target in url_targets(&format!("http://{address}/mcp")) {
        let failure = connect_failure(&target, |settings| settings.connect_timeout = Duration::from_millis(300)).await;
        assert_eq!((failure.kind(), failure.execution()), (FailureKind::ConnectTimeout, Execution::NotRun));
        assert_eq!(
            client_text(&failure),
            format!("Upstream \"bad\" did not accept a connection in time; {NOT_RUN}; try again later")
        );
    }
}

#[tokio::test]
async fn connecting_fails_with_the_kind_of_its_cause() {
    let refusing = ReservedPort::new();
    for target in url_targets(&format!("http://{refusing}/path-s3cret?key=s3cret")) {
        let failure = connect_failure(&target, |_| {}).await;
        assert_eq!((failure.kind(), failure.execution()), (FailureKind::Unreachable, Execution::NotRun));
        assert!(failure.to_string().starts_with(&format!("http://{refusing} cannot be reached")), "{failure}");
    }
    let failure = connect_failure(&Target::command("no-such-program-anywhere", [""; 0]), |_| {}).await;
    assert_eq!((failure.kind(), failure.execution()), (FailureKind::StartFailed, Execution::NotRun));
    assert_eq!(
        client_text(&failure),
        format!("Upstream \"bad\" cannot be started; {NOT_RUN}; the operator must correct its configuration")
    );
    let failure = connect_failure(&Target::command("sh", ["-c", "exit 3"]), |_| {}).await;
    assert_eq!(failure.kind(), FailureKind::ChildExited);
    let silent = ScriptedServer::start("bad", ServerTransport::Http).await;
    silent.inject_fault("server/discover", InjectedFault::Hang);
    let (connect, discovery) = (Duration::from_millis(100), Duration::from_millis(200));
    let failure = connect_failure(&silent.target(), |settings| {
        (settings.connect_timeout, settings.discovery_timeout) = (connect, discovery);
    })
    .await;
    assert_eq!(failure.kind(), FailureKind::Silent(discovery));
    let handshake_only = ScriptedServer::start("bad", ServerTransport::Http).await;
    let failure = connect_failure(&handshake_only.target(), |settings| {
        settings.revision = Revision::parse(PER_REQUEST);
    })
    .await;
    assert_eq!(failure.kind(), FailureKind::NoCommonRevision);
    assert_eq!(
        client_text(&failure.before_sending()),
        format!("Upstream \"bad\" speaks no protocol revision that is spoken here; {NOT_RUN}")
    );
}

#[tokio::test]
async fn a_server_that_is_still_starting_has_not_run_the_call() {
    let bad = ScriptedServer::start("bad", ServerTransport::Http).await;
    bad.inject_fault("server/discover", InjectedFault::Hang);
    let mut spec = upstream(bad.target());
    spec.settings.discovery_timeout = TEST_TIMEOUT * 3;
    let group = GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&spec.name)]);
    let config = GatewayConfig { upstreams: vec![spec], groups: vec![group] };
    let rialto = Rialto::with(|settings| settings.gateway = config).await;
    let session = rialto.open("2025-11-25").await;
    let (_, answer) = session.post(&request(1, "resources/read", json!({ "uri": "res://one" }))).answer().await;
    let expected = Told::not_run("starting", "is still starting", "; try again later");
    assert_eq!(Told::of_error(&answer), expected);
}

#[tokio::test]
async fn the_client_library_gets_the_failure_as_a_value() {
    for transport in HTTP_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let client = Client::connect(&bad.target(), ClientOptions::default()).await.unwrap();
        bad.inject_fault("tools/call", InjectedFault::RetryLater(429, "3".into()));
        let Err(Error::Failure(failure)) = client.call_tool("echo", Raw::empty()).await else {
            panic!("{transport:?}")
        };
        assert_eq!((failure.kind(), failure.execution()), (FailureKind::RateLimited, Execution::NotRun));
        assert_eq!(failure.retry_after(), Some(Duration::from_secs(3)));
        let sentence = format!("http://{} answered 429 Too Many Requests", bad.address);
        assert_eq!(failure.to_string(), sentence, "{transport:?}");
        client.close().await;
    }
}
