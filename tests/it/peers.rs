//! The official TypeScript and Python SDKs as clients: every transport and revision they speak.
//!
//! Each script under `tests/peers` runs one scenario and reports what it saw as JSON; these tests compare the report
//! with what the built-in `elements` server offers. The SDKs are installed on first use.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::Rialto;

/// An SDK client: its script and the interpreter that runs it.
#[derive(Clone, Copy)]
pub struct Peer {
    pub name: &'static str,
    pub interpreter: &'static str,
    script: &'static str,
}

pub const TS1: Peer = Peer { name: "ts1", interpreter: "node/node_modules/.bin/node", script: "node/ts1.mjs" };
pub const TS2: Peer = Peer { name: "ts2", interpreter: "node/node_modules/.bin/node", script: "node/ts2.mjs" };
pub const PY1: Peer = Peer { name: "py1", interpreter: "py1/bin/python", script: "python/py1.py" };
pub const PY2: Peer = Peer { name: "py2", interpreter: "py2/bin/python", script: "python/py2.py" };

/// Requested revisions for an SDK of the handshake era only.
const HANDSHAKE_SDK_REVISIONS: &[&str] = &["", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
/// Requested revisions for an SDK of both eras.
const DUAL_SDK_REVISIONS: &[&str] = &["", "auto", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
/// HTTP+SSE always begins with a handshake, so 2026-07-28 cannot be pinned.
const DUAL_SDK_SSE_REVISIONS: &[&str] = &["", "auto", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

pub fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers")
}

/// Installs the SDKs once and returns their folder.
pub fn installed() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
        let status = std::process::Command::new("bash").arg(source().join("setup.sh")).arg(&folder).status();
        assert!(status.expect("bash runs").success(), "the SDKs could not be installed; see the output above");
        folder
    })
}

/// The command that runs an SDK script.
pub fn script(interpreter: &str, script: &str) -> Command {
    let folder = installed();
    let script = if script.starts_with("node/") { folder.join(script) } else { source().join(script) };
    let mut command = Command::new(folder.join(interpreter));
    command.arg(script).kill_on_drop(true);
    command
}

/// Runs the default scenario and returns its report.
async fn run_scenario(peer: Peer, revision: &str, transport: &str, target: &[String]) -> Value {
    carry_out(peer, revision, transport, target, None).await
}

/// Runs an SDK script with a plan of calls, or with its default scenario, and returns the report.
pub async fn carry_out(peer: Peer, revision: &str, transport: &str, target: &[String], plan: Option<&Value>) -> Value {
    carry_out_trusting(peer, revision, (transport, target), plan, None).await
}

/// Like [`carry_out`], with an authority in a PEM file that the SDK trusts.
pub async fn carry_out_trusting(
    peer: Peer,
    revision: &str,
    (transport, target): (&str, &[String]),
    plan: Option<&Value>,
    authority: Option<&Path>,
) -> Value {
    tokio::task::spawn_blocking(installed).await.unwrap();
    let mut command = script(peer.interpreter, peer.script);
    if let Some(authority) = authority {
        command.env("NODE_EXTRA_CA_CERTS", authority).env("SSL_CERT_FILE", authority);
    }
    command.arg(transport).args(target).stdin(Stdio::null());
    if !revision.is_empty() {
        command.env("PEER_REVISION", revision);
    }
    if let Some(plan) = plan {
        command.env("PEER_PLAN", plan.to_string());
    }
    let output = tokio::time::timeout(Duration::from_secs(90), command.output())
        .await
        .expect("the script exits in time")
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {transport} {revision}: {text}\n{errors}", peer.name);
    serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}\n{errors}"))
}

/// The revision negotiated when `requested` was requested.
fn negotiated<'a>(peer: Peer, requested: &'a str, transport: &str) -> &'a str {
    let both_eras = matches!(peer.name, "ts2" | "py2") && transport != "sse";
    match requested {
        "auto" if both_eras => "2026-07-28",
        // The second Python SDK probes by default.
        "" if peer.name == "py2" && both_eras => "2026-07-28",
        "2026-07-28" if both_eras => "2026-07-28",
        "" | "auto" | "2026-07-28" => "2025-11-25",
        revision => revision,
    }
}

