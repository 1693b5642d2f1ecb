//! What is taken out of recorded messages before they leave the process.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use super::json_tree::{JsonKind, JsonNode, step};
use super::row::BodyAccess;
use crate::dialect::headers::{PARAM_PREFIX, decode_value};
use crate::redact::secrets_in;

/// Stands for what was taken out.
pub const MASK: &str = "•••";

/// Which names and places are hidden beside those that always are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedactionRules {
    names: Vec<String>,
    pointers: Vec<String>,
    /// Headers whose values the file gives, in small letters.
    headers: Vec<String>,
}

/// A text as it may be shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShownText {
    /// The text.
    pub text: String,
    /// Pointers to what was taken out; an empty one is the text as a whole.
    pub hidden: Vec<String>,
}

/// Names of members whose values are secrets. A name that ends with one of them counts, too.
const SECRET_NAMES: [&str; 10] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "authorization",
    "private_key",
    "credential",
];
/// Names that end like those, and are no secrets.
const HARMLESS_NAMES: [&str; 3] = ["progress_token", "next_token", "page_token"];
/// Members that stand for something that equal ones are to be recognized by.
const OPAQUE_NAMES: [&str; 5] = ["request_state", "cursor", "next_cursor", "session_id", "mcp_session_id"];
/// Headers whose values are never shown.
const SECRET_HEADERS: [&str; 5] = ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"];
/// Shortest part of a path that is taken for the id of a session because its letters are mixed.
const MIN_RANDOM_ID: usize = 20;
/// Longest name that is looked for in what is no JSON.
const MAX_MEMBER_NAME: usize = 200;
/// Shortest word that is looked at for Base64.
const MIN_BASE64: usize = 12;

impl RedactionRules {
    /// Rules with more names, or pointers that begin with a slash, and with headers whose values the file gives.
    pub fn new(more: &[String], headers: &[String]) -> Self {
        let (pointers, names): (Vec<_>, Vec<_>) = more.iter().cloned().partition(|one| one.starts_with('/'));
        Self { names: names.iter().map(|name| words_of(name)).collect(), pointers, headers: headers.to_vec() }
    }

    /// A header as it may be shown beside its message, of which `hidden` is not shown; `None` where that is not known.
    pub fn header(&self, (name, value): (&str, &str), hidden: Option<&[String]>, bodies: BodyAccess) -> String {
        let name = name.to_ascii_lowercase();
        let words = words_of(name.strip_prefix(PARAM_PREFIX).unwrap_or(&name));
        let is_pointed_at = |place: &String| place.rsplit('/').next().is_some_and(|last| words_of(last) == words);
        let is_secret = SECRET_HEADERS.contains(&name.as_str())
            || self.headers.contains(&name)
            || self.names.contains(&words)
            || is_secret_name(&words);
        if is_secret {
            return MASK.to_owned();
        }
        if name == "mcp-session-id" {
            return shortened(value);
        }
        // What 2026-07-28 says of a message in headers is as much a payload as the message.
        let decoded = decode_value(value.as_bytes()).unwrap_or_else(|_| value.to_owned());
        match name.starts_with(PARAM_PREFIX) {
            true if hidden.is_none_or(|hidden| hidden.contains(&decoded))
                || self.pointers.iter().any(is_pointed_at) =>
            {
                MASK.to_owned()
            }
            true if bodies == BodyAccess::Shapes => format!("string {}", decoded.chars().count()),
            _ if hide_in_text(&decoded) != decoded => hide_in_text(&decoded).into_owned(),
            _ => hide_in_text(value).into_owned(),
        }
    }

    /// The scalars of a message that are not shown of it, as texts.
    pub fn hidden_values(&self, text: &str) -> Vec<String> {
        let Some(node) = JsonNode::parse(text) else { return Vec::new() };
        let value = |(span, ..): Edited| {
            let raw = &text[span];
            serde_json::from_str::<String>(raw).unwrap_or_else(|_| raw.to_owned())
        };
        self.edits(text, &node).into_iter().map(value).collect()
    }

