//! Parked calls: a per-request client and handshake servers that send requests during a call.

use std::time::Duration;

use rialto::gateway::ParkingTimeouts;
use rialto::policy::{Policy, Tokens};
use rialto::upstream::Upstream;
use serde_json::{Map, Value, json};

use super::Testbed;
use super::client::{Client, Params, Response, accept_server_request, retry};
use super::feature_checks::{expect_text, until};
use super::handlers::raw_member;
use super::scripted_server::ScriptedServer;
use super::variants::{HTTP_2025_11, HTTP_2026_07, Transport, VARIANTS, Variant};
use crate::harness::{TEST_TIMEOUT, modern};

/// 2025-11-25 servers, which have every kind of server request, over HTTP and stdio.
fn servers() -> [Variant; 2] {
    let stdio = VARIANTS
        .into_iter()
        .find(|variant| variant.revision == HTTP_2025_11.revision && variant.transport == Transport::Stdio);
    [HTTP_2025_11, stdio.unwrap()]
}

/// A client and its call over several input rounds.
struct InputRounds {
    client: Client,
    params: Params,
    answer: Response,
}

impl InputRounds {
    async fn begin(mut client: Client, tool: &str) -> Self {
        let params = Params::from(json!({ "name": tool, "arguments": { "n": 1 } }));
        let id = client.send("tools/call", params.clone().with_meta(r#""progressToken":"first""#)).await.unwrap();
        let answer = client.response(&id).await.unwrap();
        Self { client, params, answer }
    }

    /// The input requests by key.
    fn input_requests(&self) -> Map<String, Value> {
        let result = &self.answer.message["result"];
        assert_eq!(result["resultType"], "input_required", "{}", self.answer.message);
        result["inputRequests"].as_object().cloned().unwrap_or_default()
    }

    fn request_state(&self) -> String {
        let result = raw_member(&self.answer.raw, "result").unwrap_or_default();
        raw_member(result, "requestState").unwrap_or_else(|| panic!("no state: {}", self.answer.raw)).to_owned()
    }

    fn input_responses(&self) -> Value {
        let one = |(key, request): (String, Value)| {
            (key, accept_server_request(request["method"].as_str().unwrap(), &request["params"]).unwrap())
        };
        Value::Object(self.input_requests().into_iter().map(one).collect())
    }

    /// Retries with a response to every input request.
    async fn respond(&mut self) {
        let answers = self.input_responses();
        self.respond_with(&answers, "").await;
    }

    async fn respond_with(&mut self, answers: &Value, meta: &str) {
        let state = self.request_state();
        let params = retry(&self.params, answers, Some(&state)).with_meta(meta);
        let id = self.client.send("tools/call", params).await.unwrap();
        self.answer = self.client.response(&id).await.unwrap();
    }

    fn expect_text(&self, expected: &str) {
        expect_text(&self.answer, expected).unwrap();
    }
}

fn upstream(testbed: &Testbed, variant: Variant) -> std::sync::Arc<Upstream> {
    let all = testbed.rialto.inbound.gateway.upstreams();
    all.into_iter().find(|upstream| **upstream.name() == *variant.name).unwrap()
}

fn parked_calls(testbed: &Testbed) -> usize {
    testbed.rialto.inbound.gateway.parked_calls()
}

fn scripted(testbed: &Testbed, variant: Variant) -> &ScriptedServer {
    &testbed.endpoints.iter().find(|endpoint| endpoint.scripted.variant == variant).unwrap().scripted
}

async fn client(testbed: &Testbed, server: Variant, token: Option<&str>) -> Client {
    Client::over_http(HTTP_2026_07, testbed.rialto.address, server.name, token).await.unwrap()
}

/// A testbed with short input timeouts and a short lease idle timeout.
async fn short_timeouts(server: Variant) -> Testbed {
    let short = Duration::from_secs(3);
    Testbed::with(&[server], |settings| {
        settings.parking = ParkingTimeouts { elicitation_timeout: short, sampling_timeout: short };
        settings.gateway.upstreams[0].lease_idle_timeout = Duration::from_millis(100);
    })
    .await
}

async fn eventually(what: &str, holds: impl FnMut() -> bool) {
    until(what, holds).await.unwrap();
}

#[tokio::test]
async fn several_server_requests_are_answered_in_one_round() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut rounds = InputRounds::begin(client(&testbed, server, None).await, "both").await;
        assert_eq!(rounds.input_requests().len(), 2);
        assert_eq!((parked_calls(&testbed), scripted(&testbed, server).running_calls()), (1, 1));
        let hint = ["ttlMs", "cacheScope"].map(|member| rounds.answer.message["result"].get(member));
        assert_eq!(hint, [None, None]);
        rounds.respond().await;
        rounds.expect_text("accept Ada true");
        assert_eq!((parked_calls(&testbed), scripted(&testbed, server).call_count("both")), (0, 1));
        testbed.close().await;
    }
}

