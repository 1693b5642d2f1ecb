//! HTTP server side of one connection: detects HTTP/1.1 or HTTP/2, reads requests within the limits, and writes what
//! an [`HttpService`] responds.
//!
//! HTTP/1.1 is served by `http1` or, if the settings say so, by hyper; HTTP/2 by hyper. The same code serves plain and TLS
//! connections.

mod certificate;
mod client_stream;
mod date_header;
mod http1;
mod hyper_server;
mod tls;
mod wake_gated;
#[cfg(test)]
mod wake_gated_tests;

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, Interest};
use tokio::net::TcpStream;

use super::codec::{HeadRules, RequestError, RequestHead};
pub use certificate::CertificateInfo;
pub use tls::{
    ClientCertificates, HandshakeFailure, TlsFile, TlsLoadError, TlsOptions, TlsServer, TlsStream, TlsVersion,
    peer_certificate,
};

/// What answers the requests of a connection.
///
/// A request is served in two steps, so that the body of a request that is refused by its head is never read. Where the
/// head alone does not decide, a step between them waits for what does.
pub trait HttpService: Clone + Send + Sync + 'static {
    /// Outcome of admission, handed from [`Self::admit`] to [`Self::respond`].
    type Admission<'r>: Send;
    /// Body of a response. One of known size must be ready when it is first polled. An error breaks the response off, as
    /// [`BodyBrokenOff`] tells.
    type ResponseBody: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Unpin + Send + 'static;

    /// Limits and timeouts of the connection.
    fn settings(&self) -> ServerSettings;

    /// Looks at the head of a request.
    fn admit<'r>(&'r self, head: &'r RequestHead) -> Self::Admission<'r>;

    /// Whether the admission has to be completed before the body is read.
    fn is_undecided(_admission: &Self::Admission<'_>) -> bool {
        false
    }

    /// Completes an admission that could not be decided at once.
    fn complete<'r>(&'r self, admission: Self::Admission<'r>) -> impl Future<Output = Self::Admission<'r>> + Send + 'r {
        std::future::ready(admission)
    }

    /// Whether the body of the request is to be read.
    fn wants_body(admission: &Self::Admission<'_>) -> bool;

    /// Serves a request. `body` is empty where it was not wanted.
    fn respond<'r>(
        &'r self,
        admission: Self::Admission<'r>,
        body: ReceivedBody,
    ) -> impl Future<Output = Response<Self::ResponseBody>> + Send + 'r;

    /// The response to a request whose head cannot be used; the connection is closed after it.
    fn reject_head(&self, error: RequestError) -> Response<Self::ResponseBody>;

    /// Adds headers that every response on this connection has.
    fn decorate(&self, _headers: &mut HeaderMap) {}

    /// Completes when the connection must take no further requests.
    fn draining(&self) -> impl Future<Output = ()> + Send + 'static;

    /// Completes when the connection must close.
    fn closing(&self) -> impl Future<Output = ()> + Send + 'static;
}

/// Body of a request, or why it could not be read.
pub type ReceivedBody = Result<Bytes, RequestBodyError>;

/// Why the body of a request could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestBodyError {
    /// It has more bytes than allowed.
    TooLarge,
    /// It is malformed, or the client closed the connection within it.
    Incomplete,
    /// It did not arrive in time.
    TimedOut,
}

/// A response body cannot be completed. The client is told by a stream that ends without its proper end: the connection is
/// closed within a chunked body, an HTTP/2 stream is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyBrokenOff;

impl fmt::Display for BodyBrokenOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the response broke off")
    }
}

impl std::error::Error for BodyBrokenOff {}

/// Limits and timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub struct ServerSettings {
    /// Limits of request heads.
    pub head: HeadRules,
    /// Limit of a request body in bytes.
    pub max_body_bytes: usize,
    /// Timeout for a request head from its first byte, and for the first request of a connection.
    pub header_timeout: Duration,
    /// Timeout for a request body.
    pub body_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub keep_alive_timeout: Duration,
    /// A client that accepts no byte for this long is disconnected.
    pub write_stall_timeout: Duration,
    /// What serves HTTP/1.1.
    pub http1: Http1Implementation,
}

/// What serves HTTP/1.1 connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Http1Implementation {
    /// The server of this crate, which costs less per request.
    #[default]
    Rialto,
    /// hyper, on the same code as HTTP/2.
    Hyper,
}

