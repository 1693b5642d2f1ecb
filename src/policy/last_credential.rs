//! The credential that a connection showed last, so that a client that goes on with it is known by a comparison.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::identity::Identity;
use crate::issuers::{KnownToken, SecretBytes};

/// The credential that was accepted last on one connection. It is overwritten by the next one, and when the connection ends.
#[derive(Debug, Default)]
pub struct LastCredential(Mutex<Option<AcceptedCredential>>);

#[derive(Debug)]
struct AcceptedCredential {
    /// The rules that accepted it. Others have to judge it themselves.
    rules: RulesNumber,
    /// The value of `Authorization`.
    value: SecretBytes,
    holder: CredentialHolder,
}

/// Whose a credential is.
#[derive(Debug, Clone)]
pub(super) enum CredentialHolder {
    /// The holder of a key or a static token, until it expires.
    Secret(Arc<Identity>),
    /// The holder of a token, while its issuer stands by it.
    Token(KnownToken),
}

/// Unique number of the rules of one configuration: every default is a new one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RulesNumber(u64);

static NEXT_RULES: AtomicU64 = AtomicU64::new(1);

impl LastCredential {
    /// What `accept` says of whoever was accepted with this value by these rules; `None` for another value.
    pub(super) fn recall<T>(
        &self,
        rules: RulesNumber,
        value: &[u8],
        accept: impl FnOnce(&CredentialHolder) -> Option<T>,
    ) -> Option<T> {
        let last = self.0.lock();
        let last = last.as_ref().filter(|last| last.rules == rules && last.value.is(value))?;
        accept(&last.holder)
    }

    /// Remembers a value that these rules have accepted.
    pub(super) fn remember(&self, rules: RulesNumber, value: &[u8], holder: CredentialHolder) {
        *self.0.lock() = Some(AcceptedCredential { rules, value: SecretBytes::new(value), holder });
    }
}

impl fmt::Debug for RulesNumber {
    /// Without the number: equal settings look the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RulesNumber")
    }
}

impl Default for RulesNumber {
    fn default() -> Self {
        Self(NEXT_RULES.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whether a credential has not ended.
pub(super) fn is_current(identity: &Identity) -> bool {
    identity.expires_at.is_none_or(|end| SystemTime::now() < end)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Uri;

    use super::*;
    use crate::http::codec::HeaderFields;
    use crate::identity::Credential;
    use crate::issuers::TokenError;
    use crate::policy::{
        ApiKeySpec, ApiKeys, CredentialError, CredentialRequest, GeneratedKey, Identified, Policy, RequestSource,
        Tokens,
    };

    /// Who shows this at an address of a group, on a connection that showed `last` before.
    fn identify(policy: &Policy, group: &str, value: &str, last: &LastCredential) -> Result<String, CredentialError> {
        let (uri, headers) = (Uri::from_static("/mcp"), HeaderFields::of(&[("authorization", value)]));
        let source = RequestSource::Stranger;
        let request = CredentialRequest {
            uri: &uri,
            headers: &headers,
            source,
            group,
            certificate: None,
            served_port: None,
            last,
        };
        policy.identify(&request).map(|identified| match identified {
            Identified::Caller(identity) => format!("{} {:?}", identity.principal, identity.roles),
            Identified::Unvalidated(token) => format!("unvalidated {token}"),
        })
    }

    fn keys(made: &GeneratedKey, role: &str, expires: Option<SystemTime>) -> Policy {
        let spec = ApiKeySpec {
            name: "ci".into(),
            hashes: vec![made.hash],
            roles: vec![role.into()],
            groups: Some(vec!["default".into()]),
            expires,
        };
        Policy { keys: ApiKeys::new([spec]), ..Policy::default() }
    }

    #[test]
    fn a_remembered_credential_is_judged_by_the_rules_of_now() {
        const UNVERIFIABLE: Result<String, CredentialError> = Err(CredentialError::Token(TokenError::Unverifiable));
        let (made, last) = (GeneratedKey::random().unwrap(), LastCredential::default());
        let value = format!("Bearer {}", made.key);
        let before = keys(&made, "dev", None);
        for _ in 0..2 {
            assert_eq!(identify(&before, "default", &value, &last).unwrap(), "key|ci [\"dev\"]");
        }
        assert_eq!(identify(&before, "other", &value, &last), Err(CredentialError::Group));
        let shorter = &value[..value.len() - 1];
        for wrong in [shorter, &format!("{shorter}!"), &format!("{shorter}~")] {
            assert!(identify(&before, "default", wrong, &last).is_err(), "{wrong}");
            assert_eq!(identify(&before, "default", &value, &last).unwrap(), "key|ci [\"dev\"]");
        }
        // The next request after a reload has other roles, or none at all.
        assert_eq!(identify(&keys(&made, "ops", None), "default", &value, &last).unwrap(), "key|ci [\"ops\"]");
        let tokens = Tokens::parse(&["bob=s3cret".into()]).unwrap();
        let after = Policy { tokens, ..Policy::default() };
        assert_eq!(identify(&after, "default", &value, &last), UNVERIFIABLE);
        assert_eq!(identify(&after, "default", "Bearer s3cret", &last).unwrap(), "token|bob []");
        assert_eq!(identify(&before, "default", "Bearer s3cret", &last), UNVERIFIABLE);
    }

    #[test]
    fn a_remembered_key_ends_when_it_expires() {
        let (made, last) = (GeneratedKey::random().unwrap(), LastCredential::default());
        let value = format!("Bearer {}", made.key);
        let policy = keys(&made, "dev", Some(SystemTime::now() - Duration::from_secs(1)));
        let mut identity = Identity::new("key|ci", Credential::Key("ci".into()));
        last.remember(policy.number, value.as_bytes(), CredentialHolder::Secret(identity.clone().into()));
        assert_eq!(
            identify(&policy, "default", &value, &last).unwrap(),
            "key|ci []",
            "without an end it is remembered"
        );
        identity.expires_at = Some(SystemTime::now() - Duration::from_secs(1));
        last.remember(policy.number, value.as_bytes(), CredentialHolder::Secret(identity.into()));
        assert!(identify(&policy, "default", &value, &last).is_err());
    }
}
