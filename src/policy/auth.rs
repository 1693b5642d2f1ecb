//! Who calls: static bearer tokens, each with a name.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::Denied;
use crate::call::Principal;

/// The tokens that are taken. With none, everybody is the same caller.
#[derive(Clone)]
pub struct Tokens {
    known: Vec<(Principal, Arc<str>)>,
    anybody: Principal,
}

/// The name of callers where no tokens are asked for.
const ANYBODY: &str = "anybody";

impl Tokens {
    /// Tokens with the names of their callers.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let known = pairs.into_iter().map(|(name, token)| (name.into(), token.into())).collect();
        Self { known, ..Self::default() }
    }

    /// Reads `name=token` pairs.
    ///
    /// # Errors
    /// A sentence about the first that is not such a pair.
    pub fn parse(pairs: &[String]) -> Result<Self, String> {
        let read = |pair: &String| match pair.split_once('=') {
            Some((name, token)) if !name.is_empty() && !token.is_empty() => Ok((name.into(), token.into())),
            _ => Err("a token is given as NAME=TOKEN, neither of them empty".to_owned()),
        };
        let known = pairs.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self { known, ..Self::default() })
    }

    /// Who sends these headers.
    pub(super) fn principal(&self, headers: &HeaderMap) -> Result<Principal, Denied> {
        if self.known.is_empty() {
            return Ok(Arc::clone(&self.anybody));
        }
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let given = given.and_then(|value| match value.split_at_checked(7) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => Some(token.trim_ascii()),
            _ => None,
        });
        let given = given.ok_or(Denied::Credentials)?;
        // Every token is compared in full, so that the time tells nothing of any.
        let mut found = None;
        for (principal, token) in &self.known {
            if same(token.as_bytes(), given) {
                found = Some(principal);
            }
        }
        found.cloned().ok_or(Denied::Credentials)
    }
}

fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |all, (x, y)| all | (x ^ y));
    a.len() == b.len() && differences == 0
}

impl Default for Tokens {
    fn default() -> Self {
        Self { known: Vec::new(), anybody: ANYBODY.into() }
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.known.iter().map(|(principal, _)| principal)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_callers() {
        let tokens = Tokens::parse(&["ann=s3cret".into(), "bob=other=1".into()]).unwrap();
        let asked = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            tokens.principal(&headers)
        };
        assert_eq!(asked("Bearer s3cret").unwrap().as_ref(), "ann");
        assert_eq!(asked("bearer  other=1").unwrap().as_ref(), "bob");
        for bad in ["Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret"] {
            assert_eq!(asked(bad), Err(Denied::Credentials), "{bad}");
        }
        assert_eq!(tokens.principal(&HeaderMap::new()), Err(Denied::Credentials));
        assert_eq!(format!("{tokens:?}"), r#"["ann", "bob"]"#);
        assert!(Tokens::parse(&["x".into()]).is_err());
    }
}
