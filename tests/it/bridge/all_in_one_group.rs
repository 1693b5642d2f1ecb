//! All seven servers in one group, in front of a client of each era.

use serde_json::{Value, json};

use super::client::{Checked, Client, ensure};
use super::feature_checks::{expect_text, until};
use super::scripted_server::{CLOCK, META, ScriptedServer};
use super::variants::{VARIANTS, Variant};
use super::{ALL, Testbed};

async fn tools(client: &mut Client) -> Checked<()> {
    let listed = client.request("tools/list", json!({})).await?;
    let tools = &listed.message["result"]["tools"];
    client.record_header_mirrors(tools);
    let names: Vec<&str> = tools.as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str()).collect();
    for variant in VARIANTS {
        let name = format!("{}__add", variant.name);
        ensure(names.contains(&name.as_str()), "a tool is missing", &json!(name))?;
    }
    Ok(())
}

async fn asked(client: &mut Client, server: Variant, tool: &str, expected: &str) -> Checked<()> {
    let answer = client.call(&format!("{}__{tool}", server.name), json!({})).await?;
    expect_text(&answer, expected)?;
    ensure(answer.server_requests.len() == 1, "other questions", &json!(answer.server_requests))?;
    let (method, params) = &answer.server_requests[0];
    // In the newest revision a server's own words reach the client as they are.
    let named = params["message"].as_str().is_some_and(|words| words.starts_with(&format!("[{}] ", server.name)));
    let carried = server.is_per_request() && client.variant.is_per_request();
    ensure(method != "elicitation/create" || named || carried, "nobody knows who asks", params)
}

async fn subscription(client: &mut Client, scripted: &ScriptedServer) -> Checked<()> {
    let uri = format!("rialto://{}/{CLOCK}", scripted.variant.name);
    let id = if client.variant.is_per_request() {
        let filter = json!({ "notifications": { "resourceSubscriptions": [uri] } });
        let id = client.send("subscriptions/listen", filter).await?;
        client.wait_for_notification("notifications/subscriptions/acknowledged").await?;
        id
    } else {
        client.request("resources/subscribe", json!({ "uri": uri })).await?;
        Value::Null
    };
    until("the server knows of it", || scripted.subscriber_count() > 0).await?;
    client.clear_notifications();
    client.call(&format!("{}__tick", scripted.variant.name), json!({})).await?;
    let told = client.wait_for_notification("notifications/resources/updated").await?;
    ensure(told["params"]["uri"] == uri, "another resource", &told)?;
    if client.variant.is_per_request() {
        ensure(told["params"]["_meta"][format!("{META}subscriptionId")] == id, "of another request", &told)?;
        client.cancel(&id).await?;
    } else {
        client.request("resources/unsubscribe", json!({ "uri": uri })).await?;
    }
    until("the server knows of the end", || scripted.subscriber_count() == 0).await
}

async fn extension(client: &mut Client) -> Checked<()> {
    let answer = client.request("vendor/echo", json!({ "given": 1 })).await?;
    ensure(answer.message["error"]["code"] == -32601, "whose is it?", &answer.message)
}

async fn through(client: &mut Client, scripted: &ScriptedServer) -> Checked<()> {
    let server = scripted.variant;
    let answer = client.call(&format!("{}__add", server.name), json!({ "a": 2, "b": 3 })).await?;
    expect_text(&answer, "5")?;
    asked(client, server, "think", "thoughts on bridges").await?;
    let can_ask = server.revision >= VARIANTS[2].revision;
    if can_ask && client.capabilities["elicitation"].is_object() {
        asked(client, server, "confirm", "accept Ada").await?;
    }
    subscription(client, scripted).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_uses_a_group_of_all_servers() {
    let testbed = Testbed::open(&VARIANTS).await;
    let mut faults = Vec::new();
    for variant in VARIANTS {
        let mut client = testbed.client(variant, ALL).await.unwrap_or_else(|why| panic!("{variant:?}: {why}"));
        faults.extend(tools(&mut client).await.err());
        faults.extend(extension(&mut client).await.err());
        for endpoint in &testbed.endpoints {
            let through = through(&mut client, &endpoint.scripted).await;
            faults.extend(
                through.err().map(|why| format!("{} → {}: {why}", variant.label(), endpoint.scripted.variant.label())),
            );
            faults.extend(endpoint.scripted.take_violations());
        }
        faults.extend(client.close().await.err());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    testbed.close().await;
}
