//! Cluster members and their mailboxes in Redis.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use redis::{Cmd, Value};

use super::connection::{ConnectionRole, LazyConnection};
use super::error::RedisFailure;
use super::scripts::{ADD_MEMBER, CLAIM_AFFINITY, HEARTBEAT, JOIN, LEAVE, REPLY, SEND, SHARED_KEY};
use super::{RedisStore, ttl_millis};
use crate::store::traits::{MailboxLimits, NodeStatus, NodeStore, SendOutcome, StoreFuture};
use crate::store::{NodeId, StoreError};

/// Receives the mailbox of one node.
///
/// `fill` runs in a task of its own, so that dropping `receive` does not lose messages which Redis has already
/// popped. They stay in the buffer for the next `receive`.
#[derive(Debug)]
pub(super) struct MailboxReceiver {
    connection: LazyConnection,
    /// Serializes `BLMPOP` calls.
    receive_lock: tokio::sync::Mutex<()>,
    buffered: Mutex<VecDeque<Bytes>>,
}

/// Longest block of `BLMPOP`.
const REDIS_RECEIVE_WAIT: Duration = Duration::from_secs(1);
/// Most messages taken by one `BLMPOP`.
const RECEIVE_BATCH: usize = 128;
/// Time to live of the shared key after the last heartbeat of any node.
const SHARED_KEY_TTL: Duration = Duration::from_secs(30 * 86_400);

impl RedisStore {
    /// Command that adds the node's name to the member set.
    fn add_member_command(&self, node: &NodeId, ttl: Duration) -> Cmd {
        let mut command = ADD_MEMBER.evalsha(&[&self.keys.nodes()]);
        command.arg(&**node.name()).arg(ttl_millis(ttl));
        command
    }

    /// On the connection of the heartbeat: runs a join or heartbeat command, adds the node to the member set and renews the shared key. Only the first may
    /// fail the operation: at `maxmemory` the member set cannot grow.
    async fn register_member(&self, lease_command: Cmd, node: &NodeId, ttl: Duration) -> Result<Value, StoreError> {
        let mut renew_key = redis::cmd("PEXPIRE");
        renew_key.arg(self.keys.shared_key()).arg(ttl_millis(SHARED_KEY_TTL));
        let mut replies = self
            .heartbeat_connection
            .execute_each(vec![lease_command, self.add_member_command(node, ttl), renew_key])
            .await?
            .into_iter();
        let lease_reply = replies.next().unwrap_or(Ok(Value::Nil))?;
        if replies.next().is_some_and(|added| added.is_ok()) {
            self.server.out_of_memory.store(false, Ordering::Relaxed);
        }
        Ok(lease_reply)
    }

    /// Command that reads the live incarnation of a node name.
    fn get_node_command(&self, name: &str) -> Cmd {
        let mut command = redis::cmd("GET");
        command.arg(self.keys.node(name));
        command
    }

    fn receiver(&self, node: &NodeId) -> Arc<MailboxReceiver> {
        let mut receivers = self.receivers.lock();
        // The mailbox of an old incarnation is not read any more.
        receivers.retain(|other, _| other == node || other.name() != node.name());
        let role = ConnectionRole::Mailbox { max_block: REDIS_RECEIVE_WAIT };
        let new = || Arc::new(MailboxReceiver::new(LazyConnection::new(Arc::clone(&self.server), role)));
        Arc::clone(receivers.entry(node.clone()).or_insert_with(new))
    }
}

// === impl MailboxReceiver ===

impl MailboxReceiver {
    fn new(connection: LazyConnection) -> Self {
        Self { connection, receive_lock: tokio::sync::Mutex::default(), buffered: Mutex::default() }
    }

    /// Fills the buffer from the mailbox, blocking up to [`REDIS_RECEIVE_WAIT`], unless it holds messages already.
    async fn fill(&self, mailbox: &str) -> Result<(), StoreError> {
        let _guard = self.receive_lock.lock().await;
        if !self.buffered.lock().is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("BLMPOP");
        command.arg(REDIS_RECEIVE_WAIT.as_secs_f64()).arg(1).arg(mailbox).arg("LEFT").arg("COUNT").arg(RECEIVE_BATCH);
        let reply = self.connection.execute(vec![command]).await?.pop().unwrap_or(Value::Nil);
        let undecodable = |_| StoreError { reason: "mailbox reply cannot be decoded".into(), maybe_applied: true };
        let found: Option<(Value, Vec<Bytes>)> = redis::from_redis_value(reply).map_err(undecodable)?;
        let messages = found.map(|(_, messages)| messages).unwrap_or_default();
        self.buffered.lock().extend(messages);
        Ok(())
    }

    fn drain(&self) -> Vec<Bytes> {
        self.buffered.lock().drain(..).collect()
    }
}

