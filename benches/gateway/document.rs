//! The document with the figures. Each part has its own section, so that a run replaces only what it measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Failure;
use crate::fronts::Frontend;
use crate::spread::{compiler, machine, today};

/// Sections in order: name, title, introduction.
const SECTIONS: [(&str, &str, &str); 9] = [
    ("targets", "Targets", ""),
    ("calls", "Calls", "![Processor time and latency of a call through each gateway](performance.svg)\n\n"),
    ("pairs", "Clients and servers of the same and of different eras", ""),
    ("guards", "Credentials, rules and limits", ""),
    ("telemetry", "Console, traces and access log", ""),
    ("memory", "Memory", ""),
    ("lists", "Merged lists", ""),
    ("starts", "Starts and sizes", ""),
    ("curve", "Memory over many calls", "![Resident memory over many calls](memory.svg)\n\n"),
];

/// Figures as Markdown, by section name.
#[derive(Debug, Default)]
pub(crate) struct Document {
    parts: BTreeMap<&'static str, String>,
}

impl Document {
    /// Sets the figures of a section, with machine and versions, and prints them.
    pub(crate) fn put(&mut self, name: &'static str, how: &str, figures: &str) {
        let text = format!("{}\n\n{how}\n\n{}", circumstances(), figures.trim_end());
        println!("\n{text}\n");
        self.parts.insert(name, text);
    }

    /// The same without machine and versions.
    pub(crate) fn put_without_machine(&mut self, name: &'static str, figures: &str) {
        println!("\n{}\n", figures.trim_end());
        self.parts.insert(name, figures.trim_end().to_owned());
    }

    /// The current text of a section in the file.
    pub(crate) fn before(folder: &Path, name: &str) -> String {
        let old = fs::read_to_string(folder.join("figures.md")).unwrap_or_default();
        let part = old.split_once(&format!("<!-- {name} -->\n"));
        let part = part.and_then(|(_, rest)| rest.split_once(&format!("\n<!-- /{name} -->")));
        part.map(|(text, _)| text.to_owned()).unwrap_or_default()
    }

    /// Writes the document.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Failure> {
        fs::create_dir_all(folder)?;
        let mut text = "# Figures\n\nWritten by `just bench`, not by hand. [Performance](performance.md) says what is \
                        measured and how to read it. Each figure is the median of interleaved turns, with the least \
                        and the greatest in brackets.\n"
            .to_owned();
        for (name, title, before) in SECTIONS {
            let old = Self::before(folder, name);
            let figures = self.parts.get(name).unwrap_or(&old);
            if !figures.is_empty() {
                text += &format!("\n## {title}\n\n{before}<!-- {name} -->\n{figures}\n<!-- /{name} -->\n");
            }
        }
        let file = folder.join("figures.md");
        fs::write(&file, text)?;
        println!("written to {}", file.display());
        Ok(())
    }
}

/// Date, machine and versions of the measurement.
pub(crate) fn circumstances() -> String {
    let (rialto, nginx) = (Frontend::Rialto.title(), Frontend::Nginx.title());
    format!("{}. {}. {rialto} in its release profile, {nginx}, {}.", today(), machine(), compiler())
}

/// A Markdown table.
pub(crate) struct Table {
    text: String,
}

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Self {
        let mut new = Self { text: String::new() };
        new.row(titles);
        new.text += &format!("|{}\n", " --- |".repeat(titles.len()));
        new
    }

    pub(crate) fn row(&mut self, scenarios: &[impl AsRef<str>]) {
        let scenarios: Vec<&str> = scenarios.iter().map(AsRef::as_ref).collect();
        self.text += &format!("| {} |\n", scenarios.join(" | "));
    }

    pub(crate) fn text(self) -> String {
        self.text
    }
}
