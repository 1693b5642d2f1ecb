//! Tokens of authorization servers: who holds one, and whether it counts.
//!
//! [`Issuers`] validates signed tokens (JWT) by the keys that their issuer publishes, and opaque ones by asking it. What
//! was validated is remembered, so that a call with a known token costs a look-up. Which address a token has to be for is
//! decided by whoever asks.

mod algorithm;
mod audience;
mod cache;
mod claims;
mod clock;
mod counters;
mod fetch;
mod introspection;
mod issuer;
mod json;
mod jwk;
mod jwt;
mod metadata;
mod secret_bytes;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use algorithm::SigningAlgorithm;
pub use audience::AudienceUrl;
pub use claims::AudienceCheck;
pub use clock::IssuerClock;
pub use counters::IssuerFigures;
pub use secret_bytes::SecretBytes;
pub use settings::{
    AudienceClaim, DEFAULT_LEEWAY, DEFAULT_NAME_CLAIM, IssuerSettings, KeySource, MAX_LEEWAY, TokenFormat,
};

use crate::identity::{Credential, Identity};
use crate::metrics::MetricsReading;
use cache::{CachedToken, TokenCache, TokenFinding};
use claims::VerifiedToken;
use issuer::Issuer;
use jwt::{MAX_TOKEN_BYTES, UnverifiedToken, has_jwt_form};

/// Most tokens that are remembered as valid.
const MAX_CACHED_TOKENS: usize = 10_000;
/// Most tokens that are remembered as inactive, apart from the valid ones, which strangers cannot crowd out so.
const MAX_INACTIVE_TOKENS: usize = 1_000;
/// How long it counts that an issuer said that a token is active.
const ACTIVE_FOR: Duration = Duration::from_secs(30);
/// How long it counts that an issuer said that a token is not active.
const INACTIVE_FOR: Duration = Duration::from_secs(10);

/// The issuers whose tokens are accepted.
pub struct Issuers {
    issuers: Vec<Arc<Issuer>>,
    valid: Arc<TokenCache>,
    inactive: Arc<TokenCache>,
    clock: IssuerClock,
}

/// A token that was validated. Whether it still counts is to be asked at each use.
#[derive(Clone)]
pub struct KnownToken(Arc<CachedToken>);

/// Why a token is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenError {
    /// Nobody who is trusted vouches for it: signature, issuer, algorithm, type or form.
    Unverifiable,
    /// It was valid.
    Expired,
    /// It will be valid.
    NotYetValid,
    /// It is for somebody else.
    WrongAudience,
    /// Its issuer cannot be asked now, so nothing is known of it.
    Unavailable,
}

impl Issuers {
    /// Issuers by their settings. Nothing is fetched before [`Self::start`] or the first token.
    pub fn new(settings: Vec<IssuerSettings>) -> Self {
        Self::with_clock(settings, IssuerClock::default())
    }

    /// The same with a clock that can be set ahead.
    pub fn with_clock(settings: Vec<IssuerSettings>, clock: IssuerClock) -> Self {
        let valid = Arc::new(TokenCache::new(MAX_CACHED_TOKENS));
        let inactive = Arc::new(TokenCache::new(MAX_INACTIVE_TOKENS));
        let issuers: Vec<Arc<Issuer>> =
            settings.into_iter().map(|settings| Issuer::new(settings, clock.clone())).collect();
        issuers.iter().for_each(|issuer| issuer.use_cache(&valid));
        Self { issuers, valid, inactive, clock }
    }

    /// Takes over from the issuers of the configuration before: those that did not change keep their keys and what they
    /// verified; of the others nothing counts any more.
    pub fn succeed(&mut self, before: &Self) {
        (self.valid, self.inactive) = (Arc::clone(&before.valid), Arc::clone(&before.inactive));
        self.clock = before.clock.clone();
        for issuer in &mut self.issuers {
            let same = before.issuers.iter().find(|old| old.settings == issuer.settings);
            let namesake = before.issuers.iter().find(|old| old.name() == issuer.name());
            *issuer = match (same, namesake) {
                (Some(same), _) => {
                    same.read_file_again();
                    Arc::clone(same)
                }
                (None, namesake) => {
                    let fresh = Issuer::new(issuer.settings.clone(), self.clock.clone());
                    namesake.map_or_else(|| Arc::clone(&fresh), |old| Arc::clone(&fresh).with_counters(&old.counters))
                }
            };
            issuer.use_cache(&self.valid);
        }
        let is_kept = |old: &Arc<Issuer>| self.issuers.iter().any(|issuer| Arc::ptr_eq(issuer, old));
        before.issuers.iter().filter(|old| !is_kept(old)).for_each(|old| old.retire());
        for cache in [&self.valid, &self.inactive] {
            cache.retain(|token| is_kept(&token.issuer));
        }
    }

