//! Streamable HTTP in the handshake era: initialize, sessions, headers, verbs and JSON-RPC errors.

use serde_json::{Value, json};

use crate::harness::{HANDSHAKE, Rialto, Session, call, initialize, notification, request};

#[tokio::test]
async fn initialize_negotiates_the_proposed_revision() {
    let rialto = Rialto::start().await;
    for (proposed, answered) in
        HANDSHAKE.map(|r| (r, r)).into_iter().chain([("2026-07-28", "2025-11-25"), ("1.0", "2025-11-25")])
    {
        let received = rialto.post("/mcp", &initialize(proposed)).go().await;
        let id = received.header("mcp-session-id").unwrap().to_owned();
        assert!(id.starts_with("http:") && id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
        let answer = received.json().await;
        assert_eq!(answer["result"]["protocolVersion"], answered);
        assert_eq!(answer["id"], "init");
        assert_eq!(answer["result"]["serverInfo"]["name"], "elements");
        let completions = answer["result"]["capabilities"].get("completions");
        assert_eq!(completions.is_some(), answered != "2024-11-05");
    }
}

#[tokio::test]
async fn malformed_initialize_params_are_refused() {
    let rialto = Rialto::start().await;
    for params in
        [json!({}), json!({ "protocolVersion": 5 }), json!({ "protocolVersion": "2025-06-18", "capabilities": [] })]
    {
        let refused = rialto.post("/mcp", &request(1, "initialize", params)).refused().await;
        assert_eq!(refused, (400, -32602));
    }
    assert_eq!(rialto.inbound.sessions.count(), 0);
}

#[tokio::test]
async fn a_second_initialize_in_a_session_is_refused() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let again = session.post(&initialize("2025-11-25"));
    assert_eq!(again.refused().await, (400, -32600));
    let unknown = rialto.post("/mcp", &initialize("2025-11-25")).header("mcp-session-id", "http:0");
    assert_eq!(unknown.status().await, 404);
}

#[tokio::test]
async fn a_missing_session_id_is_400_and_an_unknown_one_404() {
    let rialto = Rialto::start().await;
    let (status, answer) = rialto.post("/mcp", &request(1, "tools/list", json!({}))).json().await;
    assert_eq!(status, 400);
    assert!(answer["error"]["message"].as_str().unwrap().contains("`Mcp-Session-Id` is required"));
    let unknown = format!("http:{:032x}", 7);
    for id in [unknown.as_str(), "nonsense", "sse:00000000000000000000000000000007"] {
        let sending = rialto.post("/mcp", &request(1, "tools/list", json!({}))).header("mcp-session-id", id);
        let (status, answer) = sending.json().await;
        assert_eq!(status, 404);
        assert_eq!(answer["error"]["message"], format!("Session not found: {id}"));
        for verb in ["GET", "DELETE"] {
            let sending = rialto.send(verb, "/mcp").header("accept", "text/event-stream").header("mcp-session-id", id);
            assert_eq!(sending.status().await, 404, "{verb} {id}");
        }
    }
    for verb in ["GET", "DELETE"] {
        let received = rialto.send(verb, "/mcp").header("accept", "text/event-stream").go().await;
        assert_eq!((received.status, received.header("allow")), (405, Some("POST")), "{verb}");
    }
}

#[tokio::test]
async fn the_session_id_is_read_from_path_header_and_query() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let ping = request(1, "ping", json!({}));
    let id = session.id.as_str();
    let bare = id.strip_prefix("http:").unwrap();
    let requests = [
        rialto.post(&format!("/mcp/default/{id}"), &ping),
        rialto.post("/mcp", &ping).header("mcp-session-id", id),
        rialto.post("/mcp", &ping).header("mcp-session-id", bare),
        rialto.post("/mcp/default", &ping).header("x-session-id", id),
        rialto.post(&format!("/mcp/streamable?sessionId={id}"), &ping),
        rialto.post(&format!("/mcp?sessionId={}", id.replace(':', "%3A")), &ping),
    ];
    for request in requests {
        assert_eq!(request.json().await, (200, json!({ "jsonrpc": "2.0", "id": 1, "result": {} })));
    }
    assert_eq!(rialto.inbound.sessions.count(), 1);
}

