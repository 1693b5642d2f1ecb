//! One request over Streamable HTTP: its response as JSON or as an event stream, which is resumed where it breaks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::{Stream, stream};

use super::{DEFAULT_RETRY_DELAY, FirstResponse, MAX_STREAM_RESUMES, StreamableClient, clamp_retry_delay};
use crate::call::{Answer, Caller, Replies, Reply};
use crate::dialect::headers::HeaderMirror;
use crate::error::Error;
use crate::failure::{Failure, FailureKind};
use crate::http::client::EventReader;
use crate::mcp_client::batch::messages_in_event;
use crate::mcp_client::connection::RequestHeaders;
use crate::protocol::{Id, Message, Notification, Outcome, Raw, Request};

/// A request and the state of its response.
pub(in crate::mcp_client) struct HttpRequest {
    client: Arc<StreamableClient>,
    request: Request,
    /// Header mirrors of the called tool.
    mirrors: Vec<HeaderMirror>,
    caller: Arc<Caller>,
    progress_token: Option<Raw>,
    phase: RequestPhase,
    /// Messages received together that were not handled yet.
    queue: VecDeque<Message>,
    guard: CancelRequestOnDrop,
    last_event_id: Option<String>,
    retry_delay: Duration,
    resume_attempts: u32,
}

enum RequestPhase {
    NotSent,
    Events(Box<EventReader>),
    /// The response was a batch, and all its messages are queued.
    Batch,
    Done,
}

impl HttpRequest {
    pub(in crate::mcp_client) fn new(
        client: Arc<StreamableClient>,
        request: Request,
        headers: RequestHeaders<'_>,
        progress_token: Option<Raw>,
    ) -> Self {
        let guard = CancelRequestOnDrop { client: Arc::clone(&client), id: None };
        let phase = RequestPhase::NotSent;
        let queue = VecDeque::new();
        let (mirrors, caller) = (headers.mirrors.to_vec(), Arc::clone(headers.caller));
        Self {
            client,
            request,
            mirrors,
            caller,
            progress_token,
            phase,
            queue,
            guard,
            last_event_id: None,
            retry_delay: DEFAULT_RETRY_DELAY,
            resume_attempts: 0,
        }
    }

    /// The replies of the request. Dropping them cancels it.
    pub(in crate::mcp_client) fn replies(self) -> Replies {
        let accepts_requests = self.client.in_handshake_era() && self.request.method.may_trigger_server_messages();
        let inbox = accepts_requests.then(|| self.client.server_requests.register_call(&self.request.id));
        let own = stream::unfold(self, |mut http_request| async move {
            let reply = http_request.next().await?;
            Some((reply, http_request))
        });
        let Some(inbox) = inbox else { return Replies::stream(own) };
        // Some servers send the server requests of a call on the GET stream.
        let mut own = Box::pin(own);
        Replies::stream(stream::poll_fn(move |context| match inbox.pop_or_register(context) {
            Some(request) => Poll::Ready(Some(Reply::ServerRequest(request))),
            None => own.as_mut().poll_next(context),
        }))
    }

    async fn next(&mut self) -> Option<Reply> {
        loop {
            let message = if matches!(self.phase, RequestPhase::Done) { None } else { self.queue.pop_front() };
            let reply = match &mut self.phase {
                RequestPhase::Done => return None,
                _ if message.is_some() => {
                    let request = Some((&self.request.id, self.progress_token.as_ref()));
                    match message.and_then(|message| self.client.dispatch(message, request)) {
                        Some(reply) => reply,
                        None => continue,
                    }
                }
                RequestPhase::NotSent => {
                    // Set only now: a request that was never sent is not cancelled.
                    self.guard.id = Some(self.request.id.clone());
                    match self
                        .client
                        .send_request(&self.request, RequestHeaders { mirrors: &self.mirrors, caller: &self.caller })
                        .await
                    {
                        Ok(FirstResponse::Events(events)) => {
                            self.phase = RequestPhase::Events(events);
                            continue;
                        }
                        Ok(FirstResponse::Batch(messages)) => {
                            self.queue.extend(messages);
                            self.phase = RequestPhase::Batch;
                            continue;
                        }
                        Ok(FirstResponse::Response(outcome)) => self.end(outcome),
                        Err(error) => self.end(Err(error.into_object())),
                    }
                }
                RequestPhase::Batch => {
                    let failure = Failure::new(FailureKind::Protocol, "the server sent a batch without the response");
                    self.end(Err(failure.into()))
                }
                RequestPhase::Events(events) => match events.next().await {
                    Ok(Some(event)) => {
                        self.retry_delay = event.retry.map_or(self.retry_delay, clamp_retry_delay);
                        self.last_event_id = event.id.clone().or(self.last_event_id.take());
                        self.queue.extend(messages_in_event(event));
                        if !self.queue.is_empty() {
                            self.resume_attempts = 0;
                        }
                        continue;
                    }
                    broken => {
                        let ended = || Failure::new(FailureKind::Broken, "event stream ended before the response");
                        let failure = broken.err().map_or_else(ended, |error| Error::from(error).into_failure());
                        match Box::pin(self.resume(failure)).await {
                            Some(reply) => reply,
                            None => continue,
                        }
                    }
                },
            };
            if matches!(reply, Reply::End(_)) {
                self.phase = RequestPhase::Done;
                self.guard.id = None;
            }
            return Some(reply);
        }
    }

    fn end(&self, outcome: Outcome) -> Reply {
        Reply::End(Answer { outcome, revision: self.client.revision() })
    }

    /// Resumes a broken stream after its last event id; ends the request where the server gave none.
    async fn resume(&mut self, failure: Failure) -> Option<Reply> {
        let can_resume =
            self.last_event_id.is_some() && self.client.in_handshake_era() && self.resume_attempts < MAX_STREAM_RESUMES;
        if !can_resume {
            return Some(self.end(Err(failure.into())));
        }
        self.resume_attempts += 1;
        tokio::time::sleep(self.retry_delay * self.resume_attempts).await;
        match self.client.open_stream(self.last_event_id.as_deref(), self.client.idle_timeout()).await {
            Ok(Some(events)) => {
                self.phase = RequestPhase::Events(Box::new(events));
                None
            }
            Ok(None) => Some(self.end(Err(failure.into()))),
            Err(error) if error.is_retryable() => None,
            // The request itself was sent, whatever became of its stream.
            Err(error) => Some(self.end(Err(error.into_failure().after_sending().into()))),
        }
    }
}

/// Sends a cancellation if the request is dropped before its response. In the per-request era closing the stream cancels
/// the request.
struct CancelRequestOnDrop {
    client: Arc<StreamableClient>,
    id: Option<Id>,
}

impl Drop for HttpRequest {
    fn drop(&mut self) {
        self.client.server_requests.unregister_call(&self.request.id);
    }
}

impl Drop for CancelRequestOnDrop {
    fn drop(&mut self) {
        let Some(id) = self.id.take().filter(|_| self.client.in_handshake_era()) else { return };
        let client = Arc::clone(&self.client);
        // Acquired here and not in the task, so that a close that begins now waits for the cancellation.
        let (Ok(session), Ok(runtime)) = (client.use_session(), tokio::runtime::Handle::try_current()) else { return };
        runtime.spawn(async move {
            let _ = client.post(session, Notification::cancelled(&id).encode()).await;
        });
    }
}
