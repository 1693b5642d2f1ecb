//! Words of a command line, as a shell would split it.

/// Letters that a backslash quotes between double quotes; before others it stands for itself.
const QUOTED_BY_BACKSLASH: [char; 4] = ['$', '`', '"', '\\'];

/// Splits a command line at its spaces. Quotes and backslashes keep letters together; a backslash at the end of a line
/// joins it with the next one. Nothing is expanded.
///
/// # Errors
/// What is open at the end.
pub(super) fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => quoted(&mut letters, word.get_or_insert_default())?,
            '"' => double_quoted(&mut letters, word.get_or_insert_default())?,
            '\\' => match letters.next() {
                Some('\n') => {}
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err("the backslash at the end quotes nothing"),
            },
            space if space.is_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

fn quoted(letters: &mut impl Iterator<Item = char>, word: &mut String) -> Result<(), &'static str> {
    for letter in letters {
        if letter == '\'' {
            return Ok(());
        }
        word.push(letter);
    }
    Err("a single quote (') is never closed")
}

fn double_quoted(letters: &mut impl Iterator<Item = char>, word: &mut String) -> Result<(), &'static str> {
    const OPEN: &str = "a double quote (\") is never closed";
    loop {
        match letters.next().ok_or(OPEN)? {
            '"' => return Ok(()),
            '\\' => match letters.next().ok_or(OPEN)? {
                '\n' => {}
                next => {
                    if !QUOTED_BY_BACKSLASH.contains(&next) {
                        word.push('\\');
                    }
                    word.push(next);
                }
            },
            other => word.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_a_shell() {
        for (line, words) in [
            ("", &[] as &[&str]),
            ("  npx  -y\t@acme/files ", &["npx", "-y", "@acme/files"]),
            ("serve \"/srv/my files\" 'it''s'", &["serve", "/srv/my files", "its"]),
            (r#"say "a \"b\" \$c \d \\" 'a\b'"#, &["say", r#"a "b" $c \d \"#, r"a\b"]),
            (r"say a\ b \'c\' --name=x' 'y", &["say", "a b", "'c'", "--name=x y"]),
            ("run '' \"\"", &["run", "", ""]),
            ("npx \\\n  -y files", &["npx", "-y", "files"]),
            ("say \"one \\\ntwo\" 'three\nfour'", &["say", "one two", "three\nfour"]),
        ] {
            assert_eq!(split(line).unwrap(), words, "{line}");
        }
    }

    #[test]
    fn what_is_open_is_refused() {
        for (line, what) in [
            ("say 'a b", "single quote"),
            ("say \"a b", "double quote"),
            ("say \"a\\", "double"),
            ("a \\", "backslash"),
        ] {
            assert!(split(line).unwrap_err().contains(what), "{line}");
        }
    }
}
