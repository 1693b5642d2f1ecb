//! HTTP/1.1 proxy between the nodes and a server, which acts on single requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamFault {
    /// Forwarded as it is.
    None,
    /// Forwarded later.
    Delay(Duration),
    /// The connection breaks before the server has the request.
    BreakBefore,
    /// The connection breaks after the server has the request and before it has answered.
    BreakAfter,
}

/// Decides what happens to each request, by its body.
pub type UpstreamRule = Arc<dyn Fn(&str) -> UpstreamFault + Send + Sync>;

/// Starts the proxy; returns its address. It runs as long as the test.
pub async fn start(server: SocketAddr, rule: UpstreamRule) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((node, _)) = listener.accept().await {
            let rule = Arc::clone(&rule);
            tokio::spawn(async move {
                // An error is the end of the connection, which the other side then sees.
                let _ = pass(node, server, rule).await;
            });
        }
    });
    address
}

async fn pass(node: TcpStream, server: SocketAddr, rule: UpstreamRule) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    let (mut from_node, mut to_node) = node.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    // Aborted with the connection, so that nothing that the server still says reaches the node.
    let answers = tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_node).await });
    let _end = AbortOnDrop(answers.abort_handle());
    let mut buffer = Vec::new();
    loop {
        while let Some(end) = request_length(&buffer) {
            let request: Vec<u8> = buffer.drain(..end).collect();
            match rule(&String::from_utf8_lossy(&request)) {
                UpstreamFault::None => {}
                UpstreamFault::Delay(time) => tokio::time::sleep(time).await,
                UpstreamFault::BreakBefore => return Ok(()),
                UpstreamFault::BreakAfter => {
                    answers.abort();
                    to_server.write_all(&request).await?;
                    return Ok(());
                }
            }
            to_server.write_all(&request).await?;
        }
        if from_node.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Length of the first whole request in a buffer. The gateway sends bodies with `Content-Length`.
fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    assert!(!text.contains("transfer-encoding"), "{text}");
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")).map_or("0", str::trim);
    Some(head + length.parse::<usize>().unwrap()).filter(|end| *end <= bytes.len())
}
