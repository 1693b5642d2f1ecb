//! `nodes`, and requests for other nodes: relayed like any other request, and gathered from all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, HeaderValue, Method as Verb, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute, JSON, rfc3339};
use super::{API_PREFIX, Console};
use crate::cluster::{Cluster, RelayOutcome, RelayedRequest};
use crate::identity::{Credential, Identity};
use crate::inbound::{Inbound, ResponseContent};
use crate::policy::Operator;
use crate::policy::OperatorRight::Look;
use crate::store::NodeId;

/// Nodes that were seen, with the time at which they were seen last.
#[derive(Debug, Default)]
pub(super) struct SeenNodes(Mutex<BTreeMap<String, SystemTime>>);

/// A request as it goes to another node.
#[derive(Debug, Clone)]
pub(super) struct NodeRequest {
    pub(super) verb: Verb,
    pub(super) path: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) body: bytes::Bytes,
    pub(super) if_match: Option<String>,
}

/// Names every node.
pub(super) const ALL_NODES: &str = "all";
/// How long another node may take to answer.
const NODE_TIME: Duration = Duration::from_secs(2);
/// Begin of the principal of operators whose requests are relayed.
const OPERATOR_PRINCIPAL: &str = "operator|";

pub(super) fn routes() -> Vec<ApiRoute> {
    vec![ApiRoute::get("nodes", Look, |request| Box::pin(nodes(request)))]
}

/// Who an operator is, on the way to another node.
fn operator_identity(operator: &Operator) -> Identity {
    let mut identity = Identity::new(format!("{OPERATOR_PRINCIPAL}{}", operator.name), Credential::Local);
    identity.roles = vec![operator.may.as_str().into()];
    identity
}

async fn nodes(request: AdminRequest) -> ApiResult {
    let (console, inbound) = (Arc::clone(&request.console), request.console.inbound()?);
    let own = own_row(&console, &inbound);
    let Some(cluster) = inbound.cluster.clone() else {
        return Ok(ApiAnswer::json(&json!({ "items": [own], "next": null, "store": null })));
    };
    let began = Instant::now();
    let members = cluster.store().members().await;
    let latency = members.is_ok().then(|| u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
    let store = json!({
        "address": cluster.store().location(), "connected": cluster.holds_lease(),
        "full": cluster.store().is_full(), "latency_us": latency,
    });
    if request.is_relayed {
        return Ok(ApiAnswer::json(&json!({ "items": [own], "next": null, "store": store })));
    }
    let mut items = vec![own];
    let others = members.unwrap_or_default().into_iter().filter(|node| **node.name() != *console.node());
    let asked = NodeRequest {
        verb: Verb::GET,
        path: "nodes".to_owned(),
        query: Vec::new(),
        body: bytes::Bytes::new(),
        if_match: None,
    };
    let answers = others.map(|node| ask(Arc::clone(&cluster), node, &request.operator, asked.clone()));
    let mut alive = vec![console.node()];
    for (node, answer) in futures_util::future::join_all(answers).await {
        let name = node.name().to_string();
        let row = answer.ok().and_then(|answer| answer["items"].get(0).cloned());
        console.seen_nodes.0.lock().insert(name.clone(), SystemTime::now());
        items.push(match row {
            Some(mut row) => {
                row["own"] = false.into();
                row["state"] = "alive".into();
                row
            }
            None => bare_row(&name, "alive", None),
        });
        alive.push(name);
    }
    let seen = console.seen_nodes.0.lock();
    let away = seen.iter().filter(|(name, _)| !alive.contains(name));
    items.extend(away.map(|(name, last)| bare_row(name, "away", Some(*last))));
    Ok(ApiAnswer::json(&json!({ "items": items, "next": null, "store": store })))
}

fn own_row(console: &Console, inbound: &Inbound) -> Value {
    let status = inbound.admin.status();
    let cluster = inbound.cluster.as_deref();
    let mut row = bare_row(&console.node(), "here", None);
    row["own"] = true.into();
    row["version"] = status.version.into();
    row["started"] = rfc3339(console.started_at).into();
    row["sessions"] = inbound.sessions.count().into();
    row["calls_in_flight"] = status.calls_in_flight.into();
    row["lease_us"] = json!(cluster.map(|cluster| u64::try_from(cluster.lease().as_micros()).unwrap_or_default()));
    row["relayed"] = json!(cluster.map(Cluster::relayed_requests));
    row["relaying"] = json!(cluster.map(Cluster::active_relay_count));
    row["adopted"] = json!(cluster.map(Cluster::takeovers));
    row
}

fn bare_row(name: &str, state: &str, since: Option<SystemTime>) -> Value {
    json!({
        "name": name, "own": false, "state": state, "lease_us": null, "version": null, "started": null,
        "sessions": null, "calls_in_flight": null, "relayed": null, "relaying": null, "adopted": null,
        "since": since.map(rfc3339),
    })
}

/// Asks another node for JSON.
async fn ask(
    cluster: Arc<Cluster>,
    node: NodeId,
    operator: &Operator,
    request: NodeRequest,
) -> (NodeId, Result<Value, ApiError>) {
    let relayed = relay(&cluster, &node, operator, request);
    let answer = match tokio::time::timeout(NODE_TIME, relayed).await {
        Err(_) => Err(silent(node.name())),
        Ok(answer) => answer.and_then(|answer| match answer.body {
            ResponseContent::Full(body) => serde_json::from_slice(&body).map_err(|_| silent(node.name())),
            _ => Err(silent(node.name())),
        }),
    };
    (node, answer)
}

fn silent(node: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "node_away", format!("{node} does not answer"))
}

