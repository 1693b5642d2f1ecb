//! Asks an issuer about a token (RFC 7662).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{Semaphore, watch};
use url::form_urlencoded;
use zeroize::Zeroizing;

use super::TokenError;
use super::cache::{CachedToken, TokenFinding};
use super::claims::VerifiedToken;
use super::fetch;
use super::issuer::Issuer;
use super::secret_bytes::SecretBytes;
use crate::http::client::HttpClient;
use crate::identity::Credential;
use crate::redact::redact;

/// Questions to one issuer at a time.
const MAX_CONCURRENT: usize = 64;
/// Tokens that are asked about or wait for it; further ones are refused as unavailable.
const MAX_PENDING: usize = 1024;
/// Time for a question, the wait for others included.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What the issuer said, once it did.
type IntrospectionAnswer = Option<Result<Arc<CachedToken>, TokenError>>;

/// The questions to an issuer that are under way, one per token.
pub(super) struct Introspection {
    pending: Mutex<HashMap<SecretBytes, watch::Receiver<IntrospectionAnswer>>>,
    permits: Semaphore,
    /// The client for the endpoint, with its open connections.
    client: Mutex<Option<Arc<HttpClient>>>,
    /// Whether the last question got no answer; only the first of several is reported.
    is_failing: AtomicBool,
}

impl Default for Introspection {
    fn default() -> Self {
        Self {
            pending: Mutex::default(),
            permits: Semaphore::new(MAX_CONCURRENT),
            client: Mutex::default(),
            is_failing: AtomicBool::new(false),
        }
    }
}

impl Introspection {
    /// The client for an endpoint, made anew when the endpoint changed.
    fn client(&self, endpoint: &Uri) -> Arc<HttpClient> {
        let mut client = self.client.lock();
        match &*client {
            Some(known) if known.url() == *endpoint => Arc::clone(known),
            _ => Arc::clone(client.insert(Arc::new(fetch::form_client(endpoint)))),
        }
    }
}

impl Issuer {
    /// Asks about a token, once for all who need the answer. `remember` gets it before they do.
    ///
    /// # Errors
    /// [`TokenError::Unavailable`] where there is no answer.
    pub(super) async fn introspect(
        self: &Arc<Self>,
        token: &str,
        remember: impl Fn(Arc<CachedToken>) + Send + Sync + 'static,
    ) -> Result<Arc<CachedToken>, TokenError> {
        let mut answer = self.ask_once(token, remember)?;
        // A task that ended without an answer panicked, or its runtime stopped.
        let answered = answer.wait_for(Option::is_some).await.map_err(|_| TokenError::Unavailable)?;
        answered.clone().unwrap_or(Err(TokenError::Unavailable))
    }

    /// Joins the question about a token, or starts it in a task of its own.
    fn ask_once(
        self: &Arc<Self>,
        token: &str,
        remember: impl Fn(Arc<CachedToken>) + Send + Sync + 'static,
    ) -> Result<watch::Receiver<IntrospectionAnswer>, TokenError> {
        let mut pending = self.introspection.pending.lock();
        let bytes = SecretBytes::new(token.as_bytes());
        if let Some(answer) = pending.get(&bytes).filter(|answer| answer.has_changed().is_ok()) {
            return Ok(answer.clone());
        }
        if pending.len() >= MAX_PENDING {
            // Questions whose runtime stopped are never answered.
            pending.retain(|_, answer| answer.has_changed().is_ok());
        }
        if pending.len() >= MAX_PENDING {
            return Err(TokenError::Unavailable);
        }
        let (sender, receiver) = watch::channel(None);
        pending.insert(bytes.clone(), receiver.clone());
        drop(pending);
        let (issuer, token) = (Arc::clone(self), Zeroizing::new(token.to_owned()));
        tokio::spawn(async move {
            let asked = tokio::time::timeout(TIMEOUT, issuer.ask(&token)).await;
            let asked = asked.unwrap_or_else(|_| Err(format!("there was no answer within {TIMEOUT:?}")));
            let counters = &issuer.counters;
            let answer = match asked {
                Ok(finding) => {
                    counters.introspections.fetch_add(1, Ordering::Relaxed);
                    issuer.introspection.is_failing.store(false, Ordering::Relaxed);
                    let found = CachedToken::new(&token, &issuer, finding);
                    remember(Arc::clone(&found));
                    Ok(found)
                }
                Err(why) => {
                    counters.failed_introspections.fetch_add(1, Ordering::Relaxed);
                    if !issuer.introspection.is_failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!(issuer = &**issuer.name(), why = %redact(&why), "tokens cannot be introspected");
                    }
                    Err(TokenError::Unavailable)
                }
            };
            sender.send_replace(Some(answer));
            issuer.introspection.pending.lock().remove(&bytes);
        });
        Ok(receiver)
    }

    async fn ask(self: &Arc<Self>, token: &str) -> Result<TokenFinding, String> {
        let endpoint = || self.usable_metadata().and_then(|metadata| metadata.introspection_endpoint);
        let endpoint = match endpoint() {
            Some(endpoint) => endpoint,
            None => {
                self.demand().await;
                endpoint().ok_or("the introspection endpoint is not known")?
            }
        };
        let settings = &self.settings;
        let credentials = match (&settings.client_id, &settings.client_secret) {
            (Some(id), Some(secret)) => basic_credentials(id, secret).ok_or("the client credentials are no header")?,
            _ => return Err("there are no client credentials".to_owned()),
        };
        let form = introspection_form(token);
        let _permit = self.introspection.permits.acquire().await.map_err(|_| "no questions are asked any more")?;
        let asked_at = self.clock.now();
        let answer = fetch::post_form(&self.introspection.client(&endpoint), &form, &credentials).await?;
        Ok(match self.read_answer(answer)? {
            Some(verified) => TokenFinding::Active(verified, asked_at),
            None => TokenFinding::Inactive(asked_at),
        })
    }

    /// What the answer says of the holder; `None` for a token that is not active or not this issuer's.
    fn read_answer(&self, answer: Map<String, Value>) -> Result<Option<VerifiedToken>, String> {
        match answer.get("active") {
            Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) => return Ok(None),
            _ => return Err("the answer does not say whether the token is active".to_owned()),
        }
        if answer.get("iss").is_some_and(|issuer| issuer != self.settings.issuer.as_str()) {
            return Ok(None);
        }
        let credential = Credential::Opaque(Arc::clone(self.name()));
        Ok(VerifiedToken::read(&self.settings, answer, credential, &self.warned_of_roles).ok())
    }
}

fn introspection_form(token: &str) -> Zeroizing<String> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    Zeroizing::new(form.append_pair("token", token).append_pair("token_type_hint", "access_token").finish())
}

/// Client credentials for Basic authentication, form-encoded first as RFC 6749 §2.3.1 asks for.
fn basic_credentials(id: &str, secret: &str) -> Option<HeaderValue> {
    let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let pair = Zeroizing::new(format!("{}:{}", encode(id), encode(secret)));
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair.as_bytes()))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_credentials_are_form_encoded() {
        let value = basic_credentials("a b", "s:é").unwrap();
        assert_eq!(value, format!("Basic {}", STANDARD.encode("a+b:s%3A%C3%A9")).as_str());
        assert!(value.is_sensitive());
    }
}
