//! One request over Streamable HTTP: its response as JSON or as an event stream, which is resumed where it breaks.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::long_answer::LongAnswer;
use super::server_requests::RequestInbox;
use super::{DEFAULT_RETRY_DELAY, FirstResponse, MAX_STREAM_RESUMES, StreamableClient, clamp_retry_delay};
use crate::call::{Caller, Reply, ReplySink, ServerRequest};
use crate::dialect::headers::HeaderMirror;
use crate::error::Error;
use crate::failure::{Failure, FailureKind};
use crate::http::client::EventReader;
use crate::mcp_client::batch::Received;
use crate::mcp_client::connection::RequestHeaders;
use crate::mcp_client::round::Round;
use crate::mcp_client::server_notes::note_server;
use crate::protocol::{ErrorObject, Id, Notification, Outcome, Raw, Request};
use crate::recorder::{Mark, Way};
use crate::trace::TraceHeaders;

/// A request that is sent when it is [run](Self::run).
pub(in crate::mcp_client) struct HttpRequest {
    client: Arc<StreamableClient>,
    request: Request,
    /// Header mirrors of the called tool.
    mirrors: Vec<HeaderMirror>,
    caller: Arc<Caller>,
    /// The trace context in place of the caller's.
    trace: Option<TraceHeaders>,
    progress_token: Option<Raw>,
}

/// What the HTTP headers of a request are made from.
#[derive(Clone, Copy)]
pub(in crate::mcp_client) struct SentHeaders<'h> {
    pub(super) mirrors: &'h [HeaderMirror],
    pub(super) caller: &'h Caller,
    pub(super) trace: Option<&'h TraceHeaders>,
}

/// An event stream that carries the response, and where to resume it.
struct ResponseStream {
    events: Box<EventReader>,
    last_event_id: Option<String>,
    retry_delay: Duration,
    resume_attempts: u32,
}

/// The outcome of a request, or the error of one that timed out, which is cancelled.
type Waited = Result<Outcome, ErrorObject>;

/// What came first while a request was waited for.
enum Arrived<T> {
    /// A server request that arrived on another stream.
    ServerRequest(ServerRequest),
    Own(T),
}

impl HttpRequest {
    pub(in crate::mcp_client) fn new(
        client: Arc<StreamableClient>,
        request: Request,
        headers: RequestHeaders<'_>,
        progress_token: Option<Raw>,
    ) -> Self {
        let (mirrors, caller) = (headers.mirrors.to_vec(), Arc::clone(headers.caller));
        let trace = headers.trace.map(|trace| {
            trace.note_id(&request.id);
            trace.headers.clone()
        });
        Self { client, request, mirrors, caller, trace, progress_token }
    }

    /// Sends the request and waits for its response; dropping the future cancels the request.
    pub(in crate::mcp_client) async fn run(&self, round: &mut Round<'_, impl ReplySink>) -> Outcome {
        let accepts_requests = self.client.in_handshake_era() && self.request.method.may_trigger_server_messages();
        let inbox = accepts_requests.then(|| self.client.server_requests.register_call(&self.request.id));
        let (id, mark) = (Some(&self.request.id), self.caller.mark());
        let mut guard = CancelRequestOnDrop { client: &self.client, id, mark };
        let outcome = self.wait_for_outcome(inbox.as_deref(), round).await?;
        guard.id = None;
        outcome
    }

    async fn wait_for_outcome(&self, inbox: Option<&RequestInbox>, round: &mut Round<'_, impl ReplySink>) -> Waited {
        let headers = SentHeaders { mirrors: &self.mirrors, caller: &self.caller, trace: self.trace.as_ref() };
        let sending = pin!(self.client.send_request(&self.request, headers, round.delivery));
        match wait_with_inbox(inbox, sending, round).await? {
            Ok(FirstResponse::Response(outcome)) => Ok(outcome),
            Ok(FirstResponse::Batch(messages)) => match Box::pin(self.dispatch_all(messages, round)).await {
                Some(outcome) => Ok(outcome),
                None => {
                    let why = "the server sent a batch without the response";
                    Ok(Err(Failure::new(FailureKind::Protocol, why).into()))
                }
            },
            Ok(FirstResponse::InPieces(answer)) => Box::pin(self.pass_pieces(answer, round)).await,
            Ok(FirstResponse::Events(events)) => Box::pin(self.read_events(events, inbox, round)).await,
            Err(error) => Ok(Err(error.into_object())),
        }
    }

    /// Forwards messages that were received together; the outcome if the response is among them.
    async fn dispatch_all(&self, messages: Vec<Received>, round: &mut Round<'_, impl ReplySink>) -> Option<Outcome> {
        let request = Some((&self.request.id, self.progress_token.as_ref()));
        for message in messages {
            match self.client.dispatch(message, request, self.caller.mark()).await {
                Some(Reply::End(answer)) => return Some(answer.outcome),
                Some(reply) => round.forward(reply).await,
                None => {}
            }
        }
        None
    }