#[tokio::test]
async fn unanswered_input_requests_are_repeated() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut rounds = InputRounds::begin(client(&testbed, server, None).await, "both").await;
        let (all, first) = (rounds.input_responses(), rounds.request_state());
        let keys: Vec<String> = rounds.input_requests().keys().cloned().collect();
        // No responses, invalid responses, and a response to an unknown key.
        for poor in [json!({}), json!({ &keys[0]: null, &keys[1]: 7 }), json!({ "other": { "action": "accept" } })] {
            rounds.respond_with(&poor, "").await;
            assert_eq!(rounds.input_requests().keys().cloned().collect::<Vec<_>>(), keys, "{poor}");
            assert_ne!(rounds.request_state(), first, "a request state is valid once");
        }
        rounds.respond_with(&json!({ &keys[0]: all[&keys[0]] }), "").await;
        assert_eq!(rounds.input_requests().keys().cloned().collect::<Vec<_>>(), keys[1..]);
        assert_eq!(parked_calls(&testbed), 1);
        // A response that nobody asked for beside the one that was does no harm.
        rounds.respond_with(&json!({ "other": { "action": "cancel" }, &keys[1]: all[&keys[1]] }), "").await;
        rounds.expect_text("accept Ada true");
        assert_eq!(scripted(&testbed, server).call_count("both"), 1);
        testbed.close().await;
    }
}

#[tokio::test]
async fn input_rounds_use_the_progress_token_of_each_round() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut client = client(&testbed, server, None).await;
        let params = Params::from(json!({ "name": "chain", "arguments": {} }));
        let id = client.send("tools/call", params.clone().with_meta(r#""progressToken":"a""#)).await.unwrap();
        let answer = client.response(&id).await.unwrap();
        let mut rounds = InputRounds { client, params, answer };
        let progress_of = |answer: &Response| -> Vec<(Value, Value)> {
            let one =
                |notice: &Value| (notice["params"]["progressToken"].clone(), notice["params"]["progress"].clone());
            answer.notifications.iter().map(one).collect()
        };
        assert_eq!(progress_of(&rounds.answer), [(json!("a"), json!(1))]);
        let answers = rounds.input_responses();
        rounds.respond_with(&answers, r#""progressToken":9"#).await;
        assert_eq!(progress_of(&rounds.answer), [(json!(9), json!(2))]);
        let answers = rounds.input_responses();
        rounds.respond_with(&answers, "").await;
        assert_eq!(progress_of(&rounds.answer), [], "no progress token in this round");
        rounds.expect_text("accept Ada");
        assert_eq!(scripted(&testbed, server).take_log(), ["answered", "accept"]);
        testbed.close().await;
    }
}

#[tokio::test]
async fn parallel_parked_calls_keep_separate_request_states() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut first = InputRounds::begin(client(&testbed, server, None).await, "confirm").await;
        let mut second = InputRounds::begin(client(&testbed, server, None).await, "confirm").await;
        assert_eq!(parked_calls(&testbed), 2);
        for (rounds, name) in [(&mut second, "Grace"), (&mut first, "Ada")] {
            let key = rounds.input_requests().keys().next().cloned().unwrap();
            let answer = json!({ key: { "action": "accept", "content": { "name": name } } });
            rounds.respond_with(&answer, "").await;
            rounds.expect_text(&format!("accept {name}"));
        }
        testbed.close().await;
    }
}

