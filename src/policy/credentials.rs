//! Who calls, by the credential in the head of a request. The form of the credential selects one validator; validators
//! are never tried in turn.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use http::Uri;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use tokio_util::sync::CancellationToken;

use super::Policy;
use super::api_keys::KEY_PREFIX;
use super::last_credential::{CredentialHolder, LastCredential, is_current};
use super::revocation::{Revoked, is_issued_by};
use super::trusted_proxies::RequestSource;
use crate::http::codec::HeaderFields;
use crate::identity::{Credential, Identity};
use crate::issuers::{AudienceCheck, TokenError};

/// The head of a request whose caller is to be known.
#[derive(Debug, Clone, Copy)]
pub struct CredentialRequest<'r> {
    /// The request target.
    pub uri: &'r Uri,
    /// The header fields.
    pub headers: &'r HeaderFields,
    /// Who is at the other end of the connection.
    pub source: RequestSource,
    /// The group that is asked for.
    pub group: &'r str,
    /// Who the client's certificate says it is, if it has shown one.
    pub certificate: Option<&'r Arc<Identity>>,
    /// The port that the client has connected to, where it is known.
    pub served_port: Option<u16>,
    /// What the connection showed last.
    pub last: &'r LastCredential,
}

/// Who calls, as far as the head of a request alone tells.
#[derive(Debug)]
pub enum Identified<'r> {
    /// This caller.
    Caller(Arc<Identity>),
    /// The holder of this token, which has yet to be validated.
    Unvalidated(&'r str),
}

/// Why a request is not admitted by its credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialError {
    /// There is none, and one is needed.
    Missing,
    /// It is not given as it must be.
    Malformed(MalformedCredential),
    /// It is not accepted.
    Token(TokenError),
    /// It is good, but not for this group.
    Group,
}

/// How a credential is given wrongly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MalformedCredential {
    /// There are two `Authorization` headers.
    Repeated,
    /// The query has `access_token`.
    InQuery,
    /// The value has characters that no token has.
    NotToken68,
}

/// What the rules after a reload take over from those before it.
#[derive(Debug, Clone)]
pub struct CarriedState {
    /// Callers without a credential.
    anonymous: Arc<Identity>,
    /// Cancelled when a credential is needed and was not before.
    anonymous_revoked: CancellationToken,
    /// Made when first needed.
    issuer_signals: Arc<Mutex<Vec<IssuerSignal>>>,
}

/// What ends the streams of the tokens of one issuer.
#[derive(Debug)]
struct IssuerSignal {
    url: String,
    /// Digest of the key that signed the tokens; `None` for those that the issuer is asked about.
    signing_key: Option<Arc<str>>,
    /// Cancelled when the issuer is removed or withdraws the key.
    signal: CancellationToken,
}

