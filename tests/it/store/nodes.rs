//! Contract of the node store: leases, mailboxes, places and the shared key.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rialto::store::traits::{MailboxLimits, NodeStatus, SendOutcome};
use rialto::store::{ClusterStore, NodeId};

use super::{EXPIRING_TTL, LONG_TTL, SHORT_TTL, until};

fn texts(range: std::ops::Range<usize>) -> Vec<Bytes> {
    range.map(|i| Bytes::from(i.to_string())).collect()
}

pub async fn a_node_is_alive_until_its_lease_expires(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    let standing = async || store.node_status(std::slice::from_ref(&a)).await.unwrap()[0];
    assert_eq!(store.heartbeat(&a, LONG_TTL).await.unwrap(), NodeStatus::Expired);
    assert_eq!(standing().await, NodeStatus::Expired);
    store.join(&a, LONG_TTL).await.unwrap();
    assert_eq!(
        (standing().await, store.heartbeat(&a, SHORT_TTL).await.unwrap()),
        (NodeStatus::Alive, NodeStatus::Alive)
    );
    until("the lease expires", async || standing().await == NodeStatus::Expired).await;
    // A heartbeat does not renew an expired lease.
    assert_eq!(store.heartbeat(&a, LONG_TTL).await.unwrap(), NodeStatus::Expired);
    assert_eq!(store.members().await.unwrap(), []);
    store.join(&a, LONG_TTL).await.unwrap();
    assert_eq!(standing().await, NodeStatus::Alive);
}

pub async fn a_new_incarnation_replaces_the_old_one(store: Arc<dyn ClusterStore>) {
    let old = NodeId::generate("a");
    let (new, other) = (old.next_incarnation(), NodeId::generate("b"));
    store.join(&old, LONG_TTL).await.unwrap();
    store.join(&new, LONG_TTL).await.unwrap();
    assert_eq!(store.heartbeat(&old, LONG_TTL).await.unwrap(), NodeStatus::Replaced);
    assert_eq!(store.heartbeat(&new, LONG_TTL).await.unwrap(), NodeStatus::Alive);
    let nodes = [new.clone(), other, old.clone(), new.clone()];
    let standing = [NodeStatus::Alive, NodeStatus::Expired, NodeStatus::Replaced, NodeStatus::Alive];
    assert_eq!(store.node_status(&nodes).await.unwrap(), standing);
    assert_eq!(store.node_status(&[]).await.unwrap(), []);
    // A replaced incarnation that leaves does not free the name.
    store.leave(&old).await.unwrap();
    assert_eq!(store.find_node("a").await.unwrap().as_ref(), Some(&new));
    assert_eq!(store.find_node("b").await.unwrap(), None);
    assert_eq!(store.members().await.unwrap(), [new]);
}

pub async fn a_full_mailbox_refuses_requests_and_takes_replies(store: Arc<dyn ClusterStore>) {
    let MailboxLimits { messages, bytes } = MailboxLimits::DEFAULT;
    let (many, large) = (NodeId::generate("many"), NodeId::generate("large"));
    for _ in 0..10 {
        let batch = vec![Bytes::from_static(b"x"); messages / 10];
        assert_eq!(store.send(&many, batch, LONG_TTL).await.unwrap(), SendOutcome::Sent);
    }
    // A store may count what it needs for the messages, which is more than their bytes.
    let mut sent = 0;
    while store.send(&large, vec![Bytes::from(vec![b'x'; bytes / 64])], LONG_TTL).await.unwrap() == SendOutcome::Sent {
        sent += 1;
    }
    assert!((32..=64).contains(&sent), "{sent} of 64 messages fit");
    for node in [&many, &large] {
        assert_eq!(store.send(node, texts(0..1), LONG_TTL).await.unwrap(), SendOutcome::MailboxFull);
        store.reply(node, texts(0..1), LONG_TTL).await.unwrap();
    }
    // What was received makes room.
    while !store.receive(&many).await.unwrap().ends_with(&texts(0..1)) {}
    assert_eq!(store.send(&many, texts(0..1), LONG_TTL).await.unwrap(), SendOutcome::Sent);
}

