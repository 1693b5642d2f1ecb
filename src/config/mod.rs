//! The configuration file.
//!
//! [`load`] reads `rialto.toml`, or the `mcp.json` of another client, into a [`Config`] and reports all mistakes at
//! once, each with its position. [`ConfigWatcher`] triggers reloads, [`schema`] is the JSON Schema for editors,
//! [`starter_config`] is the file that `rialto init` writes. Every setting stands once, in `settings.rs`.

mod app_settings;
mod build;
mod checks;
mod console;
mod diagnostic;
mod flags;
mod import;
mod issuers;
mod key_types;
mod keys;
mod log_settings;
mod masking;
mod model;
mod policy_rules;
mod rate_limits;
mod reader;
mod schema;
mod secrets;
mod servers;
mod setting_table;
mod setting_value;
mod settings;
mod spanned_value;
mod structure;
mod suggest;
mod template;
#[cfg(test)]
mod tests;
mod tls_files;
mod topology;
mod values;
mod variables;
mod watcher;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

pub use app_settings::{AppSettings, needs_restart};
pub use console::OperatorSection;
pub use diagnostic::{Diagnostic, Severity};
pub(crate) use flags::{FlaggedKey, GivenFlag, flagged_keys};
pub(crate) use keys::{FlagScope, ValueType};
pub use masking::masked_text;
pub use model::{
    ApiKeySection, CallerToken, Config, ContainedScopes, GroupSection, Secret, ServerKind, ServerSection, StoreLocation,
};
pub use reader::VariableLookup;
pub use schema::schema;
pub(crate) use servers::is_valid_name;
pub use settings::{
    AccessSection, AdminSection, ApiKeySettings, AuditSection, ClusterSection, FilterSection, GroupSettings,
    LimitsSection, LogSection, OperatorTokenSettings, PolicySection, TlsSection, TopLevelSection, UpstreamSettings,
};
pub use suggest::nearest;
pub use template::starter_config;
pub use values::{ExpiryDate, format_duration};
pub use watcher::{ConfigWatcher, ReloadTrigger};

use crate::error::{Error, Result};
use crate::mcp_client::Target;
use crate::redact::Secrets;
use build::PartialConfig;
use reader::{ConfigReader, ValueSource};
use secrets::SecretCollector;
use variables::FILE_PREFIX;

/// The file that `rialto serve` reads when `--config` is not given.
pub const DEFAULT_CONFIG_FILE: &str = "rialto.toml";
/// Files searched for server names by the client commands, in order.
const CLIENT_CONFIG_FILES: [&str; 4] = [DEFAULT_CONFIG_FILE, "mcp.json", ".mcp.json", ".vscode/mcp.json"];

/// Syntax of a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigFormat {
    /// `rialto.toml`.
    Toml,
    /// `mcp.json` as written for other MCP clients.
    McpJson,
}

/// A configuration without errors.
#[derive(Debug)]
pub struct LoadedConfig {
    /// The checked configuration.
    pub config: Config,
    /// Warnings: the file is valid but probably not what was intended.
    pub warnings: Vec<Diagnostic>,
    /// Values of variables, tokens, headers and other secrets, to be masked while the configuration is in use.
    pub secrets: Secrets,
}

/// The secrets among headers and variables that were not given in a file.
pub(crate) fn pair_secrets(headers: &[(String, String)], variables: &[(String, String)]) -> Secrets {
    let secrets = SecretCollector::default();
    headers.iter().for_each(|(name, value)| secrets.add_entry("headers", name, value));
    variables.iter().for_each(|(name, value)| secrets.add_entry("env", name, value));
    secrets.finish()
}

/// Looks a variable up in the environment of this process.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reads a configuration file; the format is detected.
///
/// # Errors
/// All errors and warnings, in file order.
pub fn load(path: &Path, lookup: &VariableLookup<'_>) -> std::result::Result<LoadedConfig, Vec<Diagnostic>> {
    let text = read_text(path)?;
    let mut loaded = parse(&text, path, ConfigFormat::detect(path, &text), lookup)?;
    let found = tls_files::load_tls(&mut loaded.config, &text, path);
    loaded.warnings.extend(found);
    loaded.warnings.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
    match loaded.warnings.iter().any(|diagnostic| diagnostic.severity == Severity::Error) {
        true => Err(loaded.warnings),
        false => Ok(loaded),
    }
}

/// Parses the text of a configuration file. `path` is used in diagnostics and to resolve relative paths.
///
/// # Errors
/// All errors and warnings, in file order.
pub fn parse(
    text: &str,
    path: &Path,
    format: ConfigFormat,
    lookup: &VariableLookup<'_>,
) -> std::result::Result<LoadedConfig, Vec<Diagnostic>> {
    let (partial, diagnostics, secrets) = parse_partially(text, path, format, lookup);
    match partial {
        Some(partial) if diagnostics.iter().all(|diagnostic| diagnostic.severity == Severity::Warning) => {
            Ok(LoadedConfig { config: partial.config, warnings: diagnostics, secrets })
        }
        _ => Err(diagnostics),
    }
}

