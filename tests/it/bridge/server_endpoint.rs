//! Runs a scripted server behind a transport: over HTTP, or over stdio through a relaying child process.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use bytes::Bytes;
use http::{HeaderMap, Method as Verb, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use rialto::dialect::Revision;
use rialto::mcp_client::Target;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::scripted_server::{META, ScriptedServer, Session, Sink};
use super::variants::{Transport, Variant};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A scripted server and the target that reaches it.
pub struct ServerEndpoint {
    pub scripted: Arc<ScriptedServer>,
    pub target: Target,
}

/// Serves a scripted server on a TCP listener.
struct ServerHost {
    scripted: Arc<ScriptedServer>,
    sessions: Mutex<HashMap<String, HostedSession>>,
    opened: AtomicU32,
}

/// A session and the messages queued for its GET stream.
struct HostedSession {
    session: Arc<Session>,
    waiting: Option<UnboundedReceiver<String>>,
}

impl ServerEndpoint {
    pub async fn open(variant: Variant) -> Self {
        let scripted = ScriptedServer::new(variant);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = match variant.transport {
            Transport::Stdio => {
                // A child that relays stdin and stdout to this listener and exits when either side closes.
                let script = format!(
                    "exec 3<>/dev/tcp/127.0.0.1/{port} 4<&0; cat <&3 & r=$!; cat <&4 >&3 & w=$!; wait -n; kill $r $w"
                );
                Target::command("bash", ["-c", &script])
            }
            Transport::Http => Target::url(&format!("http://127.0.0.1:{port}/mcp")).unwrap(),
            Transport::Sse => Target::url(&format!("http://127.0.0.1:{port}/sse")).unwrap(),
        };
        let host = Arc::new(ServerHost {
            scripted: Arc::clone(&scripted),
            sessions: Mutex::default(),
            opened: AtomicU32::new(0),
        });
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let host = Arc::clone(&host);
                tokio::spawn(async move {
                    match variant.transport {
                        Transport::Stdio => host.serve_stdio(stream).await,
                        Transport::Http | Transport::Sse => host.serve_http(stream).await,
                    }
                });
            }
        });
        Self { scripted, target }
    }
}

