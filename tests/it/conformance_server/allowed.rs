//! The differences that are known and have a reason: `tests/conformance/server-differences.yml`.

use std::fs;
use std::path::Path;

use super::Row;
use super::verdict::Difference;

/// Stands for all fixtures, or all revisions.
const ANY: &str = "any";

/// A difference that has a reason. It has to occur in every row that it speaks of.
#[derive(Debug, Default, PartialEq)]
pub struct Allowed {
    fixture: String,
    revision: String,
    scenario: String,
    check: String,
    reason: String,
    /// The rows of one transport to the fixture only.
    transport: Option<String>,
    /// The rows of one placement only.
    placement: Option<String>,
}

/// The list as it is in the repository.
pub fn listed() -> Vec<Allowed> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/server-differences.yml");
    parse(&fs::read_to_string(file).unwrap()).unwrap_or_else(|fault| panic!("server-differences.yml: {fault}"))
}

/// Reads the list. It has entries of `key: value` lines and comments, and nothing else of YAML.
pub fn parse(text: &str) -> Result<Vec<Allowed>, String> {
    let mut entries: Vec<Allowed> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fault = |what: &str| format!("line {}: {what}: {line}", number + 1);
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let pair = match line.strip_prefix("- ") {
            Some(pair) => {
                entries.push(Allowed::default());
                pair
            }
            None => line.strip_prefix("  ").ok_or_else(|| fault("neither an entry nor a part of one"))?,
        };
        let entry = entries.last_mut().ok_or_else(|| fault("belongs to no entry"))?;
        let (key, value) = pair.split_once(": ").ok_or_else(|| fault("not a key and a value"))?;
        let value = value.trim().trim_matches('"').to_owned();
        let taken = match key {
            "fixture" => &mut entry.fixture,
            "revision" => &mut entry.revision,
            "scenario" => &mut entry.scenario,
            "check" => &mut entry.check,
            "reason" => &mut entry.reason,
            "transport" => entry.transport.get_or_insert_default(),
            "placement" => entry.placement.get_or_insert_default(),
            _ => return Err(fault("not a key that is known")),
        };
        if !taken.is_empty() || value.is_empty() {
            return Err(fault("said twice, or nothing"));
        }
        *taken = value;
    }
    let incomplete = |entry: &&Allowed| {
        [&entry.fixture, &entry.revision, &entry.scenario, &entry.check, &entry.reason].iter().any(|v| v.is_empty())
    };
    match entries.iter().find(incomplete) {
        Some(entry) => Err(format!("something is missing: {entry:?}")),
        None => Ok(entries),
    }
}

/// What is wrong with a row: differences that are not listed, and listed ones that are not there.
pub fn faults(row: &Row, found: &[Difference], list: &[Allowed]) -> Vec<String> {
    let list: Vec<&Allowed> = list.iter().filter(|entry| entry.speaks_of(row)).collect();
    let unlisted = found.iter().filter(|difference| !list.iter().any(|entry| entry.is(difference)));
    let stale = list.iter().filter(|entry| !found.iter().any(|difference| entry.is(difference)));
    let unlisted = unlisted.map(|difference| format!("{row}: {difference}"));
    let stale = stale.map(|entry| format!("{row}: {} / {} is listed, but the same", entry.scenario, entry.check));
    unlisted.chain(stale).collect()
}

impl Allowed {
    /// Whether a row is meant.
    pub fn speaks_of(&self, row: &Row) -> bool {
        let is = |wanted: &str, is: &str| wanted == ANY || wanted == is;
        is(&self.fixture, row.fixture.name())
            && is(&self.revision, row.suite.revision)
            && self.transport.as_deref().is_none_or(|transport| transport == row.transport.name())
            && self.placement.as_deref().is_none_or(|placement| placement == row.placement.name())
    }

    fn is(&self, difference: &Difference) -> bool {
        self.scenario == difference.scenario && self.check == difference.check
    }
}
