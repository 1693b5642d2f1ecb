//! The official Rust SDK as a client, over Streamable HTTP and stdio, in both eras.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rmcp::model::{CallToolRequestParams, ProgressNotificationParam, ProtocolVersion, ReadResourceRequestParams};
use rmcp::service::{NotificationContext, RunningService};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, RoleClient};
use serde_json::json;

use crate::harness::Rialto;

/// Counts notifications.
#[derive(Clone, Default)]
struct NotificationCounter {
    progress: Arc<AtomicU32>,
    tools_changed: Arc<AtomicU32>,
}

impl ClientHandler for NotificationCounter {
    async fn on_progress(&self, _: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.tools_changed.fetch_add(1, Ordering::Relaxed);
    }
}

fn lifecycles() -> [(&'static str, ClientLifecycleMode); 3] {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    [
        ("initialize", ClientLifecycleMode::Initialize),
        ("discover", ClientLifecycleMode::Discover { preferred_versions: preferred_versions.clone() }),
        ("auto", ClientLifecycleMode::Auto { preferred_versions, legacy_version: None }),
    ]
}

fn tool(name: &'static str, arguments: serde_json::Value) -> CallToolRequestParams {
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    CallToolRequestParams::new(name).with_arguments(arguments)
}

/// Uses every tool, resource and prompt of the built-in server.
async fn scenario(client: &RunningService<RoleClient, NotificationCounter>) {
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(
        tools.iter().map(|tool| tool.name.as_ref()).collect::<Vec<_>>(),
        ["getElement", "getElementByPosition", "surveyElements"]
    );
    let found = client.call_tool(tool("getElement", json!({ "name": "钨" }))).await.unwrap();
    assert_eq!(found.structured_content.unwrap()["englishName"], "Tungsten");
    let unknown = client.call_tool(tool("getElement", json!({ "name": "Unobtainium" }))).await.unwrap();
    assert_eq!(unknown.is_error, Some(true));
    let survey = client.call_tool(tool("surveyElements", json!({ "count": 4, "delayMs": 5 }))).await.unwrap();
    assert_eq!(survey.content[0].as_text().unwrap().text, "4 elements: H He Li Be");
    assert!(client.call_tool(tool("nope", json!({}))).await.is_err());
    let resources = client.list_all_resources().await.unwrap();
    assert_eq!(resources.len(), 2);
    let read = client.read_resource(ReadResourceRequestParams::new("elements://symbol/Au")).await.unwrap();
    assert_eq!(read.contents.len(), 1);
    assert!(client.read_resource(ReadResourceRequestParams::new("elements://symbol/Zz")).await.is_err());
    assert_eq!(client.list_all_resource_templates().await.unwrap().len(), 1);
    assert_eq!(client.list_all_prompts().await.unwrap()[0].name, "describeElement");
}

#[tokio::test]
async fn rmcp_client_over_streamable_http() {
    let rialto = Rialto::start().await;
    for (name, lifecycle) in lifecycles() {
        let transport = StreamableHttpClientTransport::from_uri(rialto.url("/mcp"));
        let handshake = lifecycle == ClientLifecycleMode::Initialize;
        let client = NotificationCounter::default().serve_with_lifecycle(transport, lifecycle).await;
        let client = client.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(rialto.inbound.sessions.count(), usize::from(handshake), "{name}");
        scenario(&client).await;
        client.cancel().await.unwrap();
        let sessions = &rialto.inbound.sessions;
        crate::harness::until("its session is ended", || sessions.count() == 0).await;
    }
}

#[tokio::test]
async fn rmcp_client_over_stdio() {
    for (name, lifecycle) in lifecycles() {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_rialto"));
        command.arg("stdio");
        let transport = TokioChildProcess::new(command).unwrap();
        let client = NotificationCounter::default().serve_with_lifecycle(transport, lifecycle).await;
        let client = client.unwrap_or_else(|error| panic!("{name}: {error}"));
        scenario(&client).await;
        client.cancel().await.unwrap();
    }
}

#[tokio::test]
async fn rmcp_client_receives_progress_and_list_changes() {
    let rialto = Rialto::start().await;
    let transport = StreamableHttpClientTransport::from_uri(rialto.url("/mcp"));
    let counter = NotificationCounter::default();
    let client = counter.clone().serve_with_lifecycle(transport, ClientLifecycleMode::Initialize).await.unwrap();
    client.call_tool(tool("surveyElements", json!({ "count": 4, "delayMs": 5 }))).await.unwrap();
    crate::harness::until("all progress is seen", || counter.progress.load(Ordering::Relaxed) == 4).await;
    rialto.group().publish(rialto::call::ChangeEvent::Tools);
    crate::harness::until("the change is seen", || counter.tools_changed.load(Ordering::Relaxed) == 1).await;
    client.cancel().await.unwrap();
}
