//! First start: no config at all, a config from `rialto init`, and the `mcp.json` files of other clients.

use serde_json::json;

use super::{GatewayProcess, SHELL_SERVER};
use crate::config::TempFolder;
use crate::process::rialto;

/// An ephemeral port from the environment instead of the command line.
const EPHEMERAL_PORT: [(&str, &str); 1] = [("RIALTO_LISTEN", "127.0.0.1:0")];

async fn assert_serves_elements(rialto: GatewayProcess) {
    let session = rialto.open("/mcp").await;
    assert_eq!(session.tools().await, ["getElement", "getElementByPosition", "surveyElements"]);
    let found = session.call("getElement", json!({ "name": "Fe" })).await;
    assert!(found["result"]["content"][0]["text"].as_str().unwrap().contains("Iron"), "{found}");
    session.close().await;
    rialto.stop().await;
}

#[tokio::test]
async fn serve_without_config_offers_the_built_in_server() {
    assert_serves_elements(GatewayProcess::start_in(TempFolder::new("gateway-nothing"), &[], &EPHEMERAL_PORT).await)
        .await;
}

#[tokio::test]
async fn a_config_from_init_is_served_and_reloaded() {
    let folder = TempFolder::new("gateway-begin");
    let ran = rialto().current_dir(&folder.0).arg("init").output().await.unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let rialto = GatewayProcess::start_in(folder, &[], &EPHEMERAL_PORT).await;
    assert_eq!(rialto.status().await["configuration"]["file"], "rialto.toml");
    // Saving the file adds a server.
    let text = std::fs::read_to_string(rialto.path("rialto.toml")).unwrap();
    rialto.folder.write("server.sh", SHELL_SERVER);
    rialto.folder.write("rialto.toml", &format!("{text}{}", super::shell_server("mine", &[("SAYS", "hello")])));
    rialto.until_status("the server is configured", |status| super::phase(status, "mine").is_some()).await;
    rialto.until_ready().await;
    let session = rialto.open("/mcp").await;
    assert_eq!(session.call("mine__answer", json!({})).await["result"]["content"][0]["text"], "hello");
    rialto.stop().await;
}

#[tokio::test]
async fn mcp_json_files_of_other_clients_are_served() {
    let other = crate::harness::Rialto::start().await;
    let url = other.url("/mcp");
    let desktop = json!({
        "globalShortcut": "",
        "mcpServers": {
            "My Shell": { "command": "sh", "args": ["server.sh"], "env": { "SAYS": "hello" } },
            "elements": { "command": env!("CARGO_BIN_EXE_rialto"), "args": ["stdio", "--config", "none.toml"] },
        },
    });
    let code = format!(
        r#"{{
            // As an editor writes it.
            "inputs": [],
            "servers": {{
                "my-shell": {{ "type": "stdio", "command": "sh", "args": ["${{workspaceFolder}}/server.sh"], "env": {{ "SAYS": "hello" }} }},
                "elements": {{ "type": "http", "url": "{url}", "headers": {{ "X-Key": "k" }} }},
            }},
        }}"#
    );
    let cursor = json!({
        "mcpServers": {
            "my-shell": { "command": "sh", "args": ["server.sh"], "env": { "SAYS": "${env:SAYS}" } },
            "elements": { "url": url, "headers": { "X-Key": "k" } },
        },
    });
    for (name, text) in [
        ("claude_desktop_config.json", desktop.to_string()),
        (".vscode/mcp.json", code),
        (".cursor/mcp.json", cursor.to_string()),
    ] {
        let folder = TempFolder::new(&format!("gateway-{}", name.replace(['/', '.'], "-")));
        std::fs::create_dir_all(folder.0.join(name).parent().unwrap()).unwrap();
        folder.write("server.sh", SHELL_SERVER);
        folder.write("none.toml", "");
        folder.write(name, &text);
        let arguments = ["serve", "--config", name, "--listen", "127.0.0.1:0"];
        let rialto = GatewayProcess::start_in(folder, &arguments, &[("SAYS", "hello")]).await;
        let status = rialto.until_ready().await;
        let mut servers = super::names(&status["upstreams"], "name");
        servers.sort();
        assert_eq!(servers, ["elements", "my-shell"], "{name}");
        let session = rialto.open("/mcp").await;
        let response = session.call("my-shell__answer", json!({})).await;
        assert_eq!(response["result"]["content"][0]["text"], "hello", "{name}: {response}");
        let found = session.call("elements__getElement", json!({ "name": "Fe" })).await;
        assert_eq!(found["result"]["isError"], false, "{name}: {found}");
        rialto.stop().await;
    }
}
