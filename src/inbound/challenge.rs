//! `WWW-Authenticate` challenges: what a client is told that is not admitted by its credential.

use std::sync::Arc;

use http::HeaderValue;

use crate::issuers::TokenError;
use crate::policy::{CredentialError, MalformedCredential};

/// A credential that was not accepted, and what the client needs to get one.
#[derive(Debug)]
pub(super) struct Challenge {
    pub(super) error: CredentialError,
    /// URL of the protected resource metadata; `None` where no issuer would give a token.
    pub(super) metadata: Option<String>,
    /// The address that a token must be for.
    pub(super) resource: String,
    /// The scopes to ask for, separated by spaces.
    pub(super) scope: String,
}

const LOG_IN: &str = "Unauthorized: log in, or send an API key as a bearer token";

impl Challenge {
    /// The value of `WWW-Authenticate`; `None` where another credential would not help.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        let (error, description) = match self.error {
            CredentialError::Missing => (None, None),
            CredentialError::Malformed(_) => (Some("invalid_request"), None),
            CredentialError::Token(TokenError::Unavailable) | CredentialError::Group => return None,
            CredentialError::Token(error) => (Some("invalid_token"), Some(description(error))),
        };
        let scope = Some(self.scope.as_str());
        let scope = scope.filter(|scope| !scope.is_empty() && !matches!(self.error, CredentialError::Malformed(_)));
        let metadata = self.metadata.as_deref();
        bearer_challenge(&[
            ("error", error),
            ("error_description", description),
            ("resource_metadata", metadata),
            ("scope", scope),
        ])
    }

    /// The sentence for the client.
    pub(super) fn message(&self) -> String {
        match self.error {
            CredentialError::Missing => LOG_IN.to_owned(),
            CredentialError::Token(TokenError::WrongAudience) => {
                format!("{LOG_IN}; the token must be for the resource {}", self.resource)
            }
            CredentialError::Token(TokenError::Unavailable) => {
                "Service Unavailable: tokens cannot be verified right now".to_owned()
            }
            CredentialError::Token(_) => LOG_IN.to_owned(),
            CredentialError::Group => "Forbidden: you may not use this group".to_owned(),
            CredentialError::Malformed(MalformedCredential::Repeated) => {
                "Bad Request: there is more than one `Authorization` header".to_owned()
            }
            CredentialError::Malformed(MalformedCredential::InQuery) => {
                "Bad Request: `access_token` in the query is not accepted; send it as `Authorization: Bearer`"
                    .to_owned()
            }
            CredentialError::Malformed(MalformedCredential::NotToken68) => {
                "Bad Request: what follows `Bearer` is not one token".to_owned()
            }
        }
    }
}

fn description(error: TokenError) -> &'static str {
    match error {
        TokenError::Unverifiable | TokenError::Unavailable => "the token cannot be verified",
        TokenError::Expired => "the token has expired",
        TokenError::NotYetValid => "the token is not valid yet",
        TokenError::WrongAudience => "the token is not for this address",
    }
}

/// One `Bearer` challenge with those parameters that have a value.
pub(super) fn bearer_challenge(parameters: &[(&str, Option<&str>)]) -> Option<HeaderValue> {
    let mut text = "Bearer".to_owned();
    let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    for (n, (name, value)) in given.enumerate() {
        text.push_str(if n == 0 { " " } else { ", " });
        push_parameter(&mut text, name, value);
    }
    HeaderValue::from_str(&text).ok()
}

/// The challenge of a call that needs more scopes: it names all of them, not only those that are missing.
pub(super) fn scope_challenge(scopes: &[Arc<str>]) -> Option<HeaderValue> {
    let scopes = scopes.join(" ");
    let description = format!("this needs the scope {scopes}");
    bearer_challenge(&[
        ("error", Some("insufficient_scope")),
        ("scope", Some(&scopes)),
        ("error_description", Some(&description)),
    ])
}

/// Adds the URL of the protected resource metadata to a challenge that has other parameters.
pub(super) fn add_metadata(challenge: &mut HeaderValue, url: &str) {
    let Ok(text) = challenge.to_str() else { return };
    let mut text = format!("{text}, ");
    push_parameter(&mut text, "resource_metadata", url);
    if let Ok(complete) = HeaderValue::from_str(&text) {
        *challenge = complete;
    }
}

/// Appends one parameter, quoted and on the same line.
fn push_parameter(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    for letter in value.chars().filter(|letter| !letter.is_control()) {
        if matches!(letter, '"' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_and_stay_on_one_line() {
        let header = bearer_challenge(&[("scope", Some("a\"b\\c\r\nx: y")), ("realm", None), ("error", Some("e"))]);
        assert_eq!(header.unwrap(), r#"Bearer scope="a\"b\\cx: y", error="e""#);
        assert_eq!(bearer_challenge(&[("error", None)]).unwrap(), "Bearer");
    }

    #[test]
    fn a_scope_challenge_is_completed_where_the_address_is_known() {
        let mut challenge = scope_challenge(&["read".into(), "write".into()]).unwrap();
        add_metadata(&mut challenge, "http://h/x");
        let complete = r#"Bearer error="insufficient_scope", scope="read write", error_description="this needs the scope read write", resource_metadata="http://h/x""#;
        assert_eq!(challenge, complete);
    }
}
