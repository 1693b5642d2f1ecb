//! Children: whose they are, where they run, and that none is left behind.

use std::path::Path;

use serde_json::{Value, json};

use super::clients::describing;
use super::driver::{Act, Fate};
use super::load::at;
use super::real::{Fleet, Node};
use super::store_faults::report;
use crate::children::marked;
use crate::harness::until;

/// The children of a node that carry a marker, and theirs.
fn below(node: &Node, marker: &str) -> Vec<u32> {
    let parent = |id: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let own = |id: &u32| std::iter::successors(Some(*id), |id| parent(*id)).any(|id| id == node.id());
    marked(marker).into_iter().filter(own).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_child_of_a_session_is_used_from_all_nodes_and_gone_with_its_own() {
    let mut fleet = Fleet::three().await;
    let session = at(&fleet, "b").await;
    let mut used = Vec::new();
    for (number, name) in (1..).zip(["a", "b", "c"]) {
        let report = report(&session.at(fleet.node(name)), number, Act::Child).await;
        assert_eq!(report["calls"], number, "{report}");
        used.push(report["session"].clone());
    }
    assert!(used.iter().all(|other| *other == used[0]), "{used:?}");
    let children = below(fleet.node("b"), &fleet.kid.marker());
    assert!(children.len() > 1, "one for lists, one for the session");
    fleet.node_mut("b").kill().await;
    let alive = |id: &u32| Path::new("/proc").join(id.to_string()).join("environ").exists();
    let zombie = |id: &u32| {
        let stat = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).unwrap_or_default();
        stat.contains(") Z ")
    };
    until("its children are gone", || !children.iter().any(|id| alive(id) && !zombie(id))).await;
    // The session goes on with another.
    assert_eq!(session.at(fleet.node("a")).call(9, Act::Child).await, Fate::Answered);
    assert!(fleet.node_mut("b").again().await);
    fleet.node("b").ready().await;
    session.end().await;
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_without_a_session_has_one_child_for_all_nodes() {
    let mut fleet = Fleet::three().await;
    let mut used = Vec::new();
    for (number, name) in (1..).zip(["b", "a", "c", "b"]) {
        let report = kid(fleet.node(name), number).await;
        assert_eq!(report["calls"], number, "{report}");
        used.push(report["session"].clone());
    }
    assert!(used.iter().all(|other| *other == used[0]), "{used:?}");
    // Without the node that runs it, another does.
    fleet.node_mut("b").kill().await;
    for (number, name) in (1..).zip(["c", "a", "c"]) {
        let report = kid(fleet.node(name), number).await;
        assert_eq!(report["calls"], number, "{report}");
        assert_ne!(report["session"], used[0]);
    }
    assert!(fleet.node_mut("b").again().await);
    fleet.node("b").ready().await;
    assert_eq!(kid(fleet.node("b"), 4).await["calls"], 4);
    fleet.settle().await;
    fleet.end().await;
}

async fn kid(node: &Node, number: u64) -> Value {
    let (_, answer) = describing(node.address, number, &Act::Child.params(number)).answer().await;
    let text = &answer["result"]["content"][0]["text"];
    assert_ne!(*text, json!(null), "{answer}");
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}
