//! Round-robin load balancing in the test client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::{HttpRequest, HttpResponse, SendFailure, TEST_TIMEOUT};

/// Sends each request to the next node. A request that was not sent goes to the following node; one that may have
/// been received is not retried.
pub struct RoundRobinBalancer {
    nodes: Vec<(SocketAddr, AtomicBool)>,
    turn: AtomicUsize,
}

/// Delay before a refused request is sent again.
pub const RETRY_DELAY: Duration = Duration::from_millis(100);

impl RoundRobinBalancer {
    pub fn new(nodes: Vec<SocketAddr>) -> Arc<Self> {
        let nodes = nodes.into_iter().map(|node| (node, AtomicBool::new(false))).collect();
        Arc::new(Self { nodes, turn: AtomicUsize::new(0) })
    }

    /// Addresses of all nodes, excluded ones too.
    pub fn nodes(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|(node, _)| *node).collect()
    }

    /// Takes a node out of the rotation, or puts it back.
    pub fn set_excluded(&self, node: SocketAddr, out: bool) {
        let (_, left_out) = self.nodes.iter().find(|(other, _)| *other == node).unwrap();
        left_out.store(out, Ordering::SeqCst);
    }

    fn next(&self) -> SocketAddr {
        loop {
            let turn = self.turn.fetch_add(1, Ordering::SeqCst);
            let (node, out) = &self.nodes[turn % self.nodes.len()];
            if !out.load(Ordering::SeqCst) {
                return *node;
            }
        }
    }

    /// Session, stream and call counts from `/admin/status` of all nodes.
    pub async fn statuses(&self) -> Vec<serde_json::Value> {
        let mut statuses = Vec::new();
        for (node, _) in &self.nodes {
            let (_, mut status) = HttpRequest::to(*node, "GET", "/admin/status").json().await;
            statuses.push(
                ["sessions", "streams", "calls_in_flight", "parked_calls"]
                    .map(|key| status[key].take())
                    .into_iter()
                    .collect(),
            );
        }
        statuses
    }

    /// Sends a request to the first node that accepts the connection.
    pub async fn send(&self, make: impl Fn(SocketAddr) -> HttpRequest) -> Result<HttpResponse, String> {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        for turn in 1.. {
            match make(self.next()).attempt().await {
                Ok(received) => return Ok(received),
                Err(SendFailure::MaybeSent(why)) => return Err(why),
                Err(SendFailure::NotSent) => assert!(tokio::time::Instant::now() < deadline, "no node is there"),
            }
            if turn % self.nodes.len() == 0 {
                tokio::time::sleep(RETRY_DELAY / 10).await;
            }
        }
        unreachable!("it was sent")
    }

    /// Like [`Self::send`], and retries on 503: a refused request was not carried out.
    pub async fn send_until_accepted(&self, make: impl Fn(SocketAddr) -> HttpRequest) -> Result<HttpResponse, String> {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        loop {
            let received = self.send(&make).await?;
            if received.status != 503 {
                return Ok(received);
            }
            assert!(received.header("retry-after").is_some(), "a refusal has Retry-After");
            assert!(tokio::time::Instant::now() < deadline, "refused for too long: {}", received.text().await);
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}
