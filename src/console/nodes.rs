//! `nodes`, and requests for other nodes: relayed like any other request, and gathered from all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, HeaderValue, Method as Verb, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute, JSON, rfc3339};
use super::{API_PREFIX, Console};
use crate::cluster::{Cluster, RelayOutcome, RelayedBody, RelayedRequest, Takeover};
use crate::identity::{Credential, Identity};
use crate::inbound::{Inbound, ResponseContent};
use crate::policy::Operator;
use crate::policy::OperatorRight::Look;
use crate::store::NodeId;

/// Nodes that were seen.
#[derive(Debug, Default)]
pub(super) struct SeenNodes(Mutex<BTreeMap<String, SeenNode>>);

#[derive(Debug, Clone, Copy)]
struct SeenNode {
    /// When it held its lease last.
    last: SystemTime,
    is_alive: bool,
}

impl SeenNodes {
    /// Notes which nodes hold their leases now.
    fn see(&self, members: &[NodeId]) {
        let (mut seen, now) = (self.0.lock(), SystemTime::now());
        for node in seen.values_mut() {
            node.is_alive = false;
        }
        for node in members {
            seen.insert(node.name().to_string(), SeenNode { last: now, is_alive: true });
        }
        let is_recent = |node: &SeenNode| now.duration_since(node.last).is_ok_and(|time| time < AWAY_TIME);
        seen.retain(|_, node| is_recent(node));
    }

    /// The names of nodes that hold no lease any more, and since when.
    pub(super) fn silent(&self) -> Vec<(String, SystemTime)> {
        let seen = self.0.lock();
        seen.iter().filter(|(_, node)| !node.is_alive).map(|(name, node)| (name.clone(), node.last)).collect()
    }

    /// The same for answers of all nodes.
    pub(super) fn away(&self) -> Vec<Value> {
        self.silent().iter().map(|(name, last)| json!({ "node": name, "since": rfc3339(*last) })).collect()
    }
}

/// A request as it goes to another node.
#[derive(Debug, Clone)]
pub(super) struct NodeRequest {
    pub(super) verb: Verb,
    pub(super) path: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) body: bytes::Bytes,
    pub(super) if_match: Option<String>,
}

/// Media types of answers that are relayed.
const MEDIA_TYPES: [&str; 3] = [JSON, "application/octet-stream", "text/plain; charset=utf-8"];
/// The route of the event stream.
pub(super) const LIVE: &str = "live";
/// Asks a node for its own row alone.
const OWN_ONLY: &str = "own";
/// Names every node.
pub(super) const ALL_NODES: &str = "all";
/// How long another node may take to answer.
const NODE_TIME: Duration = Duration::from_secs(2);
/// How long a node that is gone is told of.
const AWAY_TIME: Duration = Duration::from_secs(600);
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
    let members = read_members(&cluster).await;
    let latency = members.is_some().then(|| u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
    let store = json!({
        "address": cluster.store().location(), "connected": cluster.holds_lease(),
        "full": cluster.store().is_full(), "latency_us": latency,
    });
    if request.query(OWN_ONLY).is_some() {
        return Ok(ApiAnswer::json(&json!({ "items": [own], "next": null, "store": store })));
    }
    let mut items = vec![own];
    if let Some(members) = &members {
        console.seen_nodes.see(members);
    }
    let others = members.unwrap_or_default().into_iter().filter(|node| **node.name() != *console.node());
    let asked = NodeRequest {
        verb: Verb::GET,
        path: "nodes".to_owned(),
        query: vec![(OWN_ONLY.to_owned(), "1".to_owned())],
        body: bytes::Bytes::new(),
        if_match: None,
    };
    // What another node waits for has to fit into what is waited for it.
    let limit = if request.is_relayed { NODE_TIME / 2 } else { NODE_TIME };
    let answers = others.map(|node| ask_within(limit, Arc::clone(&cluster), node, &request.operator, asked.clone()));
    for (node, answer) in futures_util::future::join_all(answers).await {
        let name = node.name().to_string();
        let row = answer.ok().and_then(|answer| answer["items"].get(0).cloned());
        items.push(match row {
            Some(mut row) => {
                row["own"] = false.into();
                row["state"] = "alive".into();
                row
            }
            None => bare_row(&name, "alive", None),
        });
    }
    items.extend(console.seen_nodes.silent().iter().map(|(name, last)| bare_row(name, "away", Some(*last))));
    Ok(ApiAnswer::json(&json!({ "items": items, "next": null, "store": store })))
}

/// The rows of all nodes as this one sees them: its own, those that hold their leases, and those that are away.
pub(super) fn rows(console: &Console, inbound: &Inbound, members: &[NodeId]) -> Vec<Value> {
    let others = members.iter().filter(|node| **node.name() != *console.node());
    let others = others.map(|node| bare_row(node.name(), "alive", None));
    let away = console.seen_nodes.silent();
    let away = away.iter().map(|(name, last)| bare_row(name, "away", Some(*last)));
    [own_row(console, inbound)].into_iter().chain(others).chain(away).collect()
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
    row["relays"] = cluster.map(Cluster::client_relays).unwrap_or_default().iter().map(relay_json).collect();
    row["takeovers"] = cluster.map(Cluster::recent_takeovers).unwrap_or_default().iter().map(takeover_json).collect();
    row
}

fn relay_json((to, requests): &(String, u64)) -> Value {
    json!({ "to": to, "requests": requests })
}

fn takeover_json(takeover: &Takeover) -> Value {
    let from = takeover.from.as_ref().map(|node| node.name().to_string());
    json!({ "at": rfc3339(takeover.at), "session": takeover.session.replace('#', "-"), "from": from })
}

