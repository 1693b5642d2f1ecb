//! Receiving side of a relay: a request from another node that this one answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::Response;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::Cluster;
use super::message::{RelayMessage, RelayedRequest};
use crate::store::{NodeId, StoreError};

/// Type-erased response body.
pub type BoxedBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = Infallible> + Send>>;
/// Handler for relayed requests; `None` means that this node does not own the session.
pub type RelayHandler =
    Arc<dyn Fn(RelayedRequest) -> Pin<Box<dyn Future<Output = Option<Response<BoxedBody>>> + Send>> + Send + Sync>;

/// Flow-control window: most response bytes in flight to a client that has not read them.
pub(super) const RELAY_WINDOW_BYTES: u64 = 1 << 20;
/// Largest chunk in one message. At most half the window, in which units the sender reports what was read.
const MAX_RELAY_CHUNK_BYTES: usize = 1 << 18;

/// Chunks that are ready at once are sent together up to this many bytes.
const RELAY_BATCH_BYTES: usize = 1 << 16;

/// A relayed request being answered; dropping it aborts its task.
#[derive(Debug)]
pub(super) struct ActiveRelay {
    task: AbortHandle,
    window: Arc<Semaphore>,
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
        // Hold the lock until the relay is registered, or the task could deregister before that.
        let mut active = self.active_relays();
        let task = tokio::spawn(async move {
            let registration = DeregisterOnDrop { cluster: Arc::clone(&cluster), key: (from.clone(), relay) };
            let response = handler(request).await;
            if let Err(error) = cluster.send_response(&from, relay, response, &relay_window).await {
                tracing::debug!(%error, node = %from, "relayed response not sent");
            }
            drop(registration);
        });
        active.insert(key, ActiveRelay { task: task.abort_handle(), window });
    }

    async fn send_response(
        &self,
        to: &NodeId,
        relay: u64,
        response: Option<Response<BoxedBody>>,
        window: &Semaphore,
    ) -> Result<(), StoreError> {
        let Some(response) = response else { return self.send(to, RelayMessage::NotOwner.encode(relay)).await };
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        if http_body::Body::size_hint(&body).exact().is_some() {
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            return self
                .send(to, RelayMessage::ResponseHead { status, headers, complete: true, body }.encode(relay))
                .await;
        }
        let head = RelayMessage::ResponseHead { status, headers, complete: false, body: Bytes::new() };
        self.stream_response(to, relay, head, body, window).await
    }

    /// Streams a response: sends whatever is ready in one batch, within the flow-control window.
    async fn stream_response(
        &self,
        to: &NodeId,
        relay: u64,
        head: RelayMessage,
        mut body: BoxedBody,
        window: &Semaphore,
    ) -> Result<(), StoreError> {
        let mut messages = vec![head.encode(relay)];
        let (mut number, mut bytes) = (0, 0);
        loop {
            let ready = body.frame().now_or_never();
            if ready.is_none() || bytes >= RELAY_BATCH_BYTES {
                self.send_all(to, std::mem::take(&mut messages)).await?;
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
                if window.available_permits() < chunk.len() {
                    self.send_all(to, std::mem::take(&mut messages)).await?;
                }
                match window.acquire_many(u32::try_from(chunk.len()).unwrap_or(1)).await {
                    Ok(permits) => permits.forget(),
                    Err(_) => return Ok(()),
                }
                bytes += chunk.len();
                messages.push(RelayMessage::ResponseChunk { number, body: chunk }.encode(relay));
                number += 1;
            }
        }
        messages.push(RelayMessage::ResponseEnd.encode(relay));
        self.send_all(to, messages).await
    }

    /// Returns window capacity after the client has read `bytes`.
    pub(super) fn on_window_update(&self, from: NodeId, relay: u64, bytes: u64) {
        if let Some(active) = self.active_relays().get(&(from, relay)) {
            let bytes = usize::try_from(bytes.min(RELAY_WINDOW_BYTES)).unwrap_or(0);
            active.window.add_permits(bytes);
        }
    }
}
