//! The official Rust SDK as a client that is told what to do by lines, as the scripts of the others are.

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

use super::balancer::AGAIN;
use super::driver::RESOURCE;
use super::sdks::Lines;

/// How long a call may take.
const CALL: Duration = Duration::from_secs(8);
/// A client whose calls fail this often in a row is of no use any more.
const MOST_FAILURES: usize = 2;

/// Says what it is told.
#[derive(Clone)]
struct Watcher {
    said: mpsc::UnboundedSender<Value>,
    /// What it was told of the progress of calls. It handles all notices at once, so they come in no order.
    progress: Arc<Mutex<HashSet<String>>>,
}

type Client = RunningService<RoleClient, Watcher>;

impl ClientHandler for Watcher {
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

    async fn on_progress(&self, told: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let told = format!("{:?} {}", told.progress_token, told.progress);
        if !self.progress.lock().unwrap().insert(told.clone()) {
            let _ = self.said.send(json!({ "twice": told }));
        }
    }

    async fn on_resource_updated(&self, told: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        let told = serde_json::to_value(told).unwrap();
        let _ = self.said.send(json!({ "updated": told["_meta"]["number"] }));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        let _ = self.said.send(json!({ "changed": true }));
    }
}

/// A client that does what it is told.
pub fn start(url: String, deaf: Arc<Notify>, session: bool) -> Lines {
    let (orders, ordered) = mpsc::unbounded_channel();
    let (said, lines) = mpsc::unbounded_channel();
    tokio::spawn(run(url, deaf, session, ordered, said));
    (orders, lines)
}

async fn run(
    url: String,
    deaf: Arc<Notify>,
    session: bool,
    mut orders: mpsc::UnboundedReceiver<Value>,
    said: mpsc::UnboundedSender<Value>,
) {
    let open = async || {
        loop {
            match opened(&url, session, &said).await {
                Ok(client) => return client,
                Err(why) => drop(said.send(json!({ "closed": why }))),
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let mut client = open().await;
    let mut failures = 0;
    loop {
        let order = tokio::select! {
            biased;
            // It asks for its first stream once, and says nothing when that is refused.
            () = deaf.notified() => {
                let _ = said.send(json!({ "renewed": "it is deaf" }));
                let _ = client.cancel().await;
                client = open().await;
                continue;
            }
            order = orders.recv() => order,
        };
        let Some(order) = order else { break };
        let done = match order["list"] == true {
            true => tools(&client).await,
            false => call(&client, &order).await,
        };
        let (mut line, failed) = match done {
            Ok(line) => (line, None),
            Err(why) if order["list"] == true => (json!({ "tools": null }), Some(why)),
            Err(why) => (json!({ "failed": why }), Some(why)),
        };
        line["number"] = order["number"].clone();
        line["progress"] = json!([]);
        let _ = said.send(line);
        failures = if failed.is_some() { failures + 1 } else { 0 };
        if let Some(why) = failed {
            tokio::time::sleep(AGAIN).await;
            if failures >= MOST_FAILURES {
                let _ = said.send(json!({ "renewed": why }));
                let _ = client.cancel().await;
                client = open().await;
                failures = 0;
            }
        }
    }
    let _ = client.cancel().await;
}

#[expect(deprecated, reason = "that is how it is done in a session")]
async fn opened(url: &str, session: bool, said: &mpsc::UnboundedSender<Value>) -> Result<Client, String> {
    let transport = StreamableHttpClientTransport::from_uri(url.to_owned());
    let lifecycle = match session {
        true => ClientLifecycleMode::Initialize,
        false => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
    };
    let watcher = Watcher { said: said.clone(), progress: Arc::default() };
    let opening = tokio::time::timeout(CALL, watcher.serve_with_lifecycle(transport, lifecycle));
    let client = opening.await.map_err(|_| "no answer")?.map_err(|error| error.to_string())?;
    if session {
        let subscribing = tokio::time::timeout(CALL, client.subscribe(SubscribeRequestParams::new(RESOURCE)));
        subscribing.await.map_err(|_| "no answer")?.map_err(|error| error.to_string())?;
    }
    Ok(client)
}

async fn call(client: &Client, order: &Value) -> Result<Value, String> {
    let name = order["name"].as_str().unwrap().to_owned();
    let params = CallToolRequestParams::new(name).with_arguments(order["arguments"].as_object().unwrap().clone());
    let called = tokio::time::timeout(CALL, client.call_tool(params)).await.map_err(|_| "no answer")?;
    let result = called.map_err(|error| error.to_string())?;
    Ok(json!({ "answered": result.content[0].as_text().unwrap().text }))
}

async fn tools(client: &Client) -> Result<Value, String> {
    let listed = tokio::time::timeout(CALL, client.list_all_tools()).await.map_err(|_| "no answer")?;
    let tools = listed.map_err(|error| error.to_string())?;
    Ok(json!({ "tools": tools.iter().map(|tool| &tool.name).collect::<Vec<_>>() }))
}
