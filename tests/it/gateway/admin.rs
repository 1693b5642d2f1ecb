//! Health endpoints, the admin listener and `rialto status`.

use serde_json::{Value, json};

use super::{GatewayProcess, shell_server};
use crate::harness::{HttpRequest, call, notification};
use crate::ports::ReservedPort;
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

/// Status, header names and body: what a caller can tell two responses apart by.
async fn shape(response: crate::harness::HttpResponse) -> (u16, Vec<String>, String) {
    let mut headers: Vec<String> = response.headers.keys().map(ToString::to_string).collect();
    headers.sort();
    (response.status, headers, response.text().await)
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
        // A page of a foreign origin is refused even with a token.
        let page = rialto.admin_get(path).header("origin", "https://evil.example");
        assert_eq!(page.header("authorization", "Bearer s3cret").status().await, 404, "{path}");
        // DNS rebinding: a foreign Host is refused.
        assert_eq!(rialto.admin_get(path).replace("host", "evil.example").status().await, 404, "{path}");
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

/// A proxy in front makes every peer loopback; a client's token makes nobody an operator.
#[tokio::test]
async fn metrics_and_status_do_not_exist_for_ordinary_callers() {
    let file = format!(
        "{ELEMENTS}[access]\nhosts = [\"gate.example\"]\norigins = [\"https://app.example\"]\ntokens = {{ ann = \"s3cret\" }}\n"
    );
    let rialto = GatewayProcess::start("ordinary", &file).await;
    let origin = "https://app.example";
    let callers: [(&str, &[(&str, &str)]); 6] = [
        ("a foreign host", &[("host", "gate.example")]),
        ("through a proxy", &[("x-forwarded-for", "10.0.0.1")]),
        ("through another proxy", &[("forwarded", "for=10.0.0.1")]),
        ("through nginx", &[("x-real-ip", "10.0.0.1")]),
        ("a client", &[("host", "gate.example"), ("authorization", "Bearer s3cret")]),
        ("a page", &[("host", "gate.example"), ("origin", origin), ("authorization", "Bearer s3cret")]),
    ];
    for (who, headers) in callers {
        for verb in ["GET", "POST", "OPTIONS", "DELETE"] {
            let send = |path: &str| {
                let request = HttpRequest::to(rialto.address, verb, path);
                headers.iter().fold(request, |request, (name, value)| request.replace(name, value))
            };
            let expected = shape(send("/nothing-here").go().await).await;
            assert_eq!(expected.0, 404, "{who}");
            for path in ["/metrics", "/admin", "/admin/status"] {
                assert_eq!(shape(send(path).go().await).await, expected, "{who}: {verb} {path}");
            }
        }
    }
    // On this machine they are there, also for a caller without a token, but no page can read them.
    for path in ["/metrics", "/admin", "/admin/status"] {
        let response = rialto.get(path).header("origin", "http://localhost:5173").go().await;
        assert_eq!(response.status, 200, "{path}");
        let has_cors = response.headers.keys().any(|name| name.as_str().starts_with("access-control-"));
        assert!(!has_cors, "{path}: {:?}", response.headers);
    }
    assert_eq!(rialto.get("/readyz").replace("host", "gate.example").status().await, 200, "probes are public");
    let (code, output, errors) = status_command(&[&rialto.url("")]).await;
    assert!(code == 0 && output.contains("is ready"), "{errors}");
    rialto.stop().await;
}

#[tokio::test]
async fn the_admin_token_opens_metrics_and_status_from_anywhere() {
    let file =
        format!("admin = {{ token = \"operator-s3cret\" }}\naccess = {{ hosts = [\"gate.example\"] }}\n{ELEMENTS}");
    let rialto = GatewayProcess::start("admin-token", &file).await;
    let url = rialto.url("");
    for path in ["/metrics", "/admin/status"] {
        let foreign = || rialto.get(path).replace("host", "gate.example").header("x-forwarded-for", "10.0.0.1");
        assert_eq!(foreign().status().await, 404, "{path}");
        assert_eq!(foreign().header("authorization", "Bearer other").status().await, 404, "{path}");
        assert_eq!(foreign().header("authorization", "Bearer operator-s3cret").status().await, 200, "{path}");
    }
    let header = ["--header", "X-Forwarded-For: 10.0.0.1"];
    let (code, _, errors) = status_command(&[&[url.as_str()], &header[..]].concat()).await;
    assert!(code == 1 && errors.contains("404"), "{errors}");
    let token = ["--header", "Authorization: Bearer operator-s3cret"];
    let (code, output, errors) = status_command(&[&[url.as_str()], &header[..], &token[..]].concat()).await;
    assert!(code == 0 && output.contains("is ready"), "{errors}");
    rialto.stop().await;
}

#[tokio::test]
async fn guesses_of_the_admin_token_are_counted_like_other_invalid_credentials() {
    let file =
        format!("admin = {{ token = \"operator-s3cret\" }}\naccess = {{ hosts = [\"gate.example\"] }}\n{ELEMENTS}");
    let rialto = GatewayProcess::start("admin-guesses", &file).await;
    let foreign = || rialto.get("/metrics").replace("host", "gate.example").header("x-forwarded-for", "10.0.0.1");
    for n in 0..20 {
        let guess = foreign().header("authorization", &format!("Bearer guess-{n}"));
        assert_eq!(guess.status().await, 404, "{n}");
        assert_eq!(foreign().status().await, 404, "who guesses nothing is not counted");
    }
    let refused = foreign().header("authorization", "Bearer guess").go().await;
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(refused.status == 429 && (1..=60).contains(&wait), "{} {wait}", refused.status);
    assert_eq!(foreign().header("authorization", "Bearer operator-s3cret").status().await, 200, "the operator passes");
    rialto.stop().await;
}

/// Addresses and paths of the operator's network are in the status and nowhere a client can look.
#[tokio::test]
async fn addresses_and_paths_are_shown_to_operators_only() {
    let away = ReservedPort::new();
    let file = format!(
        "{ELEMENTS}[servers.away]\nurl = \"http://{away}/hidden-path\"\n[servers.program]\ncommand = \"/hidden-folder/program\"\n"
    );
    let rialto = GatewayProcess::start("addresses", &file).await;
    let status = rialto
        .until_status("both servers are down", |status| {
            status["upstreams"].as_array().unwrap()[1..].iter().all(|upstream| upstream["phase"] == "down")
        })
        .await;
    let port = away.number().to_string();
    assert!(status["upstreams"][1]["reason"].as_str().unwrap().contains(&port), "{status}");
    let session = rialto.open("/mcp").await;
    let mut seen = vec![rialto.ready().await.1, rialto.get("/healthz").go().await.text().await];
    for method in ["tools/list", "resources/list", "prompts/list"] {
        seen.push(session.ask(method, json!({})).await.to_string());
    }
    seen.push(session.call("away__anything", json!({})).await.to_string());
    seen.push(session.call("program__anything", json!({})).await.to_string());
    for uri in ["rialto://away/a:b", "rialto://program/a:b"] {
        seen.push(session.ask("resources/read", json!({ "uri": uri })).await.to_string());
    }
    for text in seen {
        for hidden in [port.as_str(), "hidden-path", "hidden-folder", "rialto.toml"] {
            assert!(!text.contains(hidden), "{hidden} is in {text}");
        }
    }
    rialto.stop().await;
}

/// Whoever reads the log cannot use the sessions in it.
#[tokio::test]
async fn session_ids_are_not_logged() {
    let arguments = ["--log", "rialto=trace"];
    let rialto = GatewayProcess::with("session-log", ELEMENTS, &arguments, &[]).await;
    let session = rialto.open("/mcp").await;
    let bare = session.id.trim_start_matches("http:").to_owned();
    let listening = session.listen().await;
    // An unknown id may be that of another caller's session.
    let foreign = session.id.replace(|digit| "0123".contains(digit), "4");
    assert_eq!(rialto.get("/mcp").header("accept", "*/*").header("mcp-session-id", &foreign).status().await, 404);
    drop(listening);
    rialto.wait_for_log("stream reader detached").await;
    session.close().await;
    let log = rialto.stop().await;
    assert!(log.contains("session=http#"), "{log}");
    let foreign = foreign.trim_start_matches("http:");
    assert!(!log.contains(&bare) && !log.contains(foreign), "{log}");
}

#[tokio::test]
async fn status_command_prints_groups_upstreams_and_sessions() {
    let away = ReservedPort::new();
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

/// Name, first line of the file, flags, `RIALTO_LISTEN`, and whether a warning is given.
type OpenCase<'c> = (&'c str, &'c str, &'c [&'c str], Option<&'c str>, bool);

/// An open gateway is warned about however its address was set.
#[tokio::test]
async fn an_open_gateway_is_warned_about_at_start() {
    let warning = "may call; set tokens in [access.tokens] or with --token";
    let in_file = "listen = \"0.0.0.0:0\"\n";
    let cases: [OpenCase<'_>; 6] = [
        ("flag", "", &["--listen", "0.0.0.0:0"], None, true),
        ("variable", "", &[], Some("0.0.0.0:0"), true),
        ("file", in_file, &[], None, true),
        ("flag-over-file", in_file, &["--listen", "127.0.0.1:0"], None, false),
        ("token", "", &["--listen", "0.0.0.0:0", "--token", "ann=long-s3cret"], None, false),
        ("loopback", "", &["--listen", "127.0.0.1:0"], None, false),
    ];
    for (name, line, arguments, variable, warned) in cases {
        let folder = crate::config::TempFolder::new(&format!("gateway-open-{name}"));
        folder.write("rialto.toml", &format!("{line}{ELEMENTS}"));
        let variables: Vec<(&str, &str)> = variable.iter().map(|address| ("RIALTO_LISTEN", *address)).collect();
        let rialto = GatewayProcess::start_in(folder, &[&["serve"], arguments].concat(), &variables).await;
        let log = rialto.stop().await;
        assert_eq!(log.contains(warning), warned, "{name}: {log}");
        assert!(!log.contains("long-s3cret"), "{log}");
    }
    // Without a file, too.
    let folder = crate::config::TempFolder::new("gateway-open-no-file");
    let rialto = GatewayProcess::start_in(folder, &["serve", "--listen", "0.0.0.0:0"], &[]).await;
    let log = rialto.stop().await;
    assert!(log.contains(warning), "{log}");
}
