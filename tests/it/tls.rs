//! TLS for clients: handshakes, HTTP/1.1 and HTTP/2, certificates of clients, reload of the pair, and hostile handshakes.

mod authority;
mod process;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rialto::http::server::{ClientCertificates, Http1Implementation, TlsServer, TlsVersion};
use rialto::identity::Credential;
use rialto::policy::Tokens;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Rialto, TEST_TIMEOUT, initialize, modern, request, until};
use authority::{Authority, Pair, connect};

/// A gateway whose clients speak TLS, and the authority that they trust.
struct TlsGateway {
    rialto: Rialto,
    authority: Authority,
}

impl TlsGateway {
    async fn start(name: &str) -> Self {
        Self::with(name, |_| {}, |_| {}).await
    }

    async fn with(
        name: &str,
        change_tls: impl FnOnce(&mut rialto::http::server::TlsOptions),
        change: impl FnOnce(&mut rialto::app::AppSettings),
    ) -> Self {
        let authority = Authority::new(name);
        let tls = authority.load(change_tls);
        let rialto = Rialto::with(|settings| {
            settings.tls = Some(tls);
            change(settings);
        })
        .await;
        Self { rialto, authority }
    }

    /// The status and body of a POST on a connection of its own, over HTTP/1.1.
    async fn post(&self, certificate: Option<&Pair>, body: &Value, headers: &str) -> std::io::Result<(u16, String)> {
        let config = self.authority.client_config(certificate, &[b"http/1.1"]);
        let mut stream = connect(self.rialto.address, config).await?;
        exchange(&mut stream, self.rialto.address, body, headers).await
    }

    fn handshakes(&self, outcome: &str) -> u64 {
        metric(&self.rialto, &format!("rialto_tls_handshakes_total{{outcome=\"{outcome}\"}}"))
    }

    fn connections(&self) -> u64 {
        metric(&self.rialto, "rialto_quota_used{quota=\"connections\"}")
    }
}

fn metric(rialto: &Rialto, series: &str) -> u64 {
    let text = rialto.inbound.admin.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0, |value| value.trim().parse().unwrap())
}

/// Sends a POST with `connection: close` and reads the response to the end of the connection, which must be a proper one.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    address: SocketAddr,
    body: &Value,
    headers: &str,
) -> std::io::Result<(u16, String)> {
    let body = body.to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: application/json, \
         text/event-stream\r\ncontent-length: {}\r\n{headers}connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.flush().await?;
    let mut response = String::new();
    // Without close_notify this is an error of the kind `UnexpectedEof`.
    tokio::time::timeout(TEST_TIMEOUT, stream.read_to_string(&mut response)).await.expect("an end in time")?;
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    Ok((status, response))
}

/// A call of the per-request era with the headers that mirror it.
fn modern_call() -> (Value, &'static str) {
    let params = json!({ "name": "getElement", "arguments": { "name": "Fe" } });
    let headers = "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: getElement\r\n";
    (modern(1.into(), "tools/call", params), headers)
}

#[tokio::test]
async fn both_http1_servers_answer_over_tls_and_end_with_close_notify() {
    for http1 in [Http1Implementation::Rialto, Http1Implementation::Hyper] {
        let gateway = TlsGateway::with(
            &format!("http1-{http1:?}"),
            |tls| tls.hsts = Some(Duration::from_secs(60)),
            |settings| settings.inbound.http1 = http1,
        )
        .await;
        let (call, headers) = modern_call();
        let (status, response) = gateway.post(None, &call, headers).await.unwrap();
        assert_eq!(status, 200, "{response}");
        assert!(response.contains("Iron"), "{response}");
        assert!(response.contains("strict-transport-security: max-age=60\r\n"), "{response}");
        assert_eq!(gateway.handshakes("ok"), 1);
        until("the connection is gone", || gateway.connections() == 0).await;
    }
}

#[tokio::test]
async fn responses_larger_than_the_socket_buffers_arrive_whole() {
    let gateway = TlsGateway::start("large").await;
    let config = gateway.authority.client_config(None, &[b"http/1.1"]);
    let mut stream = connect(gateway.rialto.address, config).await.unwrap();
    // An error repeats the id of its request, which makes the response as large as the request.
    let id = "x".repeat(3 << 20);
    let unknown = request(id.as_str(), "ping", json!({}));
    let (opened, _) = gateway.post(None, &initialize("2025-11-25"), "").await.unwrap();
    assert_eq!(opened, 200);
    let (status, response) = exchange(&mut stream, gateway.rialto.address, &unknown, "").await.unwrap();
    assert_eq!(status, 400, "{}", &response[..200]);
    assert!(response.len() > id.len(), "{} bytes", response.len());
    let (_, response) = response.split_once("\r\n\r\n").unwrap();
    let _: Value = serde_json::from_str(response).unwrap();
}

