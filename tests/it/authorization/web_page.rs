//! An official client inside a web page of another origin, in Chromium: what CORS allows is what it needs.

use serde_json::{Value, json};

use super::scopes::with_rules;
use super::*;
use crate::browser::BrowserScript;
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// What the page could read of the responses of the gateway.
fn responses<'r>(report: &'r Value, gateway: &str) -> Vec<&'r Value> {
    let all = report["responses"].as_array().unwrap_or_else(|| panic!("{report}"));
    all.iter().filter(|response| response["url"] == gateway).collect()
}

#[tokio::test]
async fn a_client_in_a_web_page_logs_in_calls_and_steps_up() {
    let mut browser = BrowserScript::start("node/page.mjs").await;
    let server = AuthorizationServer::oidc_provider(&[("LATER_SCOPES", "1")]).await;
    for (revision, name) in [(None, "page"), (Some("2026-07-28"), "page-per-request")] {
        let upstream = ScriptedServer::start("db", ServerTransport::Http).await;
        let gateway = Configured::with(name, &with_rules(&server, &upstream), |settings| {
            settings.policy.host_origin = rialto::policy::HostOriginRules::new(&[], &[browser.origin.clone()]);
        })
        .await;
        let registrations = server.requests("POST /reg");
        let url = gateway.resource();
        let plan = json!({ "url": url, "user": "ann", "revision": revision, "tools": ["do", "echo", "do"] });
        let report = browser.carry_out(&plan).await;
        assert_eq!(report["failed"], Value::Null, "{report}");
        let call = |tool: &str| json!({ "name": tool, "isError": false });
        assert_eq!(report["calls"], json!([call("do"), call("echo"), call("do")]), "{report}");
        assert!(report["offered"].as_array().unwrap().contains(&json!("echo")), "{report}");
        assert_eq!(report["askedScopes"], json!(["mcp:read", "mcp:read mcp:write"]), "{report}");
        // The person is known to the authorization server the second time.
        assert_eq!(report["pages"], json!(["login", "consent", "consent"]), "{report}");
        assert_eq!(server.requests("POST /reg"), registrations + 1);
        assert_eq!(upstream.count("tools/call"), 3);
        let read = responses(&report, &url);
        let challenged = |status: u16, text: &str| {
            let reads = |read: &&&Value| read["challenge"].as_str().is_some_and(|challenge| challenge.contains(text));
            read.iter().filter(|read| read["status"] == status).any(|read| reads(&read))
        };
        assert!(challenged(401, "resource_metadata="), "{report}");
        assert!(challenged(403, "insufficient_scope"), "{report}");
        let has_session = read.iter().any(|read| read["session"] == true);
        assert_eq!(has_session, revision.is_none(), "{report}");
    }
    browser.stop().await;
}

/// The browser keeps the answers from a page whose origin is not allowed, so its client gets nowhere.
#[tokio::test]
async fn a_web_page_of_an_origin_that_is_not_allowed_gets_nothing() {
    let mut browser = BrowserScript::start("node/page.mjs").await;
    let gateway = Configured::start("foreign-page", "[access.tokens]\nann = \"t0ken\"\n").await;
    let plan = json!({ "url": gateway.resource(), "user": "ann", "tools": ["getElement"] });
    let report = browser.carry_out(&plan).await;
    assert!(report["failed"].as_str().is_some_and(|reason| reason.contains("fetch")), "{report}");
    assert_eq!(report["responses"], Value::Null, "{report}");
    assert_eq!(gateway.rialto.inbound.sessions.count(), 0);
    browser.stop().await;
}
