//! Replay: a recorded call once more, as its client said it and as its server heard it.

use serde_json::{Value, json};

use super::rows::{serving, spec};
use super::{ended_rows, messages, show_bodies};
use crate::console::{get, post};
use crate::harness::{HANDSHAKE, PER_REQUEST, Rialto, TEST_TIMEOUT, call};
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// Makes a call whose result is what its arguments say, and returns its row.
async fn recorded_call(rialto: &Rialto, revision: &str, marker: &str) -> Value {
    let result = json!({
        "content": [{ "type": "text", "text": marker }], "structuredContent": { "exact": 1.0, "marker": marker },
    });
    let arguments = json!({ "result": result, "marker": marker });
    let (_, answer) = match revision {
        PER_REQUEST => rialto.modern("tools/call", json!({ "name": "do", "arguments": arguments })).answer().await,
        _ => rialto.open(revision).await.post(&call(7, "do", arguments)).answer().await,
    };
    assert!(answer.to_string().contains(marker), "{answer}");
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    loop {
        let mut found = newest_with(rialto, marker).await;
        if !found.is_empty() {
            return found.remove(0);
        }
        assert!(tokio::time::Instant::now() < deadline, "{marker} has no row");
    }
}

/// Rows of tool calls whose messages have a text.
async fn newest_with(rialto: &Rialto, marker: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for row in ended_rows(rialto, "method:tools/call", 0).await {
        if detail(rialto, &row["id"]).await.to_string().contains(marker) {
            found.push(row);
        }
    }
    found
}

async fn detail(rialto: &Rialto, id: &Value) -> Value {
    get(rialto, &format!("calls/{}", id.as_str().unwrap())).await
}

/// Replays a call and returns it with its messages, once it has ended.
async fn replay(rialto: &Rialto, id: &Value, body: &Value) -> Value {
    let (status, begun) = post(rialto, &format!("calls/{}/replay", id.as_str().unwrap()), body).await;
    assert_eq!(status, 202, "{begun}");
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    let path = format!("calls/{}", begun["call"].as_str().unwrap());
    loop {
        let (status, replayed) = crate::console::asked(rialto, "GET", &path).json().await;
        if status == 200 && replayed["done"] == true {
            return replayed;
        }
        assert!(tokio::time::Instant::now() < deadline, "{replayed}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// The result of the last response on a wire that went one way.
fn result(detail: &Value, wire: &str, way: &str) -> Value {
    let all = messages(detail, wire, way);
    let last = all.iter().rev().find(|one| one["kind"] == "response").unwrap_or_else(|| panic!("{detail:#}"));
    let text: Value = serde_json::from_str(last["text"].as_str().unwrap()).unwrap();
    text["result"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_either_side_gives_the_same_result_in_each_revision() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest, ServerTransport::Stdio, ServerTransport::Sse]
    {
        let notes = ScriptedServer::start("notes", transport).await;
        let rialto = serving(vec![spec(&notes)], |_| {}).await;
        show_bodies(&rialto).await;
        for revision in HANDSHAKE.into_iter().chain([PER_REQUEST]) {
            let marker = format!("result for {revision}");
            let row = recorded_call(&rialto, revision, &marker).await;
            let what = format!("{transport:?} {revision}");
            assert_eq!(row["client"]["revision"], revision, "{what}");
            let recorded = detail(&rialto, &row["id"]).await;
            let calls_before = notes.count("tools/call");

            let as_client = replay(&rialto, &row["id"], &json!({ "side": "client" })).await;
            assert_eq!(as_client["outcome"], "ok", "{what}: {as_client:#}");
            assert_eq!(result(&as_client, "client", "out"), result(&recorded, "client", "out"), "{what}");
            assert_eq!(result(&as_client, "server", "in"), result(&recorded, "server", "in"), "{what}");
            assert_eq!(as_client["client"]["revision"], revision, "{what}");

            let as_server = replay(&rialto, &row["id"], &json!({ "side": "server" })).await;
            assert_eq!(result(&as_server, "server", "in"), result(&recorded, "server", "in"), "{what}");
            let heard = |detail: &Value| -> Value {
                let sent = messages(detail, "server", "out");
                let sent = sent.iter().find(|one| one["method"] == "tools/call").unwrap();
                serde_json::from_str::<Value>(sent["text"].as_str().unwrap()).unwrap()["params"]["arguments"].clone()
            };
            assert_eq!(heard(&as_server), heard(&recorded), "{what}");
            assert_eq!(notes.count("tools/call"), calls_before + 2, "{what}: each replay is one call");

            for other in HANDSHAKE.into_iter().chain([PER_REQUEST]).filter(|other| *other != revision) {
                let body = json!({ "side": "client", "as": other });
                let replayed = replay(&rialto, &row["id"], &body).await;
                assert_eq!(replayed["client"]["revision"], other, "{what} as {other}");
                let content = &result(&replayed, "client", "out")["content"];
                assert_eq!(content, &result(&recorded, "client", "out")["content"], "{what} as {other}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_which_a_part_is_kept_is_not_replayed() {
    let notes = ScriptedServer::start("notes", ServerTransport::Http).await;
    let rialto = serving(vec![spec(&notes)], |settings| settings.recording.body_bytes = 200).await;
    let params = json!({ "name": "do", "arguments": { "result": { "content": [], "filler": "x".repeat(1000) } } });
    assert_eq!(rialto.modern("tools/call", params).status().await, 200);
    let row = ended_rows(&rialto, "method:tools/call", 1).await.remove(0);
    for side in ["client", "server"] {
        let path = format!("calls/{}/replay", row["id"].as_str().unwrap());
        let (status, refused) = post(&rialto, &path, &json!({ "side": side })).await;
        assert_eq!((status, &refused["error"]["code"]), (409, &json!("not_whole")), "{refused}");
    }
    assert_eq!(notes.count("tools/call"), 1);
}
