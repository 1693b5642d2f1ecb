//! Official Rust SDK as a load client, driven by JSON lines like the scripts of the other SDKs.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
    ProgressNotificationParam, ProtocolVersion, ResourceUpdatedNotificationParam, SubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, ErrorData, RoleClient};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use super::balancer::RETRY_DELAY;
use super::load_driver::RESOURCE;
use super::sdks::SdkChannels;

/// Consecutive failures after which the client reconnects.
const MAX_CONSECUTIVE_FAILURES: usize = 2;

/// Client handler that reports every notification as a JSON line.
#[derive(Clone)]
struct RecordingHandler {
    reports: mpsc::UnboundedSender<Value>,
    /// Progress received so far; the SDK handles notifications concurrently, so their order is undefined.
    progress: Arc<Mutex<HashSet<String>>>,
}

type Client = RunningService<RoleClient, RecordingHandler>;

impl ClientHandler for RecordingHandler {
    fn get_info(&self) -> ClientConfig {
        let mut info = ClientConfig::default();
        info.capabilities = serde_json::from_value(json!({ "elicitation": { "form": {} } })).unwrap();
        info
    }

    async fn create_elicitation(
        &self,
        asked: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = asked else { panic!("{asked:?}") };
        let number: u64 = message.parse().unwrap();
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "number": number })))
    }

    async fn on_progress(&self, notification: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let notification = format!("{:?} {}", notification.progress_token, notification.progress);
        if !self.progress.lock().unwrap().insert(notification.clone()) {
            let _ = self.reports.send(json!({ "twice": notification }));
        }
    }

    async fn on_resource_updated(
        &self,
        notification: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let notification = serde_json::to_value(notification).unwrap();
        let _ = self.reports.send(json!({ "updated": notification["_meta"]["number"] }));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        let _ = self.reports.send(json!({ "changed": true }));
    }
}

/// Starts a client that executes orders.
pub fn start(url: String, stream_refused: Arc<Notify>, session: bool, timeout: Duration) -> SdkChannels {
    let (orders, ordered) = mpsc::unbounded_channel();
    let (reports, lines) = mpsc::unbounded_channel();
    tokio::spawn(run(Opening { url, session, timeout, reports }, stream_refused, ordered));
    (orders, lines)
}

/// How clients are opened, and how long each of their requests may take.
struct Opening {
    url: String,
    session: bool,
    timeout: Duration,
    reports: mpsc::UnboundedSender<Value>,
}

async fn run(opening: Opening, stream_refused: Arc<Notify>, mut orders: mpsc::UnboundedReceiver<Value>) {
    let (reports, timeout) = (&opening.reports, opening.timeout);
    let open = async || {
        loop {
            match opened(&opening).await {
                Ok(client) => return client,
                Err(why) => drop(reports.send(json!({ "closed": why }))),
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    };
    let mut client = open().await;
    let mut failures = 0;
    loop {
        let order = tokio::select! {
            biased;
            // The SDK tries its first listening stream once and does not report a refusal.
            () = stream_refused.notified() => {
                let _ = reports.send(json!({ "renewed": "it is deaf" }));
                let _ = client.cancel().await;
                client = open().await;
                continue;
            }
            order = orders.recv() => order,
        };
        let Some(order) = order else { break };
        let done = match order["list"] == true {
            true => tools(&client, timeout).await,
            false => call(&client, &order, timeout).await,
        };
        let (mut line, failed) = match done {
            Ok(line) => (line, None),
            Err(why) if order["list"] == true => (json!({ "tools": null }), Some(why)),
            Err(why) => (json!({ "failed": why }), Some(why)),
        };
        line["number"] = order["number"].clone();
        line["progress"] = json!([]);
        let _ = reports.send(line);
        failures = if failed.is_some() { failures + 1 } else { 0 };
        if let Some(why) = failed {
            tokio::time::sleep(RETRY_DELAY).await;
            if failures >= MAX_CONSECUTIVE_FAILURES {
                let _ = reports.send(json!({ "renewed": why }));
                let _ = client.cancel().await;
                client = open().await;
                failures = 0;
            }
        }
    }
    let _ = client.cancel().await;
}

#[expect(deprecated, reason = "that is how it is done in a session")]
async fn opened(opening: &Opening) -> Result<Client, String> {
    let Opening { url, session, timeout, reports } = opening;
    let transport = StreamableHttpClientTransport::from_uri(url.clone());
    let lifecycle = match session {
        true => ClientLifecycleMode::Initialize,
        false => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
    };
    let watcher = RecordingHandler { reports: reports.clone(), progress: Arc::default() };
    let opening = tokio::time::timeout(*timeout, watcher.serve_with_lifecycle(transport, lifecycle));
    let client = opening.await.map_err(|_| "no answer")?.map_err(|error| error.to_string())?;
    if *session {
        let subscribing = tokio::time::timeout(*timeout, client.subscribe(SubscribeRequestParams::new(RESOURCE)));
        subscribing.await.map_err(|_| "no answer")?.map_err(|error| error.to_string())?;
    }
    Ok(client)
}

async fn call(client: &Client, order: &Value, timeout: Duration) -> Result<Value, String> {
    let name = order["name"].as_str().unwrap().to_owned();
    let params = CallToolRequestParams::new(name).with_arguments(order["arguments"].as_object().unwrap().clone());
    let called = tokio::time::timeout(timeout, client.call_tool(params)).await.map_err(|_| "no answer")?;
    let result = called.map_err(|error| error.to_string())?;
    Ok(json!({ "answered": result.content[0].as_text().unwrap().text }))
}

async fn tools(client: &Client, timeout: Duration) -> Result<Value, String> {
    let listed = tokio::time::timeout(timeout, client.list_all_tools()).await.map_err(|_| "no answer")?;
    let tools = listed.map_err(|error| error.to_string())?;
    Ok(json!({ "tools": tools.iter().map(|tool| &tool.name).collect::<Vec<_>>() }))
}
