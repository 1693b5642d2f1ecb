//! What operators see of bridging: the revisions of both sides, and what is translated between them.

use rialto::dialect::{Revision, translation};
use serde_json::{Value, json};

use super::feature_checks::expect_text;
use super::known_limits::{Fallback, limit};
use super::variants::{Feature, Transport, VARIANTS, Variant};
use super::{ALL, Testbed};
use crate::process::rialto;

/// Clients that have the gateway of the scene in common.
fn clients() -> impl Iterator<Item = Variant> {
    VARIANTS.into_iter().filter(|variant| variant.transport != Transport::Stdio)
}

async fn shown(command: &[&str]) -> String {
    let output = rialto().args(command).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_metrics_report_translations_by_revision_pair() {
    let testbed = Testbed::open(&VARIANTS).await;
    let mut open = Vec::new();
    for variant in clients() {
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
    // Each kind of session, with every server of its group.
    let sessions = status["sessions"].as_array().unwrap();
    let with_session: Vec<Variant> = clients().filter(|variant| !variant.is_per_request()).collect();
    assert_eq!(sessions.len(), with_session.len(), "{sessions:?}");
    for variant in with_session {
        let revision = variant.revision.to_string();
        let own = sessions.iter().find(|alike| alike["revision"] == *revision).unwrap();
        let facing = |server: Variant| {
            let words = translation(variant.revision, server.revision);
            json!({ "upstream": server.name, "revision": server.revision.to_string(), "translated": words })
        };
        assert_eq!(own["upstreams"], json!(VARIANTS.map(facing)), "{revision}");
    }
    // Each server, with those who called it, whether they have a session or not.
    for server in VARIANTS {
        let upstreams = status["upstreams"].as_array().unwrap();
        let own = upstreams.iter().find(|upstream| upstream["name"] == server.name).unwrap();
        assert_eq!(own["revision"], server.revision.to_string());
        let met = |client: Variant| {
            let words = translation(client.revision, server.revision);
            let (client, server) = (client.revision.to_string(), server.revision.to_string());
            json!({ "client": client, "server": server, "calls": 1, "translated": words })
        };
        assert_eq!(own["clients"], json!(clients().map(met).collect::<Vec<_>>()), "{}", server.name);
    }
    let figures = testbed.rialto.send("GET", "/metrics").go().await.text().await;
    let figure = r#"rialto_upstream_revisions{upstream="http-2025-11",client="2026-07-28",server="2025-11-25"} 1"#;
    assert!(figures.contains(figure), "{figures}");
    let people = shown(&["status", &testbed.rialto.url("")]).await;
    for words in ["handshake ← discovery", "discovery ← handshake", "nothing", "structured content as text"] {
        assert!(people.contains(words), "{words} is not in\n{people}");
    }
    for client in open {
        client.close().await.unwrap();
    }
    testbed.close().await;
}

#[tokio::test]
async fn probe_reports_translations_for_each_client_revision() {
    let testbed = Testbed::open(&VARIANTS).await;
    for server in clients() {
        let url = match &testbed.endpoints.iter().find(|endpoint| endpoint.scripted.variant == server).unwrap().target {
            rialto::mcp_client::Target::Url(address) => address.url.to_string(),
            other => panic!("{other} is no address"),
        };
        let found: Value = serde_json::from_str(&shown(&["probe", "--json", &url]).await).unwrap();
        assert_eq!(found["revision"], server.revision.to_string());
        let expected = [
            Revision::V2024_11_05,
            Revision::V2025_03_26,
            Revision::V2025_06_18,
            Revision::V2025_11_25,
            Revision::V2026_07_28,
        ]
        .map(|client| json!({ "client": client.to_string(), "translated": translation(client, server.revision) }));
        assert_eq!(found["clients"], json!(expected), "{url}");
        let people = shown(&["probe", &url]).await;
        let own = people.lines().find(|line| line.trim_start().starts_with(&server.revision.to_string()));
        assert!(own.is_some_and(|line| line.ends_with("nothing")), "{people}");
    }
}

/// The words for what does not pass as it is.
fn words(feature: Feature, fallback: Fallback) -> Option<&'static str> {
    Some(match (fallback, feature) {
        (Fallback::NotThere, _) => return None,
        (Fallback::NotAsked, Feature::UrlElicitation) => "url elicitation not available",
        (Fallback::NotAsked, _) => "elicitation not available",
        (Fallback::TextOnly, _) => "structured content as text",
        (Fallback::NoWords, _) => "progress messages dropped",
        (Fallback::SilentAtFirst, _) => "log level per request",
        (Fallback::Renamed, _) => "elicitation ids replaced",
        (Fallback::RootsStay, _) => "changes of roots not passed on",
        (Fallback::Wrapped, _) => "reserved error codes wrapped",
    })
}

#[test]
fn described_translations_match_the_tested_limits() {
    for client in VARIANTS {
        for server in VARIANTS {
            let told = translation(client.revision, server.revision);
            for feature in Feature::ALL {
                let Some(limit) = limit(feature, client, server) else { continue };
                let Some(words) = words(feature, limit.fallback) else { continue };
                assert!(told.contains(&words), "{} → {}: {words}", client.label(), server.label());
            }
        }
    }
}
