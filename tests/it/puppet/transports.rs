//! How a puppet is reached.

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

impl Inner {
    pub(super) fn accept(self: &Arc<Self>, listener: TcpListener) {
        let inner = Arc::clone(self);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inner = Arc::clone(&inner);
                let serving = match inner.speaks {
                    Speaks::Stdio => tokio::spawn(Arc::clone(&inner).lines(stream)),
                    _ => {
                        let serving = Arc::clone(&inner);
                        let service = service_fn(move |request| {
                            let inner = Arc::clone(&serving);
                            async move { Ok::<_, Infallible>(inner.http(request).await) }
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

    fn open_talk(&self, out: Option<Out>) -> Arc<Talk> {
        let number = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        let talk = Talk::new(&format!("{}-{number}", self.name), out);
        lock(&self.talks).insert(talk.id.clone(), Arc::clone(&talk));
        talk
    }

    fn note(&self, what: &str, session: &str, body: &Value, headers: &http::HeaderMap) {
        let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let headers = headers.iter().map(header).collect();
        lock(&self.seen).push(Seen { what: what.into(), session: session.into(), body: body.clone(), headers });
    }

    /// A session over stdio: the connection is the session.
    async fn lines(self: Arc<Self>, stream: TcpStream) {
        let (input, mut output) = stream.into_split();
        let (out, mut messages) = mpsc::unbounded_channel::<Value>();
        let talk = self.open_talk(Some(out.clone()));
        let writing = async move {
            while let Some(message) = messages.recv().await {
                if output.write_all(format!("{message}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        };
        let reading = async {
            let mut lines = BufReader::new(input).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let message: Value = serde_json::from_str(&line).unwrap();
                let what = message["method"].as_str().unwrap_or("answer").to_owned();
                self.note(&what, &talk.id, &message, &http::HeaderMap::new());
                self.take_in(&talk, message, &out);
            }
        };
        tokio::select! {
            () = reading => {}
            () = writing => {}
        }
        lock(&self.talks).remove(&talk.id);
    }

    /// Takes a message whose answer goes to the session's one stream.
    fn take_in(self: &Arc<Self>, talk: &Arc<Talk>, message: Value, out: &Out) {
        if message["id"].is_null() || message["method"].is_null() {
            talk.take(&message);
        } else if message["method"] == "server/discover" {
            let error = json!({ "code": -32601, "message": "unknown" });
            let _ = out.send(json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }));
        } else {
            tokio::spawn(Arc::clone(self).serve(Some(Arc::clone(talk)), message, out.clone()));
        }
    }

    async fn http(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let named = parts.headers.get("mcp-session-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
        let named = parts.uri.query().and_then(|query| query.strip_prefix("session=")).unwrap_or(named).to_owned();
        let what = match (&parts.method, message["method"].as_str()) {
            (&Verb::POST, Some(method)) => method.to_owned(),
            (&Verb::POST, None) => "answer".to_owned(),
            (verb, _) => verb.to_string(),
        };
        let mischief = lock(&self.mischief).get(&what).cloned();
        if matches!(mischief, Some(Mischief::Late)) {
            self.note(&format!("late {what}"), &named, &message, &parts.headers);
            self.wait(&what).await;
        }
        self.note(&what, &named, &message, &parts.headers);
        match mischief {
            Some(Mischief::Bytes(status, text)) => {
                return respond(status, text.replace("$id", &message["id"].to_string()));
            }
            Some(Mischief::Hang) => std::future::pending::<()>().await,
            Some(Mischief::Hold) if parts.method == Verb::GET => self.wait(&what).await,
            _ => {}
        }
        let talk = lock(&self.talks).get(&named).cloned();
        match (self.speaks, &parts.method) {
            (Speaks::PerRequest, &Verb::POST) => self.exchange(None, message).await,
            (Speaks::Sse, &Verb::GET) => self.sse_stream(),
            (Speaks::Sse, &Verb::POST) => {
                let Some(talk) = talk else { return respond(404, "no such session") };
                let out = lock(&talk.out).clone().unwrap();
                self.take_in(&talk, message, &out);
                respond(202, "")
            }
            (Speaks::Http, &Verb::POST) if what == "initialize" => {
                let talk = self.open_talk(None);
                let id = talk.id.parse().unwrap();
                let mut response = self.exchange(Some(talk), message).await;
                response.headers_mut().insert("mcp-session-id", id);
                response
            }
            (Speaks::Http, _) if named.is_empty() => respond(400, "Bad Request: Missing session ID"),
            (Speaks::Http, verb) => {
                let Some(talk) = talk else { return respond(404, "Session not found") };
                match *verb {
                    Verb::GET => {
                        let (out, messages) = mpsc::unbounded_channel();
                        *lock(&talk.out) = Some(out);
                        events(messages, None)
                    }
                    Verb::DELETE => {
                        lock(&self.talks).remove(&named);
                        respond(200, "")
                    }
                    _ => {
                        let mut response = self.exchange(Some(talk), message).await;
                        if let Some(other) = lock(&self.renamed).remove(&named) {
                            lock(&self.talks).remove(&named);
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
        let talk = self.open_talk(Some(out.clone()));
        let (inner, id) = (Arc::clone(self), talk.id.clone());
        tokio::spawn(async move {
            out.closed().await;
            lock(&inner.talks).remove(&id);
        });
        events(messages, Some(format!("event: endpoint\ndata: /message?session={}\n\n", talk.id)))
    }

    /// A message by POST: a call is answered by a stream, everything else by JSON.
    async fn exchange(self: &Arc<Self>, talk: Option<Arc<Talk>>, message: Value) -> Response<Body> {
        if message["id"].is_null() || message["method"].is_null() {
            if let Some(talk) = talk {
                talk.take(&message);
            }
            return respond(202, "");
        }
        let (out, mut messages) = mpsc::unbounded_channel();
        let streams = matches!(message["method"].as_str(), Some("tools/call" | "subscriptions/listen"));
        tokio::spawn(Arc::clone(self).serve(talk, message, out));
        if streams {
            return events(messages, None);
        }
        match messages.recv().await {
            Some(answer) => respond(200, answer.to_string()),
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
            None => format!("data: {}\n\n", messages.recv().await?),
        };
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(text))), (None, messages)))
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(StreamBody::new(frames).boxed_unsync()).unwrap()
}