impl NodeStore for RedisStore {
    fn join<'a>(&'a self, node: &'a NodeId, ttl: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let mut lease_command = JOIN.evalsha(&[&self.keys.node(node.name())]);
            lease_command.arg(node.to_string()).arg(ttl_millis(ttl));
            self.register_member(lease_command, node, ttl).await?;
            Ok(())
        })
    }

    fn heartbeat<'a>(&'a self, node: &'a NodeId, ttl: Duration) -> StoreFuture<'a, NodeStatus> {
        Box::pin(async move {
            let mut heartbeat = HEARTBEAT.evalsha(&[&self.keys.node(node.name()), &self.keys.mailbox(node)]);
            heartbeat.arg(node.to_string()).arg(ttl_millis(ttl));
            let status = self.register_member(heartbeat, node, ttl).await?;
            match self.decode_reply::<u8>(status)? {
                0 => Ok(NodeStatus::Expired),
                1 => Ok(NodeStatus::Alive),
                2 => Ok(NodeStatus::Replaced),
                _ => Err(RedisFailure::unexpected_reply(&self.server).error),
            }
        })
    }

    fn leave<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let mut command = LEAVE.evalsha(&[&self.keys.node(node.name())]);
            command.arg(node.to_string());
            self.connection.execute(vec![command]).await?;
            Ok(())
        })
    }

    fn node_status<'a>(&'a self, nodes: &'a [NodeId]) -> StoreFuture<'a, Vec<NodeStatus>> {
        Box::pin(async move {
            let replies =
                self.connection.execute(nodes.iter().map(|node| self.get_node_command(node.name())).collect()).await?;
            let status = |(node, reply): (&NodeId, Value)| {
                Ok(match self.decode_reply::<Option<String>>(reply)? {
                    None => NodeStatus::Expired,
                    Some(live) if live == node.to_string() => NodeStatus::Alive,
                    Some(_) => NodeStatus::Replaced,
                })
            };
            nodes.iter().zip(replies).map(status).collect()
        })
    }

    fn find_node<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<NodeId>> {
        Box::pin(async move {
            let live: Option<String> =
                self.decode_single(self.connection.execute(vec![self.get_node_command(name)]).await?)?;
            Ok(live.as_deref().and_then(NodeId::parse))
        })
    }

    fn members(&self) -> StoreFuture<'_, Vec<NodeId>> {
        Box::pin(async move {
            let mut command = redis::cmd("SMEMBERS");
            command.arg(self.keys.nodes());
            let mut names: Vec<String> = self.decode_single(self.connection.execute(vec![command]).await?)?;
            names.sort_unstable();
            let replies =
                self.connection.execute(names.iter().map(|name| self.get_node_command(name)).collect()).await?;
            let mut members = Vec::with_capacity(names.len());
            let mut expired = Vec::new();
            for (name, reply) in names.iter().zip(replies) {
                match self.decode_reply::<Option<String>>(reply)?.as_deref().and_then(NodeId::parse) {
                    Some(node) => members.push(node),
                    None => expired.push(name.as_str()),
                }
            }
            // A node that joins concurrently is added again by its next heartbeat.
            if !expired.is_empty() {
                let mut command = redis::cmd("SREM");
                command.arg(self.keys.nodes()).arg(expired);
                self.connection.execute(vec![command]).await?;
            }
            Ok(members)
        })
    }

    fn send<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, ttl: Duration) -> StoreFuture<'a, SendOutcome> {
        Box::pin(async move {
            let MailboxLimits { messages: max_messages, bytes: max_bytes } = MailboxLimits::DEFAULT;
            let mut command = SEND.evalsha(&[&self.keys.mailbox(to)]);
            command.arg(ttl_millis(ttl)).arg(max_messages).arg(max_bytes);
            for message in &messages {
                command.arg(&message[..]);
            }
            Ok(match self.decode_single(self.connection.execute(vec![command]).await?)? {
                true => SendOutcome::Sent,
                false => SendOutcome::MailboxFull,
            })
        })
    }

    fn reply<'a>(&'a self, to: &'a NodeId, messages: Vec<Bytes>, ttl: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let mut command = REPLY.evalsha(&[&self.keys.mailbox(to)]);
            command.arg(ttl_millis(ttl));
            for message in &messages {
                command.arg(&message[..]);
            }
            self.connection.execute(vec![command]).await?;
            Ok(())
        })
    }

    fn receive<'a>(&'a self, node: &'a NodeId) -> StoreFuture<'a, Vec<Bytes>> {
        Box::pin(async move {
            let receiver = self.receiver(node);
            let (filler, mailbox) = (Arc::clone(&receiver), self.keys.mailbox(node));
            let filled = tokio::spawn(async move { filler.fill(&mailbox).await }).await;
            filled.unwrap_or_else(|_| Err(RedisFailure::unexpected_reply(&self.server).error))?;
            Ok(receiver.drain())
        })
    }

    fn unsend<'a>(&'a self, to: &'a NodeId, message: Bytes) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut command = redis::cmd("LREM");
            command.arg(self.keys.mailbox(to)).arg(0).arg(&message[..]);
            Ok(self.decode_single::<u64>(self.connection.execute(vec![command]).await?)? > 0)
        })
    }

    fn claim_affinity<'a>(
        &'a self,
        name: &'a str,
        node: &'a NodeId,
        instead_of: Option<&'a NodeId>,
        ttl: Duration,
    ) -> StoreFuture<'a, NodeId> {
        Box::pin(async move {
            let mut command = CLAIM_AFFINITY.evalsha(&[&self.keys.affinity(name)]);
            let replaced = instead_of.map(ToString::to_string).unwrap_or_default();
            command.arg(node.to_string()).arg(replaced).arg(ttl_millis(ttl));
            let owner: String = self.decode_single(self.connection.execute(vec![command]).await?)?;
            NodeId::parse(&owner).ok_or_else(|| RedisFailure::unexpected_reply(&self.server).error)
        })
    }

    fn shared_key(&self, offered: Bytes) -> StoreFuture<'_, Bytes> {
        Box::pin(async move {
            let mut command = SHARED_KEY.evalsha(&[&self.keys.shared_key()]);
            command.arg(&offered[..]).arg(ttl_millis(SHARED_KEY_TTL));
            self.decode_single(self.connection.execute(vec![command]).await?)
        })
    }
}
