//! Tokens of real authorization servers.

use std::sync::Arc;
use std::time::Duration;

use rialto::identity::{Credential, Identity};
use rialto::issuers::{IssuerClock, IssuerFigures, IssuerSettings, Issuers, TokenError, TokenFormat};

use crate::authorization_server::{AuthorizationServer, CLIENT, SECRET};
use crate::harness::until;

const ADDRESS: &str = "http://127.0.0.1:3001/mcp";
const SCOPE: &str = "openid offline_access mcp:read mcp:write";

fn is_address(value: &str) -> bool {
    value == ADDRESS
}

fn jwt(name: &str, server: &AuthorizationServer) -> IssuerSettings {
    IssuerSettings::new(name, &server.issuer)
}

fn opaque(name: &str, server: &AuthorizationServer) -> IssuerSettings {
    IssuerSettings {
        token_format: TokenFormat::Opaque,
        client_id: Some(CLIENT.to_owned()),
        client_secret: Some(SECRET.to_owned().into()),
        ..jwt(name, server)
    }
}

async fn validated(issuers: &Issuers, token: &str) -> Result<Arc<Identity>, TokenError> {
    issuers.validate(token, &is_address).await
}

fn figures(issuers: &Issuers) -> IssuerFigures {
    issuers.figures().remove(0)
}

#[tokio::test]
async fn a_person_is_known_by_issuer_and_subject() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let issuers = Issuers::new(vec![jwt("corp", &server)]);
    let tokens = server.log_in("ann", SCOPE, Some(ADDRESS)).await;
    let ann = validated(&issuers, &tokens.access_token).await.unwrap();
    assert_eq!(*ann.principal, format!("{}|ann", server.issuer));
    assert_eq!((ann.client_id.as_deref(), ann.name.as_deref()), (Some(CLIENT), Some("ann")));
    assert_eq!(ann.credential, Credential::Jwt("corp".into()));
    assert_eq!(ann.roles, ["staff", "admins"].map(Arc::from));
    assert_eq!(ann.scopes, ["mcp:read", "mcp:write"].map(Arc::from));
    assert!(ann.token_id.is_some() && ann.expires_at.is_some());
    // A new token of the same caller.
    let refreshed = server.refresh(tokens.refresh_token.as_deref().unwrap()).await;
    let again = validated(&issuers, &refreshed.access_token).await.unwrap();
    assert_eq!(again.caller_id, ann.caller_id);
    // Somebody else, and an id token, which is for the client.
    let bob = server.log_in("bob", SCOPE, Some(ADDRESS)).await;
    assert_eq!(validated(&issuers, &bob.access_token).await.unwrap().roles, ["staff"].map(Arc::from));
    let id_token = tokens.id_token.unwrap();
    assert_eq!(validated(&issuers, &id_token).await, Err(TokenError::WrongAudience));
    assert_eq!(figures(&issuers).fetches, 1);
}

#[tokio::test]
async fn tokens_for_other_addresses_are_refused() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let issuers = Issuers::new(vec![jwt("corp", &server)]);
    for resource in [
        "http://127.0.0.1:3001/mcp/research",
        "http://127.0.0.1:3001",
        "http://127.0.0.1:3001/",
        "http://127.0.0.1:3002/mcp",
        "http://localhost:3001/mcp",
    ] {
        let token = server.client_token(resource).await;
        assert_eq!(validated(&issuers, &token).await, Err(TokenError::WrongAudience), "{resource}");
    }
    assert!(validated(&issuers, &server.client_token(ADDRESS).await).await.is_ok());
}

#[tokio::test]
async fn issuers_share_no_principal() {
    let [mut one, two] = [AuthorizationServer::oidc_provider(&[]).await, AuthorizationServer::oidc_provider(&[]).await];
    let issuers = Issuers::new(vec![jwt("one", &one), jwt("two", &two)]);
    assert_eq!(issuers.urls(), [&one.issuer, &two.issuer]);
    let [token, other] = [one.client_token(ADDRESS).await, two.client_token(ADDRESS).await];
    let (first, second) = (validated(&issuers, &token).await.unwrap(), validated(&issuers, &other).await.unwrap());
    assert_eq!(first.client_id, second.client_id);
    assert_ne!(first.principal, second.principal);
    assert_ne!(first.caller_id, second.caller_id);
    // The keys of one do not vouch for the other, though both have the same id.
    let only_two = Issuers::new(vec![jwt("two", &two)]);
    assert_eq!(validated(&only_two, &token).await, Err(TokenError::Unverifiable));
    // One that goes away harms no other.
    one.stop().await;
    assert!(validated(&issuers, &two.client_token(ADDRESS).await).await.is_ok());
    assert!(validated(&issuers, &token).await.is_ok());
}

