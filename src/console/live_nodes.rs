//! The event stream of all nodes: that of this one, and what the others publish, by streams that they relay.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use super::Console;
use super::api::{ApiAnswer, ApiError, ApiResult};
use super::nodes::{NodeRequest, bare_row, open_relay};
use crate::cluster::{Cluster, RelayedBody};
use crate::http::sse::{SseDecoder, SseEvent};
use crate::inbound::ResponseContent;
use crate::policy::Operator;
use crate::store::NodeId;

/// Rows of calls that are taken of each node in a second; further ones are told as lost.
const MAX_NODE_ROWS: usize = 50;
/// How often it is looked for nodes that came or went.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(1);
/// Largest event of another node.
const MAX_EVENT_BYTES: usize = 1 << 20;
/// Chunks of events that wait for the reader; nodes wait for it beyond.
const QUEUE: usize = 16;
/// Events of other nodes that are passed on. Figures and what needs attention are gathered by `overview`.
const PASSED_ON: [&str; 6] = ["call", "gone", "lost", "question", "server", "session"];

/// The nodes whose events are being read.
type ReadNodes = Arc<Mutex<BTreeSet<String>>>;

/// What one stream of all nodes needs.
#[derive(Clone)]
struct NodesStream {
    console: Arc<Console>,
    cluster: Arc<Cluster>,
    operator: Operator,
    request: NodeRequest,
    out: mpsc::Sender<Bytes>,
    reading: ReadNodes,
}

/// Adds the events of all other nodes to the stream of this one.
pub(super) fn join_streams(
    console: &Arc<Console>,
    cluster: &Arc<Cluster>,
    operator: &Operator,
    (mut request, is_resumed): (NodeRequest, bool),
    own: ApiAnswer,
) -> ApiResult {
    let ResponseContent::Parts(mut parts) = own.body else {
        return Err(ApiError::invalid("this is no stream"));
    };
    request.query.retain(|(key, _)| key != "node");
    let (out, joined) = mpsc::channel(QUEUE);
    let (console, cluster, operator) = (Arc::clone(console), Arc::clone(cluster), operator.clone());
    let closing = console.closing();
    let stream = NodesStream { console, cluster, operator, request, out, reading: ReadNodes::default() };
    tokio::spawn(async move {
        let own = async {
            while let Some(part) = parts.recv().await {
                if stream.out.send(part).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = own => {}
            () = stream.follow(is_resumed) => {}
            () = stream.out.closed() => {}
            () = closing.cancelled() => {}
        }
    });
    Ok(ApiAnswer { body: ResponseContent::Parts(joined), ..own })
}

fn frame(name: &str, data: &str) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

impl NodesStream {
    /// Reads the events of each node while it is a member.
    async fn follow(&self, is_resumed: bool) {
        if is_resumed {
            let lost = json!({ "count": null, "why": "events of other nodes are not kept for those who come back" });
            let _ = self.out.send(frame("lost", &lost.to_string())).await;
        }
        let mut interval = tokio::time::interval(MEMBERS_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let own = self.console.node();
            for node in self.console.refresh_nodes(&self.cluster).await {
                let is_new = **node.name() != *own && self.reading.lock().insert(node.name().to_string());
                if is_new {
                    tokio::spawn(self.clone().read_while_open(node));
                }
            }
        }
    }

    async fn read_while_open(self, node: NodeId) {
        let closing = self.console.closing();
        tokio::select! {
            () = self.read(&node) => {}
            () = self.out.closed() => {}
            // The stream of this node's client ends when nobody holds its sender any more.
            () = closing.cancelled() => {}
        }
        self.reading.lock().remove(&**node.name());
    }

    /// Passes the events of a node on until it ends its stream or is lost.
    async fn read(&self, node: &NodeId) {
        let Ok(mut body) = open_relay(&self.cluster, node, &self.operator, self.request.clone()).await else { return };
        let alive = bare_row(node.name(), "alive", None);
        let _ = self.out.send(frame("node", &alive.to_string())).await;
        self.pass_on(node, &mut body).await;
        let away = bare_row(node.name(), "away", Some(std::time::SystemTime::now()));
        let _ = self.out.send(frame("node", &away.to_string())).await;
    }

    async fn pass_on(&self, node: &NodeId, body: &mut RelayedBody) {
        let mut decoder = SseDecoder::new(MAX_EVENT_BYTES);
        let (mut second, mut rows, mut lost) = (Instant::now(), 0, 0_u64);
        let mut tick = tokio::time::interval(MEMBERS_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let piece = tokio::select! {
                piece = poll_fn(|context| body.poll_next(context)) => piece,
                _ = tick.tick() => Some(Bytes::new()),
            };
            let Some(piece) = piece else { return };
            if second.elapsed() >= MEMBERS_INTERVAL {
                (second, rows) = (Instant::now(), 0);
                let count = std::mem::take(&mut lost);
                let why = format!("more than {MAX_NODE_ROWS} rows a second of {}", node.name());
                let told = json!({ "count": count, "why": why }).to_string();
                if count > 0 && self.out.send(frame("lost", &told)).await.is_err() {
                    return;
                }
            }
            let Ok(events) = decoder.push(&piece) else { return };
            for event in events {
                let is_row = event.name.as_deref() == Some("call");
                rows += usize::from(is_row);
                match is_row && rows > MAX_NODE_ROWS {
                    true => lost += 1,
                    false if self.send(&event).await.is_err() => return,
                    false => {}
                }
            }
        }
    }

    async fn send(&self, event: &SseEvent) -> Result<(), ()> {
        let name = event.name.as_deref().unwrap_or_default();
        match PASSED_ON.contains(&name) {
            // Without its id, which counts at the other node only.
            true => self.out.send(frame(name, &event.data)).await.map_err(|_| ()),
            false => Ok(()),
        }
    }
}
