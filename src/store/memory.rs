//! A store in the memory of one process. Several nodes in that process can share it, which is how
//! tests and those who embed the gateway run a cluster without a server.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::traits::{
    EventStore, NodeStatus, NodeStore, SessionDelta, SessionStore, StoreFuture, StoredEvent, StoredSession,
    WriteOutcome,
};
use super::{ClusterStore, NodeId, StoreError};

/// A store in memory.
#[derive(Debug, Default)]
pub struct Memory {
    all: Mutex<All>,
    sent: Notify,
}

#[derive(Debug, Default)]
struct All {
    sessions: HashMap<String, Kept>,
    nodes: BTreeMap<Arc<str>, (NodeId, Instant)>,
    mail: HashMap<NodeId, Mail>,
    places: HashMap<String, (NodeId, Instant)>,
    secret: Option<Bytes>,
}

#[derive(Debug)]
struct Kept {
    owner: Option<NodeId>,
    /// Nothing once it was deleted.
    record: Option<Bytes>,
    version: u64,
    events: VecDeque<StoredEvent>,
    until: Instant,
}

#[derive(Debug)]
struct Mail {
    messages: VecDeque<Bytes>,
    until: Instant,
}

impl ClusterStore for Memory {}

/// How long one who receives waits for a message.
const WAIT: Duration = Duration::from_secs(1);

impl Memory {
    /// A store with nothing in it.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What is there now; what has outlived its time is not.
    fn lock(&self) -> MutexGuard<'_, All> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        all.sessions.retain(|_, kept| kept.until > now);
        all.nodes.retain(|_, (_, until)| *until > now);
        all.mail.retain(|_, mail| mail.until > now);
        all.places.retain(|_, (_, until)| *until > now);
        all
    }
}

/// Something that is known at once.
fn at_once<'a, T: Send + 'a>(value: T) -> StoreFuture<'a, T> {
    Box::pin(std::future::ready(Ok::<T, StoreError>(value)))
}

impl All {
    fn owned(&mut self, id: &str, owner: &NodeId) -> Result<&mut Kept, WriteOutcome> {
        match self.sessions.get_mut(id) {
            None => Err(WriteOutcome::NotFound),
            Some(kept) if kept.record.is_some() && kept.owner.as_ref() == Some(owner) => Ok(kept),
            Some(_) => Err(WriteOutcome::NotOwner),
        }
    }

    fn standing(&self, node: &NodeId) -> NodeStatus {
        match self.nodes.get(node.name()) {
            None => NodeStatus::Expired,
            Some((there, _)) if there == node => NodeStatus::Alive,
            Some(_) => NodeStatus::Replaced,
        }
    }
}

impl SessionStore for Memory {
    fn create<'a>(&'a self, id: &'a str, owner: &'a NodeId, record: Bytes, life: Duration) -> StoreFuture<'a, bool> {
        let mut all = self.lock();
        if all.sessions.contains_key(id) {
            return at_once(false);
        }
        let until = Instant::now() + life;
        let (owner, record, events) = (Some(owner.clone()), Some(record), VecDeque::new());
        let kept = Kept { owner, record, version: 0, events, until };
        all.sessions.insert(id.to_owned(), kept);
        at_once(true)
    }

    fn load<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<StoredSession>> {
        let all = self.lock();
        let found = |kept: &Kept| Some(StoredSession { owner: kept.owner.clone(), record: kept.record.clone()? });
        at_once(all.sessions.get(id).and_then(found))
    }

    fn claim<'a>(
        &'a self,
        id: &'a str,
        from: Option<&'a NodeId>,
        to: Option<&'a NodeId>,
    ) -> StoreFuture<'a, WriteOutcome> {
        let mut all = self.lock();
        at_once(match all.sessions.get_mut(id) {
            None => WriteOutcome::NotFound,
            Some(kept) if kept.record.is_some() && kept.owner.as_ref() == from => {
                kept.owner = to.cloned();
                WriteOutcome::Applied
            }
            Some(_) => WriteOutcome::NotOwner,
        })
    }

    fn touch<'a>(&'a self, ids: &'a [String], owner: &'a NodeId, life: Duration) -> StoreFuture<'a, Vec<WriteOutcome>> {
        let mut all = self.lock();
        let until = Instant::now() + life;
        let one = |id: &String| match all.owned(id, owner) {
            Ok(kept) => {
                kept.until = until;
                WriteOutcome::Applied
            }
            Err(why) => why,
        };
        at_once(ids.iter().map(one).collect())
    }

    fn delete<'a>(&'a self, id: &'a str, owner: &'a NodeId) -> StoreFuture<'a, WriteOutcome> {
        let mut all = self.lock();
        at_once(match all.owned(id, owner) {
            Ok(kept) => {
                (kept.record, kept.events) = (None, VecDeque::new());
                WriteOutcome::Applied
            }
            Err(why) => why,
        })
    }
}

