//! nginx and HAProxy in front of our HTTP server, fed the corpus of ambiguous requests: the server behind never sees a
//! request that the front did not send. The front marks each request that it sends, so a request that was smuggled in the
//! body of another has no mark.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use rialto::http::codec::{HeadRules, RequestError, RequestHead};
use rialto::http::server::{self, Http1Implementation, HttpService, ReceivedBody, ServerSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::cluster::processes::eventually;
use crate::corpus::{REQUESTS, corpus};
use crate::harness::{HttpRequest, TEST_TIMEOUT};
use crate::peers::source;
use crate::ports::ReservedPort;

/// Header by which the front marks a request.
const MARK: &str = "x-front";
/// How long a front waits for the rest of a request.
const FRONT_TIMEOUT: Duration = Duration::from_millis(500);
/// Connections to the front at once.
const CONNECTIONS: usize = 32;

/// A server that records what it is sent and accepts everything.
#[derive(Clone, Default)]
struct RecordingService(Arc<Mutex<Vec<ReceivedRequest>>>);

#[derive(Debug, Clone)]
struct ReceivedRequest {
    line: String,
    marks: Vec<String>,
}

/// A running proxy. Dropping it kills the process.
struct Front {
    child: Child,
    address: SocketAddr,
    _port: ReservedPort,
    folder: PathBuf,
}

impl HttpService for RecordingService {
    type Admission<'r> = ();
    type ResponseBody = Full<Bytes>;

    fn settings(&self) -> ServerSettings {
        let timeout = Duration::from_secs(10);
        ServerSettings {
            head: HeadRules { max_headers: 100, max_bytes: 64 << 10 },
            max_body_bytes: 1 << 20,
            header_timeout: timeout,
            body_timeout: timeout,
            keep_alive_timeout: timeout,
            write_stall_timeout: timeout,
            http1: Http1Implementation::Rialto,
        }
    }

    fn admit<'r>(&'r self, head: &'r RequestHead) -> Self::Admission<'r> {
        let marks = head.headers.get_all(MARK).map(|mark| str::from_utf8(mark).unwrap().to_owned()).collect();
        self.0.lock().unwrap().push(ReceivedRequest { line: format!("{} {}", head.verb, head.uri), marks });
    }

    fn wants_body((): &()) -> bool {
        true
    }

    async fn respond(&self, (): (), _body: ReceivedBody) -> Response<Full<Bytes>> {
        Response::new(Full::new(Bytes::from_static(b"served\n")))
    }

    fn reject_head(&self, _error: RequestError) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        response
    }

    fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }

    fn closing(&self) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }
}

impl RecordingService {
    /// Serves on a port chosen by the system until the test ends.
    async fn start() -> (Self, SocketAddr) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Self::default();
        let served = service.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(server::serve(served.clone(), stream, Duration::ZERO));
            }
        });
        (service, address)
    }
}

impl Front {
    /// Starts a proxy and waits until it serves.
    async fn start(program: &str, arguments: &[&str], file: &str, configuration: String, port: ReservedPort) -> Self {
        let peers_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
        let to = peers_dir.clone();
        let setup = move || Command::new("bash").arg(source().join("setup.sh")).arg(to).arg("fronts").status();
        let status = tokio::task::spawn_blocking(setup).await.unwrap();
        assert!(status.expect("bash runs").success(), "{program} could not be installed; the lines above say why");
        let mut id = [0; 8];
        getrandom::fill(&mut id).unwrap();
        let folder = std::env::temp_dir().join(format!("rialto-{program}-{:016x}", u64::from_be_bytes(id)));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(file), configuration).unwrap();
        let mut command = Command::new(peers_dir.join(program));
        command.args(arguments).current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null());
        let front = Self { child: command.spawn().unwrap(), address: port.address, _port: port, folder };
        eventually("the front serves", async || match front.get().await {
            Some((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        front
    }

    async fn nginx(back: SocketAddr) -> Self {
        let port = ReservedPort::new();
        let configuration = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr crit;
            events {{}}
            http {{
                access_log off;
                client_header_timeout 500ms; client_body_timeout 500ms; keepalive_timeout 500ms; lingering_close off;
                upstream back {{ server {back}; keepalive 4; }}
                server {{
                    listen {port};
                    location / {{
                        proxy_pass http://back;
                        proxy_http_version 1.1;
                        proxy_request_buffering off;
                        proxy_set_header Connection \"\";
                        proxy_set_header X-Front $request_id;
                    }}
                }}
            }}"
        );
        Self::start("nginx", &["-p", ".", "-c", "nginx.conf", "-e", "stderr"], "nginx.conf", configuration, port).await
    }

    async fn haproxy(back: SocketAddr) -> Self {
        let port = ReservedPort::new();
        let configuration = format!(
            "defaults
                mode http
                timeout connect 5s
                timeout client {timeout}ms
                timeout http-request {timeout}ms
                timeout http-keep-alive {timeout}ms
                timeout server 5s
                http-reuse always
            listen front
                bind {port}
                http-request set-header X-Front %[uuid()]
                server back {back}\n",
            timeout = FRONT_TIMEOUT.as_millis()
        );
        Self::start("haproxy", &["-q", "-db", "-f", "haproxy.cfg"], "haproxy.cfg", configuration, port).await
    }

    /// Status and body of a plain request.
    async fn get(&self) -> Option<(u16, String)> {
        let response = HttpRequest::to(self.address, "GET", "/plain").attempt().await.ok()?;
        Some((response.status, response.try_text().await.ok()?))
    }

    /// Sends bytes and waits until the front closes the connection, which it does after its timeout at the latest.
    async fn send(&self, input: &[u8]) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // A front that refuses may close before it has read everything.
        let _ = stream.write_all(input).await;
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut answer)).await;
        let _ = closed.expect("the front closes the connection");
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn check_chain(front: &Front, back: &RecordingService) {
    let cases = corpus(REQUESTS);
    for batch in cases.chunks(CONNECTIONS) {
        futures_util::future::join_all(batch.iter().map(|case| front.send(&case.input))).await;
        // A connection between the two that got out of step would give this request the answer of another.
        assert_eq!(front.get().await, Some((200, "served\n".to_owned())));
    }
    let received = back.0.lock().unwrap().clone();
    let mut seen = HashSet::new();
    for request in &received {
        let [mark] = request.marks.as_slice() else { panic!("the front did not send {request:?}") };
        assert!(seen.insert(mark.clone()), "the front sent {request:?} once");
    }
    let passed = received.iter().filter(|request| request.line != "GET /plain").count();
    println!("{} cases, {passed} requests passed on", cases.len());
    // Most well-formed requests of the corpus get through.
    assert!(passed > 50, "{passed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_in_front_cannot_be_used_to_smuggle_requests() {
    let (back, address) = RecordingService::start().await;
    check_chain(&Front::nginx(address).await, &back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_in_front_cannot_be_used_to_smuggle_requests() {
    let (back, address) = RecordingService::start().await;
    check_chain(&Front::haproxy(address).await, &back).await;
}
