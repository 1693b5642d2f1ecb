//! Figures that belong together, and what they were measured with.

use std::process::Command;

/// The middle of several figures, with the least and the greatest.
pub(crate) struct Spread {
    pub(crate) median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let at = |n: usize| figures.get(n).copied().unwrap_or(f64::NAN);
        let last = figures.len().saturating_sub(1);
        Self { median: (at(last / 2) + at(last.div_ceil(2))) / 2.0, least: at(0), most: at(last) }
    }

    /// The middle, with the least and the greatest in brackets.
    pub(crate) fn show(&self, decimals: usize) -> String {
        format!("{:.decimals$} ({:.decimals$}-{:.decimals$})", self.median, self.least, self.most)
    }
}

/// The compiler that built this.
pub(crate) fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    let text = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or_else(|| "an unknown compiler".to_owned(), |text| text.trim().to_owned())
}

/// What a program says of its version, if it is there at all.
pub(crate) fn version(program: &str, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    Some(text.rsplit_once(": ").map_or(text.clone(), |(_, said)| said.to_owned()))
}
