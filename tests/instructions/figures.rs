//! The committed instruction counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use toml::de::{DeTable, DeValue};

/// Instructions per call by route name.
pub struct CommittedCounts(BTreeMap<String, u64>);

const HEADING: &str = "\
# Instructions in user space of one call, by the path that it takes. Written by `just instructions --renew`.
";

fn file() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "instructions", "figures.toml"].iter().collect()
}

impl CommittedCounts {
    pub fn read() -> Self {
        let text = fs::read_to_string(file()).expect("figures.toml is readable");
        let table = DeTable::parse(&text).expect("figures.toml is valid TOML").into_inner();
        let counts = table.into_iter().map(|(name, count)| match count.into_inner() {
            DeValue::Integer(count) => (name.into_inner().into_owned(), count.as_str().parse().expect("a number")),
            other => panic!("{} is not a number: {other:?}", name.get_ref()),
        });
        Self(counts.collect())
    }

    /// Whether a count is more than the committed one by more than so many percent, or there is none.
    pub fn is_heavier(&self, name: &str, count: u64, percent: f64) -> bool {
        self.0.get(name).is_none_or(|committed| count as f64 > *committed as f64 * (1.0 + percent / 100.0))
    }

    /// Replaces the count of a route and returns the previous one.
    pub fn replace(&mut self, name: &str, count: u64) -> Option<u64> {
        self.0.insert(name.to_owned(), count)
    }

    pub fn write(&self) {
        let lines = self.0.iter().map(|(name, count)| format!("{name:?} = {count}\n"));
        fs::write(file(), HEADING.to_owned() + &lines.collect::<String>()).expect("figures.toml is writable");
    }
}
