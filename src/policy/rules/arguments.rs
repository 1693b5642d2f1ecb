//! Conditions on the arguments of a call, read by a scan of the raw JSON.

use std::borrow::Cow;

use wildmatch::WildMatch;

use crate::protocol::Raw;

/// A condition of `when`: a JSON Pointer into the arguments, and patterns of which one must match.
#[derive(Debug, Clone, PartialEq)]
pub struct ArgumentCondition {
    pointer: String,
    /// The reference tokens of the pointer.
    path: Vec<String>,
    patterns: Vec<WildMatch>,
}

/// What conditions are judged by.
#[derive(Debug, Clone, Copy)]
pub enum JudgedArguments<'a> {
    /// None: conditions count as matching. Lists and completions are judged so.
    Assumed,
    /// The arguments of the call; `None` when it has none.
    Given(Option<&'a Raw>),
    /// The call has several: no condition matches.
    Ambiguous,
}

impl ArgumentCondition {
    /// Parses the pointer and its patterns.
    ///
    /// # Errors
    /// What is wrong with the pointer, as the end of a sentence that begins with it.
    pub fn parse(pointer: &str, patterns: &[String]) -> Result<Self, &'static str> {
        let Some(tokens) = pointer.strip_prefix('/') else {
            return Err("is no JSON Pointer");
        };
        let path = tokens.split('/').map(unescape).collect::<Option<Vec<_>>>();
        let path = path.ok_or("has a `~` that is not followed by 0 or 1")?;
        let patterns = patterns.iter().map(|pattern| WildMatch::new(pattern)).collect();
        Ok(Self { pointer: pointer.to_owned(), path, patterns })
    }

    /// The pointer as it is written.
    pub fn pointer(&self) -> &str {
        &self.pointer
    }

    /// Whether the condition holds.
    pub fn matches(&self, arguments: JudgedArguments<'_>) -> bool {
        let value = match arguments {
            JudgedArguments::Assumed => return true,
            JudgedArguments::Given(Some(arguments)) => find(arguments, &self.path),
            JudgedArguments::Given(None) | JudgedArguments::Ambiguous => None,
        };
        let text = value.as_ref().and_then(scalar_text);
        text.is_some_and(|text| self.patterns.iter().any(|pattern| pattern.matches(&text)))
    }
}

fn unescape(token: &str) -> Option<String> {
    let is_valid = token.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    is_valid.then(|| token.replace("~1", "/").replace("~0", "~"))
}

/// The value that the tokens lead to; `None` when a member on the way stands twice: the server may read the other one.
fn find(value: &Raw, path: &[String]) -> Option<Raw> {
    let Some((token, rest)) = path.split_first() else { return Some(value.clone()) };
    let found = if value.is_array() {
        let is_index = token == "0" || !token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit());
        let index: usize = Some(token).filter(|_| is_index)?.parse().ok()?;
        value.items().into_iter().nth(index)?
    } else {
        let mut members = value.entries().filter(|(key, _)| key == token);
        let (_, found) = members.next()?;
        if members.next().is_some() {
            return None;
        }
        found
    };
    find(&found, rest)
}

/// A string without its escapes, or a number or boolean as it is written.
fn scalar_text(value: &Raw) -> Option<Cow<'_, str>> {
    match value.as_bytes().first()? {
        b'"' => value.text(),
        b'{' | b'[' | b'n' => None,
        _ => std::str::from_utf8(value.as_bytes()).ok().map(Cow::Borrowed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pointer: &str, patterns: &[&str], arguments: &'static str) -> bool {
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let condition = ArgumentCondition::parse(pointer, &patterns).unwrap();
        condition.matches(JudgedArguments::Given(Some(&Raw::constant(arguments))))
    }

    #[test]
    fn conditions_on_arguments() {
        for (pointer, pattern, arguments, expected) in [
            ("/project", "ACME-*", r#"{"project":"ACME-7"}"#, true),
            ("/project", "ACME-*", r#"{"x":1,"project":"\u0041CME-7"}"#, true),
            ("/project", "ACME-*", r#"{"project":"OTHER-7"}"#, false),
            ("/project", "ACME-*", r#"{"project":"ACME-7","project":"ACME-8"}"#, false),
            ("/project", "ACME-*", r#"{"project":"ACME-7","pro\u006aect":"X"}"#, false),
            ("/project", "*", r#"{"project":["ACME-7"]}"#, false),
            ("/project", "*", r#"{"project":{"a":1}}"#, false),
            ("/project", "*", r#"{"project":null}"#, false),
            ("/project", "*", r"{}", false),
            ("/project", "*", r#"{"project":"\ud800"}"#, false),
            ("/count", "5", r#"{"count":5}"#, true),
            ("/count", "5", r#"{"count":50}"#, false),
            ("/dry", "true", r#"{"dry":true}"#, true),
            ("/a/b", "x", r#"{"a":{"b":"x"}}"#, true),
            ("/a/b", "x", r#"{"a":{"b":"x"},"a":{"b":"x"}}"#, false),
            ("/list/1", "y", r#"{"list":["x","y"]}"#, true),
            ("/list/01", "y", r#"{"list":["x","y"]}"#, false),
            ("/list/-", "*", r#"{"list":["x","y"]}"#, false),
            ("/a~1b/m~0n", "x", r#"{"a/b":{"m~n":"x"}}"#, true),
            ("/", "x", r#"{"":"x"}"#, true),
            ("/project", "*", r#""project""#, false),
        ] {
            assert_eq!(matches(pointer, &[pattern], arguments), expected, "{pointer} {pattern} {arguments}");
        }
        assert!(matches("/p", &["a", "b"], r#"{"p":"b"}"#), "one of the patterns is enough");
        let any = ArgumentCondition::parse("/p", &["*".to_owned()]).unwrap();
        assert!(any.matches(JudgedArguments::Assumed) && !any.matches(JudgedArguments::Ambiguous));
        assert!(!any.matches(JudgedArguments::Given(None)));
    }

    #[test]
    fn a_pointer_that_is_none_is_refused() {
        for pointer in ["", "project", "/a~", "/a~2"] {
            assert!(ArgumentCondition::parse(pointer, &[]).is_err(), "{pointer}");
        }
    }
}
