//! Nodes, and what they send one another.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rialto::store::traits::NodeStatus;
use rialto::store::{ClusterStore, NodeId};

use super::{LONG, SHORT, until};

fn texts(range: std::ops::Range<usize>) -> Vec<Bytes> {
    range.map(|i| Bytes::from(i.to_string())).collect()
}

pub async fn a_node_lives_as_long_as_it_beats(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    let standing = async || store.node_status(std::slice::from_ref(&a)).await.unwrap()[0];
    assert_eq!(store.heartbeat(&a, LONG).await.unwrap(), NodeStatus::Expired);
    assert_eq!(standing().await, NodeStatus::Expired);
    store.join(&a, LONG).await.unwrap();
    assert_eq!((standing().await, store.heartbeat(&a, SHORT).await.unwrap()), (NodeStatus::Alive, NodeStatus::Alive));
    until("it lapses", async || standing().await == NodeStatus::Expired).await;
    // A beat does not bring it back.
    assert_eq!(store.heartbeat(&a, LONG).await.unwrap(), NodeStatus::Expired);
    assert_eq!(store.members().await.unwrap(), []);
    store.join(&a, LONG).await.unwrap();
    assert_eq!(standing().await, NodeStatus::Alive);
}

pub async fn a_name_has_one_node(store: Arc<dyn ClusterStore>) {
    let old = NodeId::begin("a");
    let (new, other) = (old.next_incarnation(), NodeId::begin("b"));
    store.join(&old, LONG).await.unwrap();
    store.join(&new, LONG).await.unwrap();
    assert_eq!(store.heartbeat(&old, LONG).await.unwrap(), NodeStatus::Replaced);
    assert_eq!(store.heartbeat(&new, LONG).await.unwrap(), NodeStatus::Alive);
    let nodes = [new.clone(), other, old.clone(), new.clone()];
    let standing = [NodeStatus::Alive, NodeStatus::Expired, NodeStatus::Replaced, NodeStatus::Alive];
    assert_eq!(store.node_status(&nodes).await.unwrap(), standing);
    assert_eq!(store.node_status(&[]).await.unwrap(), []);
    // The old one cannot take the name from the new one by leaving.
    store.leave(&old).await.unwrap();
    assert_eq!(store.named("a").await.unwrap().as_ref(), Some(&new));
    assert_eq!(store.named("b").await.unwrap(), None);
    assert_eq!(store.members().await.unwrap(), [new]);
}

pub async fn leaving_frees_the_name(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    store.join(&a, LONG).await.unwrap();
    store.send(&a, texts(0..1), LONG).await.unwrap();
    store.leave(&a).await.unwrap();
    store.leave(&a).await.unwrap();
    assert_eq!(store.node_status(std::slice::from_ref(&a)).await.unwrap(), [NodeStatus::Expired]);
    assert_eq!(store.members().await.unwrap(), []);
    // What nobody has taken can be carried elsewhere.
    let [message] = texts(0..1).try_into().unwrap();
    assert!(store.unsend(&a, message).await.unwrap());
}

pub async fn a_place_has_one_node(store: Arc<dyn ClusterStore>) {
    let [a, b, c] = ["a", "b", "c"].map(NodeId::begin);
    assert_eq!(store.place_of("p", &a, None, LONG).await.unwrap(), a);
    assert_eq!(store.place_of("p", &b, None, LONG).await.unwrap(), a);
    assert_eq!(store.place_of("p", &b, Some(&c), LONG).await.unwrap(), a);
    assert_eq!(store.place_of("q", &b, None, SHORT).await.unwrap(), b);
    assert_eq!(store.place_of("p", &b, Some(&a), LONG).await.unwrap(), b);
    assert_eq!(store.place_of("p", &a, None, LONG).await.unwrap(), b);
    until("the place is free", async || store.place_of("q", &c, None, SHORT).await.unwrap() == c).await;
}

pub async fn members_are_those_who_are_there(store: Arc<dyn ClusterStore>) {
    let nodes = ["a", "b", "c", "d"].map(NodeId::begin);
    assert_eq!(store.members().await.unwrap(), []);
    for (node, life) in nodes.iter().zip([LONG, SHORT, LONG, LONG]) {
        store.join(node, life).await.unwrap();
    }
    store.leave(&nodes[2]).await.unwrap();
    let left = [nodes[0].clone(), nodes[3].clone()];
    until("one has lapsed", async || store.members().await.unwrap() == left).await;
    assert_eq!(store.members().await.unwrap(), left);
}

pub async fn messages_come_in_order_and_once(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::begin("a"), NodeId::begin("b"));
    store.send(&a, texts(0..300), LONG).await.unwrap();
    store.send(&a, vec![], LONG).await.unwrap();
    store.send(&b, texts(900..901), LONG).await.unwrap();
    store.send(&a, texts(300..9000), LONG).await.unwrap();
    let mut taken = Vec::new();
    while taken.len() < 9000 {
        taken.extend(store.receive(&a).await.unwrap());
    }
    assert_eq!(taken, texts(0..9000));
    assert_eq!(store.receive(&b).await.unwrap(), texts(900..901));
    let begun = Instant::now();
    assert!(store.receive(&a).await.unwrap().is_empty());
    assert!(begun.elapsed() > Duration::from_millis(500), "it does not wait");
}