#[tokio::test]
async fn http2_is_chosen_by_alpn() {
    let gateway = TlsGateway::start("h2").await;
    let config = gateway.authority.client_config(None, &[b"h2", b"http/1.1"]);
    let stream = connect(gateway.rialto.address, config).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let running = tokio::spawn(connection);
    let (call, headers) = modern_call();
    for _ in 0..3 {
        let mut request = http::Request::post(format!("https://{}/mcp", gateway.rialto.address))
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        for line in headers.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(call.to_string()))).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!((response.status(), response.version()), (http::StatusCode::OK, http::Version::HTTP_2));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&body).contains("Iron"));
    }
    drop(sender);
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn min_version_refuses_older_clients() {
    let gateway = TlsGateway::with("version", |tls| tls.min_version = TlsVersion::Tls13, |_| {}).await;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = &[&rustls::version::TLS12];
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let older = builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    assert!(connect(gateway.rialto.address, older).await.is_err());
    until("the failure is counted", || gateway.handshakes("failed") == 1).await;
    let (call, headers) = modern_call();
    assert_eq!(gateway.post(None, &call, headers).await.unwrap().0, 200);
}

#[tokio::test]
async fn keys_of_every_kind_are_loaded() {
    let authority = Authority::new("kinds");
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        authority.install(&authority.server_with("gateway", algorithm, |_| {}));
        assert_eq!(TlsServer::load(&authority.options()).unwrap().certificate.name.as_deref(), Some("gateway"));
    }
    // rcgen makes no RSA keys with ring; openssl does.
    let key = std::process::Command::new("openssl").args(["genpkey", "-algorithm", "RSA", "-quiet"]).output().unwrap();
    let key = rcgen::KeyPair::from_pem(str::from_utf8(&key.stdout).unwrap()).unwrap();
    authority.install(&authority.sign("gateway", key, &["localhost".to_owned()], |_| {}));
    TlsServer::load(&authority.options()).unwrap();
}

#[tokio::test]
async fn plain_http_gets_a_400_that_says_what_to_do() {
    let gateway = TlsGateway::start("plain").await;
    let mut stream = TcpStream::connect(gateway.rialto.address).await.unwrap();
    let response = exchange(&mut stream, gateway.rialto.address, &initialize("2025-11-25"), "").await.unwrap();
    assert_eq!(response.0, 400);
    assert!(response.1.ends_with("This port speaks TLS: use https:// instead of http://.\r\n"), "{response:?}");
    until("it is counted", || gateway.handshakes("plain_http") == 1).await;
    until("the connection is gone", || gateway.connections() == 0).await;
}

#[tokio::test]
async fn slow_and_abandoned_handshakes_leave_nothing() {
    let timeout = Duration::from_millis(300);
    let gateway = TlsGateway::with("slow", |_| {}, |settings| settings.inbound.header_timeout = timeout).await;
    // One sends nothing, one a part of a handshake record, one bytes of neither protocol.
    let mut silent = TcpStream::connect(gateway.rialto.address).await.unwrap();
    let mut slow = TcpStream::connect(gateway.rialto.address).await.unwrap();
    slow.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
    let mut garbage = TcpStream::connect(gateway.rialto.address).await.unwrap();
    garbage.write_all(&[0xff; 64]).await.unwrap();
    for stream in [&mut silent, &mut slow, &mut garbage] {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut rest)).await;
        let _ = ended.expect("the connection is cut"); // with or without a reset
    }
    let are_counted = || (gateway.handshakes("timeout"), gateway.handshakes("failed")) == (2, 1);
    until("the failures are counted", are_counted).await;
    for _ in 0..50 {
        let mut stream = TcpStream::connect(gateway.rialto.address).await.unwrap();
        stream.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
    }
    until("every connection is gone", || gateway.connections() == 0).await;
    let (call, headers) = modern_call();
    assert_eq!(gateway.post(None, &call, headers).await.unwrap().0, 200);
}

