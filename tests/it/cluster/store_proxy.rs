//! TCP proxy between a node and its store, which can partition them.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Running proxy.
pub struct StoreProxy {
    pub address: SocketAddr,
    state: Arc<watch::Sender<StoreProxyState>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreProxyState {
    Forwarding,
    /// Connections are closed immediately.
    Closed,
    /// Connections stay open and no bytes are forwarded.
    Silent,
}

impl StoreProxy {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new(StoreProxyState::Forwarding));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, port, shared.subscribe()));
            }
        });
        Self { address, state }
    }

    /// Partitions node and store, silently or by closing connections.
    pub fn cut(&self, silent: bool) {
        self.state.send_replace(if silent { StoreProxyState::Silent } else { StoreProxyState::Closed });
    }

    /// Ends the partition.
    pub fn mend(&self) {
        self.state.send_replace(StoreProxyState::Forwarding);
    }
}

async fn pass(mut client: TcpStream, port: u16, mut state: watch::Receiver<StoreProxyState>) {
    let now = *state.borrow_and_update();
    if now == StoreProxyState::Forwarding
        && let Ok(mut store) = TcpStream::connect(("127.0.0.1", port)).await
    {
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut store) => return,
            _ = state.changed() => {}
        }
    }
    // A connection that was silent stays dead: bytes were lost on it.
    if *state.borrow_and_update() == StoreProxyState::Silent {
        let _ = state.changed().await;
    }
}
