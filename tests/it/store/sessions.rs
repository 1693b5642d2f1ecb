//! Contract of the session and event stores.

use std::sync::Arc;

use bytes::Bytes;
use rialto::store::traits::{RecordWrite, SessionDelta, StoredSession, WriteOutcome};
use rialto::store::{ClusterStore, NodeId};

use super::{EXPIRING_TTL, LONG_TTL, SHORT_TTL, batch, delta, event, until};

pub async fn create_is_refused_for_an_existing_session(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::generate("a"), NodeId::generate("b"));
    assert_eq!(store.load("s").await.unwrap(), None);
    assert!(store.create("s", &a, Bytes::from_static(b"one"), LONG_TTL).await.unwrap());
    assert!(!store.create("s", &b, Bytes::from_static(b"two"), LONG_TTL).await.unwrap());
    let kept = StoredSession { owner: Some(a), record: Bytes::from_static(b"one"), changes: None };
    assert_eq!(store.load("s").await.unwrap(), Some(kept));
    assert_eq!(store.load("t").await.unwrap(), None);
    assert_eq!(store.read_events("s").await.unwrap(), []);
}

pub async fn claim_is_a_compare_and_set_on_the_owner(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::generate("a"), NodeId::generate("b"));
    assert_eq!(store.claim("s", None, Some(&a)).await.unwrap(), WriteOutcome::NotFound);
    store.create("s", &a, Bytes::from_static(b"r"), LONG_TTL).await.unwrap();
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
    // Another incarnation of the owner is another owner.
    assert_eq!(store.claim("s", Some(&a.next_incarnation()), Some(&b)).await.unwrap(), WriteOutcome::NotOwner);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "r");
}

pub async fn touch_renews_the_ttl_of_owned_sessions(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::generate("a"), NodeId::generate("b"));
    store.create("kept", &a, Bytes::new(), EXPIRING_TTL).await.unwrap();
    store.create("left", &a, Bytes::new(), EXPIRING_TTL).await.unwrap();
    store.create("other", &b, Bytes::new(), LONG_TTL).await.unwrap();
    let written = store
        .write_deltas(&a, &batch("kept", SessionDelta { ttl: EXPIRING_TTL, ..delta(vec![event(1, 1, "x")]) }))
        .await;
    assert_eq!(written.unwrap(), [WriteOutcome::Applied]);
    let ids = ["other", "kept", "none"].map(str::to_owned);
    let written = [WriteOutcome::NotOwner, WriteOutcome::Applied, WriteOutcome::NotFound];
    assert_eq!(store.touch(&ids, &a, LONG_TTL).await.unwrap(), written);
    assert_eq!(store.touch(&[], &a, LONG_TTL).await.unwrap(), []);
    until("the untouched session expires", async || store.load("left").await.unwrap().is_none()).await;
    assert!(store.load("kept").await.unwrap().is_some());
    assert_eq!(store.read_events("kept").await.unwrap().len(), 1);
}

pub async fn a_session_expires_with_its_events(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap();
    let short = SessionDelta { ttl: SHORT_TTL, ..delta(vec![event(0, 1, "x")]) };
    assert_eq!(store.write_deltas(&a, &batch("s", short)).await.unwrap(), [WriteOutcome::Applied]);
    until("the session expires", async || store.load("s").await.unwrap().is_none()).await;
    assert_eq!(store.read_events("s").await.unwrap(), []);
    assert_eq!(
        store.write_deltas(&a, &batch("s", delta(vec![event(0, 2, "y")]))).await.unwrap(),
        [WriteOutcome::NotFound]
    );
    assert_eq!(store.delete("s", &a).await.unwrap(), WriteOutcome::NotFound);
    assert_eq!(store.read_events("s").await.unwrap(), []);
    // A new session with the same id starts without events.
    assert!(store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap());
    assert_eq!(store.read_events("s").await.unwrap(), []);
}

pub async fn delete_leaves_a_tombstone_and_no_events(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::generate("a"), NodeId::generate("b"));
    store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap();
    store.write_deltas(&a, &batch("s", delta(vec![event(0, 1, "x")]))).await.unwrap();
    assert_eq!(store.delete("s", &b).await.unwrap(), WriteOutcome::NotOwner);
    assert_eq!(store.read_events("s").await.unwrap().len(), 1);
    assert_eq!(store.delete("s", &a).await.unwrap(), WriteOutcome::Applied);
    assert_eq!((store.load("s").await.unwrap(), store.read_events("s").await.unwrap()), (None, vec![]));
    // A tombstone stops every write by a former owner.
    assert_eq!(store.delete("s", &a).await.unwrap(), WriteOutcome::NotOwner);
    assert_eq!(
        store.write_deltas(&a, &batch("s", delta(vec![event(0, 2, "y")]))).await.unwrap(),
        [WriteOutcome::NotOwner]
    );
    assert_eq!(store.touch(&["s".into()], &a, LONG_TTL).await.unwrap(), [WriteOutcome::NotOwner]);
    assert_eq!(store.claim("s", Some(&a), Some(&b)).await.unwrap(), WriteOutcome::NotOwner);
    assert_eq!(store.claim("s", None, Some(&b)).await.unwrap(), WriteOutcome::NotOwner);
    assert!(!store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap());
    assert_eq!((store.load("s").await.unwrap(), store.read_events("s").await.unwrap()), (None, vec![]));
}

