//! Expansion of `${NAME}`, `${NAME:-default}` and `${file:PATH}` in string values.

use std::io::Read;
use std::path::Path;

/// What stands before the path of a file that holds a secret.
pub(super) const FILE_PREFIX: &str = "file:";
/// Largest secret in a file.
const MAX_SECRET_BYTES: u64 = 64 << 10;

/// The content of a file that holds a secret, without the line break at its end. A relative path begins at the folder of
/// the configuration file. `None` where it cannot be read, is no text or too large.
pub(super) fn read_secret_file(config_file: &Path, path: &str) -> Option<String> {
    let path = config_file.parent().map_or_else(|| path.into(), |folder| folder.join(path));
    let mut text = String::new();
    let read = std::fs::File::open(path).ok()?.take(MAX_SECRET_BYTES + 1).read_to_string(&mut text).ok()?;
    let secret = text.strip_suffix('\n').unwrap_or(&text);
    let secret = secret.strip_suffix('\r').unwrap_or(secret);
    (u64::try_from(read).ok()? <= MAX_SECRET_BYTES).then(|| secret.to_owned())
}

/// Expands variables in a string. `${env:NAME}`, as some clients write it, is the same as `${NAME}`; `$${` is a
/// literal `${`. An empty variable counts as unset.
///
/// # Errors
/// The names of unset variables without a default.
pub(super) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, Vec<String>> {
    let mut out = String::with_capacity(text.len());
    let mut missing = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = after;
            continue;
        }
        out.push_str(before);
        let Some((inner, tail)) = after.split_once('}') else {
            out.push_str("${");
            rest = after;
            continue;
        };
        let inner = inner.strip_prefix("env:").unwrap_or(inner);
        let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, default)| (name, Some(default)));
        match lookup(name).filter(|value| !value.is_empty()).or_else(|| default.map(str::to_owned)) {
            Some(value) => out.push_str(&value),
            None => missing.push(name.to_owned()),
        }
        rest = tail;
    }
    out.push_str(rest);
    if missing.is_empty() { Ok(out) } else { Err(missing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded() {
        let lookup = |name: &str| match name {
            "A" => Some("1".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        for (text, expanded) in [
            ("plain", Ok("plain")),
            ("a${A}b", Ok("a1b")),
            ("${A}${A}", Ok("11")),
            ("${env:A}", Ok("1")),
            ("${B:-two}", Ok("two")),
            ("${env:B:-two}", Ok("two")),
            ("${B:-}", Ok("")),
            ("${EMPTY:-two}", Ok("two")),
            ("$${A} ${A}", Ok("${A} 1")),
            ("${A", Ok("${A")),
            ("$A", Ok("$A")),
            ("${B}${A}${C}", Err(vec!["B".to_owned(), "C".to_owned()])),
            ("${EMPTY}", Err(vec!["EMPTY".to_owned()])),
            ("${input:key}", Err(vec!["input:key".to_owned()])),
        ] {
            assert_eq!(expand(text, &lookup), expanded.map(str::to_owned), "{text}");
        }
    }
}
