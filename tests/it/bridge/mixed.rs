//! All seven servers in one group, in front of a client of each era.

use serde_json::{Value, json};

use super::client::{Checked, Client, ensure};
use super::features::{says, until};
use super::forms::{FORMS, Form};
use super::puppet::{CLOCK, META, Puppet};
use super::{ALL, Scene};

async fn tools(client: &mut Client) -> Checked<()> {
    let listed = client.ask("tools/list", json!({})).await?;
    let tools = &listed.message["result"]["tools"];
    client.note_tools(tools);
    let names: Vec<&str> = tools.as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str()).collect();
    for form in FORMS {
        let name = format!("{}__add", form.name);
        ensure(names.contains(&name.as_str()), "a tool is missing", &json!(name))?;
    }
    Ok(())
}

async fn asked(client: &mut Client, server: Form, tool: &str, expected: &str) -> Checked<()> {
    let answer = client.call(&format!("{}__{tool}", server.name), json!({})).await?;
    says(&answer, expected)?;
    ensure(answer.asked.len() == 1, "other questions", &json!(answer.asked))?;
    let (method, params) = &answer.asked[0];
    // In the newest revision a server's own words reach the client as they are.
    let named = params["message"].as_str().is_some_and(|words| words.starts_with(&format!("[{}] ", server.name)));
    let carried = server.is_per_request() && client.form.is_per_request();
    ensure(method != "elicitation/create" || named || carried, "nobody knows who asks", params)
}

async fn subscription(client: &mut Client, puppet: &Puppet) -> Checked<()> {
    let uri = format!("rialto://{}/{CLOCK}", puppet.form.name);
    let id = if client.form.is_per_request() {
        let wishes = json!({ "notifications": { "resourceSubscriptions": [uri] } });
        let id = client.send("subscriptions/listen", wishes).await?;
        client.hear("notifications/subscriptions/acknowledged").await?;
        id
    } else {
        client.ask("resources/subscribe", json!({ "uri": uri })).await?;
        Value::Null
    };
    until("the server knows of it", || puppet.subscribers() > 0).await?;
    client.forget();
    client.call(&format!("{}__tick", puppet.form.name), json!({})).await?;
    let told = client.hear("notifications/resources/updated").await?;
    ensure(told["params"]["uri"] == uri, "another resource", &told)?;
    if client.form.is_per_request() {
        ensure(told["params"]["_meta"][format!("{META}subscriptionId")] == id, "of another request", &told)?;
        client.cancel(&id).await?;
    } else {
        client.ask("resources/unsubscribe", json!({ "uri": uri })).await?;
    }
    until("the server knows of the end", || puppet.subscribers() == 0).await
}

async fn extension(client: &mut Client) -> Checked<()> {
    let answer = client.ask("vendor/echo", json!({ "given": 1 })).await?;
    ensure(answer.message["error"]["code"] == -32601, "whose is it?", &answer.message)
}

async fn through(client: &mut Client, puppet: &Puppet) -> Checked<()> {
    let server = puppet.form;
    let answer = client.call(&format!("{}__add", server.name), json!({ "a": 2, "b": 3 })).await?;
    says(&answer, "5")?;
    asked(client, server, "think", "thoughts on bridges").await?;
    let can_ask = server.revision >= FORMS[2].revision;
    if can_ask && client.capabilities["elicitation"].is_object() {
        asked(client, server, "confirm", "accept Ada").await?;
    }
    subscription(client, puppet).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_uses_a_group_of_all_servers() {
    let scene = Scene::open(&FORMS).await;
    let mut faults = Vec::new();
    for form in FORMS {
        let mut client = scene.client(form, ALL).await.unwrap_or_else(|why| panic!("{form:?}: {why}"));
        faults.extend(tools(&mut client).await.err());
        faults.extend(extension(&mut client).await.err());
        for stage in &scene.stages {
            let through = through(&mut client, &stage.puppet).await;
            faults.extend(through.err().map(|why| format!("{} → {}: {why}", form.words(), stage.puppet.form.words())));
            faults.extend(stage.puppet.complaints());
        }
        faults.extend(client.close().await.err());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    scene.close().await;
}
