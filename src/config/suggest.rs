//! Suggestions for misspelled names.

/// The known name most similar to `word`, if any is similar enough.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let word = word.to_lowercase();
    let scored = known.iter().map(|candidate| (strsim::osa_distance(&word, &candidate.to_lowercase()), *candidate));
    let (score, near) = scored.min()?;
    (score <= 1 + near.len() / 4 && score < near.chars().count()).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["command", "args", "url", "cwd", "headers"];
        for (word, near) in [
            ("comand", Some("command")),
            ("commnad", Some("command")),
            ("URL", Some("url")),
            ("arg", Some("args")),
            ("header", Some("headers")),
            ("xyz", None),
            ("", None),
            ("q", None),
        ] {
            assert_eq!(nearest(word, &known), near, "{word}");
        }
        assert_eq!(nearest("x", &[]), None);
    }
}