#[tokio::test]
async fn an_unknown_key_is_fetched_once_for_all() {
    let mut server = AuthorizationServer::oidc_provider(&[("KEY_ID", "old")]).await;
    let issuers = Issuers::new(vec![jwt("corp", &server)]);
    let old = server.client_token(ADDRESS).await;
    validated(&issuers, &old).await.unwrap();
    server.stop().await;
    server.restart(&[("KEY_ID", "new")]).await;
    let mut tokens = Vec::new();
    for _ in 0..20 {
        tokens.push(server.client_token(ADDRESS).await);
    }
    let requests = (0..1000).map(|number| validated(&issuers, &tokens[number % tokens.len()]));
    let results = futures_util::future::join_all(requests).await;
    assert!(results.iter().all(Result::is_ok), "{:?}", results.iter().find(|result| result.is_err()));
    assert_eq!(server.requests("GET /jwks"), 1);
    // The key that is gone: known tokens of it, too.
    assert!(issuers.cached(&old, &is_address).is_none());
    assert_eq!(validated(&issuers, &old).await, Err(TokenError::Unverifiable));
    assert_eq!(server.requests("GET /jwks"), 1, "not again within ten seconds");
}

#[tokio::test]
async fn keys_that_cannot_be_had_at_the_start_are_had_later() {
    let mut server = AuthorizationServer::oidc_provider(&[("KEY_ID", "first")]).await;
    let settings = jwt("corp", &server);
    let early = server.client_token(ADDRESS).await;
    server.stop().await;
    let clock = IssuerClock::default();
    let issuers = Issuers::with_clock(vec![settings], clock.clone());
    issuers.start();
    assert_eq!(validated(&issuers, &early).await, Err(TokenError::Unavailable));
    assert_eq!(validated(&issuers, "a.b.c").await, Err(TokenError::Unverifiable), "that needs no key");
    server.restart(&[("KEY_ID", "second")]).await;
    let token = server.client_token(ADDRESS).await;
    clock.advance(Duration::from_secs(1));
    assert!(validated(&issuers, &token).await.is_ok());
    assert_eq!(validated(&issuers, &early).await, Err(TokenError::Unverifiable));
}

#[tokio::test]
async fn known_keys_outlast_their_issuer_for_a_day() {
    let mut server = AuthorizationServer::oidc_provider(&[("TTL", "200000")]).await;
    let clock = IssuerClock::default();
    let issuers = Issuers::with_clock(vec![jwt("corp", &server)], clock.clone());
    issuers.start();
    until("the keys are there", || figures(&issuers).keys == 1).await;
    let [first, second] = [server.client_token(ADDRESS).await, server.client_token(ADDRESS).await];
    server.stop().await;
    assert!(validated(&issuers, &first).await.is_ok());
    clock.advance(Duration::from_secs(23 * 3600));
    assert!(validated(&issuers, &first).await.is_ok());
    assert!(validated(&issuers, &second).await.is_ok());
    clock.advance(Duration::from_secs(3600));
    assert_eq!(validated(&issuers, &first).await, Err(TokenError::Unavailable));
}

