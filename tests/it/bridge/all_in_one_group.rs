//! All seven servers in one group, used by every client variant.

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

async fn check_server_request(client: &mut Client, server: Variant, tool: &str, expected: &str) -> Checked<()> {
    let answer = client.call(&format!("{}__{tool}", server.name), json!({})).await?;
    expect_text(&answer, expected)?;
    ensure(answer.server_requests.len() == 1, "other questions", &json!(answer.server_requests))?;
    let (method, params) = &answer.server_requests[0];
    // Between two per-request peers the elicitation message is not prefixed with the server name.
    let is_prefixed = params["message"].as_str().is_some_and(|words| words.starts_with(&format!("[{}] ", server.name)));
    let passes_through = server.is_per_request() && client.variant.is_per_request();
    ensure(
        method != "elicitation/create" || is_prefixed || passes_through,
        "the message does not name its server",
        params,
    )
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
    until("the server has the subscription", || scripted.subscriber_count() > 0).await?;
    client.clear_notifications();
    client.call(&format!("{}__tick", scripted.variant.name), json!({})).await?;
    let updated = client.wait_for_notification("notifications/resources/updated").await?;
    ensure(updated["params"]["uri"] == uri, "another resource", &updated)?;
    if client.variant.is_per_request() {
        ensure(updated["params"]["_meta"][format!("{META}subscriptionId")] == id, "of another request", &updated)?;
        client.cancel(&id).await?;
    } else {
        client.request("resources/unsubscribe", json!({ "uri": uri })).await?;
    }
    until("the subscription has ended", || scripted.subscriber_count() == 0).await
}

async fn extension(client: &mut Client) -> Checked<()> {
    let answer = client.request("vendor/echo", json!({ "given": 1 })).await?;
    ensure(answer.message["error"]["code"] == -32601, "an extension method is ambiguous in a group", &answer.message)
}

async fn check_server(client: &mut Client, scripted: &ScriptedServer) -> Checked<()> {
    let server = scripted.variant;
    let answer = client.call(&format!("{}__add", server.name), json!({ "a": 2, "b": 3 })).await?;
    expect_text(&answer, "5")?;
    check_server_request(client, server, "think", "thoughts on bridges").await?;
    let has_elicitation = server.revision >= VARIANTS[2].revision;
    if has_elicitation && client.capabilities["elicitation"].is_object() {
        check_server_request(client, server, "confirm", "accept Ada").await?;
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
            let checked = check_server(&mut client, &endpoint.scripted).await;
            faults.extend(
                checked.err().map(|why| format!("{} → {}: {why}", variant.label(), endpoint.scripted.variant.label())),
            );
            faults.extend(endpoint.scripted.take_violations());
        }
        faults.extend(client.close().await.err());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    testbed.close().await;
}