#[tokio::test]
async fn a_handshake_counts_as_a_connection() {
    let gateway = TlsGateway::with("quota", |_| {}, |settings| settings.quotas.connections = 1).await;
    let _open = TcpStream::connect(gateway.rialto.address).await.unwrap();
    until("the connection is counted", || gateway.connections() == 1).await;
    let (call, headers) = modern_call();
    assert!(gateway.post(None, &call, headers).await.is_err(), "closed before the handshake");
}

#[tokio::test]
async fn a_required_client_certificate_names_the_caller() {
    let gateway =
        TlsGateway::with("required", |tls| tls.client_ca = Some(tls.certificate.with_file_name("ca.pem")), |_| {})
            .await;
    let (ann, stranger) = (gateway.authority.client("ann"), Authority::new("stranger").client("ann"));
    let opening = initialize("2025-11-25");
    assert_eq!(gateway.post(Some(&ann), &opening, "").await.unwrap().0, 200);
    let sessions = gateway.rialto.inbound.sessions.all();
    let identity = sessions[0].identity();
    assert_eq!((&*identity.principal, &identity.credential), ("cert|ann", &Credential::Certificate("ann".into())));
    assert!(identity.expires_at.is_some());
    assert!(gateway.post(None, &opening, "").await.is_err(), "no certificate");
    assert!(gateway.post(Some(&stranger), &opening, "").await.is_err(), "of another authority");
    assert!(gateway.post(Some(&gateway.authority.client("a\nb")), &opening, "").await.is_err(), "no usable name");
    until("failures are counted", || gateway.handshakes("failed") == 3).await;
    assert_eq!(gateway.rialto.inbound.sessions.count(), 1);
}

#[tokio::test]
async fn an_optional_certificate_goes_beside_tokens() {
    let gateway = TlsGateway::with(
        "optional",
        |tls| {
            tls.client_ca = Some(tls.certificate.with_file_name("ca.pem"));
            tls.client_certificates = ClientCertificates::Optional;
        },
        |settings| settings.policy.tokens = Tokens::parse(&["bob=s3cret".into()]).unwrap(),
    )
    .await;
    let ann = gateway.authority.client("ann");
    let stranger = Authority::new("stranger-optional").client("ann");
    let opening = initialize("2025-11-25");
    let token = "authorization: Bearer s3cret\r\n";
    assert_eq!(gateway.post(Some(&ann), &opening, "").await.unwrap().0, 200, "the certificate is enough");
    assert_eq!(gateway.post(None, &opening, token).await.unwrap().0, 200, "so is the token");
    assert_eq!(gateway.post(None, &opening, "").await.unwrap().0, 401);
    let wrong = "authorization: Bearer wrong\r\n";
    assert_eq!(gateway.post(Some(&ann), &opening, wrong).await.unwrap().0, 401, "an invalid token is always refused");
    assert!(gateway.post(Some(&stranger), &opening, token).await.is_err(), "so is an invalid certificate");
    let mut principals: Vec<_> =
        gateway.rialto.inbound.sessions.all().iter().map(|session| session.identity().principal.to_string()).collect();
    principals.sort();
    assert_eq!(principals, ["cert|ann", "token|bob"]);
}

#[tokio::test]
async fn other_authorities_end_the_sessions_of_certificates() {
    let with_ca = |tls: &mut rialto::http::server::TlsOptions| {
        tls.client_ca = Some(tls.certificate.with_file_name("ca.pem"));
    };
    let gateway = TlsGateway::with("revoked", with_ca, |_| {}).await;
    let ann = gateway.authority.client("ann");
    let config = gateway.authority.client_config(Some(&ann), &[b"http/1.1"]);
    let mut idle = connect(gateway.rialto.address, config).await.unwrap();
    assert_eq!(gateway.post(Some(&ann), &initialize("2025-11-25"), "").await.unwrap().0, 200);
    // A new certificate of the server alone ends nothing.
    gateway.rialto.inbound.set_tls(Some(gateway.authority.load(with_ca)));
    assert_eq!(gateway.rialto.inbound.sessions.count(), 1);
    let other = Authority::new("revoked-other");
    let changed = gateway.authority.load(|tls| tls.client_ca = Some(other.path("ca.pem")));
    gateway.rialto.inbound.set_tls(Some(changed));
    assert_eq!(gateway.rialto.inbound.sessions.count(), 0);
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(TEST_TIMEOUT, idle.read_to_end(&mut rest)).await.expect("the connection ends");
    assert!(gateway.post(Some(&ann), &initialize("2025-11-25"), "").await.is_err());
    assert_eq!(gateway.post(Some(&other.client("bob")), &initialize("2025-11-25"), "").await.unwrap().0, 200);
}
