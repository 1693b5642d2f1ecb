//! Whom a rule or a limit is for: patterns for callers, such as `role:engineering` or `token:ann`.

use serde_json::{Map, Value};
use wildmatch::WildMatch;

use crate::identity::{Credential, Identity};

/// A pattern for callers, as `principals` and `require` list them.
#[derive(Debug, Clone, PartialEq)]
pub struct PrincipalPattern {
    text: String,
    test: PrincipalTest,
}

/// What a caller must be to match.
#[derive(Debug, Clone, PartialEq)]
enum PrincipalTest {
    Anyone,
    Anonymous,
    Local,
    Role(WildMatch),
    Key(String),
    Token(String),
    Issuer(String),
    Client(WildMatch),
    User { issuer: String, subject: String },
    Email(String),
    Claim { path: String, value: WildMatch },
}

/// The forms of a pattern, for hints.
pub const PRINCIPAL_FORMS: [&str; 11] = [
    "*",
    "anonymous",
    "local",
    "role:NAME",
    "key:NAME",
    "token:NAME",
    "issuer:NAME",
    "client:ID",
    "user:ISSUER/SUBJECT",
    "email:ADDRESS",
    "claim:PATH=VALUE",
];

impl PrincipalPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence that begins with the pattern.
    pub fn parse(text: &str) -> Result<Self, String> {
        let test = match text.split_once(':') {
            None => match text {
                "*" => PrincipalTest::Anyone,
                "anonymous" => PrincipalTest::Anonymous,
                "local" => PrincipalTest::Local,
                _ => return Err("names no caller".to_owned()),
            },
            Some((_, "")) => return Err("has nothing after the colon".to_owned()),
            Some(("role", role)) => PrincipalTest::Role(WildMatch::new(role)),
            Some(("key", name)) => PrincipalTest::Key(name.to_owned()),
            Some(("token", name)) => PrincipalTest::Token(name.to_owned()),
            Some(("issuer", name)) => PrincipalTest::Issuer(name.to_owned()),
            Some(("client", id)) => PrincipalTest::Client(WildMatch::new(id)),
            Some(("user", user)) => match user.split_once('/') {
                Some((issuer, subject)) if !issuer.is_empty() && !subject.is_empty() => {
                    PrincipalTest::User { issuer: issuer.to_owned(), subject: subject.to_owned() }
                }
                _ => return Err("must be `user:ISSUER/SUBJECT`, with the name of the issuer in this file".to_owned()),
            },
            Some(("email", address)) => PrincipalTest::Email(address.to_owned()),
            Some(("claim", claim)) => match claim.split_once('=') {
                Some((path, value)) if !path.is_empty() => {
                    PrincipalTest::Claim { path: path.to_owned(), value: WildMatch::new(value) }
                }
                _ => return Err("must be `claim:PATH=VALUE`".to_owned()),
            },
            Some(_) => return Err("names no caller".to_owned()),
        };
        Ok(Self { text: text.to_owned(), test })
    }

    /// The pattern as it is written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name of the static token that must be shown, where it is one.
    pub fn token_name(&self) -> Option<&str> {
        match &self.test {
            PrincipalTest::Token(name) => Some(name),
            _ => None,
        }
    }

    /// Whether it names a role and this is one of those that it names.
    pub fn matches_role(&self, role: &str) -> bool {
        matches!(&self.test, PrincipalTest::Role(pattern) if pattern.matches(role))
    }

    /// Whether this caller matches. Display names decide nothing.
    pub fn matches(&self, identity: &Identity) -> bool {
        let credential = &identity.credential;
        match &self.test {
            PrincipalTest::Anyone => true,
            PrincipalTest::Anonymous => *credential == Credential::Anonymous,
            PrincipalTest::Local => *credential == Credential::Local,
            PrincipalTest::Role(role) => identity.roles.iter().any(|held| role.matches(held)),
            PrincipalTest::Key(name) => matches!(credential, Credential::Key(shown) if **shown == **name),
            PrincipalTest::Token(name) => matches!(credential, Credential::Token(shown) if **shown == **name),
            PrincipalTest::Issuer(name) => issuer(credential) == Some(name),
            PrincipalTest::Client(id) => identity.client_id.as_ref().is_some_and(|client| id.matches(client)),
            PrincipalTest::User { issuer: name, subject } => {
                issuer(credential) == Some(name) && subject_of(identity) == Some(subject)
            }
            PrincipalTest::Email(address) => identity.claims.as_ref().is_some_and(|claims| {
                // An address that the issuer has not verified is what the user typed.
                claims.get("email_verified") == Some(&Value::Bool(true))
                    && claims.get("email").and_then(Value::as_str) == Some(address)
            }),
            PrincipalTest::Claim { path, value } => {
                let claim = identity.claims.as_ref().and_then(|claims| find_claim(claims, path));
                claim.is_some_and(|claim| claim_matches(claim, value))
            }
        }
    }
}

