//! Authentication with static bearer tokens, each of which names a principal.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

use super::Denied;
use crate::call::Principal;

/// The accepted bearer tokens. With none configured, every caller is the same anonymous principal.
#[derive(Clone)]
pub struct Tokens {
    accepted: Vec<(Principal, Arc<str>)>,
    anonymous: Principal,
}

/// Principal of all callers when no tokens are configured.
const ANONYMOUS_PRINCIPAL: &str = "anybody";

impl Tokens {
    /// Accepts these `(principal, token)` pairs.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let accepted = pairs.into_iter().map(|(name, token)| (name.into(), token.into())).collect();
        Self { accepted, ..Self::default() }
    }

    /// Parses `principal=token` pairs.
    ///
    /// # Errors
    /// When one of them is not such a pair; the token is not echoed.
    pub fn parse(pairs: &[String]) -> Result<Self, String> {
        let read = |pair: &String| match pair.split_once('=') {
            Some((name, token)) if !name.is_empty() && !token.is_empty() => Ok((name.into(), token.into())),
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
        for (principal, token) in &self.accepted {
            if bool::from(token.as_bytes().ct_eq(given)) {
                found = Some(principal);
            }
        }
        found.cloned().ok_or(Denied::Credentials)
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
        Self { accepted: Vec::new(), anonymous: ANONYMOUS_PRINCIPAL.into() }
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.accepted.iter().map(|(principal, _)| principal)).finish()
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
}
