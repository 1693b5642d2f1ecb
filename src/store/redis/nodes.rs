//! Nodes and their mailboxes in Redis.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, Value};

use super::connection::LazyConnection;
use super::error::RedisFailure;
use super::scripts::{BEAT, ENROLL, JOIN, LEAVE, PLACE, REPLY, SECRET, SEND, Script};
use super::{Redis, millis};
use crate::store::traits::{NodeStatus, NodeStore, StoreFuture};
use crate::store::{NodeId, StoreError};

/// One who waits for the messages to a node.
///
/// Taking goes on when nobody waits for it any longer, as Redis may have handed messages out by then.
/// They stay here until somebody asks again.
#[derive(Debug)]
pub(super) struct Receiver {
    link: LazyConnection,
    /// One takes at a time.
    turn: tokio::sync::Mutex<()>,
    taken: Mutex<VecDeque<Bytes>>,
}

/// How long one who receives waits for a message.
const WAIT: Duration = Duration::from_secs(1);
/// Messages that are taken at once.
const AT_ONCE: usize = 128;
/// How long the secret is kept after the last beat of any node.
const SECRET_LIFE: Duration = Duration::from_secs(30 * 86_400);

impl Redis {
    /// Says that there is a node of that name.
    fn enroll(&self, node: &NodeId, life: Duration) -> Cmd {
        let mut command = ENROLL.on(&[&self.keys.nodes()]);
        command.arg(&**node.name()).arg(millis(life));
        command
    }

    /// Says that a node is there. That it is listed can wait until there is room for it.
    async fn list(&self, there: Cmd, node: &NodeId, life: Duration) -> Result<Value, StoreError> {
        let mut secret = redis::cmd("PEXPIRE");
        secret.arg(self.keys.secret()).arg(millis(SECRET_LIFE));
        let mut answers = self.link.ask_each(vec![there, self.enroll(node, life), secret]).await?.into_iter();
        let there = answers.next().unwrap_or(Ok(Value::Nil))?;
        if answers.next().is_some_and(|listed| listed.is_ok()) {
            self.server.full.store(false, Ordering::Relaxed);
        }
        Ok(there)
    }

    async fn put(&self, script: &Script, to: &NodeId, messages: &[Bytes], life: Duration) -> Result<(), StoreError> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut command = script.on(&[&self.keys.mailbox(to)]);
        command.arg(millis(life));
        for message in messages {
            command.arg(&message[..]);
        }
        self.link.ask(vec![command]).await?;
        Ok(())
    }

    /// Asks who has a name.
    fn who(&self, name: &str) -> Cmd {
        let mut command = redis::cmd("GET");
        command.arg(self.keys.node(name));
        command
    }

    fn receiver(&self, node: &NodeId) -> Arc<Receiver> {
        let mut receivers = self.receivers.lock().unwrap_or_else(PoisonError::into_inner);
        // A node that began a new life waits for nothing in its old one.
        receivers.retain(|other, _| other == node || other.name() != node.name());
        let new = || Arc::new(Receiver::new(LazyConnection::new(Arc::clone(&self.server), WAIT)));
        Arc::clone(receivers.entry(node.clone()).or_insert_with(new))
    }
}

// === impl Receiver ===

impl Receiver {
    fn new(link: LazyConnection) -> Self {
        Self { link, turn: tokio::sync::Mutex::default(), taken: Mutex::default() }
    }

    /// Waits for messages, unless there are some already.
    async fn wait(&self, mailbox: &str) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        if !self.taken.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("BLMPOP");
        command.arg(WAIT.as_secs_f64()).arg(1).arg(mailbox).arg("LEFT").arg("COUNT").arg(AT_ONCE);
        let answer = self.link.ask(vec![command]).await?.pop().unwrap_or(Value::Nil);
        let unread = |_| StoreError { why: "what was in a mailbox cannot be understood".into(), maybe_applied: true };
        let found: Option<(Value, Vec<Bytes>)> = redis::from_redis_value(answer).map_err(unread)?;
        let messages = found.map(|(_, messages)| messages).unwrap_or_default();
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).extend(messages);
        Ok(())
    }

    fn take(&self) -> Vec<Bytes> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