    /// A message as it may be shown to who may see bodies.
    pub fn show(&self, text: &str) -> ShownText {
        // A message that breaks off is still read as far as it goes.
        match JsonNode::parse(text).or_else(|| JsonNode::parse_beginning(text)) {
            Some(node) => with_edits(text, self.edits(text, &node)),
            None => self.show_no_json(text),
        }
    }

    /// A text that is no JSON, of which members are hidden where they look like some.
    pub(super) fn show_no_json(&self, text: &str) -> ShownText {
        let members = self.hide_members(text);
        let shown = hide_in_text(members.as_deref().unwrap_or(text)).into_owned();
        let hidden = if shown == text { Vec::new() } else { vec![String::new()] };
        ShownText { text: shown, hidden }
    }

    /// What is to be hidden of a message.
    pub(super) fn edits(&self, text: &str, node: &JsonNode) -> Vec<Edited> {
        let mut edits = Vec::new();
        self.walk(text, node, ("", "", false), &mut edits);
        edits
    }

    /// Whether any names or places are hidden beside those that always are.
    pub(super) fn has_more(&self) -> bool {
        !self.names.is_empty() || !self.pointers.is_empty()
    }

    /// Hides what is within a value; `is_asked` is whether the file asks to hide all of it.
    pub(super) fn walk(
        &self,
        text: &str,
        node: &JsonNode,
        (pointer, name, is_asked): (&str, &str, bool),
        edits: &mut Vec<Edited>,
    ) {
        let is_asked = is_asked || self.is_asked(pointer, name);
        match &node.kind {
            JsonKind::Object(members) => {
                for (key, value) in members {
                    self.walk(text, value, (&step(pointer, key), key, is_asked), edits);
                }
            }
            JsonKind::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.walk(text, item, (&step(pointer, &n.to_string()), name, is_asked), edits);
                }
            }
            _ => {
                let hidden = if is_asked { Some(masked(text, node)) } else { hide_scalar(text, node, name) };
                edits.extend(hidden.map(|hidden| (node.span.clone(), hidden, pointer.to_owned())));
            }
        }
    }

    fn is_asked(&self, pointer: &str, name: &str) -> bool {
        (!self.names.is_empty() && self.names.contains(&words_of(name)))
            || self.pointers.iter().any(|place| place == pointer)
    }

    /// Whether the file asks to hide what has this name, or a place that ends with it.
    fn is_asked_anywhere(&self, words: &str) -> bool {
        let name_of = |place: &str| {
            let is_name = |step: &&str| !step.bytes().all(|byte| byte.is_ascii_digit());
            let last = place.rsplit('/').find(is_name).unwrap_or_default();
            words_of(&last.replace("~1", "/").replace("~0", "~"))
        };
        self.names.iter().any(|name| name == words) || self.pointers.iter().any(|place| name_of(place) == words)
    }

    /// Hides the values behind whatever looks like the name of a member that is to be hidden.
    fn hide_members(&self, text: &str) -> Option<String> {
        let (mut out, mut copied, mut at) = (String::new(), 0, 0);
        while let Some(found) = text[at..].find('"') {
            let start = at + found;
            at = start + 1;
            let Some((name, value)) = member_at(text, start) else { continue };
            let (words, rest) = (words_of(&name), &text[value..]);
            let is_asked = self.is_asked_anywhere(&words);
            let is_opaque = OPAQUE_NAMES.contains(&words.as_str());
            if !is_asked && !is_opaque && !is_secret_name(&words) {
                continue;
            }
            let end = match rest.as_bytes().first() {
                // What describes a secret is none.
                Some(b'{') if !is_asked => continue,
                Some(b'{' | b'[') => end_of_container(rest),
                Some(b'"') => end_of_text(rest),
                _ => rest.find([',', '}', ']', '\n']).unwrap_or(rest.len()),
            };
            let whole: Option<serde_json::Value> = serde_json::from_str(&rest[..end]).ok();
            let shown = match &whole {
                Some(serde_json::Value::Bool(_) | serde_json::Value::Null) if !is_asked => continue,
                Some(serde_json::Value::String(id)) if is_opaque && !is_asked => json_text(&shortened(id)),
                Some(serde_json::Value::String(value)) => json_text(&format!("{MASK} {}", value.chars().count())),
                _ => json_text(&format!("{MASK} {}", rest[..end].chars().count())),
            };
            out.push_str(&text[copied..value]);
            out.push_str(&shown);
            (copied, at) = (value + end, value + end);
        }
        (copied > 0).then(|| out + &text[copied..])
    }
}

