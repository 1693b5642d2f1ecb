//! HTTP+SSE transport: the server sends on one event stream, and we send by POST.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method as Verb, Uri};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Unsolicited;
use super::batch::MessageParser;
use super::duplex::{Duplex, OutgoingMessages};
use super::target::{Address, ConnectionSettings};
use crate::error::{self, Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::http::client::EventReader;
use crate::http::client::{HttpClient, has_media_type, redacted, resolve, same_origin};
use crate::http::codec::RequestEncoder;
use crate::protocol::{Message, Response};

/// A POST waits this long for the previous one, to keep messages in order.
const POST_ORDER_TIMEOUT: Duration = Duration::from_millis(500);

/// An open event stream with the task that posts our messages.
#[derive(Debug)]
pub(super) struct SseClient {
    pub(super) duplex: Arc<Duplex>,
    shutdown: CancellationToken,
}

impl SseClient {
    /// Opens the event stream and waits for its `endpoint` event.
    pub(super) async fn open(
        address: &Address,
        settings: &ConnectionSettings,
        unsolicited: mpsc::Sender<Unsolicited>,
    ) -> Result<Self> {
        let http = Arc::new(address.http_client(settings));
        let headers = |head: &mut RequestEncoder| head.put_static(&ACCEPT, "text/event-stream");
        let timeout = Some(settings.discovery_timeout);
        let (mut response, url) = http.send_and_locate(Verb::GET, headers, Bytes::new(), timeout).await?;
        let status = response.head.status();
        if !status.is_success() {
            let body = http.read_body(response.body, settings.discovery_timeout).await.unwrap_or_default();
            return Err(Error::from_status(&url, status, error::retry_after(&response.head), &body));
        }
        if !has_media_type(&response.head, "text/event-stream") {
            return Err(Error::failure(FailureKind::Protocol, format!("{} is not an event stream", redacted(&url))));
        }
        response.body.release_permit();
        let mut events = EventReader::new(response.body, http.max_body_bytes());
        let first = tokio::time::timeout(settings.discovery_timeout, events.next()).await;
        let endpoint = match first {
            Ok(Ok(Some(event))) if event.name.as_deref() == Some("endpoint") => resolve_endpoint(&url, &event.data)?,
            Ok(Err(error)) => return Err(error.into()),
            _ => {
                return Err(Error::failure(
                    FailureKind::Protocol,
                    format!("{} does not begin with an `endpoint` event", redacted(&url)),
                ));
            }
        };
        let parser = MessageParser::new(settings.json_depth, redacted(&url));
        let (duplex, messages) = Duplex::new(parser, unsolicited);
        let duplex = Arc::new(duplex.asking_newest_call(settings.asks_newest_call));
        let shutdown = CancellationToken::new();
        let (cancelled, closing, stop_timeout) = (shutdown.clone(), Arc::clone(&duplex), settings.stop_timeout);
        let poster = MessagePoster { duplex: Arc::clone(&duplex), http, endpoint, timeout: settings.idle_timeout };
        let (reader, writer) = (read_events(Arc::clone(&duplex), events), poster.run(messages, cancelled.clone()));
        tokio::spawn(async move {
            tokio::select! {
                () = reader => {}
                // Ends after shutdown, when all messages sent before it are posted.
                () = writer => {}
                () = async { cancelled.cancelled().await; tokio::time::sleep(stop_timeout).await } => {}
            }
            closing.close(Failure::new(FailureKind::Broken, "the event stream ended"));
        });
        Ok(Self { duplex, shutdown })
    }
}

impl SseClient {
    /// Closes the connection: pending calls fail at once, the stream ends after the messages being posted.
    pub(super) fn close(&self) {
        self.duplex.close(Failure::new(FailureKind::Broken, "the connection was closed"));
        self.shutdown.cancel();
    }
}

impl Drop for SseClient {
    fn drop(&mut self) {
        self.close();
    }
}

/// Resolves the POST endpoint. It must stay within the origin of the stream, or a server could make us send credentials
/// elsewhere.
fn resolve_endpoint(base: &Uri, reference: &str) -> Result<Uri> {
    let uri = resolve(base, reference.trim());
    match uri {
        Some(uri) if same_origin(base, &uri) => Ok(uri),
        Some(uri) => Err(Error::failure(
            FailureKind::Protocol,
            format!("{} names a message endpoint at another origin, {}; refused", redacted(base), redacted(&uri)),
        )),
        None => Err(Error::failure(
            FailureKind::Protocol,
            format!("{} names a message endpoint that is not a valid URL", redacted(base)),
        )),
    }
}

async fn read_events(duplex: Arc<Duplex>, mut events: EventReader) {
    loop {
        match events.next().await {
            Ok(Some(event)) => {
                let text = Bytes::from(event.data);
                if text.is_empty() {
                    continue;
                }
                for message in duplex.parser.messages_or_log(&text, "event stream") {
                    duplex.dispatch(message, &text).await;
                }
            }
            Ok(None) => return,
            Err(error) => {
                duplex.close(Error::from(error).into_failure());
                return;
            }
        }
    }
}

/// Posts outgoing messages. The stream is the session at the server, so it stays open until all messages sent before the
/// shutdown are posted.
struct MessagePoster {
    duplex: Arc<Duplex>,
    http: Arc<HttpClient>,
    endpoint: Uri,
    timeout: Duration,
}

impl MessagePoster {
    async fn run(self, mut messages: OutgoingMessages, shutdown: CancellationToken) {
        let poster = Arc::new(self);
        let mut posts = JoinSet::new();
        let mut is_draining = false;
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                () = shutdown.cancelled(), if !is_draining => {
                    is_draining = true;
                    messages.drain();
                    continue;
                }
            };
            let Some(message) = message else { break };
            let (done, accepted) = oneshot::channel::<()>();
            let poster = Arc::clone(&poster);
            posts.spawn(async move {
                let _done = done;
                poster.post(message).await;
            });
            // Some servers accept a POST only after they have responded to the request in it. Waiting longer would
            // block our responses to the server requests they send meanwhile.
            let _ = tokio::time::timeout(POST_ORDER_TIMEOUT, accepted).await;
            while posts.try_join_next().is_some() {}
        }
        while posts.join_next().await.is_some() {}
    }

    async fn post(&self, message: Bytes) {
        let Self { duplex, http, endpoint, timeout } = self;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let response = http.send_to(endpoint, &Verb::POST, &headers, &message, *timeout).await;
        let error = match response {
            Ok(response) if response.head.status().is_success() => return,
            Ok(response) => {
                let body = http.read_body(response.body, *timeout).await.unwrap_or_default();
                let retry_after = error::retry_after(&response.head);
                Error::from_status(&http.url(), response.head.status(), retry_after, &body)
            }
            Err(error) => error.into(),
        };
        // The server did not accept the request, so no response will arrive on the stream.
        if let Ok(Message::Request(request)) = Message::parse(&message) {
            let refused = Response::new(Some(request.id), Err(error.into_object()));
            duplex.dispatch(Message::Response(refused), b"").await;
        } else {
            tracing::debug!(%error, "posting a message to the upstream failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_within_the_origin() {
        let base: Uri = "http://h:1/sse".parse().unwrap();
        assert_eq!(resolve_endpoint(&base, "/m?s=1").unwrap().to_string(), "http://h:1/m?s=1");
        for bad in ["http://evil/m", "//evil/m", "https://h:1/m", "http://h:2/m", "http://"] {
            assert!(resolve_endpoint(&base, bad).is_err(), "{bad}");
        }
    }
}
