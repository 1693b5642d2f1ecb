//! The per-request era (2026-07-28): envelopes, mirrored headers, cache hints, subscriptions/listen, cancellation.

use std::time::Duration;

use rialto::call::ChangeEvent;
use serde_json::{Value, json};

use crate::harness::{PER_REQUEST, Rialto, initialize, modern, notification, until};

const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

#[tokio::test]
async fn a_per_request_call_needs_no_session() {
    let rialto = Rialto::start().await;
    let sending = rialto.modern("tools/call", json!({ "name": "getElement", "arguments": { "name": "Fe" } }));
    let received = sending.header("mcp-session-id", "http:anything").go().await;
    assert_eq!((received.status, received.header("mcp-session-id")), (200, None));
    let answer = received.json().await;
    assert_eq!(answer["result"]["resultType"], "complete");
    assert_eq!(answer["result"]["_meta"][SERVER_INFO]["name"], "elements");
    assert_eq!(answer["result"]["structuredContent"]["symbol"], "Fe");
    assert_eq!(rialto.inbound.sessions.count(), 0);
}

#[tokio::test]
async fn results_carry_result_type_and_cache_hints() {
    let rialto = Rialto::start().await;
    for (method, params, cached) in [
        ("server/discover", json!({}), true),
        ("tools/list", json!({}), true),
        ("prompts/list", json!({}), true),
        ("resources/list", json!({}), true),
        ("resources/templates/list", json!({}), true),
        ("resources/read", json!({ "uri": "elements://table" }), true),
        ("tools/call", json!({ "name": "getElement", "arguments": { "name": "X" } }), false),
        ("prompts/get", json!({ "name": "describeElement", "arguments": { "name": "H" } }), false),
        (
            "completion/complete",
            json!({ "ref": { "type": "ref/prompt", "name": "describeElement" }, "argument": { "name": "name", "value": "Hy" } }),
            false,
        ),
    ] {
        let (status, answer) = rialto.modern(method, params).json().await;
        let result = &answer["result"];
        assert_eq!((status, &result["resultType"]), (200, &json!("complete")), "{method}: {answer}");
        assert!(result["_meta"][SERVER_INFO]["version"].is_string(), "{method}");
        assert_eq!(result["ttlMs"].is_u64(), cached, "{method}");
        assert_eq!(matches!(result["cacheScope"].as_str(), Some("public" | "private")), cached, "{method}");
    }
}

#[tokio::test]
async fn discovery_advertises_what_is_served() {
    let rialto = Rialto::start().await;
    let (_, answer) = rialto.modern("server/discover", json!({})).json().await;
    assert_eq!(answer["result"]["supportedVersions"], json!([PER_REQUEST]));
    let capabilities = answer["result"]["capabilities"].as_object().unwrap();
    let lists = [("tools", "tools/list"), ("prompts", "prompts/list"), ("resources", "resources/list")];
    for (capability, list) in lists {
        assert!(capabilities.contains_key(capability));
        assert_eq!(rialto.modern(list, json!({})).status().await, 200);
    }
}