pub async fn leave_ends_the_lease_at_once(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    store.join(&a, LONG_TTL).await.unwrap();
    store.send(&a, texts(0..1), LONG_TTL).await.unwrap();
    store.leave(&a).await.unwrap();
    store.leave(&a).await.unwrap();
    assert_eq!(store.node_status(std::slice::from_ref(&a)).await.unwrap(), [NodeStatus::Expired]);
    assert_eq!(store.members().await.unwrap(), []);
    // A message that was not received can be unsent and relayed to another node.
    let [message] = texts(0..1).try_into().unwrap();
    assert!(store.unsend(&a, message).await.unwrap());
}

pub async fn a_place_is_held_by_one_node(store: Arc<dyn ClusterStore>) {
    let [a, b, c] = ["a", "b", "c"].map(NodeId::generate);
    assert_eq!(store.claim_affinity("p", &a, None, LONG_TTL).await.unwrap(), a);
    assert_eq!(store.claim_affinity("p", &b, None, LONG_TTL).await.unwrap(), a);
    assert_eq!(store.claim_affinity("p", &b, Some(&c), LONG_TTL).await.unwrap(), a);
    assert_eq!(store.claim_affinity("q", &b, None, SHORT_TTL).await.unwrap(), b);
    assert_eq!(store.claim_affinity("p", &b, Some(&a), LONG_TTL).await.unwrap(), b);
    assert_eq!(store.claim_affinity("p", &a, None, LONG_TTL).await.unwrap(), b);
    until("the place is free", async || store.claim_affinity("q", &c, None, SHORT_TTL).await.unwrap() == c).await;
}

pub async fn members_are_the_nodes_with_a_lease(store: Arc<dyn ClusterStore>) {
    let nodes = ["a", "b", "c", "d"].map(NodeId::generate);
    assert_eq!(store.members().await.unwrap(), []);
    for (node, life) in nodes.iter().zip([LONG_TTL, SHORT_TTL, LONG_TTL, LONG_TTL]) {
        store.join(node, life).await.unwrap();
    }
    store.leave(&nodes[2]).await.unwrap();
    let left = [nodes[0].clone(), nodes[3].clone()];
    until("one lease has expired", async || store.members().await.unwrap() == left).await;
    assert_eq!(store.members().await.unwrap(), left);
}

pub async fn messages_are_received_in_order_and_once(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::generate("a"), NodeId::generate("b"));
    store.send(&a, texts(0..300), LONG_TTL).await.unwrap();
    store.send(&a, vec![], LONG_TTL).await.unwrap();
    store.send(&b, texts(900..901), LONG_TTL).await.unwrap();
    store.send(&a, texts(300..9000), LONG_TTL).await.unwrap();
    let mut taken = Vec::new();
    while taken.len() < 9000 {
        taken.extend(store.receive(&a).await.unwrap());
    }
    assert_eq!(taken, texts(0..9000));
    assert_eq!(store.receive(&b).await.unwrap(), texts(900..901));
    let started = Instant::now();
    assert!(store.receive(&a).await.unwrap().is_empty());
    assert!(started.elapsed() > Duration::from_millis(500), "an empty receive waits");
}

pub async fn replies_share_the_mailbox_with_messages(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    store.send(&a, texts(0..2), LONG_TTL).await.unwrap();
    store.reply(&a, texts(2..4), LONG_TTL).await.unwrap();
    store.reply(&a, vec![], LONG_TTL).await.unwrap();
    store.send(&a, texts(4..5), LONG_TTL).await.unwrap();
    assert!(store.unsend(&a, Bytes::from_static(b"3")).await.unwrap());
    assert_eq!(store.receive(&a).await.unwrap(), ["0", "1", "2", "4"]);
}

