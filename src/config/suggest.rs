//! Suggestions for misspelled names.

/// The known name most similar to `word`, if any is similar enough.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let word = word.to_lowercase();
    let scored = known.iter().map(|candidate| (edit_distance(&word, &candidate.to_lowercase()), *candidate));
    let (score, near) = scored.min()?;
    (score <= 1 + near.len() / 4 && score < near.chars().count()).then_some(near)
}

/// Edit distance with transpositions (optimal string alignment).
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let changed = rows[i][j] + usize::from(a[i] != b[j]);
            let mut best = changed.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
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