/// What is hidden of a text: where, what is shown there, and the pointer to it.
pub(super) type Edited = (std::ops::Range<usize>, String, String);

/// A text with its edits, and without secrets that may also be keys, or stand in it as they are nowhere in the values.
pub(super) fn with_edits(text: &str, edits: Vec<Edited>) -> ShownText {
    let (mut shown, mut end) = (ShownText::default(), 0);
    for (span, replacement, pointer) in edits {
        shown.text.push_str(&text[end..span.start]);
        shown.text.push_str(&replacement);
        end = span.end;
        shown.hidden.push(pointer);
    }
    shown.text.push_str(&text[end..]);
    if let Cow::Owned(text) = secrets_in(&shown.text, MASK) {
        shown.text = text;
        shown.hidden.push(String::new());
    }
    shown
}

/// A scalar of which nothing but its length is shown.
pub(super) fn masked(text: &str, node: &JsonNode) -> String {
    let raw = &text[node.span.clone()];
    match node.kind {
        JsonKind::Literal => format!("\"{MASK}\""),
        _ => format!("\"{MASK} {}\"", node.text_in(text).map_or(raw.len(), |value| value.chars().count())),
    }
}

/// What is shown of a scalar in place of it, unless it is shown as it is.
fn hide_scalar(text: &str, node: &JsonNode, name: &str) -> Option<String> {
    let words = words_of(name);
    let raw = &text[node.span.clone()];
    if is_secret_name(&words) && node.kind != JsonKind::Literal && raw != "\"\"" {
        return Some(masked(text, node));
    }
    if node.kind != JsonKind::Text {
        return None;
    }
    let is_opaque = OPAQUE_NAMES.contains(&words.as_str());
    let Some(value) = node.text_in(text) else {
        // It breaks off, so that it is no string of JSON.
        return if is_opaque { Some(masked(text, node)) } else { hidden_in(raw) };
    };
    if is_opaque { Some(json_text(&shortened(&value))) } else { hidden_in(&value).map(|hidden| json_text(&hidden)) }
}

fn hidden_in(text: &str) -> Option<String> {
    match hide_in_text(text) {
        Cow::Borrowed(_) => None,
        Cow::Owned(hidden) => Some(hidden),
    }
}

/// The name of the member that begins with this quotation mark, and where its value begins.
fn member_at(text: &str, start: usize) -> Option<(String, usize)> {
    let window = &text[start..text.floor_char_boundary(start + MAX_MEMBER_NAME)];
    let end = end_of_text(window);
    let name = serde_json::from_str(&window[..end]).ok()?;
    let after = text[start + end..].trim_start().strip_prefix(':')?.trim_start();
    Some((name, text.len() - after.len()))
}