async fn relay(cluster: &Arc<Cluster>, node: &NodeId, operator: &Operator, request: NodeRequest) -> ApiResult {
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&request.query).finish();
    let uri = format!("{API_PREFIX}/{}{}{query}", request.path, if query.is_empty() { "" } else { "?" });
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static(JSON));
    if let Some(tag) = request.if_match.and_then(|tag| HeaderValue::from_str(&tag).ok()) {
        headers.insert("if-match", tag);
    }
    let relayed = RelayedRequest {
        method: request.verb,
        uri: uri.parse().map_err(|_| ApiError::invalid("the address cannot be relayed"))?,
        headers,
        identity: Arc::new(operator_identity(operator)),
        peer: None,
        body: request.body,
    };
    match cluster.relay(node, relayed).await.map_err(|_| silent(node.name()))? {
        RelayOutcome::Complete(status, _, body) => {
            let body = if body.is_empty() { ResponseContent::Empty } else { ResponseContent::Full(body) };
            Ok(ApiAnswer { status, media_type: JSON, headers: Vec::new(), body })
        }
        _ => Err(silent(node.name())),
    }
}

impl Console {
    /// Serves a request at the node that it names; `None` if that is this one.
    pub(super) async fn serve_elsewhere(
        self: &Arc<Self>,
        node: &str,
        route: &ApiRoute,
        operator: &Operator,
        request: NodeRequest,
    ) -> Option<ApiResult> {
        if node == self.node() {
            return None;
        }
        let inbound = match self.inbound() {
            Ok(inbound) => inbound,
            Err(error) => return Some(Err(error)),
        };
        if node == ALL_NODES {
            if !route.gathers {
                return Some(Err(ApiError::invalid("this address does not take node=all")));
            }
            // The answer of this node alone is that of all.
            inbound.cluster.as_ref()?;
            return None;
        }
        let Some(cluster) = &inbound.cluster else {
            let message = format!("there is no node {node:?}: this gateway is alone");
            return Some(Err(ApiError::not_found(message)));
        };
        if route.path == "live" {
            let message = "events of another node are not relayed; open its own console";
            return Some(Err(ApiError::invalid(message)));
        }
        Some(match cluster.find_node(node).await {
            Ok(Some(found)) => match tokio::time::timeout(NODE_TIME, relay(cluster, &found, operator, request)).await {
                Ok(answer) => answer,
                Err(_) => Err(silent(node)),
            },
            Ok(None) => Err(ApiError::not_found(format!("there is no node {node:?}"))),
            Err(_) => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store_away", "the store is away")),
        })
    }

    /// Adds the answers of the other nodes to that of this one.
    pub(super) async fn gather(
        self: &Arc<Self>,
        answer: ApiAnswer,
        operator: &Operator,
        request: NodeRequest,
    ) -> ApiResult {
        let Some(cluster) = self.inbound()?.cluster.clone() else { return Ok(answer) };
        let ResponseContent::Full(body) = &answer.body else { return Ok(answer) };
        let mut all: Value = serde_json::from_slice(body).unwrap_or_default();
        let members = cluster.store().members().await.unwrap_or_default();
        let others = members.into_iter().filter(|node| **node.name() != *self.node());
        let asked = others.map(|node| ask(Arc::clone(&cluster), node, operator, request.clone()));
        for (node, other) in futures_util::future::join_all(asked).await {
            if let Ok(other) = other {
                merge(&mut all, &other, node.name());
            }
        }
        Ok(ApiAnswer::json(&all))
    }
}

/// Adds the answer of another node: items of lists, and sums of figures.
fn merge(all: &mut Value, other: &Value, node: &str) {
    for key in ["items", "attention"] {
        let items = all.get_mut(key).and_then(Value::as_array_mut);
        if let (Some(items), Some(more)) = (items, other[key].as_array()) {
            items.extend(more.iter().cloned());
        }
    }
    if let Some(nodes) = all.get_mut("nodes").and_then(Value::as_array_mut) {
        nodes.push(node.into());
        for key in ["sessions", "streams", "calls_in_flight", "parked"] {
            let sum =
                all["figures"][key].as_u64().unwrap_or_default() + other["figures"][key].as_u64().unwrap_or_default();
            all["figures"][key] = sum.into();
        }
        let rate = |value: &Value| value["figures"]["calls_per_s"].as_f64().unwrap_or_default();
        all["figures"]["calls_per_s"] = json!(rate(all) + rate(other));
    }
}
