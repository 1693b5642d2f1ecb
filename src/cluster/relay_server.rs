//! Receiving side of a relay: a request from another node that this one answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use http::Response;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::Cluster;
use super::message::{RelayMessage, RelayedRequest, ResponseFraming};
use crate::store::{NodeId, StoreError};

/// Type-erased response body.
pub type BoxedBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = Infallible> + Send>>;
/// Handler for relayed requests; `None` means that this node does not own the session.
pub type RelayHandler =
    Arc<dyn Fn(RelayedRequest) -> Pin<Box<dyn Future<Output = Option<Response<BoxedBody>>> + Send>> + Send + Sync>;

/// Flow-control window: most response bytes in flight to a client that has not read them.
pub(super) const RELAY_WINDOW_BYTES: u64 = 1 << 20;
/// Largest chunk in one message; a longer response goes in several. At most half the window, in which units the sender reports what was read.
const MAX_RELAY_CHUNK_BYTES: usize = 1 << 18;

/// Chunks that are ready at once are sent together up to this many bytes.
const RELAY_BATCH_BYTES: usize = 1 << 16;

/// A relayed request being answered; dropping it aborts its task.
#[derive(Debug)]
pub(super) struct ActiveRelay {
    task: AbortHandle,
    window: Arc<Semaphore>,
    /// Bytes that the client has read, as last reported.
    read_bytes: u64,
    /// Parts of the response, head and chunks, in the mailbox of the sender.
    pub(super) sent_parts: Arc<AtomicU64>,
}

/// The side of a streamed response that is sent to the node it was relayed by.
struct ResponseSender<'a> {
    cluster: &'a Cluster,
    to: &'a NodeId,
    relay: u64,
    /// Messages to be sent next.
    queued: Vec<Bytes>,
    sent_parts: &'a AtomicU64,
}

/// Deregisters an active relay when its task ends, also by panic or abort.
struct DeregisterOnDrop {
    cluster: Arc<Cluster>,
    key: (NodeId, u64),
}

impl Drop for DeregisterOnDrop {
    fn drop(&mut self) {
        let done = self.cluster.active_relays().remove(&self.key);
        drop(done);
    }
}

impl Drop for ActiveRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Cluster {
    /// Spawns the task that answers a relayed request.
    pub(super) fn serve_relay(self: &Arc<Self>, from: NodeId, relay: u64, request: RelayedRequest) {
        let Some(handler) = self.handler() else { return };
        let window = Arc::new(Semaphore::new(usize::try_from(RELAY_WINDOW_BYTES).unwrap_or(usize::MAX)));
        let (cluster, key, relay_window) = (Arc::clone(self), (from.clone(), relay), Arc::clone(&window));
        let sent_parts = Arc::new(AtomicU64::new(0));
        let counted_parts = Arc::clone(&sent_parts);
        // Hold the lock until the relay is registered, or the task could deregister before that.
        let mut active = self.active_relays();
        let task = tokio::spawn(async move {
            let registration = DeregisterOnDrop { cluster: Arc::clone(&cluster), key: (from.clone(), relay) };
            let response = handler(request).await;
            let queued = Vec::new();
            let sender = ResponseSender { cluster: &cluster, to: &from, relay, queued, sent_parts: &counted_parts };
            if let Err(error) = sender.send_response(response, &relay_window).await {
                tracing::debug!(%error, node = %from, "relayed response not sent");
            }
            drop(registration);
        });
        active.insert(key, ActiveRelay { task: task.abort_handle(), window, read_bytes: 0, sent_parts });
    }

    /// Returns window capacity after the client has read `bytes` in all.
    pub(super) fn on_window_update(&self, from: NodeId, relay: u64, bytes: u64) {
        if let Some(active) = self.active_relays().get_mut(&(from, relay)) {
            let more = bytes.saturating_sub(active.read_bytes).min(RELAY_WINDOW_BYTES);
            active.read_bytes += more;
            active.window.add_permits(usize::try_from(more).unwrap_or(0));
        }
    }
}

impl ResponseSender<'_> {
    fn queue(&mut self, message: &RelayMessage) {
        self.queued.push(message.encode(self.relay));
    }

    /// Sends what is queued.
    async fn flush(&mut self) -> Result<(), StoreError> {
        let queued = std::mem::take(&mut self.queued);
        let count = queued.len() as u64;
        self.cluster.send_all(self.to, queued).await?;
        self.sent_parts.fetch_add(count, Ordering::AcqRel);
        Ok(())
    }

    async fn send_response(
        mut self,
        response: Option<Response<BoxedBody>>,
        window: &Semaphore,
    ) -> Result<(), StoreError> {
        let Some(response) = response else {
            self.queue(&RelayMessage::NotOwner);
            return self.flush().await;
        };
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        let from = self.cluster.node();
        let framing = match http_body::Body::size_hint(&body).exact() {
            Some(length) if length <= MAX_RELAY_CHUNK_BYTES as u64 => ResponseFraming::Complete,
            Some(_) => ResponseFraming::Pieces(NodeId::clone(&from)),
            None => ResponseFraming::Stream(NodeId::clone(&from)),
        };
        if framing == ResponseFraming::Complete {
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            self.queue(&RelayMessage::ResponseHead { status, headers, framing, body });
            return self.flush().await;
        }
        self.queue(&RelayMessage::ResponseHead { status, headers, framing, body: Bytes::new() });
        self.stream_body(&from, body, window).await
    }

    /// Streams a body: sends whatever is ready in one batch, within the flow-control window.
    async fn stream_body(mut self, from: &NodeId, mut body: BoxedBody, window: &Semaphore) -> Result<(), StoreError> {
        let (mut number, mut bytes) = (0, 0);
        loop {
            let ready = body.frame().now_or_never();
            if ready.is_none() || bytes >= RELAY_BATCH_BYTES {
                self.flush().await?;
                bytes = 0;
            }
            let frame = match ready {
                Some(frame) => frame,
                None => body.frame().await,
            };
            let Some(Ok(frame)) = frame else { break };
            let Ok(mut data) = frame.into_data() else { continue };
            // Window updates come in halves of the window, so a larger chunk could wait for ever.
            while !data.is_empty() {
                let chunk = data.split_to(data.len().min(MAX_RELAY_CHUNK_BYTES));
                if window.available_permits() < chunk.len() || bytes >= RELAY_BATCH_BYTES {
                    self.flush().await?;
                    bytes = 0;
                }
                match window.acquire_many(u32::try_from(chunk.len()).unwrap_or(1)).await {
                    Ok(permits) => permits.forget(),
                    Err(_) => return Ok(()),
                }
                bytes += chunk.len();
                self.queue(&RelayMessage::ResponseChunk { from: from.clone(), number, body: chunk });
                number += 1;
            }
        }
        self.queue(&RelayMessage::ResponseEnd);
        self.flush().await
    }
}