/// The given file, or else the first of `rialto.toml`, `mcp.json`, `.mcp.json` and `.vscode/mcp.json` that exists.
pub fn find_file(given: Option<&Path>) -> Option<PathBuf> {
    match given {
        Some(path) => Some(path.to_owned()),
        None => CLIENT_CONFIG_FILES.iter().map(PathBuf::from).find(|path| path.is_file()),
    }
}

/// Resolves a server name in a configuration file to a connection target, with the secrets of the file. Errors in other
/// servers are ignored.
///
/// # Errors
/// When the file cannot be read, has no such server, or the server's section has errors.
pub fn resolve_target(file: &Path, name: &str) -> Result<(Target, Secrets)> {
    let usage = |why: String| Error::usage(why);
    let config_error = |diagnostics: &[Diagnostic]| {
        let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        usage(errors.map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    };
    let text = read_text(file).map_err(|diagnostics| config_error(&diagnostics))?;
    let (partial, diagnostics, secrets) = parse_partially(&text, file, ConfigFormat::detect(file, &text), &environment);
    let Some(PartialConfig { config, invalid_servers }) = partial else { return Err(config_error(&diagnostics)) };
    let named = config.servers.iter().find(|server| &*server.original_name == name || &*server.name == name);
    match named.map(|server| &server.kind) {
        Some(ServerKind::Target(target)) => Ok((target.clone(), secrets)),
        Some(_) => {
            Err(usage(format!("{name:?} has no URL or command of its own; start `rialto serve` and use its URL")))
        }
        None if invalid_servers.iter().any(|invalid| invalid == name) => Err(config_error(&diagnostics)),
        None => {
            let known: Vec<&str> = config.servers.iter().map(|server| &*server.original_name).collect();
            let hint = match nearest(name, &known) {
                Some(near) => format!("did you mean {near:?}?"),
                None if known.is_empty() => "it has no servers".to_owned(),
                None => format!("it has {}", known.join(", ")),
            };
            Err(usage(format!("{} has no server {name:?}; {hint}", file.display())))
        }
    }
}

fn read_text(path: &Path) -> std::result::Result<String, Vec<Diagnostic>> {
    let error_at = |line: usize, column: usize, message: String| {
        let (file, severity) = (path.to_owned(), Severity::Error);
        vec![Diagnostic { file, line, column, severity, message, hint: None }]
    };
    let bytes = std::fs::read(path).map_err(|error| error_at(1, 1, format!("the file cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        let (line, column) = diagnostic::line_and_column(&valid, valid.len());
        error_at(line, column, "the file is not UTF-8".to_owned())
    })
}

/// Parses as much of the text as possible and collects every diagnostic, sorted by position.
fn parse_partially(
    text: &str,
    path: &Path,
    format: ConfigFormat,
    lookup: &VariableLookup<'_>,
) -> (Option<PartialConfig>, Vec<Diagnostic>, Secrets) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (root, syntax_errors) = match format {
        ConfigFormat::Toml => spanned_value::from_toml(text),
        ConfigFormat::McpJson => spanned_value::from_json(text),
    };
    let folder = import::workspace_folder(path);
    let secrets = SecretCollector::default();
    let recorded = |name: &str| match name.strip_prefix(FILE_PREFIX) {
        Some(file) => variables::read_secret_file(path, file).inspect(|value| secrets.add(value)),
        None => lookup(name).inspect(|value| secrets.add_variable(name, value)),
    };
    let with_workspace_variables = |name: &str| match name {
        "workspaceFolder" => Some(folder.display().to_string()),
        "workspaceFolderBasename" => folder.file_name().map(|name| name.to_string_lossy().into_owned()),
        "userHome" => lookup("HOME"),
        "pathSeparator" | "/" => Some(std::path::MAIN_SEPARATOR.to_string()),
        _ => recorded(name),
    };
    let lookup: &VariableLookup<'_> =
        if format == ConfigFormat::McpJson { &with_workspace_variables } else { &recorded };
    let reader = ConfigReader {
        source: ValueSource::File,
        path,
        text,
        lookup,
        secrets: &secrets,
        has_syntax_errors: !syntax_errors.is_empty(),
        diagnostics: RefCell::default(),
    };
    let partial = match format {
        ConfigFormat::Toml => build::build(&reader, &root),
        ConfigFormat::McpJson => import::import(&reader, &root),
    };
    // A syntax error makes other diagnostics on the same line noise: keep only the syntax error.
    let lines: Vec<usize> =
        syntax_errors.iter().map(|error| diagnostic::line_and_column(text, error.span.start).0).collect();
    reader.diagnostics.borrow_mut().retain(|diagnostic| !lines.contains(&diagnostic.line));
    for error in &syntax_errors {
        reader.error(&error.span, &error.message, None);
    }
    let mut diagnostics = reader.diagnostics.into_inner();
    diagnostics.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
    diagnostics.dedup();
    (partial, diagnostics, secrets.finish())
}

impl ConfigFormat {
    /// Detects the format by the file extension, or else by the first character.
    pub fn detect(path: &Path, text: &str) -> Self {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("toml") => Self::Toml,
            Some("json" | "jsonc") => Self::McpJson,
            _ if text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '/']) => Self::McpJson,
            _ => Self::Toml,
        }
    }
}
