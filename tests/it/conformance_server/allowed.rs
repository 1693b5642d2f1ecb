//! Allowed differences with their reason, read from `tests/conformance/*-differences.yml`.

use std::fs;
use std::path::Path;

use super::Row;
use super::verdict::{Difference, DifferenceKind};

/// Matches every fixture or every revision.
const ANY: &str = "any";

/// An allowed difference. It must occur in every row that it applies to.
#[derive(Debug, Default, PartialEq)]
pub struct AllowedDifference {
    fixture: String,
    revision: String,
    scenario: String,
    checks: Vec<String>,
    reason: String,
    /// Paths in the check details; anywhere if empty.
    places: Vec<String>,
    /// Limits the entry to rows of one fixture shape.
    shape: Option<String>,
    /// Limits the entry to rows of one transport.
    transport: Option<String>,
    /// Limits the entry to rows of one placement.
    placement: Option<String>,
}

/// Reads a list of the repository.
pub fn listed(name: &str) -> Vec<AllowedDifference> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance").join(name);
    parse(&fs::read_to_string(file).unwrap()).unwrap_or_else(|fault| panic!("{name}: {fault}"))
}

/// Parses the YAML subset of the lists: entries of `key: value` lines, two keys with a list, comments.
pub fn parse(text: &str) -> Result<Vec<AllowedDifference>, String> {
    let mut entries: Vec<AllowedDifference> = Vec::new();
    let mut inside = None;
    for (number, line) in text.lines().enumerate() {
        let fault = |what: &str| format!("line {}: {what}: {line}", number + 1);
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(item) = line.strip_prefix("    - ") {
            let entry = entries.last_mut().ok_or_else(|| fault("belongs to no entry"))?;
            let items = match inside {
                Some("checks:") => &mut entry.checks,
                Some("places:") => &mut entry.places,
                _ => return Err(fault("belongs to no list")),
            };
            items.push(item.trim().to_owned());
            continue;
        }
        inside = line.strip_prefix("  ").filter(|key| ["checks:", "places:"].contains(key));
        if inside.is_some() {
            continue;
        }
        let pair = match line.strip_prefix("- ") {
            Some(pair) => {
                entries.push(AllowedDifference::default());
                pair
            }
            None => line.strip_prefix("  ").ok_or_else(|| fault("neither an entry nor a part of one"))?,
        };
        let entry = entries.last_mut().ok_or_else(|| fault("belongs to no entry"))?;
        let (key, value) = pair.split_once(": ").ok_or_else(|| fault("not a key and a value"))?;
        let value = value.trim().trim_matches('"').to_owned();
        let field = match key {
            "fixture" => &mut entry.fixture,
            "revision" => &mut entry.revision,
            "scenario" => &mut entry.scenario,
            "check" => {
                entry.checks.push(String::new());
                &mut entry.checks[0]
            }
            "reason" => &mut entry.reason,
            "shape" => entry.shape.get_or_insert_default(),
            "transport" => entry.transport.get_or_insert_default(),
            "placement" => entry.placement.get_or_insert_default(),
            _ => return Err(fault("not a key that is known")),
        };
        if !field.is_empty() || value.is_empty() {
            return Err(fault("duplicate key or empty value"));
        }
        *field = value;
    }
    let incomplete = |entry: &&AllowedDifference| {
        let required = [&entry.fixture, &entry.revision, &entry.scenario, &entry.reason];
        entry.checks.is_empty() || required.iter().any(|value| value.is_empty())
    };
    match entries.iter().find(incomplete) {
        Some(entry) => Err(format!("something is missing: {entry:?}")),
        None => Ok(entries),
    }
}

/// Faults of a row: unlisted differences and stale entries.
pub fn faults(row: &Row, found: &[Difference], list: &[AllowedDifference]) -> Vec<String> {
    let list: Vec<&AllowedDifference> = list.iter().filter(|entry| entry.applies_to(row)).collect();
    let unlisted = found.iter().filter(|difference| !is_listed(difference, &list));
    let unlisted = unlisted.map(|difference| format!("{row}: {difference}"));
    let stale = list.iter().flat_map(|entry| entry.stale(found));
    unlisted.chain(stale.map(|stale| format!("{row}: {stale} is listed, but the same"))).collect()
}

/// Whether an entry covers the difference, or entries cover each of its paths.
fn is_listed(difference: &Difference, list: &[&AllowedDifference]) -> bool {
    let entries: Vec<_> = list.iter().filter(|entry| entry.matches(difference)).collect();
    let in_place = |place: &String| entries.iter().any(|entry| entry.places.contains(place));
    let in_places = match &difference.kind {
        DifferenceKind::Details(faults) => faults.iter().all(|fault| in_place(&fault.place)),
        _ => false,
    };
    in_places || entries.iter().any(|entry| entry.places.is_empty())
}

impl AllowedDifference {
    /// Whether the entry applies to a row.
    pub fn applies_to(&self, row: &Row) -> bool {
        let is = |wanted: &str, is: &str| wanted == ANY || wanted == is;
        is(&self.fixture, row.fixture.name())
            && is(&self.revision, row.suite.revision)
            && self.shape.as_deref().is_none_or(|shape| shape == row.shape.name())
            && self.transport.as_deref().is_none_or(|transport| transport == row.transport.name())
            && self.placement.as_deref().is_none_or(|placement| placement == row.placement.name())
    }

    fn matches(&self, difference: &Difference) -> bool {
        self.scenario == difference.scenario && self.checks.contains(&difference.check)
    }

    /// Listed checks and paths that do not differ.
    fn stale(&self, found: &[Difference]) -> Vec<String> {
        let mut stale = Vec::new();
        for check in &self.checks {
            let name = format!("{} / {check}", self.scenario);
            let what = found.iter().find(|found| self.matches(found) && found.check == *check).map(|found| &found.kind);
            let faults = match what {
                None => {
                    stale.push(name);
                    continue;
                }
                Some(DifferenceKind::Details(faults)) => faults.as_slice(),
                Some(_) => &[],
            };
            let same = self.places.iter().filter(|place| !faults.iter().any(|fault| fault.place == **place));
            stale.extend(same.map(|place| format!("{name}: {place}")));
        }
        stale
    }
}
