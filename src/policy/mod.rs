//! Admission decisions: host and origin, who calls, operators, limits and quotas. Pure: no sockets, no status codes.

mod api_keys;
mod audience;
mod caller_quota;
mod console_access;
mod credentials;
mod failed_credentials;
mod host_origin;
mod last_credential;
mod limits;
mod operators;
mod public_url;
mod quota;
mod quotas;
mod rate_limits;
mod revocation;
pub mod rules;
mod secret_digest;
mod static_tokens;
mod token_validator;
mod trusted_proxies;

use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::call::{Caller, REQUEST_ID, TRACE_HEADERS};

use crate::http::codec::HeaderFields;
use crate::identity::Identity;
pub use api_keys::{ApiKeySpec, ApiKeys, GeneratedKey, KEY_PREFIX};
pub use audience::{Audience, BaseAudience};
pub use caller_quota::{CallerPermit, CallerQuota, QuotaKey};
pub use console_access::{
    ConsoleAccess, ConsoleKey, ConsolePlace, Operator, OperatorPrincipals, OperatorRight, OperatorTokens,
    presented_token,
};
pub use credentials::{CarriedState, CredentialError, CredentialRequest, Identified, MalformedCredential, is_token68};
pub use failed_credentials::FailedCredentials;
pub use host_origin::HostOriginRules;
pub use last_credential::{LastCredential, RulesNumber};
pub use limits::Limits;
pub use operators::{AdminToken, OperationsListener};
pub use public_url::PublicUrl;
pub use quota::{Permit, Quota, ScopedPermit};
pub use quotas::{QuotaLimits, QuotaUsage, Quotas};
pub use rate_limits::{
    AdmittedShare, CallQuota, CalledTarget, LimitExceeded, LimitExcess, LimitMeasure, LimitRule, LimitScope,
    LimitUsage, LimitedRequest, NotAdmitted, QuotaWindow, Rate, RateLimits, RatePermit, SharedLimitsUsage,
};
pub use revocation::Revoked;
pub use secret_digest::SecretDigest;
pub use static_tokens::Tokens;
pub use token_validator::{SharedTokenValidator, TokenValidation, TokenValidator};
pub use trusted_proxies::{RequestSource, TrustedProxies};

/// The rules that a request must pass before its body is read.
#[derive(Debug)]
pub struct Policy {
    /// Tells these rules from those before a reload.
    pub number: RulesNumber,
    /// Allowed hosts and origins.
    pub host_origin: HostOriginRules,
    /// The URL that clients know the gateway by.
    pub public_url: Option<PublicUrl>,
    /// Proxies whose word about the client counts.
    pub trusted_proxies: TrustedProxies,
    /// Static bearer tokens.
    pub tokens: Tokens,
    /// API keys.
    pub keys: ApiKeys,
    /// What validates the tokens of issuers; `None` without an issuer.
    pub issuers: Option<SharedTokenValidator>,
    /// Whether requests without a credential are admitted though there are credentials.
    pub allow_anonymous: bool,
    /// Whether tokens for the gateway as a whole are accepted for each of its groups.
    pub accept_origin_audience: bool,
    /// Whether the metadata of the first issuer is shown where clients of 2025-03-26 look for it.
    pub legacy_metadata: bool,
    /// Scopes that clients are told to ask for.
    pub scopes: Vec<String>,
    /// What a reload carries over from the rules before.
    pub carried: CarriedState,
    /// Token of operators.
    pub admin_token: AdminToken,
    /// Who may use the console.
    pub console: ConsoleAccess,
    /// Request headers that are forwarded to upstreams along with the caller.
    pub forward_headers: Vec<HeaderName>,
}

/// Trace headers, forwarded with every call; only their first value.
static ALWAYS_FORWARDED: [HeaderName; 3] = [
    HeaderName::from_static(TRACE_HEADERS[0]),
    HeaderName::from_static(TRACE_HEADERS[1]),
    HeaderName::from_static(TRACE_HEADERS[2]),
];

/// Why a request was not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// This `Host` is not allowed.
    Host(String),
    /// This `Origin` is not allowed.
    Origin(String),
}

impl Policy {
    /// Builds a caller with those request headers that are forwarded.
    pub fn caller(
        &self,
        identity: Arc<Identity>,
        headers: &HeaderFields,
        request_id: Option<HeaderValue>,
        peer: Option<SocketAddr>,
    ) -> Caller {
        let mut forwarded = HeaderMap::new();
        let mut forward = |name: &HeaderName, max_values: usize| {
            for value in headers.get_all(name).take(max_values) {
                if let Ok(value) = HeaderValue::from_bytes(value) {
                    forwarded.append(name, value);
                }
            }
        };
        let is_configured = |name: &HeaderName| self.forward_headers.contains(name);
        ALWAYS_FORWARDED.iter().filter(|name| !is_configured(name)).for_each(|name| forward(name, 1));
        self.forward_headers.iter().filter(|name| **name != REQUEST_ID).for_each(|name| forward(name, usize::MAX));
        Caller { identity, peer, request_id, headers: forwarded, access: None, relay_span: None }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            number: RulesNumber::default(),
            host_origin: HostOriginRules::default(),
            public_url: None,
            trusted_proxies: TrustedProxies::default(),
            tokens: Tokens::default(),
            keys: ApiKeys::default(),
            issuers: None,
            allow_anonymous: false,
            accept_origin_audience: true,
            legacy_metadata: false,
            scopes: Vec::new(),
            carried: CarriedState::default(),
            admin_token: AdminToken::default(),
            console: ConsoleAccess::default(),
            forward_headers: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_configured_headers_are_forwarded_with_the_caller() {
        let policy = Policy { forward_headers: vec![HeaderName::from_static("x-tenant")], ..Policy::default() };
        let headers = HeaderFields::of(&[
            ("host", "localhost"),
            ("x-tenant", "a"),
            ("x-tenant", "b"),
            ("cookie", "secret"),
            ("traceparent", "one"),
            ("traceparent", "two"),
        ]);
        let peer: SocketAddr = "127.0.0.1:5".parse().unwrap();
        let caller = policy.caller(Identity::anonymous().into(), &headers, None, Some(peer));
        assert_eq!((caller.id().as_ref(), caller.peer), ("anonymous", Some(peer)));
        assert_eq!(caller.headers.get_all("x-tenant").iter().count(), 2);
        assert_eq!(caller.headers.get_all("traceparent").iter().collect::<Vec<_>>(), ["one"]);
        assert_eq!(caller.headers.len(), 3, "and no others");
    }
}
