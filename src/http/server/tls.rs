//! TLS for client connections: the certificate with its key, the handshake, and what a client's certificate says.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::certificate::CertificateInfo;
use super::refuse;

/// A client connection after its handshake.
pub type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// Where the certificate is and what is asked of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM file with the certificate and the intermediate ones, in this order.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// PEM file with the authorities that sign certificates of clients; `None` asks for none.
    pub client_ca: Option<PathBuf>,
    /// Whether clients may come without a certificate.
    pub client_certificates: ClientCertificates,
    /// Oldest version of TLS that is spoken.
    pub min_version: TlsVersion,
    /// How long browsers are told to use HTTPS only; `None` tells them nothing.
    pub hsts: Option<Duration>,
}

/// Whether clients may come without a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// The handshake fails without one.
    #[default]
    Required,
    /// A client without one is treated like one on a connection without `client_ca`.
    Optional,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsVersion {
    /// TLS 1.2, RFC 5246.
    #[default]
    Tls12,
    /// TLS 1.3, RFC 8446.
    Tls13,
}

/// A checked pair of certificate and key, ready for handshakes. Two are equal if they were made from the same bytes.
pub struct TlsServer {
    acceptor: TlsAcceptor,
    /// What the server's own certificate says.
    pub certificate: CertificateInfo,
    /// What clients have to show.
    pub client_certificates: Option<ClientCertificates>,
    /// The value of `Strict-Transport-Security`.
    pub hsts: Option<HeaderValue>,
    client_ca_digest: [u8; 32],
    digest: [u8; 32],
}

/// One of the files of [`TlsOptions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// `certificate`.
    Certificate,
    /// `key`.
    Key,
    /// `client_ca`.
    ClientCa,
}

/// Why a pair cannot be used.
#[derive(Debug)]
pub struct TlsLoadError {
    /// The file that is at fault.
    pub file: TlsFile,
    /// What is wrong with it, as a clause that follows its name.
    pub why: String,
}

/// How a handshake failed.
#[derive(Debug)]
pub enum HandshakeFailure {
    /// The client closed the connection before it sent anything, as TCP health checks do.
    Closed,
    /// The client speaks plain HTTP; it was told so.
    PlainHttp,
    /// It took too long.
    TimedOut,
    /// The client or this server ended it.
    Failed(io::Error),
}

/// What a client that speaks plain HTTP gets.
const PLAIN_HTTP_RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
content-length: 56\r\nconnection: close\r\n\r\nThis port speaks TLS: use https:// instead of http://.\r\n";

/// A certificate with less time left than this is warned of, if it is also the last third of its life.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 86_400);

