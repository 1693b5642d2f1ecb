//! Transports of the scripted server.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Method as Verb, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::*;

type Body = UnsyncBoxBody<Bytes, Infallible>;

impl ServerState {
    pub(super) fn accept(self: &Arc<Self>, listener: TcpListener) {
        let inner = Arc::clone(self);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inner = Arc::clone(&inner);
                let serving = match inner.transport {
                    ServerTransport::Stdio => tokio::spawn(Arc::clone(&inner).serve_stdio(stream)),
                    _ => {
                        let serving = Arc::clone(&inner);
                        let service = service_fn(move |request| {
                            let inner = Arc::clone(&serving);
                            async move { Ok::<_, Infallible>(inner.serve_http(request).await) }
                        });
                        let server = hyper::server::conn::http1::Builder::new();
                        let connection = server.serve_connection(TokioIo::new(stream), service);
                        tokio::spawn(async move {
                            let _ = connection.await;
                        })
                    }
                };
                let mut tasks = lock(&inner.tasks);
                tasks.retain(|task| !task.is_finished());
                tasks.push(serving.abort_handle());
            }
        });
        lock(&self.tasks).push(accepting.abort_handle());
    }

    fn open_session(&self, out: Option<MessageSender>) -> Arc<ClientSession> {
        let number = self.last_id.fetch_add(1, Ordering::SeqCst) + 1;
        let client_session = ClientSession::new(&format!("{}-{number}", self.name), out);
        lock(&self.sessions).insert(client_session.id.clone(), Arc::clone(&client_session));
        client_session
    }

    fn record(&self, kind: &str, session: &str, body: &Value, headers: &http::HeaderMap) {
        let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let headers = headers.iter().map(header).collect();
        lock(&self.received).push(ReceivedMessage {
            kind: kind.into(),
            session: session.into(),
            body: body.clone(),
            headers,
        });
    }

    /// Serves one stdio connection, which is one session.
    pub(super) async fn serve_stdio(self: Arc<Self>, stream: TcpStream) {
        let (input, mut output) = stream.into_split();
        let (out, mut messages) = mpsc::unbounded_channel::<Value>();
        let client_session = self.open_session(Some(out.clone()));
        let writing = async move {
            while let Some(message) = messages.recv().await {
                if output.write_all(format!("{}\n", text_of(&message)).as_bytes()).await.is_err() {
                    return;
                }
            }
        };
        let reading = async {
            let mut lines = BufReader::new(input).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let message: Value = serde_json::from_str(&line).unwrap();
                let kind = message["method"].as_str().unwrap_or("answer").to_owned();
                self.record(&kind, &client_session.id, &message, &http::HeaderMap::new());
                self.dispatch(&client_session, message, &out);
            }
        };
        tokio::select! {
            () = reading => {}
            () = writing => {}
        }
        lock(&self.sessions).remove(&client_session.id);
    }

    /// Handles a message whose response goes to the single stream of the session.
    fn dispatch(self: &Arc<Self>, client_session: &Arc<ClientSession>, message: Value, out: &MessageSender) {
        if message["id"].is_null() || message["method"].is_null() {
            client_session.on_response_or_notification(&message);
        } else if self.transport == ServerTransport::PerRequest {
            tokio::spawn(Arc::clone(self).serve(None, message, out.clone()));
        } else if message["method"] == "server/discover" {
            let error = json!({ "code": -32601, "message": "unknown" });
            let _ = out.send(json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }));
        } else {
            tokio::spawn(Arc::clone(self).serve(Some(Arc::clone(client_session)), message, out.clone()));
        }
    }

    pub(super) async fn serve_http(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let named = parts.headers.get("mcp-session-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
        let named = parts.uri.query().and_then(|query| query.strip_prefix("session=")).unwrap_or(named).to_owned();
        let kind = match (&parts.method, message["method"].as_str()) {
            (&Verb::POST, Some(method)) => method.to_owned(),
            (&Verb::POST, None) => "answer".to_owned(),
            (verb, _) => verb.to_string(),
        };
        let fault = lock(&self.fault).get(&kind).cloned();
        if matches!(fault, Some(InjectedFault::DelayedDelivery)) {
            self.record(&format!("delayed {kind}"), &named, &message, &parts.headers);
            self.wait_gate(&kind).await;
        }
        self.record(&kind, &named, &message, &parts.headers);
        match fault {
            Some(InjectedFault::RawResponse(status, text)) => {
                return respond(status, text.replace("$id", &message["id"].to_string()));
            }
            Some(InjectedFault::RetryLater(status, delay)) => {
                let mut response = respond(status, "");
                response.headers_mut().insert("retry-after", delay.parse().unwrap());
                return response;
            }
            Some(InjectedFault::Redirect(status, location)) => {
                let mut response = respond(status, "");
                response.headers_mut().insert("location", location.parse().unwrap());
                return response;
            }
            Some(InjectedFault::Hang) => std::future::pending::<()>().await,
            Some(InjectedFault::HoldResponse) if parts.method == Verb::GET => self.wait_gate(&kind).await,
            _ => {}
        }
        let client_session = lock(&self.sessions).get(&named).cloned();
        match (self.transport, &parts.method) {
            (ServerTransport::PerRequest, &Verb::POST) => self.answer_post(None, message).await,
            (ServerTransport::Stateless, &Verb::POST) if kind != "server/discover" => {
                self.answer_post(None, message).await
            }
            (ServerTransport::Sse, &Verb::GET) => self.sse_stream(),
            (ServerTransport::Sse, &Verb::POST) => {
                let Some(client_session) = client_session else { return respond(404, "no such session") };
                let out = lock(&client_session.out).clone().unwrap();
                self.dispatch(&client_session, message, &out);
                respond(202, "")
            }
            (ServerTransport::Http, &Verb::POST) if kind == "initialize" => {
                let client_session = self.open_session(None);
                let id = client_session.id.parse().unwrap();
                let mut response = self.answer_post(Some(client_session), message).await;
                response.headers_mut().insert("mcp-session-id", id);
                response
            }
            (ServerTransport::Http, _) if named.is_empty() => respond(400, "Bad Request: Missing session ID"),
            (ServerTransport::Http, verb) => {
                let Some(client_session) = client_session else { return respond(404, "Session not found") };
                match *verb {
                    Verb::GET => {
                        let (out, messages) = mpsc::unbounded_channel();
                        *lock(&client_session.out) = Some(out);
                        events(messages, None)
                    }
                    Verb::DELETE => {
                        lock(&self.sessions).remove(&named);
                        respond(200, "")
                    }
                    _ => {
                        let mut response = self.answer_post(Some(client_session), message).await;
                        if let Some(other) = lock(&self.renamed_sessions).remove(&named) {
                            lock(&self.sessions).remove(&named);
                            response.headers_mut().insert("mcp-session-id", other.parse().unwrap());
                        }
                        response
                    }
                }
            }
            _ => respond(405, ""),
        }
    }

    fn sse_stream(self: &Arc<Self>) -> Response<Body> {
        let (out, messages) = mpsc::unbounded_channel::<Value>();
        let client_session = self.open_session(Some(out.clone()));
        let (inner, id) = (Arc::clone(self), client_session.id.clone());
        tokio::spawn(async move {
            out.closed().await;
            lock(&inner.sessions).remove(&id);
        });
        events(messages, Some(format!("event: endpoint\ndata: /message?session={}\n\n", client_session.id)))
    }

    /// Responds to a POST: with SSE to calls and listens, otherwise with JSON.
    async fn answer_post(
        self: &Arc<Self>,
        client_session: Option<Arc<ClientSession>>,
        message: Value,
    ) -> Response<Body> {
        if message["id"].is_null() || message["method"].is_null() {
            if let Some(client_session) = client_session {
                client_session.on_response_or_notification(&message);
            }
            return respond(202, "");
        }
        let (out, mut messages) = mpsc::unbounded_channel();
        let streams = matches!(message["method"].as_str(), Some("tools/call" | "subscriptions/listen"));
        tokio::spawn(Arc::clone(self).serve(client_session, message, out));
        if streams {
            return events(messages, None);
        }
        match messages.recv().await {
            Some(answer) => respond(200, text_of(&answer)),
            None => respond(500, ""),
        }
    }
}

fn respond(status: u16, body: impl Into<Bytes>) -> Response<Body> {
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(Full::new(body.into()).boxed_unsync()).unwrap()
}

fn events(messages: mpsc::UnboundedReceiver<Value>, head: Option<String>) -> Response<Body> {
    let frames = futures_util::stream::unfold((head, messages), |(head, mut messages)| async move {
        let text = match head {
            Some(head) => head,
            None => format!("data: {}\n\n", text_of(&messages.recv().await?)),
        };
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(text))), (None, messages)))
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(StreamBody::new(frames).boxed_unsync()).unwrap()
}
