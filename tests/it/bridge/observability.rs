//! Bridging in status, metrics and probe output: revisions of both sides and translations between them.

use rialto::dialect::{Revision, describe_translation};
use serde_json::{Value, json};

use super::feature_checks::expect_text;
use super::known_limits::{Fallback, limit};
use super::variants::{Feature, Transport, VARIANTS, Variant};
use super::{ALL, Testbed};
use crate::process::rialto;

/// Variants that share the gateway of the testbed; stdio clients have their own.
fn shared_gateway_clients() -> impl Iterator<Item = Variant> {
    VARIANTS.into_iter().filter(|variant| variant.transport != Transport::Stdio)
}

async fn command_output(command: &[&str]) -> String {
    let output = rialto().args(command).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_metrics_report_translations_by_revision_pair() {
    let testbed = Testbed::open(&VARIANTS).await;
    let mut open = Vec::new();
    for variant in shared_gateway_clients() {
        let mut client = testbed.client(variant, ALL).await.unwrap();
        let listed = client.request("tools/list", json!({})).await.unwrap();
        client.record_header_mirrors(&listed.message["result"]["tools"]);
        for server in VARIANTS {
            let answer = client.call(&format!("{}__add", server.name), json!({ "a": 2, "b": 3 })).await.unwrap();
            expect_text(&answer, "5").unwrap();
        }
        open.push(client);
    }
    let status: Value =
        serde_json::from_str(&testbed.rialto.send("GET", "/admin/status").go().await.text().await).unwrap();
    // Sessions by revision, with every server of their group.
    let sessions = status["sessions"].as_array().unwrap();
    let with_session: Vec<Variant> = shared_gateway_clients().filter(|variant| !variant.is_per_request()).collect();
    assert_eq!(sessions.len(), with_session.len(), "{sessions:?}");
    for variant in with_session {
        let revision = variant.revision.to_string();
        let session = sessions.iter().find(|session| session["revision"] == *revision).unwrap();
        let expected = |server: Variant| {
            let words = describe_translation(variant.revision, server.revision);
            json!({ "upstream": server.name, "revision": server.revision.to_string(), "bridged": words })
        };
        assert_eq!(session["upstreams"], json!(VARIANTS.map(expected)), "{revision}");
    }
    // Upstreams with the client revisions that called them, with or without a session.
    for server in VARIANTS {
        let upstreams = status["upstreams"].as_array().unwrap();
        let upstream = upstreams.iter().find(|upstream| upstream["name"] == server.name).unwrap();
        assert_eq!(upstream["revision"], server.revision.to_string());
        let expected = |client: Variant| {
            let words = describe_translation(client.revision, server.revision);
            let (client, server) = (client.revision.to_string(), server.revision.to_string());
            json!({ "client_revision": client, "server_revision": server, "calls": 1, "bridged": words })
        };
        assert_eq!(
            upstream["calls_by_revision"],
            json!(shared_gateway_clients().map(expected).collect::<Vec<_>>()),
            "{}",
            server.name
        );
    }
    let metrics = testbed.rialto.send("GET", "/metrics").go().await.text().await;
    let sample = r#"rialto_upstream_calls_by_revision_total{upstream="http-2025-11",client_revision="2026-07-28",server_revision="2025-11-25"} 1"#;
    assert!(metrics.contains(sample), "{metrics}");
    let printed = command_output(&["status", &testbed.rialto.url("")]).await;
    for words in ["handshake ← discovery", "discovery ← handshake", "nothing", "structured content as text"] {
        assert!(printed.contains(words), "{words} is not in\n{printed}");
    }
    for client in open {
        client.close().await.unwrap();
    }
    testbed.close().await;
}

#[tokio::test]
async fn probe_reports_translations_for_each_client_revision() {
    let testbed = Testbed::open(&VARIANTS).await;
    for server in shared_gateway_clients() {
        let url = match &testbed.endpoints.iter().find(|endpoint| endpoint.scripted.variant == server).unwrap().target {
            rialto::mcp_client::Target::Url(address) => address.url.to_string(),
            other => panic!("{other} is not a URL"),
        };
        let found: Value = serde_json::from_str(&command_output(&["probe", "--json", &url]).await).unwrap();
        assert_eq!(found["revision"], server.revision.to_string());
        let expected = [
            Revision::V2024_11_05,
            Revision::V2025_03_26,
            Revision::V2025_06_18,
            Revision::V2025_11_25,
            Revision::V2026_07_28,
        ]
        .map(|client| json!({ "client": client.to_string(), "translated": describe_translation(client, server.revision) }));
        assert_eq!(found["clients"], json!(expected), "{url}");
        let printed = command_output(&["probe", &url]).await;
        let own_line = printed.lines().find(|line| line.trim_start().starts_with(&server.revision.to_string()));
        assert!(own_line.is_some_and(|line| line.ends_with("nothing")), "{printed}");
    }
}

/// The translation text for a fallback, as status and probe print it.
fn words(feature: Feature, fallback: Fallback) -> Option<&'static str> {
    Some(match (fallback, feature) {
        (Fallback::ServerLacksIt, _) => return None,
        (Fallback::ClientLacksIt, Feature::UrlElicitation) => "url elicitation not available",
        (Fallback::ClientLacksIt, _) => "elicitation not available",
        (Fallback::TextOnly, _) => "structured content as text",
        (Fallback::NoProgressMessage, _) => "progress messages dropped",
        (Fallback::NoLogsBeforeSetLevel, _) => "log level per request",
        (Fallback::ElicitationIdReplaced, _) => "elicitation ids replaced",
        (Fallback::NoRootChanges, _) => "changes of roots not passed on",
        (Fallback::WrappedErrorCode, _) => "reserved error codes wrapped",
    })
}

#[test]
fn described_translations_match_the_tested_limits() {
    for client in VARIANTS {
        for server in VARIANTS {
            let described = describe_translation(client.revision, server.revision);
            for feature in Feature::ALL {
                let Some(limit) = limit(feature, client, server) else { continue };
                let Some(words) = words(feature, limit.fallback) else { continue };
                assert!(described.contains(&words), "{} → {}: {words}", client.label(), server.label());
            }
        }
    }
}