pub async fn only_the_owner_can_write(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::generate("a"), NodeId::generate("b"));
    store.create("s", &a, Bytes::from_static(b"old"), LONG_TTL).await.unwrap();
    let all = SessionDelta { record: Some(whole("new")), ..delta(vec![event(3, 1, "x"), event(0, 2, "y")]) };
    assert_eq!(store.write_deltas(&b, &batch("s", all.clone())).await.unwrap(), [WriteOutcome::NotOwner]);
    assert_eq!(store.write_deltas(&b, &batch("none", all.clone())).await.unwrap(), [WriteOutcome::NotFound]);
    // The refused write changed nothing.
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "old");
    assert_eq!(store.read_events("s").await.unwrap(), []);
    assert_eq!(store.read_events("none").await.unwrap(), []);
    assert_eq!(store.write_deltas(&a, &batch("s", all.clone())).await.unwrap(), [WriteOutcome::Applied]);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "new");
    assert_eq!(store.read_events("s").await.unwrap(), all.events);
    assert_eq!(store.write_deltas(&a, &batch("s", delta(vec![]))).await.unwrap(), [WriteOutcome::Applied]);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, "new");
    // The previous owner can no longer write.
    store.claim("s", Some(&a), Some(&b)).await.unwrap();
    assert_eq!(
        store.write_deltas(&a, &batch("s", delta(vec![event(0, 3, "z")]))).await.unwrap(),
        [WriteOutcome::NotOwner]
    );
    assert_eq!(
        store.write_deltas(&b, &batch("s", delta(vec![event(0, 3, "w")]))).await.unwrap(),
        [WriteOutcome::Applied]
    );
    assert_eq!(store.read_events("s").await.unwrap().last().unwrap().event, "w");
}

fn whole(record: &'static str) -> RecordWrite {
    RecordWrite::Whole(record.into())
}

pub async fn changes_are_kept_beside_the_record_until_it_is_written_whole(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    store.create("s", &a, Bytes::from_static(b"0"), LONG_TTL).await.unwrap();
    let write = async |version: u64, record: RecordWrite| {
        let all = SessionDelta { record: Some(record), version, ..delta(vec![]) };
        assert_eq!(store.write_deltas(&a, &batch("s", all)).await.unwrap(), [WriteOutcome::Applied]);
        let stored = store.load("s").await.unwrap().unwrap();
        (stored.record, stored.changes)
    };
    let changes = |text: &'static str| RecordWrite::Changes(text.into());
    let stored = |record: &'static str, changes: Option<&'static str>| (record.into(), changes.map(Bytes::from));
    assert_eq!(write(2, changes("2")).await, stored("0", Some("2")));
    assert_eq!(write(1, changes("1")).await, stored("0", Some("2")), "it is late");
    assert_eq!(write(1, whole("late")).await, stored("0", Some("2")), "so is this");
    assert_eq!(write(3, changes("3")).await, stored("0", Some("3")));
    assert_eq!(write(4, whole("4")).await, stored("4", None));
    assert_eq!(write(5, changes("5")).await, stored("4", Some("5")));
    store.delete("s", &a).await.unwrap();
    assert_eq!(store.load("s").await.unwrap(), None);
}

pub async fn a_record_with_an_older_version_is_ignored(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::generate("a"), NodeId::generate("b"));
    store.create("s", &a, Bytes::from_static(b"0"), LONG_TTL).await.unwrap();
    let write = async |node: &NodeId, version: u64, record: &'static str, events| {
        let all = SessionDelta { record: Some(whole(record)), version, ..delta(events) };
        assert_eq!(store.write_deltas(node, &batch("s", all)).await.unwrap(), [WriteOutcome::Applied]);
        store.load("s").await.unwrap().unwrap().record
    };
    assert_eq!(write(&a, 2, "2", vec![]).await, "2");
    assert_eq!(write(&a, 2, "2 again", vec![]).await, "2 again");
    // A stale record is dropped, but new events in the same delta are applied.
    assert_eq!(write(&a, 1, "1", vec![event(0, 1, "x")]).await, "2 again");
    assert_eq!(store.read_events("s").await.unwrap().len(), 1);
    assert_eq!(write(&a, 10, "10", vec![]).await, "10");
    assert_eq!(write(&a, 9, "9", vec![]).await, "10");
    // Versions continue across owners, also beyond 32 bits.
    store.claim("s", Some(&a), Some(&b)).await.unwrap();
    assert_eq!(write(&b, 9, "9", vec![]).await, "10");
    let large = 5 << 32;
    assert_eq!(write(&b, large + 1, "large", vec![]).await, "large");
    assert_eq!(write(&b, large, "late", vec![]).await, "large");
    assert_eq!(write(&b, large + 2, "larger", vec![]).await, "larger");
}