impl Policy {
    /// Whether there is no key, no token and no issuer: everybody is admitted as anonymous.
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty() && self.keys.is_empty() && self.issuers.is_none()
    }

    /// Who calls. Waits for nobody.
    ///
    /// # Errors
    /// When the credential is missing, malformed or not accepted.
    pub fn identify<'r>(&self, request: &CredentialRequest<'r>) -> Result<Identified<'r>, CredentialError> {
        if self.is_open() {
            return Ok(Identified::Caller(Arc::clone(request.certificate.unwrap_or(&self.carried.anonymous))));
        }
        let value = presented_value(request.uri, request.headers).map_err(CredentialError::Malformed)?;
        let audience = OnceLock::new();
        let is_asked = |asked: &str| audience.get_or_init(|| self.audience(request)).accepts(asked);
        if let Some(known) = value.and_then(|value| self.recall(request.last, value, &is_asked)) {
            return checked_group(known?, request.group).map(Identified::Caller);
        }
        let Some((value, token)) = value.map(bearer_of).transpose().map_err(CredentialError::Malformed)?.flatten()
        else {
            let anonymous = self.allow_anonymous.then_some(&self.carried.anonymous);
            let identity = request.certificate.or(anonymous).ok_or(CredentialError::Missing)?;
            return Ok(Identified::Caller(Arc::clone(identity)));
        };
        let unverifiable = || CredentialError::Token(TokenError::Unverifiable);
        if token.starts_with(KEY_PREFIX) {
            let identity = self.keys.find(token, SystemTime::now()).ok_or_else(unverifiable)?;
            request.last.remember(self.number, value, CredentialHolder::Secret(Arc::clone(identity)));
            return checked_group(Arc::clone(identity), request.group).map(Identified::Caller);
        }
        if let Some(identity) = self.tokens.find(token) {
            request.last.remember(self.number, value, CredentialHolder::Secret(Arc::clone(identity)));
            return checked_group(Arc::clone(identity), request.group).map(Identified::Caller);
        }
        let issuers = self.issuers.as_ref().filter(|issuers| is_jwt_form(token) || issuers.has_opaque());
        let issuers = issuers.ok_or_else(unverifiable)?;
        match issuers.cached(token, &is_asked) {
            Some(validated) => {
                let identity = validated.map_err(CredentialError::Token)?;
                if let Some(known) = issuers.known(token) {
                    request.last.remember(self.number, value, CredentialHolder::Token(known));
                }
                checked_group(identity, request.group).map(Identified::Caller)
            }
            None => Ok(Identified::Unvalidated(token)),
        }
    }

    /// The holder of a token of an issuer, which may have to be asked.
    ///
    /// # Errors
    /// When the token is not accepted.
    pub async fn validate(
        &self,
        request: &CredentialRequest<'_>,
        token: &str,
    ) -> Result<Arc<Identity>, CredentialError> {
        let Some(issuers) = &self.issuers else { return Err(CredentialError::Token(TokenError::Unverifiable)) };
        let audience = self.audience(request);
        let identity = issuers.validate(token, &audience).await.map_err(CredentialError::Token)?;
        checked_group(identity, request.group)
    }

    /// The holder of the value that the connection showed last, if this is the same one and it still counts.
    fn recall(
        &self,
        last: &LastCredential,
        value: &[u8],
        is_asked: &AudienceCheck<'_>,
    ) -> Option<Result<Arc<Identity>, CredentialError>> {
        last.recall(self.number, value, |holder| match holder {
            CredentialHolder::Secret(identity) => is_current(identity).then(|| Ok(Arc::clone(identity))),
            CredentialHolder::Token(known) => {
                let accepted = self.issuers.as_ref()?.accept_known(known, is_asked)?;
                Some(accepted.map_err(CredentialError::Token))
            }
        })
    }

    /// Takes over from the rules before, and says what callers have lost.
    pub fn succeed(&mut self, before: &Self) -> Revoked {
        let mut revoked = Revoked::default();
        self.tokens.succeed(&before.tokens, &mut revoked);
        self.keys.succeed(&before.keys, &mut revoked);
        self.carried.issuer_signals = Arc::clone(&before.carried.issuer_signals);
        match (before.admits_anonymous(), self.admits_anonymous()) {
            (true, false) => {
                revoked.signals.push(before.carried.anonymous_revoked.clone());
                revoked.credentials.push(Credential::Anonymous);
            }
            (true, true) => self.carried = before.carried.clone(),
            (false, _) => {}
        }
        let urls = self.issuers.as_ref().map(|issuers| issuers.urls()).unwrap_or_default();
        let lost = |known: &mut IssuerSignal| !urls.contains(&known.url);
        revoked.signals.extend(self.carried.issuer_signals.lock().extract_if(.., lost).map(|known| known.signal));
        let before = before.issuers.as_ref().map(|issuers| issuers.urls()).unwrap_or_default();
        revoked.issuers = before.into_iter().filter(|url| !urls.contains(url)).collect();
        revoked
    }

    /// Cancelled when the caller's credential is no longer accepted; `None` where it is none of ours, as other nodes
    /// relay callers.
    pub fn revocation(&self, identity: &Arc<Identity>) -> Option<CancellationToken> {
        let mut secrets = self.tokens.accepted.iter().chain(&self.keys.accepted);
        // Of two secrets of one name, the one that was shown; a relayed identity is a copy of either.
        let shown = secrets.clone().find(|accepted| Arc::ptr_eq(&accepted.identity, identity));
        let mut named = || secrets.find(|accepted| accepted.identity.credential == identity.credential);
        match &identity.credential {
            _ if shown.is_some() => shown.map(|accepted| accepted.revoked.clone()),
            Credential::Anonymous => self.admits_anonymous().then(|| self.carried.anonymous_revoked.clone()),
            Credential::Token(_) | Credential::Key(_) => named().map(|accepted| accepted.revoked.clone()),
            Credential::Jwt(_) | Credential::Opaque(_) => self.issuer_revocation(identity),
            // Connections end with the authorities of their certificates.
            Credential::Local | Credential::Certificate(_) => Some(CancellationToken::new()),
        }
    }

    fn issuer_revocation(&self, identity: &Identity) -> Option<CancellationToken> {
        let urls = self.issuers.as_ref()?.urls();
        let url = urls.into_iter().find(|url| is_issued_by(identity, url))?;
        let mut signals = self.carried.issuer_signals.lock();
        let is_known = |known: &&IssuerSignal| known.url == url && known.signing_key == identity.signing_key;
        if let Some(known) = signals.iter().find(is_known) {
            return Some(known.signal.clone());
        }
        let signal = CancellationToken::new();
        signals.push(IssuerSignal { url, signing_key: identity.signing_key.clone(), signal: signal.clone() });
        Some(signal)
    }

    /// What callers lose because issuers have withdrawn keys since this was last asked.
    pub fn withdrawn_keys(&self) -> Revoked {
        let keys = self.issuers.as_ref().map(|issuers| issuers.take_withdrawn_keys()).unwrap_or_default();
        if keys.is_empty() {
            return Revoked::default();
        }
        let is_withdrawn = |known: &mut IssuerSignal| {
            keys.iter().any(|(url, key)| known.url == *url && known.signing_key.as_ref() == Some(key))
        };
        let signals =
            self.carried.issuer_signals.lock().extract_if(.., is_withdrawn).map(|known| known.signal).collect();
        Revoked { signals, signing_keys: keys, ..Revoked::default() }
    }

    fn admits_anonymous(&self) -> bool {
        self.allow_anonymous || self.is_open()
    }
}