/// One row per fault. The first failing check decides the error, which is JSON and carries the request id.
#[tokio::test]
async fn invalid_envelopes_and_headers_are_refused_in_order() {
    let rialto = Rialto::start().await;
    let list = |change: &dyn Fn(&mut Value)| {
        let mut body = modern(json!("id"), "tools/list", json!({}));
        change(&mut body["params"]["_meta"]);
        rialto.post("/mcp", &body)
    };
    let good = || list(&|_| {}).header("mcp-protocol-version", PER_REQUEST).header("mcp-method", "tools/list");
    let version = "io.modelcontextprotocol/protocolVersion";
    let capabilities = "io.modelcontextprotocol/clientCapabilities";
    let level = "io.modelcontextprotocol/logLevel";
    let remove = |key: &'static str| move |meta: &mut Value| drop(meta.as_object_mut().unwrap().remove(key));
    let with_headers = |sending: crate::harness::HttpRequest, version: &str| {
        sending.header("mcp-protocol-version", version).header("mcp-method", "tools/list")
    };
    assert_eq!(good().status().await, 200);
    let cases = [
        ("no version in the body", with_headers(list(&remove(version)), PER_REQUEST), 400, -32602),
        ("no capabilities", with_headers(list(&remove(capabilities)), PER_REQUEST), 400, -32602),
        (
            "capabilities of the wrong type",
            with_headers(list(&|meta| meta[capabilities] = json!([])), PER_REQUEST),
            400,
            -32602,
        ),
        (
            "a level that does not exist",
            with_headers(list(&|meta| meta[level] = json!("loud")), PER_REQUEST),
            400,
            -32602,
        ),
        ("no version header", good().without("mcp-protocol-version"), 400, -32020),
        (
            "another version in the header",
            with_headers(list(&|meta| meta[version] = json!("v999")), PER_REQUEST),
            400,
            -32020,
        ),
        ("an unknown version in both", with_headers(list(&|meta| meta[version] = json!("v999")), "v999"), 400, -32022),
        ("no method header", good().without("mcp-method"), 400, -32020),
        ("the method in capitals", good().replace("mcp-method", "TOOLS/LIST"), 400, -32020),
        ("the method twice", good().header("mcp-method", "tools/list"), 400, -32020),
        ("the version twice", good().header("mcp-protocol-version", PER_REQUEST), 400, -32020),
    ];
    for (fault, sending, status, code) in cases {
        let received = sending.go().await;
        assert_eq!(received.header("content-type"), Some("application/json"), "{fault}");
        assert_eq!(received.status, status, "{fault}");
        let answer = received.json().await;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &json!("id")), "{fault}");
    }
    let (_, answer) = with_headers(list(&|meta| meta[version] = json!("v999")), "v999").json().await;
    assert_eq!(answer["error"]["data"], json!({ "supported": [PER_REQUEST], "requested": "v999" }));
    assert_eq!(good().without("mcp-method").header("MCP-METHOD", " tools/list ").status().await, 200);
    let without_client_info = rialto.modern("tools/list", json!({}));
    assert_eq!(without_client_info.status().await, 200, "clientInfo is optional");
}

#[tokio::test]
async fn the_mcp_name_header_must_match_the_body() {
    let rialto = Rialto::start().await;
    let params = json!({ "name": "getElement", "arguments": { "name": "H" } });
    let sending = || rialto.modern("tools/call", params.clone());
    for (name, status) in [
        (Some("getElement"), 200),
        (Some("  getElement  "), 200),
        (Some("=?base64?Z2V0RWxlbWVudA==?="), 200),
        (Some("=?base64?Z2V0RWxlbWVudA?="), 400),
        (Some("=?base64?Z2V0RWxlbWVu*?="), 400),
        (Some("getelement"), 400),
        (Some("=?base64?getElement"), 400),
        (None, 400),
    ] {
        let sending = match name {
            Some(name) => sending().replace("mcp-name", name),
            None => sending().without("mcp-name"),
        };
        assert_eq!(sending.status().await, status, "{name:?}");
    }
    assert_eq!(sending().header("mcp-name", "getElement").refused().await, (400, -32020), "twice");
    for (method, params) in [
        ("prompts/get", json!({ "name": "describeElement", "arguments": { "name": "氢" } })),
        ("resources/read", json!({ "uri": "elements://symbol/H" })),
    ] {
        assert_eq!(rialto.modern(method, params.clone()).status().await, 200);
        assert_eq!(rialto.modern(method, params).without("mcp-name").refused().await, (400, -32020), "{method}");
    }
    // A name outside ASCII is sent as Base64.
    let (status, answer) = rialto.modern("tools/call", json!({ "name": "氢" })).json().await;
    assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)));
}

#[tokio::test]
async fn mcp_param_headers_must_match_annotated_arguments() {
    let rialto = Rialto::start().await;
    let sending = |count: Value| {
        rialto.modern("tools/call", json!({ "name": "surveyElements", "arguments": { "count": count, "delayMs": 0 } }))
    };
    assert_eq!(sending(json!(2)).header("mcp-param-count", "2").status().await, 200);
    assert_eq!(sending(json!(2)).header("Mcp-Param-Count", "2.0").status().await, 200);
    assert_eq!(sending(json!(2)).refused().await, (400, -32020), "the header is missing");
    assert_eq!(sending(json!(2)).header("mcp-param-count", "3").refused().await, (400, -32020));
    assert_eq!(sending(Value::Null).header("mcp-param-count", "3").refused().await, (400, -32020));
    assert_eq!(sending(Value::Null).status().await, 200, "an absent argument needs no header");
    assert_eq!(sending(json!(2)).header("mcp-param-count", "2").header("mcp-param-other", "x").status().await, 200);
}

