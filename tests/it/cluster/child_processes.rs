//! Stdio child processes: one per session, on the node of its lease, none left behind.

use std::path::Path;

use serde_json::{Value, json};

use super::load::open_session_at;
use super::load_clients::per_request_call;
use super::load_driver::{CallKind, CallOutcome};
use super::processes::{Node, TestCluster};
use super::store_faults::report;
use crate::children::marked;
use crate::harness::until;

/// Descendant processes of a node that carry the marker.
fn descendants(node: &Node, marker: &str) -> Vec<u32> {
    let parent = |id: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let own = |id: &u32| std::iter::successors(Some(*id), |id| parent(*id)).any(|id| id == node.id());
    marked(marker).into_iter().filter(own).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_child_process_of_a_session_is_shared_by_relay_and_dies_with_its_node() {
    let mut cluster = TestCluster::three().await;
    let session = open_session_at(&cluster, "b").await;
    let mut used = Vec::new();
    for (number, name) in (1..).zip(["a", "b", "c"]) {
        let report = report(&session.at(cluster.node(name)), number, CallKind::Child).await;
        assert_eq!(report["calls"], number, "{report}");
        used.push(report["session"].clone());
    }
    assert!(used.iter().all(|other| *other == used[0]), "{used:?}");
    let children = descendants(cluster.node("b"), &cluster.child_server.marker());
    assert!(children.len() > 1, "one for the catalog, one for the lease");
    cluster.node_mut("b").kill().await;
    let alive = |id: &u32| Path::new("/proc").join(id.to_string()).join("environ").exists();
    let zombie = |id: &u32| {
        let stat = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).unwrap_or_default();
        stat.contains(") Z ")
    };
    until("its children are gone", || !children.iter().any(|id| alive(id) && !zombie(id))).await;
    // After the takeover the session has a new child.
    assert_eq!(session.at(cluster.node("a")).call(9, CallKind::Child).await, CallOutcome::Answered);
    cluster.node_mut("b").restart().await;
    cluster.node("b").wait_ready().await;
    session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_per_request_caller_has_one_child_process_in_the_cluster() {
    let mut cluster = TestCluster::three().await;
    let mut used = Vec::new();
    for (number, name) in (1..).zip(["b", "a", "c", "b"]) {
        let report = call_child(cluster.node(name), number).await;
        assert_eq!(report["calls"], number, "{report}");
        used.push(report["session"].clone());
    }
    assert!(used.iter().all(|other| *other == used[0]), "{used:?}");
    // After the node of the lease died, another node runs the child.
    cluster.node_mut("b").kill().await;
    for (number, name) in (1..).zip(["c", "a", "c"]) {
        let report = call_child(cluster.node(name), number).await;
        assert_eq!(report["calls"], number, "{report}");
        assert_ne!(report["session"], used[0]);
    }
    cluster.node_mut("b").restart().await;
    cluster.node("b").wait_ready().await;
    assert_eq!(call_child(cluster.node("b"), 4).await["calls"], 4);
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

async fn call_child(node: &Node, number: u64) -> Value {
    let (_, answer) = per_request_call(node.address, number, &CallKind::Child.params(number)).answer().await;
    let text = &answer["result"]["content"][0]["text"];
    assert_ne!(*text, json!(null), "{answer}");
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}