pub async fn events_before_keep_from_are_trimmed(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    store.create("s", &a, Bytes::new(), LONG_TTL).await.unwrap();
    let positions = async || {
        let events = store.read_events("s").await.unwrap();
        events.iter().map(|event| event.id.position).collect::<Vec<_>>()
    };
    let write = async |from: u64, to: u64, keep_from: u64| {
        let events = (from..to).map(|position| event(1, position, "x")).collect();
        let written =
            store.write_deltas(&a, &batch("s", SessionDelta { trim_before: keep_from, ..delta(events) })).await;
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

pub async fn events_may_be_large_and_binary(store: Arc<dyn ClusterStore>) {
    let a = NodeId::generate("a");
    let all: Bytes = (0..=255u8).chain(*b"\r\n$5\r\n\0").collect();
    store.create("s", &a, all.clone(), LONG_TTL).await.unwrap();
    let large: Bytes = (0..1 << 20).map(|i: u32| i.to_le_bytes()[(i % 3) as usize]).collect();
    let events = vec![event(0, 1, all.clone()), event(u32::MAX, 2, large), event(7, 3, Bytes::new())];
    let record = Bytes::from(vec![0xff; 1 << 20]);
    let written = store
        .write_deltas(
            &a,
            &batch("s", SessionDelta { record: Some(RecordWrite::Whole(record.clone())), ..delta(events.clone()) }),
        )
        .await;
    assert_eq!(written.unwrap(), [WriteOutcome::Applied]);
    assert_eq!(store.read_events("s").await.unwrap(), events);
    assert_eq!(store.load("s").await.unwrap().unwrap().record, record);
}

pub async fn a_batch_write_reports_each_session(store: Arc<dyn ClusterStore>) {
    let (a, b) = (NodeId::generate("a"), NodeId::generate("b"));
    let ids: Vec<String> = (0..100).map(|i| format!("s{i}")).collect();
    for (i, id) in ids.iter().enumerate().filter(|(i, _)| i % 10 != 3) {
        let owner = if i % 10 == 5 { &b } else { &a };
        store.create(id, owner, Bytes::new(), LONG_TTL).await.unwrap();
    }
    let expected: Vec<WriteOutcome> = (0..100)
        .map(|i| match i % 10 {
            3 => WriteOutcome::NotFound,
            5 => WriteOutcome::NotOwner,
            _ => WriteOutcome::Applied,
        })
        .collect();
    let all: Vec<_> = ids.iter().map(|id| (id.clone(), delta(vec![event(0, 1, id.clone())]))).collect();
    assert_eq!(store.write_deltas(&a, &all).await.unwrap(), expected);
    assert_eq!(store.touch(&ids, &a, LONG_TTL).await.unwrap(), expected);
    assert_eq!(store.write_deltas(&a, &[]).await.unwrap(), []);
    for (id, written) in ids.iter().zip(expected) {
        let events = store.read_events(id).await.unwrap();
        let kept = if written == WriteOutcome::Applied { vec![event(0, 1, id.clone())] } else { vec![] };
        assert_eq!(events, kept, "{id}");
    }
}

pub async fn ids_and_node_names_may_contain_any_character(store: Arc<dyn ClusterStore>) {
    let names = ["", "{}", "}{", "a}b", "{a", "%7B", "ä b", "a\r\nb", "a/b", ":"];
    for name in names {
        let node = NodeId::generate(format!("n{name}"));
        assert!(store.create(name, &node, Bytes::from(name), LONG_TTL).await.unwrap(), "{name}");
        store.write_deltas(&node, &batch(name, delta(vec![event(0, 1, name)]))).await.unwrap();
        store.join(&node, LONG_TTL).await.unwrap();
        store.send(&node, vec![Bytes::from(name)], LONG_TTL).await.unwrap();
        assert_eq!(store.receive(&node).await.unwrap(), [name]);
    }
    for name in names {
        let kept = store.load(name).await.unwrap().unwrap();
        assert_eq!((kept.record.as_ref(), &**kept.owner.unwrap().name()), (name.as_bytes(), &*format!("n{name}")));
        assert_eq!(store.read_events(name).await.unwrap(), [event(0, 1, name)]);
    }
    assert_eq!(store.members().await.unwrap().len(), names.len());
}