#[tokio::test]
async fn a_tampered_foreign_or_replayed_request_state_is_refused() {
    let tokens = ["ann=a".to_owned(), "bob=b".to_owned()];
    for server in servers() {
        let testbed =
            Testbed::with(&[server], |settings| settings.policy.tokens = Tokens::parse(&tokens).unwrap()).await;
        let mut ann = client(&testbed, server, Some("a")).await;
        let mut bob = client(&testbed, server, Some("b")).await;
        let params = Params::from(json!({ "name": "confirm" }));
        let called = |arguments: &str| Params {
            members: format!(r#"{},"arguments":{arguments}"#, params.members),
            meta: String::new(),
        };
        let right = called(r#"{"n":12345678901234567890123}"#);
        let id = ann.send("tools/call", right.clone()).await.unwrap();
        let answer = ann.response(&id).await.unwrap();
        let mut rounds = InputRounds { client: ann, params: right.clone(), answer };
        let (answers, state) = (rounds.input_responses(), rounds.request_state());
        let spoilt = |at: usize| {
            let mut characters: Vec<char> = state.chars().collect();
            characters[at] = if characters[at] == 'A' { 'B' } else { 'A' };
            characters.into_iter().collect::<String>()
        };
        let tampered: Vec<String> = [1, 4, state.len() / 2, state.len() - 3].map(spoilt).into();
        for bad in tampered.iter().map(String::as_str).chain([r#""""#, r#""h.""#, r#""nonsense""#, "7", "null"]) {
            let id = rounds.client.send("tools/call", retry(&right, &answers, Some(bad))).await.unwrap();
            let answer = rounds.client.response(&id).await.unwrap();
            assert_eq!(answer.message["error"]["code"], -32602, "{bad}: {}", answer.message);
        }
        for other in [r#"{"n":12345678901234567890124}"#, r#"{"n":1.2345678901234568e22}"#, "{}"] {
            let id = rounds.client.send("tools/call", retry(&called(other), &answers, Some(&state))).await.unwrap();
            let answer = rounds.client.response(&id).await.unwrap();
            assert_eq!(answer.message["error"]["code"], -32602, "{other}: {}", answer.message);
        }
        let id = bob.send("tools/call", retry(&right, &answers, Some(&state))).await.unwrap();
        assert_eq!(bob.response(&id).await.unwrap().message["error"]["code"], -32602, "the state belongs to Ann");
        assert_eq!(
            (parked_calls(&testbed), scripted(&testbed, server).running_calls()),
            (1, 1),
            "the call is still parked"
        );
        rounds.respond().await;
        rounds.expect_text("accept Ada");
        let id = rounds.client.send("tools/call", retry(&right, &answers, Some(&state))).await.unwrap();
        let replayed = rounds.client.response(&id).await.unwrap();
        assert_eq!(replayed.message["error"]["code"], -32602, "a replayed state is refused: {}", replayed.message);
        assert_eq!(scripted(&testbed, server).call_count("confirm"), 1);
        testbed.close().await;
    }
}

#[tokio::test]
async fn an_abandoned_parked_call_is_cancelled_after_its_timeout() {
    for server in servers() {
        let testbed = short_timeouts(server).await;
        let mut rounds = InputRounds::begin(client(&testbed, server, None).await, "stubborn").await;
        assert_eq!(
            (rounds.input_requests().len(), parked_calls(&testbed), upstream(&testbed, server).lease_count()),
            (2, 1, 1)
        );
        let scripted_server = scripted(&testbed, server);
        eventually("the call is cancelled", || scripted_server.cancelled_calls() == 1).await;
        eventually("no call is parked", || parked_calls(&testbed) == 0).await;
        let mut log = scripted_server.take_log();
        assert_eq!(log.pop().as_deref(), Some("cancelled"), "the cancellation comes last");
        log.sort();
        assert_eq!(log, ["-1", "cancel"]);
        let answers = rounds.input_responses();
        let late = retry(&rounds.params, &answers, Some(&rounds.request_state()));
        let id = rounds.client.send("tools/call", late).await.unwrap();
        assert_eq!(rounds.client.response(&id).await.unwrap().message["error"]["code"], -32602);
        eventually("the lease is released", || upstream(&testbed, server).lease_count() == 0).await;
        eventually("the server session has ended", || scripted_server.ended_sessions() == 1).await;
        assert_eq!(upstream(&testbed, server).calls_in_flight(), 0);
        testbed.close().await;
    }
}

#[tokio::test]
async fn cancellation_in_a_later_input_round_cancels_the_call() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut rounds = InputRounds::begin(client(&testbed, server, None).await, "wander").await;
        let answers = rounds.input_responses();
        let params = retry(&rounds.params, &answers, Some(&rounds.request_state())).with_meta(r#""progressToken":1"#);
        let id = rounds.client.send("tools/call", params).await.unwrap();
        rounds.client.wait_for_progress(&id).await.unwrap();
        assert_eq!((parked_calls(&testbed), scripted(&testbed, server).running_calls()), (0, 1));
        rounds.client.cancel(&id).await.unwrap();
        eventually("the call is cancelled", || scripted(&testbed, server).cancelled_calls() == 1).await;
        eventually("no call is in flight", || upstream(&testbed, server).calls_in_flight() == 0).await;
        assert_eq!(parked_calls(&testbed), 0);
        testbed.close().await;
    }
}

#[tokio::test]
async fn a_parked_call_that_ended_meanwhile_returns_its_result() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut rounds = InputRounds::begin(client(&testbed, server, None).await, "parting").await;
        let scripted_server = scripted(&testbed, server);
        scripted_server.release.notify_one();
        eventually("the call has ended at the server", || scripted_server.running_calls() == 0).await;
        assert_eq!(parked_calls(&testbed), 1, "its result is kept");
        rounds.respond().await;
        rounds.expect_text("gone on");
        assert_eq!(parked_calls(&testbed), 0);
        testbed.close().await;
    }
}