    /// Passes a long result on as it arrives. No more is read than the reader of the call takes.
    async fn pass_pieces(&self, mut answer: Box<LongAnswer>, round: &mut Round<'_, impl ReplySink>) -> Waited {
        loop {
            let piece = answer.take_piece();
            if !piece.is_empty() {
                round.pass_piece(piece).await;
            }
            match round.wait(answer.read()).await? {
                Ok(true) => {}
                Ok(false) => return Ok(Ok(answer.summary())),
                Err(failure) => return Ok(Err(failure.into())),
            }
        }
    }

    /// Reads an event stream until the response.
    async fn read_events(
        &self,
        events: Box<EventReader>,
        inbox: Option<&RequestInbox>,
        round: &mut Round<'_, impl ReplySink>,
    ) -> Waited {
        let mut stream =
            ResponseStream { events, last_event_id: None, retry_delay: DEFAULT_RETRY_DELAY, resume_attempts: 0 };
        loop {
            let next = {
                let next = pin!(stream.events.next());
                wait_with_inbox(inbox, next, round).await?
            };
            match next {
                Ok(Some(event)) => {
                    stream.retry_delay = event.retry.map_or(stream.retry_delay, clamp_retry_delay);
                    stream.last_event_id = event.id.clone().or(stream.last_event_id.take());
                    note_server(self.caller.mark(), Way::In, event.data.as_bytes());
                    let messages = self.client.parser.messages_in_event(event);
                    if !messages.is_empty() {
                        stream.resume_attempts = 0;
                    }
                    if let Some(outcome) = self.dispatch_all(messages, round).await {
                        return Ok(outcome);
                    }
                }
                broken => {
                    let ended = || Failure::new(FailureKind::Broken, "event stream ended before the response");
                    let failure = broken.err().map_or_else(ended, |error| Error::from(error).into_failure());
                    let resuming = pin!(self.resume(&mut stream, failure));
                    if let Err(failure) = wait_with_inbox(inbox, resuming, round).await? {
                        return Ok(Err(failure.into()));
                    }
                }
            }
        }
    }

    /// Resumes a broken stream after its last event id.
    ///
    /// # Errors
    /// `broken` where the server gave no event id or the stream cannot be resumed.
    async fn resume(&self, stream: &mut ResponseStream, broken: Failure) -> Result<(), Failure> {
        loop {
            if stream.last_event_id.is_none()
                || !self.client.in_handshake_era()
                || stream.resume_attempts >= MAX_STREAM_RESUMES
            {
                return Err(broken);
            }
            stream.resume_attempts += 1;
            tokio::time::sleep(stream.retry_delay * stream.resume_attempts).await;
            match self.client.open_stream(stream.last_event_id.as_deref(), self.client.idle_timeout()).await {
                Ok(Some(events)) => {
                    *stream.events = events;
                    return Ok(());
                }
                Ok(None) => return Err(broken),
                Err(error) if error.is_retryable() => {}
                // The request itself was sent, whatever became of its stream.
                Err(error) => return Err(error.into_failure().after_sending()),
            }
        }
    }
}

impl Drop for HttpRequest {
    fn drop(&mut self) {
        self.client.server_requests.unregister_call(&self.request.id);
    }
}

/// Waits for `own` and forwards the server requests that arrive meanwhile on another stream: some servers send those of
/// a call on the GET stream.
async fn wait_with_inbox<T>(
    inbox: Option<&RequestInbox>,
    mut own: Pin<&mut impl Future<Output = T>>,
    round: &mut Round<'_, impl ReplySink>,
) -> Result<T, ErrorObject> {
    let Some(inbox) = inbox else { return round.wait(own).await };
    loop {
        let arrived = poll_fn(|context| match inbox.pop_or_register(context) {
            Some(request) => Poll::Ready(Arrived::ServerRequest(request)),
            None => own.as_mut().poll(context).map(Arrived::Own),
        });
        match round.wait(arrived).await? {
            // Rare and large: boxed to keep the future of every other call small.
            Arrived::ServerRequest(request) => Box::pin(round.forward(Reply::ServerRequest(request))).await,
            Arrived::Own(done) => return Ok(done),
        }
    }
}

/// Sends a cancellation if the request is dropped before its response. In the per-request era closing the stream cancels
/// the request.
struct CancelRequestOnDrop<'r> {
    client: &'r Arc<StreamableClient>,
    id: Option<&'r Id>,
    mark: Mark,
}

impl Drop for CancelRequestOnDrop<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.filter(|_| self.client.in_handshake_era()).cloned() else { return };
        let client = Arc::clone(self.client);
        // Acquired here and not in the task, so that a close that begins now waits for the cancellation.
        let (Ok(session), Ok(runtime)) = (client.use_session(), tokio::runtime::Handle::try_current()) else { return };
        let message = Notification::cancelled(&id).encode();
        note_server(self.mark, Way::Out, &message);
        runtime.spawn(async move {
            let _ = client.post(session, message).await;
        });
    }
}