/// Where the string ends that a text begins with.
fn end_of_text(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Where the object or array ends that a text begins with.
fn end_of_container(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'"' => {
                at += end_of_text(&text[at..]);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return at + 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A name in small letters with underscores: `apiKey`, `API-Key` and `api_key` are the same.
fn words_of(name: &str) -> String {
    let (mut out, mut was_small) = (String::with_capacity(name.len() + 4), false);
    for letter in name.chars() {
        if letter.is_uppercase() && was_small {
            out.push('_');
        }
        was_small = letter.is_lowercase() || letter.is_ascii_digit();
        match letter {
            '-' | ' ' | '.' | '/' => out.push('_'),
            _ => out.extend(letter.to_lowercase()),
        }
    }
    out
}

fn is_secret_name(words: &str) -> bool {
    let ends_with = |name: &str| words.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'));
    SECRET_NAMES.into_iter().any(ends_with) && !HARMLESS_NAMES.contains(&words)
}

/// An id by its beginning and a hash, so that equal ones look equal.
pub fn shortened(id: &str) -> String {
    // Of a short one no more than half.
    let first: String = id.chars().take((id.chars().count() / 2).min(6)).collect();
    let hash = Sha256::digest(id.as_bytes());
    format!("{first}…{:02x}{:02x}", hash[0], hash[1])
}

/// A path as it may be shown: of its query the names only, and of ids of sessions the beginning.
pub fn shown_path(path: &str) -> String {
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let shorten = |part: &str| if is_id(part) { shortened(part) } else { part.to_owned() };
    let shown = path.split('/').map(shorten).collect::<Vec<_>>().join("/");
    let shown = hide_in_text(&shown).into_owned();
    query.map_or(shown.clone(), |query| format!("{shown}?{}", names_of_query(query)))
}

/// Whether a part of a path looks like the id of a session: it ends with 32 hexadecimal digits, as UUIDs do with hyphens
/// between them, or is as long as random letters are, and mixed like them.
fn is_id(part: &str) -> bool {
    let digits = part.bytes().rev().take_while(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    if digits.filter(|byte| *byte != b'-').count() >= 32 {
        return true;
    }
    let has = |fits: fn(&u8) -> bool| part.bytes().any(|byte| fits(&byte));
    part.len() >= MIN_RANDOM_ID
        && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'=' | b'~'))
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_lowercase)
        && has(u8::is_ascii_uppercase)
}

fn names_of_query(query: &str) -> String {
    let pair = |pair: &str| pair.split_once('=').map_or(pair.to_owned(), |(name, _)| format!("{name}={MASK}"));
    query.split('&').map(pair).collect::<Vec<_>>().join("&")
}

/// Hides secrets of the configuration, what looks like a key, and the queries of addresses.
pub fn hide_in_text(text: &str) -> Cow<'_, str> {
    let mut out = secrets_in(text, MASK);
    for part in [hide_pem, hide_words, hide_queries] {
        if let Some(hidden) = part(&out) {
            out = Cow::Owned(hidden);
        }
    }
    out
}

fn hide_pem(text: &str) -> Option<String> {
    let start = text.find("-----BEGIN ")?;
    let label = text[start..].find("PRIVATE KEY-----")?;
    let end = text[start..].find("-----END ").map_or(text.len(), |end| {
        let tail = start + end + "-----END ".len();
        text[tail..].find("-----").map_or(text.len(), |close| tail + close + 5)
    });
    (label < 40).then(|| format!("{}{MASK} PEM{}", &text[..start], &text[end..]))
}

/// Whether a letter may be within a key, or within Base64.
pub(super) fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.' | '+' | '/' | '=')
}

/// Hides words that look like keys, or hold a secret as Base64.
fn hide_words(text: &str) -> Option<String> {
    let (mut out, mut rest, mut is_changed) = (String::new(), text, false);
    while !rest.is_empty() {
        let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        match kind_of_key(word) {
            Some(kind) => {
                out.push_str(&format!("{MASK} {kind}"));
                is_changed = true;
            }
            None if holds_secret(word) => {
                out.push_str(MASK);
                is_changed = true;
            }
            None => out.push_str(word),
        }
        let between = after.find(is_word).unwrap_or(after.len());
        out.push_str(&after[..between]);
        rest = &after[between..];
    }
    is_changed.then_some(out)
}