#[tokio::test]
async fn a_cancelled_server_request_is_dropped_from_the_parked_call() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut rounds = InputRounds::begin(client(&testbed, server, None).await, "withdraw").await;
        let (scripted_server, answers) = (scripted(&testbed, server), rounds.input_responses());
        scripted_server.release.notify_one();
        let mut state = rounds.request_state();
        // Until the gateway has received the cancellation, it repeats the input request.
        let id = loop {
            let params = retry(&rounds.params, &json!({}), Some(&state)).with_meta(r#""progressToken":1"#);
            let id = rounds.client.send("tools/call", params).await.unwrap();
            match rounds.client.first_message(&id).await.unwrap() {
                Ok(progress) => break (progress["params"]["progress"] == 1).then_some(id).unwrap(),
                Err(raw) => state = raw_member(raw_member(&raw, "result").unwrap(), "requestState").unwrap().to_owned(),
            }
        };
        scripted_server.release.notify_one();
        rounds.answer = rounds.client.response(&id).await.unwrap();
        rounds.expect_text("never mind");
        assert!(
            !answers.as_object().unwrap().is_empty() && scripted_server.take_log().is_empty(),
            "the server expects no response"
        );
        testbed.close().await;
    }
}

#[tokio::test]
async fn parked_calls_are_limited_in_total_and_per_caller() {
    let tokens = ["ann=a".to_owned(), "bob=b".to_owned(), "eve=e".to_owned()];
    for server in servers() {
        let testbed = Testbed::with(&[server], |settings| {
            settings.policy.tokens = Tokens::parse(&tokens).unwrap();
            settings.quotas.parked_calls = 2;
            settings.quotas.parked_calls_per_caller = 1;
        })
        .await;
        let mut ann = InputRounds::begin(client(&testbed, server, Some("a")).await, "confirm").await;
        // Over the limit per caller or in total: the server request is refused and the call continues.
        let refused = "the client refused: -32601";
        let again = InputRounds::begin(client(&testbed, server, Some("a")).await, "think").await;
        assert_eq!(again.answer.message["result"]["content"][0]["text"], refused, "{}", again.answer.message);
        let mut bob = InputRounds::begin(client(&testbed, server, Some("b")).await, "think").await;
        let eve = InputRounds::begin(client(&testbed, server, Some("e")).await, "think").await;
        assert_eq!(eve.answer.message["result"]["content"][0]["text"], refused, "{}", eve.answer.message);
        assert_eq!(parked_calls(&testbed), 2);
        ann.respond().await;
        ann.expect_text("accept Ada");
        bob.respond().await;
        bob.expect_text("thoughts on bridges");
        assert_eq!(parked_calls(&testbed), 0);
        testbed.close().await;
    }
}

