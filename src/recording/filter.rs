//! The filter of calls, as `console/pure/query.js` reads it, too.
//!
//! Terms are separated by spaces and must all hold. `key:value` compares one column, other text is looked for in all of
//! them and in the texts of messages, for those who may see them; `-` before a term negates it, a comma separates alternatives, quotes keep spaces together, `*` stands for
//! anything.

use serde_json::Value;
use wildmatch::WildMatch;

/// A filter that was understood.
#[derive(Debug, Clone, Default)]
pub struct CallFilter(Vec<FilterTerm>);

#[derive(Debug, Clone)]
struct FilterTerm {
    key: FilterKey,
    values: Vec<String>,
    is_negated: bool,
}

/// What a term compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilterKey {
    Any,
    Client,
    Server,
    Tool,
    Method,
    Outcome,
    Took,
    Era,
    Node,
    Group,
    Caller,
    Session,
    Id,
}

const KEYS: [(&str, FilterKey); 12] = [
    ("client", FilterKey::Client),
    ("server", FilterKey::Server),
    ("tool", FilterKey::Tool),
    ("method", FilterKey::Method),
    ("outcome", FilterKey::Outcome),
    ("took", FilterKey::Took),
    ("era", FilterKey::Era),
    ("node", FilterKey::Node),
    ("group", FilterKey::Group),
    ("caller", FilterKey::Caller),
    ("session", FilterKey::Session),
    ("id", FilterKey::Id),
];
const ERAS: [&str; 4] = ["none", "names", "era", "across"];

impl CallFilter {
    /// Reads a filter.
    ///
    /// # Errors
    /// What is not understood, and what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        for written in split(text) {
            let Some(term) = FilterTerm::read(&written) else { continue };
            if let Some(wrong) = term.values.iter().find(|value| !term.key.accepts(value)) {
                return Err(term.key.complaint(wrong));
            }
            terms.push(term);
        }
        Ok(Self(terms))
    }

    /// Whether a row is shown.
    pub fn matches(&self, row: &Value) -> bool {
        self.0.iter().all(|term| term.holds(row))
    }

    /// Whether a call is shown, by its row and, where a text can be anywhere, by those of its messages.
    pub fn matches_call(&self, mut row: Value, texts: impl FnOnce() -> Vec<String>) -> bool {
        let (free, keyed): (Vec<_>, Vec<_>) = self.0.iter().partition(|term| term.key == FilterKey::Any);
        let all_hold = |terms: &[&FilterTerm], row: &Value| terms.iter().all(|term| term.holds(row));
        // Texts are long, so they are read only for calls that are shown otherwise.
        if !all_hold(&keyed, &row) {
            return false;
        }
        if !free.is_empty() {
            row["texts"] = texts().into();
        }
        all_hold(&free, &row)
    }

    /// Whether every row is shown.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Terms as they were written; quotes keep spaces together.
fn split(text: &str) -> Vec<String> {
    let (mut terms, mut term, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in text.chars() {
        if letter == '"' {
            is_quoted = !is_quoted;
        }
        if !is_quoted && letter.is_whitespace() {
            if !term.is_empty() {
                terms.push(std::mem::take(&mut term));
            }
        } else {
            term.push(letter);
        }
    }
    if !term.is_empty() {
        terms.push(term);
    }
    terms
}

impl FilterTerm {
    fn holds(&self, row: &Value) -> bool {
        self.values.iter().any(|value| self.key.holds(value, row)) != self.is_negated
    }

    /// `None` for a term without a value, as while one types.
    fn read(written: &str) -> Option<Self> {
        let rest = written.strip_prefix('-').filter(|rest| !rest.is_empty());
        let (is_negated, rest) = (rest.is_some(), rest.unwrap_or(written));
        let known = rest.split_once(':').and_then(|(key, value)| {
            let key = key.to_lowercase();
            KEYS.iter().find(|(name, _)| *name == key).map(|(_, key)| (*key, value))
        });
        let (key, value) = known.unwrap_or((FilterKey::Any, rest));
        let value = value.to_lowercase();
        let values: Vec<String> = match key != FilterKey::Any && !value.contains('"') {
            true => value.split(',').map(str::to_owned).collect(),
            false => vec![value.replace('"', "")],
        };
        let values: Vec<String> = values.into_iter().filter(|value| !value.is_empty()).collect();
        (!values.is_empty()).then_some(Self { key, values, is_negated })
    }
}

impl FilterKey {
    fn accepts(self, value: &str) -> bool {
        match self {
            Self::Took => FilterDuration::read(value).is_some(),
            Self::Era => ERAS.contains(&value),
            _ => true,
        }
    }

    fn complaint(self, value: &str) -> String {
        match self {
            Self::Took => format!("took:{value} is not a duration; write took:>1s, took:<20ms or took:>=500us"),
            _ => format!("era:{value} is not known; write era:none, era:names, era:era or era:across"),
        }
    }

    fn holds(self, value: &str, row: &Value) -> bool {
        match self {
            Self::Took => {
                FilterDuration::read(value).is_some_and(|limit| limit.holds(row["took_us"].as_f64().unwrap_or(0.0)))
            }
            Self::Era => row["bridge"] == value,
            _ => self.columns().iter().any(|pointer| column_matches(row.pointer(pointer), value)),
        }
    }

    /// Pointers to what a term with this key is compared with.
    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Client => &["/client/name", "/client/version", "/client/revision"],
            Self::Server => &["/server/name", "/server/revision"],
            Self::Tool => &["/name", "/server/own"],
            Self::Method => &["/method"],
            Self::Outcome => &["/outcome", "/error/code"],
            Self::Node => &["/node"],
            Self::Group => &["/group"],
            Self::Caller => &["/client/caller"],
            Self::Session => &["/client/session"],
            Self::Id => &["/id", "/requests"],
            Self::Took | Self::Era => &[],
            Self::Any => &[
                "/method",
                "/name",
                "/server/own",
                "/client/name",
                "/client/revision",
                "/client/caller",
                "/server/name",
                "/server/revision",
                "/group",
                "/outcome",
                "/error/message",
                "/id",
                "/texts",
            ],
        }
    }
}

