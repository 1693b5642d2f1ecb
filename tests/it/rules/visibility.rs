//! Hidden equals nonexistent.

use rialto::gateway::Naming;

use super::*;
use crate::scripted_server::{ServerTransport, tool};

#[tokio::test]
async fn hidden_targets_answer_as_unknown_ones_do() {
    let rules = book(vec![
        callers(&["role:a"])
            .allow(TargetKind::Tools, &["elements/getElement"])
            .allow(TargetKind::Resources, &["elements/elements://spotlight"]),
    ]);
    let rialto = gateway(elements(), &rules).await;
    for via in every_way() {
        assert_eq!(listed(&rialto, via, "ann", "tools").await, ["getElement"], "{via:?}");
        assert_eq!(listed(&rialto, via, "ann", "prompts").await, [""; 0], "{via:?}");
        assert_eq!(listed(&rialto, via, "ann", "resources").await, ["elements://spotlight"], "{via:?}");
        assert_eq!(listed(&rialto, via, "ann", "resourceTemplates").await, [""; 0], "{via:?}");
        for (method, member, hidden, unknown) in [
            ("tools/call", "name", "surveyElements", "surveyPeople"),
            ("prompts/get", "name", "describeElement", "describePeople"),
            ("resources/read", "uri", "elements://table", "elements://chair"),
            ("resources/read", "uri", "elements://element/Fe", "people://element/Fe"),
        ] {
            let one = ask(&rialto, via, "ann", method, json!({ member: hidden })).await;
            let other = ask(&rialto, via, "ann", method, json!({ member: unknown })).await;
            assert_eq!((one.0, one.1.replace(hidden, unknown)), other, "{via:?} {method} {hidden}");
            let error: Value = serde_json::from_str(&one.1).unwrap();
            let code = match (via, member) {
                (Via::Session(_) | Via::Sse(_), "uri") => -32002,
                _ => -32602,
            };
            assert_eq!(error["error"]["code"], code, "{error}");
        }
        let called =
            answer(&rialto, via, "ann", "tools/call", json!({ "name": "getElement", "arguments": { "name": "Fe" } }));
        assert!(called.await["result"]["content"].is_array());
    }
}

#[tokio::test]
async fn a_client_over_stdio_is_local_to_the_rules() {
    let rules = book(vec![callers(&["local"]).allow(TargetKind::Tools, &["elements/getElement"])]);
    let settings = || AppSettings { gateway: with_rules(elements(), &rules), ..AppSettings::default() };
    let asked = [
        initialize("2025-11-25"),
        request(1, "tools/list", json!({})),
        request(2, "tools/call", call_of("surveyElements")),
        request(3, "tools/call", json!({ "name": "getElement", "arguments": { "name": "Fe" } })),
    ];
    let answers = over_stdio(settings(), &asked).await;
    assert_eq!(answers[1]["result"]["tools"].as_array().unwrap().len(), 1, "{}", answers[1]);
    assert_eq!(answers[2]["error"]["message"], "Unknown tool: surveyElements");
    assert!(answers[3]["result"]["content"].is_array(), "{}", answers[3]);
    let asked = [modern(1.into(), "tools/list", json!({})), modern(2.into(), "tools/call", call_of("surveyElements"))];
    let answers = over_stdio(settings(), &asked).await;
    assert_eq!(answers[0]["result"]["tools"].as_array().unwrap().len(), 1, "{}", answers[0]);
    assert_eq!(answers[1]["error"]["message"], "Unknown tool: surveyElements");
}

