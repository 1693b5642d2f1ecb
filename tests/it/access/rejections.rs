//! The order of rejections, and what each of them says.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rialto::http::server::Http1Implementation;
use rialto::policy::{PublicUrl, Tokens, TrustedProxies};
use serde_json::{Value, json};

use super::{TestIssuer, signed, token, with_research};
use crate::harness::{HttpResponse, Rialto, initialize, request};
use crate::http1::RawClient;

const BASE: &str = "https://mcp.example";

/// A gateway with an issuer, known as `https://mcp.example`.
async fn guarded(issuer: &Arc<TestIssuer>) -> Rialto {
    let issuer = Arc::clone(issuer);
    Rialto::with(|settings| {
        with_research(settings);
        settings.policy.issuers = Some(issuer);
        settings.policy.public_url = Some(PublicUrl::parse(BASE).unwrap());
        settings.policy.scopes = vec!["mcp:read".into(), "mcp:list".into()];
        settings.policy.tokens = Tokens::parse(&["ann=s3cret".into()]).unwrap();
    })
    .await
}

async fn challenge(received: HttpResponse) -> (u16, String, String) {
    let header = received.header("www-authenticate").unwrap_or("none").to_owned();
    let (status, caching) = (received.status, received.header("cache-control").map(str::to_owned));
    assert_eq!(caching.as_deref(), Some("no-store"), "{status}");
    let body = received.json().await;
    assert_eq!((&body["error"]["code"], &body["id"]), (&json!(-32600), &Value::Null), "{body}");
    (status, header, body["error"]["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_strangers_body_is_never_read() {
    for http1 in [Http1Implementation::Rialto, Http1Implementation::Hyper] {
        let issuer = Arc::new(TestIssuer::default());
        let validator = Arc::clone(&issuer);
        let rialto = Rialto::with(|settings| {
            settings.inbound.http1 = http1;
            settings.policy.issuers = Some(validator);
        })
        .await;
        let expired = token("ann", &rialto.url(""), -1.0);
        for authorization in
            [String::new(), "authorization: Bearer x.y.z\r\n".into(), format!("authorization: Bearer {expired}\r\n")]
        {
            for expect in ["", "expect: 100-continue\r\n"] {
                // The body is announced and withheld.
                let head = format!(
                    "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: */*\r\n{authorization}{expect}content-length: 1000\r\n\r\n"
                );
                let mut wire = RawClient::connect_and_send(&rialto, &head).await;
                assert_eq!(wire.response().await.status, 401, "{head}");
            }
        }
        // One that is admitted is asked for its body.
        let good = token("ann", &rialto.url(""), 60.0);
        let body = initialize("2025-11-25").to_string();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: */*\r\nauthorization: Bearer {good}\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            rialto.address,
            body.len()
        );
        let mut wire = RawClient::connect_and_send(&rialto, &head).await;
        assert!(wire.read_through("\r\n\r\n").await.starts_with("HTTP/1.1 100"));
        wire.send_text(&body).await;
        assert_eq!(wire.response().await.status, 200);
        assert_eq!(issuer.validations.load(Ordering::SeqCst), 5);
    }
}

#[tokio::test]
async fn every_address_challenges_with_its_own_metadata() {
    let rialto = guarded(&Arc::default()).await;
    for (verb, path, resource) in [
        ("POST", "/mcp", "/mcp"),
        ("GET", "/mcp", "/mcp"),
        ("DELETE", "/mcp", "/mcp"),
        ("PUT", "/mcp", "/mcp"),
        ("POST", "/mcp/", "/mcp/"),
        ("POST", "/mcp/streamable", "/mcp/streamable"),
        ("POST", "/mcp/research", "/mcp/research"),
        ("POST", "/mcp/research/http:0123", "/mcp/research"),
        ("GET", "/sse", "/sse"),
        ("GET", "/sse/research", "/sse/research"),
        ("POST", "/message?sessionId=1", "/sse"),
        ("POST", "/message/research", "/sse/research"),
        ("GET", "/research/mcp/sse", "/research/mcp/sse"),
        ("POST", "/research/mcp/sse", "/research/mcp/sse"),
        ("POST", "/mcp/unknown", "/mcp/unknown"),
    ] {
        let (status, header, message) = challenge(rialto.send(verb, path).go().await).await;
        let expected = format!(
            "Bearer resource_metadata=\"{BASE}/.well-known/oauth-protected-resource{resource}\", scope=\"mcp:read mcp:list\""
        );
        assert_eq!((status, header), (401, expected), "{verb} {path}");
        assert_eq!(message, "Unauthorized: log in, or send an API key as a bearer token");
    }
}

#[tokio::test]
async fn each_fault_of_a_credential_has_its_answer() {
    let issuer = Arc::new(TestIssuer::default());
    let rialto = guarded(&issuer).await;
    let metadata = format!("resource_metadata=\"{BASE}/.well-known/oauth-protected-resource/mcp\"");
    let invalid = |description: &str| {
        format!(
            "Bearer error=\"invalid_token\", error_description=\"{description}\", {metadata}, scope=\"mcp:read mcp:list\""
        )
    };
    let log_in = "Unauthorized: log in, or send an API key as a bearer token";
    let post = |values: &[&str]| {
        let sending = rialto.post("/mcp", &initialize("2025-11-25"));
        values.iter().fold(sending, |sending, value| sending.header("authorization", value))
    };
    let early = signed(&json!({ "sub": "ann", "aud": BASE, "exp": 1e12, "nbf": 1e11 }));
    let sibling = format!("Bearer {}", token("ann", &format!("{BASE}/mcp/research"), 60.0));
    for (values, status, header, message) in [
        (vec!["Bearer x.y.z".to_owned()], 401, invalid("the token cannot be verified"), log_in.to_owned()),
        (vec!["Bearer garbage".to_owned()], 401, invalid("the token cannot be verified"), log_in.to_owned()),
        (vec!["Bearer rlto_1".to_owned()], 401, invalid("the token cannot be verified"), log_in.to_owned()),
        (
            vec![format!("Bearer {}", token("ann", BASE, -1.0))],
            401,
            invalid("the token has expired"),
            log_in.to_owned(),
        ),
        (vec![format!("Bearer {early}")], 401, invalid("the token is not valid yet"), log_in.to_owned()),
        (
            vec![sibling],
            401,
            invalid("the token is not for this address"),
            format!("{log_in}; the token must be for the resource {BASE}/mcp"),
        ),
        (
            vec!["Bearer a b".to_owned()],
            400,
            format!("Bearer error=\"invalid_request\", {metadata}"),
            "Bad Request: what follows `Bearer` is not one token".to_owned(),
        ),
        (
            vec!["Bearer s3cret".to_owned(), "Bearer s3cret".to_owned()],
            400,
            format!("Bearer error=\"invalid_request\", {metadata}"),
            "Bad Request: there is more than one `Authorization` header".to_owned(),
        ),
    ] {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        assert_eq!(challenge(post(&values).go().await).await, (status, header, message), "{values:?}");
    }
    let in_query = rialto.post("/mcp?access_token=s3cret", &initialize("2025-11-25")).go().await;
    let (status, header, message) = challenge(in_query).await;
    assert_eq!((status, header), (400, format!("Bearer error=\"invalid_request\", {metadata}")));
    assert!(message.contains("`access_token` in the query"), "{message}");
    issuer.is_away.store(true, Ordering::SeqCst);
    let received = post(&["Bearer x.y.z"]).go().await;
    assert_eq!(received.header("retry-after"), Some("5"));
    let unavailable = "Service Unavailable: tokens cannot be verified right now".to_owned();
    assert_eq!(challenge(received).await, (503, "none".to_owned(), unavailable));
    assert_eq!(post(&["Bearer s3cret"]).status().await, 200, "other credentials are unharmed");
}

#[tokio::test]
async fn host_and_path_are_judged_before_the_credential_and_the_verb_after_it() {
    let rialto = guarded(&Arc::default()).await;
    let good = ("authorization", "Bearer s3cret");
    let status = async |verb, path: &str, headers: &[(&str, &str)]| {
        let sending = rialto.send(verb, path);
        headers.iter().fold(sending, |sending, (name, value)| sending.replace(name, value)).go().await
    };
    let foreign_host = status("POST", "/mcp", &[("host", "evil.example"), good]).await;
    assert_eq!((foreign_host.status, foreign_host.header("cache-control")), (403, Some("no-store")));
    assert_eq!(status("POST", "/nowhere", &[("host", "evil.example")]).await.status, 403);
    assert_eq!(status("GET", "/mcp", &[("origin", "https://evil.example"), good]).await.status, 403);
    let preflight = status("OPTIONS", "/mcp", &[("origin", "http://localhost:5173")]).await;
    assert_eq!(preflight.status, 204);
    assert_eq!(status("GET", "/nowhere", &[]).await.status, 404);
    assert_eq!(status("GET", "/mcp//research", &[]).await.status, 404);
    for address in ["/authorize", "/token", "/register"] {
        assert_eq!(status("GET", address, &[good]).await.status, 404, "{address}");
    }
    assert_eq!(status("PUT", "/mcp", &[]).await.status, 401);
    assert_eq!(status("PUT", "/mcp", &[good]).await.status, 405);
    assert_eq!(status("POST", "/mcp", &[good, ("content-type", "text/plain")]).await.status, 415);
    // A page that may call can read the challenge.
    let refused = status("GET", "/mcp", &[("origin", "http://localhost:5173")]).await;
    assert_eq!(refused.header("access-control-allow-origin"), Some("http://localhost:5173"));
    assert!(refused.header("access-control-expose-headers").unwrap().contains("www-authenticate"));
}

#[tokio::test]
async fn an_unknown_group_is_404_only_after_authentication() {
    let rialto = guarded(&Arc::default()).await;
    let post = |path| rialto.post(path, &initialize("2025-11-25"));
    assert_eq!(post("/mcp/unknown").status().await, 401);
    assert_eq!(post("/mcp/unknown").header("authorization", "Bearer s3cret").status().await, 404);
    assert_eq!(post("/mcp/research").header("authorization", "Bearer s3cret").status().await, 200);
}

#[tokio::test]
async fn a_session_id_is_no_credential() {
    let rialto = guarded(&Arc::default()).await;
    let opened = rialto.post("/mcp", &initialize("2025-11-25")).header("authorization", "Bearer s3cret").go().await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let ping = request(1, "ping", json!({}));
    let post = || rialto.post("/mcp", &ping).header("mcp-session-id", &session);
    assert_eq!(post().status().await, 401);
    assert_eq!(post().header("authorization", "Bearer s3cret").status().await, 200);
}

#[tokio::test]
async fn the_twenty_first_invalid_credential_in_a_minute_is_429() {
    let proxy = TrustedProxies::parse_network("127.0.0.1").unwrap();
    for proxies in [TrustedProxies::default(), TrustedProxies::new(vec![proxy])] {
        let is_behind_proxy = !proxies.is_empty();
        let rialto = Rialto::with(|settings| {
            settings.policy.trusted_proxies = proxies;
            settings.policy.tokens = Tokens::parse(&["ann=s3cret".into()]).unwrap();
        })
        .await;
        let post = |token: &str, client: &str| {
            let sending = rialto.post("/mcp", &initialize("2025-11-25")).header("x-forwarded-for", client);
            sending.header("authorization", &format!("Bearer {token}"))
        };
        for n in 0..20 {
            assert_eq!(post("guess", "192.0.2.1").status().await, 401, "{n}");
        }
        let refused = post("guess", "192.0.2.1").go().await;
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!(refused.status == 429 && (1..=60).contains(&wait), "{}: {wait}", refused.status);
        let message = refused.json().await["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("too many invalid credentials"), "{message}");
        assert_eq!(post("s3cret", "192.0.2.1").status().await, 200, "a valid one passes");
        assert_eq!(rialto.post("/mcp", &initialize("2025-11-25")).status().await, 401, "none is no guess");
        // Another client behind the proxy is another address; a stranger's word for it counts nothing.
        let other = if is_behind_proxy { 401 } else { 429 };
        assert_eq!(post("guess", "192.0.2.2").status().await, other);
    }
}
