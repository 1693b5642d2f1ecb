//! The far end of a relay: a request that another node has brought.

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

/// The body of an answer, whatever makes it.
pub type AnyBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = Infallible> + Send>>;
/// Whoever answers requests that other nodes bring; nothing says that it is not for this node.
pub type Handler =
    Arc<dyn Fn(RelayedRequest) -> Pin<Box<dyn Future<Output = Option<Response<AnyBody>>> + Send>> + Send + Sync>;

/// How many bytes may be on their way to a client that has not read them.
pub(super) const WINDOW: u64 = 1 << 20;
/// How many bytes are sent at once.
const PIECE: usize = 1 << 18;

/// How many bytes of an answer that are there at once go together.
const CHUNK_BATCH: usize = 1 << 16;

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct ActiveRelay {
    work: AbortHandle,
    window: Arc<Semaphore>,
}

/// Takes a request out of the books, however its end came.
struct DeregisterOnDrop {
    cluster: Arc<Cluster>,
    key: (NodeId, u64),
}

impl Drop for DeregisterOnDrop {
    fn drop(&mut self) {
        let done = self.cluster.serving().remove(&self.key);
        drop(done);
    }
}

impl Drop for ActiveRelay {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl Cluster {
    /// Answers a request that another node brought.
    pub(super) fn serve(self: &Arc<Self>, from: NodeId, relay: u64, request: RelayedRequest) {
        let Some(handler) = self.handler() else { return };
        let window = Arc::new(Semaphore::new(usize::try_from(WINDOW).unwrap_or(usize::MAX)));
        let (cluster, key, credit) = (Arc::clone(self), (from.clone(), relay), Arc::clone(&window));
        // It is in the books before it can take itself out of them.
        let mut serving = self.serving();
        let work = tokio::spawn(async move {
            let books = DeregisterOnDrop { cluster: Arc::clone(&cluster), key: (from.clone(), relay) };
            let response = handler(request).await;
            if let Err(error) = cluster.answer(&from, relay, response, &credit).await {
                tracing::debug!(%error, node = %from, "an answer could not be passed on");
            }
            drop(books);
        });
        serving.insert(key, ActiveRelay { work: work.abort_handle(), window });
    }

    async fn answer(
        &self,
        to: &NodeId,
        relay: u64,
        response: Option<Response<AnyBody>>,
        window: &Semaphore,
    ) -> Result<(), StoreError> {
        let Some(response) = response else { return self.send(to, RelayMessage::NotOwner.write(relay)).await };
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        if http_body::Body::size_hint(&body).exact().is_some() {
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            return self.send(to, RelayMessage::ResponseHead { status, headers, whole: true, body }.write(relay)).await;
        }
        let head = RelayMessage::ResponseHead { status, headers, whole: false, body: Bytes::new() };
        self.stream_response(to, relay, head, body, window).await
    }

    /// Sends the head of an answer and then the rest as it comes. What is there at once goes together.
    async fn stream_response(
        &self,
        to: &NodeId,
        relay: u64,
        head: RelayMessage,
        mut body: AnyBody,
        window: &Semaphore,
    ) -> Result<(), StoreError> {
        let mut letters = vec![head.write(relay)];
        let (mut number, mut bytes) = (0, 0);
        loop {
            let ready = body.frame().now_or_never();
            if ready.is_none() || bytes >= CHUNK_BATCH {
                self.send_all(to, std::mem::take(&mut letters)).await?;
                bytes = 0;
            }
            let frame = match ready {
                Some(frame) => frame,
                None => body.frame().await,
            };
            let Some(Ok(frame)) = frame else { break };
            let Ok(mut data) = frame.into_data() else { continue };
            // The near end tells what was read by halves of the window, so no piece may need more than that.
            while !data.is_empty() {
                let piece = data.split_to(data.len().min(PIECE));
                if window.available_permits() < piece.len() {
                    self.send_all(to, std::mem::take(&mut letters)).await?;
                }
                match window.acquire_many(u32::try_from(piece.len()).unwrap_or(1)).await {
                    Ok(room) => room.forget(),
                    Err(_) => return Ok(()),
                }
                bytes += piece.len();
                letters.push(RelayMessage::ResponseChunk { number, body: piece }.write(relay));
                number += 1;
            }
        }
        letters.push(RelayMessage::ResponseEnd.write(relay));
        self.send_all(to, letters).await
    }

    /// The client at the near end has read something.
    pub(super) fn on_window_update(&self, from: NodeId, relay: u64, bytes: u64) {
        if let Some(serving) = self.serving().get(&(from, relay)) {
            let bytes = usize::try_from(bytes.min(WINDOW)).unwrap_or(0);
            serving.window.add_permits(bytes);
        }
    }
}