fn column_matches(column: Option<&Value>, value: &str) -> bool {
    let text = match column {
        Some(Value::String(text)) => text.to_lowercase(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Array(items)) => return items.iter().any(|item| column_matches(Some(item), value)),
        _ => return false,
    };
    match value.contains('*') {
        true => WildMatch::new(&value.replace('?', "\\?")).matches(&text),
        false => text.contains(value),
    }
}

/// A duration with a sign: `>1s`, `<20ms`, `500` (milliseconds, at least).
struct FilterDuration {
    sign: &'static str,
    micros: f64,
}

impl FilterDuration {
    fn read(text: &str) -> Option<Self> {
        let sign = ["<=", ">=", "<", ">"].into_iter().find(|sign| text.starts_with(sign));
        let rest = &text[sign.map_or(0, str::len)..];
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, unit) = rest.split_at(digits);
        let factor = match unit {
            "us" => 1.0,
            "" | "ms" => 1e3,
            "s" => 1e6,
            "m" => 60e6,
            _ => return None,
        };
        let is_number = number.starts_with(|c: char| c.is_ascii_digit()) && !number.ends_with('.');
        let number: f64 = number.parse().ok().filter(|_| is_number)?;
        Some(Self { sign: sign.unwrap_or(">="), micros: number * factor })
    }

    fn holds(&self, micros: f64) -> bool {
        match self.sign {
            ">" => micros > self.micros,
            "<" => micros < self.micros,
            "<=" => micros <= self.micros,
            _ => micros >= self.micros,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_of_the_page_hold_here_too() {
        let table: Value = serde_json::from_str(include_str!("../../console/pure/query-cases.json")).unwrap();
        let rows = table["rows"].as_object().unwrap();
        let cases = table["cases"].as_array().unwrap();
        assert!(cases.len() > 30);
        for case in cases {
            let query = case["q"].as_str().unwrap();
            let filter = CallFilter::parse(query);
            assert_eq!(filter.is_err(), case["error"] == true, "{query}: {filter:?}");
            let Ok(filter) = filter else { continue };
            let is_shown = |row: &Value| {
                let mut bare = row.clone();
                let texts = bare.as_object_mut().unwrap().remove("texts").unwrap_or_default();
                let text = |text: &Value| text.as_str().unwrap().to_owned();
                filter.matches_call(bare, || texts.as_array().into_iter().flatten().map(text).collect())
            };
            let mut shown: Vec<&str> =
                rows.iter().filter(|(_, row)| is_shown(row)).map(|(name, _)| name.as_str()).collect();
            let mut expected: Vec<&str> =
                case["shows"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            shown.sort_unstable();
            expected.sort_unstable();
            assert_eq!(shown, expected, "{query}");
        }
    }

    #[test]
    fn texts_are_read_only_where_they_can_decide() {
        let row = serde_json::json!({ "method": "tools/call" });
        let never = || panic!("these texts decide nothing");
        assert!(CallFilter::parse("method:tools").unwrap().matches_call(row.clone(), never));
        assert!(!CallFilter::parse("method:ping subtasks").unwrap().matches_call(row.clone(), never));
        assert!(!CallFilter::parse("subtasks").unwrap().matches_call(row, Vec::new));
    }
}
