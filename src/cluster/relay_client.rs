//! Sending side of a relay: a request of a local client that another node answers.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::message::{RelayMessage, RelayedRequest, ResponseFraming};
use super::relay_server::RELAY_WINDOW_BYTES;
use super::{Cluster, MAILBOX_TTL_LEASES};
use crate::store::traits::SendOutcome;
use crate::store::{NodeId, StoreError};

/// Outcome of a relayed request.
#[derive(Debug)]
pub enum RelayOutcome {
    /// The complete response.
    Complete(StatusCode, HeaderMap, Bytes),
    /// The response head and a streaming body.
    Streaming(StatusCode, HeaderMap, RelayedBody),
    /// The node is not the owner, or never received the request; it can be relayed elsewhere.
    NotOwner,
    /// The owner has too many messages waiting; the request was not sent.
    Busy,
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
    /// Bytes read at the last window update.
    reported_bytes: u64,
    read_bytes: Arc<AtomicU64>,
    /// Ends the body early when it resolves.
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Dropped with the body.
    held: Option<Box<dyn Any + Send + Sync>>,
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
    /// Parts of the response, head and chunks, received so far.
    pub(super) received_parts: u64,
    /// Body bytes that the client has read so far.
    pub(super) read_bytes: Arc<AtomicU64>,
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
        let read_bytes = Arc::new(AtomicU64::new(0));
        let pending = PendingRelay {
            owner: owner.clone(),
            request: message.clone(),
            started_at: Instant::now(),
            received_parts: 0,
            read_bytes: Arc::clone(&read_bytes),
            events: event_sender,
        };
        self.pending_relays().insert(id, pending);
        let mut relay = RelayGuard { cluster: Arc::clone(self), id, owner: owner.clone(), is_finished: false };
        match self.store().send(owner, vec![message], self.lease() * MAILBOX_TTL_LEASES).await {
            // The request may be in the mailbox and run later. A refusal would make the client retry and run it twice,
            // so it counts as lost.
            Err(error) if error.maybe_applied => return Ok(RelayOutcome::Lost),
            sent => {
                if sent? == SendOutcome::MailboxFull {
                    tracing::warn!(node = %owner, "mailbox full: the node does not keep up; request refused");
                    relay.is_finished = true;
                    return Ok(RelayOutcome::Busy);
                }
            }
        }
        let first = events.recv().await.unwrap_or(RelayEvent::Lost);
        let RelayEvent::Message(RelayMessage::ResponseHead { status, headers, framing, body }) = first else {
            relay.is_finished = true;
            return Ok(match first {
                RelayEvent::NotStarted | RelayEvent::Message(RelayMessage::NotOwner) => RelayOutcome::NotOwner,
                _ => RelayOutcome::Lost,
            });
        };
        if framing == ResponseFraming::Complete {
            relay.is_finished = true;
            return Ok(RelayOutcome::Complete(status, headers, body));
        }
        let body = RelayedBody { relay, events, next_chunk: 0, read_bytes, reported_bytes: 0, stop: None, held: None };
        match framing {
            ResponseFraming::Pieces(_) => Ok(match body.join().await {
                Some(body) => RelayOutcome::Complete(status, headers, body),
                None => RelayOutcome::Lost,
            }),
            _ => Ok(RelayOutcome::Streaming(status, headers, body)),
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

    /// Keeps a value until the body has ended.
    #[must_use]
    pub fn holding(mut self, held: Option<Box<dyn Any + Send + Sync>>) -> Self {
        self.held = held;
        self
    }

    /// Joins the pieces of the body; `None` when the owner was lost before the last one.
    async fn join(mut self) -> Option<Bytes> {
        let mut joined = BytesMut::new();
        while let Some(piece) = std::future::poll_fn(|context| self.poll_next(context)).await {
            joined.extend_from_slice(&piece);
        }
        self.relay.is_finished.then(|| joined.freeze())
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
            Some(RelayEvent::Message(RelayMessage::ResponseChunk { number, body, .. }))
                if number == self.next_chunk =>
            {
                self.next_chunk += 1;
                let read = self.read_bytes.fetch_add(body.len() as u64, Ordering::AcqRel) + body.len() as u64;
                if read - self.reported_bytes >= RELAY_WINDOW_BYTES / 2 {
                    self.reported_bytes = read;
                    let cluster = &self.relay.cluster;
                    let message = RelayMessage::WindowUpdate { from: NodeId::clone(&cluster.node()), bytes: read };
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