pub(super) fn bare_row(name: &str, state: &str, since: Option<SystemTime>) -> Value {
    json!({
        "name": name, "own": false, "state": state, "lease_us": null, "version": null, "started": null,
        "sessions": null, "calls_in_flight": null, "relayed": null, "relaying": null, "adopted": null,
        "relays": [], "takeovers": [],
        "since": since.map(rfc3339),
    })
}

/// Asks another node for JSON.
pub(super) async fn ask(
    cluster: Arc<Cluster>,
    node: NodeId,
    operator: &Operator,
    request: NodeRequest,
) -> (NodeId, Result<Value, ApiError>) {
    ask_within(NODE_TIME, cluster, node, operator, request).await
}

async fn ask_within(
    limit: Duration,
    cluster: Arc<Cluster>,
    node: NodeId,
    operator: &Operator,
    request: NodeRequest,
) -> (NodeId, Result<Value, ApiError>) {
    let relayed = relay(&cluster, &node, operator, request);
    let answer = match tokio::time::timeout(limit, relayed).await {
        Err(_) => Err(silent(node.name())),
        Ok(answer) => answer.and_then(|answer| match answer.body {
            ResponseContent::Full(body) => serde_json::from_slice(&body).map_err(|_| silent(node.name())),
            _ => Err(silent(node.name())),
        }),
    };
    (node, answer)
}

/// The nodes that hold their leases; `None` where the store does not say in time.
async fn read_members(cluster: &Cluster) -> Option<Vec<NodeId>> {
    tokio::time::timeout(NODE_TIME, cluster.store().members()).await.ok()?.ok()
}

fn silent(node: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "node_away", format!("{node} does not answer"))
}

/// Opens a stream of another node.
pub(super) async fn open_relay(
    cluster: &Arc<Cluster>,
    node: &NodeId,
    operator: &Operator,
    request: NodeRequest,
) -> Result<RelayedBody, ApiError> {
    let relayed = relayed_request(operator, request)?;
    let opened = tokio::time::timeout(NODE_TIME, cluster.relay(node, relayed)).await;
    match opened.map_err(|_| silent(node.name()))?.map_err(|_| silent(node.name()))? {
        RelayOutcome::Streaming(StatusCode::OK, _, body) => Ok(body),
        _ => Err(silent(node.name())),
    }
}

async fn relay(cluster: &Arc<Cluster>, node: &NodeId, operator: &Operator, request: NodeRequest) -> ApiResult {
    let relayed = relayed_request(operator, request)?;
    match cluster.relay(node, relayed).await.map_err(|_| silent(node.name()))? {
        RelayOutcome::Complete(status, given, body) => {
            let body = if body.is_empty() { ResponseContent::Empty } else { ResponseContent::Full(body) };
            let text = |name: &str| given.get(name).and_then(|value| value.to_str().ok());
            let media_type = text("content-type").unwrap_or_default();
            let media_type = MEDIA_TYPES.into_iter().find(|known| *known == media_type).unwrap_or(JSON);
            let disposition = text("content-disposition").map(|value| ("content-disposition", value.to_owned()));
            Ok(ApiAnswer { status, media_type, headers: disposition.into_iter().collect(), body })
        }
        _ => Err(silent(node.name())),
    }
}

fn relayed_request(operator: &Operator, request: NodeRequest) -> Result<RelayedRequest, ApiError> {
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&request.query).finish();
    let uri = format!("{API_PREFIX}/{}{}{query}", request.path, if query.is_empty() { "" } else { "?" });
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static(JSON));
    if let Some(tag) = request.if_match.and_then(|tag| HeaderValue::from_str(&tag).ok()) {
        headers.insert("if-match", tag);
    }
    Ok(RelayedRequest {
        method: request.verb,
        uri: uri.parse().map_err(|_| ApiError::invalid("the address cannot be relayed"))?,
        headers,
        identity: Arc::new(operator_identity(operator)),
        peer: None,
        body: request.body,
    })
}

impl Console {
    /// The nodes that hold their leases now; none while the store is away.
    pub(super) async fn refresh_nodes(&self, cluster: &Cluster) -> Vec<NodeId> {
        let members = read_members(cluster).await;
        if let Some(members) = &members {
            self.seen_nodes.see(members);
        }
        members.unwrap_or_default()
    }

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
            let cluster = inbound.cluster.as_ref()?;
            // A stream is opened here first, and those of the others are added to it.
            return match route.path == LIVE {
                true => None,
                false => Some(self.serve_everywhere(cluster, route, operator, request).await),
            };
        }
        let Some(cluster) = &inbound.cluster else {
            let message = format!("there is no node {node:?}: this gateway is alone");
            return Some(Err(ApiError::not_found(message)));
        };
        if route.path == LIVE {
            let message = "events of one other node are not relayed; node=all has those of all";
            return Some(Err(ApiError::invalid(message)));
        }
        let served = async {
            match cluster.find_node(node).await {
                Ok(Some(found)) => relay(cluster, &found, operator, request).await,
                // With a node its calls are gone, and links to them lead nowhere.
                Ok(None) if route.path.starts_with("calls/") => {
                    let message = format!("the node of this call, {node}, is away, and its calls with it");
                    Err(ApiError::new(StatusCode::GONE, "not_kept", message))
                }
                Ok(None) => Err(ApiError::not_found(format!("there is no node {node:?}"))),
                Err(_) => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store_away", "the store is away")),
            }
        };
        Some(tokio::time::timeout(NODE_TIME, served).await.unwrap_or_else(|_| Err(silent(node))))
    }
}
