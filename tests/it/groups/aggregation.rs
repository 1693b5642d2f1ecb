//! Merged view of a group: lists, name mapping, capabilities, filters, and the transparent single-upstream group.

use rialto::gateway::{NameFilter, Naming};
use rialto::upstream::List;

use super::*;
use crate::harness::{initialize, notification, request};
use crate::scripted_server::{InjectedFault, tool};

const ALL: [&str; 4] = ["web", "old", "new", "child"];

fn names(of: &[&str]) -> Vec<String> {
    ALL.iter().flat_map(|server| of.iter().map(move |name| format!("{server}__{name}"))).collect()
}

fn uris(uri: &str) -> Vec<String> {
    ALL.iter().map(|server| format!("rialto://{server}/{uri}")).collect()
}

#[tokio::test]
async fn merged_lists_keep_the_configured_order_and_prefixed_names_are_routed() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    for client_transport in CLIENT_TRANSPORTS {
        let (client, _) = client(&rialto, client_transport, "ada").await;
        assert_eq!(tools(&client).await, names(&["echo", "do"]), "{client_transport:?}");
        let prompts = ask(&client, "prompts/list", json!({})).await;
        assert_eq!(column(&prompts, "prompts", "name"), names(&["hello"]));
        let resources = ask(&client, "resources/list", json!({})).await;
        assert_eq!(column(&resources, "resources", "uri"), uris("res://one"));
        let templates = ask(&client, "resources/templates/list", json!({})).await;
        assert_eq!(column(&templates, "resourceTemplates", "uriTemplate"), uris("res://item/{id}"));
        assert!(resources["_meta"]["rialto/unavailableServers"].is_null(), "{resources}");
        for server in ALL {
            let reported = call(&client, &format!("{server}__echo"), json!({ "message": "hi" })).await;
            assert_eq!(
                (&reported["server"], &reported["tool"], &reported["message"]),
                (&json!(server), &json!("echo"), &json!("hi"))
            );
            let prompt = ask(&client, "prompts/get", json!({ "name": format!("{server}__hello") })).await;
            assert_eq!(prompt["messages"][0]["content"]["text"], format!("{server} \"hello\""));
            assert_eq!(prompt["messages"][1]["content"]["resource"]["uri"], format!("rialto://{server}/res://one"));
            for own in ["res://one", "res://item/7", "res://unlisted"] {
                let uri = format!("rialto://{server}/{own}");
                let read = ask(&client, "resources/read", json!({ "uri": uri })).await;
                assert_eq!(read["contents"][0], json!({ "uri": uri, "text": format!("{server} has {own}") }));
            }
            let missing = format!("rialto://{server}/res://missing");
            let (code, words) = refused(&client, "resources/read", json!({ "uri": missing })).await;
            assert_eq!(code, if client_transport == ClientTransport::PerRequest { -32602 } else { -32002 }, "{words}");
            assert!(words.contains(&format!(r#"{{"uri":"{missing}"}}"#)), "{words}");
        }
        for (method, params) in [
            ("tools/call", json!({ "name": "echo" })),
            ("tools/call", json!({ "name": "other__echo" })),
            ("prompts/get", json!({ "name": "hello" })),
            ("resources/read", json!({ "uri": "rialto://other/res://one" })),
            ("completion/complete", json!({ "ref": { "type": "ref/prompt", "name": "hello" } })),
        ] {
            let (code, words) = refused(&client, method, params).await;
            let missing = if client_transport != ClientTransport::PerRequest && method == "resources/read" {
                -32002
            } else {
                -32602
            };
            assert_eq!(code, missing, "{method}: {words}");
        }
        client.close().await;
    }
    wait_idle(&rialto, &scripted_servers.each_ref()).await;
}

#[tokio::test]
async fn completion_is_routed_to_the_upstream_of_its_reference() {
    let silent = ScriptedServer::with("silent", ServerTransport::Http, |catalog| {
        catalog.capabilities.as_object_mut().unwrap().remove("completions");
    });
    let (web, new, silent) = (
        ScriptedServer::start("web", ServerTransport::Http),
        ScriptedServer::start("new", ServerTransport::PerRequest),
        silent,
    );
    let (web, new, silent) = (web.await, new.await, silent.await);
    let rialto = group(&[&web, &new, &silent]).await;
    for client_transport in CLIENT_TRANSPORTS {
        let (client, _) = client(&rialto, client_transport, "ada").await;
        let complete = async |reference: Value| {
            let params = json!({ "ref": reference, "argument": { "name": "who", "value": "A" } });
            ask(&client, "completion/complete", params).await["completion"]["values"].clone()
        };
        for server in ["web", "new"] {
            let prompt = json!({ "type": "ref/prompt", "name": format!("{server}__hello") });
            assert_eq!(complete(prompt).await, json!([server, "hello"]));
            for own in ["res://item/{id}", "res://one", "res://item/7"] {
                let reference = json!({ "type": "ref/resource", "uri": format!("rialto://{server}/{own}") });
                assert_eq!(complete(reference).await, json!([server, own]));
            }
        }
        // A server may complete without saying so; one that cannot completes nothing.
        let of_silent = json!({ "type": "ref/prompt", "name": "silent__hello" });
        assert_eq!(complete(of_silent.clone()).await, json!(["silent", "hello"]));
        let error = json!({ "code": -32601, "message": "Method not found" });
        silent.inject_fault("completion/complete", InjectedFault::Error(error));
        assert_eq!(complete(of_silent).await, json!([]));
        silent.clear_faults();
        client.close().await;
    }
}

#[tokio::test]
async fn an_unprefixed_uri_is_routed_to_the_upstream_that_lists_it() {
    let one = ScriptedServer::with("one", ServerTransport::Http, |catalog| {
        catalog.resources = vec![json!({ "uri": "mine://a", "name": "a" })];
        catalog.templates = vec![json!({ "uriTemplate": "mine://t/{x}", "name": "t" })];
    });
    let two = ScriptedServer::with("two", ServerTransport::PerRequest, |catalog| {
        catalog.resources =
            vec![json!({ "uri": "yours://a", "name": "a" }), json!({ "uri": "https://h/x", "name": "x" })];
        catalog.templates = Vec::new();
    });
    let (one, two) = (one.await, two.await);
    let rialto = group(&[&one, &two]).await;
    let (client, _) = client(&rialto, ClientTransport::Http, "ada").await;
    let listed = ask(&client, "resources/list", json!({})).await;
    let shown = ["rialto://one/mine://a", "rialto://two/yours://a", "https://h/x"];
    assert_eq!(column(&listed, "resources", "uri"), shown);
    for (uri, words) in [
        ("mine://a", "one has mine://a"),
        ("mine://t/5", "one has mine://t/5"),
        ("yours://a", "two has yours://a"),
        ("https://h/x", "two has https://h/x"),
    ] {
        let read = ask(&client, "resources/read", json!({ "uri": uri })).await;
        assert_eq!(read["contents"][0]["text"], words);
    }
    assert_eq!(refused(&client, "resources/read", json!({ "uri": "theirs://a" })).await.0, -32002);
}

#[tokio::test]
async fn capabilities_and_instructions_of_all_upstreams_are_merged() {
    let tools = ScriptedServer::with("tools", ServerTransport::Http, |catalog| {
        catalog.capabilities = json!({ "tools": {}, "experimental": { "x": {} } });
        catalog.instructions = Some("Use the tools.".into());
    });
    let rest = ScriptedServer::with("rest", ServerTransport::PerRequest, |catalog| {
        catalog.capabilities = json!({ "resources": { "subscribe": true }, "logging": {} });
        catalog.instructions = Some("Read.".into());
    });
    let (tools, rest) = (tools.await, rest.await);
    let rialto = group(&[&tools, &rest]).await;
    let (_, opened) = rialto.post("/mcp", &initialize("2025-11-25")).answer().await;
    let (_, discovered) = rialto.modern("server/discover", json!({})).answer().await;
    for reported in [&opened["result"], &discovered["result"]] {
        let expected = json!({
            "tools": { "listChanged": true }, "resources": { "listChanged": true, "subscribe": true }, "logging": {},
        });
        assert_eq!(reported["capabilities"], expected);
        assert_eq!(reported["instructions"], "# tools\n\nUse the tools.\n\n# rest\n\nRead.");
    }
    assert_eq!(opened["result"]["serverInfo"]["name"], "rialto");
    let (client, _) = client(&rialto, ClientTransport::Http, "ada").await;
    for (method, params) in [
        ("prompts/list", json!({})),
        ("completion/complete", json!({ "ref": { "type": "ref/prompt", "name": "x" } })),
        ("x/extension", json!({})),
    ] {
        assert_eq!(refused(&client, method, params).await.0, -32601, "{method}");
    }
}

#[tokio::test]
async fn long_or_invalid_tool_names_are_shortened_and_still_routed() {
    let long = "n".repeat(100);
    let odd = ["a__b", "über", "with space", "", long.as_str()];
    let make = |name| {
        ScriptedServer::with(name, ServerTransport::Http, |catalog| {
            catalog.tools = odd.iter().map(|name| tool(name)).collect();
        })
    };
    let (a, b) = (make("a").await, make("b").await);
    let rialto = group(&[&a, &b]).await;
    let (client, _) = client(&rialto, ClientTransport::Http, "ada").await;
    let given = tools(&client).await;
    assert_eq!(given.len(), 10);
    for (n, given) in given.iter().enumerate() {
        assert!(given.len() <= 64 && given.is_ascii() && !given.contains(' '), "{given}");
        let reported = call(&client, given, json!({})).await;
        assert_eq!((&reported["server"], &reported["tool"]), (&json!(["a", "b"][n / 5]), &json!(odd[n % 5])));
    }
}

#[tokio::test]
async fn filtered_tools_prompts_and_resources_are_also_refused() {
    let catalog = |catalog: &mut crate::scripted_server::ServerCatalog| {
        catalog.resources.push(json!({ "uri": "res://secret", "name": "secret" }));
        catalog.prompts.push(json!({ "name": "secret" }));
    };
    let (a, b) = (
        ScriptedServer::with("a", ServerTransport::Http, catalog).await,
        ScriptedServer::with("b", ServerTransport::PerRequest, catalog).await,
    );
    let mut config = default_group_of(vec![spec(&a), spec(&b)]);
    let filter = |allow: &[&str], deny: &[&str]| {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        NameFilter::new(&texts(allow), &texts(deny))
    };
    config.groups[0].tools = filter(&["*__echo"], &["b__*"]);
    config.groups[0].prompts = filter(&[], &["*secret"]);
    config.groups[0].resources = filter(&[], &["*secret*"]);
    let mut alone = GroupConfig::new("alone", ["a".into()]);
    (alone.tools, alone.prompts) = (filter(&["echo"], &[]), filter(&[], &["secret"]));
    alone.resources = filter(&[], &["*secret*"]);
    config.groups.push(alone);
    // In a group with prefixed names the filter patterns match the prefixed names.
    let mut prefixed = GroupConfig::new("prefixed", ["a".into(), "b".into()]);
    prefixed.resources = filter(&[], &["rialto://a/res://secret*"]);
    config.groups.push(prefixed);
    let rialto = gateway(config).await;
    for client_transport in CLIENT_TRANSPORTS {
        let (client, _) = client(&rialto, client_transport, "ada").await;
        assert_eq!(tools(&client).await, ["a__echo"]);
        let prompts = ask(&client, "prompts/list", json!({})).await;
        assert_eq!(column(&prompts, "prompts", "name"), ["a__hello", "b__hello"]);
        let resources = ask(&client, "resources/list", json!({})).await;
        assert_eq!(column(&resources, "resources", "uri"), ["rialto://a/res://one", "rialto://b/res://one"]);
        let reference = |kind: &str, key: &str, name: &str| json!({ "ref": { "type": kind, key: name }, "argument": { "name": "x", "value": "" } });
        for (method, params) in [
            ("tools/call", json!({ "name": "a__do" })),
            ("tools/call", json!({ "name": "b__echo" })),
            ("prompts/get", json!({ "name": "a__secret" })),
            ("resources/read", json!({ "uri": "rialto://a/res://secret" })),
            ("resources/read", json!({ "uri": "rialto://b/res://secret/more" })),
            ("resources/read", json!({ "uri": "res://secret" })),
            ("completion/complete", reference("ref/prompt", "name", "b__secret")),
            ("completion/complete", reference("ref/resource", "uri", "res://secret")),
        ] {
            refused(&client, method, params).await;
        }
        let (alone, _) = at(&rialto, client_transport, "/alone", "ada").await;
        assert_eq!(tools(&alone).await, ["echo"]);
        for (method, params) in [
            ("tools/call", json!({ "name": "do" })),
            ("prompts/get", json!({ "name": "secret" })),
            ("resources/read", json!({ "uri": "res://secret" })),
            ("completion/complete", reference("ref/prompt", "name", "secret")),
            ("completion/complete", reference("ref/resource", "uri", "res://secret")),
        ] {
            refused(&alone, method, params).await;
        }
        let (prefixed, _) = at(&rialto, client_transport, "/prefixed", "ada").await;
        refused(&prefixed, "resources/read", json!({ "uri": "rialto://a/res://secret" })).await;
        let read = ask(&prefixed, "resources/read", json!({ "uri": "res://secret" })).await;
        assert_eq!(
            read["contents"][0]["text"], "b has res://secret",
            "the first upstream whose resource is not filtered"
        );
    }
    let forbidden = |scripted: &ScriptedServer| {
        scripted.received().iter().filter(|received| received.body.to_string().contains("secret")).count()
    };
    assert_eq!(forbidden(&a), 0, "{:?}", a.received());
}

#[tokio::test]
async fn plain_naming_keeps_names_and_the_first_upstream_wins_a_collision() {
    let first = ScriptedServer::with("first", ServerTransport::Http, |catalog| catalog.tools.push(tool("mine"))).await;
    let second =
        ScriptedServer::with("second", ServerTransport::PerRequest, |catalog| catalog.tools.push(tool("yours"))).await;
    let mut config = default_group_of(vec![spec(&first), spec(&second)]);
    config.groups[0].naming = Naming::Plain;
    let rialto = gateway(config).await;
    let (client, _) = client(&rialto, ClientTransport::Http, "ada").await;
    assert_eq!(tools(&client).await, ["echo", "do", "mine", "yours"]);
    for (name, scripted) in [("echo", "first"), ("mine", "first"), ("yours", "second")] {
        assert_eq!(call(&client, name, json!({})).await["server"], scripted);
    }
    let read = ask(&client, "resources/read", json!({ "uri": "res://one" })).await;
    assert_eq!(read["contents"][0], json!({ "uri": "res://one", "text": "first has res://one" }));
    let view = rialto.group().view(Revision::NEWEST);
    assert_eq!(view.count(List::Tools), 4);
    let about = |name: &str| view.collisions.iter().any(|words| words.contains(&format!("{name:?}")));
    assert!(["echo", "do", "hello", "res://one", "res://item/{id}"].into_iter().all(about), "{:?}", view.collisions);
    assert!(!about("mine") && view.collisions.iter().all(|words| words.contains("first and second")));
}

#[tokio::test]
async fn a_single_upstream_group_is_transparent_byte_for_byte() {
    let item =
        r#"{"name":"x.y z","inputSchema":{"type":"object","n":1e2,"m":1.50},"_meta":{"ui":{"resourceUri":"ui://a"}}}"#;
    let result = r#"{"content":[{"type":"resource_link","uri":"res://one","name":"r"}],"extra":[1e3,{"b":1,"a":2}],"resultType":"complete"}"#;
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        let scripted = ScriptedServer::with("only", transport, |catalog| {
            catalog.instructions = Some("As I say.".into());
            catalog.capabilities["experimental"] = json!({ "x": {} });
        })
        .await;
        let answer = |result: &str| {
            InjectedFault::RawResponse(200, format!(r#"{{"jsonrpc":"2.0","id":$id,"result":{result}}}"#))
        };
        scripted
            .inject_fault("tools/list", answer(&format!(r#"{{"odd":1.0,"tools":[{item}],"resultType":"complete"}}"#)));
        scripted.inject_fault("tools/call", answer(result));
        let rialto = group(&[&scripted]).await;
        let session = match transport {
            ServerTransport::Http => Some(rialto.open("2025-11-25").await),
            _ => None,
        };
        let post = |method: &str, params: Value| match &session {
            Some(session) => session.post(&request(1, method, params)),
            None => rialto.modern(method, params),
        };
        let (_, introduced) = match transport {
            ServerTransport::Http => rialto.post("/mcp", &initialize("2025-11-25")).answer().await,
            _ => rialto.modern("server/discover", json!({})).answer().await,
        };
        let introduced = &introduced["result"];
        assert_eq!(introduced["instructions"], "As I say.");
        assert_eq!(introduced["capabilities"]["experimental"], json!({ "x": {} }));
        let info = [&introduced["serverInfo"], &introduced["_meta"]["io.modelcontextprotocol/serverInfo"]];
        assert!(info.into_iter().any(|info| *info == json!({ "name": "only", "version": "1", "title": "The only" })));
        let listed = post("tools/list", json!({})).go().await.text().await;
        assert!(listed.contains(item) && listed.contains(r#""odd":1.0"#), "{listed}");
        let called = post("tools/call", json!({ "name": "x.y z" })).go().await.text().await;
        assert!(called.contains(result), "{called}");
        let (_, extension) = post("x/anything", json!({ "n": 1 })).answer().await;
        assert_eq!(extension["result"]["extension"], "x/anything");
        assert_eq!(extension["result"]["params"]["n"], 1);
        if let Some(session) = &session {
            let told = notification("notifications/x/odd", json!({ "a": 1 }));
            assert_eq!(session.post(&told).status().await, 202);
            scripted.wait_received("notifications/x/odd", 1).await;
            let received =
                scripted.received().into_iter().find(|received| received.kind == "notifications/x/odd").unwrap();
            assert_eq!(received.body, told);
        }
    }
}