    /// Fetches keys and metadata from now on, in the background and on the current runtime. Without it that begins with
    /// the first token.
    pub fn start(&self) {
        self.issuers.iter().for_each(Issuer::start);
    }

    /// Whether there is no issuer.
    pub fn is_empty(&self) -> bool {
        self.issuers.is_empty()
    }

    /// Whether tokens that are no JWT can be validated: exactly one issuer has such.
    pub fn has_opaque(&self) -> bool {
        self.opaque_issuer().is_some()
    }

    /// The issuers as they spell themselves, the preferred one first.
    pub fn urls(&self) -> Vec<&str> {
        self.issuers.iter().map(|issuer| issuer.settings.issuer.as_str()).collect()
    }

    /// Takes the keys that issuers have withdrawn since they were last taken: the URL of the issuer and the digest.
    pub fn take_withdrawn_keys(&self) -> Vec<(String, Arc<str>)> {
        let keys_of = |issuer: &Arc<Issuer>| {
            let url = issuer.settings.issuer.clone();
            issuer.take_withdrawn().into_iter().map(move |key| (url.clone(), key))
        };
        self.issuers.iter().flat_map(keys_of).collect()
    }

    /// The metadata document of the first issuer; `None` while it was not fetched.
    pub fn first_metadata(&self) -> Option<bytes::Bytes> {
        self.issuers.first()?.usable_metadata().map(|metadata| metadata.document)
    }

    fn opaque_issuer(&self) -> Option<&Arc<Issuer>> {
        let mut opaque = self.issuers.iter().filter(|issuer| issuer.is_opaque());
        opaque.next().filter(|_| opaque.next().is_none())
    }

    /// The holder of a token that is known already, judged by the clock and by `is_asked`, which says whether a value of
    /// `aud` is an address that the request was sent to. `None` where the token has to be validated.
    pub fn cached(&self, token: &str, is_asked: &AudienceCheck<'_>) -> Option<Result<Arc<Identity>, TokenError>> {
        if let Some(accepted) = self.known(token).and_then(|known| self.accept_known(&known, is_asked)) {
            return Some(accepted);
        }
        // Only where somebody was asked about tokens there are inactive ones.
        let may_be_inactive = self.issuers.iter().any(|issuer| issuer.is_opaque());
        let is_inactive = || {
            let found = self.inactive.get(token)?;
            self.is_stood_by(&self.inactive, &found, self.clock.now()).then_some(())
        };
        (may_be_inactive && is_inactive().is_some()).then_some(Err(TokenError::Unverifiable))
    }

    /// A token that was validated before, for [`Self::accept_known`].
    pub fn known(&self, token: &str) -> Option<KnownToken> {
        self.valid.get(token).map(KnownToken)
    }

    /// The holder of a token, by the clock and by `is_asked`, as for [`Self::cached`]. `None` where its issuer no longer
    /// stands by it.
    pub fn accept_known(
        &self,
        KnownToken(known): &KnownToken,
        is_asked: &AudienceCheck<'_>,
    ) -> Option<Result<Arc<Identity>, TokenError>> {
        let now = self.clock.now();
        let (TokenFinding::Signed(verified, _) | TokenFinding::Active(verified, _)) = &known.finding else {
            return None;
        };
        if !self.is_stood_by(&self.valid, known, now) {
            return None;
        }
        if verified.has_ended(now) {
            self.valid.remove(known);
        }
        Some(verified.accept(now, is_asked))
    }

    /// Whether the issuer still stands by what was found of a token, which is forgotten if not.
    fn is_stood_by(&self, cache: &TokenCache, known: &CachedToken, now: SystemTime) -> bool {
        let stands = known.issuer.stands_by(&known.finding, now);
        if !stands {
            cache.remove(known);
        }
        stands
    }

