//! The stdio transport in both eras, over an in-memory pipe.

use std::sync::Arc;
use std::time::Duration;

use rialto::app::{App, AppSettings};
use rialto::call::ChangeEvent;
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, Group, GroupConfig};
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use crate::harness::{HANDSHAKE, TEST_TIMEOUT, call, initialize, modern, notification, request, survey};
use crate::scripted_server::{ScriptedServer, ServerTransport};

struct Pipe {
    input: Option<WriteHalf<DuplexStream>>,
    output: Lines<BufReader<ReadHalf<DuplexStream>>>,
    group: Arc<Group>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Pipe {
    async fn open() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut AppSettings)) -> Self {
        let mut settings = AppSettings::default();
        change(&mut settings);
        let app = App::new(settings);
        let group = app.gateway().group(None).unwrap();
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (read, write) = tokio::io::split(theirs);
        let inbound = Arc::clone(app.inbound());
        tokio::spawn(Arc::clone(&inbound).maintain_sessions());
        let served = tokio::spawn(inbound.serve_stdio(Arc::clone(&group), BufReader::new(read), write));
        let (output, input) = tokio::io::split(ours);
        Self { input: Some(input), output: BufReader::new(output).lines(), group, served }
    }

    async fn write(&mut self, text: &[u8]) {
        self.input.as_mut().unwrap().write_all(text).await.unwrap();
    }

    async fn send(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes()).await;
    }

    async fn read(&mut self) -> Option<Value> {
        let line =
            tokio::time::timeout(TEST_TIMEOUT, self.output.next_line()).await.expect("a line in time").unwrap()?;
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    async fn ask(&mut self, message: &Value) -> Value {
        self.send(message).await;
        loop {
            let answer = self.read().await.unwrap();
            if answer.get("id") == message.get("id") {
                return answer;
            }
        }
    }

    /// Closes the input and collects the remaining messages.
    async fn close(mut self) -> Vec<Value> {
        let mut input = self.input.take().unwrap();
        input.shutdown().await.unwrap();
        let mut rest = Vec::new();
        while let Some(message) = self.read().await {
            rest.push(message);
        }
        self.served.await.unwrap().unwrap();
        rest
    }
}

#[tokio::test]
async fn every_handshake_revision_works_over_stdio() {
    for revision in HANDSHAKE {
        let mut pipe = Pipe::open().await;
        assert_eq!(pipe.ask(&initialize(revision)).await["result"]["protocolVersion"], revision);
        pipe.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        let answer = pipe.ask(&call(1, "getElement", json!({ "name": "Oxygen" }))).await;
        assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("氧"));
        pipe.group.publish(ChangeEvent::Tools);
        assert_eq!(pipe.read().await.unwrap()["method"], "notifications/tools/list_changed");
        assert_eq!(pipe.close().await, Vec::<Value>::new());
    }
}