#[tokio::test]
async fn a_parked_call_ends_with_the_token_of_its_caller() {
    let tokens = ["ann=a".to_owned(), "bob=b".to_owned()];
    for server in servers() {
        let testbed =
            Testbed::with(&[server], |settings| settings.policy.tokens = Tokens::parse(&tokens).unwrap()).await;
        let _ann = InputRounds::begin(client(&testbed, server, Some("a")).await, "confirm").await;
        let mut bob = InputRounds::begin(client(&testbed, server, Some("b")).await, "confirm").await;
        assert_eq!(parked_calls(&testbed), 2);
        let policy = Policy { tokens: Tokens::parse(&tokens[1..]).unwrap(), ..Policy::default() };
        testbed.rialto.inbound.set_policy(policy);
        assert_eq!(parked_calls(&testbed), 1);
        bob.respond().await;
        bob.expect_text("accept Ada");
        testbed.close().await;
    }
}

#[tokio::test]
async fn url_elicitation_required_error_becomes_input_required_and_retries() {
    for server in servers() {
        // A response that takes long has the status of the stream that it becomes.
        let testbed = Testbed::with(&[server], |settings| settings.inbound.sse_after = TEST_TIMEOUT).await;
        let mut rounds = InputRounds::begin(client(&testbed, server, None).await, "gate").await;
        let input_requests: Vec<Value> = rounds.input_requests().into_values().collect();
        let params = json!({ "mode": "url", "message": "pay", "url": "https://example.org/pay" });
        assert_eq!(input_requests, [json!({ "method": "elicitation/create", "params": params })]);
        assert_eq!(parked_calls(&testbed), 0, "no call is waiting at the server");
        rounds.respond().await;
        rounds.expect_text("gate");
        assert_eq!(scripted(&testbed, server).call_count("gate"), 2);
        // A client without url elicitation gets the missing capability.
        let mut body = modern(1.into(), "tools/call", json!({ "name": "gate", "arguments": { "n": 1 } }));
        let declared = &mut body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        *declared = json!({ "elicitation": { "form": {} } });
        let post = testbed.rialto.post(&format!("/mcp/{}", server.name), &body);
        let (status, refused) = post.modern_headers("tools/call", &body["params"]).json().await;
        assert_eq!((status, &refused["error"]["code"]), (400, &json!(-32021)), "{refused}");
        let needed = json!({ "requiredCapabilities": { "elicitation": { "url": {} } } });
        assert_eq!(refused["error"]["data"], needed);
        testbed.close().await;
    }
}

/// A handshake client that refuses to sample: the call fails, and the per-request server is not asked again.
#[tokio::test]
async fn refused_sampling_fails_the_call_and_the_server_is_not_called_again() {
    let testbed = Testbed::open(&[HTTP_2026_07]).await;
    for variant in VARIANTS.into_iter().filter(|variant| !variant.is_per_request()) {
        let before = scripted(&testbed, HTTP_2026_07).call_count("think");
        let mut client = testbed.client(variant, HTTP_2026_07.name).await.unwrap();
        client.on_server_request = Box::new(|_, _| Err(-1));
        let answer = client.call("think", json!({ "n": 1 })).await.unwrap();
        assert_eq!(answer.message["result"]["isError"], true, "{variant:?}: {}", answer.message);
        assert_eq!(scripted(&testbed, HTTP_2026_07).call_count("think"), before + 1, "{variant:?}");
        client.close().await.unwrap();
    }
    testbed.close().await;
}

#[tokio::test]
async fn a_parked_call_is_in_flight_until_it_ends() {
    use rialto::policy::LimitRule;
    for server in servers() {
        let most = |name: &str| LimitRule { max_in_flight: Some(1), ..LimitRule::new(name) };
        let calls = LimitRule { tools: vec![wildmatch::WildMatch::new("*")], ..most("calls") };
        let testbed = Testbed::with(&[server], |settings| settings.rate_limits = vec![most("requests"), calls]).await;
        let limits = testbed.rialto.inbound.gateway.rate_limits().clone();
        let in_flight = move || limits.usage().iter().map(|limit| limit.measures[0].used).collect::<Vec<_>>();
        let mut rounds = InputRounds::begin(client(&testbed, server, None).await, "both").await;
        assert_eq!(rounds.input_requests().len(), 2);
        assert_eq!((parked_calls(&testbed), in_flight()), (1, vec![1, 1]));
        // The request that goes on with it is not one more.
        rounds.respond().await;
        rounds.expect_text("accept Ada true");
        eventually("nothing is in flight", || in_flight() == [0, 0]).await;
        testbed.close().await;
    }
}
