//! Who may use the console and the admin API, from where, and what they may do there.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use http::Uri;
use subtle::ConstantTimeEq;

use super::Policy;
use super::credentials::bearer_token;
use super::operators::{OperationsListener, is_local};
use super::rules::PrincipalPattern;
use super::secret_digest::SecretDigest;
use super::trusted_proxies::RequestSource;
use crate::http::codec::HeaderFields;
use crate::identity::Identity;

/// What an operator may do. Each right includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum OperatorRight {
    /// See everything but the content of messages.
    #[default]
    Look,
    /// See the content of messages.
    Bodies,
    /// Call tools, reconnect servers, end sessions.
    Act,
    /// Change the configuration file and run programs.
    Edit,
}

/// Somebody who uses the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// Name, for the log and the page.
    pub name: Arc<str>,
    /// What this operator may do.
    pub may: OperatorRight,
    /// Who it is, where a credential of the gateway's clients was shown.
    pub principal: Option<Arc<str>>,
}

/// Who may use the console.
#[derive(Clone)]
pub struct ConsoleAccess {
    /// Whether there is a console at all.
    pub enabled: bool,
    /// Whether the right to edit may be used.
    pub edit: bool,
    /// Operators with tokens of their own.
    pub tokens: OperatorTokens,
    /// Callers whose own credentials count, each with what they may do.
    pub principals: OperatorPrincipals,
}

/// Operators with tokens of their own. Only digests are kept.
#[derive(Clone, Default)]
pub struct OperatorTokens(Vec<(SecretDigest, Operator)>);

/// Callers whose own credentials open the console.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OperatorPrincipals(pub Vec<(OperatorRight, Vec<PrincipalPattern>)>);

/// The key of one start of the gateway, which opens its console on this machine. `Debug` does not show it.
#[derive(Clone)]
pub struct ConsoleKey(String);

/// Where a request for the console comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsolePlace {
    /// This machine, and no proxy on it.
    Local,
    /// Elsewhere. The key of this start does not count.
    Remote,
}

/// Name of the operator who has the key of this start.
const KEY_HOLDER: &str = "local";
/// Random bytes of a key.
const KEY_BYTES: usize = 16;

impl OperatorRight {
    /// Every right, from the least.
    pub const ALL: [Self; 4] = [Self::Look, Self::Bodies, Self::Act, Self::Edit];

    /// The word of the configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Bodies => "bodies",
            Self::Act => "act",
            Self::Edit => "edit",
        }
    }

    /// The right of that name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|right| right.as_str() == word)
    }
}

impl Operator {
    /// Whether it is the same one: issuers may give several principals one name.
    pub fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.principal == other.principal
    }
}

impl OperatorTokens {
    /// Accepts these tokens: name, token and right.
    pub fn new(tokens: impl IntoIterator<Item = (String, String, OperatorRight)>) -> Self {
        let entry = |(name, token, may): (String, String, OperatorRight)| {
            (SecretDigest::of(token.as_bytes()), Operator { name: name.into(), may, principal: None })
        };
        Self(tokens.into_iter().map(entry).collect())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, token: &[u8]) -> Option<&Operator> {
        let given = SecretDigest::of(token);
        // Every digest is compared in full: the time taken must not reveal which token matched.
        let mut found = None;
        for (digest, operator) in &self.0 {
            if digest.matches(&given) {
                found = Some(operator);
            }
        }
        found
    }
}

impl fmt::Debug for OperatorTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(_, operator)| &operator.name)).finish()
    }
}

impl OperatorPrincipals {
    /// What the holder of a credential may do here; `None` for nothing.
    pub fn operator(&self, identity: &Identity) -> Option<Operator> {
        let matching = self.0.iter().filter(|(_, patterns)| patterns.iter().any(|pattern| pattern.matches(identity)));
        let may = matching.map(|(right, _)| *right).max()?;
        let name = identity.name.clone().unwrap_or_else(|| Arc::clone(&identity.principal));
        Some(Operator { name, may, principal: Some(Arc::clone(&identity.principal)) })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, patterns)| patterns.is_empty())
    }
}

impl ConsoleKey {
    /// A new key of 128 random bits.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn generate() -> std::io::Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The key, for the link that `rialto console` prints.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether a token is this key.
    pub fn is(&self, token: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(token).into()
    }
}

impl fmt::Debug for ConsoleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Default for ConsoleAccess {
    fn default() -> Self {
        Self {
            enabled: true,
            edit: false,
            tokens: OperatorTokens::default(),
            principals: OperatorPrincipals::default(),
        }
    }
}

impl fmt::Debug for ConsoleAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { enabled, edit, tokens, principals } = self;
        write!(f, "ConsoleAccess {{ enabled: {enabled}, edit: {edit}, {tokens:?}, {principals:?} }}")
    }
}

impl ConsoleAccess {
    /// Whether operators have credentials beside the key of the start.
    pub fn has_operators(&self) -> bool {
        !self.tokens.is_empty() || !self.principals.is_empty()
    }

    /// The operator by token or, on this machine, by the key of this start.
    pub fn operator(&self, key: &ConsoleKey, place: ConsolePlace, token: &[u8]) -> Option<Operator> {
        if place == ConsolePlace::Local && key.is(token) {
            return Some(Operator { name: KEY_HOLDER.into(), may: OperatorRight::Act, principal: None });
        }
        self.tokens.find(token).cloned()
    }

