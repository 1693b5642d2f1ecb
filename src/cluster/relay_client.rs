//! Sending side of a relay: a request of a local client that another node answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::message::{RelayMessage, RelayedRequest};
use super::relay_server::RELAY_WINDOW_BYTES;
use super::{Cluster, MAILBOX_TTL_LEASES};
use crate::store::{NodeId, StoreError};

/// How long a relay waits for a response before it checks the owner's lease, repeatedly.
const LIVENESS_PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// Outcome of a relayed request.
#[derive(Debug)]
pub enum RelayOutcome {
    /// The complete response.
    Complete(StatusCode, HeaderMap, Bytes),
    /// The response head and a streaming body.
    Streaming(StatusCode, HeaderMap, RelayedBody),
    /// The node is not the owner, or never received the request; it can be relayed elsewhere.
    NotOwner,
    /// The owner was lost; whether the request was carried out is unknown.
    Lost,
}

/// Streaming response body of a relay. Dropping it early cancels the request at the owner.
#[derive(Debug)]
pub struct RelayedBody {
    relay: RelayGuard,
    events: mpsc::UnboundedReceiver<RelayEvent>,
    /// Number of the next expected chunk.
    next_chunk: u64,
    /// Bytes read since the last window update.
    unreported_bytes: u64,
    /// Ends the body early when it resolves.
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// Events of a pending relay.
#[derive(Debug)]
pub(super) enum RelayEvent {
    Message(RelayMessage),
    /// The owner was lost before it received the request.
    NotStarted,
    /// The owner was lost, or does not know the relay.
    Lost,
}

/// A relay that awaits its response.
#[derive(Debug)]
pub(super) struct PendingRelay {
    pub(super) owner: NodeId,
    pub(super) request: Bytes,
    pub(super) started_at: Instant,
    pub(super) events: mpsc::UnboundedSender<RelayEvent>,
}

/// Deregisters a relay on drop, and cancels it at the owner unless it is finished.
#[derive(Debug)]
struct RelayGuard {
    cluster: Arc<Cluster>,
    id: u64,
    owner: NodeId,
    is_finished: bool,
}

impl Cluster {
    /// Relays a request to the owner of its session. Dropping the future cancels the request.
    ///
    /// # Errors
    /// When the store is unavailable and the request was certainly not sent.
    pub async fn relay(self: &Arc<Self>, owner: &NodeId, request: RelayedRequest) -> Result<RelayOutcome, StoreError> {
        let id = self.next_relay_id();
        let from = NodeId::clone(&self.node());
        let message = RelayMessage::Request { from, request: Box::new(request) }.encode(id);
        let (event_sender, mut events) = mpsc::unbounded_channel();
        let pending = PendingRelay {
            owner: owner.clone(),
            request: message.clone(),
            started_at: Instant::now(),
            events: event_sender,
        };
        self.pending_relays().insert(id, pending);
        let mut relay = RelayGuard { cluster: Arc::clone(self), id, owner: owner.clone(), is_finished: false };
        match self.store().send(owner, vec![message], self.lease() * MAILBOX_TTL_LEASES).await {
            // The request may be in the mailbox and run later. A refusal would make the client retry and run it twice,
            // so it counts as lost.
            Err(error) if error.maybe_applied => return Ok(RelayOutcome::Lost),
            sent => sent?,
        }
        let first = self.first_event(owner, &mut events).await;
        let RelayEvent::Message(RelayMessage::ResponseHead { status, headers, complete, body }) = first else {
            relay.is_finished = true;
            return Ok(match first {
                RelayEvent::NotStarted | RelayEvent::Message(RelayMessage::NotOwner) => RelayOutcome::NotOwner,
                _ => RelayOutcome::Lost,
            });
        };
        if complete {
            relay.is_finished = true;
            return Ok(RelayOutcome::Complete(status, headers, body));
        }
        Ok(RelayOutcome::Streaming(
            status,
            headers,
            RelayedBody { relay, events, next_chunk: 0, unreported_bytes: 0, stop: None },
        ))
    }

    /// Waits for the first event of a relay, checking the owner's lease meanwhile.
    async fn first_event(&self, owner: &NodeId, events: &mut mpsc::UnboundedReceiver<RelayEvent>) -> RelayEvent {
        loop {
            if let Ok(event) = tokio::time::timeout(LIVENESS_PROBE_INTERVAL, events.recv()).await {
                return event.unwrap_or(RelayEvent::Lost);
            }
            // The owner may have expired or rejoined under a new incarnation since the lookup.
            let checked = match self.is_alive(owner).await {
                Ok(true) => Ok(()),
                Ok(false) => self.fail_relays_to(owner).await,
                Err(error) => Err(error),
            };
            // Without the store no response can arrive; give up once this node's own lease has run out.
            if checked.is_err() && !self.holds_lease() {
                return RelayEvent::Lost;
            }
        }
    }
}

impl RelayedBody {
    /// Ends the body early when `stop` is cancelled.
    #[must_use]
    pub fn until_cancelled(mut self, stop: CancellationToken) -> Self {
        self.stop = Some(Box::pin(stop.cancelled_owned()));
        self
    }

    /// Polls the next event, skipping duplicate deliveries.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<RelayEvent>> {
        loop {
            match std::task::ready!(Pin::new(&mut self.events).poll_recv(context)) {
                Some(RelayEvent::Message(RelayMessage::ResponseHead { .. })) => {}
                Some(RelayEvent::Message(RelayMessage::ResponseChunk { number, .. })) if number < self.next_chunk => {}
                event => return Poll::Ready(event),
            }
        }
    }

    /// Polls the next chunk; `None` at the end of the body or when the owner was lost.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let event = match self.poll_event(context) {
            Poll::Pending => {
                let is_stopped = self.stop.as_mut().is_some_and(|stop| stop.as_mut().poll(context).is_ready());
                return if is_stopped { Poll::Ready(None) } else { Poll::Pending };
            }
            Poll::Ready(event) => event,
        };
        match event {
            Some(RelayEvent::Message(RelayMessage::ResponseChunk { number, body })) if number == self.next_chunk => {
                self.next_chunk += 1;
                self.unreported_bytes += body.len() as u64;
                if self.unreported_bytes >= RELAY_WINDOW_BYTES / 2 {
                    let bytes = std::mem::take(&mut self.unreported_bytes);
                    let cluster = &self.relay.cluster;
                    let message = RelayMessage::WindowUpdate { from: NodeId::clone(&cluster.node()), bytes };
                    cluster.send_in_background(self.relay.owner.clone(), message.encode(self.relay.id));
                }
                Poll::Ready(Some(body))
            }
            Some(RelayEvent::Message(RelayMessage::ResponseEnd)) => {
                self.relay.is_finished = true;
                Poll::Ready(None)
            }
            // A chunk or the owner is missing. The chunks so far are whole events, so the client can resume after
            // them.
            _ => Poll::Ready(None),
        }
    }
}

impl Drop for RelayGuard {
    fn drop(&mut self) {
        self.cluster.pending_relays().remove(&self.id);
        if !self.is_finished {
            let message = RelayMessage::Cancel { from: NodeId::clone(&self.cluster.node()) };
            self.cluster.send_in_background(self.owner.clone(), message.encode(self.id));
        }
    }
}
