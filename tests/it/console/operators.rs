//! What operators do and see: each act is said aloud, and what they are shown of calls, questions, times and streams.

use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::policy::{ConsoleAccess, OperatorRight, OperatorTokens};
use rialto::recording::RecordMode;
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};

use super::privacy::Gateway;
use super::{DOCUMENT, asked, get, mistakes, post, wait};
use crate::harness::{HttpRequest, Rialto, TEST_TIMEOUT, call, initialize, modern, notification, until};
use crate::scripted_server::{ScriptedServer, ServerTransport};

async fn serving(server: &ScriptedServer, change: impl FnOnce(&mut rialto::app::AppSettings)) -> Rialto {
    let spec = UpstreamSpec::new(&server.name, SpecKind::Target(server.target()));
    let group = GroupConfig::new(DEFAULT_GROUP, [spec.name.clone()]);
    let rialto = Rialto::with(|settings| {
        settings.gateway = GatewayConfig { upstreams: vec![spec], groups: vec![group] };
        change(settings);
    })
    .await;
    let newest = rialto::dialect::Revision::NEWEST;
    until("the tools are known", || rialto.group().view(newest).count(rialto::upstream::List::Tools) > 0).await;
    rialto
}

#[tokio::test(flavor = "multi_thread")]
async fn each_act_of_an_operator_is_a_line_of_the_log_and_of_the_audit_log() {
    const TOKEN: &str = "token-of-ann-0123456789";
    let db = ScriptedServer::start("db", ServerTransport::Http).await;
    let config = format!(
        "listen = \"127.0.0.1:0\"\nworkers = 1\n[admin]\nedit = true\n[admin.tokens]\n\
         ann = {{ token = \"{TOKEN}\", may = \"edit\" }}\n[audit]\noutput = \"file:audit.jsonl\"\n\
         [servers.db]\nurl = \"http://{}/mcp\"\n",
        db.address
    );
    let gateway = Gateway::start("console-audit", &config).await;
    gateway.watch(1, false).await;
    let ann = |verb: &'static str, path: &str| {
        let request = HttpRequest::to(gateway.address, verb, &format!("/admin/v1/{path}"));
        let request = request.header("authorization", &format!("Bearer {TOKEN}"));
        if verb == "GET" { request } else { request.header("content-type", "application/json") }
    };
    let opened = gateway.post("/mcp", &initialize("2025-11-25")).go().await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let in_session = |body: &Value| gateway.post("/mcp", body).header("mcp-session-id", &session);
    in_session(&notification("notifications/initialized", json!({}))).status().await;
    assert_eq!(in_session(&call(1, "do", json!({}))).status().await, 200);
    let calls = gateway.wait("calls?q=method:tools/call", |calls| calls["items"][0]["done"] == true).await;
    let call = calls["items"][0]["id"].as_str().unwrap().to_owned();
    let short = ann("GET", "sessions").json().await.1["items"][0]["id"].as_str().unwrap().to_owned();
    let tag = ann("GET", "config").json().await.1["etag"].as_str().unwrap().to_owned();
    let text = json!({ "text": ann("GET", "config").json().await.1["text"] }).to_string();
    let mut acts: Vec<(String, u16)> = Vec::new();
    let stream = ann("GET", "live?topics=call").go().await;
    acts.push(("GET /admin/v1/live".to_owned(), stream.status));
    let tried = json!({ "group": "default", "name": "do", "arguments": {} }).to_string();
    for (verb, path, body) in [
        ("PUT", "recording".to_owned(), "{\"bodies\":true}".to_owned()),
        ("PUT", format!("calls/{call}/kept"), "{}".to_owned()),
        ("POST", format!("calls/{call}/replay"), "{\"side\":\"client\"}".to_owned()),
        ("POST", "try".to_owned(), tried),
        ("POST", "servers/db/reconnect".to_owned(), "{}".to_owned()),
        ("DELETE", format!("sessions/{short}"), String::new()),
        ("DELETE", "questions/parked-0".to_owned(), String::new()),
    ] {
        let status = ann(verb, &path).body(body).status().await;
        acts.push((format!("{verb} /admin/v1/{path}"), status));
    }
    let written = ann("PUT", "config").header("if-match", &tag).body(text).go().await;
    acts.push(("PUT /admin/v1/config".to_owned(), written.status));
    let statuses: Vec<u16> = acts.iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, [200, 200, 204, 202, 202, 202, 204, 404, 200], "{acts:?}");
    drop(stream);
    let folder = gateway.stop().await;
    let audit = std::fs::read_to_string(folder.0.join("audit.jsonl")).unwrap();
    let events: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let log = std::fs::read_to_string(folder.0.join("log")).unwrap();
    for (act, status) in &acts {
        let detail = format!("ann: {act}");
        let found: Vec<&Value> =
            events.iter().filter(|event| event["event"] == "admin" && event["detail"] == *detail).collect();
        assert_eq!(found.len(), 1, "{detail}: {audit}");
        let status = status.to_string();
        assert!(found[0].to_string().contains(&status), "{}", found[0]);
        let is_line = |line: &&str| line.contains("operator acted") && line.contains(act) && line.contains("ann");
        assert_eq!(log.lines().filter(is_line).count(), 1, "{act} in the log");
    }
    assert!(!audit.contains(TOKEN) && !log.contains(TOKEN));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_are_in_the_audit_log_as_often_as_they_are_told_so() {
    let config = "listen = \"127.0.0.1:0\"\nworkers = 1\n[audit]\noutput = \"file:audit.jsonl\"\n";
    let gateway = Gateway::start("console-wrong-keys", config).await;
    let mut statuses = Vec::new();
    for _ in 0..12 {
        let request = HttpRequest::to(gateway.address, "GET", "/admin/v1/sessions/whose-session");
        statuses.push(request.header("authorization", "Bearer key-of-nobody").status().await);
    }
    assert_eq!(statuses, [&[401; 10][..], &[429; 2]].concat());
    let without = HttpRequest::to(gateway.address, "GET", "/admin/v1/me").status().await;
    assert_eq!(without, 401, "no key is no wrong key");
    let folder = gateway.stop().await;
    let audit = std::fs::read_to_string(folder.0.join("audit.jsonl")).unwrap();
    let events = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let wrong: Vec<Value> = events.filter(|event| event["outcome"] == "unauthenticated").collect();
    assert_eq!(wrong.len(), 10, "{audit}");
    for event in &wrong {
        let detail = "unknown: GET /admin/v1/sessions/{session}";
        assert_eq!((&event["event"], &event["detail"]), (&json!("admin"), &json!(detail)), "{event}");
        assert!(event.to_string().contains("127.0.0.1") && event.to_string().contains("401"), "{event}");
    }
    assert!(!audit.contains("key-of-nobody") && !audit.contains("whose-session"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_has_the_id_of_its_recorded_call() {
    let notes = ScriptedServer::start("notes", ServerTransport::Http).await;
    let rialto = serving(&notes, |_| {}).await;
    let mut events = asked(&rialto, "GET", "live?topics=try").go().await.events();
    for revision in ["2025-06-18", "2026-07-28"] {
        let body = json!({ "as": revision, "name": "do", "arguments": { "message": revision } });
        let (_, begun) = post(&rialto, "try", &body).await;
        let path = format!("try/{}", begun["try"].as_str().unwrap());
        let done = wait(&rialto, &path, |state| state["state"] == "done" && state["call"].is_string()).await;
        let row = get(&rialto, &format!("calls/{}", done["call"].as_str().unwrap())).await;
        assert_eq!((&row["method"], &row["name"]), (&json!("tools/call"), &json!("do")), "{row}");
        assert_eq!((&row["client"]["name"], &row["client"]["revision"]), (&json!("rialto-console"), &json!(revision)));
        loop {
            let event = events.next().await.unwrap();
            let data: Value = serde_json::from_str(&event.data).unwrap();
            assert_eq!(mistakes(&DOCUMENT["x-events"][event.name.as_deref().unwrap()], &data, ""), [""; 0]);
            if data["call"] == done["call"] && data["state"] == "done" {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_is_told_to_its_operator_alone_and_shows_nothing_of_what_came() {
    const MARKER: &str = "marker-of-what-is-tried";
    let notes = ScriptedServer::start("notes", ServerTransport::Http).await;
    let rialto = serving(&notes, |settings| {
        let tokens = [
            ("eve".to_owned(), "token-of-eve".to_owned(), OperatorRight::Look),
            ("bob".to_owned(), "token-of-bob".to_owned(), OperatorRight::Act),
        ];
        settings.policy.console = ConsoleAccess { tokens: OperatorTokens::new(tokens), ..ConsoleAccess::default() };
    })
    .await;
    let by = |name: &str, path: &str| {
        let request = rialto.send("GET", &format!("/admin/v1/{path}"));
        request.header("authorization", &format!("Bearer token-of-{name}"))
    };
    // Both watch before anything is tried.
    let mut others = [by("eve", "live?topics=try,call").go().await, by("bob", "live?topics=try,call").go().await];
    let mut own = asked(&rialto, "GET", "live?topics=try,call").go().await;
    let steps = json!([{ "progress": 1, "message": MARKER }, { "log": { "level": "info", "data": MARKER } }]);
    let result = json!({ "content": [{ "type": "text", "text": MARKER }] });
    let arguments = json!({ "steps": steps, "result": result });
    let (_, begun) = post(&rialto, "try", &json!({ "name": "do", "arguments": arguments })).await;
    let id = begun["try"].as_str().unwrap().to_owned();
    let done = wait(&rialto, &format!("try/{id}"), |state| state["state"] == "done").await;
    assert!(done["result"].to_string().contains(MARKER), "its operator reads it: {done}");
    let is_row = |line: &str| line.contains("\"tools/call\"") && line.contains("\"done\":true");
    let until_done = |text: &str| text.lines().any(is_row);
    for (stream, is_own) in others.iter_mut().map(|stream| (stream, false)).chain([(&mut own, true)]) {
        let mut text = String::new();
        while !until_done(&text) || is_own && !text.contains("\"state\":\"done\"") || !text.ends_with("\n\n") {
            let piece = tokio::time::timeout(TEST_TIMEOUT, stream.piece()).await.unwrap().unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(&piece));
        }
        assert_eq!(text.contains("event: try"), is_own, "{text}");
        assert!(!text.contains(MARKER), "{text}");
    }
    assert_eq!(by("eve", &format!("try/{id}")).status().await, 403);
    assert_eq!(by("bob", &format!("try/{id}")).status().await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_name_the_server_and_show_their_words_to_those_who_may_see_bodies() {
    let notes = ScriptedServer::start("notes", ServerTransport::Http).await;
    let rialto = serving(&notes, |settings| {
        let tokens = [("eve".to_owned(), "token-of-eve".to_owned(), OperatorRight::Look)];
        settings.policy.console = ConsoleAccess { tokens: OperatorTokens::new(tokens), ..ConsoleAccess::default() };
    })
    .await;
    rialto.wait_recording().await;
    let words = "Close it, although two are open?";
    let schema = json!({ "type": "object", "properties": {} });
    let ask = json!({ "method": "elicitation/create", "params": { "message": words, "requestedSchema": schema } });
    let capabilities = json!({ "elicitation": { "form": {} } });
    let params = json!({ "name": "do", "arguments": { "steps": [{ "ask": ask }] } });
    let mut body = modern(1.into(), "tools/call", params.clone());
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities.clone();
    let (_, answer) = rialto.post("/mcp", &body).modern_headers("tools/call", &params).answer().await;
    assert_eq!(answer["result"]["resultType"], "input_required");
    let mut hello = initialize("2025-11-25");
    hello["params"]["capabilities"] = capabilities;
    let opened = rialto.post("/mcp", &hello).go().await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let in_session = |body: &Value| rialto.post("/mcp", body).header("mcp-session-id", &session);
    in_session(&notification("notifications/initialized", json!({}))).status().await;
    let _running = in_session(&call(2, "do", params["arguments"].clone())).go().await;
    let two = wait(&rialto, "questions", |page| page["items"].as_array().unwrap().len() == 2).await;
    for question in two["items"].as_array().unwrap() {
        assert_eq!((&question["server"], &question["text"]), (&json!("notes"), &Value::Null), "{question}");
        let (asked, until) = (question["asked"].as_str().unwrap(), question["until"].as_str().unwrap());
        assert!(until > asked, "both say until when: {question}");
    }
    assert_eq!(asked(&rialto, "PUT", "recording").body("{\"bodies\":true}").status().await, 200);
    let are_known = |page: &Value| page["items"].as_array().unwrap().iter().all(|item| item["call"].is_string());
    let shown = wait(&rialto, "questions", are_known).await;
    for question in shown["items"].as_array().unwrap() {
        assert_eq!(question["text"], words, "{question}");
        // The summary of a call is noted after its first message.
        let path = format!("calls/{}", question["call"].as_str().unwrap());
        let row = wait(&rialto, &path, |row| row["name"].is_string()).await;
        assert_eq!((&row["name"], &row["done"]), (&json!("do"), &json!(false)), "{row}");
    }
    let eve =
        |path: &str| rialto.send("GET", &format!("/admin/v1/{path}")).header("authorization", "Bearer token-of-eve");
    let (_, hidden) = eve("questions").json().await;
    assert_eq!(hidden["items"].as_array().unwrap().len(), 2);
    assert!(!hidden.to_string().contains(words), "{hidden}");
    let mut streams =
        [eve("live?topics=question").go().await, asked(&rialto, "GET", "live?topics=question").go().await];
    let _third = in_session(&call(3, "do", params["arguments"].clone())).go().await;
    for (stream, may_see) in streams.iter_mut().zip([false, true]) {
        let mut text = String::new();
        while !text.contains("event: question") || !text.ends_with("\n\n") {
            let piece = tokio::time::timeout(TEST_TIMEOUT, stream.piece()).await.unwrap().unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(&piece));
        }
        assert_eq!(text.contains(words), may_see, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_call_is_told_by_its_parts() {
    for (transport, bodies) in [
        (ServerTransport::Http, true),
        (ServerTransport::Http, false),
        (ServerTransport::Stdio, true),
        (ServerTransport::Stdio, false),
    ] {
        let notes = ScriptedServer::start("notes", transport).await;
        let rialto = serving(&notes, |settings| settings.recording.mode = RecordMode::Always).await;
        until("calls are recorded", || rialto.inbound.calls.state().is_on).await;
        let _watching = bodies.then(|| rialto.inbound.calls.watch());
        let params = json!({ "name": "do", "arguments": { "steps": [{ "pause": 120 }] } });
        let overview = get(&rialto, "overview?range=1h").await;
        assert_eq!(overview["figures"]["rialto_us"]["p50"], Value::Null, "{overview:#}");
        assert_eq!(rialto.modern("tools/call", params).status().await, 200);
        let calls = &rialto.inbound.calls;
        let is_call = |call: &rialto::recording::StoredCall| !call.ends.is_empty();
        until("it is recorded", || calls.newest(u64::MAX, is_call, 9).len() == 1).await;
        let recorded = calls.newest(u64::MAX, is_call, 1).remove(0);
        let row = calls.rows("node".to_owned()).row_value(&recorded, rialto::recording::BodyAccess::Shapes);
        let part = |name: &str| row["time"][name].as_u64().unwrap();
        let what = format!("{transport:?}, bodies {bodies}: {row:#}");
        assert!(part("server_us") >= 120_000, "{what}");
        assert!(part("open_us") > 0, "a connection of its own was opened: {what}");
        let parts = ["rialto_us", "open_us", "server_us", "client_us"].map(part).iter().sum::<u64>();
        assert!(row["took_us"].as_u64().unwrap().abs_diff(parts) <= 4, "{what}");
        let overview = get(&rialto, "overview?range=1h").await;
        let added = &overview["figures"]["rialto_us"];
        assert_eq!(added["p50"], row["time"]["rialto_us"], "{added}");
        assert!(added["mean"].as_u64().is_some() && added["p99"].as_u64().is_some(), "{added}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_stream_shows_from_where_and_how_many_events_came_again() {
    let notes = ScriptedServer::start("notes", ServerTransport::Http).await;
    let rialto = serving(&notes, |_| {}).await;
    rialto.wait_recording().await;
    let session = rialto.open("2025-11-25").await;
    let steps = json!([{ "progress": 1 }, { "progress": 2 }, { "progress": 3 }, { "wait": "end" }]);
    let mut events = session.post(&call(1, "do", json!({ "steps": steps }))).go().await.events();
    let mut ids = Vec::new();
    while ids.len() < 4 {
        ids.push(events.next().await.unwrap().id.unwrap());
    }
    drop(events);
    // After the first notification: the second and the third come again.
    let mut again = session.resume(&ids[1]).go().await.events();
    let mut repeated = Vec::new();
    while repeated.len() < 2 {
        let event = again.next().await.unwrap();
        repeated.extend(event.id.filter(|_| !event.data.is_empty()));
    }
    assert_eq!(repeated, ids[2..]);
    let id = get(&rialto, "sessions").await["items"][0]["id"].as_str().unwrap().to_owned();
    let of_call = |shown: &Value| {
        let streams = shown["open_streams"].as_array().unwrap();
        streams.iter().find(|stream| stream["kind"] == "call").unwrap().clone()
    };
    let is_recorded = |shown: &Value| of_call(shown)["call"].is_string();
    let shown = wait(&rialto, &format!("sessions/{id}"), is_recorded).await;
    let stream = of_call(&shown);
    let from = ids[1].replace('.', "-");
    assert_eq!((&stream["resumed"], &stream["resumed_from"]), (&json!(1), &json!(from)), "{shown:#}");
    assert_eq!((&stream["resumed_events"], &stream["kept"]), (&json!(2), &json!(3)), "{shown:#}");
    let call = get(&rialto, &format!("calls/{}", stream["call"].as_str().unwrap())).await;
    assert_eq!((&call["method"], &call["name"]), (&json!("tools/call"), &json!("do")), "{shown:#}");
    let is_stream = |row: &&Value| row["method"] == "GET /mcp";
    let has_stream = |page: &Value| page["items"].as_array().unwrap().iter().any(|row| is_stream(&row));
    let rows = wait(&rialto, "calls", has_stream).await;
    let row = rows["items"].as_array().unwrap().iter().find(is_stream).unwrap();
    let detail = get(&rialto, &format!("calls/{}", row["id"].as_str().unwrap())).await;
    let headers = detail["messages"][0]["http"]["headers"].as_array().unwrap();
    assert!(headers.contains(&json!(["last-event-id", ids[1]])), "the request that resumed has its row: {detail:#}");
    notes.open("end");
    assert_eq!(again.message().await.unwrap()["id"], 1);
}
