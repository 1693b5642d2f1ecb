//! The file that says which servers there are.
//!
//! [`load`] reads `rialto.toml`, or the `mcp.json` of another client, and tells everything that is wrong
//! with it at once, each with its place. What comes out is a [`Config`]. [`Watcher`] tells when to read it
//! again, [`schema`] describes it to editors, [`STARTER`] is one to begin with.

mod build;
mod import;
mod keys;
mod model;
mod problem;
mod reader;
mod schema;
mod servers;
mod spanned_value;
mod suggest;
mod template;
#[cfg(test)]
mod tests;
mod topology;
mod values;
mod variables;
mod watcher;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

pub use model::{
    Access, ClusterSection, Config, FilterSection, GroupSection, LimitsSection, Log, ServerKind, ServerSection, Store,
    Token,
};
pub use problem::{Diagnostic, Severity};
pub use reader::Lookup;
pub use schema::schema;
pub use suggest::nearest;
pub use template::STARTER;
pub use values::show_duration;
pub use watcher::{Trigger, Watcher};

use crate::error::{Error, ErrorKind, Result};
use crate::mcp_client::Target;
use build::ConfigBuilder;
use reader::ConfigReader;

/// The file that is read when none is named.
pub const FILE: &str = "rialto.toml";
/// The files that name servers for the client, in the order in which they are looked for.
const USUAL: [&str; 4] = [FILE, "mcp.json", ".mcp.json", ".vscode/mcp.json"];

/// What a file is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `rialto.toml`.
    Toml,
    /// `mcp.json` as other clients have it.
    McpJson,
}

/// A configuration that can be used.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What is probably not meant.
    pub warnings: Vec<Diagnostic>,
}

/// Variables from the environment of this process.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reads a file, in whatever format it is.
///
/// # Errors
/// Everything that is wrong with it, warnings too, in the order of the file.
pub fn load(path: &Path, lookup: &Lookup<'_>) -> std::result::Result<Loaded, Vec<Diagnostic>> {
    let text = read(path)?;
    parse(&text, path, Format::of(path, &text), lookup)
}

/// Reads the text of a file. The path is for messages, and for what the file names relative to itself.
///
/// # Errors
/// Everything that is wrong with it, warnings too, in the order of the file.
pub fn parse(
    text: &str,
    path: &Path,
    format: Format,
    lookup: &Lookup<'_>,
) -> std::result::Result<Loaded, Vec<Diagnostic>> {
    let (built, problems) = examine(text, path, format, lookup);
    match built {
        Some(built) if problems.iter().all(|problem| problem.severity == Severity::Warning) => {
            Ok(Loaded { config: built.config, warnings: problems })
        }
        _ => Err(problems),
    }
}

/// The file that was named, or the first of the usual ones that is there.
pub fn find(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(path) => Some(path.to_owned()),
        None => USUAL.iter().map(PathBuf::from).find(|path| path.is_file()),
    }
}

/// The server of that name in a file, as a client reaches it. What is wrong with other servers does
/// not matter here.
///
/// # Errors
/// When the file cannot be read, or has no such server, or something is wrong with it.
pub fn target(file: &Path, name: &str) -> Result<Target> {
    let usage = |why: String| Error::new(ErrorKind::Usage, why);
    let told = |problems: &[Diagnostic]| {
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
        usage(errors.map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    };
    let text = read(file).map_err(|problems| told(&problems))?;
    let (built, problems) = examine(&text, file, Format::of(file, &text), &environment);
    let Some(ConfigBuilder { config, faulty }) = built else { return Err(told(&problems)) };
    let named = config.servers.iter().find(|server| &*server.written == name || &*server.name == name);
    match named.map(|server| &server.kind) {
        Some(ServerKind::Target(target)) => Ok(target.clone()),
        Some(_) => Err(usage(format!("{name:?} has no address of its own; start `rialto serve` and call that"))),
        None if faulty.iter().any(|faulty| faulty == name) => Err(told(&problems)),
        None => {
            let known: Vec<&str> = config.servers.iter().map(|server| &*server.written).collect();
            let hint = match nearest(name, &known) {
                Some(near) => format!("did you mean {near:?}?"),
                None if known.is_empty() => "it names none".to_owned(),
                None => format!("it names {}", known.join(", ")),
            };
            Err(usage(format!("{} has no server {name:?}; {hint}", file.display())))
        }
    }
}

fn read(path: &Path) -> std::result::Result<String, Vec<Diagnostic>> {
    let problem = |line: usize, column: usize, message: String| {
        let (file, severity) = (path.to_owned(), Severity::Error);
        vec![Diagnostic { file, line, column, severity, message, hint: None }]
    };
    let bytes = std::fs::read(path).map_err(|error| problem(1, 1, format!("the file cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let good = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        let (line, column) = problem::place(&good, good.len());
        problem(line, column, "the file is not UTF-8".to_owned())
    })
}

/// Reads what can be read of a text, and gives all that is wrong with it.
fn examine(text: &str, path: &Path, format: Format, lookup: &Lookup<'_>) -> (Option<ConfigBuilder>, Vec<Diagnostic>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (root, faults) = match format {
        Format::Toml => spanned_value::from_toml(text),
        Format::McpJson => spanned_value::from_json(text),
    };
    let folder = import::workspace(path);
    let with_folders = |name: &str| match name {
        "workspaceFolder" => Some(folder.display().to_string()),
        "workspaceFolderBasename" => folder.file_name().map(|name| name.to_string_lossy().into_owned()),
        "userHome" => lookup("HOME"),
        "pathSeparator" | "/" => Some(std::path::MAIN_SEPARATOR.to_string()),
        _ => lookup(name),
    };
    let lookup: &Lookup<'_> = if format == Format::McpJson { &with_folders } else { lookup };
    let reader = ConfigReader { path, text, lookup, broken: !faults.is_empty(), problems: RefCell::default() };
    let built = match format {
        Format::Toml => build::build(&reader, &root),
        Format::McpJson => import::import(&reader, &root),
    };
    // On a line that cannot be read, that is all there is to say.
    let lines: Vec<usize> = faults.iter().map(|fault| problem::place(text, fault.at.start).0).collect();
    reader.problems.borrow_mut().retain(|problem| !lines.contains(&problem.line));
    for fault in &faults {
        reader.error(&fault.at, &fault.message, None);
    }
    let mut problems = reader.problems.into_inner();
    problems.sort_by_key(|problem| (problem.line, problem.column));
    problems.dedup();
    (built, problems)
}

impl Format {
    /// The format of a file: by its ending, or else by what it begins with.
    pub fn of(path: &Path, text: &str) -> Self {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("toml") => Self::Toml,
            Some("json" | "jsonc") => Self::McpJson,
            _ if text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '/']) => Self::McpJson,
            _ => Self::Toml,
        }
    }
}

/// A file that says what holds anyway: every limit at its default, as the table of keys has it.
#[cfg(test)]
pub(crate) fn defaults_of_limits() -> String {
    let line = |key: &keys::ConfigKey| format!("{} = {}\n", key.name, key.default.expect("a limit has a default"));
    format!("[limits]\n{}", keys::LIMITS.keys().map(line).collect::<String>())
}
