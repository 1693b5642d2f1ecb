//! Sessions and their events.

use std::sync::Arc;

use bytes::Bytes;
use rialto::store::traits::{SessionDelta, StoredSession, WriteOutcome};
use rialto::store::{ClusterStore, NodeId};

use super::{LONG, SHORT, event, news, one, until};

pub async fn a_session_is_created_once(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::begin("a"), NodeId::begin("b"));
    assert_eq!(store.load("s").await.unwrap(), None);
    assert!(store.create("s", &a, Bytes::from_static(b"one"), LONG).await.unwrap());
    assert!(!store.create("s", &b, Bytes::from_static(b"two"), LONG).await.unwrap());
    let kept = StoredSession { owner: Some(a), record: Bytes::from_static(b"one") };
    assert_eq!(store.load("s").await.unwrap(), Some(kept));
    assert_eq!(store.load("t").await.unwrap(), None);
    assert_eq!(store.read("s").await.unwrap(), []);
}

pub async fn only_the_owner_of_the_moment_can_be_replaced(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::begin("a"), NodeId::begin("b"));
    assert_eq!(store.claim("s", None, Some(&a)).await.unwrap(), WriteOutcome::NotFound);
    store.create("s", &a, Bytes::from_static(b"r"), LONG).await.unwrap();
    let owner = async || store.load("s").await.unwrap().unwrap().owner;
    for (from, to, written) in [
        (Some(&b), Some(&b), WriteOutcome::NotOwner),
        (None, Some(&b), WriteOutcome::NotOwner),
        (Some(&a), Some(&b), WriteOutcome::Applied),
        (Some(&a), Some(&a), WriteOutcome::NotOwner),
        (Some(&b), None, WriteOutcome::Applied),
        (Some(&b), Some(&a), WriteOutcome::NotOwner),
        (None, Some(&a), WriteOutcome::Applied),
    ] {
        assert_eq!(store.claim("s", from, to).await.unwrap(), written);
        if written == WriteOutcome::Applied {
            assert_eq!(owner().await.as_ref(), to);
        }
    }
    // Another life of the owner is another owner.
    assert_eq!(store.claim("s", Some(&a.next_incarnation()), Some(&b)).await.unwrap(), WriteOutcome::NotOwner);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "r");
}

pub async fn touching_keeps_sessions(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::begin("a"), NodeId::begin("b"));
    store.create("kept", &a, Bytes::new(), SHORT * 4).await.unwrap();
    store.create("left", &a, Bytes::new(), SHORT * 4).await.unwrap();
    store.create("other", &b, Bytes::new(), LONG).await.unwrap();
    let written = store.write(&a, &one("kept", SessionDelta { life: SHORT * 4, ..news(vec![event(1, 1, "x")]) })).await;
    assert_eq!(written.unwrap(), [WriteOutcome::Applied]);
    let ids = ["other", "kept", "none"].map(str::to_owned);
    let written = [WriteOutcome::NotOwner, WriteOutcome::Applied, WriteOutcome::NotFound];
    assert_eq!(store.touch(&ids, &a, LONG).await.unwrap(), written);
    assert_eq!(store.touch(&[], &a, LONG).await.unwrap(), []);
    until("the other is gone", async || store.load("left").await.unwrap().is_none()).await;
    assert!(store.load("kept").await.unwrap().is_some());
    assert_eq!(store.read("kept").await.unwrap().len(), 1);
}

pub async fn a_session_ends_with_its_life(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    store.create("s", &a, Bytes::new(), LONG).await.unwrap();
    let short = SessionDelta { life: SHORT, ..news(vec![event(0, 1, "x")]) };
    assert_eq!(store.write(&a, &one("s", short)).await.unwrap(), [WriteOutcome::Applied]);
    until("it is gone", async || store.load("s").await.unwrap().is_none()).await;
    assert_eq!(store.read("s").await.unwrap(), []);
    assert_eq!(store.write(&a, &one("s", news(vec![event(0, 2, "y")]))).await.unwrap(), [WriteOutcome::NotFound]);
    assert_eq!(store.delete("s", &a).await.unwrap(), WriteOutcome::NotFound);
    assert_eq!(store.read("s").await.unwrap(), []);
    // One of the same id begins with nothing.
    assert!(store.create("s", &a, Bytes::new(), LONG).await.unwrap());
    assert_eq!(store.read("s").await.unwrap(), []);
}

