//! Random sequences of session and event operations, compared with a reference model.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rialto::store::traits::{RecordWrite, SessionDelta, StoredEvent, StoredSession, WriteOutcome};
use rialto::store::{ClusterStore, MemoryStore, NodeId};

use super::{LONG_TTL, event};
use crate::redis::{RedisFlavor, RedisServer};

/// Operation on a session by a node, both by index. A node index of `NODES` stands for no owner.
#[derive(Debug, Clone)]
enum StoreStep {
    Create(usize, usize, Vec<u8>),
    Claim(usize, usize, usize),
    Touch(Vec<usize>, usize),
    Delete(usize, usize),
    Write(usize, Vec<ModelWrite>),
}

/// Session index, record with its version, events, and the position before which events are trimmed.
type ModelWrite = (usize, Option<(u64, RecordWrite)>, Vec<Vec<u8>>, u64);

const NODES: usize = 3;
const SESSIONS: usize = 4;

#[derive(Debug, Clone, PartialEq)]
struct ModelSession {
    owner: Option<NodeId>,
    record: Bytes,
    changes: Option<Bytes>,
    version: u64,
    events: Vec<StoredEvent>,
    last: u64,
    deleted: bool,
}

#[derive(Debug)]
struct Model {
    nodes: Vec<NodeId>,
    sessions: BTreeMap<usize, ModelSession>,
}

fn step() -> impl Strategy<Value = StoreStep> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..8);
    let (session, node) = (0..SESSIONS, 0..NODES);
    let record = (any::<bool>(), bytes()).prop_map(|(is_whole, record)| match is_whole {
        true => RecordWrite::Whole(record.into()),
        false => RecordWrite::Changes(record.into()),
    });
    let write = (
        session.clone(),
        prop::option::of((0..4u64, record)),
        prop::collection::vec(bytes(), 0..4),
        prop_oneof![Just(0), 0..20u64],
    );
    prop_oneof![
        2 => (session.clone(), node.clone(), bytes()).prop_map(|(s, n, r)| StoreStep::Create(s, n, r)),
        2 => (session.clone(), 0..=NODES, 0..=NODES).prop_map(|(s, from, to)| StoreStep::Claim(s, from, to)),
        1 => (prop::collection::vec(session.clone(), 0..5), node.clone()).prop_map(|(s, n)| StoreStep::Touch(s, n)),
        1 => (session, node.clone()).prop_map(|(s, n)| StoreStep::Delete(s, n)),
        5 => (node, prop::collection::vec(write, 0..4)).prop_map(|(n, w)| StoreStep::Write(n, w)),
    ]
}

impl Model {
    fn owned(&mut self, session: usize, node: usize) -> Result<&mut ModelSession, WriteOutcome> {
        match self.sessions.get_mut(&session) {
            None => Err(WriteOutcome::NotFound),
            Some(kept) if !kept.deleted && kept.owner.as_ref() == Some(&self.nodes[node]) => Ok(kept),
            Some(_) => Err(WriteOutcome::NotOwner),
        }
    }

    /// Applies a step to the store and to the model and compares the outcomes.
    async fn take(&mut self, store: &dyn ClusterStore, step: StoreStep) {
        let id = |session: usize| format!("s{session}");
        match step {
            StoreStep::Create(session, node, record) => {
                let (record, owner) = (Bytes::from(record), self.nodes[node].clone());
                let done = store.create(&id(session), &owner, record.clone(), LONG_TTL).await.unwrap();
                assert_eq!(done, !self.sessions.contains_key(&session));
                let (owner, events) = (Some(owner), vec![]);
                let new = ModelSession { owner, record, changes: None, version: 0, events, last: 0, deleted: false };
                self.sessions.entry(session).or_insert(new);
            }
            StoreStep::Claim(session, from, to) => {
                let (from, to) = (self.nodes.get(from).cloned(), self.nodes.get(to).cloned());
                let expected = match self.sessions.get_mut(&session) {
                    None => WriteOutcome::NotFound,
                    Some(kept) if !kept.deleted && kept.owner == from => {
                        kept.owner.clone_from(&to);
                        WriteOutcome::Applied
                    }
                    Some(_) => WriteOutcome::NotOwner,
                };
                assert_eq!(store.claim(&id(session), from.as_ref(), to.as_ref()).await.unwrap(), expected);
            }
            StoreStep::Touch(sessions, node) => {
                let ids: Vec<String> = sessions.iter().map(|session| id(*session)).collect();
                let one = |session: &usize| self.owned(*session, node).err().unwrap_or(WriteOutcome::Applied);
                let expected: Vec<WriteOutcome> = sessions.iter().map(one).collect();
                assert_eq!(store.touch(&ids, &self.nodes[node], LONG_TTL).await.unwrap(), expected);
            }
            StoreStep::Delete(session, node) => {
                let expected = self.owned(session, node).err().unwrap_or(WriteOutcome::Applied);
                assert_eq!(store.delete(&id(session), &self.nodes[node]).await.unwrap(), expected);
                if let Ok(kept) = self.owned(session, node) {
                    (kept.deleted, kept.events) = (true, vec![]);
                }
            }
            StoreStep::Write(node, writes) => self.write(store, node, writes).await,
        }
    }