/// The group with one server, with prefixes, with plain names in either order, and a name that is shortened.
#[tokio::test]
async fn a_rule_follows_the_server_and_its_own_name() {
    let long = "delete_".repeat(12);
    let server = |name: &'static str| {
        let long = long.clone();
        ScriptedServer::with(name, ServerTransport::Http, move |catalog| {
            catalog.tools = vec![tool("read"), tool("delete_all"), tool(&long)];
        })
    };
    let (files, wiki) = (server("files").await, server("wiki").await);
    let rules =
        book_with(DefaultAccess::Allow, vec![callers(&["role:a"]).deny(TargetKind::Tools, &["files/delete_*"])]);
    for (servers, naming, expected) in [
        (vec![&files], Naming::Prefix, vec!["read"]),
        (vec![&wiki], Naming::Prefix, vec!["read", "delete_all", &long]),
        (vec![&files, &wiki], Naming::Prefix, vec!["files__read", "wiki__read", "wiki__delete_all", "wiki__delete_"]),
        // The first server has the name, for callers who may not use it, too.
        (vec![&files, &wiki], Naming::Plain, vec!["read"]),
        (vec![&wiki, &files], Naming::Plain, vec!["read", "delete_all", &long]),
    ] {
        let mut config = scripted(&servers);
        config.groups[0].naming = naming;
        let rialto = gateway(config, &rules).await;
        for via in [Via::Session("2025-11-25"), Via::PerRequest] {
            let all = listed(&rialto, via, "bob", "tools").await;
            let seen = listed(&rialto, via, "ann", "tools").await;
            assert_eq!(seen.len(), expected.len(), "{seen:?}");
            assert!(seen.iter().zip(&expected).all(|(seen, expected)| seen.starts_with(expected)), "{seen:?}");
            for name in &all {
                let called = answer(&rialto, via, "ann", "tools/call", call_of(name)).await;
                let is_unknown = called["error"]["message"] == format!("Unknown tool: {name}");
                assert_eq!(is_unknown, !seen.contains(name), "{name}: {called}");
                assert_eq!(is_unknown, called["result"].is_null(), "{name}: {called}");
            }
        }
    }
    let deleted = files.read_received(|received| {
        (received.kind == "tools/call").then(|| received.body["params"]["name"].as_str().unwrap().to_owned())
    });
    assert!(deleted.iter().all(|name| name == "read"), "{deleted:?}");
}

#[tokio::test]
async fn a_template_and_its_expansions_are_judged_alike() {
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let everything = || callers(&["*"]).allow_all(&["db/*"]);
    let only = |pattern: &str| callers(&["*"]).allow(TargetKind::Resources, &[pattern]);
    let without = |pattern: &str| callers(&["*"]).deny(TargetKind::Resources, &[pattern]);
    for (rules, templates, seven, eight, one) in [
        (vec![everything()], 1, true, true, true),
        (vec![everything(), without("db/res://item/{id}")], 0, false, false, true),
        (vec![everything(), without("db/res://item/*")], 0, false, false, true),
        (vec![everything(), without("db/res://item/7")], 1, false, true, true),
        (vec![only("db/res://item/{id}")], 1, true, true, false),
        (vec![only("db/res://item/7")], 0, true, false, false),
    ] {
        let rialto = gateway(scripted(&[&server]), &book(rules)).await;
        for via in [Via::Session("2025-06-18"), Via::PerRequest] {
            assert_eq!(listed(&rialto, via, "ann", "resourceTemplates").await.len(), templates);
            for (uri, expected) in [("res://item/7", seven), ("res://item/8", eight), ("res://one", one)] {
                let read = answer(&rialto, via, "ann", "resources/read", json!({ "uri": uri })).await;
                assert_eq!(read["result"]["contents"].is_array(), expected, "{uri}: {read}");
            }
        }
    }
}

#[tokio::test]
async fn completion_subscription_and_listening_follow_their_target() {
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let other = ScriptedServer::start("other", ServerTransport::PerRequest).await;
    let rules = book(vec![
        callers(&["role:a"]).allow_all(&["*"]),
        callers(&["role:b"]).allow(TargetKind::Tools, &["*"]).allow(TargetKind::Resources, &["other/*"]),
    ]);
    let rialto = gateway(scripted(&[&server, &other]), &rules).await;
    let (shown, hidden) = ("rialto://other/res://one", "rialto://db/res://one");
    for via in [Via::Session("2025-11-25"), Via::PerRequest] {
        for (kind, member, name, unknown) in [
            ("ref/prompt", "name", "db__hello", "db__bye"),
            ("ref/resource", "uri", "rialto://db/res://item/{id}", "rialto://nobody/res://item/{id}"),
        ] {
            let complete = |token: &'static str, name: &str| {
                let argument = json!({ "name": "who", "value": "" });
                let params = json!({ "ref": { "type": kind, member: name }, "argument": argument });
                ask(&rialto, via, token, "completion/complete", params)
            };
            let completed = complete("ann", name).await.1;
            assert!(completed.contains("\"values\":[\"db\""), "{completed}");
            let (one, other) = (complete("bob", name).await, complete("bob", unknown).await);
            assert_eq!((one.0, one.1.replace(name, unknown)), other);
        }
    }
    let subscribe = |token: &'static str, uri: &str| {
        ask(&rialto, Via::Session("2025-11-25"), token, "resources/subscribe", json!({ "uri": uri }))
    };
    assert!(subscribe("ann", hidden).await.1.contains("\"result\""));
    assert!(subscribe("bob", shown).await.1.contains("\"result\""));
    let unknown = "rialto://nobody/res://one";
    assert_eq!(subscribe("bob", hidden).await.1.replace(hidden, unknown), subscribe("bob", unknown).await.1);
    for (token, expected) in [("ann", vec![shown, hidden]), ("bob", vec![shown])] {
        let wanted = json!({ "resourceSubscriptions": [shown, hidden], "toolsListChanged": true });
        let (_events, granted) = listen(&rialto, token, wanted).await;
        assert_eq!(granted, json!({ "resourceSubscriptions": expected, "toolsListChanged": true }));
    }
}

