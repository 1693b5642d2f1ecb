//! The binary with `[tls]`: SDK clients, sessions and streams, reload of the pair under load, and what `rialto check` says.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::Child;

use super::authority::{Authority, connect};
use super::{exchange, modern_call};
use crate::harness::{HttpRequest, TEST_TIMEOUT, initialize, survey};
use crate::peers::{PY2, Peer, TS1, TS2, carry_out_trusting, check};
use crate::process::rialto;

/// A gateway process, its address and that of its admin listener.
struct TlsProcess {
    authority: Authority,
    address: SocketAddr,
    admin: SocketAddr,
    child: Child,
}

const CONFIG: &str = "[tls]\ncertificate = \"chain.pem\"\nkey = \"key.pem\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";

impl TlsProcess {
    async fn start(name: &str) -> Self {
        let authority = Authority::new(name);
        authority.install(&authority.server("first"));
        authority.folder.write("rialto.toml", CONFIG);
        let mut command = rialto();
        command.current_dir(&authority.folder.0).args(["serve", "--listen", "127.0.0.1:0"]);
        let mut child = command.env_remove("RIALTO_CONFIG").stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = async |scheme: &str| -> SocketAddr {
            let line = tokio::time::timeout(TEST_TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
            let (_, rest) = line.split_once(scheme).unwrap_or_else(|| panic!("{line}"));
            rest.split(['/', ' ']).next().unwrap().parse().unwrap()
        };
        let (address, admin) = (address("https://").await, address("http://").await);
        Self { authority, address, admin, child }
    }

    async fn status(&self) -> Value {
        HttpRequest::to(self.admin, "GET", "/admin/status").json().await.1
    }

    async fn until_status(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        loop {
            let status = self.status().await;
            if holds(&status) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "never: {what}: {status}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    async fn stop(mut self) {
        crate::process::signal(&self.child, "-TERM");
        let code = tokio::time::timeout(TEST_TIMEOUT, self.child.wait()).await.unwrap().unwrap().code();
        assert_eq!(code, Some(0));
    }
}

async fn sdk_over_tls(peer: Peer, name: &str, revision: &str, transport: &str) {
    let gateway = TlsProcess::start(name).await;
    let path = if transport == "sse" { "sse" } else { "mcp" };
    let target = [format!("https://{}/{path}", gateway.address)];
    let authority = gateway.authority.path("ca.pem");
    let report = carry_out_trusting(peer, revision, (transport, &target), None, Some(&authority)).await;
    check(peer, revision, transport, &report);
    gateway.stop().await;
}

#[tokio::test]
async fn typescript_sdk_speaks_streamable_http_over_tls() {
    sdk_over_tls(TS2, "ts2", "2026-07-28", "http").await;
    sdk_over_tls(TS1, "ts1", "2025-11-25", "http").await;
}

#[tokio::test]
async fn typescript_sdk_speaks_http_and_sse_over_tls() {
    sdk_over_tls(TS1, "ts1-sse", "2024-11-05", "sse").await;
}

#[tokio::test]
async fn python_sdk_speaks_streamable_http_over_tls() {
    sdk_over_tls(PY2, "py2", "2025-11-25", "http").await;
}

#[tokio::test]
async fn curl_speaks_http2_over_tls() {
    let gateway = TlsProcess::start("curl").await;
    let (call, headers) = modern_call();
    let mut command = tokio::process::Command::new("curl");
    command.args(["-sS", "--http2", "-w", "\n%{http_version} %{http_code}", "--cacert"]);
    command.arg(gateway.authority.path("ca.pem")).arg(format!("https://{}/mcp", gateway.address));
    for line in headers.lines().chain(["content-type: application/json", "accept: application/json, text/event-stream"])
    {
        command.args(["-H", line]);
    }
    let output = command.args(["-d", &call.to_string()]).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Iron") && text.ends_with("\n2 200"), "{text} {}", String::from_utf8_lossy(&output.stderr));
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_streams_events_over_tls() {
    let gateway = TlsProcess::start("session").await;
    let config = || gateway.authority.client_config(None, &[b"http/1.1"]);
    let mut stream = connect(gateway.address, config()).await.unwrap();
    let (status, opened) = exchange(&mut stream, gateway.address, &initialize("2025-11-25"), "").await.unwrap();
    assert_eq!(status, 200, "{opened}");
    let id = opened.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
    let headers = format!("mcp-session-id: {id}\r\nmcp-protocol-version: 2025-11-25\r\n");
    let mut stream = connect(gateway.address, config()).await.unwrap();
    let (status, events) = exchange(&mut stream, gateway.address, &survey(1, 5, 20), &headers).await.unwrap();
    assert_eq!(status, 200, "{events}");
    assert!(events.contains("text/event-stream") && events.contains("5 elements: H He Li Be B"), "{events}");
    assert_eq!(events.matches("notifications/progress").count(), 5, "{events}");
    gateway.stop().await;
}

#[tokio::test]
async fn the_pair_is_reloaded_under_load_without_a_failed_call() {
    let gateway = Arc::new(TlsProcess::start("reload").await);
    let (ending, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut callers = Vec::new();
    for _ in 0..4 {
        let (gateway, ending, calls) = (Arc::clone(&gateway), Arc::clone(&ending), Arc::clone(&calls));
        callers.push(tokio::spawn(async move {
            let (call, headers) = modern_call();
            while !ending.load(Ordering::Relaxed) {
                let config = gateway.authority.client_config(None, &[b"http/1.1"]);
                let mut stream = connect(gateway.address, config).await.expect("a handshake succeeds");
                let (status, response) = exchange(&mut stream, gateway.address, &call, headers).await.unwrap();
                assert!(status == 200 && response.contains("Iron"), "{response}");
                calls.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    // A connection that was open before goes on, too.
    let config = gateway.authority.client_config(None, &[b"http/1.1"]);
    let mut open = connect(gateway.address, config).await.unwrap();
    for name in ["second", "third"] {
        let before = calls.load(Ordering::Relaxed);
        // The key does not fit for a moment: the old pair is served until both are there.
        gateway.authority.install(&gateway.authority.server(name));
        gateway.until_status("the new pair is served", |status| status["tls"]["certificate"] == name).await;
        crate::harness::until("calls go on", || calls.load(Ordering::Relaxed) > before + 8).await;
    }
    let shown = rialto().arg("status").arg(format!("http://{}", gateway.admin)).output().await.unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("TLS with the certificate third, which expires in "), "{shown}");
    let metrics = HttpRequest::to(gateway.admin, "GET", "/metrics").go().await.text().await;
    assert!(metrics.contains("rialto_tls_certificate_expiry_timestamp_seconds"), "{metrics}");
    ending.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let (call, headers) = modern_call();
    assert_eq!(exchange(&mut open, gateway.address, &call, headers).await.unwrap().0, 200);
    Arc::into_inner(gateway).unwrap().stop().await;
}

#[tokio::test]
async fn a_bad_pair_is_refused_and_the_old_one_kept() {
    let gateway = TlsProcess::start("bad").await;
    let good = std::fs::read(gateway.authority.path("key.pem")).unwrap();
    for (key, problem) in [
        (gateway.authority.server("other").key, "`key` in [tls] is not the key of the certificate"),
        ("-----BEGIN PRIVATE KEY-----\nMIGH".to_owned(), "`key` in [tls] holds no private key"),
    ] {
        std::fs::write(gateway.authority.path("key.pem"), key).unwrap();
        let is_refused = |status: &Value| status["configuration"]["problems"].to_string().contains(problem);
        gateway.until_status(problem, is_refused).await;
        let config = gateway.authority.client_config(None, &[b"http/1.1"]);
        let mut stream = connect(gateway.address, config).await.unwrap();
        let (call, headers) = modern_call();
        assert_eq!(exchange(&mut stream, gateway.address, &call, headers).await.unwrap().0, 200);
    }
    std::fs::write(gateway.authority.path("key.pem"), good).unwrap();
    gateway.until_status("the good key is taken again", |status| status["configuration"]["refused"].is_null()).await;
    // TLS itself is part of the address: only a restart turns it off.
    gateway.authority.folder.write("rialto.toml", "[admin]\nlisten = \"127.0.0.1:0\"\n");
    let needs_restart =
        |status: &Value| status["configuration"]["problems"].to_string().contains("restart to change tls");
    gateway.until_status("turning TLS off is refused", needs_restart).await;
    gateway.stop().await;
}

#[tokio::test]
async fn shutdown_ends_idle_tls_connections_properly() {
    let gateway = TlsProcess::start("shutdown").await;
    let config = gateway.authority.client_config(None, &[b"http/1.1"]);
    let mut idle = connect(gateway.address, config).await.unwrap();
    idle.write_all(format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", gateway.address).as_bytes()).await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    gateway.stop().await;
    let mut rest = Vec::new();
    tokio::time::timeout(TEST_TIMEOUT, idle.read_to_end(&mut rest)).await.unwrap().expect("close_notify");
}

#[tokio::test]
async fn check_reports_files_and_expiry() {
    let authority = Authority::new("check");
    let run = async |file: &str| {
        authority.folder.write("rialto.toml", file);
        let mut command = rialto();
        command.current_dir(&authority.folder.0).env_remove("RIALTO_CONFIG");
        let output = command.arg("check").stdin(Stdio::null()).output().await.unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let tls = "[tls]\ncertificate = \"chain.pem\"\nkey = \"key.pem\"\n";
    let (valid, errors) = run(tls).await;
    assert!(!valid && errors.contains("rialto.toml:2:15: error: `certificate` in [tls] cannot be read"), "{errors}");
    let (valid, errors) = run("[tls]\ncertificate = \"chain.pem\"\n").await;
    assert!(!valid && errors.contains("has a `certificate` and no `key`"), "{errors}");
    let dated = |from: (i32, u8), to: (i32, u8)| {
        authority.server_with("gateway", &rcgen::PKCS_ED25519, |parameters| {
            parameters.not_before = rcgen::date_time_ymd(from.0, from.1, 1);
            parameters.not_after = rcgen::date_time_ymd(to.0, to.1, 1);
        })
    };
    for (pair, warning) in [
        (dated((2020, 1), (2021, 1)), Some("the certificate has expired")),
        (dated((2120, 1), (2121, 1)), Some("the certificate is not valid yet")),
        (dated((2020, 1), (2120, 1)), None),
    ] {
        authority.install(&pair);
        let (valid, errors) = run(&format!(
            "listen = \"0.0.0.0:1\"\naccess = {{ hosts = [\"a\"], tokens = {{ a = \"s3cret\" }} }}\n{tls}"
        ))
        .await;
        assert!(valid, "{errors}");
        assert_eq!(errors.contains("certificate"), warning.is_some(), "{errors}");
        assert!(errors.contains(warning.unwrap_or_default()) && !errors.contains("in the clear"), "{errors}");
    }
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(authority.path("key.pem"), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(run(tls).await.1.contains("can be read by every user"));
    let missing = "[tls]\nclient_ca = \"none.pem\"\ncertificate = \"chain.pem\"\nkey = \"key.pem\"\n";
    let (valid, errors) = run(missing).await;
    assert!(!valid && errors.contains("rialto.toml:2:13: error: `client_ca` in [tls] cannot be read"), "{errors}");
}
