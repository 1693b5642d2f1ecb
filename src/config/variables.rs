//! `${NAME}` and `${NAME:-default}` in the values of a file.

/// Puts the values of variables into a text. `${env:NAME}`, as some clients write it, is the same
/// as `${NAME}`.
///
/// # Errors
/// The name of the first variable that is not set and has no default.
pub(super) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
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
            None => return Err(name.to_owned()),
        }
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_put_in() {
        let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expanded) in [
            ("plain", Ok("plain")),
            ("a${A}b", Ok("a1b")),
            ("${env:A}", Ok("1")),
            ("${B:-two}", Ok("two")),
            ("${B:-}", Ok("")),
            ("${B}", Err("B")),
            ("${A", Ok("${A")),
            ("$A", Ok("$A")),
        ] {
            assert_eq!(expand(text, &lookup).as_deref().map_err(String::as_str), expanded, "{text}");
        }
    }
}
