//! Standard input and output: one client of either era, one JSON message per line.
//!
//! The first request that belongs to an era decides for the whole connection. `server/discover` is the exception: a
//! client may send it as a probe and continue in the other era.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncWrite, AsyncWriteExt};

use super::access_hook::{note_client, note_message};
use super::recorder_hook::{note_line, note_sent};
use super::respond::quota_error;
use super::response_encoder::ReplyEncoder;
use super::session_messages::{
    ArrivedMessage, InFlightCall, RunningCall, admit_request, check_listen, give_back_share,
};
use super::{Inbound, per_request, sse};
use crate::access_log::{AccessEnd, AccessGuard, AccessRecord};
use crate::call::Caller;
use crate::dialect::classify::{self, MessageClass, RequestMeta};
use crate::gateway::{Group, over_rate_limit};
use crate::http::codec::HeaderFields;
use crate::identity::Identity;
use crate::ndjson::{LineReader, TextLine, to_single_line};
use crate::protocol::{
    ErrorObject, Id, Incoming, Invalid, Message, Method, Notification, NotificationMethod, Raw, Request, Response, code,
};
use crate::session::{BeginCallError, Session, SessionOwner, SessionTransport, StreamReader, StreamTarget};

/// How long the client may take to read the remaining output when the connection ends.
const STDIO_DRAIN_TIME: Duration = Duration::from_secs(2);

/// Era of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StdioEra {
    Undecided,
    Handshake,
    PerRequest,
}

/// One client on a pair of byte streams.
struct StdioConnection {
    inbound: Arc<Inbound>,
    group: Arc<Group>,
    session: Arc<Session>,
    caller: Arc<Caller>,
    era: StdioEra,
    /// The caller of the message that is being handled: with its record in the access log, where there is one.
    current: Arc<Caller>,
}

/// Serves a client until its input ends or a shutdown begins, then waits for running calls.
///
/// # Errors
/// When reading or writing fails.
pub(super) async fn serve<R, W>(inbound: Arc<Inbound>, group: Arc<Group>, input: R, output: W) -> std::io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let caller = Arc::new(Caller::local(Identity::local()));
    let owner =
        SessionOwner { identity: Arc::clone(&caller.identity), group: Arc::clone(group.name()), quota_key: None };
    let opened = inbound.sessions.open_single(SessionTransport::Stdio, owner);
    let (session, reader) = opened.map_err(|_| std::io::Error::other("session limit reached"))?;
    inbound.record_session(&caller, &session);
    let mut writer = tokio::spawn(write_lines(reader, output));
    let draining = inbound.shutdown.draining().clone();
    let mut lines = LineReader::new(input, inbound.settings().limits.body_bytes);
    let current = Arc::clone(&caller);
    let mut connection = StdioConnection { inbound, group, session, caller, era: StdioEra::Undecided, current };
    let mut written = None;
    let read = tokio::select! {
        read = connection.read_lines(&mut lines) => read,
        () = draining.cancelled() => Ok(()),
        // Output is closed, so no request can be answered.
        ended = &mut writer => {
            written = Some(ended.map_err(std::io::Error::other)?);
            Ok(())
        }
    };
    connection.finish().await;
    let written = match written {
        Some(written) => written,
        None => match tokio::time::timeout(STDIO_DRAIN_TIME, &mut writer).await {
            Ok(ended) => ended.map_err(std::io::Error::other)?,
            Err(_) => {
                tracing::warn!("client does not read; remaining output dropped");
                writer.abort();
                Ok(())
            }
        },
    };
    read.and(written)
}

/// Writes messages as lines until the stream ends.
async fn write_lines(mut messages: StreamReader, mut output: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    while let Some(message) = messages.next().await {
        output.write_all(&to_single_line(message)).await?;
        output.write_all(b"\n").await?;
        output.flush().await?;
    }
    output.shutdown().await
}