#[tokio::test]
async fn per_request_calls_listen_and_cancellation_work_over_stdio() {
    let mut pipe = Pipe::open().await;
    let answer =
        pipe.ask(&modern(json!(1), "tools/call", json!({ "name": "getElement", "arguments": { "name": "O" } }))).await;
    assert_eq!(answer["result"]["resultType"], "complete");
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    pipe.send(&modern(json!("l"), "subscriptions/listen", filter)).await;
    assert_eq!(pipe.read().await.unwrap()["method"], "notifications/subscriptions/acknowledged");
    pipe.group.publish(ChangeEvent::Tools);
    let change = pipe.read().await.unwrap();
    assert_eq!(change["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "l");
    let slow = modern(
        json!(2),
        "tools/call",
        json!({ "name": "surveyElements", "arguments": { "count": 118, "delayMs": 20 }, "_meta": { "progressToken": 1 } }),
    );
    pipe.send(&slow).await;
    assert_eq!(pipe.read().await.unwrap()["method"], "notifications/progress");
    pipe.send(&notification("notifications/cancelled", json!({ "requestId": 2 }))).await;
    let unknown = pipe.ask(&modern(json!(2), "ping", json!({}))).await;
    assert_eq!(unknown["error"]["code"], -32601, "the id can be reused and the cancelled call got no response");
    let rest = pipe.close().await;
    assert_eq!(rest[0]["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "l", "{rest:?}");
    assert_eq!(rest[1]["method"], "notifications/cancelled");
    assert_eq!(rest.len(), 2);
}

#[tokio::test]
async fn the_first_request_on_stdio_decides_the_era() {
    // server/discover does not fix the era: a client may probe and then use a handshake.
    let mut pipe = Pipe::open().await;
    let discovered = pipe.ask(&modern(json!("probe"), "server/discover", json!({}))).await;
    assert_eq!(discovered["result"]["supportedVersions"], json!(["2026-07-28"]));
    assert!(pipe.ask(&initialize("2025-06-18")).await.get("result").is_some());
    let other = pipe.ask(&modern(json!(2), "tools/list", json!({}))).await;
    assert_eq!(other["error"]["code"], -32600);

    let mut pipe = Pipe::open().await;
    pipe.ask(&modern(json!(1), "tools/list", json!({}))).await;
    let refused = pipe.ask(&initialize("2025-06-18")).await;
    assert_eq!(refused["error"]["code"], -32022);
    assert_eq!(refused["error"]["data"]["supported"], json!(["2026-07-28"]));
    assert_eq!(pipe.ask(&request(2, "tools/list", json!({}))).await["error"]["code"], -32602);

    // An invalid request does not fix the era.
    let mut pipe = Pipe::open().await;
    let mut broken = modern(json!(1), "tools/list", json!({}));
    broken["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("v999");
    assert_eq!(pipe.ask(&broken).await["error"]["code"], -32022);
    broken["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(5);
    assert_eq!(pipe.ask(&broken).await["error"]["code"], -32602);
    assert!(pipe.ask(&initialize("2025-06-18")).await.get("result").is_some());
}

#[tokio::test]
async fn malformed_lines_are_answered_or_skipped() {
    let mut pipe = Pipe::with(|settings| settings.inbound.limits.body_bytes = 1000).await;
    pipe.write(b"\n\r\n   \n\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r\n").await;
    assert_eq!(pipe.read().await.unwrap()["id"], 1);
    // Lines that are not JSON are skipped: no client waits for a response to them.
    pipe.write(b"{\nhello\n[[[[\n").await;
    for line in ["[]", "{}", "7"] {
        pipe.write(format!("{line}\n").as_bytes()).await;
        assert_eq!(pipe.read().await.unwrap()["error"]["code"], -32600, "{line}");
    }
    pipe.write(&[b'x'; 5000]).await;
    pipe.write(b"\n").await;
    let answer = pipe.read().await.unwrap();
    assert!(answer["error"]["message"].as_str().unwrap().contains("1000 bytes"));
    pipe.write(format!("{}{}\n", "[".repeat(200), "]".repeat(200)).as_bytes()).await;
    assert!(pipe.read().await.unwrap()["error"]["message"].as_str().unwrap().contains("128 deep"));
    assert_eq!(pipe.ask(&request(2, "ping", json!({}))).await["result"], json!({}));
}

#[tokio::test]
async fn running_calls_finish_after_end_of_input() {
    let mut pipe = Pipe::open().await;
    pipe.ask(&initialize("2025-11-25")).await;
    pipe.send(&survey(1, 3, 20)).await;
    pipe.send(&call(2, "getElement", json!({ "name": "H" }))).await;
    let rest = pipe.close().await;
    let ids: Vec<i64> = rest.iter().filter_map(|message| message["id"].as_i64()).collect();
    assert_eq!(ids, [2, 1]);
}

#[tokio::test]
async fn backpressure_on_stdout_loses_no_message() {
    let mut pipe = Pipe::open().await;
    pipe.ask(&initialize("2025-11-25")).await;
    // Far more than the pipe and the outbound queue hold, before the client reads anything.
    for id in 0..40 {
        pipe.send(&survey(id, 118, 0)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut answers = 0;
    let mut progress = 0;
    while answers < 40 {
        let message = pipe.read().await.unwrap();
        answers += u32::from(message.get("id").is_some());
        progress += u32::from(message["method"] == "notifications/progress");
    }
    assert_eq!(progress, 40 * 118);
}

#[tokio::test]
async fn a_batch_line_is_accepted_in_2025_03_26_only() {
    let mut pipe = Pipe::open().await;
    pipe.ask(&initialize("2025-03-26")).await;
    pipe.send(&json!([request(1, "ping", json!({})), request(2, "ping", json!({}))])).await;
    let mut ids = [pipe.read().await.unwrap()["id"].as_i64(), pipe.read().await.unwrap()["id"].as_i64()];
    ids.sort();
    assert_eq!(ids, [Some(1), Some(2)]);
    let mut pipe = Pipe::open().await;
    pipe.ask(&initialize("2025-06-18")).await;
    pipe.send(&json!([request(1, "ping", json!({}))])).await;
    assert_eq!(pipe.read().await.unwrap()["error"]["code"], -32600);
}

/// A client without a session hears and lists what its calls did at a server that keeps sessions.
#[tokio::test]
async fn stdio_client_without_a_session_has_one_lease() {
    let server = ScriptedServer::start("server", ServerTransport::Stdio).await;
    let spec = UpstreamSpec::new("server", SpecKind::Target(server.target()));
    let group_config = GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&spec.name)]);
    let config = GatewayConfig { upstreams: vec![spec], groups: vec![group_config] };
    let mut pipe = Pipe::with(|settings| settings.gateway = config).await;
    let wanted = json!({ "toolsListChanged": true, "resourceSubscriptions": ["res://one"] });
    pipe.send(&modern("l".into(), "subscriptions/listen", json!({ "notifications": wanted }))).await;
    assert_eq!(pipe.read().await.unwrap()["params"]["notifications"], wanted);
    let steps = json!([{ "touch": "res://one" }, { "grow": "more" }]);
    pipe.send(&modern(1.into(), "tools/call", json!({ "name": "do", "arguments": { "steps": steps } }))).await;
    let mut told = Vec::new();
    while told.len() < 3 {
        told.push(pipe.read().await.unwrap());
    }
    for method in ["notifications/resources/updated", "notifications/tools/list_changed"] {
        assert_eq!(told.iter().filter(|message| message["method"] == method).count(), 1, "{told:?}");
    }
    let listed = pipe.ask(&modern(2.into(), "tools/list", json!({}))).await;
    assert_eq!(listed["result"]["tools"][2]["name"], "more", "{listed}");
}

#[tokio::test]
async fn rate_limits_are_told_in_band_in_both_eras() {
    use rialto::policy::rules::PrincipalPattern;
    use rialto::policy::{LimitRule, Rate};
    let rate = Rate { count: 1, period: Duration::from_secs(3600), burst: 2 };
    let local = PrincipalPattern::parse("local").unwrap();
    let rule = LimitRule { principals: vec![local], rate: Some(rate), ..LimitRule::new("local") };
    let list = |id: u64| [request(id, "tools/list", json!({})), modern(id.into(), "tools/list", json!({}))];
    for era in 0..2 {
        let mut pipe = Pipe::with(|settings| settings.rate_limits = vec![rule.clone()]).await;
        match era {
            0 => assert!(pipe.ask(&initialize("2025-11-25")).await["result"].is_object()),
            _ => assert!(pipe.ask(&list(7)[era]).await["result"].is_object()),
        }
        assert!(pipe.ask(&list(8)[era]).await["result"].is_object());
        let refused = pipe.ask(&list(9)[era]).await;
        assert_eq!(refused["error"]["code"], -32600, "{refused}");
        assert_eq!(refused["error"]["data"]["failure"], "over_rate_limit", "{refused}");
        pipe.close().await;
    }
}