#[tokio::test]
async fn handshake_methods_are_404_in_the_per_request_era() {
    let rialto = Rialto::start().await;
    for method in [
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "initialize",
        "tasks/list",
        "tasks/result",
        "no/such",
    ] {
        assert_eq!(rialto.modern(method, json!({})).refused().await, (404, -32601), "{method}");
    }
}

#[tokio::test]
async fn the_body_decides_the_era_of_a_post() {
    let rialto = Rialto::start().await;
    let body = initialize("2025-11-25");
    let refused = rialto.post("/mcp", &body).header("mcp-protocol-version", PER_REQUEST).refused().await;
    assert_eq!(refused, (400, -32020));
    let accepted = rialto.post("/mcp", &body).header("mcp-protocol-version", "2025-11-25");
    assert_eq!(accepted.status().await, 200);
    let bare = rialto.post("/mcp", &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }));
    let (status, answer) =
        bare.header("mcp-protocol-version", PER_REQUEST).header("mcp-method", "tools/list").json().await;
    assert_eq!(status, 400);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("protocolVersion") && message.contains("clientCapabilities"), "{message}");
    let batch = json!([modern(json!(1), "tools/list", json!({}))]);
    assert_eq!(rialto.post("/mcp", &batch).refused().await, (400, -32600));
}

#[tokio::test]
async fn posted_notifications_are_202_and_responses_400() {
    let rialto = Rialto::start().await;
    let cancel = notification("notifications/cancelled", json!({ "requestId": 1 }));
    let received = rialto.post("/mcp", &cancel).header("mcp-protocol-version", PER_REQUEST).go().await;
    assert_eq!((received.status, received.text().await.as_str()), (202, ""));
    let mut enveloped = modern(json!(1), "notifications/cancelled", json!({ "requestId": 1 }));
    enveloped.as_object_mut().unwrap().remove("id");
    assert_eq!(rialto.post("/mcp", &enveloped).status().await, 202);
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": {} });
    assert_eq!(rialto.post("/mcp", &answer).header("mcp-protocol-version", PER_REQUEST).status().await, 400);
}

#[tokio::test]
async fn unknown_tools_resources_and_cursors_are_invalid_params() {
    let rialto = Rialto::start().await;
    for (method, params) in [
        ("resources/read", json!({ "uri": "elements://nope" })),
        ("tools/call", json!({ "name": "nope" })),
        ("tools/list", json!({ "cursor": "" })),
        ("tools/list", json!({ "cursor": "x" })),
    ] {
        assert_eq!(rialto.modern(method, params.clone()).refused().await, (200, -32602), "{method} {params}");
    }
}

#[tokio::test]
async fn per_request_sse_has_no_event_ids_and_ends_with_the_response() {
    let rialto = Rialto::start().await;
    let params =
        json!({ "name": "surveyElements", "arguments": { "count": 3, "delayMs": 1 }, "_meta": { "progressToken": 9 } });
    let received = rialto.modern("tools/call", params).header("mcp-param-count", "3").go().await;
    assert_eq!(received.header("x-accel-buffering"), Some("no"));
    let events = received.events().rest_events().await;
    assert!(events.iter().all(|event| event.id.is_none() && event.retry.is_none() && !event.data.is_empty()));
    let messages: Vec<Value> = events.iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect();
    assert_eq!(messages.len(), 4);
    assert_eq!(messages[0]["params"]["progressToken"], 9);
    assert_eq!(messages[3]["result"]["resultType"], "complete");
}

