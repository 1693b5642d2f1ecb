//! Groups of several scripted upstreams: merged catalogs, isolation between clients, and failure isolation
//! between upstreams.

mod aggregation;
mod caller_leases;
mod catalog;
mod header_mirrors;
mod hostile_servers;
mod isolation;
mod legs;
mod listening;
mod liveness;
mod messages;
mod ordering;
mod reload;
mod result_caching;
mod sdk_servers;
mod session_resumption;
mod sessions;
mod shared_subscriptions;
mod undeclared;
mod upstream_failure;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rialto::client::{Client, ClientOptions, Host, ServerRequestFuture};
use rialto::dialect::Revision;
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::mcp_client::{ConnectionSettings, Target};
use rialto::protocol::{ErrorObject, Method, Notification, NotificationMethod, Raw, code};
use rialto::upstream::{SpecKind, Upstream, UpstreamSpec};
use serde_json::{Value, json};

use crate::harness::{Rialto, TEST_TIMEOUT, until};
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// Transport and era of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientTransport {
    Http,
    Sse,
    PerRequest,
}

pub const CLIENT_TRANSPORTS: [ClientTransport; 3] =
    [ClientTransport::Http, ClientTransport::Sse, ClientTransport::PerRequest];

/// Client host that records notifications and answers server requests with its own name.
pub struct RecordingHost {
    name: String,
    notifications: Mutex<Vec<Notification>>,
    server_requests: Mutex<Vec<Value>>,
}

impl Host for RecordingHost {
    fn capabilities(&self) -> Raw {
        Raw::of(&json!({ "sampling": {}, "elicitation": { "form": {} }, "roots": { "listChanged": true } }))
    }

    fn on_notification(&self, notification: &Notification) {
        self.notifications.lock().unwrap().push(notification.clone());
    }

    fn on_server_request<'a>(&'a self, method: &'a Method, params: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        let params = params.map(value).unwrap_or_default();
        let name = &self.name;
        let answer = match method.as_str() {
            "elicitation/create" => {
                let content = json!({ "name": name, "sure": true, "check": true, "to": params["message"] });
                Ok(json!({ "action": "accept", "content": content }))
            }
            "sampling/createMessage" => {
                let content = json!({ "type": "text", "text": format!("thoughts of {name}") });
                Ok(json!({ "role": "assistant", "model": "none", "content": content }))
            }
            "roots/list" => Ok(json!({ "roots": [{ "uri": format!("file:///{name}") }] })),
            other => Err(ErrorObject::new(code::METHOD_NOT_FOUND, other)),
        };
        self.server_requests.lock().unwrap().push(json!({ "method": method.as_str(), "params": params }));
        Box::pin(async move { answer.map(|answer| Raw::of(&answer).into()) })
    }
}

impl RecordingHost {
    fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.into(), notifications: Mutex::default(), server_requests: Mutex::default() })
    }

    /// Parameters of the notifications of one method received so far.
    fn notifications(&self, notice: &NotificationMethod) -> Vec<Value> {
        let notified = self.notifications.lock().unwrap();
        let of_kind = notified.iter().filter(|notified| notified.method == *notice);
        of_kind.map(|notified| notified.params.as_ref().map(value).unwrap_or_default()).collect()
    }

    fn server_requests(&self) -> Vec<Value> {
        self.server_requests.lock().unwrap().clone()
    }
}

fn value(raw: &Raw) -> Value {
    raw.read().unwrap()
}

/// Upstream with short timeouts.
fn upstream(name: &str, target: Target) -> UpstreamSpec {
    let mut spec = UpstreamSpec::new(name, SpecKind::Target(target));
    spec.settings = ConnectionSettings {
        stop_timeout: Duration::from_millis(500),
        ping_interval: Some(Duration::from_millis(200)),
        discovery_timeout: Duration::from_secs(2),
        ..ConnectionSettings::default()
    };
    spec.lease_idle_timeout = Duration::from_millis(500);
    spec
}

fn spec(scripted: &ScriptedServer) -> UpstreamSpec {
    upstream(&scripted.name, scripted.target())
}

/// Configuration with all upstreams in the default group, in this order.
fn default_group_of(upstreams: Vec<UpstreamSpec>) -> GatewayConfig {
    let group_config = GroupConfig::new(DEFAULT_GROUP, upstreams.iter().map(|spec| Arc::clone(&spec.name)));
    GatewayConfig { upstreams, groups: vec![group_config] }
}