#[tokio::test]
async fn extension_methods_are_judged_by_name() {
    use crate::scripted_server::InjectedFault;
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    for method in ["acme/read", "acme/write"] {
        server.inject_fault(method, InjectedFault::Result(Arc::new(|_| json!({ "done": true }))));
    }
    let rules = book(vec![callers(&["role:a"]).allow(TargetKind::Methods, &["db/acme/re*"])]);
    let rialto = gateway(scripted(&[&server]), &rules).await;
    for via in [Via::Session("2025-11-25"), Via::PerRequest] {
        assert_eq!(answer(&rialto, via, "ann", "acme/read", json!({})).await["result"]["done"], true);
        let refused = ask(&rialto, via, "ann", "acme/write", json!({})).await;
        let unknown = ask(&rialto, via, "ann", "acme/sing", json!({})).await;
        assert_eq!((refused.0, refused.1.replace("write", "sing")), unknown);
    }
    assert_eq!((server.count("acme/read"), server.count("acme/write")), (2, 0));
}

#[tokio::test]
async fn pages_cursors_and_cache_hints_are_those_of_the_caller() {
    let server = ScriptedServer::with("db", ServerTransport::PerRequest, |catalog| {
        catalog.tools = (0..9).map(|n| tool(&format!("{}{n}", if n % 3 == 0 { "a" } else { "b" }))).collect();
    })
    .await;
    let rules = book(vec![
        callers(&["role:a"]).allow(TargetKind::Tools, &["db/a*"]),
        callers(&["role:b"]).allow_all(&["db/*"]),
    ]);
    let mut config = scripted(&[&server]);
    config.groups[0].page_size = 2;
    let rialto = gateway(config, &rules).await;
    let mut first_cursor = Value::Null;
    for (token, expected) in [("bob", vec![2, 2, 2, 2, 1]), ("ann", vec![2, 1])] {
        let (mut params, mut sizes, mut names) = (json!({}), Vec::new(), Vec::new());
        loop {
            let page = answer(&rialto, Via::PerRequest, token, "tools/list", params).await["result"].clone();
            assert_eq!(page["cacheScope"], "private");
            let tools = page["tools"].as_array().unwrap();
            sizes.push(tools.len());
            names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
            if first_cursor.is_null() {
                first_cursor = page["nextCursor"].clone();
            }
            match &page["nextCursor"] {
                Value::Null => break,
                cursor => params = json!({ "cursor": cursor }),
            }
        }
        assert_eq!(sizes, expected, "{names:?}");
        assert!(token == "bob" || names.iter().all(|name| name.starts_with('a')), "{names:?}");
    }
    let stolen = answer(&rialto, Via::PerRequest, "ann", "tools/list", json!({ "cursor": first_cursor })).await;
    assert_eq!(stolen["error"]["code"], -32602, "{stolen}");
}

