//! What changes while nobody has a session.

use std::sync::Arc;

use serde_json::json;

use super::balancer::Balancer;
use super::driver::RESOURCE;
use super::listener::{all_list, listen};
use super::load::at;
use super::news::News;
use super::real::{Fleet, eventually};
use crate::harness::request;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_while_a_session_has_no_home_is_told_by_its_next_one() {
    let mut fleet = Fleet::three().await;
    let news = News::of(&fleet.web, false);
    for killed in [false, true] {
        let session = at(&fleet, "b").await;
        let subscribed = request("subscribe", "resources/subscribe", json!({ "uri": RESOURCE }));
        session.balancer.insist(|node| session.post(node, &subscribed)).await.unwrap();
        let listening = tokio::spawn(listen(Arc::clone(&news), session.clone()));
        eventually("somebody listens", async || if news.listeners() == 1 { Ok(()) } else { Err(String::new()) }).await;
        // Nobody asks for the session until the other nodes know of everything.
        for node in &fleet.nodes {
            fleet.balancer.leave_out(node.address, node.name != "b");
        }
        let node = fleet.node_mut("b");
        match killed {
            true => node.kill().await,
            false => {
                node.terminate();
                assert_eq!(node.ended().await, Some(0));
            }
        }
        news.change_tools();
        news.change_resource();
        let others = [fleet.node("a").address, fleet.node("c").address];
        all_list(&Balancer::new(others.to_vec()), news.tools()).await;
        assert_eq!(news.behind().len(), 1, "nobody could tell it");
        for node in &fleet.nodes {
            fleet.balancer.leave_out(node.address, node.name == "b");
        }
        news.known("what changed meanwhile").await;
        let node = fleet.node_mut("b");
        assert!(node.again().await);
        node.ready().await;
        let address = node.address;
        fleet.balancer.leave_out(address, false);
        session.end().await;
        listening.await.unwrap();
    }
    fleet.settle().await;
    fleet.end().await;
}