pub async fn deleting_takes_the_events_along(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::begin("a"), NodeId::begin("b"));
    store.create("s", &a, Bytes::new(), LONG).await.unwrap();
    store.write(&a, &one("s", news(vec![event(0, 1, "x")]))).await.unwrap();
    assert_eq!(store.delete("s", &b).await.unwrap(), WriteOutcome::NotOwner);
    assert_eq!(store.read("s").await.unwrap().len(), 1);
    assert_eq!(store.delete("s", &a).await.unwrap(), WriteOutcome::Applied);
    assert_eq!((store.load("s").await.unwrap(), store.read("s").await.unwrap()), (None, vec![]));
    // Nobody who had it brings it back.
    assert_eq!(store.delete("s", &a).await.unwrap(), WriteOutcome::NotOwner);
    assert_eq!(store.write(&a, &one("s", news(vec![event(0, 2, "y")]))).await.unwrap(), [WriteOutcome::NotOwner]);
    assert_eq!(store.touch(&["s".into()], &a, LONG).await.unwrap(), [WriteOutcome::NotOwner]);
    assert_eq!(store.claim("s", Some(&a), Some(&b)).await.unwrap(), WriteOutcome::NotOwner);
    assert_eq!(store.claim("s", None, Some(&b)).await.unwrap(), WriteOutcome::NotOwner);
    assert!(!store.create("s", &a, Bytes::new(), LONG).await.unwrap());
    assert_eq!((store.load("s").await.unwrap(), store.read("s").await.unwrap()), (None, vec![]));
}

pub async fn writing_is_for_the_owner(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::begin("a"), NodeId::begin("b"));
    store.create("s", &a, Bytes::from_static(b"old"), LONG).await.unwrap();
    let all =
        SessionDelta { record: Some(Bytes::from_static(b"new")), ..news(vec![event(3, 1, "x"), event(0, 2, "y")]) };
    assert_eq!(store.write(&b, &one("s", all.clone())).await.unwrap(), [WriteOutcome::NotOwner]);
    assert_eq!(store.write(&b, &one("none", all.clone())).await.unwrap(), [WriteOutcome::NotFound]);
    // Nothing of it was written.
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "old");
    assert_eq!(store.read("s").await.unwrap(), []);
    assert_eq!(store.read("none").await.unwrap(), []);
    assert_eq!(store.write(&a, &one("s", all.clone())).await.unwrap(), [WriteOutcome::Applied]);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "new");
    assert_eq!(store.read("s").await.unwrap(), all.events);
    assert_eq!(store.write(&a, &one("s", news(vec![]))).await.unwrap(), [WriteOutcome::Applied]);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "new");
    // The owner of before writes no more.
    store.claim("s", Some(&a), Some(&b)).await.unwrap();
    assert_eq!(store.write(&a, &one("s", news(vec![event(0, 3, "z")]))).await.unwrap(), [WriteOutcome::NotOwner]);
    assert_eq!(store.write(&b, &one("s", news(vec![event(0, 3, "w")]))).await.unwrap(), [WriteOutcome::Applied]);
    assert_eq!(store.read("s").await.unwrap().last().unwrap().event, "w");
}

pub async fn a_record_that_comes_late_is_not_kept(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::begin("a"), NodeId::begin("b"));
    store.create("s", &a, Bytes::from_static(b"0"), LONG).await.unwrap();
    let write = async |node: &NodeId, version: u64, record: &'static str, events| {
        let all = SessionDelta { record: Some(record.into()), version, ..news(events) };
        assert_eq!(store.write(node, &one("s", all)).await.unwrap(), [WriteOutcome::Applied]);
        store.load("s").await.unwrap().unwrap().record
    };
    assert_eq!(write(&a, 2, "2", vec![]).await, "2");
    assert_eq!(write(&a, 2, "2 again", vec![]).await, "2 again");
    // It is late; what else it brings is kept if it is new.
    assert_eq!(write(&a, 1, "1", vec![event(0, 1, "x")]).await, "2 again");
    assert_eq!(store.read("s").await.unwrap().len(), 1);
    assert_eq!(write(&a, 10, "10", vec![]).await, "10");
    assert_eq!(write(&a, 9, "9", vec![]).await, "10");
    // Another owner goes on from there, with numbers as large as they get.
    store.claim("s", Some(&a), Some(&b)).await.unwrap();
    assert_eq!(write(&b, 9, "9", vec![]).await, "10");
    let large = 5 << 32;
    assert_eq!(write(&b, large + 1, "large", vec![]).await, "large");
    assert_eq!(write(&b, large, "late", vec![]).await, "large");
    assert_eq!(write(&b, large + 2, "larger", vec![]).await, "larger");
}

