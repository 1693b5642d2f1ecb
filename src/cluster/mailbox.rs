//! Receiving from this node's mailbox: dispatch of messages to the relays on both sides.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::message::RelayMessage;
use super::relay_client::RelayEvent;
use super::{Cluster, STORE_RETRY_INTERVAL};
use crate::store::NodeId;

/// What is left to do when all messages of a batch are dispatched.
#[derive(Debug, Default)]
struct BatchFollowUp {
    /// Relays that other nodes serve and nobody here waits for.
    orphaned: HashSet<(NodeId, u64)>,
    /// This node's own leave marker was among the messages.
    is_last_batch: bool,
}

impl Cluster {
    /// Receives and dispatches mailbox messages until this node has left.
    pub async fn run_mailbox(self: Arc<Self>) {
        while !self.mailbox_closed.is_cancelled() {
            let node = self.node();
            match self.store.receive(&node).await {
                Ok(messages) => self.dispatch(&messages),
                Err(error) => {
                    tracing::debug!(%error, "mailbox receive failed; retrying");
                    tokio::time::sleep(STORE_RETRY_INTERVAL).await;
                }
            }
        }
    }

    fn dispatch(self: &Arc<Self>, messages: &[Bytes]) {
        let mut follow_up = BatchFollowUp::default();
        for message in messages {
            self.on_message(message, &mut follow_up);
        }
        // The cancel of such a relay was lost, or overtaken by its request.
        for (owner, relay) in follow_up.orphaned {
            tracing::debug!(node = %owner, relay, "relay that nobody waits for cancelled");
            let cancel = RelayMessage::Cancel { from: NodeId::clone(&self.node()) };
            self.send_in_background(owner, cancel.encode(relay));
        }
        // Only now: a request behind the marker was taken with it, and its refusal must be on its way before the node
        // stops waiting for background sends.
        if follow_up.is_last_batch {
            self.mailbox_closed.cancel();
        }
    }

    fn on_message(self: &Arc<Self>, message: &Bytes, follow_up: &mut BatchFollowUp) {
        let Some((relay, message)) = RelayMessage::decode(message) else {
            tracing::warn!("cluster message cannot be decoded; do all nodes run the same version?");
            return;
        };
        match message {
            // Duplicate delivery (the cluster client retried). Drop it; the first copy is being answered.
            RelayMessage::Request { ref from, .. } if !self.recent_requests().insert(from, relay) => {
                tracing::debug!(node = %from, relay, "duplicate relayed request dropped");
            }
            RelayMessage::Request { from, .. } if self.is_leaving.load(Ordering::Acquire) => {
                self.send_in_background(from, RelayMessage::NotOwner.encode(relay));
            }
            RelayMessage::Request { from, request } => self.serve_relay(from, relay, *request),
            RelayMessage::Cancel { from } => drop(self.active_relays().remove(&(from, relay))),
            RelayMessage::WindowUpdate { from, bytes } => self.on_window_update(from, relay, bytes),
            RelayMessage::StatusQuery { from, relays } => {
                let unknown: Vec<u64> = {
                    let active = self.active_relays();
                    relays.into_iter().filter(|relay| !active.contains_key(&(from.clone(), *relay))).collect()
                };
                for relay in unknown {
                    self.send_in_background(from.clone(), RelayMessage::UnknownRelay.encode(relay));
                }
            }
            RelayMessage::ActiveRelays { from, relays } => {
                for (relay, parts) in relays {
                    self.audit_relay(&from, relay, parts, follow_up);
                }
            }
            RelayMessage::UnknownRelay => drop(self.deliver_event(relay, RelayEvent::Lost)),
            // This node's own marker: later requests stay in the mailbox, where their senders can unsend them.
            RelayMessage::NodeLeaving { from } if from == *self.node() => follow_up.is_last_batch = true,
            RelayMessage::NodeLeaving { from } => {
                let cluster = Arc::clone(self);
                tokio::spawn(async move {
                    if let Err(error) = cluster.fail_relays_to(&from).await {
                        tracing::debug!(%error, "relays to a leaving node not failed yet; the next peer check retries");
                    }
                });
            }
            message => {
                if let Some(RelayEvent::Message(message)) = self.deliver_event(relay, RelayEvent::Message(message)) {
                    follow_up.orphaned.extend(message.unfinished_sender().map(|owner| (owner, relay)));
                }
            }
        }
    }

    /// Compares a relay that `owner` serves with what is known of it here. The parts that were sent before this was asked
    /// are in front of it in the mailbox.
    fn audit_relay(self: &Arc<Self>, owner: &NodeId, relay: u64, parts: u64, follow_up: &mut BatchFollowUp) {
        let known = self
            .pending_relays()
            .get(&relay)
            .map(|pending| (pending.received_parts, pending.read_bytes.load(Ordering::Acquire)));
        match known {
            None => drop(follow_up.orphaned.insert((owner.clone(), relay))),
            Some((received, _)) if received < parts => drop(self.deliver_event(relay, RelayEvent::Lost)),
            // Nothing was read, so there is no update that can have been lost.
            Some((_, 0)) => {}
            Some((_, bytes)) => {
                let update = RelayMessage::WindowUpdate { from: NodeId::clone(&self.node()), bytes };
                self.send_in_background(owner.clone(), update.encode(relay));
            }
        }
    }

    /// Hands an event to the relay that waits for it; returns it when nobody does any more.
    pub(super) fn deliver_event(&self, relay: u64, event: RelayEvent) -> Option<RelayEvent> {
        match self.pending_relays().get_mut(&relay) {
            Some(pending) => {
                if let RelayEvent::Message(message) = &event {
                    pending.received_parts = pending.received_parts.max(message.response_parts());
                }
                pending.events.send(event).err().map(|unsent| unsent.0)
            }
            None => Some(event),
        }
    }
}