/// The kind of key that a word looks like.
fn kind_of_key(word: &str) -> Option<&'static str> {
    let long = |rest: &str, least: usize| {
        rest.len() >= least && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let is_jwt = || {
        let parts: Vec<&str> = word.split('.').collect();
        parts.len() == 3 && parts[0].starts_with("eyJ") && parts[1].starts_with("eyJ") && long(parts[0], 10)
    };
    let prefixed = |prefix: &str, least| word.strip_prefix(prefix).is_some_and(|rest| long(rest, least));
    if is_jwt() {
        return Some("JWT");
    }
    if prefixed("sk-", 16) || prefixed("sk_", 16) {
        return Some("key");
    }
    if ["ghp_", "gho_", "ghs_", "ghu_", "github_pat_"].into_iter().any(|prefix| prefixed(prefix, 20)) {
        return Some("GitHub token");
    }
    if ["xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-"].into_iter().any(|prefix| prefixed(prefix, 10)) {
        return Some("Slack token");
    }
    let is_aws = |rest: &str| rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    word.strip_prefix("AKIA").is_some_and(is_aws).then_some("AWS key")
}

fn holds_secret(word: &str) -> bool {
    let word = word.trim_end_matches('=');
    if word.len() < MIN_BASE64 {
        return false;
    }
    let decoded = [STANDARD_NO_PAD.decode(word), URL_SAFE_NO_PAD.decode(word)];
    decoded.into_iter().flatten().any(|bytes| {
        let text = String::from_utf8_lossy(&bytes);
        matches!(secrets_in(&text, MASK), Cow::Owned(_))
    })
}

/// Leaves of the queries of addresses the names only.
fn hide_queries(text: &str) -> Option<String> {
    let (mut out, mut rest, mut is_changed) = (String::new(), text, false);
    while let Some(start) = rest.find("http://").into_iter().chain(rest.find("https://")).min() {
        let end = rest[start..].find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | ')'));
        let end = end.map_or(rest.len(), |end| start + end);
        let address = &rest[start..end];
        out.push_str(&rest[..start]);
        match address.split_once('?') {
            Some((before, query)) if query.contains('=') => {
                out.push_str(&format!("{before}?{}", names_of_query(query)));
                is_changed = true;
            }
            _ => out.push_str(address),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    is_changed.then_some(out)
}

/// A message as it may be shown to who may not see bodies: keys, types and lengths.
pub fn shape_of(text: &str) -> String {
    let Some(node) = JsonNode::parse(text) else { return format!("\"text {}\"", text.len()) };
    let mut out = String::new();
    push_shape(text, &node, &mut out);
    secrets_in(&out, MASK).into_owned()
}