/// Protocol id of HTTP/2 in the TLS handshake.
const H2_ALPN: &[u8] = b"h2";
/// How long a client may take to accept the end of its TLS connection.
const TLS_CLOSE_TIME: Duration = Duration::from_secs(1);
/// How long a refused client may take to read the refusal and close.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Client connection preface of HTTP/2 (RFC 9113, 3.4).
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves a connection until it closes. `first_request_grace` is how long a connection that was accepted just before
/// [`HttpService::closing`] may take to send its first byte.
///
/// # Errors
/// When the connection breaks or its client violates the protocol.
pub async fn serve<S: HttpService>(service: S, stream: TcpStream, first_request_grace: Duration) -> io::Result<()> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "setting TCP_NODELAY failed");
    }
    let first_request_over = async {
        service.closing().await;
        tokio::time::sleep(first_request_grace).await;
    };
    let detected = tokio::select! {
        biased; // bytes that already arrived win over a shutdown
        detected = tokio::time::timeout(service.settings().header_timeout, is_http2(&stream)) => detected,
        () = first_request_over => return Ok(()),
    };
    match detected {
        Err(_) => Ok(()), // timed out before the first byte
        Ok(Err(error)) => Err(error),
        Ok(Ok(true)) => hyper_server::serve_http2(service, stream).await.map_err(io::Error::other),
        Ok(Ok(false)) => match service.settings().http1 {
            Http1Implementation::Rialto => http1::serve(service, stream).await,
            Http1Implementation::Hyper => hyper_server::serve_http1(service, stream).await.map_err(io::Error::other),
        },
    }
}

/// Serves HTTP/1.1 over a stream in memory until it closes, by the same loop as over a socket.
///
/// # Errors
/// When the connection breaks or its client violates the protocol.
pub async fn serve_in_memory<S: HttpService>(service: S, stream: DuplexStream) -> io::Result<()> {
    http1::serve(service, stream).await
}

/// Serves a TLS connection until it closes, and ends it with `close_notify`. `first_request_grace` is as for [`serve`].
///
/// # Errors
/// When the connection breaks or its client violates the protocol.
pub async fn serve_tls<S: HttpService>(
    service: S,
    mut stream: TlsStream,
    first_request_grace: Duration,
) -> io::Result<()> {
    if let Err(error) = stream.get_ref().0.set_nodelay(true) {
        tracing::debug!(%error, "setting TCP_NODELAY failed");
    }
    // The first request may have arrived together with the end of the handshake.
    let has_plaintext = stream.get_mut().1.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0);
    if !has_plaintext {
        let first_request_over = async {
            service.closing().await;
            tokio::time::sleep(first_request_grace).await;
        };
        tokio::select! {
            biased; // bytes that already arrived win over a shutdown
            readable = tokio::time::timeout(service.settings().header_timeout, stream.get_ref().0.readable()) => match readable {
                Ok(readable) => readable?,
                Err(_) => return close_tls(&mut stream).await,
            },
            () = first_request_over => return close_tls(&mut stream).await,
        }
    }
    if stream.get_ref().1.alpn_protocol() == Some(H2_ALPN) {
        return hyper_server::serve_http2(service, stream).await.map_err(io::Error::other);
    }
    match service.settings().http1 {
        Http1Implementation::Rialto => {
            http1::serve(service, &mut stream).await?;
            close_tls(&mut stream).await
        }
        Http1Implementation::Hyper => hyper_server::serve_http1(service, stream).await.map_err(io::Error::other),
    }
}

/// Tells the client that no more comes, so that it can tell the end from a cut connection.
async fn close_tls(stream: &mut TlsStream) -> io::Result<()> {
    tokio::time::timeout(TLS_CLOSE_TIME, stream.shutdown()).await.unwrap_or(Ok(()))
}

/// Writes a whole response without reading a request, and closes. Input is discarded for a moment: closing with unread
/// input would reset the connection, and could destroy the response in transit.
///
/// # Errors
/// When the connection breaks.
pub async fn refuse(mut stream: TcpStream, response: &[u8]) -> io::Result<()> {
    let refused = async {
        stream.write_all(response).await?;
        stream.shutdown().await?;
        let mut discarded = [0; 1024];
        while stream.read(&mut discarded).await? > 0 {}
        Ok(())
    };
    tokio::time::timeout(REFUSAL_TIME, refused).await.unwrap_or(Ok(()))
}

/// Whether the client begins with the HTTP/2 preface. Peeks, so the bytes stay in the socket buffer.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; H2_PREFACE.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 || first[..seen] != H2_PREFACE[..seen] {
            return Ok(false);
        }
        if seen == H2_PREFACE.len() {
            return Ok(true);
        }
        if stream.ready(Interest::READABLE).await?.is_read_closed() {
            return Ok(false); // the client closed its side within the preface
        }
        // Part of the preface is there: the socket stays readable, so waiting for readiness would spin.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