/// Compares a scenario report with what the `elements` server offers.
pub fn check(peer: Peer, requested: &str, transport: &str, report: &Value) {
    let context = format!("{} {transport} {requested:?}: {report}", peer.name);
    let revision = negotiated(peer, requested, transport);
    let structured = revision >= "2025-06-18";
    assert_eq!(report["revision"], revision, "{context}");
    let hydrogen = "元素名称: 氢 (qīng, Hydrogen), 原子序数: 1, 符号: H, 相对原子质量: 1.008, 周期: 1, 族: IA";
    let iron = "元素名称: 铁 (tiě, Iron), 原子序数: 26, 符号: Fe, 相对原子质量: 55.845, 周期: 4, 族: VIII";
    for (key, text) in [("call", hydrogen), ("unicode", hydrogen), ("position", iron)] {
        assert_eq!(report[key]["text"], text, "{context}");
        assert_ne!(report[key]["isError"], true, "{context}");
    }
    for key in ["call", "position"] {
        assert_eq!(report[key]["structured"]["content"] == report[key]["text"], structured, "{context}");
    }
    assert_eq!(report["unknown"]["isError"], true, "{context}");
    assert!(report["unknown"]["text"].as_str().unwrap().starts_with("元素不存在"), "{context}");
    assert_eq!(report["tools"], json!(["getElement", "getElementByPosition", "surveyElements"]), "{context}");
    assert_eq!(report["resources"], json!(["elements://table", "elements://spotlight"]), "{context}");
    assert_eq!(report["templates"], json!(["elements://symbol/{symbol}"]), "{context}");
    assert_eq!(report["prompts"], json!(["describeElement"]), "{context}");
    assert_eq!(report["completion"], json!(["Hydrogen"]), "{context}");
    assert!(report["prompt"].as_str().unwrap().contains("Iron"), "{context}");
    assert!(report["read"]["text"].as_str().unwrap().contains("\"symbol\":\"Fe\""), "{context}");
    assert_eq!(report["surveyText"], "5 elements: H He Li Be B", "{context}");
    // The TypeScript SDKs drop progress that arrives in one chunk with the response, and log that.
    let progress: Vec<u64> = serde_json::from_value(report["progress"].clone()).unwrap();
    let is_dropped_progress =
        |complaint: &&Value| complaint.as_str().is_some_and(|text| text.contains("progress notification"));
    let dropped = report["complaints"].as_array().map_or(0, |all| all.iter().filter(is_dropped_progress).count());
    let (least, dropped) = if peer.name.starts_with("ts") { (1, dropped) } else { (5, 0) };
    assert!(progress.len() + dropped >= least && (1..=5).zip(&progress).all(|(n, seen)| n == *seen), "{context}");
    assert_eq!(report["cancelled"], true, "{context}");
    assert_eq!(report["updated"][0], "elements://spotlight", "{context}");
    assert_eq!(report["protocolError"]["code"], -32602, "{context}");
    // The second TypeScript SDK maps the code to the newer one.
    let missing = if revision == "2026-07-28" || peer.name == "ts2" { -32602 } else { -32002 };
    assert_eq!(report["resourceError"]["code"], missing, "{context}");
    assert_eq!(report["ping"], if revision == "2026-07-28" { json!("unsupported") } else { json!(true) }, "{context}");
    assert_eq!(report["logs"][0]["level"], "debug", "{context}");
    assert_eq!(report["closed"], true, "{context}");
    if report["server"] != "unsupported" {
        assert_eq!(report["server"]["name"], "elements", "{context}");
    }
}

async fn over_http(peer: Peer, transport: &str, revisions: &[&str]) {
    let rialto =
        Rialto::with(|settings| settings.gateway = rialto::app::builtin_config(Duration::from_millis(300))).await;
    let path = if transport == "sse" { "/sse" } else { "/mcp" };
    for revision in revisions {
        let seen = run_scenario(peer, revision, transport, &[rialto.url(path)]).await;
        check(peer, revision, transport, &seen);
    }
    let sessions = &rialto.inbound.sessions;
    crate::harness::until("every session has ended", || sessions.count() == 0).await;
}

async fn over_stdio(peer: Peer, revisions: &[&str]) {
    let command = [env!("CARGO_BIN_EXE_rialto"), "stdio"].map(str::to_owned);
    for revision in revisions {
        let seen = run_scenario(peer, revision, "stdio", &command).await;
        check(peer, revision, "stdio", &seen);
    }
}

macro_rules! peers {
    ($($name:ident: $peer:ident, $http:ident, $sse:ident;)+) => {
        $(mod $name {
            use super::*;

            #[tokio::test]
            async fn over_streamable_http() {
                over_http($peer, "http", $http).await;
            }

            #[tokio::test]
            async fn over_http_and_sse() {
                over_http($peer, "sse", $sse).await;
            }

            #[tokio::test]
            async fn over_stdio() {
                super::over_stdio($peer, $http).await;
            }
        })+
    };
}

peers! {
    typescript_1: TS1, HANDSHAKE_SDK_REVISIONS, HANDSHAKE_SDK_REVISIONS;
    typescript_2: TS2, DUAL_SDK_REVISIONS, DUAL_SDK_SSE_REVISIONS;
    python_1: PY1, HANDSHAKE_SDK_REVISIONS, HANDSHAKE_SDK_REVISIONS;
    python_2: PY2, DUAL_SDK_REVISIONS, DUAL_SDK_SSE_REVISIONS;
}
