//! Certificates made when the tests run, and TLS clients that trust them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SignatureAlgorithm,
};
use rialto::http::server::{ClientCertificates, TlsOptions, TlsServer, TlsVersion};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::TempFolder;

/// A certificate authority with a folder for what it signs.
pub struct Authority {
    pub folder: TempFolder,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate with its key, in PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// A new one, whose certificate is written to `ca.pem` in a folder of its own.
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::<String>::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name = named(&format!("{name} authority"));
        let certificate = parameters.self_signed(&key).unwrap().pem();
        let folder = TempFolder::new(&format!("tls-{name}"));
        folder.write("ca.pem", &certificate);
        Self { folder, issuer: Issuer::new(parameters, key), certificate }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// Signs a certificate for this machine.
    pub fn server(&self, name: &str) -> Pair {
        self.server_with(name, &rcgen::PKCS_ECDSA_P256_SHA256, |_| {})
    }

    pub fn server_with(
        &self,
        name: &str,
        algorithm: &'static SignatureAlgorithm,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Pair {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        self.sign(name, KeyPair::generate_for(algorithm).unwrap(), &names, |parameters| {
            parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            change(parameters);
        })
    }

    /// Signs a certificate for a client.
    pub fn client(&self, name: &str) -> Pair {
        self.sign(name, KeyPair::generate().unwrap(), &[], |parameters| {
            parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        })
    }

    pub fn sign(
        &self,
        name: &str,
        key: KeyPair,
        names: &[String],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Pair {
        let mut parameters = CertificateParams::new(names).unwrap();
        parameters.distinguished_name = named(name);
        change(&mut parameters);
        let signed = parameters.signed_by(&key, &self.issuer).unwrap();
        Pair { certificate: signed.pem() + &self.certificate, key: key.serialize_pem() }
    }

    /// Writes a pair to the files that the configuration names.
    pub fn install(&self, pair: &Pair) {
        self.folder.write("chain.pem", &pair.certificate);
        self.folder.write("key.pem", &pair.key);
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(self.path("key.pem"), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// What loads the installed pair. Clients need no certificate.
    pub fn options(&self) -> TlsOptions {
        TlsOptions {
            certificate: self.path("chain.pem"),
            key: self.path("key.pem"),
            client_ca: None,
            client_certificates: ClientCertificates::Required,
            min_version: TlsVersion::Tls12,
            hsts: None,
        }
    }

    /// Installs a new pair and loads it.
    pub fn load(&self, change: impl FnOnce(&mut TlsOptions)) -> Arc<TlsServer> {
        self.install(&self.server("gateway"));
        let mut options = self.options();
        change(&mut options);
        Arc::new(TlsServer::load(&options).unwrap())
    }

    /// What a client has that trusts this authority and shows a certificate.
    pub fn client_config(&self, certificate: Option<&Pair>, protocols: &[&[u8]]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some(Pair { certificate, key }) => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config
    }
}

/// Connects with TLS.
pub async fn connect(address: SocketAddr, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(ServerName::from(address.ip()), stream).await
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}
