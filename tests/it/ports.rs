//! Ports that stay with one test while nobody listens on them.

use std::fmt;
use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// A loopback port of this test alone, which refuses connections until a server listens on it.
///
/// The system gives a port that was bound and let go to the next one who asks. A gateway that keeps trying to reach a
/// stopped server would then reach the server of another test, and both tests fail. Here a socket is bound that never
/// listens. It and every server that tests start have `SO_REUSEADDR`, so a server given the number can listen beside it.
#[derive(Debug)]
pub struct ReservedPort {
    pub address: SocketAddr,
    _socket: TcpSocket,
}

impl ReservedPort {
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        Self { address: socket.local_addr().unwrap(), _socket: socket }
    }

    pub fn number(&self) -> u16 {
        self.address.port()
    }
}

/// Address and port, as in a URL.
impl fmt::Display for ReservedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

#[tokio::test]
async fn a_reserved_port_refuses_connections_and_is_given_to_nobody() {
    use std::io::ErrorKind;
    use tokio::net::{TcpListener, TcpStream};

    let port = ReservedPort::new();
    let refused = async || TcpStream::connect(port.address).await.map_err(|error| error.kind()).err();
    assert_eq!(refused().await, Some(ErrorKind::ConnectionRefused));
    for _ in 0..2 {
        let listener = TcpListener::bind(port.address).await.unwrap();
        let (connected, accepted) = tokio::join!(TcpStream::connect(port.address), listener.accept());
        drop((connected.unwrap(), accepted.unwrap(), listener));
        assert_eq!(refused().await, Some(ErrorKind::ConnectionRefused));
        // Somebody who does not know of the reservation, as the system's own choice of ports.
        let stranger = TcpSocket::new_v4().unwrap();
        let taken = stranger.bind(port.address).map_err(|error| error.kind()).err();
        assert_eq!(taken, Some(ErrorKind::AddrInUse));
    }
}