#[tokio::test]
async fn delete_ends_a_session() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let mut events = session.get().go().await.events();
    assert!(events.next().await.is_some());
    assert_eq!(session.delete().status().await, 200);
    assert!(events.next().await.is_none(), "its GET stream ends");
    assert_eq!(session.delete().status().await, 404);
    assert_eq!(session.post(&request(1, "ping", json!({}))).status().await, 404);
    assert_eq!(session.get().status().await, 404);

    let rialto = Rialto::with(|settings| settings.inbound.allow_session_delete = false).await;
    let session = rialto.open("2025-11-25").await;
    assert_eq!(session.delete().status().await, 405);
    assert_eq!(session.post(&request(1, "ping", json!({}))).status().await, 200);
}

#[tokio::test]
async fn notifications_and_responses_are_202() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-06-18").await;
    for message in [
        notification("notifications/initialized", json!({})),
        notification("notifications/roots/list_changed", json!({})),
        notification("notifications/cancelled", json!({ "requestId": 99 })),
        notification("notifications/cancelled", json!({})),
        notification("notifications/whatever", json!({ "a": 1 })),
        json!({ "jsonrpc": "2.0", "id": 5, "result": {} }),
        json!({ "jsonrpc": "2.0", "id": "x", "error": { "code": -1, "message": "no" } }),
    ] {
        let received = session.post(&message).go().await;
        assert_eq!((received.status, received.text().await.as_str()), (202, ""), "{message}");
    }
}

#[tokio::test]
async fn requests_before_the_initialized_notification_are_served() {
    let rialto = Rialto::start().await;
    let received = rialto.post("/mcp", &initialize("2025-11-25")).go().await;
    let id = received.header("mcp-session-id").unwrap().to_owned();
    let list = rialto.post("/mcp", &request(1, "tools/list", json!({}))).header("mcp-session-id", &id);
    assert_eq!(list.status().await, 200);
}

#[tokio::test]
async fn the_protocol_version_header_is_checked_in_sessions() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-06-18").await;
    let ping = request(1, "ping", json!({}));
    for (version, status) in [("2025-06-18", 200), ("2024-11-05", 200), ("2099-01-01", 400), ("x", 400)] {
        let sending = session.post(&ping).replace("mcp-protocol-version", version);
        assert_eq!(sending.status().await, status, "{version}");
    }
    assert_eq!(session.post(&ping).without("mcp-protocol-version").status().await, 200);
    // 2026-07-28 has no sessions: the error names the missing `_meta` members.
    let modern = session.post(&ping).replace("mcp-protocol-version", "2026-07-28");
    assert_eq!(modern.refused().await, (400, -32602));
}

#[tokio::test]
async fn accept_content_type_verb_and_path_are_checked() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let ping = request(1, "ping", json!({}));
    for (accept, status) in [
        ("application/json", 406),
        ("text/event-stream", 406),
        ("text/html", 406),
        ("*/*", 200),
        ("application/*, text/*", 200),
    ] {
        assert_eq!(session.post(&ping).replace("accept", accept).status().await, status, "{accept}");
    }
    assert_eq!(session.post(&ping).without("accept").status().await, 406);
    assert_eq!(session.get().replace("accept", "application/json").status().await, 406);
    for content in ["text/plain", "application/xml", "text/plain; x=application/json"] {
        assert_eq!(session.post(&ping).replace("content-type", content).status().await, 415, "{content}");
    }
    for verb in ["PUT", "PATCH", "HEAD"] {
        let received = rialto.send(verb, "/mcp").go().await;
        assert_eq!(received.status, 405);
        assert_eq!(received.header("allow"), Some("POST, GET, DELETE, OPTIONS"), "{verb}");
    }
    for path in ["/", "/nothing", "/mcp/unknown", "/sse/unknown", "/message/unknown", "/unknown/mcp/sse", "/mcp/a/b/c"]
    {
        assert_eq!(rialto.post(path, &ping).status().await, 404, "{path}");
    }
}

