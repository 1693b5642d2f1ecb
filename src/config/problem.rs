//! What is wrong with a file, and where.

use std::fmt;
use std::path::PathBuf;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// It can be used, and is probably not what was meant.
    Warning,
}

/// One thing that is wrong with a file. It never holds the value of a variable or of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The character in that line, from 1.
    pub column: usize,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// What was probably meant, or what to do.
    pub hint: Option<String>,
}

impl Severity {
    /// Its name, as it is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, severity) = (self.file.display(), self.severity.as_str());
        write!(f, "{file}:{}:{}: {severity}: {}", self.line, self.column, self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}

/// The line and the column of a place in a text, both from 1.
pub(super) fn place(text: &str, offset: usize) -> (usize, usize) {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_characters() {
        let text = "a\nbä€x\r\n";
        for (offset, at) in [(0, (1, 1)), (1, (1, 2)), (2, (2, 1)), (3, (2, 2)), (4, (2, 2)), (8, (2, 4)), (99, (3, 1))]
        {
            assert_eq!(place(text, offset), at, "{offset}");
        }
    }
}