pub async fn replies_come_like_other_messages(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    store.send(&a, texts(0..2), LONG).await.unwrap();
    store.reply(&a, texts(2..4), LONG).await.unwrap();
    store.reply(&a, vec![], LONG).await.unwrap();
    store.send(&a, texts(4..5), LONG).await.unwrap();
    assert!(store.unsend(&a, Bytes::from_static(b"3")).await.unwrap());
    assert_eq!(store.receive(&a).await.unwrap(), ["0", "1", "2", "4"]);
}

pub async fn two_who_receive_share_the_messages(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    let receive = |store: Arc<dyn ClusterStore>, a: NodeId| async move {
        let mut taken = Vec::new();
        loop {
            let some = store.receive(&a).await.unwrap();
            let ended = some.iter().any(|message| message == "end");
            taken.extend(some.into_iter().filter(|message| message != "end"));
            if ended {
                return taken;
            }
        }
    };
    let two = [(); 2].map(|()| tokio::spawn(receive(Arc::clone(&store), a.clone())));
    for i in 0..200 {
        store.send(&a, texts(i..i + 1), LONG).await.unwrap();
    }
    // All are taken before the first of the ends is.
    let mut all = Vec::new();
    for one in two {
        while !one.is_finished() {
            store.send(&a, vec![Bytes::from_static(b"end")], LONG).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        all.extend(one.await.unwrap());
    }
    let once: BTreeSet<_> = all.iter().collect();
    assert_eq!((once.len(), all.len()), (200, 200), "something came twice, or not at all");
}

pub async fn one_who_waits_is_woken(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    let waiting = tokio::spawn({
        let (store, a) = (Arc::clone(&store), a.clone());
        async move {
            loop {
                let taken = store.receive(&a).await.unwrap();
                if !taken.is_empty() {
                    return (taken, Instant::now());
                }
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let sent = Instant::now();
    store.send(&a, texts(0..1), LONG).await.unwrap();
    let (taken, at) = waiting.await.unwrap();
    assert_eq!(taken, texts(0..1));
    assert!(at - sent < Duration::from_millis(500), "it took {:?}", at - sent);
}

pub async fn one_who_gave_up_waiting_loses_nothing(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    for i in 0..5 {
        let given_up = tokio::time::timeout(Duration::from_millis(50), store.receive(&a)).await;
        assert!(given_up.is_err(), "nothing was sent");
        store.send(&a, texts(i..i + 1), LONG).await.unwrap();
        assert_eq!(store.receive(&a).await.unwrap(), texts(i..i + 1));
    }
}

pub async fn what_was_not_taken_can_be_taken_back(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    let message = Bytes::from_static(b"1");
    assert!(!store.unsend(&a, message.clone()).await.unwrap());
    store.send(&a, texts(0..4), LONG).await.unwrap();
    assert!(store.unsend(&a, message.clone()).await.unwrap());
    assert!(!store.unsend(&a, message.clone()).await.unwrap());
    assert_eq!(store.receive(&a).await.unwrap(), ["0", "2", "3"]);
    assert!(!store.unsend(&a, Bytes::from_static(b"2")).await.unwrap());
    // One that was sent twice never comes, too.
    store.send(&a, texts(0..3), LONG).await.unwrap();
    store.send(&a, texts(1..2), LONG).await.unwrap();
    assert!(store.unsend(&a, message.clone()).await.unwrap());
    assert_eq!(store.receive(&a).await.unwrap(), ["0", "2"]);
}

pub async fn messages_do_not_wait_for_ever(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    store.send(&a, texts(0..3), SHORT).await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    assert!(!store.unsend(&a, Bytes::from_static(b"0")).await.unwrap());
    assert!(store.receive(&a).await.unwrap().is_empty());
}

pub async fn beating_keeps_the_mailbox(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    store.join(&a, LONG).await.unwrap();
    store.send(&a, texts(0..1), SHORT * 4).await.unwrap();
    assert_eq!(store.heartbeat(&a, LONG).await.unwrap(), NodeStatus::Alive);
    tokio::time::sleep(SHORT * 5).await;
    assert_eq!(store.receive(&a).await.unwrap(), texts(0..1));
}

pub async fn the_first_secret_is_the_secret(store: Arc<dyn ClusterStore>) {
    let offer = |i: u8| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.shared_key(Bytes::from(vec![i; 32])).await.unwrap() })
    };
    let offers: Vec<_> = (0..20).map(offer).collect();
    let mut secrets = BTreeSet::new();
    for offer in offers {
        secrets.insert(offer.await.unwrap());
    }
    assert_eq!(secrets.len(), 1);
    assert_eq!(store.shared_key(Bytes::from_static(b"late")).await.unwrap(), *secrets.first().unwrap());
}
