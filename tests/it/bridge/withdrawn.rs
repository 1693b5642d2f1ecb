//! Questions that are taken back, in front of clients that are asked in the middle of their calls.

use serde_json::json;

use super::Scene;
use super::features::says;
use super::forms::{FORMS, Form};

fn handshake(form: &Form) -> bool {
    !form.is_per_request()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_server_request_is_cancelled_at_the_client() {
    let servers: Vec<Form> = FORMS.into_iter().filter(handshake).collect();
    let scene = Scene::open(&servers).await;
    for stage in &scene.stages {
        let server = stage.puppet.form;
        for form in servers.iter().copied() {
            let context = format!("{} → {}", form.words(), server.words());
            let mut client = scene.client(form, server.name).await.unwrap();
            let id = client.send("tools/call", json!({ "name": "withdraw", "arguments": {} })).await.unwrap();
            let question = client.question(&id).await.unwrap_or_else(|why| panic!("{context}: {why}"));
            stage.puppet.release.notify_one();
            // The call goes on until it is told to end, so this does not come with its end.
            let told = client.hear("notifications/cancelled").await.unwrap_or_else(|why| panic!("{context}: {why}"));
            assert_eq!(told["params"]["requestId"], question, "{context}");
            stage.puppet.release.notify_one();
            says(&client.response(&id).await.unwrap(), "never mind").unwrap();
            assert_eq!(stage.puppet.log(), Vec::<String>::new(), "{context}: nobody wants an answer any more");
            client.close().await.unwrap();
        }
    }
    scene.close().await;
}
