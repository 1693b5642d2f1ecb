//! Diagnostics: errors and warnings with their position in the file.

use std::fmt;
use std::path::PathBuf;

/// How serious a diagnostic is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file is valid, but probably not what was intended.
    Warning,
}

/// One error or warning. Never contains the value of a variable or a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Path of the file.
    pub file: PathBuf,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// Error or warning.
    pub severity: Severity,
    /// Description of the mistake.
    pub message: String,
    /// Suggested correction.
    pub hint: Option<String>,
}

impl Severity {
    /// The name as printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl Diagnostic {
    /// Message and hint without the position.
    pub(super) fn sentence(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}; {hint}", self.message),
            None => self.message.clone(),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, severity) = (self.file.display(), self.severity.as_str());
        write!(f, "{file}:{}:{}: {severity}: {}", self.line, self.column, self.sentence())
    }
}

/// Line and column of a byte offset, both counted from 1; the column counts characters.
pub(super) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
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
    fn columns_count_characters() {
        let text = "a\nbä€x\r\n";
        for (offset, at) in [(0, (1, 1)), (1, (1, 2)), (2, (2, 1)), (3, (2, 2)), (4, (2, 2)), (8, (2, 4)), (99, (3, 1))]
        {
            assert_eq!(line_and_column(text, offset), at, "{offset}");
        }
    }
}