impl NodeStore for Redis {
    fn join<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let mut there = JOIN.on(&[&self.keys.node(node.name())]);
            there.arg(node.to_string()).arg(millis(life));
            self.list(there, node, life).await?;
            Ok(())
        })
    }

    fn heartbeat<'a>(&'a self, node: &'a NodeId, life: Duration) -> StoreFuture<'a, NodeStatus> {
        Box::pin(async move {
            let mut still = BEAT.on(&[&self.keys.node(node.name()), &self.keys.mailbox(node)]);
            still.arg(node.to_string()).arg(millis(life));
            let standing = self.list(still, node, life).await?;
            match self.read::<u8>(standing)? {
                0 => Ok(NodeStatus::Expired),
                1 => Ok(NodeStatus::Alive),
                2 => Ok(NodeStatus::Replaced),
                _ => Err(RedisFailure::unexpected(&self.server).away),
            }
        })
    }

    fn leave<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let mut command = LEAVE.on(&[&self.keys.node(node.name())]);
            command.arg(node.to_string());
            self.link.ask(vec![command]).await?;
            Ok(())
        })
    }

    fn node_status<'a>(&'a self, nodes: &'a [NodeId]) -> StoreFuture<'a, Vec<NodeStatus>> {
        Box::pin(async move {
            let answers = self.link.ask(nodes.iter().map(|node| self.who(node.name())).collect()).await?;
            let one = |(node, answer): (&NodeId, Value)| {
                Ok(match self.read::<Option<String>>(answer)? {
                    None => NodeStatus::Expired,
                    Some(there) if there == node.to_string() => NodeStatus::Alive,
                    Some(_) => NodeStatus::Replaced,
                })
            };
            nodes.iter().zip(answers).map(one).collect()
        })
    }

    fn named<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<NodeId>> {
        Box::pin(async move {
            let there: Option<String> = self.only(self.link.ask(vec![self.who(name)]).await?)?;
            Ok(there.as_deref().and_then(NodeId::parse))
        })
    }

    fn members(&self) -> StoreFuture<'_, Vec<NodeId>> {
        Box::pin(async move {
            let mut command = redis::cmd("SMEMBERS");
            command.arg(self.keys.nodes());
            let mut names: Vec<String> = self.only(self.link.ask(vec![command]).await?)?;
            names.sort_unstable();
            let answers = self.link.ask(names.iter().map(|name| self.who(name)).collect()).await?;
            let mut members = Vec::with_capacity(names.len());
            let mut gone = Vec::new();
            for (name, answer) in names.iter().zip(answers) {
                match self.read::<Option<String>>(answer)?.as_deref().and_then(NodeId::parse) {
                    Some(node) => members.push(node),
                    None => gone.push(name.as_str()),
                }
            }
            // One that comes back in this moment is enrolled again by its next beat.
            if !gone.is_empty() {
                let mut command = redis::cmd("SREM");
                command.arg(self.keys.nodes()).arg(gone);
                self.link.ask(vec![command]).await?;
            }
            Ok(members)
        })
    }

    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, life: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.put(&SEND, to, &messages, life).await })
    }

    fn reply<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, life: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.put(&REPLY, to, &messages, life).await })
    }

    fn receive<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, Vec<Bytes>> {
        Box::pin(async move {
            let receiver = self.receiver(node);
            let (waiting, mailbox) = (Arc::clone(&receiver), self.keys.mailbox(node));
            let waited = tokio::spawn(async move { waiting.wait(&mailbox).await }).await;
            waited.unwrap_or_else(|_| Err(RedisFailure::unexpected(&self.server).away))?;
            Ok(receiver.take())
        })
    }

    fn unsend<'a>(&'a self, to: &'a NodeId, message: Bytes) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut command = redis::cmd("LREM");
            command.arg(self.keys.mailbox(to)).arg(0).arg(&message[..]);
            Ok(self.only::<u64>(self.link.ask(vec![command]).await?)? > 0)
        })
    }

    fn place_of<'a>(
        &'a self,
        name: &'a str,
        node: &'a NodeId,
        instead_of: Option<&'a NodeId>,
        life: Duration,
    ) -> StoreFuture<'a, NodeId> {
        Box::pin(async move {
            let mut command = PLACE.on(&[&self.keys.place(name)]);
            let before = instead_of.map(ToString::to_string).unwrap_or_default();
            command.arg(node.to_string()).arg(before).arg(millis(life));
            let holder: String = self.only(self.link.ask(vec![command]).await?)?;
            NodeId::parse(&holder).ok_or_else(|| RedisFailure::unexpected(&self.server).away)
        })
    }

    fn shared_key(&self, offered: Bytes) -> StoreFuture<'_, Bytes> {
        Box::pin(async move {
            let mut command = SECRET.on(&[&self.keys.secret()]);
            command.arg(&offered[..]).arg(millis(SECRET_LIFE));
            self.only(self.link.ask(vec![command]).await?)
        })
    }
}
