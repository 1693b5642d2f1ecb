//! Static bearer tokens, each of which names a caller.

use std::fmt;
use std::sync::Arc;

use super::revocation::Revoked;
use super::secret_digest::{AcceptedSecret, SecretDigest, succeed};
use crate::identity::{Credential, Identity};

/// The static tokens. Only their digests are kept.
#[derive(Clone, Default)]
pub struct Tokens {
    pub(super) accepted: Vec<AcceptedSecret>,
    /// Lengths of the tokens: a value of another length, such as a JWT, is not hashed.
    lengths: Vec<usize>,
}

impl Tokens {
    /// Accepts these `(name, token)` pairs.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let identity = |name: String| Identity::new(format!("token|{name}"), Credential::Token(name.into()));
        Self::of_identities(pairs.into_iter().map(|(name, token)| (identity(name), token)))
    }

    /// Accepts tokens of callers about whom more is known, for programs that embed the gateway.
    pub fn of_identities(pairs: impl IntoIterator<Item = (Identity, String)>) -> Self {
        let mut tokens = Self::default();
        for (identity, token) in pairs {
            tokens.accepted.push(AcceptedSecret::new(identity.into(), SecretDigest::of(token.as_bytes())));
            tokens.lengths.push(token.len());
        }
        tokens
    }

    /// Parses `name=token` pairs.
    ///
    /// # Errors
    /// When one of them is not such a pair; the token is not echoed.
    pub fn parse(pairs: &[String]) -> Result<Self, String> {
        let read = |pair: &String| match pair.split_once('=') {
            Some((name, token)) if !name.is_empty() && !token.is_empty() => Ok((name.to_owned(), token.to_owned())),
            _ => Err("a token is given as NAME=TOKEN, neither of them empty".to_owned()),
        };
        Ok(Self::new(pairs.iter().map(read).collect::<Result<Vec<_>, _>>()?))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.accepted.is_empty()
    }

    /// Whose token this is.
    pub(super) fn find(&self, given: &str) -> Option<&Arc<Identity>> {
        if !self.lengths.contains(&given.len()) {
            return None;
        }
        let digest = SecretDigest::of(given.as_bytes());
        // Compare against every digest in full: the time taken must not reveal which token matched or how far.
        let mut found = None;
        for secret in &self.accepted {
            if secret.digest.matches(&digest) {
                found = Some(&secret.identity);
            }
        }
        found
    }

    /// Takes over from the tokens accepted before.
    pub(super) fn succeed(&mut self, before: &Self, revoked: &mut Revoked) {
        succeed(&mut self.accepted, &before.accepted, revoked);
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.accepted.iter().map(|secret| &secret.identity.principal)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_caller() {
        let tokens = Tokens::parse(&["ann=s3cret".into(), "bob=other=".into()]).unwrap();
        let principal = |given: &str| tokens.find(given).map(|identity| identity.principal.to_string());
        assert_eq!(principal("s3cret").as_deref(), Some("token|ann"));
        assert_eq!(principal("other=").as_deref(), Some("token|bob"));
        for wrong in ["", "s3cre", "s3crets", "S3cret", "other-"] {
            assert_eq!(principal(wrong), None, "{wrong}");
        }
        assert_eq!(format!("{tokens:?}"), r#"["token|ann", "token|bob"]"#);
        assert!(Tokens::parse(&["x".into()]).is_err());
    }
}
