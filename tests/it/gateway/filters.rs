//! Filters of a group: what is denied runs under none of its names, and by no spelling of a call.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{GatewayProcess, Session, shell_server};
use crate::harness::{HttpRequest, TEST_TIMEOUT, initialize, modern};
use crate::process::rialto;

/// A stdio server with one tool whose name is longer than clients may see; it notes each call in `$NOTE`.
const LONG_NAME_SERVER: &str = r#"
while read -r line; do
    id=${line#*\"id\":}; id=${id%%[,\}]*}
    say() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
    case "$line" in
    *'"initialize"'*) say '"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"long","version":"1"}}';;
    *'"tools/list"'*) say "\"result\":{\"tools\":[{\"name\":\"$TOOL\",\"inputSchema\":{\"type\":\"object\"}},{\"name\":\"harmless\",\"inputSchema\":{\"type\":\"object\"}}]}";;
    *'"tools/call"'*) printf '%s\n' "$line" >>"$NOTE"; say '"result":{"content":[]}';;
    *'"id":'*) say '"result":{}';;
    esac
done
"#;

#[tokio::test]
async fn a_filter_matches_the_own_the_prefixed_and_the_shortened_name() {
    // What clients see ends before the word that is denied.
    let long = format!("{}_delete_everything", "a".repeat(70));
    let config = |filter: &str| {
        format!(
            "[servers.elements]\nbuiltin = \"elements\"\n[servers.far]\ncommand = \"sh\"\nargs = [\"long.sh\"]\nenv = {{ TOOL = \"{long}\", NOTE = \"note\" }}\nrevision = \"2025-06-18\"\n[groups.default]\ntools = {{ {filter} }}\n"
        )
    };
    let folder = crate::config::TempFolder::new("gateway-long-names");
    folder.write("rialto.toml", &config("allow = [\"*\"]"));
    folder.write("long.sh", LONG_NAME_SERVER);
    let rialto = GatewayProcess::start_in(folder, &["serve", "--listen", "127.0.0.1:0"], &[]).await;
    rialto.until_ready().await;
    let session = rialto.open("/mcp").await;
    let all = session.tools().await;
    let shortened = all.iter().find(|name| name.starts_with("far__aaa")).unwrap().clone();
    assert!(shortened.len() == 64 && !shortened.contains("delete"), "{shortened}");
    for deny in ["*delete*", "far__a*delete_everything", &shortened, &long] {
        rialto.replace_config(&config(&format!("deny = [\"{deny}\"]")));
        rialto.send_sighup();
        let hidden = |status: &Value| status["groups"][0]["lists"]["tools"] == all.len() - 1;
        rialto.until_status(&format!("{deny} is denied"), hidden).await;
        let tools = session.tools().await;
        assert!(!tools.contains(&shortened) && tools.contains(&"far__harmless".to_owned()), "{deny}: {tools:?}");
        for name in [shortened.as_str(), long.as_str(), &format!("far__{long}")] {
            let refused = session.call(name, json!({})).await;
            assert_eq!(refused["error"]["code"], -32602, "{deny}: {name}: {refused}");
        }
        rialto.replace_config(&config("allow = [\"*\"]"));
        rialto.send_sighup();
        rialto.until_status("all are allowed", |status| status["groups"][0]["lists"]["tools"] == all.len()).await;
    }
    // The server's own name is enough to allow a tool.
    rialto.replace_config(&config("allow = [\"harmless\"]"));
    rialto.until_status("one is allowed", |status| status["groups"][0]["lists"]["tools"] == 1).await;
    assert_eq!(session.tools().await, ["far__harmless"]);
    assert!(session.call("far__harmless", json!({})).await["result"].is_object());
    let noted = std::fs::read_to_string(rialto.path("note")).unwrap();
    assert!(!noted.contains("delete") && noted.contains("harmless"), "{noted}");
    rialto.stop().await;
}

