//! Masks secret values of the configuration in texts for people: logs, errors, status and `rialto check`.
//!
//! The configuration collects the [`Secrets`]; the command or the reload that puts a configuration into use installs
//! them for the process. Those of the configurations before it are masked, too: what is kept may still hold them.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use arc_swap::ArcSwap;
use serde_json::Value;

/// What stands in place of a secret.
const MASK: &str = "***";
/// Shorter values are not masked: they would occur by chance.
const MIN_SECRET_LENGTH: usize = 4;
/// Shortest secret that is looked for in recorded messages.
const MIN_TRAFFIC_SECRET: usize = 8;
/// Values that are no secret and whose masking would break JSON.
const JSON_LITERALS: [&str; 3] = ["true", "false", "null"];

/// Most values of earlier configurations that are masked. Logs of servers and recorded calls are held for a while, and
/// an old value may be good at its server for as long as its owner lets it.
const MAX_EARLIER: usize = 256;

static INSTALLED: LazyLock<ArcSwap<InstalledSecrets>> = LazyLock::new(ArcSwap::default);

/// The secrets of the configuration in use, and of those before it.
#[derive(Default)]
struct InstalledSecrets {
    current: Secrets,
    /// Values of earlier configurations that are not in this one, the newest first.
    earlier: Vec<String>,
    /// All of them.
    all: Secrets,
}

/// Secret values, longest first, so that a value that contains another is masked whole. `Debug` shows none of them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(Vec<String>);

/// The text with every installed secret masked.
pub fn redact(text: &str) -> Cow<'_, str> {
    INSTALLED.load().all.mask(text)
}

/// Masks every installed secret in the texts of a JSON value; names of members stay.
pub fn redact_texts(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(masked) = redact(text) {
                *text = masked;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact_texts),
        Value::Object(members) => members.values_mut().for_each(redact_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The text with every installed secret of eight letters or more replaced: shorter ones would occur by chance in what
/// passes through.
pub fn secrets_in<'t>(text: &'t str, mask: &str) -> Cow<'t, str> {
    let mut masked = Cow::Borrowed(text);
    for secret in INSTALLED.load().all.0.iter().filter(|secret| secret.chars().count() >= MIN_TRAFFIC_SECRET) {
        if masked.contains(secret.as_str()) {
            masked = Cow::Owned(masked.replace(secret.as_str(), mask));
        }
    }
    masked
}

/// How many bytes at the end of `before` and at the beginning of `after` may be parts of a secret that lies across
/// the cut between them, and `least` at any rate: else what is left out would tell those who try letters which are right.
pub fn parts_at_cut(before: &str, after: &str, least: usize) -> (usize, usize) {
    INSTALLED.load().all.parts_at_cut(before, after, least)
}

impl InstalledSecrets {
    fn followed_by(&self, current: Secrets) -> Self {
        let before = self.current.0.iter().chain(&self.earlier);
        let gone = before.filter(|secret| !current.0.contains(secret));
        let earlier: Vec<String> = gone.take(MAX_EARLIER).cloned().collect();
        let mut all: Vec<String> = current.0.iter().chain(&earlier).cloned().collect();
        Secrets::sort(&mut all);
        Self { current, earlier, all: Secrets(all) }
    }
}