#[tokio::test]
async fn arguments_are_judged_before_the_server_is_called() {
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let allowed = callers(&["*"]).allow(TargetKind::Tools, &["db/echo"]).allow(TargetKind::Prompts, &["db/hello"]);
    let rialto = gateway(scripted(&[&server]), &book(vec![allowed.when("/project", "ACME-*")])).await;
    for via in [Via::Session("2024-11-05"), Via::Session("2025-11-25"), Via::PerRequest] {
        assert_eq!(listed(&rialto, via, "ann", "tools").await, ["echo"]);
        let before = server.count("tools/call");
        let call = |arguments: Value| json!({ "name": "echo", "arguments": arguments });
        let passed = answer(&rialto, via, "ann", "tools/call", call(json!({ "project": "ACME-7" }))).await;
        assert!(passed["result"]["content"].is_array() && passed["result"]["isError"] != true, "{passed}");
        for arguments in [json!({ "project": "X" }), json!({}), json!({ "project": ["ACME-7"] }), json!(null)] {
            let denied = answer(&rialto, via, "ann", "tools/call", call(arguments)).await;
            assert_eq!(denied["result"]["isError"], true, "{denied}");
            let text = denied["result"]["content"][0]["text"].as_str().unwrap();
            assert!(text.contains("/project") && !text.contains("ACME"), "{text}");
        }
        assert_eq!(server.count("tools/call"), before + 1);
        let got =
            answer(&rialto, via, "ann", "prompts/get", json!({ "name": "hello", "arguments": { "project": "X" } }));
        let got = got.await;
        assert_eq!(got["error"]["code"], -32602, "{got}");
        assert!(got["error"]["message"].as_str().unwrap().contains("/project"), "{got}");
    }
    // Two members of one name, in the arguments and beside them: the server may read the other one.
    let session = Session::open(&rialto, "2025-11-25", Some("ann")).await;
    for params in [
        r#"{"name":"echo","arguments":{"project":"ACME-7","project":"ACME-7"}}"#,
        r#"{"name":"echo","arguments":{"project":"ACME-7"},"arguments":{"project":"ACME-7"}}"#,
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        let (_, denied) = session.post(&json!({})).body(text).json().await;
        assert_eq!(denied["result"]["isError"], true, "{denied}");
    }
}

#[tokio::test]
async fn annotations_grant_nothing() {
    let server = ScriptedServer::with("db", ServerTransport::Http, |catalog| {
        catalog.tools[0]["annotations"] = json!({ "readOnlyHint": true, "destructiveHint": false });
    })
    .await;
    let rules = book(vec![callers(&["*"]).allow(TargetKind::Tools, &["db/do"])]);
    let rialto = gateway(scripted(&[&server]), &rules).await;
    for via in [Via::Session("2025-11-25"), Via::PerRequest] {
        assert_eq!(listed(&rialto, via, "ann", "tools").await, ["do"]);
        let called = answer(&rialto, via, "ann", "tools/call", call_of("echo")).await;
        assert_eq!(called["error"]["message"], "Unknown tool: echo");
    }
    assert_eq!(server.count("tools/call"), 0);
}

#[tokio::test]
async fn a_group_without_anything_for_the_caller_is_forbidden() {
    let mut config = elements();
    let mut secret = config.groups[0].clone();
    secret.name = "secret".into();
    config.groups.push(secret);
    let rules = book(vec![
        callers(&["role:a"]).allow_all(&["elements/*"]),
        callers(&["role:b"]).allow_all(&["elements/*"]).groups(&["default"]),
    ]);
    let mut people = people();
    let mut keyed = person("kim", &["a"], &[]);
    keyed.0.groups = Some(vec!["default".into()]);
    people.push(keyed);
    let rialto = gateway_for(config, &rules, people).await;
    for (token, path, expected) in [
        ("ann", "/mcp", 200),
        ("ann", "/mcp/secret", 200),
        ("bob", "/mcp", 200),
        ("bob", "/mcp/secret", 403),
        ("kim", "/mcp", 200),
        ("kim", "/mcp/secret", 403),
        ("eve", "/mcp", 403),
        ("bob", "/mcp/nowhere", 404),
        ("nobody", "/mcp/secret", 401),
        ("nobody", "/mcp/nowhere", 401),
    ] {
        let sending = rialto.post(path, &initialize("2025-11-25")).header("authorization", &format!("Bearer {token}"));
        let received = sending.go().await;
        assert_eq!(received.status, expected, "{token} {path}");
        if expected == 403 {
            assert_eq!(
                (received.header("www-authenticate"), received.header("cache-control")),
                (None, Some("no-store"))
            );
            let body = received.json().await;
            let error = json!({ "code": -32600, "message": "Forbidden: you may not use this group" });
            assert_eq!((&body["error"], &body["id"]), (&error, &Value::Null));
        }
    }
    let stream = rialto.send("GET", "/sse/secret").header("accept", "text/event-stream");
    assert_eq!(stream.header("authorization", "Bearer bob").status().await, 403);
}