/// The params of a call that a filter could judge by another name than the server reads.
const DISGUISED: [&str; 6] = [
    r#"{"name":"answer","name":"wrong"}"#,
    r#"{"name":"wrong","name":"answer"}"#,
    r#"{"name":"answer","na\u006de":"wrong"}"#,
    r#"{"na\u006de":"answer","name":"wrong"}"#,
    r#"{"na\u006de":"wrong"}"#,
    r#"{"name":"wr\u006fng"}"#,
];

fn disguised_call(id: usize, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)
}

fn assert_denied(answer: &Value, params: &str) {
    assert_eq!(answer["error"]["code"], -32602, "{params}: {answer}");
}

#[tokio::test]
async fn a_denied_tool_cannot_be_disguised_on_any_transport() {
    let file = format!(
        "{}\n[groups.default]\ntools = {{ deny = [\"wrong\"] }}\n",
        shell_server("sh", &[("NOTE", "note"), ("SAYS", "here")])
    );
    let rialto = GatewayProcess::start("disguised", &file).await;
    rialto.until_status("its tools are listed", |status| status["groups"][0]["lists"]["tools"] == 3).await;

    let session = rialto.open("/mcp").await;
    for (id, params) in DISGUISED.into_iter().enumerate() {
        assert_denied(&session.post(&json!({})).body(disguised_call(id, params)).json().await.1, params);
    }

    let meta = &modern(1.into(), "tools/call", json!({}))["params"]["_meta"];
    for (id, params) in DISGUISED.into_iter().enumerate() {
        let params = params.replacen('{', &format!("{{\"_meta\":{meta},"), 1);
        for name in ["answer", "wrong"] {
            let request = Session { address: rialto.address, path: "/mcp", id: String::new() }.post(&json!({}));
            let request = request.modern_headers("tools/call", &json!({ "name": name }));
            let (_, answer) = request.body(disguised_call(id, &params)).json().await;
            assert!(answer["error"]["code"].is_i64(), "{params}: {answer}");
        }
    }

    let stream = HttpRequest::to(rialto.address, "GET", "/sse").header("accept", "text/event-stream").go().await;
    let mut events = stream.events();
    let endpoint = events.next().await.unwrap().data;
    let post = |body: String| {
        HttpRequest::to(rialto.address, "POST", &endpoint).header("content-type", "application/json").body(body)
    };
    assert_eq!(post(initialize("2024-11-05").to_string()).status().await, 202);
    assert!(events.message().await.unwrap()["result"].is_object());
    for (id, params) in DISGUISED.into_iter().enumerate() {
        assert_eq!(post(disguised_call(id, params)).status().await, 202);
        assert_denied(&events.message().await.unwrap(), params);
    }

    let mut command = rialto_stdio(&rialto);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut lines = BufReader::new(output).lines();
    let mut ask = async |line: String| {
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let answer = tokio::time::timeout(TEST_TIMEOUT, lines.next_line()).await.expect("an answer in time").unwrap();
        serde_json::from_str::<Value>(&answer.unwrap()).unwrap()
    };
    assert!(ask(initialize("2025-11-25").to_string()).await["result"].is_object());
    for (id, params) in DISGUISED.into_iter().enumerate() {
        assert_denied(&ask(disguised_call(id, params)).await, params);
    }
    assert!(ask(disguised_call(99, r#"{"name":"answer"}"#)).await["result"].is_object());
    drop(child.stdin.take());

    assert_eq!(session.call("answer", json!({})).await["result"]["content"][0]["text"], "here");
    let noted = std::fs::read_to_string(rialto.path("note")).unwrap();
    assert!(!noted.contains("wrong") && noted.contains("answer"), "{noted}");
    child.kill().await.unwrap();
    rialto.stop().await;
}

fn rialto_stdio(running: &GatewayProcess) -> tokio::process::Command {
    let mut command = rialto();
    command.arg("stdio").current_dir(&running.folder.0).env_remove("RIALTO_CONFIG");
    command
}
