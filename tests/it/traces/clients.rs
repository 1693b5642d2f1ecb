//! An SDK client with OpenTelemetry, Rialto, and an SDK server with OpenTelemetry: one trace.

use std::process::Stdio;

use serde_json::Value;

use super::collector::Collector;
use super::parents::before_python;
use super::stop;
use crate::harness::TEST_TIMEOUT;
use crate::peers;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_the_typescript_sdk_to_the_python_sdk_is_one_trace() {
    let collector = Collector::start().await;
    for (server, client) in [("2025-11-25", "2026-07-28"), ("2026-07-28", "")] {
        let (rialto, _folder) = before_python(&collector, &format!("sdks-{server}"), server).await;
        let mut command = peers::script("node/node_modules/.bin/node", "node/traced2.mjs");
        command
            .args([&rialto.url("/mcp"), &collector.traces_url(), "echo", r#"{"message":"hi"}"#])
            .stdin(Stdio::null());
        if !client.is_empty() {
            command.env("PEER_REVISION", client);
        }
        let output = tokio::time::timeout(TEST_TIMEOUT * 2, command.output()).await.expect("an end").unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
        assert!(report["result"]["content"].is_array(), "{report}");
        let trace = report["trace"].as_str().unwrap();
        let find = |service: &'static str, kind: &'static str| {
            let collector = &collector;
            async move {
                let what = format!("{kind} of {service}");
                let is_it = |span: &Value| {
                    span["trace"] == trace
                        && span["kind"] == kind
                        && span["name"] == "tools/call echo"
                        && (span["resource"]["service.name"] == service || service.is_empty())
                };
                collector.span_where(&what, is_it).await
            }
        };
        let ours = find("rialto", "SERVER").await;
        let request = find("rialto", "CLIENT").await;
        let python = find("python-server", "SERVER").await;
        let agent = collector
            .span_where("the client's own root", |span| span["trace"] == trace && span["name"] == "agent")
            .await;
        let is_clients = |span: &Value| span["trace"] == trace && span["span"] == report["span"];
        let typescript = collector.span_where("the client's span", is_clients).await;
        assert_eq!(agent["parent"], "");
        assert_eq!(typescript["parent"], agent["span"]);
        assert_eq!(ours["parent"], typescript["span"]);
        assert_eq!(request["parent"], ours["span"]);
        assert_eq!(python["parent"], request["span"]);
        stop(rialto).await;
    }
}