pub async fn two_receivers_share_a_mailbox_without_duplicates(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
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
        store.send(&a, texts(i..i + 1), LONG_TTL).await.unwrap();
    }
    // Messages are received in order, so every number is received before the first "end".
    let mut all = Vec::new();
    for one in two {
        while !one.is_finished() {
            store.send(&a, vec![Bytes::from_static(b"end")], LONG_TTL).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        all.extend(one.await.unwrap());
    }
    let once: BTreeSet<_> = all.iter().collect();
    assert_eq!((once.len(), all.len()), (200, 200), "each message is received exactly once");
}

pub async fn a_waiting_receiver_is_woken_by_a_send(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    // How long a receiver waits when nothing is sent.
    let started = Instant::now();
    assert!(store.receive(&a).await.unwrap().is_empty());
    let whole = started.elapsed();
    // One that waits in vain before the message is sent is of no use on a busy machine: it is done again.
    for _ in 0..20 {
        let waiting = tokio::spawn({
            let (store, a) = (Arc::clone(&store), a.clone());
            async move { (Instant::now(), store.receive(&a).await.unwrap(), Instant::now()) }
        });
        tokio::time::sleep(whole / 5).await;
        store.send(&a, texts(0..1), LONG_TTL).await.unwrap();
        let (begun, taken, ended) = waiting.await.unwrap();
        if taken == texts(0..1) && ended - begun < whole {
            return;
        }
        while store.receive(&a).await.unwrap() == texts(0..1) {}
    }
    panic!("a receiver waits for {whole:?} although a message was sent");
}

pub async fn a_cancelled_receive_loses_no_message(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    for i in 0..5 {
        let given_up = tokio::time::timeout(Duration::from_millis(50), store.receive(&a)).await;
        assert!(given_up.is_err(), "nothing was sent");
        store.send(&a, texts(i..i + 1), LONG_TTL).await.unwrap();
        assert_eq!(store.receive(&a).await.unwrap(), texts(i..i + 1));
    }
}

pub async fn unsend_removes_a_message_that_was_not_received(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    let message = Bytes::from_static(b"1");
    assert!(!store.unsend(&a, message.clone()).await.unwrap());
    store.send(&a, texts(0..4), LONG_TTL).await.unwrap();
    assert!(store.unsend(&a, message.clone()).await.unwrap());
    assert!(!store.unsend(&a, message.clone()).await.unwrap());
    assert_eq!(store.receive(&a).await.unwrap(), ["0", "2", "3"]);
    assert!(!store.unsend(&a, Bytes::from_static(b"2")).await.unwrap());
    // Unsending removes every copy of a message that was sent twice.
    store.send(&a, texts(0..3), LONG_TTL).await.unwrap();
    store.send(&a, texts(1..2), LONG_TTL).await.unwrap();
    assert!(store.unsend(&a, message.clone()).await.unwrap());
    assert_eq!(store.receive(&a).await.unwrap(), ["0", "2"]);
}

pub async fn messages_expire(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    store.send(&a, texts(0..3), SHORT_TTL).await.unwrap();
    tokio::time::sleep(SHORT_TTL * 2).await;
    assert!(!store.unsend(&a, Bytes::from_static(b"0")).await.unwrap());
    assert!(store.receive(&a).await.unwrap().is_empty());
}

pub async fn heartbeat_renews_the_mailbox(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    store.join(&a, LONG_TTL).await.unwrap();
    store.send(&a, texts(0..1), EXPIRING_TTL).await.unwrap();
    assert_eq!(store.heartbeat(&a, LONG_TTL).await.unwrap(), NodeStatus::Alive);
    tokio::time::sleep(EXPIRING_TTL + SHORT_TTL).await;
    assert_eq!(store.receive(&a).await.unwrap(), texts(0..1));
}

pub async fn the_first_shared_key_wins(store: Arc<dyn ClusterStore>) {
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
