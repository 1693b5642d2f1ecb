//! Config reload while serving: by file watch and by SIGHUP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::{GatewayProcess, names, phase, shell_server};
use crate::children::{gone, marked, marker};
use crate::harness::{Events, HttpRequest, until};

const ELEMENTS: &str = "[servers.elements]\nbuiltin = \"elements\"\n";
/// A second server, so that names are prefixed from the start.
const OTHER: &str = "[servers.other]\nbuiltin = \"elements\"\n";

/// Waits for notifications/tools/list_changed.
async fn wait_for_tool_change(events: &mut Events) {
    loop {
        let message = events.message().await.expect("the stream stays open");
        if message["method"] == "notifications/tools/list_changed" {
            return;
        }
    }
}

/// The tool names of one server, without its prefix.
fn tools_of<'t>(tools: &'t [String], server: &str) -> Vec<&'t str> {
    tools.iter().filter_map(|tool| tool.strip_prefix(server)?.strip_prefix("__")).collect()
}

#[tokio::test]
async fn reload_adds_replaces_and_removes_servers() {
    let base = format!("{ELEMENTS}{OTHER}");
    let rialto = GatewayProcess::start("servers", &base).await;
    let session = rialto.open("/mcp").await;
    let mut events = session.listen().await;

    // Written in place; found by the file watch.
    let marker = marker("reloaded");
    rialto
        .folder
        .write("rialto.toml", &format!("{base}{}", shell_server("sh", &[("MARKER", &marker), ("SAYS", "one")])));
    wait_for_tool_change(&mut events).await;
    assert_eq!(tools_of(&session.tools().await, "sh"), ["answer", "wrong", "crash", "hang"]);
    assert_eq!(session.call("sh__answer", json!({})).await["result"]["content"][0]["text"], "one");
    let before = marked(&marker);
    assert!(!before.is_empty());

    // Replaced atomically; found by SIGHUP.
    rialto.replace_config(&format!("{base}{}", shell_server("sh", &[("MARKER", &marker), ("SAYS", "two")])));
    rialto.send_sighup();
    until("the previous processes have exited", || !marked(&marker).iter().any(|id| before.contains(id))).await;
    rialto.until_ready().await;
    assert_eq!(session.call("sh__answer", json!({})).await["result"]["content"][0]["text"], "two");

    rialto.replace_config(&base);
    let listed = async {
        while !tools_of(&session.tools().await, "sh").is_empty() {
            wait_for_tool_change(&mut events).await;
        }
    };
    tokio::time::timeout(crate::harness::TEST_TIMEOUT, listed).await.expect("its tools leave the list");
    let status = rialto.until_status("the server is removed", |status| phase(status, "sh").is_none()).await;
    assert_eq!(names(&status["upstreams"], "name"), ["elements", "other"]);
    let refused = session.call("sh__answer", json!({})).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    gone(&marker).await;
    assert_eq!(session.call("elements__getElement", json!({ "name": "Fe" })).await["result"]["isError"], false);
    rialto.stop().await;
}

#[tokio::test]
async fn reload_adds_changes_and_removes_groups() {
    let base = format!("{ELEMENTS}{OTHER}");
    let rialto = GatewayProcess::start("groups", &base).await;
    assert_eq!(rialto.get("/mcp/few").status().await, 404);
    let untouched = rialto.open("/mcp").await;
    rialto.replace_config(&format!("{base}[groups.few]\nservers = [\"elements\"]\n"));
    rialto.until_status("the group is served", |status| status["groups"].as_array().unwrap().len() == 2).await;
    let session = rialto.open("/mcp/few").await;
    assert!(session.tools().await.contains(&"getElement".to_owned()), "a group of one has no prefixes");

    let mut events = session.listen().await;
    rialto.replace_config(&format!("{base}[groups.few]\ntools = {{ allow = [\"*getElement\"] }}\n"));
    wait_for_tool_change(&mut events).await;
    assert_eq!(session.tools().await, ["elements__getElement", "other__getElement"]);

    rialto.replace_config(&base);
    while events.message().await.is_some() {}
    let (status, _) = session.post(&crate::harness::request(1, "tools/list", json!({}))).json().await;
    assert_eq!(status, 404, "the group is removed and its sessions are closed");
    assert_eq!(untouched.tools().await.len(), 6);
    let status = rialto.status().await;
    assert_eq!(names(&status["sessions"], "group"), ["default"]);
    rialto.stop().await;
}