fn push_shape(text: &str, node: &JsonNode, out: &mut String) {
    match &node.kind {
        JsonKind::Object(members) => {
            out.push('{');
            for (n, (key, value)) in members.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                out.push_str(&json_text(key));
                out.push(':');
                push_shape(text, value, out);
            }
            out.push('}');
        }
        JsonKind::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                push_shape(text, item, out);
            }
            out.push(']');
        }
        JsonKind::Text => {
            let length = node.text_in(text).map_or(0, |value| value.chars().count());
            out.push_str(&format!("\"string {length}\""));
        }
        JsonKind::Number => out.push_str("\"number\""),
        JsonKind::Literal if &text[node.span.clone()] == "null" => out.push_str("null"),
        JsonKind::Literal => out.push_str("\"boolean\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> (String, Vec<String>) {
        let shown = RedactionRules::default().show(text);
        (shown.text, shown.hidden)
    }

    #[test]
    fn members_named_like_secrets_are_hidden_and_their_false_friends_stay() {
        for (key, is_hidden) in [
            ("password", true),
            ("apiKey", true),
            ("API-Key", true),
            ("client_secret", true),
            ("accessToken", true),
            ("private_key", true),
            ("authorization", true),
            ("progressToken", false),
            ("maxTokens", false),
            ("secretary", false),
            ("passwordless", false),
            ("tokenizer", false),
        ] {
            let text = format!("{{\"a\": [{{\"{key}\": \"value 1.0\"}}]}}");
            let (out, hidden) = shown(&text);
            assert_eq!(!out.contains("value"), is_hidden, "{out}");
            let expected: Vec<String> = if is_hidden { vec![format!("/a/0/{key}")] } else { Vec::new() };
            assert_eq!(hidden, expected);
        }
        let schema = r#"{"properties": {"password": {"type": "string"}}, "token": null, "secret": true}"#;
        assert_eq!(shown(schema), (schema.to_owned(), Vec::new()), "a schema of a secret is none");
    }

    #[test]
    fn what_looks_like_a_key_is_hidden_and_its_false_friends_stay() {
        for (text, is_hidden) in [
            ("Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", true),
            ("key sk-abcdefghijklmnop1234 here", true),
            ("ghp_abcdefghijklmnopqrst12", true),
            ("xoxb-1234567890-abc", true),
            ("AKIAIOSFODNN7EXAMPLE", true),
            ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", true),
            ("eyJust.a.word", false),
            ("sk-short", false),
            ("a ghp_ prefix", false),
            ("AKIA is a word", false),
            ("-----BEGIN CERTIFICATE-----", false),
        ] {
            assert_eq!(hide_in_text(text).contains(MASK), is_hidden, "{text}: {}", hide_in_text(text));
        }
        assert_eq!(hide_in_text("see sk-abcdefghijklmnop1234, please"), "see ••• key, please");
    }

    #[test]
    fn other_bytes_stay_as_they_came() {
        let text = r#"{ "x" : 1.0, "big": 12345678901234567890, "t": "\u00e9", "token":"abc" }"#;
        let expected = r#"{ "x" : 1.0, "big": 12345678901234567890, "t": "\u00e9", "token":"••• 3" }"#;
        assert_eq!(shown(text), (expected.to_owned(), vec!["/token".to_owned()]));
    }

    #[test]
    fn everything_within_what_the_file_names_is_hidden_and_nothing_beside_it() {
        let rules = RedactionRules::new(&["customer".to_owned()], &[]);
        let text = r#"{"customer":{"name":"Ann","tags":["a1",2,{"vip":true,"since":null,"note":""}]},"customers":{"name":"Bob"},"name":"Cid"}"#;
        let shown = rules.show(text);
        let within = ["name", "tags/0", "tags/1", "tags/2/vip", "tags/2/since", "tags/2/note"];
        assert_eq!(shown.hidden, within.map(|within| format!("/customer/{within}")));
        for value in ["Ann", "a1", "2,", "true", "null"] {
            assert!(!shown.text.contains(value), "{value}: {}", shown.text);
        }
        assert!(shown.text.ends_with(r#""customers":{"name":"Bob"},"name":"Cid"}"#), "{}", shown.text);
        assert_eq!(rules.hidden_values(text), ["Ann", "a1", "2", "true", "null", ""]);
    }

    #[test]
    fn members_are_hidden_in_what_is_no_json() {
        let rules = RedactionRules::new(&["ssn".to_owned(), "/params/customer/0".to_owned()], &[]);
        for (text, expected) in [
            (r#"data: {"password": "hun\"ter2", "a": 1}"#, format!(r#"data: {{"password": "{MASK} 8", "a": 1}}"#)),
            (r#"{"token": hunter2, "a": b}"#, format!(r#"{{"token": "{MASK} 7", "a": b}}"#)),
            (r#"x "ssn": {"a": "}", "b": [1]}, "c": 2"#, format!(r#"x "ssn": "{MASK} 20", "c": 2"#)),
            (r#"x "customer": ["Ann", "Bob"#, format!(r#"x "customer": "{MASK} 12""#)),
            (r#"x "token": ["a", 1], "b": 2"#, format!(r#"x "token": "{MASK} 8", "b": 2"#)),
            (r#"x "api_key": "never closed"#, format!(r#"x "api_key": "{MASK} 13""#)),
            (r#"x "cursor": "abcdefghijklmnop","#, format!(r#"x "cursor": "{}","#, shortened("abcdefghijklmnop"))),
        ] {
            let shown = rules.show(text);
            assert_eq!((shown.text, shown.hidden), (expected, vec![String::new()]), "{text}");
        }
        for friend in [
            r#"the "password" is: secret"#,
            r#"x "password": {"type": "string"}"#,
            r#"x "token": null, "secret": true"#,
            r#"x "tokenizer": "bpe""#,
            "<h1>404</h1>",
        ] {
            assert_eq!(rules.show(friend), ShownText { text: friend.to_owned(), hidden: Vec::new() });
        }
    }

    #[test]
    fn names_and_pointers_of_the_file_are_hidden() {
        let rules = rules();
        let text = r#"{"params":{"arguments":{"customer":{"name":"Ann"},"other":{"ssn":"123","name":"Bob"}}}}"#;
        let shown = rules.show(text);
        assert_eq!(shown.hidden, ["/params/arguments/customer/name", "/params/arguments/other/ssn"]);
        assert!(!shown.text.contains("Ann") && shown.text.contains("Bob"));
    }

    #[test]
    fn secrets_of_the_file_are_hidden_in_text_and_base64_and_their_false_friends_stay() {
        crate::redact::Secrets::new(["kT7-wq9+Lz".to_owned(), "kT7-wq5".to_owned()]).install_also();
        let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let url_safe = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode("?>kT7-wq9+Lz?>");
        for secret in ["kT7-wq9+Lz", "akT7-wq9+Lzb", &encoded("kT7-wq9+Lz"), &encoded("user:kT7-wq9+Lz"), &url_safe] {
            let text = format!(r#"{{"a":"before {secret} after"}}"#);
            let (shown, hidden) = shown(&text);
            assert!(!shown.contains(secret) && shown.contains("before ") && shown.contains(" after"), "{shown}");
            assert_eq!(hidden, ["/a"], "{secret}");
        }
        // Shorter than eight letters, another one, and Base64 of something else.
        for friend in ["kT7-wq5", "kT7-wq9", "kt7-WQ9+lz", &encoded("kT7-wq5, and more"), &encoded("kT7-wq9"), "wq9+Lz"]
        {
            let text = format!(r#"{{"a":"before {friend} after"}}"#);
            assert_eq!(shown(&text), (text, Vec::new()));
        }
    }

    #[test]
    fn ids_states_and_cursors_are_known_by_their_whole_name() {
        for key in ["sessionId", "session_id", "mcp-session-id", "requestState", "cursor", "nextCursor"] {
            assert_eq!(shown(&format!(r#"{{"{key}":"abcdefghijklmnop"}}"#)).1, [format!("/{key}")]);
        }
        for friend in ["id", "session", "state", "requestStates", "cursorPosition", "precursor", "recursor"] {
            let text = format!(r#"{{"{friend}":"abcdefghijklmnop"}}"#);
            assert_eq!(shown(&text), (text, Vec::new()));
        }
        let numbers = r#"{"cursor":17,"nextCursor":null,"sessionId":{}}"#;
        assert_eq!(shown(numbers), (numbers.to_owned(), Vec::new()));
    }

    #[test]
    fn ids_are_shortened_so_that_equal_ones_look_equal() {
        let text = |state: &str| format!(r#"{{"requestState":"{state}","nextCursor":"{state}"}}"#);
        let (one, hidden) = shown(&text("abcdefghijklmnop"));
        assert_eq!(hidden, ["/requestState", "/nextCursor"]);
        assert!(one.contains("abcdef…") && !one.contains("ghij"));
        assert_eq!(one, shown(&text("abcdefghijklmnop")).0);
        assert_ne!(one, shown(&text("abcdefghijklmnoq")).0);
    }

    fn rules() -> RedactionRules {
        let more = ["ssn".to_owned(), "/params/arguments/customer".to_owned()];
        RedactionRules::new(&more, &["x-team".to_owned()])
    }

    #[test]
    fn headers_of_secrets_show_names_only() {
        let header = |name: &str, value: &str| rules().header((name, value), Some(&[]), BodyAccess::Shown);
        for name in
            ["Authorization", "x-api-key", "X-Team", "Mcp-Param-Ssn", "Mcp-Param-Customer", "mcp-param-password"]
        {
            assert_eq!(header(name, "abc"), MASK, "{name}");
        }
        assert_eq!(header("accept", "application/json"), "application/json");
        assert!(header("mcp-session-id", "0123456789abcdef").starts_with("012345…"));
    }

    #[test]
    fn headers_show_no_more_of_a_payload_than_its_message() {
        let text = r#"{"params":{"arguments":{"customer":"Ann","region":"north","age":41,"ssn":41}}}"#;
        let hidden = rules().hidden_values(text);
        assert_eq!(hidden, ["Ann", "41"]);
        let header = |value: &str, bodies| rules().header(("Mcp-Param-Where", value), Some(&hidden), bodies);
        assert_eq!(header("north", BodyAccess::Shown), "north");
        assert_eq!(header("=?base64?QW5u?=", BodyAccess::Shown), MASK, "the schema may name the header otherwise");
        assert_eq!(header("=?base64?5rCi?=", BodyAccess::Shown), "=?base64?5rCi?=");
        assert_eq!(header("=?base64?5rCi?=", BodyAccess::Shapes), "string 1");
        assert_eq!(header("north", BodyAccess::Shapes), "string 5");
        let unknown = rules().header(("Mcp-Param-Where", "north"), None, BodyAccess::Shown);
        assert_eq!(unknown, MASK, "the message may hide it where it is cut");
    }

    #[test]
    fn ids_of_sessions_in_paths_are_shortened_and_their_false_friends_stay() {
        for id in [
            "0123456789abcdef0123456789abcdef",
            "http-0123456789abcdef0123456789abcdef",
            "123e4567-e89b-12d3-a456-426614174000",
            "123E4567-E89B-12D3-A456-426614174000",
            "session-123e4567-e89b-12d3-a456-426614174000",
            "V1StGXR8_Z5jdHi6B-myT",
        ] {
            assert_eq!(shown_path(&format!("/messages/{id}/x?y")), format!("/messages/{}/x?y", shortened(id)));
        }
        for friend in
            ["/mcp/a-group-with-a-long-name-2025", "/sse/TheGroupOfOurSupportTeam", "/2025-11-25/feed-cafe/v1"]
        {
            assert_eq!(shown_path(friend), friend);
        }
    }

    #[test]
    fn queries_show_names_only() {
        assert_eq!(shown_path("/message?sessionId=abc&x=1"), format!("/message?sessionId={MASK}&x={MASK}"));
        assert_eq!(hide_in_text("at https://a.example/x?key=1 now"), format!("at https://a.example/x?key={MASK} now"));
        for friend in
            ["what? a=b", "https://a.example/x?", "https://a.example/x?key", "a.example/x?key=1", "http:// ?a=b"]
        {
            assert_eq!(hide_in_text(friend), friend);
        }
    }

    #[test]
    fn shapes_have_keys_types_and_lengths() {
        let text = r#"{"a":"four","b":[1,true,null],"c":{}}"#;
        assert_eq!(shape_of(text), r#"{"a":"string 4","b":["number","boolean",null],"c":{}}"#);
        assert_eq!(shape_of("plain"), "\"text 5\"");
    }
}
