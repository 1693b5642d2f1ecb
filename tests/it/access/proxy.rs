//! nginx with TLS in front of the gateway: what clients are told has the address that they use.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rialto::policy::{PublicUrl, Tokens, TrustedProxies};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;

use super::{TestIssuer, token};
use crate::config::TempFolder;
use crate::harness::{Rialto, TEST_TIMEOUT, initialize};
use crate::nginx::{Nginx, serving_below};
use crate::ports::ReservedPort;
use crate::process::rialto;
use crate::redis::certificate;

/// nginx with TLS on a port, in front of a gateway.
struct TlsProxy {
    nginx: Nginx,
    port: u16,
    client: Client<hyper_rustls::HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl TlsProxy {
    /// Serves the gateway below `path`, which is not forwarded.
    async fn start(name: &str, port: u16, path: &str, gateway: SocketAddr) -> Self {
        let folder = TempFolder::new(&format!("nginx-{name}"));
        let root = certificate(&folder.0);
        let certificate = "ssl_certificate cert.pem;\n    ssl_certificate_key key.pem;";
        let configuration = serving_below(path, &format!("127.0.0.1:{port} ssl"), certificate, gateway);
        folder.write("nginx.conf", &configuration);
        let nginx = Nginx::start(folder).await;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&root).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_root_certificates(roots).with_no_client_auth();
        let connector = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(connector.build());
        let proxy = Self { nginx, port, client };
        let serving = async {
            while proxy.try_get(&format!("{path}/healthz")).await.is_none_or(|response| response.status() != 200) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, serving).await.expect("nginx serves");
        proxy
    }

    fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }

    async fn try_get(&self, path: &str) -> Option<Response<Incoming>> {
        let request = Request::get(self.url(path)).body(Full::default()).unwrap();
        self.client.request(request).await.ok()
    }

    async fn document(&self, url: &str) -> Value {
        let received = self.client.request(Request::get(url).body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(received.status(), 200, "{url}");
        serde_json::from_slice(&received.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }

    /// The status of `initialize` with a token.
    async fn initialize(&self, path: &str, token: &str) -> u16 {
        let request = Request::post(self.url(path))
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("authorization", format!("Bearer {token}"));
        let request = request.body(Full::from(initialize("2025-11-25").to_string())).unwrap();
        self.client.request(request).await.unwrap().status().as_u16()
    }
}

#[tokio::test]
async fn behind_a_tls_proxy_all_urls_are_those_of_the_client() {
    for (name, path, is_configured) in [("public", "", true), ("path", "/gate", true), ("forwarded", "", false)] {
        let reserved = ReservedPort::new();
        let port = reserved.number();
        let base = format!("https://localhost:{port}{path}");
        let rialto_gateway = Rialto::with(|settings| {
            settings.policy.issuers = Some(Arc::new(TestIssuer::default()));
            settings.policy.tokens = Tokens::parse(&["ann=s3cret".into()]).unwrap();
            settings.policy.public_url = is_configured.then(|| PublicUrl::parse(&base).unwrap());
            let proxy = TrustedProxies::parse_network("127.0.0.1").unwrap();
            settings.policy.trusted_proxies = TrustedProxies::new(vec![proxy]);
        })
        .await;
        let proxy = TlsProxy::start(name, port, path, rialto_gateway.address).await;
        let refused = proxy.try_get(&format!("{path}/mcp")).await.unwrap();
        let challenge = refused.headers()["www-authenticate"].to_str().unwrap().to_owned();
        let document = challenge.split('"').nth(1).unwrap();
        assert_eq!(
            (refused.status().as_u16(), document),
            (401, &*format!("{base}/.well-known/oauth-protected-resource/mcp"))
        );
        // The client asks where the challenge points to, and the document is of the address that it asked for.
        assert_eq!(proxy.document(document).await["resource"], format!("{base}/mcp"));
        assert_eq!(proxy.initialize(&format!("{path}/mcp"), &token("ann", &format!("{base}/mcp"), 60.0)).await, 200);
        assert_eq!(proxy.initialize(&format!("{path}/mcp"), &token("ann", "http://localhost/mcp", 60.0)).await, 401);
        // A client that speaks MCP over it.
        let output = rialto()
            .args(["tools", &proxy.url(&format!("{path}/mcp")), "--header", "Authorization: Bearer s3cret"])
            .env("SSL_CERT_FILE", proxy.nginx.folder.0.join("cert.pem"))
            .output()
            .await
            .unwrap();
        let (shown, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && shown.contains("getElement"), "{name}: {shown}{errors}");
    }
}