fn checked_group(identity: Arc<Identity>, group: &str) -> Result<Arc<Identity>, CredentialError> {
    if identity.may_use_group(group) { Ok(identity) } else { Err(CredentialError::Group) }
}

/// The value of `Authorization`.
fn presented_value<'r>(uri: &Uri, headers: &'r HeaderFields) -> Result<Option<&'r [u8]>, MalformedCredential> {
    let mut values = headers.get_all(AUTHORIZATION);
    let value = values.next();
    if values.next().is_some() {
        return Err(MalformedCredential::Repeated);
    }
    if uri.query().is_some_and(has_access_token) {
        return Err(MalformedCredential::InQuery);
    }
    Ok(value)
}

/// A value of `Authorization` with the bearer token in it; `None` where it has none, or another scheme.
fn bearer_of(value: &[u8]) -> Result<Option<(&[u8], &str)>, MalformedCredential> {
    let Some(token) = bearer_value(value).filter(|token| !token.is_empty()) else { return Ok(None) };
    match str::from_utf8(token) {
        Ok(text) if is_token68(text) => Ok(Some((value, text))),
        _ => Err(MalformedCredential::NotToken68),
    }
}

/// The token in `Authorization: Bearer`, whatever it is made of.
pub(super) fn bearer_token(headers: &HeaderFields) -> Option<&[u8]> {
    headers.get(AUTHORIZATION).and_then(bearer_value)
}

