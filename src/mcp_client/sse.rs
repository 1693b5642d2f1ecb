//! An upstream over HTTP+SSE: it speaks on one stream, we speak by POST.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method as Verb, Uri};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Unsolicited;
use super::batch::parsed;
use super::duplex::{Duplex, MESSAGES_WAITING};
use super::target::{Address, ConnectionSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::http::client::EventReader;
use crate::http::client::{HttpClient, is_media, redacted, resolve, same_origin};
use crate::http::codec::RequestEncoder;
use crate::protocol::{Message, Response};

/// How long a message waits for the one before it to be taken.
const TURN: Duration = Duration::from_millis(500);

/// A stream and the address to send to.
#[derive(Debug)]
pub(super) struct SseClient {
    pub(super) duplex: Arc<Duplex>,
    open: CancellationToken,
}

impl SseClient {
    /// Opens the stream and waits for its first event.
    pub(super) async fn open(
        address: &Address,
        settings: &ConnectionSettings,
        unsolicited: mpsc::Sender<Unsolicited>,
    ) -> Result<Self> {
        let web = Arc::new(address.client(settings));
        let headers = |head: &mut RequestEncoder| head.put_static(&ACCEPT, "text/event-stream");
        let response = web.send(Verb::GET, headers, Bytes::new(), Some(settings.discovery_timeout)).await?;
        let status = response.head.status();
        if !status.is_success() {
            let body = web.read(response.body, settings.discovery_timeout).await.unwrap_or_default();
            return Err(Error::refused(&web.url(), status, &body));
        }
        if !is_media(&response.head, "text/event-stream") {
            return Err(Error::new(ErrorKind::Protocol, format!("{} is no event stream", redacted(&web.url()))));
        }
        let mut events = EventReader::new(response.body, web.limit());
        let first = tokio::time::timeout(settings.discovery_timeout, events.next()).await;
        let endpoint = match first {
            Ok(Ok(Some(event))) if event.name.as_deref() == Some("endpoint") => endpoint(&web.url(), &event.data)?,
            Ok(Err(error)) => return Err(error.into()),
            _ => {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!("{} does not begin with an `endpoint` event", redacted(&web.url())),
                ));
            }
        };
        let (outgoing, messages) = mpsc::channel(MESSAGES_WAITING);
        let duplex = Arc::new(Duplex::new(outgoing, unsolicited));
        let open = CancellationToken::new();
        let (ended, closing, grace) = (open.clone(), Arc::clone(&duplex), settings.stop_timeout);
        let posting = Posting { duplex: Arc::clone(&duplex), web, endpoint, patience: settings.idle_timeout };
        let (reader, writer) = (read(Arc::clone(&duplex), events), posting.run(messages, ended.clone()));
        tokio::spawn(async move {
            tokio::select! {
                () = reader => {}
                // Ends when everything is posted that was said before the end.
                () = writer => {}
                () = async { ended.cancelled().await; tokio::time::sleep(grace).await } => {}
            }
            closing.close(Error::new(ErrorKind::Broken, "the event stream ended"));
        });
        Ok(Self { duplex, open })
    }
}

impl SseClient {
    /// Ends the stream, after what is being posted. Whoever waits is told at once.
    pub(super) fn close(&self) {
        self.duplex.close(Error::new(ErrorKind::Broken, "the connection was closed"));
        self.open.cancel();
    }
}

impl Drop for SseClient {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where to send messages: a reference that must stay within the stream's origin, or a server
/// could make us send credentials elsewhere.
fn endpoint(base: &Uri, reference: &str) -> Result<Uri> {
    let uri = resolve(base, reference.trim());
    match uri {
        Some(uri) if same_origin(base, &uri) => Ok(uri),
        Some(uri) => Err(Error::new(
            ErrorKind::Protocol,
            format!("{} wants messages at another origin, {}; refused", redacted(base), redacted(&uri)),
        )),
        None => Err(Error::new(
            ErrorKind::Protocol,
            format!("{} wants messages at something that is no address", redacted(base)),
        )),
    }
}

async fn read(duplex: Arc<Duplex>, mut events: EventReader) {
    loop {
        match events.next().await {
            Ok(Some(event)) => parsed(event).into_iter().for_each(|message| duplex.take(message)),
            Ok(None) => return,
            Err(error) => {
                duplex.close(error.into());
                return;
            }
        }
    }
}

/// Posts what is said to the server. The stream is the session there, so it stays open until what was said before the
/// end is posted.
struct Posting {
    duplex: Arc<Duplex>,
    web: Arc<HttpClient>,
    endpoint: Uri,
    patience: Duration,
}

impl Posting {
    async fn run(self, mut messages: mpsc::Receiver<Bytes>, ended: CancellationToken) {
        let posting = Arc::new(self);
        let mut posts = JoinSet::new();
        let mut ending = false;
        loop {
            let message = tokio::select! {
                message = messages.recv() => message,
                () = ended.cancelled(), if !ending => {
                    ending = true;
                    messages.close();
                    continue;
                }
            };
            let Some(message) = message else { break };
            let (done, taken) = oneshot::channel::<()>();
            let posting = Arc::clone(&posting);
            posts.spawn(async move {
                let _done = done;
                posting.post(message).await;
            });
            // Some servers take a request only when they have answered it; what they ask meanwhile could
            // not be answered if everything else waited for that.
            let _ = tokio::time::timeout(TURN, taken).await;
            while posts.try_join_next().is_some() {}
        }
        while posts.join_next().await.is_some() {}
    }

    async fn post(&self, message: Bytes) {
        let Self { duplex, web, endpoint, patience } = self;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let sent = web.send_to(endpoint, &Verb::POST, &headers, &message, *patience).await;
        let error = match sent {
            Ok(response) if response.head.status().is_success() => return,
            Ok(response) => {
                let body = web.read(response.body, *patience).await.unwrap_or_default();
                Error::refused(&web.url(), response.head.status(), &body)
            }
            Err(error) => error.into(),
        };
        // The request was not taken, so its answer will not come on the stream.
        if let Ok(Message::Request(request)) = Message::parse(&message) {
            duplex.take(Message::Response(Response::new(Some(request.id), Err(error.into_object()))));
        } else {
            tracing::debug!(%error, "a message was not taken");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_within_the_origin() {
        let base: Uri = "http://h:1/sse".parse().unwrap();
        assert_eq!(endpoint(&base, "/m?s=1").unwrap().to_string(), "http://h:1/m?s=1");
        for bad in ["http://evil/m", "//evil/m", "https://h:1/m", "http://h:2/m", "http://"] {
            assert!(endpoint(&base, bad).is_err(), "{bad}");
        }
    }
}
