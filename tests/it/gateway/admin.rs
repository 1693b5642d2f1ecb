//! Health endpoints, the admin listener and `rialto status`.

use serde_json::{Value, json};

use super::{GatewayProcess, shell_server};
use crate::harness::{HttpRequest, call, notification};
use crate::process::{exit_code, rialto, signal};

const ELEMENTS: &str = "[servers.elements]\nbuiltin = \"elements\"\n";

/// Runs `rialto status` and returns exit code, stdout and stderr.
async fn status_command(arguments: &[&str]) -> (i32, String, String) {
    let output = rialto().arg("status").args(arguments).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn readyz_is_503_while_starting_and_draining() {
    let folder = crate::config::TempFolder::new("gateway-go");
    let go = folder.0.join("go");
    let file = format!("{ELEMENTS}{}", shell_server("slow", &[("GO", go.to_str().unwrap())]));
    let rialto = GatewayProcess::start("ready", &file).await;
    assert_eq!(rialto.ready().await, (503, "starting\n".to_owned()));
    assert_eq!(rialto.get("/healthz").go().await.text().await, "alive\n");
    std::fs::write(&go, "").unwrap();
    rialto.until_ready().await;
    assert_eq!(rialto.ready().await, (200, "ready\n".to_owned()));

    // While it drains a call, it is alive but not ready.
    let session = rialto.open("/mcp").await;
    let long = call("long", "elements__surveyElements", json!({ "count": 118, "delayMs": 1000 }));
    let mut long = session.post(&long).go().await.events();
    assert_eq!(long.message().await.unwrap()["method"], "notifications/progress");
    signal(&rialto.child, "-TERM");
    rialto.wait_for_log("stopping").await;
    assert_eq!(rialto.ready().await, (503, "shutting down\n".to_owned()));
    assert_eq!(rialto.get("/healthz").status().await, 200);
    assert_eq!(rialto.status().await["ready"], false);
    let cancelled = notification("notifications/cancelled", json!({ "requestId": "long" }));
    assert_eq!(session.post(&cancelled).status().await, 202);
    assert_eq!(exit_code(rialto.child).await, Some(0));
}

#[tokio::test]
async fn the_admin_listener_is_separate_from_clients() {
    let file = format!("{ELEMENTS}[admin]\nlisten = \"127.0.0.1:0\"\n[access.tokens]\nann = \"s3cret\"\n");
    let rialto = GatewayProcess::start("admin", &file).await;
    let admin = rialto.admin.unwrap();
    assert_ne!(admin, rialto.address);
    for path in ["/metrics", "/admin/status"] {
        assert_eq!(rialto.admin_get(path).status().await, 200, "{path}");
        let authorized = rialto.get(path).header("authorization", "Bearer s3cret");
        assert_eq!(authorized.status().await, 404, "{path} is not for clients");
        // A foreign Origin is refused even with the token.
        let page = rialto.admin_get(path).header("origin", "https://evil.example");
        assert_eq!(page.header("authorization", "Bearer s3cret").status().await, 403, "{path}");
        // DNS rebinding: a foreign Host is refused.
        assert_eq!(rialto.admin_get(path).replace("host", "evil.example").status().await, 403, "{path}");
        assert_eq!(HttpRequest::to(admin, "POST", path).status().await, 405, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!((rialto.get(path).status().await, rialto.admin_get(path).status().await), (200, 200), "{path}");
    }
    for path in ["/mcp", "/sse", "/mcp/default"] {
        assert_eq!(rialto.admin_get(path).status().await, 404, "{path} is not for operators");
    }
    let (code, output, errors) = status_command(&[&format!("http://{admin}")]).await;
    assert!(code == 0 && output.contains("is ready") && output.contains("elements"), "{output}{errors}");
    rialto.stop().await;
}

#[tokio::test]
async fn admin_paths_on_the_client_listener_need_a_token() {
    let rialto = GatewayProcess::start("tokens", &format!("{ELEMENTS}[access.tokens]\nann = \"s3cret\"\n")).await;
    for path in ["/metrics", "/admin/status"] {
        assert_eq!(rialto.get(path).status().await, 401, "{path}");
        assert_eq!(rialto.get(path).header("authorization", "Bearer other").status().await, 401, "{path}");
        let authorized = || rialto.get(path).header("authorization", "Bearer s3cret");
        assert_eq!(authorized().status().await, 200, "{path}");
        assert_eq!(authorized().header("origin", "https://evil.example").status().await, 403, "{path}");
        assert_eq!(authorized().replace("host", "evil.example").status().await, 403, "{path}");
    }
    assert_eq!(rialto.get("/readyz").status().await, 200, "probes have no token");
    let url = rialto.url("");
    let (code, _, errors) = status_command(&[&url]).await;
    assert!(code == 1 && errors.contains("401"), "{errors}");
    let (code, output, errors) = status_command(&[&url, "--header", "Authorization: Bearer s3cret"]).await;
    assert!(code == 0 && output.contains("is ready"), "{errors}");
    rialto.stop().await;
}

#[tokio::test]
async fn status_command_prints_groups_upstreams_and_sessions() {
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let file =
        format!("{ELEMENTS}[servers.away]\nurl = \"http://{away}/mcp\"\n[groups.few]\nservers = [\"elements\"]\n");
    let rialto = GatewayProcess::start("status", &file).await;
    rialto.until_status("the upstream is down", |status| status["upstreams"][1]["phase"] == "down").await;
    let session = rialto.open("/mcp/few").await;
    let url = rialto.url("/");
    let (code, output, errors) = status_command(&[&url]).await;
    assert_eq!(code, 0, "{errors}");
    for line in [
        &["Rialto", "is ready", "up for"][..],
        &["Configuration rialto.toml", "applied"],
        &["1 session", "0 open streams", "0 calls in flight"],
        &["default", "elements, away"],
        &["few", "elements", "3", "1", "2", "1"],
        &["elements", "ready", "in this process"],
        &["away", "down", "streamable-http"],
        &["1", "few", "http", "2025-11-25"],
    ] {
        let has = |text: &str| line.iter().try_fold(text, |rest, word| Some(rest.split_once(word)?.1)).is_some();
        assert!(output.lines().any(has), "{line:?} is not in\n{output}");
    }
    let (code, json_output, errors) = status_command(&["--json", &url]).await;
    assert_eq!(code, 0, "{errors}");
    let report: Value = serde_json::from_str(&json_output).unwrap();
    assert_eq!((&report["ready"], &report["groups"][1]["name"]), (&json!(true), &json!("few")));
    assert_eq!(report["configuration"]["file"], "rialto.toml");
    session.close().await;
    rialto.stop().await;
    let (code, _, errors) = status_command(&[&url]).await;
    assert!(code == 1 && errors.starts_with("rialto: "), "{errors}");
}

#[tokio::test]
async fn logs_off_a_terminal_have_no_ansi_colours() {
    let rialto = GatewayProcess::start("plain", ELEMENTS).await;
    assert!(rialto.stop().await.contains("stopping"));
    let rialto = GatewayProcess::start("plain-again", ELEMENTS).await;
    rialto.send_sighup();
    rialto.wait_for_log("the configuration is served").await;
    let log = rialto.stop().await;
    assert!(!log.contains('\u{1b}'), "{log}");
}