#[tokio::test]
async fn an_invalid_config_is_refused_and_the_old_one_stays() {
    let rialto = GatewayProcess::start("refused", ELEMENTS).await;
    let session = rialto.open("/mcp").await;
    rialto.replace_config(&format!("{ELEMENTS}[servers.bad]\ncomand = \"x\"\n"));
    let status =
        rialto.until_status("the config is refused", |status| status["configuration"]["refused"].is_u64()).await;
    let why = "rialto.toml:4:1: error: unknown key `comand` in [servers.bad]; did you mean `command`?";
    assert_eq!(status["configuration"]["problems"][1], why, "{status}");
    rialto.wait_for_log(why).await;
    rialto.wait_for_log("the configuration is refused; what was served before still is").await;
    assert_eq!(rialto.metrics().await.value(r#"rialto_reloads_total{outcome="refused"}"#), Some(1.0));
    assert_eq!(session.call("getElement", json!({ "name": "Fe" })).await["result"]["isError"], false);

    rialto.replace_config(ELEMENTS);
    rialto.until_status("the config is applied", |status| status["configuration"]["refused"].is_null()).await;
    // A missing file is an error, not an empty config.
    std::fs::remove_file(rialto.path("rialto.toml")).unwrap();
    rialto.send_sighup();
    let refused = |status: &Value| status["configuration"]["refused"].is_u64();
    let status = rialto.until_status("the config is refused", refused).await;
    assert!(status["configuration"]["problems"][0].as_str().unwrap().contains("the file cannot be read"), "{status}");
    assert_eq!(session.tools().await.len(), 3);

    rialto.replace_config(ELEMENTS);
    rialto.until_status("the config is applied", |status| status["configuration"]["refused"].is_null()).await;
    assert!(rialto.metrics().await.value(r#"rialto_reloads_total{outcome="ok"}"#) >= Some(1.0));
    rialto.stop().await;
}

/// A file is used whole: one that a running gateway cannot use is refused, servers and all.
#[tokio::test]
async fn a_file_that_needs_a_restart_is_refused_with_the_reason() {
    let folder = crate::config::TempFolder::new("gateway-restart");
    folder.write("rialto.toml", &format!("listen = \"127.0.0.1:0\"\n{ELEMENTS}"));
    let rialto = GatewayProcess::start_in(folder, &["serve"], &[]).await;
    let more = "listen = \"127.0.0.1:1\"\nstore = \"redis://127.0.0.1:1\"\nworkers = 3\nlimits = { calls = 5 }\nlog = { format = \"json\" }\n";
    rialto.replace_config(&format!("{more}{ELEMENTS}{OTHER}"));
    let refusal = "rialto.toml: restart to change listen, workers, store, log.format; nothing was applied";
    rialto.wait_for_log(refusal).await;
    let status = rialto.until_status("it is refused", |status| status["configuration"]["refused"].is_u64()).await;
    assert_eq!(status["configuration"]["problems"], json!([refusal]));
    assert_eq!(names(&status["upstreams"], "name"), ["elements"], "no part of it is used");
    rialto.replace_config(&format!("listen = \"127.0.0.1:0\"\n{ELEMENTS}{OTHER}"));
    rialto
        .until_status("the next file is used", |status| {
            phase(status, "other").is_some() && status["configuration"]["refused"].is_null()
        })
        .await;
    rialto.stop().await;
}

/// Flags go before every version of the file, also before one that a reload brings.
#[tokio::test]
async fn access_limits_and_admin_settings_take_effect_with_the_servers() {
    let rialto = GatewayProcess::with("whole", ELEMENTS, &["--max-batch", "7"], &[]).await;
    let session = rialto.open("/mcp").await;
    let foreign = || rialto.get("/mcp").replace("host", "gate.example");
    let operator = || foreign_status(&rialto).header("authorization", "Bearer operator-s3cret");
    // The host is judged before the path: nobody learns which paths there are.
    assert_eq!((foreign().status().await, operator().status().await), (403, 403));
    rialto.replace_config(&format!(
        "admin = {{ token = \"operator-s3cret\" }}\naccess = {{ hosts = [\"gate.example\"], origins = [\"https://app.example\"], allow_session_delete = false }}\nlimits = {{ sessions = 1, calls = 1, json_depth = 5, batch = 3 }}\n{ELEMENTS}{OTHER}"
    ));
    rialto.until_status("the servers are used", |status| phase(status, "other") == Some("ready")).await;
    assert_eq!((foreign().status().await, operator().status().await), (405, 200));
    let page = rialto.get("/mcp").header("origin", "https://app.example").go().await;
    assert_eq!((page.status, page.header("access-control-allow-origin")), (405, Some("https://app.example")));
    let deep = session.post(&json!({ "a": [[[[[1]]]]] })).json().await;
    assert_eq!(deep.0, 400);
    assert!(deep.1["error"]["message"].as_str().unwrap().contains("5 deep"), "{deep:?}");
    assert_eq!(session.post(&crate::harness::initialize("2025-11-25")).status().await, 400, "it is initialized");
    let opened = super::Session { address: rialto.address, path: "/mcp", id: String::new() };
    assert_eq!(opened.post(&crate::harness::initialize("2025-11-25")).status().await, 503, "one session at most");
    let deleted = HttpRequest::to(rialto.address, "DELETE", "/mcp").header("mcp-session-id", &session.id);
    assert_eq!(deleted.status().await, 405);
    let long = crate::harness::call("long", "elements__surveyElements", json!({ "count": 118, "delayMs": 1000 }));
    let running = session.post(&long).go().await;
    assert!(running.is_events());
    let second = crate::harness::call("second", "elements__getElement", json!({ "name": "H" }));
    assert_eq!(session.post(&second).status().await, 429, "one call at most");
    assert_eq!(rialto.metrics().await.value(r#"rialto_quota_limit{quota="sessions"}"#), Some(1.0));
    rialto.stop().await;
}

/// A stranger that asks for the added group all the time gets what an unknown path gets, then 401, and nothing between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_added_group_is_never_served_under_the_access_rules_of_the_file_before() {
    const RELOADS: usize = 20;
    let closed = "access = { tokens = { ann = \"ann-s3cret\" } }\n";
    let rialto = GatewayProcess::start("added-closed", ELEMENTS).await;
    let seen = Arc::new(parking_lot::Mutex::new(std::collections::BTreeMap::<u16, usize>::new()));
    let (stop, address) = (Arc::new(AtomicBool::new(false)), rialto.address);
    let strangers: Vec<_> = (0..4)
        .map(|_| {
            let (stop, seen) = (Arc::clone(&stop), Arc::clone(&seen));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let status = HttpRequest::to(address, "GET", "/mcp/added").status().await;
                    *seen.lock().entry(status).or_default() += 1;
                }
            })
        })
        .collect();
    let answers = |status: u16| seen.lock().get(&status).copied().unwrap_or(0);
    for _ in 0..RELOADS {
        let (unknown, refused) = (answers(404), answers(401));
        until("the group is unknown to strangers", || answers(404) > unknown).await;
        rialto.replace_config(&format!("{closed}{ELEMENTS}[groups.added]\nservers = [\"elements\"]\n"));
        rialto.send_sighup();
        until("strangers are refused", || answers(401) > refused).await;
        // The group goes first, then the tokens: it is not the other order that is looked at here.
        rialto.replace_config(&format!("{closed}{ELEMENTS}"));
        rialto.send_sighup();
        let authorized = || rialto.get("/mcp/added").header("authorization", "Bearer ann-s3cret");
        while authorized().status().await != 404 {}
        rialto.replace_config(ELEMENTS);
        rialto.send_sighup();
    }
    stop.store(true, Ordering::Relaxed);
    futures_util::future::join_all(strangers).await;
    let seen = seen.lock().clone();
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [401, 404], "{seen:?}");
    rialto.stop().await;
}

fn foreign_status(rialto: &GatewayProcess) -> HttpRequest {
    rialto.get("/admin/status").replace("host", "gate.example")
}

#[tokio::test]
async fn a_revoked_token_is_refused_and_its_sessions_and_streams_end() {
    let file = |tokens: &str| format!("access = {{ tokens = {{ {tokens} }} }}\n{ELEMENTS}");
    let rialto = GatewayProcess::start("revoked", &file("ann = \"ann-s3cret\", bob = \"bob-s3cret\"")).await;
    let with_token = |request: HttpRequest, token: &str| request.header("authorization", &format!("Bearer {token}"));
    let open = async |token: &str| {
        let mut session = super::Session { address: rialto.address, path: "/mcp", id: String::new() };
        let opened = with_token(session.post(&crate::harness::initialize("2025-11-25")), token).go().await;
        session.id = opened.header("mcp-session-id").expect("a session").into();
        session
    };
    let stream = async |session: &super::Session, token: &str| {
        let request = HttpRequest::to(rialto.address, "GET", "/mcp").header("accept", "text/event-stream");
        with_token(request.header("mcp-session-id", &session.id), token).go().await.events()
    };
    let listen = async |token: &str| {
        let params = json!({ "notifications": { "toolsListChanged": true } });
        let body = crate::harness::modern(1.into(), "subscriptions/listen", params.clone());
        let request = super::Session { address: rialto.address, path: "/mcp", id: String::new() }.post(&body);
        let mut events = with_token(request.modern_headers("subscriptions/listen", &params), token).go().await.events();
        events.message().await.expect("an acknowledgement");
        events
    };
    let (ann, bob) = (open("ann-s3cret").await, open("bob-s3cret").await);
    let (mut ann_stream, mut bob_stream) = (stream(&ann, "ann-s3cret").await, stream(&bob, "bob-s3cret").await);
    let (mut ann_listen, mut bob_listen) = (listen("ann-s3cret").await, listen("bob-s3cret").await);
    // Ann's token is replaced, bob's stays, and another server makes the change visible to those who may see it.
    rialto.replace_config(&format!("{}{OTHER}", file("ann = \"ann-new\", bob = \"bob-s3cret\"")));
    while ann_stream.message().await.is_some() {}
    while ann_listen.message().await.is_some() {}
    let ping = crate::harness::request(1, "ping", json!({}));
    assert_eq!(with_token(ann.post(&ping), "ann-s3cret").status().await, 401);
    assert_eq!(with_token(ann.post(&ping), "ann-new").status().await, 404, "the session has ended");
    assert_eq!(with_token(bob.post(&ping), "bob-s3cret").status().await, 200);
    wait_for_tool_change(&mut bob_stream).await;
    wait_for_tool_change(&mut bob_listen).await;
    rialto.stop().await;
}

#[tokio::test]
async fn a_slow_server_start_does_not_block_calls_to_others() {
    let base = format!("{ELEMENTS}{OTHER}");
    let rialto = GatewayProcess::start("slow", &base).await;
    rialto.until_ready().await;
    let session = Arc::new(rialto.open("/mcp").await);
    let mut events = session.listen().await;
    let go = rialto.path("go");
    rialto.replace_config(&format!("{base}{}", shell_server("slow", &[("GO", go.to_str().unwrap())])));
    rialto.until_status("the server is starting", |status| phase(status, "slow") == Some("starting")).await;
    // A list waits for the starting server for a while; calls to other servers do not.
    let same = Arc::clone(&session);
    let listing = tokio::spawn(async move { same.tools().await });
    let called = session.call("elements__getElement", json!({ "name": "Fe" })).await;
    assert_eq!(called["result"]["isError"], false, "{called}");
    let read = session.ask("resources/read", json!({ "uri": "rialto://other/elements://symbol/Fe" })).await;
    assert!(read["result"].is_object(), "{read}");
    // Readiness does not wait either.
    assert_eq!(rialto.ready().await.0, 200);
    let status = rialto.status().await;
    assert_eq!((phase(&status, "slow"), &status["ready"]), (Some("starting"), &json!(true)));
    assert!(!listing.is_finished());
    std::fs::write(&go, "").unwrap();
    assert_eq!(tools_of(&listing.await.unwrap(), "slow").len(), 4);
    wait_for_tool_change(&mut events).await;
    rialto.stop().await;
}

#[tokio::test]
async fn a_hundred_reloads_fail_no_call() {
    const RELOADS: usize = 100;
    let (unchanged, replaced) = (marker("stays"), marker("goes"));
    let base = format!("{ELEMENTS}{}", shell_server("stays", &[("MARKER", &unchanged), ("SAYS", "here")]));
    let rialto = GatewayProcess::start("hundred", &base).await;
    rialto.until_ready().await;
    let session = Arc::new(rialto.open("/mcp").await);
    let mut events = session.listen().await;
    assert!(session.call("stays__answer", json!({})).await["result"].is_object());
    let children = marked(&unchanged);

    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..4)
        .map(|n| {
            let (session, stop, done) = (Arc::clone(&session), Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(async move {
                let (tool, arguments) = match n % 2 {
                    0 => ("elements__getElement", json!({ "name": "Fe" })),
                    _ => ("stays__answer", json!({})),
                };
                while !stop.load(Ordering::Relaxed) {
                    let answer = session.call(tool, arguments.clone()).await;
                    assert!(answer["result"]["content"][0]["text"].is_string(), "{answer}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for n in 1..=RELOADS {
        let extra = shell_server("comes", &[("MARKER", &replaced), ("SAYS", &n.to_string())]);
        rialto.replace_config(&if n % 2 == 1 { format!("{base}{extra}") } else { base.clone() });
        rialto.send_sighup();
        let wanted = usize::from(n % 2 == 1) + 2;
        rialto
            .until_status("the config is applied", |status| status["upstreams"].as_array().unwrap().len() == wanted)
            .await;
    }
    let before = done.load(Ordering::Relaxed);
    until("calls continue", || done.load(Ordering::Relaxed) > before + 8).await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("no call failed");
    }
    assert!(rialto.metrics().await.value(r#"rialto_reloads_total{outcome="ok"}"#).unwrap() >= RELOADS as f64);
    assert_eq!(marked(&unchanged), children, "the unchanged server kept its processes");
    gone(&replaced).await;
    // The stream opened before the reloads still delivers list changes.
    let extra = shell_server("last", &[("MARKER", &replaced)]);
    rialto.replace_config(&format!("{base}{extra}"));
    while tools_of(&session.tools().await, "last").is_empty() {
        wait_for_tool_change(&mut events).await;
    }
    rialto.stop().await;
    gone(&unchanged).await;
    gone(&replaced).await;
}

#[tokio::test]
async fn secrets_of_a_reload_are_masked_beside_those_before() {
    let config = |token: &str| {
        format!(
            r#"{ELEMENTS}
            [servers.tells]
            command = "sh"
            args = ["-c", "echo tells first-value second-value >&2; exec sleep 60"]
            env = {{ SOME_TOKEN = "{token}" }}"#
        )
    };
    let rialto = GatewayProcess::start("masks", &config("first-value")).await;
    rialto.wait_for_log("tells *** second-value").await;
    rialto.replace_config(&config("second-value"));
    rialto.send_sighup();
    rialto.wait_for_log("tells *** ***").await;
    let log = rialto.stop().await;
    assert!(!log.contains("first-value"), "{log}");
}

#[tokio::test]
async fn secrets_in_flags_are_masked_also_after_a_reload() {
    let config = |word: &str| {
        format!(
            "{ELEMENTS}[servers.tells]\ncommand = \"sh\"\nargs = [\"-c\", \"echo {word} tells flag-s3cret >&2; exec sleep 60\"]\n"
        )
    };
    let arguments = ["--token", "ann=flag-s3cret"];
    let rialto = GatewayProcess::with("flag-secrets", &config("first"), &arguments, &[]).await;
    rialto.wait_for_log("first tells ***").await;
    rialto.replace_config(&config("second"));
    rialto.send_sighup();
    rialto.wait_for_log("second tells ***").await;
    let log = rialto.stop().await;
    assert!(!log.contains("flag-s3cret"), "{log}");
}

#[tokio::test]
async fn reload_applies_limits_at_once_and_keeps_the_levels_of_others() {
    let limit =
        |name: &str, rate: &str| format!("[[policy.limits]]\nname = \"{name}\"\ntools = [\"*\"]\nrate = \"{rate}\"\n");
    let rialto = GatewayProcess::start("limits", &format!("{ELEMENTS}{}", limit("kept", "5/h"))).await;
    let session = rialto.open("/mcp").await;
    let served = async || {
        let answer = session.call("getElement", json!({ "name": "H" })).await;
        !answer["result"]["content"][0]["text"].as_str().unwrap().starts_with("Rate limit")
    };
    assert!(served().await && served().await);
    rialto.replace_config(&format!("{ELEMENTS}{}{}", limit("kept", "5/h"), limit("new", "1/h")));
    let status =
        rialto.until_status("the limit is there", |status| status["limits"].as_array().unwrap().len() == 2).await;
    assert_eq!(status["limits"][0]["counted"], json!([{ "name": "rate", "used": 2, "limit": 5 }]));
    assert!(served().await && !served().await);
    rialto.replace_config(&format!("{ELEMENTS}{}", limit("kept", "5/h")));
    rialto.until_status("the limit is gone", |status| status["limits"].as_array().unwrap().len() == 1).await;
    assert!(served().await && served().await && !served().await, "five in all");
    // A mistake changes nothing.
    rialto.replace_config(&format!("{ELEMENTS}{}", limit("kept", "0/s")));
    rialto.wait_for_log("allows nothing").await;
    assert!(!served().await);
    rialto.replace_config(ELEMENTS);
    rialto.until_status("no limit is left", |status| status.get("limits").is_none()).await;
    assert!(served().await);
    rialto.stop().await;
}

/// Without a bound it would start itself without end.
#[tokio::test]
async fn a_gateway_that_has_itself_as_a_server_starts_itself_a_few_times_only() {
    let rialto = GatewayProcess::start("itself", ELEMENTS).await;
    let (marker, file) = (marker("itself"), rialto.path("rialto.toml"));
    rialto.replace_config(&format!(
        "{ELEMENTS}[servers.itself]\ncommand = {:?}\nargs = [\"stdio\", \"--config\", {file:?}]\nenv = {{ MARKER = {marker:?} }}\n",
        env!("CARGO_BIN_EXE_rialto"),
    ));
    rialto.wait_for_log("4 Rialtos have started one another").await;
    rialto.until_status("it serves itself", |status| phase(status, "itself") == Some("ready")).await;
    let session = rialto.open("/mcp").await;
    let tools = session.tools().await;
    assert!(tools.iter().any(|tool| tool.starts_with("itself__elements__")), "{tools:?}");
    rialto.stop().await;
    until("every process has exited", || marked(&marker).is_empty()).await;
}
