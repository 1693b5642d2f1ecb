//! Servers that send what they must not: messages that nest too deep, floods of server requests, rubbish. The gateway
//! stays up, answers for them, and serves everybody else.

use super::*;
use crate::harness::until_with;
use crate::harness::{Session, call as calling};
use crate::scripted_server::InjectedFault;

const TRANSPORTS: [ServerTransport; 4] =
    [ServerTransport::Http, ServerTransport::Sse, ServerTransport::PerRequest, ServerTransport::Stdio];
/// Transports on which a server can speak without being asked.
const SESSION_TRANSPORTS: [ServerTransport; 3] = [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio];
/// Levels that overflow the stack of a recursive walk.
const FAR_TOO_DEEP: usize = 20_000;

/// A host that never answers.
struct SilentHost;

impl Host for SilentHost {
    fn capabilities(&self) -> Raw {
        Raw::of(&json!({ "sampling": {}, "elicitation": { "form": {} }, "roots": {} }))
    }

    fn on_notification(&self, _: &Notification) {}

    fn on_server_request<'a>(&'a self, _: &'a Method, _: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        Box::pin(std::future::pending())
    }
}

async fn silent_client(rialto: &Rialto) -> Client {
    let target = Target::url(&rialto.url("/mcp")).unwrap();
    let settings = ConnectionSettings { revision: Some(Revision::NEWEST_HANDSHAKE), ..ConnectionSettings::default() };
    let options = ClientOptions { settings, host: Arc::new(SilentHost), ..ClientOptions::default() };
    within_timeout("connected", Client::connect(&target, options)).await.unwrap()
}

/// A resource link inside of so many tool results.
fn nested_link(levels: usize) -> String {
    let link = r#"{"type":"resource_link","uri":"res://one","name":"one"}"#;
    format!("{}{link}{}", r#"{"type":"tool_result","content":["#.repeat(levels), "]}".repeat(levels))
}

fn tool_result(content: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":$id,"result":{{"content":[{content}]}}}}"#)
}

fn prompt_result(content: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":$id,"result":{{"messages":[{{"role":"user","content":{content}}}]}}}}"#)
}

/// A gateway for `bad` and `good` in one group, so that names and URIs in results are mapped.
async fn served_with_a_good_one(bad: &ScriptedServer) -> (Rialto, ScriptedServer) {
    let good = ScriptedServer::start("good", ServerTransport::Http).await;
    let rialto = group(&[bad, &good]).await;
    let known = |name: &str| {
        rialto
            .group()
            .view(rialto::dialect::Revision::NEWEST_HANDSHAKE)
            .find_by_name(rialto::upstream::List::Tools, name)
            .is_some()
    };
    until("the tools are known", || known("bad__echo") && known("good__echo")).await;
    (rialto, good)
}

async fn assert_served(session: &Session<'_>, server: &str) {
    let (_, answer) = session.post(&calling(1, &format!("{server}__echo"), json!({}))).answer().await;
    assert_eq!(report(&answer["result"])["server"], server, "{answer}");
}

fn assert_too_deep(answer: &Value, transport: ServerTransport) {
    let error = &answer["error"];
    assert_eq!(error["code"], -32603, "{transport:?} {answer}");
    assert_eq!(error["data"]["failure"], "too_deep", "{transport:?} {answer}");
    assert_eq!(
        error["message"],
        r#"Upstream "bad" sent a message that nests more than 128 levels deep; the call may have been carried out"#
    );
}

#[tokio::test]
async fn a_result_that_nests_too_deep_fails_its_call_alone() {
    for transport in TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let (rialto, _good) = served_with_a_good_one(&bad).await;
        let session = rialto.open("2025-11-25").await;
        for levels in [64, FAR_TOO_DEEP] {
            bad.inject_fault("tools/call", InjectedFault::Text(tool_result(&nested_link(levels))));
            let (_, answer) = session.post(&calling(1, "bad__echo", json!({}))).answer().await;
            assert_too_deep(&answer, transport);
            bad.inject_fault("prompts/get", InjectedFault::Text(prompt_result(&nested_link(levels))));
            let answer = session.ask("prompts/get", json!({ "name": "bad__hello" })).await;
            assert_too_deep(&answer, transport);
        }
        bad.clear_faults();
        assert_served(&session, "bad").await;
        assert_served(&session, "good").await;
    }
}

#[tokio::test]
async fn a_json_body_or_batch_that_nests_too_deep_fails_its_call() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        let bad = ScriptedServer::start("bad", transport).await;
        let (rialto, _good) = served_with_a_good_one(&bad).await;
        let session = rialto.open("2025-11-25").await;
        let result = tool_result(&nested_link(FAR_TOO_DEEP));
        for (status, body) in [(200, result.clone()), (200, format!("[{result}]")), (400, result.clone())] {
            bad.inject_fault("tools/call", InjectedFault::RawResponse(status, body));
            let (_, answer) = session.post(&calling(1, "bad__echo", json!({}))).answer().await;
            assert_too_deep(&answer, transport);
        }
    }
}

