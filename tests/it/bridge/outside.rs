//! Questions that do not say which call they belong to.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::Scene;
use super::client::Client;
use super::features::{says, until};
use super::forms::{FORMS, Form, HTTP_2026_07, Transport};

fn handshake(form: &Form) -> bool {
    !form.is_per_request()
}

/// Many servers ask on the stream that listens, whatever the question belongs to.
#[tokio::test]
async fn a_server_request_on_the_get_stream_belongs_to_the_only_running_call() {
    let servers: Vec<Form> = FORMS.into_iter().filter(handshake).collect();
    let scene = Scene::open(&servers).await;
    for stage in &scene.stages {
        let server = stage.puppet.form;
        for form in FORMS.into_iter().filter(|form| form.transport != Transport::Stdio) {
            let mut client = scene.client(form, server.name).await.unwrap();
            let answer =
                client.call("aside", json!({})).await.unwrap_or_else(|why| panic!("{form:?} {server:?}: {why}"));
            says(&answer, "thoughts on bridges").unwrap_or_else(|why| panic!("{form:?} {server:?}: {why}"));
            assert_eq!(answer.asked.len(), 1);
            client.close().await.unwrap();
        }
    }
    scene.close().await;
}

/// What the gateway asks the server by itself is no call that a client could be asked for.
#[tokio::test]
async fn roots_list_right_after_initialized_reaches_the_client() {
    let stdio: Vec<Form> =
        FORMS.into_iter().filter(|form| handshake(form) && form.transport == Transport::Stdio).collect();
    let scene = Scene::open(&stdio).await;
    let puppet = &scene.stages[0].puppet;
    puppet.eager.store(true, Ordering::Relaxed);
    let mut client = scene.client(stdio[0], stdio[0].name).await.unwrap();
    // The level is chosen first thing on a new connection, just when the server asks.
    client.ask("logging/setLevel", json!({ "level": "error" })).await.unwrap();
    says(&client.call("add", json!({ "a": 1, "b": 1 })).await.unwrap(), "2").unwrap();
    client.ask("tools/list", json!({})).await.unwrap();
    until("it knows the roots", || puppet.log() == ["answered"]).await.unwrap();
    client.close().await.unwrap();
    // A client that cannot be asked outside of its calls is asked during one, or not at all; nobody waits for ever.
    let mut client = Client::over_http(HTTP_2026_07, scene.rialto.address, stdio[0].name, None).await.unwrap();
    says(&client.call("add", json!({ "a": 1, "b": 1 })).await.unwrap(), "2").unwrap();
    until("it knows the roots, or that it will not", || !puppet.log().is_empty()).await.unwrap();
    scene.close().await;
}