#[tokio::test]
async fn log_messages_need_a_log_level_in_the_request() {
    let rialto = Rialto::start().await;
    let lookup = |meta: Value| {
        rialto.modern("tools/call", json!({ "name": "getElement", "arguments": { "name": "H" }, "_meta": meta }))
    };
    assert!(!lookup(json!({})).go().await.is_events());
    assert!(!lookup(json!({ "io.modelcontextprotocol/logLevel": "info" })).go().await.is_events());
    let messages = lookup(json!({ "io.modelcontextprotocol/logLevel": "debug" })).go().await.events().rest().await;
    assert_eq!(messages[0]["method"], "notifications/message");
    assert_eq!(messages.len(), 2);
}

#[tokio::test]
async fn closing_the_connection_cancels_the_call() {
    for sse_after in [Duration::from_millis(10), Duration::from_secs(60)] {
        let mut rialto = Rialto::with(|settings| settings.inbound.sse_after = sse_after).await;
        let params = json!({ "name": "surveyElements", "arguments": { "count": 118, "delayMs": 5000 } });
        let call = rialto.modern("tools/call", params).header("mcp-param-count", "118").go();
        if sse_after < Duration::from_secs(1) {
            assert!(call.await.is_events(), "the response has started");
        } else {
            tokio::select! {
                biased;
                _ = call => panic!("the call takes minutes"),
                () = until("the call runs", || rialto.inbound.shutdown.calls_in_flight() == 1) => {}
            }
        }
        rialto.begin_stop();
        assert!(rialto.stopped().await, "no call is running");
    }
}

#[tokio::test]
async fn subscriptions_listen_is_acknowledged_first_and_completed_at_shutdown() {
    let mut rialto =
        Rialto::with(|settings| settings.gateway = rialto::app::builtin_config(Duration::from_millis(50))).await;
    for (id, header) in [(json!(7), "7"), (json!("7"), "\"7\"")] {
        let filter = json!({ "notifications": { "toolsListChanged": true, "resourceSubscriptions": ["elements://spotlight"], "unknown": true } });
        let body = modern(id.clone(), "subscriptions/listen", filter);
        let sending = rialto
            .post("/mcp", &body)
            .header("mcp-protocol-version", PER_REQUEST)
            .header("mcp-method", "subscriptions/listen");
        let mut events = sending.go().await.events();
        let first = events.message().await.unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{header}");
        assert_eq!(first["params"]["_meta"][SUBSCRIPTION], id);
        assert_eq!(
            first["params"]["notifications"],
            json!({ "toolsListChanged": true, "resourceSubscriptions": ["elements://spotlight"] })
        );
        rialto.group().publish(ChangeEvent::Prompts);
        rialto.group().publish(ChangeEvent::Tools);
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < 2 {
            let message = events.message().await.unwrap();
            assert_eq!(message["params"]["_meta"][SUBSCRIPTION], id);
            assert_ne!(message["method"], "notifications/prompts/list_changed", "not in the listen filter");
            seen.insert(message["method"].as_str().unwrap().to_owned());
        }
    }
    let sending = rialto.modern("subscriptions/listen", json!({ "notifications": {} }));
    let mut events = sending.go().await.events();
    assert!(events.message().await.is_some());
    rialto.begin_stop();
    let last = events.message().await.unwrap();
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!(1), &json!("complete")));
    assert_eq!(last["result"]["_meta"][SUBSCRIPTION], 1);
    assert!(events.message().await.is_none());
    assert!(rialto.stopped().await);
}

#[tokio::test]
async fn an_invalid_listen_filter_is_refused() {
    let rialto = Rialto::start().await;
    for params in [
        json!({}),
        json!({ "notifications": 1 }),
        json!({ "notifications": { "toolsListChanged": "yes" } }),
        json!({ "notifications": { "resourceSubscriptions": "x" } }),
    ] {
        assert_eq!(rialto.modern("subscriptions/listen", params.clone()).refused().await, (200, -32602), "{params}");
    }
}

#[tokio::test]
async fn lists_have_a_stable_order() {
    let rialto = Rialto::start().await;
    let (_, first) = rialto.modern("tools/list", json!({})).json().await;
    for _ in 0..5 {
        assert_eq!(rialto.modern("tools/list", json!({})).json().await.1, first);
    }
}
