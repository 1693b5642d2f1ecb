//! Groups of servers built with the official SDKs, over every transport.

use futures_util::future::join_all;
use rialto::client::ListenRequest;

use super::*;
use crate::servers::{CLOCK, EVERYTHING, PYTHON_1, PYTHON_2, Served, Spawned, TYPESCRIPT_2};

const SERVERS: [&str; 5] = ["py1", "py2", "py2sse", "ts", "tsold"];

/// Upstream with long timeouts: SDK servers start slowly while all tests run.
fn with_long_timeouts(name: &str, target: Target) -> UpstreamSpec {
    let mut spec = upstream(name, target);
    let settings = ConnectionSettings {
        idle_timeout: TEST_TIMEOUT,
        discovery_timeout: TEST_TIMEOUT,
        ping_interval: None,
        ..spec.settings
    };
    spec.settings = settings;
    spec
}

/// Calls a tool that returns one text.
async fn text(client: &Client, tool: &str, arguments: Value) -> String {
    let result = ask(client, "tools/call", json!({ "name": tool, "arguments": arguments })).await;
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{tool}: {result}")).to_owned()
}

/// Exercises every feature of the servers under `tests/peers` as one client.
async fn exercise_server(client: &Client, host: &RecordingHost, server: &str) {
    let name = &host.name;
    assert_eq!(text(client, &format!("{server}__echo"), json!({ "message": name })).await, *name);
    let counted = text(client, &format!("{server}__count"), json!({ "to": 5, "delayMs": 10 })).await;
    assert_eq!(counted, "counted to 5");
    let confirmed: Value = serde_json::from_str(&text(client, &format!("{server}__confirm"), json!({})).await).unwrap();
    assert_eq!((&confirmed["content"]["name"], &confirmed["action"]), (&json!(name), &json!("accept")), "{server}");
    let thought = text(client, &format!("{server}__think"), json!({ "prompt": "bridges" })).await;
    assert_eq!(thought, format!("thoughts of {name}"), "{server}");
    let roots = text(client, &format!("{server}__where"), json!({})).await;
    assert_eq!(roots, format!(r#"["file:///{name}"]"#), "{server}");
    let uri = format!("rialto://{server}/test://item/7");
    let read = ask(client, "resources/read", json!({ "uri": uri })).await;
    assert_eq!((&read["contents"][0]["uri"], &read["contents"][0]["text"]), (&json!(uri), &json!("item 7")));
    let greeting = json!({ "name": format!("{server}__greet"), "arguments": { "name": name } });
    let greeting = ask(client, "prompts/get", greeting).await;
    assert_eq!(greeting["messages"][0]["content"]["text"], format!("Hello, {name}"));
    let reference = json!({ "type": "ref/prompt", "name": format!("{server}__greet") });
    let argument = json!({ "ref": reference, "argument": { "name": "name", "value": "A" } });
    let completed = ask(client, "completion/complete", argument).await;
    assert_eq!(completed["completion"]["values"], json!(["Ada", "Alan"]), "{server}");
}

#[tokio::test]
async fn sdk_servers_over_every_transport_serve_two_clients_concurrently() {
    let (py1, py2, py2sse) = tokio::join!(
        Served::start(PYTHON_1, &["http", "0"]),
        Served::start(PYTHON_2, &["http", "0"]),
        Served::start(PYTHON_2, &["sse", "0"]),
    );
    let ts = Spawned::new(TYPESCRIPT_2, &["stdio"]).await;
    let tsold = Spawned::new(TYPESCRIPT_2, &["stdio", "handshake"]).await;
    let targets =
        [py1.target("/mcp"), py2.target("/mcp"), py2sse.target("/sse"), ts.target.clone(), tsold.target.clone()];
    let specs = SERVERS.iter().zip(targets).map(|(name, target)| with_long_timeouts(name, target)).collect();
    let mut rialto = gateway(default_group_of(specs)).await;
    until("all upstreams are settled", || rialto.group().view(Revision::NEWEST).all_settled()).await;
    for client_transport in [ClientTransport::Http, ClientTransport::Sse] {
        let ((ada, ada_host), (bob, bob_host)) =
            (client(&rialto, client_transport, "ada").await, client(&rialto, client_transport, "bob").await);
        let names = tools(&ada).await;
        let all = ["confirm", "count", "crash", "echo", "fail", "structured", "think", "where"];
        for server in SERVERS {
            assert!(all.iter().all(|tool| names.contains(&format!("{server}__{tool}"))), "{server}: {names:?}");
        }
        let both = SERVERS
            .iter()
            .flat_map(|server| [exercise_server(&ada, &ada_host, server), exercise_server(&bob, &bob_host, server)]);
        tokio::time::timeout(TEST_TIMEOUT * 3, join_all(both)).await.expect("all in time");
        for host in [&ada_host, &bob_host] {
            let progress: Vec<f64> = host
                .notifications(&NotificationMethod::Progress)
                .iter()
                .map(|progress| progress["progress"].as_f64().unwrap())
                .collect();
            assert_eq!(progress.len(), SERVERS.len() * 5, "{client_transport:?} {progress:?}");
            assert_eq!(host.server_requests().len(), SERVERS.len() * 3);
        }
        // A TypeScript server has one clock per process, that is, per lease.
        for server in SERVERS {
            let uri = format!("rialto://{server}/{CLOCK}");
            let filter = ListenRequest { resources: vec![uri.clone()], ..ListenRequest::default() };
            let mut listening = within_timeout("listening", ada.listen(filter)).await.unwrap();
            let notified = within_timeout("the clock", listening.next()).await.unwrap();
            assert_eq!(value(notified.params.as_ref().unwrap())["uri"], *uri);
        }
        assert!(bob_host.notifications(&NotificationMethod::ResourceUpdated).is_empty());
        ada.close().await;
        bob.close().await;
    }
    until("no lease is held", || upstreams(&rialto).values().all(|upstream| upstream.lease_count() == 0)).await;
    rialto.begin_stop();
    assert!(rialto.stopped().await);
    assert!(!ts.is_running() && !tsold.is_running());
}

#[tokio::test]
async fn the_reference_server_lists_more_tools_for_clients_with_capabilities() {
    let (one, two) = (Spawned::new(EVERYTHING, &["stdio"]).await, Spawned::new(TYPESCRIPT_2, &["stdio"]).await);
    let rialto = gateway(default_group_of(vec![
        with_long_timeouts("every", one.target.clone()),
        with_long_timeouts("ts", two.target.clone()),
    ]))
    .await;
    until("both upstreams are settled", || rialto.group().view(Revision::NEWEST).all_settled()).await;
    let (ada, host) = client(&rialto, ClientTransport::Http, "ada").await;
    let nobody = rialto.open("2025-11-25").await;
    let asks = "every__get-roots-list".to_owned();
    assert!(!tools(&ada).await.contains(&asks));
    assert_eq!(text(&ada, "every__echo", json!({ "message": "hi" })).await, "Echo: hi");
    let grown = async {
        while !tools(&ada).await.contains(&asks) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within_timeout("the tools that need client capabilities", grown).await;
    until("the list-changed notification arrives", || {
        !host.notifications(&NotificationMethod::ToolsChanged).is_empty()
    })
    .await;
    assert!(text(&ada, &asks, json!({})).await.contains("file:///ada"));
    let listed = nobody.ask("tools/list", json!({})).await;
    assert!(!column(&listed["result"], "tools", "name").contains(&asks), "clients without capabilities do not see it");
    let called = nobody.post(&crate::harness::call(1, &asks, json!({}))).answer().await.1;
    assert_eq!(called["error"]["code"], -32602, "{called}");
    let long = json!({ "duration": 0.2, "steps": 4 });
    assert!(text(&ada, "every__trigger-long-running-operation", long).await.contains("completed"));
    assert_eq!(host.notifications(&NotificationMethod::Progress).len(), 4);
    ada.close().await;
}