impl EventStore for Memory {
    fn write<'a>(
        &'a self,
        owner: &'a NodeId,
        news: &'a [(String, SessionDelta)],
    ) -> StoreFuture<'a, Vec<WriteOutcome>> {
        let mut all = self.lock();
        let now = Instant::now();
        let one = |(id, news): &(String, SessionDelta)| match all.owned(id, owner) {
            Ok(kept) => {
                if let Some(record) = news.record.as_ref().filter(|_| news.version >= kept.version) {
                    (kept.record, kept.version) = (Some(record.clone()), news.version);
                }
                let last = kept.events.back().map_or(0, |event| event.id.position);
                kept.events.extend(news.events.iter().filter(|event| event.id.position > last).cloned());
                while kept.events.front().is_some_and(|event| event.id.position < news.keep_from) {
                    kept.events.pop_front();
                }
                kept.until = now + news.life;
                WriteOutcome::Applied
            }
            Err(why) => why,
        };
        at_once(news.iter().map(one).collect())
    }

    fn read<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Vec<StoredEvent>> {
        let all = self.lock();
        at_once(all.sessions.get(id).map(|kept| kept.events.iter().cloned().collect()).unwrap_or_default())
    }
}

impl NodeStore for Memory {
    fn join<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, ()> {
        self.lock().nodes.insert(Arc::clone(node.name()), (node.clone(), Instant::now() + life));
        at_once(())
    }

    fn heartbeat<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, NodeStatus> {
        let mut all = self.lock();
        let until = Instant::now() + life;
        let standing = all.standing(node);
        if standing == NodeStatus::Alive {
            all.nodes.insert(Arc::clone(node.name()), (node.clone(), until));
            if let Some(mail) = all.mail.get_mut(node) {
                mail.until = until;
            }
        }
        at_once(standing)
    }

    fn leave<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, ()> {
        let mut all = self.lock();
        if all.standing(node) == NodeStatus::Alive {
            all.nodes.remove(node.name());
        }
        at_once(())
    }

    fn node_status<'a>(&'a self, nodes: &'a [NodeId]) -> StoreFuture<'a, Vec<NodeStatus>> {
        let all = self.lock();
        at_once(nodes.iter().map(|node| all.standing(node)).collect())
    }

    fn named<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<NodeId>> {
        at_once(self.lock().nodes.get(name).map(|(node, _)| node.clone()))
    }

    fn members(&self) -> StoreFuture<'_, Vec<NodeId>> {
        at_once(self.lock().nodes.values().map(|(node, _)| node.clone()).collect())
    }

    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, life: Duration) -> StoreFuture<'a, ()> {
        let mut all = self.lock();
        let until = Instant::now() + life;
        let mail = all.mail.entry(to.clone()).or_insert_with(|| Mail { messages: VecDeque::new(), until });
        mail.messages.extend(messages);
        mail.until = until;
        drop(all);
        self.sent.notify_waiters();
        at_once(())
    }

    fn receive<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, Vec<Bytes>> {
        Box::pin(async move {
            let end = Instant::now() + WAIT;
            loop {
                let sent = self.sent.notified();
                tokio::pin!(sent);
                sent.as_mut().enable();
                let taken: Vec<Bytes> = match self.lock().mail.get_mut(node) {
                    Some(mail) => mail.messages.drain(..).collect(),
                    None => Vec::new(),
                };
                if !taken.is_empty() || tokio::time::timeout_at(end, sent).await.is_err() {
                    return Ok(taken);
                }
            }
        })
    }

    fn unsend<'a>(&'a self, to: &'a NodeId, message: Bytes) -> StoreFuture<'a, bool> {
        let mut all = self.lock();
        let Some(mail) = all.mail.get_mut(to) else { return at_once(false) };
        let before = mail.messages.len();
        mail.messages.retain(|waiting| *waiting != message);
        at_once(mail.messages.len() < before)
    }

    fn place_of<'a>(
        &'a self,
        name: &'a str,
        node: &'a NodeId,
        instead_of: Option<&'a NodeId>,
        life: Duration,
    ) -> StoreFuture<'a, NodeId> {
        let mut all = self.lock();
        if let Some((holder, _)) = all.places.get(name)
            && holder != node
            && Some(holder) != instead_of
        {
            return at_once(holder.clone());
        }
        all.places.insert(name.to_owned(), (node.clone(), Instant::now() + life));
        at_once(node.clone())
    }

    fn shared_key(&self, offered: Bytes) -> StoreFuture<'_, Bytes> {
        at_once(self.lock().secret.get_or_insert(offered).clone())
    }
}
