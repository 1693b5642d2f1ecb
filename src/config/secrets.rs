//! Collects the secret values of a file while it is read.

use std::cell::RefCell;

use crate::redact::Secrets;

/// Variables that name people, places and languages rather than secrets.
const PUBLIC_VARIABLES: [&str; 11] =
    ["HOME", "HOSTNAME", "LANG", "LC_ALL", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "TZ", "USER"];
/// Headers whose values are the same for everybody.
pub(super) const PUBLIC_HEADERS: [&str; 5] =
    ["accept", "accept-encoding", "accept-language", "content-type", "user-agent"];
/// Parts of the names of environment variables that hold secrets; others hold ordinary settings.
const SECRET_WORDS: [&str; 9] = ["auth", "cookie", "cred", "dsn", "key", "pass", "pwd", "secret", "token"];
/// Schemes before the secret in a header.
const AUTH_SCHEMES: [&str; 3] = ["bearer", "basic", "token"];
/// Shorter numbers are ports, counts and timeouts.
const MIN_SECRET_DIGITS: usize = 6;

/// Whether a name in small letters says that its value is a secret.
pub(super) fn is_secret_word(name: &str) -> bool {
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// Secret values found so far.
#[derive(Default)]
pub(super) struct SecretCollector(RefCell<Vec<String>>);

impl SecretCollector {
    /// Records the value that a variable was expanded to.
    pub(super) fn add_variable(&self, name: &str, value: &str) {
        let is_short_number = value.len() < MIN_SECRET_DIGITS && value.bytes().all(|digit| digit.is_ascii_digit());
        if !PUBLIC_VARIABLES.contains(&name) && !is_short_number {
            self.add(value);
        }
    }

    /// Records a value of a table of strings, such as `headers`, if its name says that it is secret.
    pub(super) fn add_entry(&self, table: &str, name: &str, value: &str) {
        let name = name.to_ascii_lowercase();
        let is_secret = match table {
            "env" => is_secret_word(&name),
            "headers" => !PUBLIC_HEADERS.contains(&name.as_str()),
            _ => true,
        };
        if is_secret {
            self.add(value);
        }
    }

    /// Records a value that is a secret by its key.
    pub(super) fn add(&self, value: &str) {
        let mut values = self.0.borrow_mut();
        if let Some((scheme, credentials)) = value.split_once(' ')
            && AUTH_SCHEMES.contains(&scheme.to_ascii_lowercase().as_str())
        {
            values.push(credentials.trim().to_owned());
        }
        values.push(value.to_owned());
    }

    /// Records the password in a URL, if it has one.
    pub(super) fn add_url_password(&self, url: &str) {
        let authority = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
        if let Some((_, password)) = authority.and_then(|(credentials, _)| credentials.split_once(':')) {
            self.add(password);
        }
    }

    pub(super) fn finish(self) -> Secrets {
        Secrets::new(self.0.into_inner())
    }
}