impl StdioConnection {
    async fn read_lines<R: AsyncBufRead + Unpin>(&mut self, lines: &mut LineReader<R>) -> std::io::Result<()> {
        while let Some(line) = lines.next().await? {
            match line {
                TextLine::TooLong(_) => {
                    let why = format!("a line may have {} bytes", self.inbound.settings().limits.body_bytes);
                    self.send_response(Invalid::request(None, why).response()).await;
                }
                TextLine::Text(text) => self.handle_line(&text).await,
            }
        }
        Ok(())
    }

    async fn handle_line(&mut self, text: &Bytes) {
        let limits = self.inbound.settings().limits.clone();
        if !crate::protocol::json::depth_within(text, limits.json_depth) {
            let why = format!("JSON may nest {} deep", limits.json_depth);
            return self.send_response(Invalid::request(None, why).response()).await;
        }
        match Incoming::parse(text, limits.batch_length) {
            Ok(Incoming::One(message)) => self.handle_logged(message, text).await,
            Ok(Incoming::Batch(items)) => self.handle_batch(items, text).await,
            // No request id could be read, so there is nobody to answer: log it and go on.
            Err(invalid) if invalid.code == code::PARSE_ERROR => {
                tracing::warn!(why = %invalid.reason, "input line is not JSON; skipped");
            }
            Err(invalid) => self.send_response(invalid.response()).await,
        }
    }

    async fn handle_batch(&mut self, items: Vec<Result<Message, Invalid>>, text: &Bytes) {
        if !self.session.client().is_some_and(|client| client.revision.allows_batches()) {
            let why = "batches exist in connections of 2025-03-26 only";
            return self.send_response(Invalid::request(None, why).response()).await;
        }
        for item in items {
            match item {
                Ok(message) => self.handle_logged(message, text).await,
                Err(invalid) => self.send_response(invalid.response()).await,
            }
        }
    }

    /// Handles a message; a request has its line in the access log.
    async fn handle_logged(&mut self, message: Message, text: &Bytes) {
        let record = if matches!(message, Message::Request(_)) { self.inbound.access_log.begin() } else { None };
        let arrived = ArrivedMessage { line: text.clone(), ..ArrivedMessage::default() };
        let Some(record) = record else { return self.handle_message(message, &arrived).await };
        record.count_replies();
        record.note_identity(&self.caller.identity);
        record.note_received(text.len());
        record.note_group(self.group.name(), "stdio");
        note_line(record.mark(), text);
        note_message(Some(&record), &message);
        note_client(Some(&record), self.session.client());
        let mut access = AccessGuard::new(Some(&record));
        self.current = Arc::new(Caller { access: Some(record), ..(*self.caller).clone() });
        self.handle_message(message, &arrived).await;
        self.current = Arc::clone(&self.caller);
        access.finish(AccessEnd::Answered);
    }

    async fn handle_message(&mut self, message: Message, arrived: &ArrivedMessage) {
        let path = match classify::classify(&message, &HeaderFields::default()) {
            Ok(path) => path,
            Err(refused) => return self.send_response(Response::new(refused.id, Err(refused.error))).await,
        };
        match (message, path) {
            (Message::Request(request), MessageClass::PerRequest(meta)) => self.handle_per_request(request, meta).await,
            (Message::Request(request), _) if self.era == StdioEra::PerRequest => {
                let error = if request.method == Method::Initialize {
                    classify::unsupported_version(&proposed_revision(&request))
                } else {
                    crate::dialect::meta::read(request.params.as_ref()).err().unwrap_or_else(missing_meta)
                };
                self.send_response(Response::new(Some(request.id), Err(error))).await;
            }
            (Message::Notification(notification), _) if self.era != StdioEra::Handshake => self.cancel(&notification),
            (message, _) => {
                if matches!(message, Message::Request(_)) {
                    self.era = StdioEra::Handshake;
                }
                let message = (message, arrived);
                sse::handle_message(&self.inbound, &self.group, &self.session, message, &self.current).await;
            }
        }
    }

    /// Handles `notifications/cancelled` for a call of the per-request era.
    fn cancel(&self, notification: &Notification) {
        if notification.method != NotificationMethod::Cancelled {
            return;
        }
        let id = notification.params.as_ref().and_then(|params| params.get("requestId"));
        if let Some(id) = id.as_ref().and_then(Id::from_raw) {
            self.session.cancel_call(&id);
        }
    }