impl ServerHost {
    /// Serves the stdio of one child.
    async fn serve_stdio(&self, stream: TcpStream) {
        let (read, mut write) = stream.into_split();
        let (out, mut messages) = mpsc::unbounded_channel::<String>();
        let session = Session::new("pipe", out.clone());
        self.scripted.open(&session);
        let scripted = Arc::clone(&self.scripted);
        let writer = tokio::spawn(async move {
            while let Some(mut text) = messages.recv().await {
                note_sent(&scripted, &text);
                // Messages queued together are written together.
                while let Ok(message) = messages.try_recv() {
                    note_sent(&scripted, &message);
                    text = format!("{text}\n{message}");
                }
                if write.write_all(format!("{text}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let mut lines = BufReader::new(read).lines();
        loop {
            let line = tokio::select! {
                line = lines.next_line() => line,
                () = self.scripted.crashed.cancelled() => break,
            };
            let Ok(Some(line)) = line else { break };
            self.scripted.received.lock().unwrap().push(line.clone());
            self.scripted.receive(&session, &line, &out);
        }
        session.end();
        self.scripted.count_ended_session();
        writer.abort();
    }

    async fn serve_http(self: Arc<Self>, stream: TcpStream) {
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let host = Arc::clone(&self);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let body = String::from_utf8_lossy(&body).into_owned();
                if !body.is_empty() {
                    host.scripted.received.lock().unwrap().push(body.clone());
                }
                let respond = async {
                    match host.scripted.variant.transport {
                        Transport::Sse => host.handle_http_sse(&parts.method, &parts.uri, &parts.headers, &body),
                        _ if host.scripted.variant.is_per_request() => {
                            host.handle_per_request(&parts.method, &parts.headers, &body).await
                        }
                        _ => host.handle_streamable(&parts.method, &parts.headers, &body).await,
                    }
                };
                let response = tokio::select! {
                    biased;
                    () = host.scripted.crashed.cancelled() => text_response(503, "gone"),
                    response = respond => response,
                };
                Ok::<_, Infallible>(response)
            }
        });
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    fn require(&self, holds: bool, violation: &str, message: &str) {
        if !holds {
            self.scripted.report_violation(format!("{violation}: {message}"));
        }
    }

    /// Handles a request of the HTTP+SSE transport.
    fn handle_http_sse(
        self: &Arc<Self>,
        verb: &Verb,
        uri: &http::Uri,
        headers: &HeaderMap,
        body: &str,
    ) -> Response<Body> {
        match (verb, uri.path()) {
            (&Verb::GET, "/sse") => {
                self.require(
                    header_contains(headers, "accept", "text/event-stream"),
                    "Accept lacks text/event-stream",
                    body,
                );
                let (session, messages) = self.open_session();
                let first = format!("event: endpoint\ndata: /message?s={}\n\n", session.id);
                self.sessions
                    .lock()
                    .unwrap()
                    .insert(session.id.clone(), HostedSession { session: Arc::clone(&session), waiting: None });
                let host = Arc::clone(self);
                let gone = session.out.clone();
                tokio::spawn(async move {
                    gone.closed().await;
                    host.sessions.lock().unwrap().remove(&session.id);
                    session.end();
                    host.scripted.count_ended_session();
                });
                sse_response(&self.scripted, Some(first), messages)
            }
            (&Verb::POST, "/message") => {
                let id = uri.query().and_then(|query| query.strip_prefix("s=")).unwrap_or_default();
                let session = self.sessions.lock().unwrap().get(id).map(|hosted| Arc::clone(&hosted.session));
                let Some(session) = session else {
                    return text_response(404, "no such session");
                };
                self.require(
                    header_contains(headers, "content-type", "application/json"),
                    "Content-Type is not JSON",
                    body,
                );
                self.scripted.receive(&session, body, &session.out.clone());
                text_response(202, "Accepted")
            }
            _ => text_response(405, "Method Not Allowed"),
        }
    }

    fn open_session(&self) -> (Arc<Session>, UnboundedReceiver<String>) {
        let (out, messages) = mpsc::unbounded_channel();
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let session = Session::new(&format!("session-{number}"), out);
        self.scripted.open(&session);
        (session, messages)
    }

    /// Handles a handshake-era Streamable HTTP request.
    async fn handle_streamable(&self, verb: &Verb, headers: &HeaderMap, body: &str) -> Response<Body> {
        let message: Value = serde_json::from_str(body).unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default();
        let named = headers.get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
        if method == "server/discover" && named.is_none() {
            return text_response(400, "Bad Request: no session");
        }
        for name in ["mcp-method", "mcp-name"] {
            self.require(!headers.contains_key(name), "a per-request header", body);
        }
        if method == "initialize" {
            self.require(named.is_none(), "a session id on initialize", body);
            let (session, waiting) = self.open_session();
            let response = self.respond(&session, body).await;
            let id = session.id.clone();
            self.sessions.lock().unwrap().insert(id.clone(), HostedSession { session, waiting: Some(waiting) });
            let (mut parts, body) = response.into_parts();
            parts.headers.insert("mcp-session-id", id.parse().unwrap());
            return Response::from_parts(parts, body);
        }
        let version = headers.get("mcp-protocol-version").map(|name| name.to_str().unwrap().to_owned());
        let ours = self.scripted.variant.revision.to_string();
        let optional = self.scripted.variant.revision < Revision::V2025_06_18;
        self.require(version.as_deref().map_or(optional, |named| named == ours), "wrong MCP-Protocol-Version", body);
        let hosted = named.as_ref().and_then(|id| {
            let sessions = self.sessions.lock().unwrap();
            sessions.get(id).map(|hosted| Arc::clone(&hosted.session))
        });
        let Some(session) = hosted else {
            self.scripted.report_violation(format!("no session: {verb} {named:?} {body}"));
            return text_response(if named.is_some() { 404 } else { 400 }, "no session");
        };
        match *verb {
            Verb::POST => {
                let wants = header_contains(headers, "accept", "application/json")
                    && header_contains(headers, "accept", "text/event-stream");
                self.require(
                    wants && header_contains(headers, "content-type", "application/json"),
                    "bad headers",
                    body,
                );
                if message.get("id").is_some() && message.get("method").is_some() {
                    return self.respond(&session, body).await;
                }
                self.scripted.receive(&session, body, &session.out.clone());
                text_response(202, "")
            }
            Verb::GET => {
                self.require(
                    header_contains(headers, "accept", "text/event-stream"),
                    "Accept lacks text/event-stream",
                    "GET",
                );
                let waiting =
                    self.sessions.lock().unwrap().get_mut(&session.id).and_then(|hosted| hosted.waiting.take());
                match waiting {
                    Some(messages) => sse_response(&self.scripted, self.priming_event(), messages),
                    None => {
                        self.scripted.report_violation("a second GET stream");
                        text_response(409, "one is there")
                    }
                }
            }
            Verb::DELETE => {
                self.sessions.lock().unwrap().remove(&session.id);
                session.end();
                self.scripted.count_ended_session();
                text_response(200, "")
            }
            _ => text_response(405, ""),
        }
    }

    /// Handles a per-request HTTP request.
    async fn handle_per_request(&self, verb: &Verb, headers: &HeaderMap, body: &str) -> Response<Body> {
        if *verb != Verb::POST {
            self.scripted.report_violation(format!("{verb}"));
            return text_response(405, "");
        }
        let message: Value = serde_json::from_str(body).unwrap_or_default();
        let params = &message["params"];
        let version = params["_meta"][format!("{META}protocolVersion")].as_str().unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default();
        if method == "initialize" {
            // A gateway may ask whether there is a handshake leg, too.
            return text_response(400, "Bad Request: no handshake here");
        }
        let header = |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        self.require(header("mcp-protocol-version").as_deref() == Some(version), "wrong MCP-Protocol-Version", body);
        self.require(header("mcp-method").as_deref() == Some(method), "wrong Mcp-Method", body);
        let name = match method {
            "tools/call" | "prompts/get" => params["name"].as_str(),
            "resources/read" => params["uri"].as_str(),
            method if method.starts_with("tasks/") => params["taskId"].as_str(),
            _ => None,
        };
        let named = header("mcp-name").map(|name| decode_header(&name));
        self.require(named.as_deref() == name, "wrong Mcp-Name", body);
        let mirrored = params["arguments"].get("a").filter(|_| name == Some("add")).map(Value::to_string);
        self.require(header("mcp-param-first") == mirrored, "wrong Mcp-Param", body);
        self.require(!headers.contains_key("mcp-session-id"), "a session id", body);
        let wants = header_contains(headers, "accept", "application/json")
            && header_contains(headers, "accept", "text/event-stream");
        self.require(wants && header_contains(headers, "content-type", "application/json"), "bad headers", body);
        if message.get("id").is_none() || message.get("method").is_none() {
            self.scripted.report_violation(format!("no request: {body}"));
            return text_response(202, "");
        }
        let (out, _) = mpsc::unbounded_channel();
        let session = Session::new("alone", out);
        // Registered so that listeners are found by `publish`.
        self.scripted.open(&session);
        self.respond(&session, body).await
    }

    /// JSON if the response is the first message, SSE otherwise.
    async fn respond(&self, session: &Arc<Session>, body: &str) -> Response<Body> {
        let (sink, mut messages): (Sink, _) = mpsc::unbounded_channel();
        self.scripted.receive(session, body, &sink);
        drop(sink);
        let Some(first) = messages.recv().await else {
            return sse_response(&self.scripted, None, messages); // cancelled
        };
        note_sent(&self.scripted, &first);
        let message: Value = serde_json::from_str(&first).unwrap();
        if message.get("method").is_some() {
            let first = format!("{}event: message\ndata: {first}\n\n", self.priming_event().unwrap_or_default());
            return sse_response(&self.scripted, Some(first), messages);
        }
        let status = match message["error"]["code"].as_i64() {
            Some(-32601) if self.scripted.variant.is_per_request() => 404,
            Some(-32021) => 400,
            _ => 200,
        };
        let body = Full::new(Bytes::from(first)).boxed_unsync();
        Response::builder().status(status).header("content-type", "application/json").body(body).unwrap()
    }

    /// The priming event with which 2025-11-25 streams begin.
    fn priming_event(&self) -> Option<String> {
        (self.scripted.variant.revision == Revision::V2025_11_25).then(|| "id: 0\ndata:\n\n".to_owned())
    }
}

/// Decodes a header value with the Base64 sentinel.
fn decode_header(value: &str) -> String {
    let encoded = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let bytes = encoded.and_then(|encoded| base64::engine::general_purpose::STANDARD.decode(encoded).ok());
    bytes.map_or(value.to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn header_contains(headers: &HeaderMap, name: &str, word: &str) -> bool {
    headers.get(name).is_some_and(|value| value.to_str().unwrap_or_default().contains(word))
}

fn text_response(status: u16, text: &'static str) -> Response<Body> {
    let body = Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync();
    Response::builder().status(status).header("content-type", "text/plain").body(body).unwrap()
}

fn note_sent(scripted: &ScriptedServer, text: &str) {
    scripted.sent.lock().unwrap().push(text.to_owned());
}

fn sse_response(
    scripted: &Arc<ScriptedServer>,
    first: Option<String>,
    messages: UnboundedReceiver<String>,
) -> Response<Body> {
    let begin = (Arc::clone(scripted), first, messages);
    let all = futures_util::stream::unfold(begin, |(scripted, mut first, mut messages)| async move {
        let event = |message: String| {
            note_sent(&scripted, &message);
            format!("event: message\ndata: {message}\n\n")
        };
        let mut text = match first.take() {
            Some(first) => first,
            None => event(messages.recv().await?),
        };
        // Messages queued together are written together.
        while let Ok(message) = messages.try_recv() {
            text += &event(message);
        }
        Some((Ok(Frame::data(Bytes::from(text))), (scripted, first, messages)))
    });
    let body = BodyExt::boxed_unsync(StreamBody::new(all));
    Response::builder().status(200).header("content-type", "text/event-stream").body(body).unwrap()
}
