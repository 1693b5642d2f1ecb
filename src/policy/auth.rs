//! Authentication with static bearer tokens, each of which names a principal.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use super::Denied;
use crate::call::Principal;

/// The accepted bearer tokens. With none configured, every caller is the same anonymous principal.
#[derive(Clone)]
pub struct Tokens {
    accepted: Vec<AcceptedToken>,
    anonymous: Principal,
    /// Cancelled when tokens are needed and were not before.
    anonymous_revoked: CancellationToken,
}

#[derive(Clone)]
struct AcceptedToken {
    principal: Principal,
    token: Arc<str>,
    /// Cancelled when the token is no longer accepted.
    revoked: CancellationToken,
}

/// Callers whose token is no longer accepted.
#[derive(Debug)]
pub struct RevokedCallers(Vec<(Principal, CancellationToken)>);

impl RevokedCallers {
    /// Ends what waits for the revocation of these callers.
    pub fn cancel(&self) {
        self.0.iter().for_each(|(_, revoked)| revoked.cancel());
    }

    /// Whether this principal is one of them.
    pub fn contains(&self, principal: &Principal) -> bool {
        self.0.iter().any(|(revoked, _)| revoked == principal)
    }
}

/// Principal of all callers when no tokens are configured.
const ANONYMOUS_PRINCIPAL: &str = "anybody";

/// Whether a principal stands for callers that nobody knows.
pub(super) fn is_anonymous(principal: &Principal) -> bool {
    **principal == *ANONYMOUS_PRINCIPAL
}

impl Tokens {
    /// Accepts these `(principal, token)` pairs.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let accepted = pairs.into_iter().map(|(name, token)| AcceptedToken::new(&name, &token)).collect();
        Self { accepted, ..Self::default() }
    }

    /// Parses `principal=token` pairs.
    ///
    /// # Errors
    /// When one of them is not such a pair; the token is not echoed.
    pub fn parse(pairs: &[String]) -> Result<Self, String> {
        let read = |pair: &String| match pair.split_once('=') {
            Some((name, token)) if !name.is_empty() && !token.is_empty() => Ok(AcceptedToken::new(name, token)),
            _ => Err("a token is given as NAME=TOKEN, neither of them empty".to_owned()),
        };
        let accepted = pairs.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self { accepted, ..Self::default() })
    }

    /// The principal whose token is in `Authorization`.
    pub(super) fn principal(&self, headers: &HeaderMap) -> Result<Principal, Denied> {
        if self.accepted.is_empty() {
            return Ok(Arc::clone(&self.anonymous));
        }
        let given = bearer_token(headers).ok_or(Denied::Credentials)?;
        // Compare against every token in full: the time taken must not reveal which token matched or how far.
        let mut found = None;
        for AcceptedToken { principal, token, .. } in &self.accepted {
            if bool::from(token.as_bytes().ct_eq(given)) {
                found = Some(principal);
            }
        }
        found.cloned().ok_or(Denied::Credentials)
    }

    /// Takes over from the tokens accepted before: a caller whose token is the same goes on, the others are returned.
    pub fn succeed(&mut self, before: &Self) -> RevokedCallers {
        let mut revoked = Vec::new();
        for old in &before.accepted {
            match self.accepted.iter_mut().find(|new| new.principal == old.principal && new.token == old.token) {
                Some(new) => new.revoked = old.revoked.clone(),
                None => revoked.push((Arc::clone(&old.principal), old.revoked.clone())),
            }
        }
        match (before.accepted.is_empty(), self.accepted.is_empty()) {
            (true, true) => self.anonymous_revoked = before.anonymous_revoked.clone(),
            (true, false) => revoked.push((Arc::clone(&before.anonymous), before.anonymous_revoked.clone())),
            (false, _) => {}
        }
        RevokedCallers(revoked)
    }

    /// Cancelled when the caller's token is revoked; `None` for a principal without one, as other nodes relay them.
    pub fn revocation(&self, principal: &Principal) -> Option<CancellationToken> {
        if self.accepted.is_empty() {
            return Some(self.anonymous_revoked.clone());
        }
        self.accepted.iter().find(|accepted| accepted.principal == *principal).map(|accepted| accepted.revoked.clone())
    }
}

impl AcceptedToken {
    fn new(principal: &str, token: &str) -> Self {
        Self { principal: principal.into(), token: token.into(), revoked: CancellationToken::new() }
    }
}

/// The token in `Authorization: Bearer`.
pub(super) fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    match headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => Some(token.trim_ascii()),
        _ => None,
    }
}

impl Default for Tokens {
    fn default() -> Self {
        Self {
            accepted: Vec::new(),
            anonymous: ANONYMOUS_PRINCIPAL.into(),
            anonymous_revoked: CancellationToken::new(),
        }
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.accepted.iter().map(|accepted| &accepted.principal)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_token_selects_the_principal() {
        let tokens = Tokens::parse(&["ann=s3cret".into(), "bob=other=1".into()]).unwrap();
        let principal = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            tokens.principal(&headers)
        };
        assert_eq!(principal("Bearer s3cret").unwrap().as_ref(), "ann");
        assert_eq!(principal("bearer  other=1").unwrap().as_ref(), "bob");
        for bad in ["Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret"] {
            assert_eq!(principal(bad), Err(Denied::Credentials), "{bad}");
        }
        assert_eq!(tokens.principal(&HeaderMap::new()), Err(Denied::Credentials));
        assert_eq!(format!("{tokens:?}"), r#"["ann", "bob"]"#);
        assert!(Tokens::parse(&["x".into()]).is_err());
    }

    #[test]
    fn only_callers_whose_token_changed_are_revoked() {
        let tokens = |pairs: &[&str]| Tokens::parse(&pairs.iter().map(|pair| (*pair).to_owned()).collect::<Vec<_>>());
        let before = tokens(&["ann=1", "bob=2", "eve=3"]).unwrap();
        let ended = |name: &str| before.revocation(&name.into()).unwrap().is_cancelled();
        let mut after = tokens(&["eve=3", "bob=changed"]).unwrap();
        let revoked = after.succeed(&before);
        revoked.cancel();
        for (name, is_revoked) in [("ann", true), ("bob", true), ("eve", false)] {
            assert_eq!((ended(name), revoked.contains(&name.into())), (is_revoked, is_revoked), "{name}");
        }
        assert!(!after.revocation(&"bob".into()).unwrap().is_cancelled());
        assert!(after.revocation(&"ann".into()).is_none());

        let open = Tokens::default();
        let revoked = after.succeed(&open);
        assert!(revoked.contains(&ANONYMOUS_PRINCIPAL.into()), "tokens are needed from now on");
        assert!(Tokens::default().succeed(&open).0.is_empty());
    }
}