    async fn handle_per_request(&mut self, request: Request, meta: RequestMeta) {
        if self.era == StdioEra::Handshake {
            let why = "this connection was opened by `initialize`; requests of another era need one of their own";
            return self.send_response(Invalid::request(Some(request.id), why).response()).await;
        }
        let checked = match classify::check_body(&request, meta) {
            Ok(checked) => checked,
            Err(refused) => return self.send_response(Response::new(refused.id, Err(refused.error))).await,
        };
        if request.method != Method::Discover {
            self.era = StdioEra::PerRequest;
        }
        let is_listen = request.method == Method::Listen;
        let mut call = per_request::into_call(request, checked, Arc::clone(&self.current));
        note_client(call.caller.access.as_ref(), Some(&call.client));
        if let Err(error) = check_listen(&self.inbound, &call) {
            return self.send_response(Response::new(Some(call.id), Err(error))).await;
        }
        let resumes = || self.group.parked_on(&call).is_some();
        match admit_request(&self.inbound, &self.current, (&self.group, &call.method), resumes).await {
            Ok(share) => call.limits = share,
            Err(wait) => return self.send_response(Response::new(Some(call.id), Err(over_rate_limit(wait)))).await,
        }
        let begun = InFlightCall::begin(&self.inbound, &call).map_err(BeginCallError::QuotaReached);
        let begun = begun.and_then(|in_flight| Ok((self.session.begin_call(call.id.clone())?, in_flight)));
        let (guard, in_flight) = match begun {
            Ok(begun) => begun,
            Err(BeginCallError::QuotaReached(reached)) => {
                give_back_share(&call);
                return self.send_response(Response::new(Some(call.id), Err(quota_error(reached)))).await;
            }
            Err(not_begun) => {
                let invalid = Invalid::request(Some(call.id), not_begun.to_string());
                return self.send_response(invalid.response()).await;
            }
        };
        self.group.begin_span(&mut call);
        let operation =
            self.group.begin_operation((&call.method, call.params.as_ref()), Some(call.client.revision), &call.caller);
        call.target_label = operation.target();
        let replies = self.group.handle(&call);
        let encoder = ReplyEncoder::of_call(call, operation);
        let mut running = RunningCall { guard, replies, encoder, in_flight };
        if let Some(answer) = running.replies.take_ready() {
            running.send(StreamTarget::Listening, crate::call::Reply::End(answer)).await;
            return;
        }
        let session = Arc::clone(&self.session);
        let mut access = self.current.access.as_ref().map(AccessRecord::defer);
        tokio::spawn(async move {
            let id = running.encoder.id.clone();
            let _in_flight = running.in_flight.tracked.clone();
            let ended = running.run(StreamTarget::Listening).await;
            if is_listen && ended {
                // On a shared pipe the client also needs an explicit end of the subscription.
                session.deliver(StreamTarget::Listening, Notification::cancelled(&id).encode()).await;
            }
            if let Some(access) = &mut access {
                access.finish(AccessEnd::Answered);
            }
        });
    }

    async fn send_response(&self, response: Response) {
        let error = response.outcome.as_ref().err().map(ErrorObject::code);
        let encoded = response.encode();
        if let Some(access) = &self.current.access {
            access.note_reply(encoded.len(), error);
        }
        note_sent(self.current.access.as_ref(), &encoded);
        self.session.deliver(StreamTarget::Listening, encoded).await;
    }

    /// Waits for running calls, at most the shutdown timeout, then closes the session so that the writer ends.
    async fn finish(&self) {
        let deadline = self.inbound.settings().shutdown_timeout;
        let sessions = Arc::clone(&self.inbound.sessions);
        self.inbound.shutdown.stop(deadline, || sessions.close_all()).await;
    }
}

fn proposed_revision(request: &Request) -> String {
    let version = request.params.as_ref().and_then(|params| params.get("protocolVersion"));
    version.as_ref().and_then(Raw::text).map(std::borrow::Cow::into_owned).unwrap_or_default()
}

fn missing_meta() -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, "Invalid params: every request needs its `_meta`")
}
