//! Standard input and output: one client, both eras, one message a line.
//!
//! The first request that says which era it is of decides for the whole connection, except for
//! `server/discover`, which a client may send to find out and then go on in the other era.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncBufRead, AsyncWrite, AsyncWriteExt};

use super::response_encoder::ReplyEncoder;
use super::session_messages::RunningCall;
use super::{Inbound, per_request, sse};
use crate::call::Caller;
use crate::dialect::classify::{self, Path, Told};
use crate::gateway::Group;
use crate::ndjson::{Lines, TextLine, one_line};
use crate::protocol::{
    ErrorObject, Id, Incoming, Invalid, Message, Method, Notice, Notification, Raw, Request, Response, code,
};
use crate::session::{Attachment, Session, SessionOwner, SessionTransport, StreamTarget};

/// How long a client may take to read what is left when the connection ends.
const STDIO_DRAIN_TIME: Duration = Duration::from_secs(2);

/// What the client has shown itself to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    Handshake,
    PerRequest,
}

/// One client on a pair of byte streams.
struct StdioConnection {
    inbound: Arc<Inbound>,
    group: Arc<Group>,
    session: Arc<Session>,
    caller: Arc<Caller>,
    mode: Mode,
}

/// Serves a client until its input ends or a stop is asked for; then what runs is let finish.
///
/// # Errors
/// When reading or writing fails.
pub(super) async fn serve<R, W>(inbound: Arc<Inbound>, group: Arc<Group>, input: R, output: W) -> std::io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let caller = Arc::new(Caller { principal: "local".into(), peer: None, headers: HeaderMap::new() });
    let opening = SessionOwner { principal: caller.principal.clone(), group: Arc::clone(group.name()) };
    let opened = inbound.sessions.open_single(SessionTransport::Stdio, opening);
    let (session, attachment) = opened.map_err(|_| std::io::Error::other("there are too many sessions"))?;
    let mut writer = tokio::spawn(write(attachment, output));
    let draining = inbound.shutdown.draining().clone();
    let mut lines = Lines::new(input, inbound.settings.limits.body_bytes);
    let mut connection = StdioConnection { inbound, group, session, caller, mode: Mode::Open };
    let mut written = None;
    let read = tokio::select! {
        read = connection.read(&mut lines) => read,
        () = draining.cancelled() => Ok(()),
        // Nobody reads any more, so nobody can be answered.
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
                tracing::warn!("the client does not read; what was left to say is dropped");
                writer.abort();
                Ok(())
            }
        },
    };
    read.and(written)
}

/// Writes messages as lines until there are no more.
async fn write(mut messages: Attachment, mut output: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    while let Some(message) = messages.next().await {
        output.write_all(&one_line(message)).await?;
        output.write_all(b"\n").await?;
        output.flush().await?;
    }
    output.shutdown().await
}

impl StdioConnection {
    async fn read<R: AsyncBufRead + Unpin>(&mut self, lines: &mut Lines<R>) -> std::io::Result<()> {
        while let Some(line) = lines.next().await? {
            match line {
                TextLine::TooLong => {
                    let why = format!("a line may have {} bytes", self.inbound.settings.limits.body_bytes);
                    self.send(Invalid::request(None, why).response()).await;
                }
                TextLine::Text(text) => self.line(&text).await,
            }
        }
        Ok(())
    }

    async fn line(&mut self, text: &Bytes) {
        let limits = &self.inbound.settings.limits;
        if !crate::protocol::json::depth_within(text, limits.json_depth) {
            let why = format!("JSON may nest {} deep", limits.json_depth);
            return self.send(Invalid::request(None, why).response()).await;
        }
        match Incoming::parse(text, limits.batch_length) {
            Ok(Incoming::One(message)) => self.message(message).await,
            Ok(Incoming::Batch(items)) => self.batch(items).await,
            // Text that is no JSON came from no client that waits for an answer.
            Err(invalid) if invalid.code == code::PARSE_ERROR => {
                tracing::warn!(why = %invalid.why, "a line was skipped");
            }
            Err(invalid) => self.send(invalid.response()).await,
        }
    }

