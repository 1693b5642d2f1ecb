//! What a reload, or the end of a key's lifetime, takes away from callers.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::identity::{Credential, Identity};

/// Credentials that are no longer accepted, or no longer with the same rights.
#[derive(Debug, Default)]
pub struct Revoked {
    /// Cancelled to end the streams that were opened with them.
    pub(super) signals: Vec<CancellationToken>,
    /// Those that nobody has any more.
    pub(super) credentials: Vec<Credential>,
    /// Issuers whose tokens are no longer accepted.
    pub(super) issuers: Vec<String>,
    /// Keys that sign no more tokens: the issuer's URL and the digest of the key.
    pub(super) signing_keys: Vec<(String, Arc<str>)>,
    /// Those with other rights than before, as they are now.
    pub(super) changed: Vec<Arc<Identity>>,
}

impl Revoked {
    /// Whether nothing was revoked.
    pub fn is_empty(&self) -> bool {
        self.signals.is_empty()
            && self.credentials.is_empty()
            && self.issuers.is_empty()
            && self.signing_keys.is_empty()
            && self.changed.is_empty()
    }

    /// Ends the streams that were opened with these credentials.
    pub fn cancel(&self) {
        self.signals.iter().for_each(CancellationToken::cancel);
    }

    /// Whether this ends what a caller has in a group: the credential is gone, or has lost the group or a role.
    pub fn ends(&self, identity: &Identity, group: &str) -> bool {
        let has_lost = |now: &Arc<Identity>| {
            now.credential == identity.credential
                && (!now.may_use_group(group) || identity.roles.iter().any(|role| !now.roles.contains(role)))
        };
        let is_signed_by = |(issuer, key): &(String, Arc<str>)| {
            identity.signing_key.as_ref() == Some(key) && is_issued_by(identity, issuer)
        };
        self.credentials.contains(&identity.credential)
            || self.signing_keys.iter().any(is_signed_by)
            || self.issuers.iter().any(|issuer| is_issued_by(identity, issuer))
            || self.changed.iter().any(has_lost)
    }
}

/// Whether the caller's token is of this issuer, whose URL begins the principal.
pub(super) fn is_issued_by(identity: &Identity, issuer: &str) -> bool {
    matches!(identity.credential, Credential::Jwt(_) | Credential::Opaque(_))
        && identity.principal.strip_prefix(issuer).is_some_and(|rest| rest.starts_with('|'))
}