/// The name of the issuer whose token was shown.
fn issuer(credential: &Credential) -> Option<&str> {
    match credential {
        Credential::Jwt(issuer) | Credential::Opaque(issuer) => Some(issuer),
        _ => None,
    }
}

/// The subject of a token: its claim, or else the part of the principal after the issuer's URL.
fn subject_of(identity: &Identity) -> Option<&str> {
    match &identity.claims {
        Some(claims) => claims.get("sub").and_then(Value::as_str),
        None => identity.principal.split_once('|').map(|(_, subject)| subject),
    }
}

/// The claim of that name, or the one that dots lead to.
fn find_claim<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    if let Some(claim) = claims.get(path) {
        return Some(claim);
    }
    let mut parts = path.split('.');
    let first = claims.get(parts.next()?)?;
    parts.try_fold(first, |claim, part| claim.as_object()?.get(part))
}

/// Whether a claim, or one element of a list, is a string, number or boolean that matches.
fn claim_matches(claim: &Value, pattern: &WildMatch) -> bool {
    match claim {
        Value::String(text) => pattern.matches(text),
        Value::Number(_) | Value::Bool(_) => pattern.matches(&claim.to_string()),
        Value::Array(items) => items.iter().any(|item| !item.is_array() && claim_matches(item, pattern)),
        Value::Null | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ann() -> Identity {
        let mut ann =
            Identity::new("https://login.example|a|nn", Credential::Jwt("corp".into())).with_client_id("desktop-7");
        ann.roles = vec!["engineering".into(), "staff".into()];
        ann.name = Some("Bob".into());
        let Value::Object(claims) = json!({
            "sub": "a|nn", "email": "ann@x.example", "email_verified": true, "level": 3, "admin": false,
            "realm_access": { "roles": ["a", "b"] }, "https://x.example/team": "blue", "deep": [["c"]],
        }) else {
            unreachable!()
        };
        ann.claims = Some(claims.into());
        ann
    }

    fn matches(pattern: &str, identity: &Identity) -> bool {
        PrincipalPattern::parse(pattern).unwrap().matches(identity)
    }

    #[test]
    fn callers_are_matched_by_what_their_credential_says() {
        for (pattern, expected) in [
            ("*", true),
            ("anonymous", false),
            ("local", false),
            ("role:engineering", true),
            ("role:eng*", true),
            ("role:sta?f", true),
            ("role:Engineering", false),
            ("role:sales", false),
            ("issuer:corp", true),
            ("issuer:c*", false),
            ("key:corp", false),
            ("token:corp", false),
            ("client:desktop-?", true),
            ("client:web", false),
            ("user:corp/a|nn", true),
            ("user:corp/nn", false),
            ("user:other/a|nn", false),
            ("email:ann@x.example", true),
            ("email:Ann@x.example", false),
            ("email:*", false),
            ("claim:level=3", true),
            ("claim:admin=false", true),
            ("claim:realm_access.roles=b", true),
            ("claim:realm_access=*", false),
            ("claim:https://x.example/team=blu?", true),
            ("claim:deep=c", false),
            ("claim:absent=*", false),
        ] {
            assert_eq!(matches(pattern, &ann()), expected, "{pattern}");
        }
        assert!(matches("anonymous", &Identity::anonymous()) && matches("local", &Identity::local()));
        assert!(matches("key:ci", &Identity::new("key|ci", Credential::Key("ci".into()))));
        assert!(matches("token:ci", &Identity::new("token|ci", Credential::Token("ci".into()))));
        let mut without_claims = ann();
        without_claims.claims = None;
        assert!(matches("user:corp/a|nn", &without_claims) && !matches("email:ann@x.example", &without_claims));
    }

    #[test]
    fn an_address_that_is_not_verified_matches_nothing() {
        for verified in [json!(false), json!("true"), json!(1), Value::Null] {
            let mut ann = ann();
            let mut claims = (**ann.claims.as_ref().unwrap()).clone();
            claims.insert("email_verified".into(), verified.clone());
            ann.claims = Some(claims.into());
            assert!(!matches("email:ann@x.example", &ann), "{verified}");
        }
    }

    #[test]
    fn a_pattern_of_another_form_is_refused() {
        for text in ["", "ann", "roles:x", "role:", "user:ann", "user:/ann", "user:corp/", "claim:x", "claim:=x"] {
            assert!(PrincipalPattern::parse(text).is_err(), "{text}");
        }
    }
}
