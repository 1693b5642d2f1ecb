//! Calls that ask their clients, when the node that waits for the answer is another, or goes.

use std::time::Instant;

use serde_json::{Value, json};

use super::clients::{answers, describing};
use super::driver::{Act, Fate, reply};
use super::load::at;
use super::real::{Fleet, LEASE, Node};
use crate::harness::request;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_that_was_open_when_its_node_died_ends_in_an_error() {
    let mut fleet = Fleet::three().await;
    let session = at(&fleet, "b").await;
    let body = request(7, "tools/call", Act::Ask.params(7));
    let mut stream = session.post(fleet.node("a").address, &body).go().await.events();
    let mut last = String::new();
    let question = loop {
        let event = stream.next().await.unwrap();
        last = event.id.unwrap_or(last);
        if !event.data.is_empty() {
            break serde_json::from_str::<Value>(&event.data).unwrap();
        }
    };
    fleet.node_mut("b").kill().await;
    let begun = Instant::now();
    assert!(stream.message().await.is_none(), "nothing more comes on this stream");
    let rest = session.at(fleet.node("c")).resumed(&last).await.rest().await;
    println!("told after {:?}", begun.elapsed());
    assert!(begun.elapsed() < LEASE * 3);
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!((&rest[0]["id"], &rest[0]["error"]["code"]), (&json!(7), &json!(-32603)));
    assert!(rest[0]["error"]["message"].as_str().unwrap().contains("gone"), "{rest:?}");
    // An answer that comes too late does no harm.
    session.tell(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": reply(&question["params"]) })).await;
    for name in ["a", "c"] {
        assert_eq!(session.at(fleet.node(name)).call(8, Act::Ask).await, Fate::Answered);
    }
    assert!(fleet.node_mut("b").again().await);
    fleet.node("b").ready().await;
    session.end().await;
    fleet.settle().await;
    fleet.end().await;
}

/// Makes a call without a session, or goes on with one.
async fn round(node: &Node, params: &Value) -> Value {
    describing(node.address, 5, params).answer().await.1
}

/// The call is gone with its node, and its client knows that.
fn is_lost(refused: &Value) {
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(5), &json!(-32603)), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("lost with the node"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_call_goes_on_from_any_node_and_is_lost_with_its_own() {
    let mut fleet = Fleet::three().await;
    let params = Act::Ask.params(5);
    let asked = round(fleet.node("b"), &params).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let answered = round(fleet.node("a"), &answers(&params, &asked["result"])).await;
    assert_eq!(Act::Ask.judge(5, &answered), Fate::Answered);
    assert_eq!(fleet.web.count("tools/call"), 1);
    // A state that was used is the client's mistake.
    let again = round(fleet.node("c"), &answers(&params, &asked["result"])).await;
    assert_eq!(again["error"]["code"], -32602, "{again}");

    let asked = round(fleet.node("b"), &params).await;
    fleet.node_mut("b").kill().await;
    let begun = Instant::now();
    let refused = round(fleet.node("c"), &answers(&params, &asked["result"])).await;
    println!("refused after {:?}", begun.elapsed());
    assert!(begun.elapsed() < LEASE * 3);
    is_lost(&refused);
    // The same when a node of that name is there again.
    assert!(fleet.node_mut("b").again().await);
    fleet.node("b").ready().await;
    for node in &fleet.nodes {
        is_lost(&round(node, &answers(&params, &asked["result"])).await);
    }
    assert_eq!(fleet.web.count("tools/call"), 2);
    fleet.settle().await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_holder_is_halted_has_an_end() {
    let fleet = Fleet::three().await;
    let params = Act::Ask.params(5);
    let asked = round(fleet.node("b"), &params).await;
    fleet.node("b").pause();
    // At first it is not known that the node does nothing, then it is.
    for message in ["is not known", "lost with the node"] {
        let begun = Instant::now();
        let told = round(fleet.node("c"), &answers(&params, &asked["result"])).await;
        println!("told after {:?}: {told}", begun.elapsed());
        assert!(begun.elapsed() < LEASE * 3);
        assert_eq!((&told["id"], &told["error"]["code"]), (&json!(5), &json!(-32603)), "{told}");
        assert!(told["error"]["message"].as_str().unwrap().contains(message), "{told}");
    }
    fleet.node("b").resume();
    fleet.node("b").ready().await;
    fleet.settle().await;
    fleet.end().await;
}
