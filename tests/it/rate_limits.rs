//! Rate limits and quotas over real requests: what is counted, what a rejection says, and what it takes.

mod checklist;
mod cluster;
mod in_flight;

use std::time::Duration;

use rialto::app::AppSettings;
use rialto::policy::{CallQuota, LimitRule, LimitScope, LimitUsage, QuotaWindow, Rate, Tokens};
use rmcp::model::CallToolRequestParams;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientLifecycleMode, ClientServiceExt};
use serde_json::{Value, json};
use wildmatch::WildMatch;

use crate::harness::{Rialto, Session, call, initialize, request};
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// A rate that gains nothing while a test runs.
pub fn only(burst: u32) -> Option<Rate> {
    Some(Rate { count: 1, period: Duration::from_secs(3600), burst })
}

pub fn per_caller(name: &str) -> LimitRule {
    LimitRule { per: vec![LimitScope::Caller], ..LimitRule::new(name) }
}

pub fn patterns(patterns: &[&str]) -> Vec<WildMatch> {
    patterns.iter().map(|pattern| WildMatch::new(pattern)).collect()
}

async fn limited(rules: Vec<LimitRule>) -> Rialto {
    Rialto::with(|settings| settings.rate_limits = rules).await
}

pub fn usage(rialto: &Rialto, limit: &str) -> LimitUsage {
    rialto.inbound.gateway.rate_limits().usage().into_iter().find(|usage| &*usage.name == limit).unwrap()
}

/// How much of one measure of a limit is in use.
pub fn used(rialto: &Rialto, limit: &str, measure: &str) -> u64 {
    usage(rialto, limit).measures.iter().find(|one| one.name == measure).unwrap().used
}

fn element(id: u64) -> Value {
    call(id, "getElement", json!({ "name": "H" }))
}

/// Checks the error of a rejected request.
fn assert_rejected(answer: &Value) {
    let error = &answer["error"];
    assert_eq!((&error["code"], &error["data"]["failure"]), (&json!(-32600), &json!("over_rate_limit")), "{answer}");
    let (message, wait) = (error["message"].as_str().unwrap(), error["data"]["retryAfterMs"].as_u64().unwrap());
    assert_eq!(message, format!("Rate limit: try again in {} s", wait.div_ceil(1000)), "{answer}");
    assert!(wait > 0 && error["data"]["mayHaveRun"] == false, "{answer}");
}

/// Checks the tool result of a rejected call.
fn assert_tool_rejected(answer: &Value) {
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(text.starts_with("Rate limit: try again in ") && text.ends_with(" s"), "{answer}");
    assert_eq!(result["isError"], true, "{answer}");
}

