//! One request over Streamable HTTP: JSON or a stream, resumed where it breaks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::{Stream, stream};

use super::{FirstResponse, RESUMES, RETRY, StreamableClient, pause};
use crate::call::{Answer, Caller, Replies, Reply};
use crate::dialect::headers::HeaderMirror;
use crate::error::{Error, ErrorKind};
use crate::http::client::EventReader;
use crate::mcp_client::batch::parsed;
use crate::mcp_client::connection::Headers;
use crate::protocol::{Id, Message, Notification, Outcome, Raw, Request};

/// One request and what comes back for it.
pub(in crate::mcp_client) struct HttpRequest {
    http: Arc<StreamableClient>,
    request: Request,
    /// The headers that the tool wants mirrored.
    mirrors: Vec<HeaderMirror>,
    caller: Arc<Caller>,
    token: Option<Raw>,
    phase: RequestPhase,
    /// Messages that came together with one that was taken.
    queue: VecDeque<Message>,
    guard: Cancel,
    last_event: Option<String>,
    retry: Duration,
    resumes: u32,
}

enum RequestPhase {
    Start,
    Events(Box<EventReader>),
    /// Everything has come.
    Batch,
    Done,
}

impl HttpRequest {
    pub(in crate::mcp_client) fn new(
        http: Arc<StreamableClient>,
        request: Request,
        extra: Headers<'_>,
        token: Option<Raw>,
    ) -> Self {
        let guard = Cancel { http: Arc::clone(&http), id: None };
        let phase = RequestPhase::Start;
        let queue = VecDeque::new();
        let (mirrors, caller) = (extra.mirrors.to_vec(), Arc::clone(extra.caller));
        Self { http, request, mirrors, caller, token, phase, queue, guard, last_event: None, retry: RETRY, resumes: 0 }
    }

    /// The replies; dropping them gives the request up.
    pub(in crate::mcp_client) fn replies(self) -> Replies {
        let asks = self.http.in_handshake_era() && self.request.method.converses();
        let asked = asks.then(|| self.http.questions.enter(&self.request.id));
        let own = stream::unfold(self, |mut exchange| async move {
            let reply = exchange.next().await?;
            Some((reply, exchange))
        });
        let Some(asked) = asked else { return Replies::stream(own) };
        // Some servers ask on the stream that listens, whatever the question belongs to.
        let mut own = Box::pin(own);
        Replies::stream(stream::poll_fn(move |context| match asked.next(context) {
            Some(question) => Poll::Ready(Some(Reply::Question(question))),
            None => own.as_mut().poll_next(context),
        }))
    }

    async fn next(&mut self) -> Option<Reply> {
        loop {
            let message = if matches!(self.phase, RequestPhase::Done) { None } else { self.queue.pop_front() };
            let reply = match &mut self.phase {
                RequestPhase::Done => return None,
                _ if message.is_some() => {
                    let request = Some((&self.request.id, self.token.as_ref()));
                    match message.and_then(|message| self.http.take(message, request)) {
                        Some(reply) => reply,
                        None => continue,
                    }
                }
                RequestPhase::Start => {
                    // What nobody waited for was never sent, and is not to be cancelled.
                    self.guard.id = Some(self.request.id.clone());
                    match self.http.begin(&self.request, Headers { mirrors: &self.mirrors, caller: &self.caller }).await
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
                        Ok(FirstResponse::Answer(outcome)) => self.end(outcome),
                        Err(error) => self.end(Err(error.into_object())),
                    }
                }
                RequestPhase::Batch => {
                    let error = Error::new(ErrorKind::Protocol, "the server answered with a batch that has no answer");
                    self.end(Err(error.into_object()))
                }
                RequestPhase::Events(events) => match events.next().await {
                    Ok(Some(event)) => {
                        self.retry = event.retry.map_or(self.retry, pause);
                        self.last_event = event.id.clone().or(self.last_event.take());
                        self.queue.extend(parsed(event));
                        if !self.queue.is_empty() {
                            self.resumes = 0;
                        }
                        continue;
                    }
                    broken => {
                        let ended = || Error::new(ErrorKind::Broken, "the stream ended before the answer");
                        let error = broken.err().map_or_else(ended, Error::from);
                        match Box::pin(self.resume(error)).await {
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
        Reply::End(Answer { outcome, revision: self.http.revision() })
    }

    /// The stream broke off: goes on where it broke, where the server has given it a position.
    async fn resume(&mut self, error: Error) -> Option<Reply> {
        let resumable = self.last_event.is_some() && self.http.in_handshake_era() && self.resumes < RESUMES;
        if !resumable {
            return Some(self.end(Err(error.into_object())));
        }
        self.resumes += 1;
        tokio::time::sleep(self.retry * self.resumes).await;
        match self.http.open_stream(self.last_event.as_deref(), self.http.patience()).await {
            Ok(Some(events)) => {
                self.phase = RequestPhase::Events(Box::new(events));
                None
            }
            Ok(None) => Some(self.end(Err(error.into_object()))),
            Err(error) if error.may_retry() => None,
            Err(error) => Some(self.end(Err(error.into_object()))),
        }
    }
}

/// Tells the server that nobody waits for a call any more. In the per-request era closing the
/// stream says so.
struct Cancel {
    http: Arc<StreamableClient>,
    id: Option<Id>,
}

impl Drop for HttpRequest {
    fn drop(&mut self) {
        self.http.questions.leave(&self.request.id);
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        let Some(id) = self.id.take().filter(|_| self.http.in_handshake_era()) else { return };
        let http = Arc::clone(&self.http);
        // Acquired here and not in the task, so that an end that begins now comes after it.
        let (Ok(session), Ok(runtime)) = (http.use_session(), tokio::runtime::Handle::try_current()) else { return };
        runtime.spawn(async move {
            let _ = http.post(session, Notification::cancelled(&id).encode()).await;
        });
    }
}