#[tokio::test]
async fn malformed_json_and_json_rpc_are_refused_with_their_codes() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let cases: [(&[u8], i64); 9] = [
        (b"{", -32700),
        (b"", -32700),
        (b"\xff\xfe", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"\xe6\xb0\",\"method\":\"ping\"}", -32700),
        (b"42", -32600),
        (b"{}", -32600),
        (b"[]", -32600),
        (br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (br#"{"jsonrpc":"2.0","id":1,"method":"ping","params":7}"#, -32600),
    ];
    for (body, code) in cases {
        let refused = session.post(&Value::Null).body(body.to_vec()).refused().await;
        assert_eq!(refused, (400, code), "{}", String::from_utf8_lossy(body));
    }
    let (status, answer) = session.post(&json!({ "jsonrpc": "2.0", "id": "a", "method": 1 })).json().await;
    assert_eq!((status, &answer["id"]), (400, &json!("a")));
}

#[tokio::test]
async fn responses_keep_the_json_type_of_the_id() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    for id in [json!(0), json!(-3), json!("0"), json!(""), json!(9007199254740993_i64), json!("é\n")] {
        let (status, answer) = session.post(&request(id.clone(), "ping", json!({}))).json().await;
        assert_eq!((status, &answer["id"]), (200, &id));
        let (_, answer) = session.post(&request(id.clone(), "no/such", json!({}))).json().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(-32601)));
    }
}

#[tokio::test]
async fn json_rpc_errors_are_http_200() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    for (method, params, code) in [
        ("no/such", json!({}), -32601),
        ("server/discover", json!({}), -32601),
        ("subscriptions/listen", json!({}), -32601),
        ("tools/call", json!({ "name": "nope" }), -32602),
        ("tools/call", json!({}), -32602),
        ("tools/list", json!({ "cursor": "x" }), -32602),
        ("tools/list", json!({ "cursor": "" }), -32602),
        ("prompts/get", json!({ "name": "nope" }), -32602),
        ("resources/read", json!({ "uri": "elements://nope" }), -32002),
        ("logging/setLevel", json!({ "level": "loud" }), -32602),
        ("resources/subscribe", json!({}), -32602),
        ("initialize", json!({}), -32600),
    ] {
        let body = request(1, method, params.clone());
        let (status, answer) = session.post(&body).json().await;
        let expected = if method == "initialize" { 400 } else { 200 };
        assert_eq!((status, &answer["error"]["code"]), (expected, &json!(code)), "{method} {params}");
    }
}

#[tokio::test]
async fn unknown_top_level_members_are_ignored() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let mut body = call(1, "getElement", json!({ "name": "H" }));
    body["model"] = "some-model".into();
    let (status, answer) = session.post(&body).json().await;
    assert_eq!(status, 200);
    assert!(answer.get("model").is_none());
}

#[tokio::test]
async fn results_are_downgraded_to_the_client_revision() {
    let rialto = Rialto::start().await;
    for revision in HANDSHAKE {
        let session = rialto.open(revision).await;
        let answer = session.ask("tools/call", json!({ "name": "getElement", "arguments": { "name": "氢" } })).await;
        let result = &answer["result"];
        let line = "元素名称: 氢 (qīng, Hydrogen), 原子序数: 1, 符号: H, 相对原子质量: 1.008, 周期: 1, 族: IA";
        assert_eq!(result["content"][0]["text"], line);
        let structured = revision >= "2025-06-18";
        assert_eq!(result["structuredContent"]["content"] == line, structured, "{revision}");
        for member in ["resultType", "ttlMs", "cacheScope", "_meta"] {
            assert!(result.get(member).is_none(), "{revision} {member}");
        }
        let tools = session.ask("tools/list", json!({})).await;
        let tool = &tools["result"]["tools"][0];
        assert_eq!(tool.get("outputSchema").is_some(), structured, "{revision}");
        assert_eq!(tool.get("title").is_some(), structured, "{revision}");
        assert_eq!(tool.get("annotations").is_some(), revision >= "2025-03-26", "{revision}");
        assert!(tools["result"].get("ttlMs").is_none());
    }
}

