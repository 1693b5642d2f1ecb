//! Changes during a takeover: a session without an owner is notified by its next owner.

use std::sync::Arc;

use serde_json::json;

use super::balancer::RoundRobinBalancer;
use super::change_ledger::ChangeLedger;
use super::listeners::{listen, wait_all_list};
use super::load::open_session_at;
use super::load_driver::RESOURCE;
use super::processes::{TestCluster, eventually};
use crate::harness::request;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_during_a_takeover_are_notified_by_the_new_owner() {
    let mut cluster = TestCluster::three().await;
    let changes = ChangeLedger::of(&cluster.http_server, false);
    for killed in [false, true] {
        let session = open_session_at(&cluster, "b").await;
        let subscribed = request("subscribe", "resources/subscribe", json!({ "uri": RESOURCE }));
        session.balancer.send_until_accepted(|node| session.post(node, &subscribed)).await.unwrap();
        let listening = tokio::spawn(listen(Arc::clone(&changes), session.clone()));
        eventually(
            "the listener is registered",
            async || if changes.listeners() == 1 { Ok(()) } else { Err(String::new()) },
        )
        .await;
        // The session stays without an owner until the other nodes know all changes.
        for node in &cluster.nodes {
            cluster.balancer.set_excluded(node.address, node.name != "b");
        }
        let node = cluster.node_mut("b");
        match killed {
            true => node.kill().await,
            false => {
                node.terminate();
                assert_eq!(node.wait_exit().await, Some(0));
            }
        }
        changes.change_tools();
        changes.change_resource();
        let others = [cluster.node("a").address, cluster.node("c").address];
        wait_all_list(&RoundRobinBalancer::new(others.to_vec()), changes.tools()).await;
        assert_eq!(changes.outdated_listeners().len(), 1, "the session was not notified yet");
        for node in &cluster.nodes {
            cluster.balancer.set_excluded(node.address, node.name == "b");
        }
        changes.wait_all_notified("the changes during the takeover").await;
        let node = cluster.node_mut("b");
        node.restart().await;
        node.wait_ready().await;
        let address = node.address;
        cluster.balancer.set_excluded(address, false);
        session.end().await;
        listening.await.unwrap();
    }
    cluster.wait_idle().await;
    cluster.shut_down().await;
}
