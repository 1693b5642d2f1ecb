//! What stands between a node and its store, and can be cut.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes bytes on, or not.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    /// Connections are closed at once.
    Closed,
    /// Connections stay, and nothing passes.
    Silent,
}

impl Proxy {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new(State::Whole));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(pass(near, port, shared.subscribe()));
            }
        });
        Self { address, state }
    }

    /// Lets nothing pass any more, silently or not.
    pub fn cut(&self, silent: bool) {
        self.state.send_replace(if silent { State::Silent } else { State::Closed });
    }

    /// Lets everything pass again.
    pub fn mend(&self) {
        self.state.send_replace(State::Whole);
    }
}

async fn pass(mut near: TcpStream, port: u16, mut state: watch::Receiver<State>) {
    let now = *state.borrow_and_update();
    if now == State::Whole
        && let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await
    {
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
            _ = state.changed() => {}
        }
    }
    // A connection that was silent once is of no use later.
    if *state.borrow_and_update() == State::Silent {
        let _ = state.changed().await;
    }
}
