//! The suites of the HTTP transports over hyper's HTTP/1.1 and over HTTP/2, each in a test process of its own; the ordinary
//! run has them over the gateway's own HTTP/1.1.

use std::process::Command;
use std::time::Duration;

use rialto::http::server::Http1Implementation;

use crate::harness::{HTTP_MODE, HttpMode, HttpRequest, Rialto, until};
use crate::http1::RawClient;

/// Suites that send requests through the harness.
const SUITES: [&str; 9] = [
    "access::binding::",
    "access::credentials::",
    "access::rejections::",
    "authorization::binding::",
    "authorization::tokens::",
    "limits::",
    "sse::",
    "stop::",
    "streamable::",
];

/// Runs the suites in another process; fails with its output.
fn run_suites(mode: &str, skipped: &[&str]) {
    let skipped = skipped.iter().flat_map(|test| ["--skip", test]);
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(SUITES).args(skipped).env(HTTP_MODE, mode).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let summary = text.lines().find(|line| line.starts_with("test result: ok.")).unwrap();
    assert!(!summary.contains(" 0 passed"), "{summary}");
}

#[test]
fn transport_suites_pass_over_hyper_http1() {
    run_suites("hyper", &[]);
}

#[test]
fn transport_suites_pass_over_http2() {
    // `Host`, which that test counts among the headers, is no header in HTTP/2.
    run_suites("http2", &["limits::header_count_and_size_over_the_limit_are_431"]);
}

/// hyper passes on whatever `Host` fields a request has; a proxy in front may read another one of them.
#[tokio::test]
async fn both_implementations_of_http1_take_exactly_one_host() {
    for http1 in [Http1Implementation::Rialto, Http1Implementation::Hyper] {
        let rialto = Rialto::with(|settings| settings.inbound.http1 = http1).await;
        let accepted = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        for (version, hosts) in [
            ("1.1", ""),
            ("1.1", "host: localhost\r\nhost: localhost\r\n"),
            ("1.1", "host: localhost\r\nx: y\r\nHost: evil.example\r\n"),
            ("1.1", "host: localhost, evil.example\r\n"),
            ("1.1", "host: evil.example@localhost\r\n"),
            ("1.0", "host: localhost\r\nhost: localhost\r\n"),
        ] {
            // What follows a refused head is no request.
            let text = format!("{accepted}GET /healthz HTTP/{version}\r\n{hosts}\r\n{accepted}");
            let mut wire = RawClient::connect_and_send(&rialto, &text).await;
            assert_eq!(wire.response().await.status, 200);
            let refusal = wire.response().await;
            assert_eq!((refusal.status, refusal.header("connection")), (400, Some("close")), "{http1:?} {hosts:?}");
            wire.assert_closed().await;
        }
    }
}

/// hyper has no idle timeout for HTTP/2, and its keep-alive pings would keep such a connection for ever.
#[tokio::test]
async fn idle_connections_served_by_hyper_are_closed() {
    for http1 in [Http1Implementation::Hyper, Http1Implementation::Rialto] {
        let rialto = Rialto::with(|settings| {
            settings.inbound.http1 = http1;
            settings.inbound.keep_alive_timeout = Duration::from_millis(200);
        })
        .await;
        let request = HttpRequest::to(rialto.address, "GET", "/healthz");
        let response = match http1 {
            Http1Implementation::Hyper => request.attempt_over(HttpMode::Http1).await,
            Http1Implementation::Rialto => request.attempt_over(HttpMode::Http2).await,
        };
        // The connection is kept while the response is.
        let response = response.unwrap();
        until("the idle connection is closed", || rialto.inbound.shutdown.connections().len() == 1).await;
        drop(response);
    }
}

/// A stream that is open is no idle connection.
#[tokio::test]
async fn an_open_stream_outlives_the_keep_alive_timeout() {
    for (http1, mode) in [
        (Http1Implementation::Rialto, HttpMode::Http1),
        (Http1Implementation::Hyper, HttpMode::Http1),
        (Http1Implementation::Rialto, HttpMode::Http2),
    ] {
        let rialto = Rialto::with(|settings| {
            settings.inbound.http1 = http1;
            settings.inbound.keep_alive_timeout = Duration::from_millis(50);
            settings.inbound.sse_heartbeat = Duration::from_millis(40);
        })
        .await;
        let request = HttpRequest::to(rialto.address, "GET", "/sse").header("accept", "text/event-stream");
        let mut response = request.attempt_over(mode).await.unwrap();
        // Ten heartbeats take eight times the timeout.
        for _ in 0..10 {
            response.piece().await.expect("the stream is open").unwrap();
        }
    }
}
