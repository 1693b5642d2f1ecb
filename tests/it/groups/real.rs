//! Servers of other makes, several in one group, over every transport.

use futures_util::future::join_all;
use rialto::client::ListenRequest;

use super::*;
use crate::servers::{CLOCK, EVERYTHING, PYTHON_1, PYTHON_2, Served, Spawned, TYPESCRIPT_2};

const SERVERS: [&str; 5] = ["py1", "py2", "py2sse", "ts", "tsold"];

/// Some of them take long to start when all tests run at once.
fn slow(name: &str, target: Target) -> UpstreamSpec {
    let mut spec = upstream(name, target);
    let settings = ConnectionSettings {
        idle_timeout: PATIENCE,
        discovery_timeout: PATIENCE,
        ping_interval: None,
        ..spec.settings
    };
    spec.settings = settings;
    spec
}

/// Makes a call whose answer is a text.
async fn text(client: &Client, tool: &str, arguments: Value) -> String {
    let result = ask(client, "tools/call", json!({ "name": tool, "arguments": arguments })).await;
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{tool}: {result}")).to_owned()
}

/// Goes through what the servers under `tests/peers` offer, in the name of one client.
async fn visit(client: &Client, ear: &Ear, server: &str) {
    let name = &ear.name;
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
async fn servers_of_every_make_serve_two_clients_at_once() {
    let (py1, py2, py2sse) = tokio::join!(
        Served::start(PYTHON_1, &["http", "0"]),
        Served::start(PYTHON_2, &["http", "0"]),
        Served::start(PYTHON_2, &["sse", "0"]),
    );
    let ts = Spawned::new(TYPESCRIPT_2, &["stdio"]).await;
    let tsold = Spawned::new(TYPESCRIPT_2, &["stdio", "handshake"]).await;
    let targets =
        [py1.target("/mcp"), py2.target("/mcp"), py2sse.target("/sse"), ts.target.clone(), tsold.target.clone()];
    let specs = SERVERS.iter().zip(targets).map(|(name, target)| slow(name, target)).collect();
    let mut rialto = gateway(together(specs)).await;
    until("all are there", || rialto.group().view().is_settled()).await;
    for way in [Way::Http, Way::Sse] {
        let ((ada, ada_ear), (bob, bob_ear)) = (client(&rialto, way, "ada").await, client(&rialto, way, "bob").await);
        let names = tools(&ada).await;
        let all = ["confirm", "count", "crash", "echo", "fail", "structured", "think", "where"];
        for server in SERVERS {
            assert!(all.iter().all(|tool| names.contains(&format!("{server}__{tool}"))), "{server}: {names:?}");
        }
        let both = SERVERS.iter().flat_map(|server| [visit(&ada, &ada_ear, server), visit(&bob, &bob_ear, server)]);
        tokio::time::timeout(PATIENCE * 3, join_all(both)).await.expect("all in time");
        for ear in [&ada_ear, &bob_ear] {
            let progress: Vec<f64> =
                ear.heard(&Notice::Progress).iter().map(|progress| progress["progress"].as_f64().unwrap()).collect();
            assert_eq!(progress.len(), SERVERS.len() * 5, "{way:?} {progress:?}");
            assert_eq!(ear.asked().len(), SERVERS.len() * 3);
        }
        // The TypeScript one has its clock in the process that it shares with nobody.
        for server in SERVERS {
            let uri = format!("rialto://{server}/{CLOCK}");
            let wishes = ListenRequest { resources: vec![uri.clone()], ..ListenRequest::default() };
            let mut listening = in_time("listening", ada.listen(wishes)).await.unwrap();
            let heard = in_time("the clock", listening.next()).await.unwrap();
            assert_eq!(value(heard.params.as_ref().unwrap())["uri"], *uri);
        }
        assert!(bob_ear.heard(&Notice::ResourceUpdated).is_empty());
        ada.close().await;
        bob.close().await;
    }
    until("nothing is lent", || upstreams(&rialto).values().all(|upstream| upstream.lease_count() == 0)).await;
    rialto.begin_stop();
    assert!(rialto.stopped().await);
    assert!(!ts.is_running() && !tsold.is_running());
}

#[tokio::test]
async fn the_reference_server_shows_more_to_those_who_can_be_asked() {
    let (one, two) = (Spawned::new(EVERYTHING, &["stdio"]).await, Spawned::new(TYPESCRIPT_2, &["stdio"]).await);
    let rialto = gateway(together(vec![slow("every", one.target.clone()), slow("ts", two.target.clone())])).await;
    until("both are there", || rialto.group().view().is_settled()).await;
    let (ada, ear) = client(&rialto, Way::Http, "ada").await;
    let nobody = rialto.open("2025-11-25").await;
    let asks = "every__get-roots-list".to_owned();
    assert!(!tools(&ada).await.contains(&asks));
    assert_eq!(text(&ada, "every__echo", json!({ "message": "hi" })).await, "Echo: hi");
    let grown = async {
        while !tools(&ada).await.contains(&asks) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    in_time("the tools that ask", grown).await;
    until("she is told", || !ear.heard(&Notice::ToolsChanged).is_empty()).await;
    assert!(text(&ada, &asks, json!({})).await.contains("file:///ada"));
    let listed = nobody.ask("tools/list", json!({})).await;
    assert!(!column(&listed["result"], "tools", "name").contains(&asks), "others cannot be asked");
    let called = nobody.post(&crate::harness::call(1, &asks, json!({}))).answer().await.1;
    assert_eq!(called["error"]["code"], -32602, "{called}");
    let long = json!({ "duration": 0.2, "steps": 4 });
    assert!(text(&ada, "every__trigger-long-running-operation", long).await.contains("completed"));
    assert_eq!(ear.heard(&Notice::Progress).len(), 4);
    ada.close().await;
}
