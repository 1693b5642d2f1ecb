//! What stands in front of nodes in these tests: each request goes to the next one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::{Broken, PATIENCE, Received, Sending};

/// Sends each request to the next node. One that nobody has taken goes to the node after; one that somebody
/// may have taken does not.
pub struct Balancer {
    nodes: Vec<(SocketAddr, AtomicBool)>,
    turn: AtomicUsize,
}

/// How long to wait before something that was refused is sent again.
pub const AGAIN: Duration = Duration::from_millis(100);

impl Balancer {
    pub fn new(nodes: Vec<SocketAddr>) -> Arc<Self> {
        let nodes = nodes.into_iter().map(|node| (node, AtomicBool::new(false))).collect();
        Arc::new(Self { nodes, turn: AtomicUsize::new(0) })
    }

    /// All nodes.
    pub fn nodes(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|(node, _)| *node).collect()
    }

    /// From now on a node is left out, or not.
    pub fn leave_out(&self, node: SocketAddr, out: bool) {
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

    /// What all nodes say of themselves.
    pub async fn statuses(&self) -> Vec<serde_json::Value> {
        let mut statuses = Vec::new();
        for (node, _) in &self.nodes {
            let (_, mut status) = Sending::to(*node, "GET", "/admin/status").json().await;
            statuses.push(
                ["sessions", "streams", "calls_in_flight", "parked_calls"]
                    .map(|key| status[key].take())
                    .into_iter()
                    .collect(),
            );
        }
        statuses
    }

    /// Sends a request to whichever node takes it.
    pub async fn send(&self, make: impl Fn(SocketAddr) -> Sending) -> Result<Received, String> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        for turn in 1.. {
            match make(self.next()).attempt().await {
                Ok(received) => return Ok(received),
                Err(Broken::Lost(why)) => return Err(why),
                Err(Broken::NotSent) => assert!(tokio::time::Instant::now() < deadline, "no node is there"),
            }
            if turn % self.nodes.len() == 0 {
                tokio::time::sleep(AGAIN / 10).await;
            }
        }
        unreachable!("it was sent")
    }

    /// The same, until a node can serve it. What is refused has not been done, so it is sent again.
    pub async fn insist(&self, make: impl Fn(SocketAddr) -> Sending) -> Result<Received, String> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let received = self.send(&make).await?;
            if received.status != 503 {
                return Ok(received);
            }
            assert!(received.header("retry-after").is_some(), "a client is told when to come again");
            assert!(tokio::time::Instant::now() < deadline, "refused for too long: {}", received.text().await);
            tokio::time::sleep(AGAIN).await;
        }
    }
}
