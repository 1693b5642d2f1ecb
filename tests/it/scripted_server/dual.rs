//! A server that speaks both eras at one address, with a scripted server behind each leg.

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::*;

/// Running server of both eras. Dropping it closes all connections.
pub struct DualServer {
    pub handshake: ScriptedServer,
    pub per_request: ScriptedServer,
    address: SocketAddr,
    over_stdio: bool,
    accepting: AbortHandle,
}

impl DualServer {
    /// Puts one address in front of both legs. The transport of the handshake leg is that of both.
    pub async fn start(handshake: ScriptedServer, per_request: ScriptedServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let over_stdio = handshake.transport() == ServerTransport::Stdio;
        let legs = [Arc::clone(&handshake.inner), Arc::clone(&per_request.inner)];
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let [handshake, per_request] = legs.clone();
                let task = match over_stdio {
                    true => tokio::spawn(serve_stdio(handshake, per_request, stream)),
                    false => tokio::spawn(serve_http(handshake, per_request, stream)),
                };
                lock(&legs[0].tasks).push(task.abort_handle());
            }
        });
        Self { handshake, per_request, address, over_stdio, accepting: accepting.abort_handle() }
    }

    /// Target with which an upstream connects to this server.
    pub fn target(&self) -> Target {
        match self.over_stdio {
            true => stdio_target(self.address, &self.handshake.marker()),
            false => Target::url(&format!("http://{}/mcp", self.address)).unwrap(),
        }
    }
}

impl Drop for DualServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Every request says by its header which leg it is for.
async fn serve_http(handshake: Arc<ServerState>, per_request: Arc<ServerState>, stream: TcpStream) {
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let is_per_request = request.headers().get("mcp-protocol-version").is_some_and(|name| name == PER_REQUEST);
        let leg = Arc::clone(if is_per_request { &per_request } else { &handshake });
        async move { Ok::<_, std::convert::Infallible>(leg.serve_http(request).await) }
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// The first line says which leg the child is of.
async fn serve_stdio(handshake: Arc<ServerState>, per_request: Arc<ServerState>, stream: TcpStream) {
    let mut start = vec![0; 1 << 16];
    let line = loop {
        let length = stream.peek(&mut start).await.unwrap_or_default();
        if let Some(end) = start[..length].iter().position(|byte| *byte == b'\n') {
            break &start[..end];
        }
        if length == 0 {
            return;
        }
        tokio::task::yield_now().await;
    };
    let first: Value = serde_json::from_slice(line).unwrap();
    match first["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].is_string() {
        true => per_request.serve_stdio(stream).await,
        false => handshake.serve_stdio(stream).await,
    }
}