/// What follows the scheme, if that is `Bearer`.
fn bearer_value(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked("bearer".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && rest.first().is_none_or(|byte| *byte == b' ');
    is_bearer.then(|| rest.trim_ascii())
}

/// Whether a query has the parameter by which RFC 6750 would let tokens travel in URLs, where logs keep them.
fn has_access_token(query: &str) -> bool {
    let name = |pair: &str| percent_decode_str(pair.split('=').next().unwrap_or_default()).collect::<Vec<u8>>();
    query.contains(['a', '%']) && query.split('&').any(|pair| name(pair) == b"access_token")
}

/// Whether a text can be a bearer token (RFC 7235, section 2.1).
pub fn is_token68(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte))
}

/// Whether a token has the three parts of a JWT. The last one is empty where nobody signed it.
fn is_jwt_form(token: &str) -> bool {
    let is_part = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let mut parts = token.split('.');
    let has_content = |part: Option<&str>| part.is_some_and(|part| !part.is_empty() && is_part(part));
    has_content(parts.next())
        && has_content(parts.next())
        && parts.next().is_some_and(is_part)
        && parts.next().is_none()
}

impl Default for CarriedState {
    fn default() -> Self {
        Self {
            anonymous: Identity::anonymous().into(),
            anonymous_revoked: CancellationToken::new(),
            issuer_signals: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Audience;
    use crate::policy::{ApiKeySpec, ApiKeys, GeneratedKey, TokenValidation, TokenValidator, Tokens};

    /// Knows one token, which is for one audience.
    #[derive(Debug)]
    struct OneIssuer {
        url: &'static str,
        has_opaque: bool,
    }

    impl TokenValidator for OneIssuer {
        fn has_opaque(&self) -> bool {
            self.has_opaque
        }

        fn urls(&self) -> Vec<String> {
            vec![self.url.to_owned()]
        }

        fn cached(&self, token: &str, is_asked: &AudienceCheck<'_>) -> Option<Result<Arc<Identity>, TokenError>> {
            let identity = Identity::new(format!("{}|ann", self.url), Credential::Jwt("corp".into()));
            (token == "a.b.c").then(|| match is_asked("http://localhost/mcp") {
                true => Ok(identity.into()),
                false => Err(TokenError::WrongAudience),
            })
        }

        fn validate<'v>(&'v self, _: &'v str, _: &'v Audience<'v>) -> TokenValidation<'v> {
            Box::pin(std::future::ready(Err(TokenError::Unavailable)))
        }

        fn metadata(&self) -> Option<bytes::Bytes> {
            None
        }
    }

    /// The principal, or the token that has to be validated.
    fn identify(policy: &Policy, target: &'static str, authorization: &[&str]) -> Result<String, CredentialError> {
        let mut fields = vec![("host", "localhost")];
        fields.extend(authorization.iter().map(|value| ("authorization", *value)));
        let (uri, headers) = (Uri::from_static(target), HeaderFields::of(&fields));
        let request = CredentialRequest {
            uri: &uri,
            headers: &headers,
            source: RequestSource::Stranger,
            group: "default",
            certificate: None,
            served_port: None,
            last: &LastCredential::default(),
        };
        policy.identify(&request).map(|identified| match identified {
            Identified::Caller(identity) => identity.principal.to_string(),
            Identified::Unvalidated(token) => format!("unvalidated {token}"),
        })
    }

    #[test]
    fn the_form_of_a_credential_selects_its_validator() {
        use CredentialError::{Malformed, Missing, Token};
        use MalformedCredential::{InQuery, NotToken68, Repeated};
        const UNVERIFIABLE: CredentialError = Token(TokenError::Unverifiable);
        let made = GeneratedKey::random().unwrap();
        let key = format!("Bearer {}", made.key);
        let spec = ApiKeySpec {
            name: "ci".into(),
            hashes: vec![made.hash],
            roles: Vec::new(),
            groups: Some(vec!["default".into()]),
            expires: None,
        };
        let guarded = || Policy {
            tokens: Tokens::parse(&["bob=s3cret".into(), "eve=e.v.e".into()]).unwrap(),
            keys: ApiKeys::new([spec.clone()]),
            ..Policy::default()
        };
        for (authorization, found) in [
            (&["Bearer s3cret"][..], Ok("token|bob")),
            (&["bEARER   s3cret"], Ok("token|bob")),
            (&["Bearer e.v.e"], Ok("token|eve")),
            (&[&key], Ok("key|ci")),
            (&[], Err(Missing)),
            (&["Bearer"], Err(Missing)),
            (&["Bearer "], Err(Missing)),
            (&["Basic s3cret"], Err(Missing)),
            (&["Bearers3cret"], Err(Missing)),
            (&["s3cret"], Err(Missing)),
            (&["Bearer s3cre"], Err(UNVERIFIABLE)),
            (&["Bearer a.b.c"], Err(UNVERIFIABLE)),
            (&["Bearer rlto_s3cret"], Err(UNVERIFIABLE)),
            (&["Bearer a b"], Err(Malformed(NotToken68))),
            (&["Bearer a,b"], Err(Malformed(NotToken68))),
            (&["Bearer a=b"], Err(Malformed(NotToken68))),
            (&["Bearer s3cret, Bearer s3cret"], Err(Malformed(NotToken68))),
            (&["Bearer s3cret", "Bearer s3cret"], Err(Malformed(Repeated))),
            (&["Basic x", "Bearer s3cret"], Err(Malformed(Repeated))),
        ] {
            let found = found.map(str::to_owned);
            assert_eq!(identify(&guarded(), "/mcp", authorization), found, "{authorization:?}");
            assert_eq!(identify(&Policy::default(), "/mcp", authorization).as_deref(), Ok("anonymous"));
            let lenient = Policy { allow_anonymous: true, ..guarded() };
            let anonymous = if found == Err(Missing) { Ok("anonymous".to_owned()) } else { found };
            assert_eq!(identify(&lenient, "/mcp", authorization), anonymous, "{authorization:?}");
        }
        for target in ["/mcp?access_token=s3cret", "/mcp?a=1&access%5Ftoken=x", "/mcp?access_token"] {
            assert_eq!(identify(&guarded(), target, &["Bearer s3cret"]), Err(Malformed(InQuery)), "{target}");
        }
        assert!(identify(&guarded(), "/mcp?my_access_token=1&b=access_token", &["Bearer s3cret"]).is_ok());

        let issuer =
            |has_opaque| Policy { issuers: Some(Arc::new(OneIssuer { url: "https://i", has_opaque })), ..guarded() };
        let found = |has_opaque, value: &str| identify(&issuer(has_opaque), "/mcp", &[&format!("Bearer {value}")]);
        assert_eq!(found(false, "a.b.c").as_deref(), Ok("https://i|ann"));
        assert_eq!(found(false, "d.e.f").as_deref(), Ok("unvalidated d.e.f"));
        assert_eq!(found(false, "d.e.").as_deref(), Ok("unvalidated d.e."));
        assert_eq!(found(false, "d.e"), Err(UNVERIFIABLE));
        assert_eq!(found(false, "d.e+.f"), Err(UNVERIFIABLE));
        assert_eq!(found(true, "opaque").as_deref(), Ok("unvalidated opaque"));
        assert_eq!(found(true, "rlto_opaque"), Err(UNVERIFIABLE), "a key is never shown to an issuer");
        assert_eq!(found(true, "s3cret").as_deref(), Ok("token|bob"));
    }

    #[test]
    fn only_what_was_removed_is_revoked() {
        let tokens = |pairs: &[&str]| Policy {
            tokens: Tokens::parse(&pairs.iter().map(|pair| (*pair).to_owned()).collect::<Vec<_>>()).unwrap(),
            ..Policy::default()
        };
        let identity = |policy: &Policy, token: &str| Arc::clone(policy.tokens.find(token).unwrap());
        let before = tokens(&["ann=1", "bob=22", "eve=333"]);
        let [ann, bob, eve] = ["1", "22", "333"].map(|token| identity(&before, token));
        let signals = [&ann, &bob, &eve].map(|caller| before.revocation(caller).unwrap());
        let mut after = tokens(&["eve=333", "bob=4444"]);
        let revoked = after.succeed(&before);
        revoked.cancel();
        let ended = [&ann, &bob, &eve].map(|caller| revoked.ends(caller, "default"));
        assert_eq!((ended, signals.map(|signal| signal.is_cancelled())), ([true, true, false], [true, true, false]));
        assert!(Arc::ptr_eq(&eve, &identity(&after, "333")));
        assert!(!after.revocation(&identity(&after, "4444")).unwrap().is_cancelled());
        assert!(after.revocation(&ann).is_none());

        let open = Policy::default();
        let anonymous: Arc<Identity> = Identity::anonymous().into();
        assert!(tokens(&["ann=1"]).succeed(&open).ends(&anonymous, "default"), "credentials are needed from now on");
        assert!(Policy::default().succeed(&open).is_empty());
        let lenient = || Policy { allow_anonymous: true, ..tokens(&["ann=1"]) };
        assert!(lenient().succeed(&open).is_empty() && Policy::default().succeed(&lenient()).credentials.len() == 1);
    }

    #[test]
    fn a_key_ends_with_its_last_hash_its_role_or_its_group() {
        let [old, new] = [GeneratedKey::random().unwrap(), GeneratedKey::random().unwrap()];
        let keys = |hashes: &[&GeneratedKey], roles: &[&str], groups: Option<&[&str]>| Policy {
            keys: ApiKeys::new([ApiKeySpec {
                name: "ci".into(),
                hashes: hashes.iter().map(|made| made.hash).collect(),
                roles: roles.iter().map(|role| (*role).into()).collect(),
                groups: groups.map(|groups| groups.iter().map(|group| (*group).into()).collect()),
                expires: None,
            }]),
            ..Policy::default()
        };
        let both = keys(&[&old, &new], &["a", "b"], None);
        let [by_old, by_new] =
            [&old, &new].map(|made| Arc::clone(both.keys.find(&made.key, SystemTime::now()).unwrap()));
        let signals = [&by_old, &by_new].map(|caller| both.revocation(caller).unwrap());
        // The sessions go on with the key that remains; what was opened with the other one ends.
        let mut rotated = keys(&[&new], &["a", "b"], None);
        let revoked = rotated.succeed(&both);
        revoked.cancel();
        assert!(!revoked.ends(&by_old, "default"));
        assert_eq!(signals.map(|signal| signal.is_cancelled()), [true, false]);
        for (after, default_ends, other_ends) in [
            (keys(&[&new], &["b", "a", "c"], None), false, false),
            (keys(&[&new], &["a"], None), true, true),
            (keys(&[&new], &["a", "b"], Some(&["default"])), false, true),
            (keys(&[&old], &["a", "b"], None), true, true),
        ] {
            let (mut after, before) = (after, keys(&[&new], &["a", "b"], None));
            let revoked = after.succeed(&before);
            assert!(!revoked.is_empty());
            assert_eq!((revoked.ends(&by_new, "default"), revoked.ends(&by_new, "other")), (default_ends, other_ends));
        }
    }

    #[test]
    fn callers_of_a_removed_issuer_are_revoked() {
        let issuer =
            |url| Policy { issuers: Some(Arc::new(OneIssuer { url, has_opaque: false })), ..Policy::default() };
        let of = |principal: &str| Arc::new(Identity::new(principal, Credential::Jwt("corp".into())));
        let (ann, other) = (of("https://i|ann"), of("https://i.example|ann"));
        let before = issuer("https://i");
        let signal = before.revocation(&ann).unwrap();
        assert!(before.revocation(&other).is_none());
        let mut same = issuer("https://i");
        assert!(same.succeed(&before).is_empty());
        let mut after = issuer("https://j");
        let revoked = after.succeed(&same);
        revoked.cancel();
        assert!(signal.is_cancelled() && revoked.ends(&ann, "default") && !revoked.ends(&other, "default"));
    }
}
