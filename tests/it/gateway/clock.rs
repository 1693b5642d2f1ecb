//! A gateway whose time of day is set while it runs, by libfaketime. `setup.sh` installs it on first use.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::GatewayProcess;
use crate::config::TempFolder;
use crate::harness::TEST_TIMEOUT;
use crate::peers::source;

const FILE: &str = r#"
log = { access = true }
admin = { tokens = { ann = { token = "a-viewer-of-clocks", may = "look" } } }
servers.elements = { builtin = "elements" }
"#;

fn installed_library() -> PathBuf {
    let peers = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    let setup = Command::new("bash").arg(source().join("setup.sh")).arg(&peers).arg("faketime").status();
    assert!(setup.expect("bash runs").success(), "libfaketime could not be installed; the lines above say why");
    peers.join("libfaketime.so")
}

async fn admin(rialto: &GatewayProcess, path: &str) -> Value {
    let request = rialto.get(&format!("/admin/v1/{path}")).header("authorization", "Bearer a-viewer-of-clocks");
    request.go().await.json().await
}

/// The time that the access log has for a method.
fn logged_at(rialto: &GatewayProcess, method: &str) -> String {
    let log = rialto.log();
    let line = log.lines().find(|line| line.contains("access: ") && line.contains(method)).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

#[tokio::test]
async fn sessions_and_recorded_calls_survive_a_clock_that_is_set() {
    let library = tokio::task::spawn_blocking(installed_library).await.unwrap();
    let clock = TempFolder::new("clock");
    let set_clock = |offset: &str| {
        clock.write("new", offset);
        std::fs::rename(clock.0.join("new"), clock.0.join("offset")).unwrap();
    };
    set_clock("+0");
    let (library, offset) = (library.display().to_string(), clock.0.join("offset").display().to_string());
    let variables = [
        ("LD_PRELOAD", &*library),
        ("FAKETIME_TIMESTAMP_FILE", &*offset),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let rialto = GatewayProcess::with("clock", FILE, &["--log-format", "text"], &variables).await;
    let session = rialto.open("/mcp").await;
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    // Who reads calls watches for a while.
    while admin(&rialto, "calls").await["items"].is_array() && admin(&rialto, "recording").await["on"] != true {
        assert!(tokio::time::Instant::now() < deadline, "nothing is recorded");
    }

    let element = json!({ "name": "getElement", "arguments": { "name": "Fe" } });
    let steps = [
        ("+0", "tools/call", element),
        ("+2h", "prompts/get", json!({ "name": "describeElement", "arguments": { "name": "Fe" } })),
        ("-2h", "resources/read", json!({ "uri": "elements://table" })),
    ];
    let methods = steps.each_ref().map(|(_, method, _)| *method);
    for (offset, method, params) in steps {
        set_clock(offset);
        let answer = session.ask(method, params).await;
        assert!(answer["result"].is_object(), "{offset} {answer}");
        rialto.wait_for_log(&format!(" {method} ")).await;
    }
    let [now, ahead, behind] = methods.map(|method| logged_at(&rialto, method));
    assert!(behind < now && now < ahead, "the clock was set: {behind} {now} {ahead}");

    let rows = loop {
        let found = admin(&rialto, "calls?q=method:tools/call,prompts/get,resources/read").await["items"].clone();
        let rows = found.as_array().unwrap();
        if rows.len() == 3 && rows.iter().all(|row| row["done"] == true) {
            break rows.clone();
        }
        assert!(tokio::time::Instant::now() < deadline, "three rows that are done: {found:#}");
    };
    let in_order: Vec<&Value> = rows.iter().rev().map(|row| &row["method"]).collect();
    assert_eq!(in_order, methods.each_ref());
    let times: Vec<&str> = rows.iter().rev().map(|row| row["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "a clock that is set moves no row: {times:?}");
    assert!(times[2] < &*ahead && times[0] > &*behind, "{times:?}");
    for row in &rows {
        assert!(row["took_us"].as_u64().unwrap() < TEST_TIMEOUT.as_micros() as u64, "{row}");
        assert_eq!(row["outcome"], "ok", "{row}");
    }
    set_clock("+0");
    session.close().await;
    rialto.stop().await;
}