    /// What an operator may do as things are: editing has to be allowed besides.
    pub fn effective(&self, right: OperatorRight) -> OperatorRight {
        if self.edit { right } else { right.min(OperatorRight::Act) }
    }
}

impl Policy {
    /// Where a request for the console comes from; `None` where there is none for it, which must look like a path that
    /// nothing is served at.
    ///
    /// Without credentials of operators, only this machine has a console: peer and `Host` are loopback, and no proxy has
    /// passed the request on.
    pub fn console_place(
        &self,
        listener: OperationsListener,
        uri: &Uri,
        headers: &HeaderFields,
        peer: SocketAddr,
    ) -> Option<ConsolePlace> {
        if !self.console.enabled {
            return None;
        }
        let is_proxy = self.trusted_proxies.source(peer) == RequestSource::TrustedProxy;
        if !is_proxy && is_local(uri, headers, peer) {
            return Some(ConsolePlace::Local);
        }
        let is_host_allowed = match listener {
            OperationsListener::Operators => self.host_origin.admit_operator(uri, headers).is_ok(),
            OperationsListener::Clients => self.host_origin.admit_host(uri, headers).is_ok(),
        };
        (self.console.has_operators() && is_host_allowed).then_some(ConsolePlace::Remote)
    }
}

/// The bearer token of a request.
pub fn presented_token(headers: &HeaderFields) -> Option<&[u8]> {
    bearer_token(headers).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(
        policy: &Policy,
        listener: OperationsListener,
        peer: &str,
        headers: &[(&str, &str)],
    ) -> Option<ConsolePlace> {
        let peer = format!("{peer}:1").parse().unwrap();
        policy.console_place(listener, &Uri::from_static("/console"), &HeaderFields::of(headers), peer)
    }

    fn with_tokens() -> Policy {
        let tokens = OperatorTokens::new([("ann".to_owned(), "s3cret-of-ann".to_owned(), OperatorRight::Edit)]);
        Policy { console: ConsoleAccess { tokens, ..ConsoleAccess::default() }, ..Policy::default() }
    }

    #[test]
    fn without_tokens_only_this_machine_has_a_console() {
        use OperationsListener::{Clients, Operators};
        let (open, guarded) = (Policy::default(), with_tokens());
        for (peer, headers, is_local) in [
            ("127.0.0.1", &[("host", "localhost:3001")][..], true),
            ("[::1]", &[("host", "[::1]:3001")], true),
            ("10.0.0.1", &[("host", "localhost:3001")], false),
            ("127.0.0.1", &[("host", "evil.example")], false),
            ("127.0.0.1", &[("host", "localhost"), ("x-forwarded-for", "10.0.0.1")], false),
            ("127.0.0.1", &[("host", "localhost"), ("forwarded", "for=10.0.0.1")], false),
            ("127.0.0.1", &[("host", "localhost"), ("via", "1.1 proxy")], false),
        ] {
            let local = is_local.then_some(ConsolePlace::Local);
            assert_eq!(place(&open, Clients, peer, headers), local, "{peer} {headers:?}");
            assert_eq!(place(&open, Operators, peer, headers), local, "{peer} {headers:?}");
            let is_foreign = headers[0].1 == "evil.example";
            let remote = local.or((!is_foreign).then_some(ConsolePlace::Remote));
            assert_eq!(place(&guarded, Clients, peer, headers), remote, "{peer} {headers:?}");
        }
        let off = Policy { console: ConsoleAccess { enabled: false, ..ConsoleAccess::default() }, ..Policy::default() };
        assert_eq!(place(&off, Clients, "127.0.0.1", &[("host", "localhost")]), None);
    }

    #[test]
    fn the_key_counts_on_this_machine_only_and_may_act() {
        let (access, key) = (with_tokens().console, ConsoleKey::generate().unwrap());
        let by_key = access.operator(&key, ConsolePlace::Local, key.reveal().as_bytes()).unwrap();
        assert_eq!((&*by_key.name, by_key.may), ("local", OperatorRight::Act));
        assert_eq!(access.operator(&key, ConsolePlace::Remote, key.reveal().as_bytes()), None);
        let ann = access.operator(&key, ConsolePlace::Remote, b"s3cret-of-ann").unwrap();
        assert_eq!((&*ann.name, ann.may), ("ann", OperatorRight::Edit));
        assert_eq!(access.effective(ann.may), OperatorRight::Act, "editing is off");
        assert_eq!(access.operator(&key, ConsolePlace::Local, b"s3cret-of-an"), None);
        assert_eq!(key.reveal().len(), 32);
        let shown = format!("{access:?} {key:?}");
        assert!(!shown.contains("s3cret") && !shown.contains(key.reveal()), "{shown}");
    }

    #[test]
    fn a_principal_has_the_highest_right_that_names_it() {
        let pattern = |text: &str| PrincipalPattern::parse(text).unwrap();
        let principals = OperatorPrincipals(vec![
            (OperatorRight::Look, vec![pattern("*")]),
            (OperatorRight::Act, vec![pattern("key:ci"), pattern("role:ops")]),
        ]);
        let mut identity = Identity::anonymous();
        assert_eq!(principals.operator(&identity).unwrap().may, OperatorRight::Look);
        identity.roles = vec!["ops".into()];
        assert_eq!(principals.operator(&identity).unwrap().may, OperatorRight::Act);
        assert_eq!(OperatorPrincipals::default().operator(&identity), None);
    }
}