#[tokio::test]
async fn a_hidden_tool_has_no_headers_to_check() {
    let server = ScriptedServer::with("db", ServerTransport::PerRequest, |catalog| {
        catalog.tools[0]["inputSchema"] =
            json!({ "type": "object", "properties": { "region": { "type": "string", "x-mcp-header": "Region" } } });
    })
    .await;
    let rules = book(vec![
        callers(&["role:a"]).allow_all(&["db/*"]),
        callers(&["role:b"]).allow(TargetKind::Tools, &["db/do"]),
    ]);
    let rialto = gateway(scripted(&[&server]), &rules).await;
    let call = |token: &'static str, tool: &str| {
        let params = json!({ "name": tool, "arguments": { "region": "eu" } });
        ask(&rialto, Via::PerRequest, token, "tools/call", params)
    };
    assert_eq!(listed(&rialto, Via::PerRequest, "ann", "tools").await, ["echo", "do"]);
    let (status, text) = call("ann", "echo").await;
    assert_eq!((status, text.contains("-32020")), (400, true), "{text}");
    let (hidden, unknown) = (call("bob", "echo").await, call("bob", "sing").await);
    assert_eq!((hidden.0, hidden.1.replace("echo", "sing")), unknown);
    assert!(unknown.1.contains("Unknown tool: sing"), "{}", unknown.1);
}

#[tokio::test]
async fn tasks_of_a_hidden_server_are_unknown() {
    use crate::scripted_server::InjectedFault;
    let with_tasks = |name: &'static str| async move {
        let server = ScriptedServer::with(name, ServerTransport::PerRequest, |catalog| {
            catalog.capabilities["extensions"] = json!({ "io.modelcontextprotocol/tasks": {} });
        })
        .await;
        let task = move |_: &Value| json!({ "resultType": "task", "taskId": "t1", "status": "working", "from": name });
        server.inject_fault("tools/call", InjectedFault::Result(Arc::new(task)));
        server.inject_fault("tasks/get", InjectedFault::Result(Arc::new(task)));
        server
    };
    let (db, wiki) = (with_tasks("db").await, with_tasks("wiki").await);
    let everything = book(vec![callers(&["role:a", "role:b"]).allow_all(&["*"])]);
    let rialto = gateway(scripted(&[&db, &wiki]), &everything).await;
    let ask = |token: &'static str, method: &'static str, params: Value| {
        let mut message = modern(7.into(), method, params.clone());
        let declared = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
        message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = declared;
        let sending = rialto.post("/mcp", &message).modern_headers(method, &params);
        let sending = sending.header("authorization", &format!("Bearer {token}"));
        async move { sending.go().await.json().await }
    };
    let task_of = |token: &'static str, tool: &'static str| {
        let created = ask(token, "tools/call", json!({ "name": tool, "arguments": {} }));
        async move { created.await["result"]["taskId"].as_str().unwrap().to_owned() }
    };
    let get = |token: &'static str, id: &str| ask(token, "tasks/get", json!({ "taskId": id }));
    let (anns, bobs) = (task_of("ann", "db__do").await, task_of("bob", "db__do").await);
    let wikis = task_of("bob", "wiki__do").await;
    let rules = book(vec![callers(&["role:a"]).allow_all(&["*"]), callers(&["role:b"]).allow_all(&["wiki/*"])]);
    rialto.inbound.gateway.apply(&with_rules(scripted(&[&db, &wiki]), &rules));
    assert_eq!(get("ann", &anns).await["result"]["from"], "db");
    assert_eq!(get("bob", &wikis).await["result"]["from"], "wiki");
    let unknown = get("bob", "t.never").await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    for hidden in [&bobs, &anns] {
        assert_eq!(get("bob", hidden).await, unknown);
    }
    assert_eq!(db.count("tasks/get"), 1, "only ann's request");
}