    /// The holder of a token. `is_asked` is as for [`Self::cached`], which is asked first.
    ///
    /// # Errors
    /// Why the token is not accepted.
    pub async fn validate(&self, token: &str, is_asked: &AudienceCheck<'_>) -> Result<Arc<Identity>, TokenError> {
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Unverifiable);
        }
        if let Some(known) = self.cached(token, is_asked) {
            return known;
        }
        let (issuer, unverified) = self.select(token)?;
        let found = match unverified {
            Some(unverified) if !issuer.is_opaque() => self.verify(issuer, token, unverified).await,
            _ => self.introspect(issuer, token).await,
        };
        let accepted = found.and_then(|found| match &found.finding {
            TokenFinding::Signed(verified, _) | TokenFinding::Active(verified, _) => {
                verified.accept(self.clock.now(), is_asked)
            }
            TokenFinding::Inactive(_) => Err(TokenError::Unverifiable),
        });
        issuer.counters.count(accepted.as_ref().map(|_| ()).map_err(|error| *error));
        accepted
    }

    /// The one issuer that can validate a token, by its form and by the issuer that it names.
    fn select<'t>(&self, token: &'t str) -> Result<(&Arc<Issuer>, Option<UnverifiedToken<'t>>), TokenError> {
        if !has_jwt_form(token) {
            return self.opaque_issuer().map(|issuer| (issuer, None)).ok_or(TokenError::Unverifiable);
        }
        let unverified = UnverifiedToken::parse(token).ok_or(TokenError::Unverifiable)?;
        let named = unverified.issuer().ok_or(TokenError::Unverifiable)?;
        let issuer = self.issuers.iter().find(|issuer| issuer.settings.issuer == named);
        issuer.map(|issuer| (issuer, Some(unverified))).ok_or(TokenError::Unverifiable)
    }

    async fn verify(
        &self,
        issuer: &Arc<Issuer>,
        token: &str,
        unverified: UnverifiedToken<'_>,
    ) -> Result<Arc<CachedToken>, TokenError> {
        let key = issuer.verify(&unverified).await?;
        let credential = Credential::Jwt(Arc::clone(issuer.name()));
        let verified = VerifiedToken::read(&issuer.settings, unverified.claims, credential, &issuer.warned_of_roles)?;
        let verified = verified.with_signing_key(key.digest());
        let has_ended = verified.has_ended(self.clock.now());
        let found = CachedToken::new(token, issuer, TokenFinding::Signed(verified, key));
        if !has_ended && !issuer.is_retired() {
            self.valid.insert(Arc::clone(&found));
        }
        Ok(found)
    }

    async fn introspect(&self, issuer: &Arc<Issuer>, token: &str) -> Result<Arc<CachedToken>, TokenError> {
        let (valid, inactive) = (Arc::clone(&self.valid), Arc::clone(&self.inactive));
        let remember = move |found: Arc<CachedToken>| match &found.finding {
            _ if found.issuer.is_retired() => {}
            TokenFinding::Inactive(_) => inactive.insert(found),
            _ => valid.insert(found),
        };
        issuer.start();
        issuer.introspect(token, remember).await
    }

    /// What each issuer did since the start.
    pub fn figures(&self) -> Vec<IssuerFigures> {
        self.issuers.iter().map(|issuer| issuer.counters.read(issuer.name(), issuer.key_count())).collect()
    }

    /// The figures as metrics.
    pub fn readings(&self) -> Vec<MetricsReading> {
        counters::readings(&self.figures(), self.valid.len())
    }
}

impl TokenError {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::Unverifiable, Self::Expired, Self::NotYetValid, Self::WrongAudience, Self::Unavailable];

    /// The reason in one word, for metrics and the audit log.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unverifiable => "unverifiable",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::WrongAudience => "wrong_audience",
            Self::Unavailable => "unavailable",
        }
    }
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unverifiable => "the token cannot be verified",
            Self::Expired => "the token has expired",
            Self::NotYetValid => "the token is not valid yet",
            Self::WrongAudience => "the token is not for this address",
            Self::Unavailable => "tokens cannot be verified right now",
        })
    }
}

impl std::error::Error for TokenError {}

/// Not the token.
impl fmt::Debug for KnownToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KnownToken").field(self.0.issuer.name()).finish()
    }
}

impl fmt::Debug for Issuers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuers").field("urls", &self.urls()).field("cached", &self.valid.len()).finish_non_exhaustive()
    }
}
