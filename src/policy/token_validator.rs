//! What validates the tokens of issuers: signed ones (JWT) and opaque ones.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use super::audience::Audience;
use crate::identity::Identity;
use crate::issuers::{AudienceCheck, Issuers, KnownToken, TokenError};

/// The result of a validation that may have to ask the issuer.
pub type TokenValidation<'v> = Pin<Box<dyn Future<Output = Result<Arc<Identity>, TokenError>> + Send + 'v>>;

/// Validates the tokens of issuers. A trait, because tests of admission need an issuer that is away, or counts what it is asked,
/// at a moment that they choose.
pub trait TokenValidator: fmt::Debug + Send + Sync {
    /// Whether an issuer has tokens that are not JWTs.
    fn has_opaque(&self) -> bool;

    /// The URLs of the issuers as they spell themselves, the preferred one first.
    fn urls(&self) -> Vec<String>;

    /// The result for a token that was validated before; `None` where [`Self::validate`] has to be awaited. `is_asked` says
    /// whether an audience is an address that the request was sent to.
    fn cached(&self, token: &str, is_asked: &AudienceCheck<'_>) -> Option<Result<Arc<Identity>, TokenError>>;

    /// A token that was validated before, for [`Self::accept_known`]. `None` where nothing can be remembered of it.
    fn known(&self, _token: &str) -> Option<KnownToken> {
        None
    }

    /// The result for a token that [`Self::known`] gave, as [`Self::cached`] would have it.
    fn accept_known(&self, _: &KnownToken, _: &AudienceCheck<'_>) -> Option<Result<Arc<Identity>, TokenError>> {
        None
    }

    /// Validates a token.
    fn validate<'v>(&'v self, token: &'v str, audience: &'v Audience<'v>) -> TokenValidation<'v>;

    /// The metadata document of the first issuer as it was received; `None` while there is none.
    fn metadata(&self) -> Option<bytes::Bytes>;

    /// Takes the keys that issuers have withdrawn since they were last taken: the URL of the issuer and the digest.
    fn take_withdrawn_keys(&self) -> Vec<(String, Arc<str>)> {
        Vec::new()
    }
}

/// What validates the tokens of issuers, shared by the rules of several reloads.
pub type SharedTokenValidator = Arc<dyn TokenValidator>;

impl TokenValidator for Issuers {
    fn has_opaque(&self) -> bool {
        Self::has_opaque(self)
    }

    fn urls(&self) -> Vec<String> {
        Self::urls(self).into_iter().map(str::to_owned).collect()
    }

    fn cached(&self, token: &str, is_asked: &AudienceCheck<'_>) -> Option<Result<Arc<Identity>, TokenError>> {
        Self::cached(self, token, is_asked)
    }

    fn known(&self, token: &str) -> Option<KnownToken> {
        Self::known(self, token)
    }

    fn accept_known(
        &self,
        known: &KnownToken,
        is_asked: &AudienceCheck<'_>,
    ) -> Option<Result<Arc<Identity>, TokenError>> {
        Self::accept_known(self, known, is_asked)
    }

    fn validate<'v>(&'v self, token: &'v str, audience: &'v Audience<'v>) -> TokenValidation<'v> {
        Box::pin(async move { Self::validate(self, token, &|asked: &str| audience.accepts(asked)).await })
    }

    fn metadata(&self) -> Option<bytes::Bytes> {
        self.first_metadata()
    }

    fn take_withdrawn_keys(&self) -> Vec<(String, Arc<str>)> {
        Self::take_withdrawn_keys(self)
    }
}
