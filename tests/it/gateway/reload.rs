//! The file changes while it is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::{Running, names, phase, shell};
use crate::children::{gone, marked, marker};
use crate::harness::{Events, until};

const ELEMENTS: &str = "[servers.elements]\nbuiltin = \"elements\"\n";
/// A second server, so that names have prefixes from the beginning.
const OTHER: &str = "[servers.other]\nbuiltin = \"elements\"\n";

/// Waits for word that the tools are others now.
async fn changed(events: &mut Events) {
    loop {
        let message = events.message().await.expect("the stream goes on");
        if message["method"] == "notifications/tools/list_changed" {
            return;
        }
    }
}

/// What the tools of a server are called.
fn of<'t>(tools: &'t [String], server: &str) -> Vec<&'t str> {
    tools.iter().filter_map(|tool| tool.strip_prefix(server)?.strip_prefix("__")).collect()
}

#[tokio::test]
async fn reload_adds_replaces_and_removes_servers() {
    let base = format!("{ELEMENTS}{OTHER}");
    let rialto = Running::start("servers", &base).await;
    let session = rialto.open("/mcp").await;
    let mut events = session.listen().await;

    // In place, and by the watch.
    let marker = marker("reloaded");
    rialto.folder.write("rialto.toml", &format!("{base}{}", shell("sh", &[("MARKER", &marker), ("SAYS", "one")])));
    changed(&mut events).await;
    assert_eq!(of(&session.tools().await, "sh"), ["answer", "wrong", "crash", "hang"]);
    assert_eq!(session.call("sh__answer", json!({})).await["result"]["content"][0]["text"], "one");
    let before = marked(&marker);
    assert!(!before.is_empty());

    // By another file in its place, and by a signal.
    rialto.replace(&format!("{base}{}", shell("sh", &[("MARKER", &marker), ("SAYS", "two")])));
    rialto.hang_up();
    until("those of before are gone", || !marked(&marker).iter().any(|id| before.contains(id))).await;
    rialto.until_ready().await;
    assert_eq!(session.call("sh__answer", json!({})).await["result"]["content"][0]["text"], "two");

    rialto.replace(&base);
    let listed = async {
        while !of(&session.tools().await, "sh").is_empty() {
            changed(&mut events).await;
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, listed).await.expect("it is taken off the list");
    let status = rialto.until_status("it is removed", |status| phase(status, "sh").is_none()).await;
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
    let rialto = Running::start("groups", &base).await;
    assert_eq!(rialto.get("/mcp/few").status().await, 404);
    let untouched = rialto.open("/mcp").await;
    rialto.replace(&format!("{base}[groups.few]\nservers = [\"elements\"]\n"));
    rialto.until_status("the group is there", |status| status["groups"].as_array().unwrap().len() == 2).await;
    let session = rialto.open("/mcp/few").await;
    assert!(session.tools().await.contains(&"getElement".to_owned()), "a group of one has no prefixes");

    let mut events = session.listen().await;
    rialto.replace(&format!("{base}[groups.few]\ntools = {{ allow = [\"*getElement\"] }}\n"));
    changed(&mut events).await;
    assert_eq!(session.tools().await, ["elements__getElement", "other__getElement"]);

    rialto.replace(&base);
    while events.message().await.is_some() {}
    let (status, _) = session.post(&crate::harness::request(1, "tools/list", json!({}))).json().await;
    assert_eq!(status, 404, "the group is gone, and so are its sessions");
    assert_eq!(untouched.tools().await.len(), 6);
    let status = rialto.status().await;
    assert_eq!(names(&status["sessions"], "group"), ["default"]);
    rialto.stop().await;
}

#[tokio::test]
async fn an_invalid_config_is_refused_and_the_old_one_stays() {
    let rialto = Running::start("refused", ELEMENTS).await;
    let session = rialto.open("/mcp").await;
    rialto.replace(&format!("{ELEMENTS}[servers.bad]\ncomand = \"x\"\n"));
    let status = rialto.until_status("it is refused", |status| status["configuration"]["refused"].is_u64()).await;
    let why = "rialto.toml:4:1: error: unknown key `comand` in [servers.bad]; did you mean `command`?";
    assert_eq!(status["configuration"]["problems"][1], why, "{status}");
    rialto.logged(why).await;
    rialto.logged("the configuration is refused; what was served before still is").await;
    assert_eq!(rialto.figures().await.of(r#"rialto_reloads_total{outcome="refused"}"#), Some(1.0));
    assert_eq!(session.call("getElement", json!({ "name": "Fe" })).await["result"]["isError"], false);

    rialto.replace(ELEMENTS);
    rialto.until_status("it is taken", |status| status["configuration"]["refused"].is_null()).await;
    // One that is away for a moment is no file without servers.
    std::fs::remove_file(rialto.path("rialto.toml")).unwrap();
    rialto.hang_up();
    let refused = |status: &Value| status["configuration"]["refused"].is_u64();
    let status = rialto.until_status("it is refused", refused).await;
    assert!(status["configuration"]["problems"][0].as_str().unwrap().contains("the file cannot be read"), "{status}");
    assert_eq!(session.tools().await.len(), 3);

    rialto.replace(ELEMENTS);
    rialto.until_status("it is taken", |status| status["configuration"]["refused"].is_null()).await;
    assert!(rialto.figures().await.of(r#"rialto_reloads_total{outcome="ok"}"#) >= Some(1.0));
    rialto.stop().await;
}

#[tokio::test]
async fn reload_names_settings_that_need_a_restart() {
    let rialto = Running::start("restart", ELEMENTS).await;
    let more = "listen = \"127.0.0.1:1\"\nadmin = { listen = \"127.0.0.1:0\" }\nlog = { format = \"json\" }\naccess = { allow_session_delete = false }\nlimits = { calls = 5 }\n";
    rialto.replace(&format!("{more}{ELEMENTS}{OTHER}"));
    let told = "these take effect after a restart: listen, admin, log, access, limits";
    rialto.logged(told).await;
    let named = |status: &Value| status["configuration"]["problems"] == json!([told]);
    rialto.until_status("the rest is taken", |status| phase(status, "other").is_some() && named(status)).await;
    // And again, as long as it has not happened.
    rialto.replace(&format!("{more}{ELEMENTS}"));
    rialto.until_status("the rest is taken", |status| phase(status, "other").is_none() && named(status)).await;
    rialto.open("/mcp").await.close().await;
    rialto.stop().await;
}

#[tokio::test]
async fn a_slow_server_start_does_not_block_calls_to_others() {
    let base = format!("{ELEMENTS}{OTHER}");
    let rialto = Running::start("slow", &base).await;
    rialto.until_ready().await;
    let session = Arc::new(rialto.open("/mcp").await);
    let mut events = session.listen().await;
    let go = rialto.path("go");
    rialto.replace(&format!("{base}{}", shell("slow", &[("GO", go.to_str().unwrap())])));
    rialto.until_status("it is starting", |status| phase(status, "slow") == Some("starting")).await;
    // A list waits for it, for a while; calls to others do not.
    let same = Arc::clone(&session);
    let listing = tokio::spawn(async move { same.tools().await });
    let called = session.call("elements__getElement", json!({ "name": "Fe" })).await;
    assert_eq!(called["result"]["isError"], false, "{called}");
    let read = session.ask("resources/read", json!({ "uri": "rialto://other/elements://symbol/Fe" })).await;
    assert!(read["result"].is_object(), "{read}");
    // Nor do probes.
    assert_eq!(rialto.ready().await.0, 200);
    let status = rialto.status().await;
    assert_eq!((phase(&status, "slow"), &status["ready"]), (Some("starting"), &json!(true)));
    assert!(!listing.is_finished());
    std::fs::write(&go, "").unwrap();
    assert_eq!(of(&listing.await.unwrap(), "slow").len(), 4);
    changed(&mut events).await;
    rialto.stop().await;
}

#[tokio::test]
async fn a_hundred_reloads_fail_no_call() {
    const TIMES: usize = 100;
    let (stays, goes) = (marker("stays"), marker("goes"));
    let base = format!("{ELEMENTS}{}", shell("stays", &[("MARKER", &stays), ("SAYS", "here")]));
    let rialto = Running::start("hundred", &base).await;
    rialto.until_ready().await;
    let session = Arc::new(rialto.open("/mcp").await);
    let mut events = session.listen().await;
    assert!(session.call("stays__answer", json!({})).await["result"].is_object());
    let children = marked(&stays);

    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..4)
        .map(|n| {
            let (session, over, done) = (Arc::clone(&session), Arc::clone(&over), Arc::clone(&done));
            tokio::spawn(async move {
                let (tool, arguments) = match n % 2 {
                    0 => ("elements__getElement", json!({ "name": "Fe" })),
                    _ => ("stays__answer", json!({})),
                };
                while !over.load(Ordering::Relaxed) {
                    let answer = session.call(tool, arguments.clone()).await;
                    assert!(answer["result"]["content"][0]["text"].is_string(), "{answer}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for n in 1..=TIMES {
        let extra = shell("comes", &[("MARKER", &goes), ("SAYS", &n.to_string())]);
        rialto.replace(&if n % 2 == 1 { format!("{base}{extra}") } else { base.clone() });
        rialto.hang_up();
        let wanted = usize::from(n % 2 == 1) + 2;
        rialto.until_status("it is taken", |status| status["upstreams"].as_array().unwrap().len() == wanted).await;
    }
    let before = done.load(Ordering::Relaxed);
    until("calls go on", || done.load(Ordering::Relaxed) > before + 8).await;
    over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("no call failed");
    }
    assert!(rialto.figures().await.of(r#"rialto_reloads_total{outcome="ok"}"#).unwrap() >= TIMES as f64);
    assert_eq!(marked(&stays), children, "its processes are those of the beginning");
    gone(&goes).await;
    // The stream of the beginning is open, and still tells.
    let extra = shell("last", &[("MARKER", &goes)]);
    rialto.replace(&format!("{base}{extra}"));
    while of(&session.tools().await, "last").is_empty() {
        changed(&mut events).await;
    }
    rialto.stop().await;
    gone(&stays).await;
    gone(&goes).await;
}
