//! What a client connection is read from and written to: a socket, TLS on one, or a stream in memory.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;

use super::tls::TlsStream;

/// A connection to a client.
pub(super) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// Has the connection reset when it is closed, so that the client does not take the end for that of a body.
    fn reset_on_close(&self) -> io::Result<()>;
}

impl ClientStream for TcpStream {
    fn reset_on_close(&self) -> io::Result<()> {
        self.set_zero_linger()
    }
}

impl ClientStream for TlsStream {
    fn reset_on_close(&self) -> io::Result<()> {
        self.get_ref().0.set_zero_linger()
    }
}

impl ClientStream for DuplexStream {
    fn reset_on_close(&self) -> io::Result<()> {
        Ok(()) // it knows one way of closing only
    }
}

impl<I: ClientStream> ClientStream for &mut I {
    fn reset_on_close(&self) -> io::Result<()> {
        (**self).reset_on_close()
    }
}