    async fn write(&mut self, store: &dyn ClusterStore, node: usize, writes: Vec<ModelWrite>) {
        let (mut all, mut expected) = (Vec::new(), Vec::new());
        for (session, record, events, keep_from) in writes {
            let (version, record) = record.map_or((0, None), |(version, record)| (version, Some(record)));
            let kept = self.owned(session, node);
            let mut last = kept.as_ref().map_or(0, |kept| kept.last);
            let mut next = |bytes| {
                last += 1;
                event(u32::try_from(last % 3).unwrap(), last, bytes)
            };
            let events: Vec<StoredEvent> = events.into_iter().map(&mut next).collect();
            expected.push(match kept {
                Err(why) => why,
                Ok(kept) => {
                    if let Some(record) = record.clone().filter(|_| version >= kept.version) {
                        kept.version = version;
                        match record {
                            RecordWrite::Whole(record) => (kept.record, kept.changes) = (record, None),
                            RecordWrite::Changes(changes) => kept.changes = Some(changes),
                        }
                    }
                    kept.events.extend(events.clone());
                    kept.events.retain(|event| event.id.position >= keep_from);
                    kept.last += events.len() as u64;
                    WriteOutcome::Applied
                }
            });
            all.push((
                format!("s{session}"),
                SessionDelta { record, version, events, trim_before: keep_from, ttl: LONG_TTL },
            ));
        }
        assert_eq!(store.write_deltas(&self.nodes[node], &all).await.unwrap(), expected);
    }

    async fn compare(&self, store: &dyn ClusterStore) {
        for session in 0..SESSIONS {
            let (id, kept) = (format!("s{session}"), self.sessions.get(&session));
            let found = store.load(&id).await.unwrap();
            let there = kept.filter(|kept| !kept.deleted);
            let expected = there.map(|kept| StoredSession {
                owner: kept.owner.clone(),
                record: kept.record.clone(),
                changes: kept.changes.clone(),
            });
            assert_eq!(found, expected);
            assert_eq!(store.read_events(&id).await.unwrap(), kept.map(|kept| kept.events.clone()).unwrap_or_default());
        }
    }
}

/// Runs `cases` random sequences, each on a new store.
fn check_random_steps(cases: u32, runtime: &tokio::runtime::Runtime, new: impl Fn() -> Arc<dyn ClusterStore>) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let steps = prop::collection::vec(step(), 1..40);
    let run = TestRunner::new(config).run(&steps, |steps| {
        runtime.block_on(async {
            let store = new();
            let nodes = (0..NODES).map(|i| NodeId::generate(format!("n{i}"))).collect();
            let mut model = Model { nodes, sessions: BTreeMap::new() };
            for step in steps {
                model.take(&*store, step).await;
            }
            model.compare(&*store).await;
        });
        Ok(())
    });
    run.unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn random_steps_match_the_model_in_memory() {
    check_random_steps(256, &runtime(), || MemoryStore::new());
}

#[test]
fn random_steps_match_the_model_in_redis() {
    on(RedisFlavor::Redis);
}

#[test]
fn random_steps_match_the_model_in_valkey() {
    on(RedisFlavor::Valkey);
}

fn on(program: RedisFlavor) {
    use std::sync::atomic::{AtomicU32, Ordering};
    let runtime = runtime();
    let server = runtime.block_on(RedisServer::start(program));
    let count = AtomicU32::new(0);
    let url = server.url();
    check_random_steps(64, &runtime, || {
        let prefix = format!("p{}", count.fetch_add(1, Ordering::Relaxed));
        rialto::store::RedisStore::connect(&url, &prefix, rialto::store::redis::RedisOptions::default()).unwrap()
    });
}
