//! The differences that are known and have a reason: `tests/conformance/server-differences.yml`.

use std::fs;
use std::path::Path;

use super::Row;
use super::verdict::{Difference, What};

/// Stands for all fixtures, or all revisions.
const ANY: &str = "any";

/// A difference that has a reason. It has to occur in every row that it speaks of.
#[derive(Debug, Default, PartialEq)]
pub struct Allowed {
    fixture: String,
    revision: String,
    scenario: String,
    checks: Vec<String>,
    reason: String,
    /// Where in the details of the checks; anywhere if none is named.
    places: Vec<String>,
    /// The rows of one shape of the fixture only.
    shape: Option<String>,
    /// The rows of one transport to the fixture only.
    transport: Option<String>,
    /// The rows of one placement only.
    placement: Option<String>,
}

/// A list as it is in the repository.
pub fn listed(name: &str) -> Vec<Allowed> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance").join(name);
    parse(&fs::read_to_string(file).unwrap()).unwrap_or_else(|fault| panic!("{name}: {fault}"))
}

/// Reads the list. It has entries of `key: value` lines, two keys that have a list below them, and
/// comments, and nothing else of YAML.
pub fn parse(text: &str) -> Result<Vec<Allowed>, String> {
    let mut entries: Vec<Allowed> = Vec::new();
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
        if !taken.is_empty() || value.is_empty() {
            return Err(fault("said twice, or nothing"));
        }
        *taken = value;
    }
    let incomplete = |entry: &&Allowed| {
        let said = [&entry.fixture, &entry.revision, &entry.scenario, &entry.reason];
        entry.checks.is_empty() || said.iter().any(|value| value.is_empty())
    };
    match entries.iter().find(incomplete) {
        Some(entry) => Err(format!("something is missing: {entry:?}")),
        None => Ok(entries),
    }
}

/// What is wrong with a row: differences that are not listed, and listed ones that are not there.
pub fn faults(row: &Row, found: &[Difference], list: &[Allowed]) -> Vec<String> {
    let list: Vec<&Allowed> = list.iter().filter(|entry| entry.speaks_of(row)).collect();
    let unlisted = found.iter().filter(|difference| !is_listed(difference, &list));
    let unlisted = unlisted.map(|difference| format!("{row}: {difference}"));
    let stale = list.iter().flat_map(|entry| entry.stale(found));
    unlisted.chain(stale.map(|stale| format!("{row}: {stale} is listed, but the same"))).collect()
}

/// Whether there is an entry for a difference, or one for each place of it.
fn is_listed(difference: &Difference, list: &[&Allowed]) -> bool {
    let entries: Vec<_> = list.iter().filter(|entry| entry.names(difference)).collect();
    let in_place = |place: &String| entries.iter().any(|entry| entry.places.contains(place));
    let in_places = match &difference.what {
        What::Details(faults) => faults.iter().all(|fault| in_place(&fault.place)),
        _ => false,
    };
    in_places || entries.iter().any(|entry| entry.places.is_empty())
}

impl Allowed {
    /// Whether a row is meant.
    pub fn speaks_of(&self, row: &Row) -> bool {
        let is = |wanted: &str, is: &str| wanted == ANY || wanted == is;
        is(&self.fixture, row.fixture.name())
            && is(&self.revision, row.suite.revision)
            && self.shape.as_deref().is_none_or(|shape| shape == row.shape.name())
            && self.transport.as_deref().is_none_or(|transport| transport == row.transport.name())
            && self.placement.as_deref().is_none_or(|placement| placement == row.placement.name())
    }

    fn names(&self, difference: &Difference) -> bool {
        self.scenario == difference.scenario && self.checks.contains(&difference.check)
    }

    /// What it names that is not there.
    fn stale(&self, found: &[Difference]) -> Vec<String> {
        let mut stale = Vec::new();
        for check in &self.checks {
            let name = format!("{} / {check}", self.scenario);
            let what = found.iter().find(|found| self.names(found) && found.check == *check).map(|found| &found.what);
            let faults = match what {
                None => {
                    stale.push(name);
                    continue;
                }
                Some(What::Details(faults)) => faults.as_slice(),
                Some(_) => &[],
            };
            let same = self.places.iter().filter(|place| !faults.iter().any(|fault| fault.place == **place));
            stale.extend(same.map(|place| format!("{name}: {place}")));
        }
        stale
    }
}