pub async fn old_events_go(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    store.create("s", &a, Bytes::new(), LONG).await.unwrap();
    let positions = async || {
        let events = store.read("s").await.unwrap();
        events.iter().map(|event| event.id.position).collect::<Vec<_>>()
    };
    let write = async |from: u64, to: u64, keep_from: u64| {
        let events = (from..to).map(|position| event(1, position, "x")).collect();
        let written = store.write(&a, &one("s", SessionDelta { keep_from, ..news(events) })).await;
        assert_eq!(written.unwrap(), [WriteOutcome::Applied]);
    };
    write(1, 201, 0).await;
    assert_eq!(positions().await, (1..201).collect::<Vec<_>>());
    write(201, 203, 150).await;
    assert_eq!(positions().await, (150..203).collect::<Vec<_>>());
    write(203, 203, 202).await;
    assert_eq!(positions().await, [202]);
    write(203, 204, 1000).await;
    assert_eq!(positions().await, [0; 0]);
    let far = u64::MAX - 1;
    write(far, far + 1, 204).await;
    assert_eq!(positions().await, [far]);
}

pub async fn events_may_be_large_and_of_any_bytes(store: Arc<dyn ClusterStore>) {
    let a = NodeId::begin("a");
    let all: Bytes = (0..=255u8).chain(*b"\r\n$5\r\n\0").collect();
    store.create("s", &a, all.clone(), LONG).await.unwrap();
    let large: Bytes = (0..1 << 20).map(|i: u32| i.to_le_bytes()[(i % 3) as usize]).collect();
    let events = vec![event(0, 1, all.clone()), event(u32::MAX, 2, large), event(7, 3, Bytes::new())];
    let record = Bytes::from(vec![0xff; 1 << 20]);
    let written =
        store.write(&a, &one("s", SessionDelta { record: Some(record.clone()), ..news(events.clone()) })).await;
    assert_eq!(written.unwrap(), [WriteOutcome::Applied]);
    assert_eq!(store.read("s").await.unwrap(), events);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, record);
}

pub async fn many_sessions_are_written_at_once(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::begin("a"), NodeId::begin("b"));
    let ids: Vec<String> = (0..100).map(|i| format!("s{i}")).collect();
    for (i, id) in ids.iter().enumerate().filter(|(i, _)| i % 10 != 3) {
        let owner = if i % 10 == 5 { &b } else { &a };
        store.create(id, owner, Bytes::new(), LONG).await.unwrap();
    }
    let expected: Vec<WriteOutcome> = (0..100)
        .map(|i| match i % 10 {
            3 => WriteOutcome::NotFound,
            5 => WriteOutcome::NotOwner,
            _ => WriteOutcome::Applied,
        })
        .collect();
    let all: Vec<_> = ids.iter().map(|id| (id.clone(), news(vec![event(0, 1, id.clone())]))).collect();
    assert_eq!(store.write(&a, &all).await.unwrap(), expected);
    assert_eq!(store.touch(&ids, &a, LONG).await.unwrap(), expected);
    assert_eq!(store.write(&a, &[]).await.unwrap(), []);
    for (id, written) in ids.iter().zip(expected) {
        let events = store.read(id).await.unwrap();
        let kept = if written == WriteOutcome::Applied { vec![event(0, 1, id.clone())] } else { vec![] };
        assert_eq!(events, kept, "{id}");
    }
}

pub async fn names_may_have_any_letters(store: Arc<dyn ClusterStore>) {
    let names = ["", "{}", "}{", "a}b", "{a", "%7B", "ä b", "a\r\nb", "a/b", ":"];
    for name in names {
        let node = NodeId::begin(format!("n{name}"));
        assert!(store.create(name, &node, Bytes::from(name), LONG).await.unwrap(), "{name}");
        store.write(&node, &one(name, news(vec![event(0, 1, name)]))).await.unwrap();
        store.join(&node, LONG).await.unwrap();
        store.send(&node, vec![Bytes::from(name)], LONG).await.unwrap();
        assert_eq!(store.receive(&node).await.unwrap(), [name]);
    }
    for name in names {
        let kept = store.load(name).await.unwrap().unwrap();
        assert_eq!((kept.record.as_ref(), &**kept.owner.unwrap().name()), (name.as_bytes(), &*format!("n{name}")));
        assert_eq!(store.read(name).await.unwrap(), [event(0, 1, name)]);
    }
    assert_eq!(store.members().await.unwrap().len(), names.len());
}