impl TlsServer {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// When a file cannot be read, holds something else, or the key is not that of the certificate.
    pub fn load(options: &TlsOptions) -> Result<Self, TlsLoadError> {
        let chain_pem = read(TlsFile::Certificate, &options.certificate)?;
        let key_pem = read(TlsFile::Key, &options.key)?;
        let ca_pem = options.client_ca.as_deref().map(|path| read(TlsFile::ClientCa, path)).transpose()?;
        let chain = certificates(TlsFile::Certificate, &chain_pem)?;
        let certificate = CertificateInfo::read(&chain[0])
            .ok_or_else(|| TlsLoadError::new(TlsFile::Certificate, "holds a malformed certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(&key_pem)
            .map_err(|error| TlsLoadError::new(TlsFile::Key, format!("holds no private key: {error}")))?;
        let verifier = ca_pem.as_deref().map(|pem| client_verifier(pem, options.client_certificates)).transpose()?;
        let mut digest = Sha256::new();
        for part in [&chain_pem, &key_pem, ca_pem.as_deref().unwrap_or_default()] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.update(format!("{:?} {:?} {:?}", options.client_certificates, options.min_version, options.hsts));
        Ok(Self {
            acceptor: Arc::new(server_config(chain, key, verifier, options.min_version)?).into(),
            certificate,
            client_certificates: ca_pem.is_some().then_some(options.client_certificates),
            hsts: options.hsts.and_then(|age| HeaderValue::from_str(&format!("max-age={}", age.as_secs())).ok()),
            client_ca_digest: Sha256::digest(ca_pem.unwrap_or_default()).into(),
            digest: digest.finalize().into(),
        })
    }

    /// Whether clients of `before` may go on.
    pub fn accepts_clients_of(&self, before: &Self) -> bool {
        self.client_ca_digest == before.client_ca_digest
    }

    /// A sentence about a certificate that has expired, is not valid yet, or soon expires.
    pub fn expiry_warning(&self, now: SystemTime) -> Option<String> {
        let CertificateInfo { not_before, not_after, .. } = &self.certificate;
        let Ok(left) = not_after.duration_since(now) else {
            return Some("the certificate has expired: clients will refuse it".to_owned());
        };
        if *not_before > now {
            return Some("the certificate is not valid yet: clients will refuse it".to_owned());
        }
        let lifetime = not_after.duration_since(*not_before).unwrap_or_default();
        (left < EXPIRY_WARNING && left < lifetime / 3).then(|| match left.as_secs() / 86_400 {
            0 => format!("the certificate expires in {} hours", left.as_secs() / 3600),
            days => format!("the certificate expires in {days} days"),
        })
    }

    /// Performs the handshake of a connection within `timeout`. A client that speaks plain HTTP is told so.
    ///
    /// # Errors
    /// When there is no TLS connection in the end.
    pub async fn accept(&self, stream: TcpStream, timeout: Duration) -> Result<TlsStream, HandshakeFailure> {
        let handshake = async {
            let mut first = [0];
            match stream.peek(&mut first).await.map_err(HandshakeFailure::Failed)? {
                0 => Err(HandshakeFailure::Closed),
                // A handshake begins with a record of type 22, a request with the letters of a method.
                _ if first[0].is_ascii_alphabetic() => {
                    let _ = refuse(stream, PLAIN_HTTP_RESPONSE).await;
                    Err(HandshakeFailure::PlainHttp)
                }
                _ => self.acceptor.accept(stream).await.map_err(HandshakeFailure::Failed),
            }
        };
        tokio::time::timeout(timeout, handshake).await.unwrap_or(Err(HandshakeFailure::TimedOut))
    }
}

/// What the certificate says that the client has shown, if it has.
pub fn peer_certificate(stream: &TlsStream) -> Option<CertificateInfo> {
    let (_, session) = stream.get_ref();
    CertificateInfo::read(session.peer_certificates()?.first()?)
}

fn read(file: TlsFile, path: &Path) -> Result<Vec<u8>, TlsLoadError> {
    std::fs::read(path).map_err(|error| TlsLoadError::new(file, format!("cannot be read: {error}")))
}

/// The certificates of a PEM file, at least one.
fn certificates(file: TlsFile, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsLoadError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if found.is_empty() => Err(TlsLoadError::new(file, "holds no certificate in PEM")),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsLoadError::new(file, format!("is not valid PEM: {error}"))),
    }
}

fn client_verifier(pem: &[u8], mode: ClientCertificates) -> Result<Arc<dyn ClientCertVerifier>, TlsLoadError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(TlsFile::ClientCa, pem)? {
        let added = roots.add(certificate);
        added.map_err(|error| TlsLoadError::new(TlsFile::ClientCa, format!("holds an unusable authority: {error}")))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
    let builder = match mode {
        ClientCertificates::Required => builder,
        ClientCertificates::Optional => builder.allow_unauthenticated(),
    };
    builder.build().map_err(|error| TlsLoadError::new(TlsFile::ClientCa, format!("cannot be used: {error}")))
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    min_version: TlsVersion,
) -> Result<ServerConfig, TlsLoadError> {
    let versions: &[&SupportedProtocolVersion] = match min_version {
        TlsVersion::Tls12 => &[&version::TLS13, &version::TLS12],
        TlsVersion::Tls13 => &[&version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .map_err(|error| TlsLoadError::new(TlsFile::Certificate, error.to_string()))?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsLoadError::new(TlsFile::Key, "is not the key of the certificate")
        }
        error => TlsLoadError::new(TlsFile::Key, format!("cannot be used with the certificate: {error}")),
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Without tickets only sessions in the memory of this process resume.
    if let Ok(ticketer) = rustls::crypto::ring::Ticketer::new() {
        config.ticketer = ticketer;
    }
    Ok(config)
}

impl TlsLoadError {
    fn new(file: TlsFile, why: impl Into<String>) -> Self {
        Self { file, why: why.into() }
    }
}

impl TlsFile {
    /// The name of its setting.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Key => "key",
            Self::ClientCa => "client_ca",
        }
    }
}

impl HandshakeFailure {
    /// The failure as a label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::PlainHttp => "plain_http",
            Self::TimedOut => "timeout",
            Self::Failed(_) => "failed",
        }
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the client closed the connection"),
            Self::PlainHttp => f.write_str("the client speaks plain HTTP"),
            Self::TimedOut => f.write_str("the handshake took too long"),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl PartialEq for TlsServer {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = &self.client_certificates;
        f.debug_struct("TlsServer").field("certificate", &self.certificate).field("clients", clients).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_response_announces_its_length() {
        let text = str::from_utf8(PLAIN_HTTP_RESPONSE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{} bytes", body.len());
    }
}
