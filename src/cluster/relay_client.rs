//! The near end of a relay: a request of a client of ours that another node answers.

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
use super::relay_server::WINDOW;
use super::{Cluster, MAIL_LEASES};
use crate::store::{NodeId, StoreError};

/// How long a node may be quiet before it is looked whether it is there.
const LIVENESS_PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// What came of carrying a request to another node.
#[derive(Debug)]
pub enum RelayOutcome {
    /// The whole answer.
    Whole(StatusCode, HeaderMap, Bytes),
    /// The head of an answer, and the rest as it comes.
    Stream(StatusCode, HeaderMap, RelayedBody),
    /// The node does not have it, or never got to it; it can be carried elsewhere.
    NotThere,
    /// The node is gone, and nobody knows how far it came.
    Lost,
}

/// The rest of an answer that another node gives. Dropping it tells that the client is gone.
#[derive(Debug)]
pub struct RelayedBody {
    relay: RelayGuard,
    parts: mpsc::UnboundedReceiver<RelayEvent>,
    /// The number of the next piece.
    next: u64,
    /// Bytes that were read and not told of.
    read: u64,
    /// Ends it early.
    end: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// What arrives for a relay.
#[derive(Debug)]
pub(super) enum RelayEvent {
    Letter(RelayMessage),
    /// The node is gone. It had not begun.
    NotBegun,
    /// The node is gone, or knows nothing of it.
    Lost,
}

/// A relay in the books.
#[derive(Debug)]
pub(super) struct PendingRelay {
    pub(super) home: NodeId,
    pub(super) request: Bytes,
    pub(super) begun: Instant,
    pub(super) parts: mpsc::UnboundedSender<RelayEvent>,
}

/// Takes a relay out of the books when it is dropped, and tells the other node if that still works on it.
#[derive(Debug)]
struct RelayGuard {
    cluster: Arc<Cluster>,
    id: u64,
    home: NodeId,
    over: bool,
}

impl Cluster {
    /// Carries a request to another node.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn relay(self: &Arc<Self>, home: &NodeId, request: RelayedRequest) -> Result<RelayOutcome, StoreError> {
        let id = self.next_relay();
        let from = NodeId::clone(&self.node());
        let letter = RelayMessage::Request { from, request: Box::new(request) }.write(id);
        let (sender, mut parts) = mpsc::unbounded_channel();
        let front = PendingRelay { home: home.clone(), request: letter.clone(), begun: Instant::now(), parts: sender };
        self.fronts().insert(id, front);
        let mut relay = RelayGuard { cluster: Arc::clone(self), id, home: home.clone(), over: false };
        match self.store().send(home, vec![letter], self.lease() * MAIL_LEASES).await {
            // It may have left all the same, and be done once the store goes on. Whoever is refused tries again,
            // so what must not be done twice is not refused.
            Err(away) if away.maybe_applied => return Ok(RelayOutcome::Lost),
            sent => sent?,
        }
        let first = self.first(home, &mut parts).await;
        let RelayEvent::Letter(RelayMessage::ResponseHead { status, headers, whole, body }) = first else {
            relay.over = true;
            return Ok(match first {
                RelayEvent::NotBegun | RelayEvent::Letter(RelayMessage::NotOwner) => RelayOutcome::NotThere,
                _ => RelayOutcome::Lost,
            });
        };
        if whole {
            relay.over = true;
            return Ok(RelayOutcome::Whole(status, headers, body));
        }
        Ok(RelayOutcome::Stream(status, headers, RelayedBody { relay, parts, next: 0, read: 0, end: None }))
    }

    /// The first thing that comes back.
    async fn first(&self, home: &NodeId, parts: &mut mpsc::UnboundedReceiver<RelayEvent>) -> RelayEvent {
        loop {
            if let Ok(part) = tokio::time::timeout(LIVENESS_PROBE_INTERVAL, parts.recv()).await {
                return part.unwrap_or(RelayEvent::Lost);
            }
            // It may have gone, or begun another life, since its session was found there.
            let mourned = match self.is_alive(home).await {
                Ok(true) => Ok(()),
                Ok(false) => self.fail_relays_to(home).await,
                Err(away) => Err(away),
            };
            // While the store is away an answer could not come either.
            if mourned.is_err() && !self.holds_lease() {
                return RelayEvent::Lost;
            }
        }
    }
}

impl RelayedBody {
    /// The same, but no longer than until that is cancelled.
    #[must_use]
    pub fn until(mut self, end: CancellationToken) -> Self {
        self.end = Some(Box::pin(end.cancelled_owned()));
        self
    }

    /// What comes next, without what came already: a letter may arrive twice.
    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<RelayEvent>> {
        loop {
            match std::task::ready!(Pin::new(&mut self.parts).poll_recv(context)) {
                Some(RelayEvent::Letter(RelayMessage::ResponseHead { .. })) => {}
                Some(RelayEvent::Letter(RelayMessage::ResponseChunk { number, .. })) if number < self.next => {}
                part => return Poll::Ready(part),
            }
        }
    }

    /// The next piece; nothing at the end, or when the other node is gone.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let part = match self.poll_part(context) {
            Poll::Pending => {
                let over = self.end.as_mut().is_some_and(|end| end.as_mut().poll(context).is_ready());
                return if over { Poll::Ready(None) } else { Poll::Pending };
            }
            Poll::Ready(part) => part,
        };
        match part {
            Some(RelayEvent::Letter(RelayMessage::ResponseChunk { number, body })) if number == self.next => {
                self.next += 1;
                self.read += body.len() as u64;
                if self.read >= WINDOW / 2 {
                    let bytes = std::mem::take(&mut self.read);
                    let cluster = &self.relay.cluster;
                    let letter = RelayMessage::WindowUpdate { from: NodeId::clone(&cluster.node()), bytes };
                    cluster.send_later(self.relay.home.clone(), letter.write(self.relay.id));
                }
                Poll::Ready(Some(body))
            }
            Some(RelayEvent::Letter(RelayMessage::ResponseEnd)) => {
                self.relay.over = true;
                Poll::Ready(None)
            }
            // A piece is missing, or the node is: what came so far is whole, and the client can resume.
            _ => Poll::Ready(None),
        }
    }
}

impl Drop for RelayGuard {
    fn drop(&mut self) {
        self.cluster.fronts().remove(&self.id);
        if !self.over {
            let letter = RelayMessage::Cancel { from: NodeId::clone(&self.cluster.node()) };
            self.cluster.send_later(self.home.clone(), letter.write(self.id));
        }
    }
}
