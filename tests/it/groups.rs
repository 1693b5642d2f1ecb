//! Groups of several upstreams, in the hands of the test: what they show together, that clients never
//! meet, and that one upstream's trouble is nobody else's.

mod aggregation;
mod catalog;
mod failure;
mod isolation;
mod listening;
mod messages;
mod ordering;
mod real;
mod reload;
mod sessions;
mod takeover;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rialto::client::{Client, ClientOptions, Host, ServerRequestFuture};
use rialto::dialect::Revision;
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::mcp_client::{ConnectionSettings, Target};
use rialto::protocol::{ErrorObject, Method, Notice, Notification, Raw, code};
use rialto::upstream::{SpecKind, Upstream, UpstreamSpec};
use serde_json::{Value, json};

use crate::harness::{PATIENCE, Rialto, until};
use crate::puppet::{Puppet, Speaks};

/// How a client reaches the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Http,
    Sse,
    PerRequest,
}

pub const WAYS: [Way; 3] = [Way::Http, Way::Sse, Way::PerRequest];

/// Remembers what a client hears, and answers in its name.
pub struct Ear {
    name: String,
    heard: Mutex<Vec<Notification>>,
    asked: Mutex<Vec<Value>>,
}

impl Host for Ear {
    fn capabilities(&self) -> Raw {
        Raw::of(&json!({ "sampling": {}, "elicitation": { "form": {} }, "roots": { "listChanged": true } }))
    }

    fn notice(&self, notification: &Notification) {
        self.heard.lock().unwrap().push(notification.clone());
    }

    fn ask<'a>(&'a self, method: &'a Method, params: Option<&'a Raw>) -> ServerRequestFuture<'a> {
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
        self.asked.lock().unwrap().push(json!({ "method": method.as_str(), "params": params }));
        Box::pin(async move { answer.map(|answer| Raw::of(&answer)) })
    }
}

impl Ear {
    fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.into(), heard: Mutex::default(), asked: Mutex::default() })
    }

    /// The parameters of the notices of a kind, so far.
    fn heard(&self, notice: &Notice) -> Vec<Value> {
        let heard = self.heard.lock().unwrap();
        let of_kind = heard.iter().filter(|heard| heard.notice == *notice);
        of_kind.map(|heard| heard.params.as_ref().map(value).unwrap_or_default()).collect()
    }

    fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }
}

fn value(raw: &Raw) -> Value {
    raw.read().unwrap()
}

/// An upstream that is found out about quickly.
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

fn spec(puppet: &Puppet) -> UpstreamSpec {
    upstream(&puppet.name, puppet.target())
}

/// All upstreams in the default group, in order.
fn together(upstreams: Vec<UpstreamSpec>) -> GatewayConfig {
    let plan = GroupConfig::new(DEFAULT_GROUP, upstreams.iter().map(|spec| Arc::clone(&spec.name)));
    GatewayConfig { upstreams, groups: vec![plan] }
}

async fn gateway(layout: GatewayConfig) -> Rialto {
    Rialto::with(|settings| settings.gateway = layout).await
}

/// A gateway with these puppets in the default group.
async fn group(puppets: &[&Puppet]) -> Rialto {
    gateway(together(puppets.iter().map(|puppet| spec(puppet)).collect())).await
}

/// Puppets of every kind.
async fn every_kind() -> [Puppet; 4] {
    [
        Puppet::start("web", Speaks::Http).await,
        Puppet::start("old", Speaks::Sse).await,
        Puppet::start("new", Speaks::PerRequest).await,
        Puppet::start("child", Speaks::Stdio).await,
    ]
}

async fn at(rialto: &Rialto, way: Way, group: &str, name: &str) -> (Client, Arc<Ear>) {
    let (path, revision) = match way {
        Way::Http => ("/mcp", Revision::NEWEST_HANDSHAKE),
        Way::Sse => ("/sse", Revision::NEWEST_HANDSHAKE),
        Way::PerRequest => ("/mcp", Revision::NEWEST),
    };
    let mut target = Target::url(&rialto.url(&format!("{path}{group}"))).unwrap();
    if let (Way::Sse, Target::Url(address)) = (way, &mut target) {
        address.transport = Some(rialto::mcp_client::HttpTransport::Sse);
    }
    let ear = Ear::new(name);
    let settings = ConnectionSettings { revision: Some(revision), ..ConnectionSettings::default() };
    let options = ClientOptions { settings, host: Arc::clone(&ear) as _, ..ClientOptions::default() };
    (in_time("connected", Client::connect(&target, options)).await.unwrap(), ear)
}

async fn client(rialto: &Rialto, way: Way, name: &str) -> (Client, Arc<Ear>) {
    at(rialto, way, "", name).await
}

async fn in_time<T>(what: &str, waited: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, waited).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// Makes a request that has to work.
async fn ask(client: &Client, method: &str, params: Value) -> Value {
    let answered = in_time(method, client.request(method.into(), Some(Raw::of(&params)))).await;
    value(&answered.unwrap_or_else(|error| panic!("{method} {params}: {error}")))
}

/// Makes a request that has to fail, and gives the code and the whole error.
async fn refused(client: &Client, method: &str, params: Value) -> (i64, String) {
    let answered = in_time(method, client.request(method.into(), Some(Raw::of(&params)))).await;
    let error = answered.err().unwrap_or_else(|| panic!("{method} {params} works"));
    let object = error.object().unwrap_or_else(|| panic!("{error}"));
    (object.code(), format!("{} {}", object.message(), object.data().map(|data| data.to_string()).unwrap_or_default()))
}

/// Calls a puppet's tool and gives its report.
async fn call(client: &Client, tool: &str, arguments: Value) -> Value {
    let result = ask(client, "tools/call", json!({ "name": tool, "arguments": arguments })).await;
    report(&result)
}

fn report(result: &Value) -> Value {
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no report: {result}"));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A member of every item of a list.
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

/// Waits until nothing is lent and no session is there but those that the catalog keeps.
async fn quiet(rialto: &Rialto, puppets: &[&Puppet]) {
    until("nothing is lent", || upstreams(rialto).values().all(|upstream| upstream.lease_count() == 0)).await;
    for puppet in puppets {
        let own = usize::from(puppet.speaks() != Speaks::PerRequest);
        until(&format!("{} has only the catalog's session", puppet.name), || puppet.sessions() == own).await;
    }
}