#[tokio::test]
async fn a_result_at_the_depth_limit_is_served_and_the_limit_can_be_set() {
    // The message, its result and the content list are three levels; a tool result has two.
    let (fits, too_deep) = (nested_link(2), nested_link(3));
    for transport in TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let mut limited = spec(&bad);
        limited.settings.json_depth = 8;
        let rialto = gateway(default_group_of(vec![limited])).await;
        let session = rialto.open("2025-11-25").await;
        bad.inject_fault("tools/call", InjectedFault::Text(tool_result(&fits)));
        let (_, answer) = session.post(&calling(1, "echo", json!({}))).answer().await;
        assert_eq!(answer["result"]["content"][0], serde_json::from_str::<Value>(&fits).unwrap(), "{transport:?}");
        bad.inject_fault("tools/call", InjectedFault::Text(tool_result(&too_deep)));
        let (_, answer) = session.post(&calling(1, "echo", json!({}))).answer().await;
        assert_eq!(answer["error"]["data"]["failure"], "too_deep", "{transport:?} {answer}");
    }
}

#[tokio::test]
async fn a_server_request_that_nests_too_deep_is_answered_with_an_error() {
    for transport in SESSION_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let (rialto, _good) = served_with_a_good_one(&bad).await;
        let session = rialto.open("2025-11-25").await;
        assert_served(&session, "bad").await;
        bad.wait_streams().await;
        let deep = format!("{}{}", "[".repeat(FAR_TOO_DEEP), "]".repeat(FAR_TOO_DEEP));
        bad.send_text(&format!(r#"{{"jsonrpc":"2.0","id":"deep","method":"roots/list","params":{{"a":{deep}}}}}"#));
        // Its notification is dropped.
        bad.send_text(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":{deep}}}}}"#));
        let answers = || bad.received().into_iter().filter(|message| message.body["id"] == "deep").collect::<Vec<_>>();
        // The sessions of the catalog and of the client were both asked.
        until("the requests are answered", || answers().len() >= 2).await;
        for answer in answers() {
            assert_eq!(answer.body["error"]["code"], -32602, "{transport:?} {answer:?}");
        }
        assert_served(&session, "bad").await;
    }
}

/// Codes of the answers to requests whose id begins with `prefix`, received in the session of a client.
fn answer_codes(server: &ScriptedServer, session: &str, prefix: &str) -> Vec<i64> {
    server.read_received(|message| {
        let is_asked = message.body["id"].as_str().is_some_and(|id| id.starts_with(prefix));
        let is_answer = message.kind == "answer" && message.session == session && is_asked;
        is_answer.then(|| message.body["error"]["code"].as_i64().unwrap_or_default())
    })
}

#[tokio::test]
async fn server_requests_beyond_the_limit_are_refused_and_pings_are_answered() {
    let limit = 128;
    for transport in SESSION_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let (rialto, good) = served_with_a_good_one(&bad).await;
        let client = silent_client(&rialto).await;
        let session = call(&client, "bad__echo", json!({})).await["session"].as_str().unwrap().to_owned();
        bad.wait_streams().await;
        let surplus = 200;
        for n in 0..limit + surplus {
            let params = r#"{"messages":[],"maxTokens":1}"#;
            bad.send_text(&format!(
                r#"{{"jsonrpc":"2.0","id":"ask{n}","method":"sampling/createMessage","params":{params}}}"#
            ));
        }
        let answered = |prefix| answer_codes(&bad, &session, prefix).len();
        until_with(
            "the surplus is refused",
            || answered("ask") >= surplus,
            || format!("{transport:?}, {} answers", answered("ask")),
        )
        .await;
        for n in 0..surplus {
            bad.send_text(&format!(r#"{{"jsonrpc":"2.0","id":"ping{n}","method":"ping"}}"#));
        }
        let is_answered = || answered("ping") == surplus;
        until_with("every ping is answered", is_answered, || format!("{transport:?}, {} answers", answered("ping")))
            .await;
        assert_eq!(answer_codes(&bad, &session, "ping"), vec![0; surplus], "{transport:?}");
        // The client of this test refuses what is beyond its own limit.
        let refused = answer_codes(&bad, &session, "ask");
        assert!(
            refused.len() < limit + surplus && refused.iter().all(|code| *code == -32603),
            "{transport:?} {refused:?}"
        );
        assert_eq!(call(&client, "good__echo", json!({})).await["server"], "good");
        drop((client, good));
    }
}

#[tokio::test]
async fn server_requests_inside_calls_are_limited_per_client_session() {
    let bad = ScriptedServer::start("bad", ServerTransport::Stdio).await;
    let rialto = Rialto::with(|settings| {
        settings.gateway = default_group_of(vec![spec(&bad)]);
        settings.sessions.max_server_requests = 3;
    })
    .await;
    let client = silent_client(&rialto).await;
    let session = call(&client, "echo", json!({})).await["session"].as_str().unwrap().to_owned();
    // With one call in flight the requests belong to it.
    let params = json!({ "name": "do", "arguments": { "steps": [{ "wait": "end" }] } });
    let calling = client.request("tools/call".into(), Some(Raw::of(&params)));
    tokio::pin!(calling);
    let asked = async {
        bad.wait_received("tools/call", 2).await;
        for n in 0..10 {
            bad.send_text(&format!(r#"{{"jsonrpc":"2.0","id":"ask{n}","method":"roots/list"}}"#));
        }
        until("the surplus is refused", || answer_codes(&bad, &session, "ask").len() == 7).await;
    };
    tokio::select! {
        _ = &mut calling => panic!("the call has ended"),
        () = asked => {}
    }
    assert_eq!(answer_codes(&bad, &session, "ask"), vec![-32603; 7]);
    bad.open("end");
    within_timeout("the call ends", calling).await.unwrap();
}

/// Texts that are no messages, or messages that nobody waits for.
fn rubbish() -> Vec<String> {
    let mut texts: Vec<String> = [
        "hello",
        "{",
        "[]",
        "[1,2,{}]",
        "null",
        "\0\0\0",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\0\"}",
        r#"{"jsonrpc":"2.0","id":987654,"result":{"a":"\ud800"}}"#,
        r#"{"jsonrpc":"2.0","id":"no such call","error":{"code":1,"message":"\udfff"}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"who?"}}"#,
        r#"{"jsonrpc":"2.0","id":1e400,"result":{}}"#,
        r#"{"jsonrpc":"2.0","method":"\ud800"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/\ud800","params":{"\ud800":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"\ud800","progress":"x"}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{"a":[]}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"\ud800"}}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
    ]
    .map(str::to_owned)
    .to_vec();
    texts.push("x".repeat(10 << 20));
    texts.push(format!(r#"{{"jsonrpc":"2.0","id":4711,"result":"{}"}}"#, "y".repeat(10 << 20)));
    texts
}

#[tokio::test]
async fn rubbish_disturbs_nobody() {
    for transport in SESSION_TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let (rialto, _good) = served_with_a_good_one(&bad).await;
        let session = rialto.open("2025-11-25").await;
        assert_served(&session, "bad").await;
        let connects = upstreams(&rialto)["bad"].state().health.connects;
        for text in rubbish() {
            bad.send_text(&text);
            assert_served(&session, "bad").await;
        }
        assert_served(&session, "good").await;
        assert_eq!(upstreams(&rialto)["bad"].state().health.connects, connects, "{transport:?}");
    }
}

#[tokio::test]
async fn a_result_with_lone_surrogates_passes_unchanged() {
    let content = r#"{"type":"resource_link","uri":"res://\ud800","name":"\udfff","\ud800":[1e400,"\u0000"]}"#;
    for transport in TRANSPORTS {
        let bad = ScriptedServer::start("bad", transport).await;
        let (rialto, _good) = served_with_a_good_one(&bad).await;
        let session = rialto.open("2025-11-25").await;
        bad.inject_fault("tools/call", InjectedFault::Text(tool_result(content)));
        let text = session.post(&calling(1, "bad__echo", json!({}))).go().await.text().await;
        assert!(text.contains(content), "{transport:?} {text}");
    }
}

#[tokio::test]
async fn an_oversized_answer_of_a_child_fails_its_own_call_alone() {
    let bad = ScriptedServer::start("bad", ServerTransport::Stdio).await;
    let mut shared = spec(&bad);
    shared.connection_mode = rialto::upstream::ConnectionMode::Shared;
    shared.settings.message_bytes = 64 << 10;
    let rialto = gateway(default_group_of(vec![shared])).await;
    let (patient, _) = client(&rialto, ClientTransport::Http, "ada").await;
    let (greedy, _) = client(&rialto, ClientTransport::Http, "bob").await;
    let waiting = call(&patient, "do", json!({ "steps": [{ "wait": "end" }] }));
    tokio::pin!(waiting);
    let flooded = async {
        bad.wait_received("tools/call", 1).await;
        // A notification and rubbish over the limit belong to nobody.
        let huge = "x".repeat(70 << 10);
        bad.send_text(&huge);
        bad.send_text(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{huge}"}}}}"#));
        let result = json!({ "content": [{ "type": "text", "text": huge, "id": 1 }] });
        refused(&greedy, "tools/call", json!({ "name": "do", "arguments": { "result": result } })).await
    };
    let (code, text) = tokio::select! {
        _ = &mut waiting => panic!("the call that waits has ended"),
        refused = flooded => refused,
    };
    assert!(code == -32603 && text.contains("too_large"), "{text}");
    bad.open("end");
    assert_eq!(within_timeout("the other call ends", waiting).await["server"], "bad");
}