#[tokio::test]
async fn a_session_of_another_principal_is_404() {
    let tokens = ["ann=a".to_owned(), "bob=b".to_owned()];
    let rialto =
        Rialto::with(|settings| settings.policy.tokens = rialto::policy::Tokens::parse(&tokens).unwrap()).await;
    let session = Session::open(&rialto, "2025-11-25", Some("a")).await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(session.post(&ping).status().await, 200);
    for sending in [session.post(&ping), session.get(), session.delete(), session.resume("0.0")] {
        assert_eq!(sending.replace("authorization", "Bearer b").status().await, 404);
    }
    // A session id is not a credential.
    for sending in [session.post(&ping), session.get(), session.delete()] {
        let received = sending.without("authorization").go().await;
        assert_eq!((received.status, received.header("www-authenticate")), (401, Some("Bearer")));
    }
    assert_eq!(session.post(&ping).status().await, 200);
}

#[tokio::test]
async fn batches_are_accepted_in_2025_03_26_only() {
    let rialto = Rialto::start().await;
    let batch = json!([
        request(1, "ping", json!({})),
        notification("notifications/roots/list_changed", json!({})),
        call("two", "getElement", json!({ "name": "He" })),
        { "jsonrpc": "2.0", "id": 3 },
    ]);
    for revision in HANDSHAKE {
        let session = rialto.open(revision).await;
        let (status, answer) = session.post(&batch).json().await;
        if revision != "2025-03-26" {
            assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32600)), "{revision}");
            continue;
        }
        let answers = answer.as_array().unwrap();
        assert_eq!((status, answers.len()), (200, 3));
        let of = |id: Value| answers.iter().find(|answer| answer["id"] == id).unwrap();
        assert_eq!(of(json!(1))["result"], json!({}));
        assert!(of(json!("two"))["result"]["content"][0]["text"].as_str().unwrap().contains("Helium"));
        assert_eq!(of(json!(3))["error"]["code"], -32600);
        let answers = json!([{ "jsonrpc": "2.0", "id": 9, "result": {} }]);
        assert_eq!(session.post(&answers).status().await, 202);
        let mixed = json!([request(1, "ping", json!({})), { "jsonrpc": "2.0", "id": 9, "result": {} }]);
        assert_eq!(session.post(&mixed).refused().await, (400, -32600));
        let quiet = json!([notification("notifications/initialized", json!({}))]);
        assert_eq!(session.post(&quiet).status().await, 202);
    }
    assert_eq!(rialto.post("/mcp", &batch).status().await, 400);
}

#[tokio::test]
async fn a_slow_batch_is_sse_with_a_response_for_each_request() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-03-26").await;
    let batch =
        json!([crate::harness::survey(1, 3, 5), request(2, "ping", json!({})), crate::harness::survey(3, 2, 5)]);
    let messages = session.post(&batch).go().await.events().rest().await;
    let mut ids: Vec<i64> = messages.iter().filter_map(|message| message["id"].as_i64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3]);
}

#[tokio::test]
async fn mcp_method_and_mcp_name_headers_are_ignored_in_a_session() {
    let rialto = Rialto::start().await;
    let session = rialto.open("2025-11-25").await;
    let body = call(1, "getElement", json!({ "name": "H" }));
    let (status, answer) = session.post(&body).header("mcp-name", "other").header("mcp-method", "ping").json().await;
    assert_eq!(status, 200);
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("Hydrogen"));
}
