//! The figures that are committed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use toml::de::{DeTable, DeValue};

/// Instructions of a call, by the name of its path.
pub struct Figures(BTreeMap<String, u64>);

const HEADING: &str = "\
# Instructions in user space of one call, by the path that it takes. Written by `just instructions --renew`.
";

fn file() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "instructions", "figures.toml"].iter().collect()
}

impl Figures {
    pub fn read() -> Self {
        let text = fs::read_to_string(file()).expect("the figures are there");
        let table = DeTable::parse(&text).expect("the figures are TOML").into_inner();
        let figures = table.into_iter().map(|(name, figure)| match figure.into_inner() {
            DeValue::Integer(figure) => (name.into_inner().into_owned(), figure.as_str().parse().expect("a number")),
            other => panic!("{} is no number: {other:?}", name.get_ref()),
        });
        Self(figures.collect())
    }

    /// Puts a figure in place of the one that was there.
    pub fn replace(&mut self, name: &str, figure: u64) -> Option<u64> {
        self.0.insert(name.to_owned(), figure)
    }

    pub fn write(&self) {
        let lines = self.0.iter().map(|(name, figure)| format!("{name:?} = {figure}\n"));
        fs::write(file(), HEADING.to_owned() + &lines.collect::<String>()).expect("the figures can be written");
    }
}
