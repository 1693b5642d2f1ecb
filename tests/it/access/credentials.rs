//! Anonymous callers, groups of keys, and an open gateway.

use std::sync::Arc;

use rialto::policy::{ApiKeySpec, ApiKeys, GeneratedKey, Tokens};
use serde_json::json;

use super::{TestIssuer, token, with_research};
use crate::harness::{Rialto, initialize};

#[tokio::test]
async fn an_open_gateway_looks_at_no_credential() {
    let rialto = Rialto::start().await;
    for value in ["Bearer x", "Bearer a b", "Basic x"] {
        let sending = rialto.post("/mcp?access_token=x", &initialize("2025-11-25"));
        assert_eq!(sending.header("authorization", value).header("authorization", value).status().await, 200);
    }
}

#[tokio::test]
async fn anonymous_callers_are_admitted_where_they_are_allowed() {
    let rialto = Rialto::with(|settings| {
        settings.policy.allow_anonymous = true;
        settings.policy.tokens = Tokens::parse(&["ann=s3cret".into()]).unwrap();
    })
    .await;
    let post = || rialto.post("/mcp", &initialize("2025-11-25"));
    assert_eq!(post().status().await, 200);
    assert_eq!(post().header("authorization", "Bearer s3cret").status().await, 200);
    assert_eq!(post().header("authorization", "Bearer wrong").status().await, 401);
    let mut principals: Vec<_> =
        rialto.inbound.sessions.all().iter().map(|session| session.identity().principal.to_string()).collect();
    principals.sort();
    assert_eq!(principals, ["anonymous", "token|ann"]);
}

#[tokio::test]
async fn a_key_is_good_for_its_groups_only() {
    let made = GeneratedKey::random().unwrap();
    let spec = ApiKeySpec {
        name: "ci".into(),
        hashes: vec![made.hash],
        roles: vec!["robots".into()],
        groups: Some(vec!["research".into()]),
        expires: None,
    };
    let rialto = Rialto::with(|settings| {
        with_research(settings);
        settings.policy.keys = ApiKeys::new([spec]);
    })
    .await;
    let post = |path: &str| {
        rialto.post(path, &initialize("2025-11-25")).header("authorization", &format!("Bearer {}", made.key))
    };
    assert_eq!(post("/mcp/research").status().await, 200);
    for path in ["/mcp", "/mcp/default", "/mcp/unknown"] {
        let refused = post(path).go().await;
        assert_eq!((refused.status, refused.header("www-authenticate")), (403, None), "{path}");
        assert_eq!(refused.header("cache-control"), Some("no-store"));
        assert_eq!(refused.json().await["error"]["message"], "Forbidden: you may not use this group");
    }
    let session = &rialto.inbound.sessions.all()[0];
    assert_eq!((&*session.identity().principal, &*session.identity().roles[0]), ("key|ci", "robots"));
}

#[tokio::test]
async fn a_token_is_validated_once() {
    let issuer = Arc::new(TestIssuer::default());
    let validator = Arc::clone(&issuer);
    let rialto = Rialto::with(|settings| settings.policy.issuers = Some(validator)).await;
    let authorization = format!("Bearer {}", token("ann", &rialto.url("/mcp"), 60.0));
    for _ in 0..5 {
        let sending = rialto.modern("tools/list", json!({})).header("authorization", &authorization);
        assert_eq!(sending.status().await, 200);
    }
    assert_eq!(issuer.validations.load(std::sync::atomic::Ordering::SeqCst), 1);
}
