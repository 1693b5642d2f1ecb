//! One client connection: plain or TLS, and who its certificate says the client is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use ::http::HeaderValue;
use arc_swap::ArcSwapOption;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::{ACCEPT_DRAIN_TIME, Inbound, ListenerRole, service};
use crate::http::server::{self, CertificateInfo, HandshakeFailure, HttpService, TlsServer, TlsStream};
use crate::identity::{Credential, Identity};
use crate::policy::LastCredential;

/// The certificate in use, if clients speak TLS. A reload replaces it.
pub type TlsSlot = Arc<ArcSwapOption<TlsServer>>;

/// What is known of a connection before its first request.
#[derive(Debug, Clone)]
pub(super) struct ClientConnection {
    pub(super) role: ListenerRole,
    pub(super) peer: SocketAddr,
    /// The port that the client has connected to.
    pub(super) served_port: Option<u16>,
    /// Set on TLS connections.
    pub(super) tls: Option<Arc<TlsClient>>,
    /// What the client showed last, shared by the requests of the connection.
    pub(super) last_credential: Arc<LastCredential>,
}

/// What a TLS handshake brought.
#[derive(Debug)]
pub(super) struct TlsClient {
    /// Who the client's certificate says it is.
    identity: Option<Arc<Identity>>,
    /// The value of `Strict-Transport-Security`.
    pub(super) hsts: Option<HeaderValue>,
}

impl ClientConnection {
    /// Who the certificate of the client says it is, while it is valid.
    pub(super) fn certificate(&self) -> Option<&Arc<Identity>> {
        let identity = self.tls.as_ref()?.identity.as_ref()?;
        identity.expires_at.is_none_or(|end| end > SystemTime::now()).then_some(identity)
    }
}

impl Inbound {
    /// Replaces certificate and key for new connections. Connections and sessions of client certificates end if their
    /// authorities are no longer accepted.
    pub fn set_tls(&self, tls: Option<Arc<TlsServer>>) {
        let before = self.tls.load_full();
        let accepts_the_same = match (&before, &tls) {
            (Some(before), Some(after)) => after.accepts_clients_of(before),
            (before, _) => before.is_none(),
        };
        self.tls.store(tls);
        if !accepts_the_same {
            self.client_ca_revoked.swap(Arc::default()).cancel();
            let is_certificate = |identity: &Identity| matches!(identity.credential, Credential::Certificate(_));
            let closed = self.sessions.close_owned_by(|identity, _| is_certificate(identity));
            tracing::info!(sessions = closed, "sessions of client certificates closed: other authorities");
        }
    }

    /// Performs the handshake of a connection, then serves it.
    pub(super) async fn serve_tls(
        self: Arc<Self>,
        tls: Arc<TlsServer>,
        mut connection: ClientConnection,
        stream: TcpStream,
    ) {
        // Before the handshake, so that no client of revoked authorities can slip through.
        let revoked = self.client_ca_revoked.load_full();
        let (peer, timeout) = (connection.peer, self.settings().header_timeout);
        let grace = async {
            self.shutdown.closing().cancelled().await;
            tokio::time::sleep(ACCEPT_DRAIN_TIME).await;
        };
        let accepted = tokio::select! {
            biased;
            accepted = tls.accept(stream, timeout) => accepted,
            () = grace => return,
        };
        let accepted = accepted.and_then(|stream| Ok((identify(&stream)?, stream)));
        let metrics = self.gateway.metrics();
        let (identity, stream) = match accepted {
            Ok(accepted) => accepted,
            Err(failure) => {
                metrics.record_tls_handshake(failure.label());
                return tracing::debug!(%peer, %failure, "TLS handshake failed");
            }
        };
        metrics.record_tls_handshake("ok");
        let has_certificate = identity.is_some();
        connection.tls = Some(Arc::new(TlsClient { identity, hsts: tls.hsts.clone() }));
        let service = service::ClientService::new(self, connection);
        if let Err(error) = serve_until_revoked(service, stream, has_certificate.then_some(&*revoked)).await {
            tracing::debug!(%peer, %error, "client connection failed");
        }
    }
}

async fn serve_until_revoked(
    service: impl HttpService,
    stream: TlsStream,
    revoked: Option<&CancellationToken>,
) -> std::io::Result<()> {
    let serving = server::serve_tls(service, stream, ACCEPT_DRAIN_TIME);
    match revoked {
        None => serving.await,
        Some(revoked) => tokio::select! {
            served = serving => served,
            () = revoked.cancelled() => Ok(()),
        },
    }
}

/// Who the certificate of a client says it is; `None` where the client has shown none.
///
/// # Errors
/// When the certificate names nobody.
fn identify(stream: &TlsStream) -> Result<Option<Arc<Identity>>, HandshakeFailure> {
    let (_, session) = stream.get_ref();
    if session.peer_certificates().is_none() {
        return Ok(None);
    }
    let nameless = || HandshakeFailure::Failed(std::io::Error::other("the client's certificate has no usable name"));
    let CertificateInfo { name, not_after, .. } = server::peer_certificate(stream).ok_or_else(nameless)?;
    let name = name.ok_or_else(nameless)?;
    let mut identity = Identity::new(format!("cert|{name}"), Credential::Certificate(name.into()));
    identity.expires_at = Some(not_after);
    Ok(Some(Arc::new(identity)))
}
