//! Who calls: credentials, challenges, metadata documents, and what belongs to a caller.

mod binding;
mod checklist;
mod credentials;
mod keys;
mod metadata;
mod proxy;
mod rejections;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use rialto::app::AppSettings;
use rialto::gateway::GroupConfig;
use rialto::identity::{Credential, Identity};
use rialto::issuers::{AudienceCheck, TokenError};
use rialto::policy::{Audience, TokenValidation, TokenValidator};
use serde_json::{Value, json};

/// Issuer of the tests, as it spells itself.
const ISSUER: &str = "https://login.example/realms/corp";

/// An issuer whose signature is the word `good`. A token is validated once; until then it is not known.
#[derive(Debug, Default)]
struct TestIssuer {
    known: Mutex<HashSet<String>>,
    validations: AtomicUsize,
    /// The keys of the issuer cannot be had.
    is_away: AtomicBool,
    has_opaque: bool,
}

impl TestIssuer {
    fn check(token: &str, is_asked: &AudienceCheck<'_>) -> Result<Arc<Identity>, TokenError> {
        let mut parts = token.split('.').skip(1);
        let claims = parts.next().and_then(|claims| URL_SAFE_NO_PAD.decode(claims).ok());
        let claims: Option<Value> = claims.and_then(|claims| serde_json::from_slice(&claims).ok());
        let Some(claims) = claims.filter(|_| parts.next() == Some("good")) else {
            return Err(TokenError::Unverifiable);
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let end = claims["exp"].as_f64().unwrap();
        if end <= now {
            return Err(TokenError::Expired);
        }
        if claims["nbf"].as_f64().is_some_and(|begin| begin > now) {
            return Err(TokenError::NotYetValid);
        }
        if !is_asked(claims["aud"].as_str().unwrap()) {
            return Err(TokenError::WrongAudience);
        }
        let principal = format!("{ISSUER}|{}", claims["sub"].as_str().unwrap());
        let mut identity = Identity::new(principal, Credential::Jwt("corp".into()));
        if let Some(client) = claims["client_id"].as_str() {
            identity = identity.with_client_id(client);
        }
        identity.expires_at = Some(UNIX_EPOCH + Duration::from_secs_f64(end));
        Ok(identity.into())
    }
}

impl TokenValidator for TestIssuer {
    fn has_opaque(&self) -> bool {
        self.has_opaque
    }

    fn urls(&self) -> Vec<String> {
        vec![ISSUER.to_owned()]
    }

    fn cached(&self, token: &str, is_asked: &AudienceCheck<'_>) -> Option<Result<Arc<Identity>, TokenError>> {
        self.known.lock().contains(token).then(|| Self::check(token, is_asked))
    }

    fn validate<'v>(&'v self, token: &'v str, audience: &'v Audience<'v>) -> TokenValidation<'v> {
        Box::pin(async move {
            self.validations.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            if self.is_away.load(Ordering::SeqCst) {
                return Err(TokenError::Unavailable);
            }
            let validated = Self::check(token, &|asked: &str| audience.accepts(asked));
            if validated.is_ok() {
                self.known.lock().insert(token.to_owned());
            }
            validated
        })
    }

    fn metadata(&self) -> Option<bytes::Bytes> {
        Some(json!({ "issuer": ISSUER }).to_string().into())
    }
}

fn signed(claims: &Value) -> String {
    format!("h.{}.good", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

/// A token for the whole gateway at `audience`, which lives this many seconds.
fn token(sub: &str, audience: &str, seconds: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    signed(&json!({ "sub": sub, "client_id": "desktop", "aud": audience, "exp": now + seconds }))
}

/// Adds the group `research`, which has the built-in server too.
fn with_research(settings: &mut AppSettings) {
    settings.gateway.groups.push(GroupConfig::new("research", [Arc::from("elements")]));
}