#[tokio::test]
async fn opaque_tokens_are_asked_about() {
    let mut server = AuthorizationServer::oidc_provider(&[("FORMAT", "opaque")]).await;
    let clock = IssuerClock::default();
    let issuers = Issuers::with_clock(vec![opaque("id", &server)], clock.clone());
    assert!(issuers.has_opaque());
    let token = server.log_in("ann", SCOPE, Some(ADDRESS)).await.access_token;
    let asked = || server.requests("POST /token/introspection");
    let requests = (0..500).map(|_| validated(&issuers, &token));
    let results = futures_util::future::join_all(requests).await;
    let ann = results[0].clone().unwrap();
    assert!(results.iter().all(|result| result.as_ref() == Ok(&ann)));
    assert_eq!(*ann.principal, format!("{}|ann", server.issuer));
    assert_eq!(ann.credential, Credential::Opaque("id".into()));
    assert_eq!(ann.scopes, ["mcp:read", "mcp:write"].map(Arc::from));
    assert!(issuers.cached(&token, &is_address).unwrap().is_ok());
    assert_eq!(asked(), 1);
    clock.advance(Duration::from_secs(31));
    assert!(issuers.cached(&token, &is_address).is_none());
    assert!(validated(&issuers, &token).await.is_ok());
    assert_eq!(asked(), 2, "again after half a minute");
    let elsewhere = server.client_token("http://127.0.0.1:3001/mcp/research").await;
    assert_eq!(validated(&issuers, &elsewhere).await, Err(TokenError::WrongAudience));
    // A token that nobody gave is asked about once in ten seconds.
    for _ in 0..3 {
        assert_eq!(validated(&issuers, "nobody-gave-this").await, Err(TokenError::Unverifiable));
    }
    assert_eq!(asked(), 4);
    clock.advance(Duration::from_secs(11));
    assert_eq!(validated(&issuers, "nobody-gave-this").await, Err(TokenError::Unverifiable));
    assert_eq!(asked(), 5);
    // A revoked one is found out in half a minute.
    server.revoke(&token).await;
    clock.advance(Duration::from_secs(31));
    assert_eq!(validated(&issuers, &token).await, Err(TokenError::Unverifiable));
    // Without the issuer nothing is known.
    let other = server.client_token(ADDRESS).await;
    server.stop().await;
    assert_eq!(validated(&issuers, &other).await, Err(TokenError::Unavailable));
    assert!(figures(&issuers).failed_introspections > 0);
}

#[tokio::test]
async fn wrong_client_credentials_make_tokens_unavailable() {
    let server = AuthorizationServer::oidc_provider(&[("FORMAT", "opaque")]).await;
    let wrong = IssuerSettings { client_secret: Some("wrong".to_owned().into()), ..opaque("id", &server) };
    let issuers = Issuers::new(vec![wrong]);
    let token = server.client_token(ADDRESS).await;
    assert_eq!(validated(&issuers, &token).await, Err(TokenError::Unavailable));
}

#[tokio::test]
async fn a_client_is_the_principal_where_there_is_no_subject() {
    let server = AuthorizationServer::oidc_provider(&[("NO_SUB", "1")]).await;
    let issuers = Issuers::new(vec![jwt("corp", &server)]);
    let identity = validated(&issuers, &server.client_token(ADDRESS).await).await.unwrap();
    assert_eq!(*identity.principal, format!("{}||{CLIENT}", server.issuer));
}

#[tokio::test]
async fn a_token_is_verified_once_until_it_expires() {
    let server = AuthorizationServer::oidc_provider(&[("TTL", "60")]).await;
    let clock = IssuerClock::default();
    let issuers = Issuers::with_clock(vec![jwt("corp", &server)], clock.clone());
    let token = server.client_token(ADDRESS).await;
    for _ in 0..10_000 {
        validated(&issuers, &token).await.unwrap();
    }
    assert_eq!(figures(&issuers).verifications, 1);
    clock.advance(Duration::from_secs(60 + 31));
    assert_eq!(validated(&issuers, &token).await, Err(TokenError::Expired));
}

/// Another implementation: its tokens are for the client, have no subject, and end at a fraction of a second.
#[tokio::test]
async fn tokens_of_canaille_are_accepted() {
    let server = AuthorizationServer::canaille().await;
    let audiences = vec![CLIENT.to_owned()];
    let issuers = Issuers::new(vec![IssuerSettings { audiences, ..opaque("canaille", &server) }]);
    let robot = server.scoped_client_token("profile").await;
    let identity = validated(&issuers, &robot).await.unwrap();
    assert_eq!(*identity.principal, format!("{}||{CLIENT}", server.issuer));
    let ann = server.log_in("ann", "openid profile", None).await;
    let identity = validated(&issuers, &ann.access_token).await.unwrap();
    assert_eq!(*identity.principal, format!("{}|ann", server.issuer));
    assert_eq!(identity.scopes, ["openid", "profile"].map(Arc::from));
    let strict = Issuers::new(vec![opaque("canaille", &server)]);
    assert_eq!(validated(&strict, &robot).await, Err(TokenError::WrongAudience));
    // Its id token is signed, and for the client, but no access token whoever it is for.
    let id_token = ann.id_token.unwrap();
    for audiences in [Vec::new(), vec![CLIENT.to_owned()]] {
        let signed = Issuers::new(vec![IssuerSettings { audiences, ..jwt("canaille", &server) }]);
        assert_eq!(validated(&signed, &id_token).await, Err(TokenError::Unverifiable));
    }
    server.revoke(&robot).await;
    let fresh = Issuers::new(vec![opaque("canaille", &server)]);
    assert_eq!(validated(&fresh, &robot).await, Err(TokenError::Unverifiable));
}
