//! `rialto check`, `rialto init` and `rialto schema`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::caller_access::{self, CallerReport};
use super::output;
use crate::config::{
    self, AccessSection, Config, Diagnostic, GroupSection, LoadedConfig, ServerKind, ServerSection, Severity,
    TopLevelSection, format_duration,
};
use crate::local::rest::DocumentSource;
use crate::mcp_client::Target;
use crate::redact::{Secrets, redact};
use crate::upstream::ConnectionMode;

/// Arguments of `rialto check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The configuration file. [default: ./rialto.toml]
    #[arg(env = "RIALTO_CONFIG", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Start the servers and print what such a caller may do, by which rule: role:NAME, token:NAME, user:ISSUER/SUBJECT
    /// or another of `principals`, or scope:NAME. Given several times, the caller is all of these.
    #[arg(long = "as", value_name = "WHO")]
    caller: Vec<String>,
    /// The group that the caller uses. [default: default]
    #[arg(long, value_name = "GROUP", requires = "caller")]
    group: Option<String>,
}

/// Arguments of `rialto init`.
#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// The file to write.
    #[arg(default_value = config::DEFAULT_CONFIG_FILE, value_name = "FILE")]
    file: PathBuf,
    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
}

/// `rialto check`: validates a configuration and prints a summary, or every diagnostic.
pub(super) fn check(arguments: &CheckArgs) -> ExitCode {
    let default_file = || Some(PathBuf::from(config::DEFAULT_CONFIG_FILE)).filter(|file| file.is_file());
    let file = arguments.file.clone().or_else(default_file);
    let loaded = match &file {
        Some(file) => super::serve::load(file),
        None => Ok(LoadedConfig { config: Config::default(), warnings: Vec::new(), secrets: Secrets::default() }),
    };
    let (config, diagnostics) = match loaded {
        Ok(LoadedConfig { config, mut warnings, secrets }) => {
            secrets.install();
            // They hold for the whole file, and flags may change them.
            let mut messages = config.exposure_warnings();
            if arguments.caller.is_empty() {
                messages.extend(caller_access::unmatched_rules(&config));
            }
            warnings.extend(messages.into_iter().map(|message| Diagnostic {
                file: file.clone().unwrap_or_default(),
                line: 1,
                column: 1,
                severity: Severity::Warning,
                message,
                hint: None,
            }));
            (Some(config), warnings)
        }
        Err(diagnostics) => (None, diagnostics),
    };
    if let (Some(config), false) = (&config, arguments.caller.is_empty()) {
        return check_caller(arguments, config, &diagnostics);
    }
    match arguments.json {
        true => output::print_line(&output::strip_control_chars(
            &redacted_json(report_json(file.as_deref(), config.as_ref(), &diagnostics)).to_string(),
        )),
        false => print_report(file.as_deref(), config.as_ref(), &diagnostics),
    }
    if config.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what a caller may do.
fn check_caller(arguments: &CheckArgs, config: &Config, diagnostics: &[Diagnostic]) -> ExitCode {
    for diagnostic in diagnostics {
        eprintln!("{}", output::strip_control_chars(&diagnostic.to_string()));
    }
    match CallerReport::new(config, &arguments.caller, arguments.group.as_deref()) {
        Ok(report) if arguments.json => output::print_line(&redacted_json(report.to_json()).to_string()),
        Ok(report) => report.print(),
        Err(why) => {
            eprintln!("rialto: {}", output::strip_control_chars(&why));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn print_report(file: Option<&Path>, config: Option<&Config>, diagnostics: &[Diagnostic]) {
    for diagnostic in diagnostics {
        eprintln!("{}", output::strip_control_chars(&diagnostic.to_string()));
    }
    let file_name = file.map(|file| file.display().to_string());
    let Some(config) = config else {
        let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count();
        let errors = if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") };
        eprintln!("{} is not valid: {errors}", file_name.unwrap_or_default());
        return;
    };
    let settings = &config.settings;
    let listen = settings.listen;
    let admin = settings.admin.listen.map_or_else(|| "same as Listen".to_owned(), |admin| admin.to_string());
    let callers = callers(&settings.access);
    output::print_line(&match file_name {
        Some(file) => format!("{file} is valid."),
        None => format!("There is no {} here; this is the default configuration.", config::DEFAULT_CONFIG_FILE),
    });
    let store = output::strip_control_chars(&settings.store.to_string());
    let lines = format!("Listen       {listen}\nAdmin        {admin}\nCallers      {callers}\nStore        {store}");
    output::print_line(&redact(&format!("\n{lines}\n")));
    let changed = changed_settings(settings);
    if !changed.is_empty() {
        output::print_line(&redact(&output::table(&["SETTING", "VALUE", "DEFAULT"], changed)));
        output::print_line("");
    }
    let rows = config.servers.iter().map(|server| {
        let facts = server_json(server);
        let text = |key: &str| output::strip_control_chars(facts[key].as_str().unwrap_or("–"));
        let name = if server.disabled { format!("{} (disabled)", server.name) } else { server.name.to_string() };
        let timeouts = format!(
            "{} / {}",
            format_duration(server.settings.idle_timeout),
            format_duration(server.settings.total_timeout)
        );
        let target = redact(&text("target")).into_owned();
        vec![name, text("kind"), target, text("revision"), text("connection"), timeouts]
    });
    output::print_line(&output::table(
        &["SERVER", "KIND", "TARGET", "REVISION", "CONNECTION", "TIMEOUT IDLE / TOTAL"],
        rows,
    ));
    output::print_line("");
    let rows = config.groups.iter().map(|group| {
        let members = group.servers.iter().map(|name| &**name).collect::<Vec<_>>().join(", ");
        let members = if members.is_empty() { "none".to_owned() } else { members };
        vec![group.name.to_string(), group_path(group), members, naming_label(group).to_owned()]
    });
    output::print_line(&output::table(&["GROUP", "ADDRESS", "SERVERS", "NAMES"], rows));
}

/// Who may call, by the kind of credential.
fn callers(access: &AccessSection) -> String {
    let by =
        |names: Vec<&str>, kind: &str| Some(format!("{} ({kind})", names.join(", "))).filter(|_| !names.is_empty());
    let tokens = by(access.tokens.iter().map(|token| token.name.as_str()).collect(), "by token");
    let keys = by(access.keys.iter().map(|key| &*key.name).collect(), "by key");
    let known: Vec<String> = tokens.into_iter().chain(keys).collect();
    match known.is_empty() {
        true => "anyone".to_owned(),
        false if access.allow_anonymous => format!("{}; anyone without a credential", known.join(", ")),
        false => known.join(", "),
    }
}

/// Rows of the settings that differ from their defaults: name, value, default.
fn changed_settings(settings: &TopLevelSection) -> Vec<Vec<String>> {
    let rows = settings.rows("").into_iter().zip(TopLevelSection::default().rows(""));
    let changed = rows.filter(|((_, value), (_, default))| value != default);
    changed.map(|((name, value), (_, default))| vec![name, shown(&value), shown(&default)]).collect()
}

fn shown(value: &Value) -> String {
    if value.is_null() { "–".to_owned() } else { output::strip_control_chars(&value.to_string()) }
}

/// URL path of a group.
fn group_path(group: &GroupSection) -> String {
    if &*group.name == "default" { "/mcp".to_owned() } else { format!("/mcp/{}", group.name) }
}

/// How names appear in a group.
fn naming_label(group: &GroupSection) -> &'static str {
    if group.servers.len() > 1 { group.settings.naming.as_str() } else { "unchanged" }
}

fn report_json(file: Option<&Path>, config: Option<&Config>, diagnostics: &[Diagnostic]) -> Value {
    let diagnostic_json = |diagnostic: &Diagnostic| {
        json!({
            "file": diagnostic.file.display().to_string(), "line": diagnostic.line, "column": diagnostic.column,
            "severity": diagnostic.severity.as_str(), "message": diagnostic.message, "hint": diagnostic.hint,
        })
    };
    let group = |group: &GroupSection| {
        json!({
            "name": &*group.name, "address": group_path(group), "naming": group.settings.naming.as_str(),
            "servers": group.servers.iter().map(|name| &**name).collect::<Vec<_>>(),
        })
    };
    json!({
        "file": file.map(|file| file.display().to_string()),
        "ok": config.is_some(),
        "problems": diagnostics.iter().map(diagnostic_json).collect::<Vec<_>>(),
        "settings": config.map(|config| config.settings.to_object()),
        "servers": config.map(|config| config.servers.iter().map(server_json).collect::<Vec<_>>()),
        "groups": config.map(|config| config.groups.iter().map(group).collect::<Vec<_>>()),
    })
}

/// The report with secrets masked in its strings; numbers and keys stay, so that it remains valid JSON.
fn redacted_json(value: Value) -> Value {
    match value {
        Value::String(text) => redact(&text).into(),
        Value::Array(items) => items.into_iter().map(redacted_json).collect(),
        Value::Object(members) => members.into_iter().map(|(key, value)| (key, redacted_json(value))).collect(),
        other => other,
    }
}

/// Summary of a server. Leaves out arguments, queries and headers, which may be secret.
fn server_json(server: &ServerSection) -> Value {
    let (kind, target) = match &server.kind {
        ServerKind::Elements => ("built-in", "elements".to_owned()),
        ServerKind::Target(target @ Target::Command(_)) => ("command", target.to_string()),
        ServerKind::Target(target @ Target::Url(_)) => ("url", target.to_string()),
        ServerKind::Rest(rest) => {
            let base = Target::url(&rest.base_url.to_string()).map(|target| target.to_string()).unwrap_or_default();
            let document = match &rest.document {
                Some(DocumentSource::File(file)) => format!(", OpenAPI {}", file.display()),
                Some(DocumentSource::Url(url)) => format!(", OpenAPI at {}", url.host().unwrap_or_default()),
                None => String::new(),
            };
            let tools = match rest.tools.len() {
                0 => String::new(),
                count => format!(", {count} manual tools"),
            };
            ("rest", format!("{base}{document}{tools}"))
        }
    };
    json!({
        "name": &*server.name,
        "originalName": &*server.original_name,
        "kind": kind,
        "target": target,
        "disabled": server.disabled,
        "revision": server.settings.revision.map_or_else(|| "auto".to_owned(), |revision| revision.to_string()),
        "connection": server.settings.connection.map_or("auto", ConnectionMode::as_str),
        "allowServerRequests": server.settings.allow_server_requests,
        "idleTimeout": format_duration(server.settings.idle_timeout),
        "totalTimeout": format_duration(server.settings.total_timeout),
    })
}

/// `rialto init`: writes the starter configuration.
pub(super) fn init(arguments: &InitArgs) -> ExitCode {
    let file = arguments.file.display();
    let opened = match arguments.force {
        true => std::fs::File::create(&arguments.file),
        false => std::fs::File::create_new(&arguments.file),
    };
    match opened.and_then(|mut opened| opened.write_all(config::starter_config().as_bytes())) {
        Ok(()) => {
            output::print_line(&format!(
                "Wrote {file}. Validate it with `rialto check {file}`, serve it with `rialto serve --config {file}`."
            ));
            ExitCode::SUCCESS
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            eprintln!("rialto: {file} already exists; --force overwrites it");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("rialto: {file} cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `rialto schema`: prints the JSON Schema.
pub(super) fn schema() -> ExitCode {
    output::print_line(config::schema().trim_end());
    ExitCode::SUCCESS
}
