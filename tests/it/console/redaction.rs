//! What is taken out of recorded calls also where it is hard to find, and who may see the rest.

use serde_json::json;

use super::privacy::{Gateway, TOPICS, assert_free_of, read_stream};
use crate::harness::{HttpRequest, call, initialize, modern, notification};
use crate::scripted_server::{ScriptedServer, ServerTransport};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_hidden_is_hidden_in_messages_that_are_cut_too() {
    let header = "secret-of-header-K3f9Lq";
    let db = ScriptedServer::start("db", ServerTransport::Http).await;
    let config = format!(
        "listen = \"127.0.0.1:0\"\nworkers = 1\n[servers.db]\nurl = \"http://{}/mcp\"\nheaders = {{ X-Own = \"{header}\" }}\n",
        db.address
    );
    let gateway = Gateway::start("console-cut", &config).await;
    gateway.watch(1, true).await;
    assert_eq!(gateway.post("/mcp", &initialize("2025-11-25")).status().await, 200);
    let secrets = json!({ "password": "hunter2", "nextCursor": "hunter2-cursor", "beside": "harmless" });
    // Wherever the cut falls, it is within a secret of the file.
    let result = json!({ "a": secrets, "content": [], "filler": header.repeat(70_000 / header.len()), "z": secrets });
    let params = json!({ "name": "do", "arguments": { "result": result } });
    let body = modern(1.into(), "tools/call", params.clone());
    let answer = gateway.post("/mcp", &body).modern_headers("tools/call", &params).go().await;
    assert!(answer.text().await.contains("hunter2"), "the client gets it");
    let calls = gateway.wait("calls?q=method:tools/call", |calls| calls["items"][0]["done"] == true).await;
    let id = calls["items"][0]["id"].as_str().unwrap();
    let (_, detail) = gateway.api("GET", &format!("calls/{id}")).json().await;
    let messages = detail["messages"].as_array().unwrap();
    let cut = messages.iter().filter(|one| one["cut"] == true);
    let cut: Vec<&str> = cut.map(|one| one["text"].as_str().unwrap()).collect();
    assert_eq!(cut.len(), 4, "request and result on both wires: {detail}");
    for text in cut {
        for shown in ["\"password\":\"••• 7\"", "\"nextCursor\":\"hunter…", "\"beside\":\"harmless\""] {
            assert_eq!(text.matches(shown).count(), 2, "{shown} on both sides: {text}");
        }
    }
    let said = gateway.everything().await;
    let parts = [&header[..8], &header[header.len() - 8..], "hunter2"].map(|part| (part, part.to_owned()));
    assert_free_of(&said, &parts);
    for (word, count) in [("hunter2", 0), ("harmless", 1)] {
        let (_, found) = gateway.api("GET", &format!("calls?q={word}")).json().await;
        assert_eq!(found["items"].as_array().unwrap().len(), count, "{word}");
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_a_reload_replaces_stays_hidden_in_calls_that_are_kept() {
    let (old, new) = ("secret-before-K3f9Lq", "secret-after-Zw81Yt");
    let db = ScriptedServer::start("db", ServerTransport::Http).await;
    let config = |secret: &str| {
        format!(
            "listen = \"127.0.0.1:0\"\nworkers = 1\n[servers.db]\nurl = \"http://{}/mcp\"\nheaders = {{ X-Own = \"{secret}\" }}\n",
            db.address
        )
    };
    let gateway = Gateway::start("console-rotation", &config(old)).await;
    gateway.watch(1, true).await;
    assert_eq!(gateway.post("/mcp", &initialize("2025-11-25")).status().await, 200);
    let call = async |word: &str| {
        let text = format!("{word} {old} {new}");
        let params =
            json!({ "name": "do", "arguments": { "result": { "content": [{ "type": "text", "text": text }] } } });
        let body = modern(1.into(), "tools/call", params.clone());
        assert_eq!(gateway.post("/mcp", &body).modern_headers("tools/call", &params).status().await, 200);
    };
    call("harmless-before").await;
    gateway.folder.write("rialto.toml", &config(new));
    let is_applied = |config: &serde_json::Value| config["reloads"].to_string().contains("\"applied\"");
    gateway.wait("config", is_applied).await;
    call("harmless-after").await;
    let all_done = |calls: &serde_json::Value| {
        let items = calls["items"].as_array().unwrap();
        items.len() == 2 && items.iter().all(|call| call["done"] == true)
    };
    gateway.wait("calls?q=method:tools/call", all_done).await;
    let said = gateway.everything().await;
    let shown: String = said.iter().map(|(_, text)| text.as_str()).collect();
    assert!(shown.contains("harmless-before") && shown.contains("harmless-after"), "both calls are shown");
    assert_free_of(&said, &[("the old secret", old.to_owned()), ("the new secret", new.to_owned())]);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_look_sees_no_value_of_any_message() {
    const MARKER: &str = "marker-of-payloads";
    const TOKEN: &str = "token-of-eve-0123456789";
    let db = ScriptedServer::start("db", ServerTransport::Http).await;
    let config = format!(
        "listen = \"127.0.0.1:0\"\nworkers = 1\n[admin.tokens]\neve = {{ token = \"{TOKEN}\", may = \"look\" }}\n\
         [servers.db]\nurl = \"http://{}/mcp\"\n[groups.default]\nservers = [\"db\"]\n[groups.db]\nservers = [\"db\"]\n",
        db.address
    );
    let mut gateway = Gateway::start("console-look", &config).await;
    gateway.watch(1, true).await;
    let live = HttpRequest::to(gateway.address, "GET", &format!("/admin/v1/live?topics={TOPICS}"));
    let live = live.header("authorization", &format!("Bearer {TOKEN}"));
    let calls_done = |text: &str| {
        let is_row = |line: &&str| line.contains("\"tools/call\"") && line.contains("\"done\":true");
        text.lines().filter(is_row).count()
    };
    let listening = read_stream(live, |text| {
        calls_done(text) >= 3 && text.contains("event: question") && text.contains("event: session")
    });
    let traffic = async {
        let opened = gateway.post("/mcp", &initialize("2025-11-25")).go().await;
        let session = opened.header("mcp-session-id").unwrap().to_owned();
        let in_session = |body: &serde_json::Value| gateway.post("/mcp", body).header("mcp-session-id", &session);
        in_session(&notification("notifications/initialized", json!({}))).status().await;
        let steps = json!([{ "progress": 1 }, { "log": { "level": "info", "data": MARKER } }]);
        let result =
            json!({ "content": [{ "type": "text", "text": MARKER }], "structuredContent": { "of": [MARKER] } });
        let arguments = json!({ "plain": MARKER, "steps": steps, "result": result });
        let mut body = call(1, "do", arguments.clone());
        body["params"]["_meta"] = json!({ "progressToken": MARKER });
        let answer = in_session(&body).header("mcp-param-plain", MARKER).go().await;
        assert!(answer.text().await.contains(MARKER), "the client gets it");
        let error = json!({ "code": -32000, "message": MARKER, "data": MARKER });
        assert_eq!(in_session(&call(2, "do", json!({ "error": error }))).status().await, 200);
        let ask = json!({ "message": MARKER, "requestedSchema": { "type": "object", "properties": {} } });
        let ask = json!({ "method": "elicitation/create", "params": ask });
        let params = json!({ "name": "do", "arguments": { "steps": [{ "ask": ask }] } });
        let mut body = modern(3.into(), "tools/call", params.clone());
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
            json!({ "elicitation": { "form": {} } });
        let (_, asked) = gateway.post("/mcp", &body).modern_headers("tools/call", &params).answer().await;
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
        gateway.acts("db", &arguments).await
    };
    let (events, own) = tokio::join!(listening, traffic);
    let shown: String = gateway.everything().await.into_iter().chain(own).map(|(_, text)| text).collect();
    assert!(shown.contains(MARKER), "it is there to be found");
    gateway.key = TOKEN.to_owned();
    let mut said = gateway.everything().await;
    said.push(("events".to_owned(), events));
    assert_free_of(&said, &[("the marker", MARKER.to_owned())]);
    gateway.stop().await;
}