async fn gateway(config: GatewayConfig) -> Rialto {
    Rialto::with(|settings| settings.gateway = config).await
}

/// Gateway with these scripted servers in the default group.
async fn group(scripted_servers: &[&ScriptedServer]) -> Rialto {
    gateway(default_group_of(scripted_servers.iter().map(|scripted| spec(scripted)).collect())).await
}

/// One scripted server per transport.
async fn one_of_each_transport() -> [ScriptedServer; 4] {
    [
        ScriptedServer::start("web", ServerTransport::Http).await,
        ScriptedServer::start("old", ServerTransport::Sse).await,
        ScriptedServer::start("new", ServerTransport::PerRequest).await,
        ScriptedServer::start("child", ServerTransport::Stdio).await,
    ]
}

async fn at(
    rialto: &Rialto,
    client_transport: ClientTransport,
    group: &str,
    name: &str,
) -> (Client, Arc<RecordingHost>) {
    let (path, revision) = match client_transport {
        ClientTransport::Http => ("/mcp", Revision::NEWEST_HANDSHAKE),
        ClientTransport::Sse => ("/sse", Revision::NEWEST_HANDSHAKE),
        ClientTransport::PerRequest => ("/mcp", Revision::NEWEST),
    };
    let mut target = Target::url(&rialto.url(&format!("{path}{group}"))).unwrap();
    if let (ClientTransport::Sse, Target::Url(address)) = (client_transport, &mut target) {
        address.transport = Some(rialto::mcp_client::HttpTransport::Sse);
    }
    let host = RecordingHost::new(name);
    let settings = ConnectionSettings { revision: Some(revision), ..ConnectionSettings::default() };
    let options = ClientOptions { settings, host: Arc::clone(&host) as _, ..ClientOptions::default() };
    (within_timeout("connected", Client::connect(&target, options)).await.unwrap(), host)
}

async fn client(rialto: &Rialto, client_transport: ClientTransport, name: &str) -> (Client, Arc<RecordingHost>) {
    at(rialto, client_transport, "", name).await
}

async fn within_timeout<T>(what: &str, waited: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, waited).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Sends a request that must succeed.
async fn ask(client: &Client, method: &str, params: Value) -> Value {
    let answered = within_timeout(method, client.request(method.into(), Some(Raw::of(&params)))).await;
    value(&answered.unwrap_or_else(|error| panic!("{method} {params}: {error}")))
}

/// Sends a request that must fail; returns the error code and the error with its data.
async fn refused(client: &Client, method: &str, params: Value) -> (i64, String) {
    let answered = within_timeout(method, client.request(method.into(), Some(Raw::of(&params)))).await;
    let error = answered.err().unwrap_or_else(|| panic!("{method} {params} works"));
    let object = error.object().unwrap_or_else(|| panic!("{error}"));
    (object.code(), format!("{} {}", object.message(), object.data().map(|data| data.to_string()).unwrap_or_default()))
}

/// Calls a tool of a scripted server and returns its report.
async fn call(client: &Client, tool: &str, arguments: Value) -> Value {
    let result = ask(client, "tools/call", json!({ "name": tool, "arguments": arguments })).await;
    report(&result)
}

fn report(result: &Value) -> Value {
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no report: {result}"));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// One member of every item of a list.
fn column(result: &Value, list: &str, member: &str) -> Vec<String> {
    let items = result[list].as_array().unwrap_or_else(|| panic!("no {list}: {result}"));
    items.iter().map(|item| item[member].as_str().unwrap().to_owned()).collect()
}

async fn tools(client: &Client) -> Vec<String> {
    column(&ask(client, "tools/list", json!({})).await, "tools", "name")
}

fn upstreams(rialto: &Rialto) -> HashMap<String, Arc<Upstream>> {
    rialto.inbound.gateway.upstreams().into_iter().map(|upstream| (upstream.name().to_string(), upstream)).collect()
}

/// Waits until no lease is held and every server has only the session of its catalog connection.
async fn wait_idle(rialto: &Rialto, scripted_servers: &[&ScriptedServer]) {
    until("no lease is held", || upstreams(rialto).values().all(|upstream| upstream.lease_count() == 0)).await;
    for scripted in scripted_servers {
        let own = usize::from(scripted.transport() != ServerTransport::PerRequest);
        until(&format!("{} has only the catalog's session", scripted.name), || scripted.sessions() == own).await;
    }
}
