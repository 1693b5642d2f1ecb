//! The attacks. Each runs from 127.0.0.2 and ends after the timeouts that are to stop it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::Failure;
use crate::client::PATH;

/// One kind of hostile client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Attack {
    /// Opens sessions that it never uses.
    Initialize,
    /// Opens connections and sends nothing.
    IdleConnections,
    /// Sends the head of a request a byte at a time.
    SlowHeads,
    /// Asks for large responses and reads none.
    ZeroWindow,
}

/// What the gateway did against an attack.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Requests that were refused, or connections that were closed.
    pub(crate) refused: usize,
}

/// Connections that an attack opens at a time.
const OPENING: usize = 64;
/// Connections of the attack by `initialize`.
const INITIALIZERS: usize = 8;
/// How long idle connections are kept open: longer than the head of a first request may take.
const HOLD: Duration = Duration::from_secs(40);
/// How long responses are not read: longer than the write stall timeout.
const STALL: Duration = Duration::from_secs(75);
/// Requests that a reader without a window sends at once.
const UNREAD_REQUESTS: usize = 64;
/// Client info of a hostile `initialize`, within the size that a session keeps.
const INFO_BYTES: usize = 3_500;

impl Attack {
    pub(crate) const ALL: [Self; 4] = [Self::Initialize, Self::IdleConnections, Self::SlowHeads, Self::ZeroWindow];

    fn count(self, divisor: usize) -> usize {
        let whole = match self {
            Self::Initialize => 100_000,
            Self::IdleConnections => 10_000,
            Self::SlowHeads => 5_000,
            Self::ZeroWindow => 1_000,
        };
        whole / divisor
    }

    pub(crate) fn title(self, divisor: usize) -> String {
        let what = match self {
            Self::Initialize => "`initialize` of 3.5 KiB",
            Self::IdleConnections => "idle connections",
            Self::SlowHeads => "slow heads",
            Self::ZeroWindow => "readers without a window",
        };
        format!("{} {what}", self.count(divisor))
    }

    pub(crate) async fn run(self, server: SocketAddr, divisor: usize) -> Result<Outcome, Failure> {
        let count = self.count(divisor);
        match self {
            Self::Initialize => initialize(server, count).await,
            Self::IdleConnections => hold(server, count, b"", HOLD).await,
            Self::SlowHeads => {
                let head = format!("POST {PATH} HTTP/1.1\r\nhost: {server}\r\nx-slow: ");
                hold(server, count, head.as_bytes(), HOLD).await
            }
            Self::ZeroWindow => {
                let read = r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"elements://table","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
                let headers =
                    "mcp-protocol-version: 2026-07-28\r\nmcp-method: resources/read\r\nmcp-name: elements://table\r\n";
                let requests = request(server, headers, read).repeat(UNREAD_REQUESTS);
                hold(server, count, requests.as_bytes(), STALL).await
            }
        }
    }
}

pub(crate) fn request(server: SocketAddr, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: {server}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

/// Connects from the hostile address, with a small receive buffer.
pub(crate) async fn connect(server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4 << 10)?;
    socket.bind(([127, 0, 0, 2], 0).into())?;
    socket.connect(server).await
}

/// Opens sessions over a few connections; counts the refusals.
async fn initialize(server: SocketAddr, count: usize) -> Result<Outcome, Failure> {
    let name = "x".repeat(INFO_BYTES);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"{name}","version":"1"}}}}}}"#
    );
    let request = request(server, "", &body);
    let mut tasks = JoinSet::new();
    for _ in 0..INITIALIZERS {
        let request = request.clone();
        tasks.spawn(async move {
            let mut refused = 0;
            let mut connection: Option<TcpStream> = None;
            let mut received = vec![0; 16 << 10];
            for _ in 0..count / INITIALIZERS {
                let mut stream = match connection.take() {
                    Some(stream) => stream,
                    None => connect(server).await?,
                };
                stream.write_all(request.as_bytes()).await?;
                // A response is small and comes in one piece; a connection that ends is opened again.
                let length = stream.read(&mut received).await.unwrap_or(0);
                if !received[..length].starts_with(b"HTTP/1.1 200") {
                    refused += 1;
                }
                connection = (length > 0).then_some(stream);
            }
            Ok::<_, std::io::Error>(refused)
        });
    }
    let mut outcome = Outcome::default();
    while let Some(ended) = tasks.join_next().await {
        outcome.refused += ended??;
    }
    Ok(outcome)
}

/// Opens connections that send `first` and are then held; counts those that the gateway closes meanwhile. A head that was
/// begun grows by a byte now and then.
async fn hold(server: SocketAddr, count: usize, first: &[u8], time: Duration) -> Result<Outcome, Failure> {
    let mut open = Vec::with_capacity(count);
    let mut outcome = Outcome::default();
    let begin = Instant::now();
    while open.len() + outcome.refused < count {
        let batch = OPENING.min(count - open.len() - outcome.refused);
        for stream in futures_util::future::join_all((0..batch).map(|_| connect(server))).await {
            match stream {
                Ok(stream) => {
                    // What does not fit into the buffers of the system is not sent.
                    let _ = stream.try_write(first);
                    open.push(stream);
                }
                Err(_) => outcome.refused += 1,
            }
        }
    }
    let grows = first.starts_with(b"POST") && !first.ends_with(b"}");
    while begin.elapsed() < time {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if grows {
            for stream in &open {
                let _ = stream.try_write(b"y");
            }
        }
    }
    outcome.refused += open.iter().filter(|stream| is_closed(stream)).count();
    Ok(outcome)
}

/// Whether the peer has closed a connection. What a reader without a window has received is left in its buffer.
fn is_closed(stream: &TcpStream) -> bool {
    let mut buffer = [0; 1 << 16];
    loop {
        match stream.try_read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}