impl Secrets {
    /// Collects values. A log may show a value in parts or encoded, so its lines and its form in JSON are included.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut secrets = Vec::new();
        for value in values {
            secrets.extend(value.lines().map(|line| line.trim().to_owned()));
            let json = Value::from(value.as_str()).to_string();
            secrets.push(json[1..json.len() - 1].to_owned());
            secrets.push(value);
        }
        secrets.retain(|secret| secret.len() >= MIN_SECRET_LENGTH && !JSON_LITERALS.contains(&secret.as_str()));
        Self::sort(&mut secrets);
        Self(secrets)
    }

    fn sort(secrets: &mut Vec<String>) {
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
    }

    /// These values and others.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self::new(self.0.into_iter().chain(others.0))
    }

    /// Masks these values in [`redact`] beside those that are masked already.
    pub fn install_also(self) {
        INSTALLED.rcu(|installed| installed.followed_by(self.clone().and(installed.current.clone())));
    }

    /// Masks these values in [`redact`] from now on, beside those of earlier configurations.
    pub fn install(self) {
        INSTALLED.rcu(|installed| installed.followed_by(self.clone()));
    }

    /// The text with these values masked, whether they are installed or not.
    pub fn masked(&self, text: &str) -> String {
        self.mask(text).into_owned()
    }

    fn parts_at_cut(&self, before: &str, after: &str, least: usize) -> (usize, usize) {
        let (mut left, mut right) = (least.min(before.len()), least.min(after.len()));
        for secret in &self.0 {
            for (at, _) in secret.char_indices().skip(1) {
                if before.ends_with(&secret[..at]) {
                    left = left.max(at);
                }
                if after.starts_with(&secret[at..]) {
                    right = right.max(secret.len() - at);
                }
            }
        }
        (before.len() - before.floor_char_boundary(before.len() - left), after.ceil_char_boundary(right))
    }

    /// The text with these values masked.
    fn mask<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut masked = Cow::Borrowed(text);
        for secret in &self.0 {
            if masked.contains(secret.as_str()) {
                masked = Cow::Owned(masked.replace(secret.as_str(), MASK));
            }
        }
        masked
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_wherever_they_occur() {
        let secrets = Secrets::new(["s3cret".to_owned(), "s3cret-long".to_owned(), "a\"b\nline".to_owned()]);
        for (text, masked) in [
            ("Bearer s3cret!", "Bearer ***!"),
            ("xs3cretx", "x***x"),
            ("s3cret-long", "***"),
            (r#"{"pem":"a\"b\nline"}"#, r#"{"pem":"***"}"#),
            ("a\"b\nline", "***"),
            ("stderr: line", "stderr: ***"),
            ("nothing here", "nothing here"),
        ] {
            assert_eq!(secrets.mask(text), masked);
        }
        assert!(matches!(secrets.mask("nothing here"), Cow::Borrowed(_)));
        assert_eq!(format!("{secrets:?}"), "Secrets(5)");
    }

    #[test]
    fn secrets_of_earlier_configurations_stay_masked_up_to_a_number() {
        let of = |value: &str| Secrets::new([value.to_owned()]);
        let first = InstalledSecrets::default().followed_by(of("first-secret"));
        let second = first.followed_by(of("second-secret"));
        assert_eq!(second.all.mask("first-secret second-secret, thirdly"), "*** ***, thirdly");
        let again = second.followed_by(of("first-secret"));
        assert_eq!((again.earlier.as_slice(), again.all.0.len()), (&["second-secret".to_owned()][..], 2));
        let many =
            (0..2 * MAX_EARLIER).fold(again, |installed, n| installed.followed_by(of(&format!("secret {n:04}"))));
        assert_eq!((many.earlier.len(), many.all.0.len()), (MAX_EARLIER, MAX_EARLIER + 1));
        assert_eq!(many.earlier[0], format!("secret {:04}", 2 * MAX_EARLIER - 2), "the oldest are forgotten");
    }

    #[test]
    fn parts_of_secrets_at_a_cut_are_found() {
        let secrets = Secrets::new(["secret-of-file".to_owned(), "of-file-of".to_owned()]);
        for (before, after, parts) in [
            ("a secret-", "of-file b", (7, 7)),
            ("a secret-of", "-fil", (9, 0)),
            ("xs", "e b", (1, 1)),
            ("secretary", "file", (0, 4)),
            ("", "", (0, 0)),
            ("none of", "its parts", (2, 0)),
        ] {
            assert_eq!(secrets.parts_at_cut(before, after, 0), parts, "{before}|{after}");
        }
        assert_eq!(secrets.parts_at_cut("äöü", "äöü", 3), (4, 4), "whole letters");
        assert_eq!(secrets.parts_at_cut("ab", "c", 8), (2, 1));
    }

    #[test]
    fn short_values_and_json_literals_are_not_masked() {
        let secrets = Secrets::new(["abc", "true", "false", "null", ""].map(str::to_owned));
        assert_eq!(secrets, Secrets::default());
        assert_eq!(secrets.mask("abc true"), "abc true");
    }
}