#[tokio::test]
async fn a_limit_of_requests_is_429_with_retry_after() {
    let rialto = limited(vec![LimitRule { rate: only(4), ..per_caller("requests") }]).await;
    let session = rialto.open("2025-11-25").await;
    assert_eq!(used(&rialto, "requests", "rate"), 1, "the handshake counts");
    for (n, method) in ["ping", "tools/list"].into_iter().enumerate() {
        assert_eq!(session.post(&request(n, method, json!({}))).status().await, 200);
    }
    assert_eq!(session.post(&element(3)).status().await, 200);
    let refused = session.post(&element(4)).go().await;
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    let body = refused.json().await;
    assert_rejected(&body);
    assert_eq!(body["id"], 4);
    assert_eq!(wait, body["error"]["data"]["retryAfterMs"].as_u64().unwrap().div_ceil(1000));
    let modern = rialto.modern("tools/list", json!({}));
    assert_eq!(modern.refused().await, (429, -32600));
    assert_eq!(rialto.post("/mcp", &initialize("2025-11-25")).refused().await, (429, -32600));
    // What is no request is not counted.
    assert_eq!(session.delete().status().await, 200);
    let metrics = rialto.inbound.admin.metrics();
    for line in [
        r#"rialto_rate_limited_total{limit="requests"} 3"#,
        r#"rialto_quota_used{quota="requests/rate"} 4"#,
        r#"rialto_quota_limit{quota="requests/rate"} 4"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let (_, status) = rialto.send("GET", "/admin/status").json().await;
    let counted = json!([{ "name": "rate", "used": 4, "limit": 4 }]);
    assert_eq!(status["limits"], json!([{ "name": "requests", "rejected": 3, "counted": counted }]), "{status}");
}

#[tokio::test]
async fn requests_that_share_a_response_or_a_stream_are_rejected_in_band() {
    let rialto = limited(vec![LimitRule { rate: only(4), ..per_caller("requests") }]).await;
    let session = rialto.open("2025-03-26").await;
    let batch = json!([element(1), element(2), element(3), element(4)]);
    let (status, answers) = session.post(&batch).json().await;
    assert_eq!(status, 200);
    let answers = answers.as_array().unwrap();
    let rejected: Vec<&Value> = answers.iter().filter(|answer| answer.get("error").is_some()).collect();
    assert_eq!((answers.len(), rejected.len()), (4, 1));
    assert_rejected(rejected[0]);
    let mut stream = rialto.send("GET", "/sse").header("accept", "text/event-stream").go().await.events();
    let endpoint = stream.next().await.unwrap().data;
    assert_eq!(rialto.post(&endpoint, &initialize("2024-11-05")).status().await, 202);
    assert_rejected(&stream.message().await.unwrap());
}

#[tokio::test]
async fn a_limit_of_tools_is_a_tool_result_and_takes_nothing_else() {
    let tools = LimitRule { tools: patterns(&["elements/getElement"]), rate: only(1), ..per_caller("tools") };
    let rialto = limited(vec![LimitRule { rate: only(10), ..per_caller("requests") }, tools]).await;
    let session = rialto.open("2025-11-25").await;
    assert_eq!(session.post(&element(1)).answer().await.1["result"]["isError"], false);
    assert_eq!(used(&rialto, "requests", "rate"), 2);
    for id in 2..5 {
        let (status, answer) = session.post(&element(id)).answer().await;
        assert_eq!(status, 200);
        assert_tool_rejected(&answer);
    }
    assert_eq!(used(&rialto, "requests", "rate"), 2, "a rejected call takes from no bucket");
    let other = session.post(&call(9, "getElementByPosition", json!({ "position": 1 }))).answer().await.1;
    assert!(other["result"].is_object() && !other.to_string().contains("Rate limit"), "{other}");
    let modern = rialto.modern("tools/call", json!({ "name": "getElement", "arguments": { "name": "H" } }));
    let (status, answer) = modern.answer().await;
    assert_eq!((status, &answer["result"]["resultType"]), (200, &json!("complete")));
    assert_tool_rejected(&answer);
    assert_eq!((usage(&rialto, "tools").rejections, usage(&rialto, "requests").rejections), (4, 0));
}

#[tokio::test]
async fn a_limit_of_prompts_or_resources_is_an_error() {
    let prompts = LimitRule { prompts: patterns(&["*"]), rate: only(1), ..LimitRule::new("prompts") };
    let resources = LimitRule {
        resources: patterns(&["elements/elements://symbol/*"]),
        rate: only(1),
        ..LimitRule::new("resources")
    };
    let rialto = limited(vec![prompts, resources]).await;
    let session = rialto.open("2025-11-25").await;
    let prompt = json!({ "name": "describeElement", "arguments": { "element": "H" } });
    let resource = json!({ "uri": "elements://symbol/Au" });
    for (method, params) in [("prompts/get", prompt), ("resources/read", resource)] {
        let first = session.ask(method, params.clone()).await;
        assert!(!first.to_string().contains("Rate limit"), "{first}");
        assert_rejected(&session.ask(method, params).await);
    }
    let other = session.ask("resources/read", json!({ "uri": "elements://spotlight" })).await;
    assert!(other["result"].is_object(), "{other}");
    // Completions follow their prompt, and subscriptions their resource.
    let argument = json!({ "name": "element", "value": "H" });
    let completion = json!({ "ref": { "type": "ref/prompt", "name": "describeElement" }, "argument": argument });
    assert_rejected(&session.ask("completion/complete", completion).await);
    assert_rejected(&session.ask("resources/subscribe", json!({ "uri": "elements://symbol/Au" })).await);
}

#[tokio::test]
async fn each_caller_has_a_bucket_of_its_own() {
    let tokens = ["ann=1".to_owned(), "bob=2".to_owned()];
    let ann_only = LimitRule {
        principals: vec![rialto::policy::rules::PrincipalPattern::parse("token:ann").unwrap()],
        quota: Some(CallQuota { count: 3, window: QuotaWindow::Month }),
        ..LimitRule::new("ann")
    };
    let rialto = Rialto::with(|settings| {
        settings.policy.tokens = Tokens::parse(&tokens).unwrap();
        settings.rate_limits = vec![LimitRule { rate: only(5), ..per_caller("callers") }, ann_only];
    })
    .await;
    let count = async |token: &str| {
        let session = Session::open(&rialto, "2025-11-25", Some(token)).await;
        let mut served = 1;
        while session.post(&request(1, "ping", json!({}))).status().await == 200 {
            served += 1;
        }
        served
    };
    assert_eq!((count("1").await, count("2").await), (3, 5));
    assert_eq!((usage(&rialto, "ann").rejections, used(&rialto, "ann", "quota")), (1, 3));
    assert_eq!(used(&rialto, "callers", "rate"), 5);
}

#[tokio::test]
async fn arguments_are_bounded() {
    let rule = LimitRule { tools: patterns(&["*"]), max_argument_bytes: Some(40), ..LimitRule::new("short") };
    let rialto = limited(vec![rule]).await;
    let session = rialto.open("2025-11-25").await;
    assert_eq!(session.post(&element(1)).answer().await.1["result"]["isError"], false);
    let (status, answer) = session.post(&call(2, "getElement", json!({ "name": "H".repeat(60) }))).answer().await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((status, &answer["result"]["isError"]), (200, &json!(true)));
    assert_eq!(text, "Invalid params: `arguments` may have 40 bytes here; send less");
}

#[tokio::test]
async fn a_limit_lowers_the_duration_of_calls() {
    let short = Duration::from_millis(300);
    let rule = LimitRule { tools: patterns(&["*"]), total_timeout: Some(short), ..LimitRule::new("short") };
    let server = ScriptedServer::start("web", ServerTransport::Http).await;
    server.hold_responses("tools/call");
    let rialto = in_flight::serving(&server, vec![rule.clone()]).await;
    let session = rialto.open("2025-11-25").await;
    let remote = session.post(&call(1, "echo", json!({}))).answer().await.1;
    assert_eq!(remote["error"]["data"]["failure"], "timed_out", "{remote}");
    // A server in this process has no timeout of its own.
    let rialto = limited(vec![rule]).await;
    let session = rialto.open("2025-11-25").await;
    let local = session.post(&crate::harness::survey(2, 118, 5000)).answer().await.1;
    assert_eq!(local["error"]["data"]["failure"], "timed_out", "{local}");
}

#[tokio::test]
async fn a_call_that_was_not_sent_is_not_counted() {
    let server = ScriptedServer::start("web", ServerTransport::Http).await;
    let rules = vec![
        LimitRule { rate: only(100), ..LimitRule::new("requests") },
        LimitRule { tools: patterns(&["web/*"]), rate: only(2), ..LimitRule::new("tools") },
    ];
    let rialto = in_flight::serving(&server, rules).await;
    let session = rialto.open("2025-11-25").await;
    assert!(session.post(&call(1, "echo", json!({}))).answer().await.1["result"].is_object());
    server.stop();
    let before = used(&rialto, "requests", "rate");
    for id in 2..7 {
        let answer = session.post(&call(id, "echo", json!({}))).answer().await.1;
        let data = &answer["error"]["data"];
        // The connection that was open breaks with the first call, which may have been sent.
        if data["mayHaveRun"] == false {
            assert_ne!(data["failure"], "over_rate_limit", "{answer}");
        }
    }
    assert!(used(&rialto, "tools", "rate") <= 2 && used(&rialto, "requests", "rate") <= before + 1);
    assert_eq!(usage(&rialto, "tools").rejections, 0);
}

#[tokio::test]
async fn the_rust_sdk_reads_the_rejection_of_a_tool() {
    let rule = LimitRule { tools: patterns(&["elements/get*"]), rate: only(1), ..per_caller("tools") };
    let rialto = limited(vec![rule]).await;
    for (n, lifecycle) in [
        ClientLifecycleMode::Initialize,
        ClientLifecycleMode::Discover { preferred_versions: vec![rmcp::model::ProtocolVersion::V_2026_07_28] },
    ]
    .into_iter()
    .enumerate()
    {
        let transport = StreamableHttpClientTransport::from_uri(rialto.url("/mcp"));
        let client = ().serve_with_lifecycle(transport, lifecycle).await.unwrap();
        let get = || {
            let arguments = json!({ "name": "H" }).as_object().cloned().unwrap();
            client.call_tool(CallToolRequestParams::new("getElement").with_arguments(arguments))
        };
        if n == 0 {
            assert_ne!(get().await.unwrap().is_error, Some(true));
        }
        let refused = get().await.unwrap();
        assert_eq!(refused.is_error, Some(true));
        let text = &refused.content[0].as_text().unwrap().text;
        assert!(text.starts_with("Rate limit: try again in "), "{text}");
        client.cancel().await.unwrap();
    }
}

#[tokio::test]
async fn without_limits_nothing_is_counted() {
    let rialto = Rialto::with(|_: &mut AppSettings| {}).await;
    let session = rialto.open("2025-11-25").await;
    for id in 0..20 {
        assert_eq!(session.post(&element(id)).status().await, 200);
    }
    assert!(rialto.inbound.gateway.rate_limits().usage().is_empty());
    let (_, status) = rialto.send("GET", "/admin/status").json().await;
    assert!(status.get("limits").is_none(), "{status}");
}