    async fn batch(&mut self, items: Vec<Result<Message, Invalid>>) {
        if !self.session.client().is_some_and(|client| client.revision.facts().batches) {
            let why = "batches exist in connections of 2025-03-26 only";
            return self.send(Invalid::request(None, why).response()).await;
        }
        for item in items {
            match item {
                Ok(message) => self.message(message).await,
                Err(invalid) => self.send(invalid.response()).await,
            }
        }
    }

    async fn message(&mut self, message: Message) {
        let path = match classify::classify(&message, &HeaderMap::new()) {
            Ok(path) => path,
            Err(refused) => return self.send(Response::new(refused.id, Err(refused.error))).await,
        };
        match (message, path) {
            (Message::Request(request), Path::PerRequest(told)) => self.per_request(request, told).await,
            (Message::Request(request), _) if self.mode == Mode::PerRequest => {
                let error = if request.method == Method::Initialize {
                    classify::unsupported(&proposed(&request))
                } else {
                    crate::dialect::meta::read(request.params.as_ref()).err().unwrap_or_else(unclear)
                };
                self.send(Response::new(Some(request.id), Err(error))).await;
            }
            (Message::Notification(notification), _) if self.mode != Mode::Handshake => self.cancel(&notification),
            (message, _) => {
                if matches!(message, Message::Request(_)) {
                    self.mode = Mode::Handshake;
                }
                sse::take(&self.inbound, &self.group, &self.session, message, &self.caller).await;
            }
        }
    }

    /// `notifications/cancelled` for a call of the per-request era.
    fn cancel(&self, notification: &Notification) {
        if notification.notice != Notice::Cancelled {
            return;
        }
        let id = notification.params.as_ref().and_then(|params| params.get("requestId"));
        if let Some(id) = id.as_ref().and_then(Id::from_raw) {
            self.session.cancel(&id);
        }
    }

    async fn per_request(&mut self, request: Request, told: Told) {
        if self.mode == Mode::Handshake {
            let why = "this connection was opened by `initialize`; requests of another era need one of their own";
            return self.send(Invalid::request(Some(request.id), why).response()).await;
        }
        let checked = match classify::check_body(&request, told) {
            Ok(checked) => checked,
            Err(refused) => return self.send(Response::new(refused.id, Err(refused.error))).await,
        };
        if request.method != Method::Discover {
            self.mode = Mode::PerRequest;
        }
        let running = match self.session.begin(request.id.clone()) {
            Ok(running) => running,
            Err(not_begun) => {
                let invalid = Invalid::request(Some(request.id), not_begun.to_string());
                return self.send(invalid.response()).await;
            }
        };
        let listens = request.method == Method::Listen;
        let call = per_request::call(request, checked, Arc::clone(&self.caller));
        let replies = self.group.handle(&call);
        let answering = ReplyEncoder {
            id: call.id,
            method: call.method,
            revision: call.client.revision,
            group: Arc::clone(&self.group),
        };
        let shutdown = &self.inbound.shutdown;
        let counted = if listens { shutdown.lingering() } else { shutdown.call() };
        let mut work = RunningCall { running, replies, answering, counted };
        if let Some(answer) = work.replies.take_ready() {
            work.send(StreamTarget::Listening, crate::call::Reply::End(answer)).await;
            return;
        }
        let session = Arc::clone(&self.session);
        tokio::spawn(async move {
            let id = work.answering.id.clone();
            let _counted = work.counted.clone();
            let ended = work.run(StreamTarget::Listening).await;
            if listens && ended {
                // On a shared pipe the end of the answer is no sign by itself.
                session.deliver(StreamTarget::Listening, Notification::cancelled(&id).encode()).await;
            }
        });
    }

    async fn send(&self, response: Response) {
        self.session.deliver(StreamTarget::Listening, response.encode()).await;
    }

    /// Waits for what runs, up to the deadline of a stop, then lets the writer go.
    async fn finish(&self) {
        let deadline = self.inbound.settings.shutdown_timeout;
        let sessions = Arc::clone(&self.inbound.sessions);
        self.inbound.shutdown.stop(deadline, || sessions.close_all()).await;
    }
}

fn proposed(request: &Request) -> String {
    let version = request.params.as_ref().and_then(|params| params.get("protocolVersion"));
    version.as_ref().and_then(Raw::text).map(std::borrow::Cow::into_owned).unwrap_or_default()
}

fn unclear() -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, "Invalid params: every request needs its `_meta`")
}
