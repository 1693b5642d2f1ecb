//! Statistics of repeated measurements, and the machine they were made on.

use std::process::Command;

/// Median, minimum and maximum of several figures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let at = |n: usize| figures.get(n).copied().unwrap_or(f64::NAN);
        let last = figures.len().saturating_sub(1);
        Self { median: (at(last / 2) + at(last.div_ceil(2))) / 2.0, least: at(0), most: at(last) }
    }

    /// The median, with minimum and maximum in brackets.
    pub(crate) fn show(&self, decimals: usize) -> String {
        format!("{:.decimals$} ({:.decimals$}-{:.decimals$})", self.median, self.least, self.most)
    }
}

/// Version of the Rust compiler.
pub(crate) fn compiler() -> String {
    command_output(Command::new("rustc").arg("--version")).unwrap_or_else(|| "an unknown compiler".to_owned())
}

/// Version of a program, if it is installed.
pub(crate) fn version(program: &str, flag: &str) -> Option<String> {
    let text = command_output(Command::new(program).arg(flag))?;
    Some(text.rsplit_once(": ").map_or(text.clone(), |(_, said)| said.to_owned()))
}

fn command_output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned())
}

/// CPU model, cores, kernel and load average.
pub(crate) fn machine() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let model = model.map_or("an unknown processor", |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split_whitespace().next().unwrap_or("?");
    format!("{model}, {cores} cores, Linux {}, load {load} when this was written", kernel.trim())
}

/// The current date in UTC.
pub(crate) fn today() -> String {
    command_output(Command::new("date").args(["-u", "+%F"])).unwrap_or_else(|| "an unknown day".to_owned())
}
