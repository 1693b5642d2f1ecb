//! `rialto check`, `rialto init` and `rialto schema`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::output;
use crate::config::{
    self, Config, Diagnostic, GroupSection, Loaded, ServerKind, ServerSection, Severity, show_duration,
};
use crate::local::rest::DocumentSource;
use crate::mcp_client::Target;
use crate::upstream::ConnectionMode;

/// What `rialto check` takes.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The file. [default: ./rialto.toml]
    #[arg(env = "RIALTO_CONFIG", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// What `rialto init` takes.
#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// The file to write.
    #[arg(default_value = config::FILE, value_name = "FILE")]
    file: PathBuf,
    /// Write it even if there is one already.
    #[arg(long)]
    force: bool,
}

/// Explains a configuration, or says what is wrong with it.
pub(super) fn check(arguments: &CheckArgs) -> ExitCode {
    let here = || Some(PathBuf::from(config::FILE)).filter(|file| file.is_file());
    let file = arguments.file.clone().or_else(here);
    let loaded = match &file {
        Some(file) => super::serve::load(file),
        None => Ok(Loaded { config: Config::default(), warnings: Vec::new() }),
    };
    let (config, problems) = match loaded {
        Ok(Loaded { config, warnings }) => (Some(config), warnings),
        Err(problems) => (None, problems),
    };
    match arguments.json {
        true => output::line(&output::plain(&in_json(file.as_deref(), config.as_ref(), &problems).to_string())),
        false => in_words(file.as_deref(), config.as_ref(), &problems),
    }
    if config.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn in_words(file: Option<&Path>, config: Option<&Config>, problems: &[Diagnostic]) {
    for problem in problems {
        eprintln!("{}", output::plain(&problem.to_string()));
    }
    let shown = file.map(|file| file.display().to_string());
    let Some(config) = config else {
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
        let errors = if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") };
        eprintln!("{} cannot be used: {errors}", shown.unwrap_or_default());
        return;
    };
    let listen = config.listen.map_or_else(|| "127.0.0.1:3001, the default".to_owned(), |listen| listen.to_string());
    let admin = config.admin.map_or_else(|| "on the same".to_owned(), |admin| admin.to_string());
    let callers: Vec<&str> = config.access.tokens.iter().map(|token| token.name.as_str()).collect();
    let callers = if callers.is_empty() { "anybody".to_owned() } else { format!("{}, by token", callers.join(", ")) };
    output::line(&match shown {
        Some(file) => format!("{file} can be used."),
        None => format!("There is no {} here; this is what is served without one.", config::FILE),
    });
    let store = output::plain(&config.store.to_string());
    let lines = format!("Listens on   {listen}\nAdmin        {admin}\nMay call     {callers}\nKeeps in     {store}");
    output::line(&format!("\n{lines}\n"));
    let rows = config.servers.iter().map(|server| {
        let facts = facts(server);
        let text = |key: &str| output::plain(facts[key].as_str().unwrap_or("–"));
        let name = if server.disabled { format!("{} (disabled)", server.name) } else { server.name.to_string() };
        let call = format!(
            "{} / {}",
            show_duration(server.settings.idle_timeout),
            show_duration(server.settings.total_timeout)
        );
        vec![name, text("kind"), text("target"), text("revision"), text("isolation"), call]
    });
    output::line(&output::table(&["SERVER", "KIND", "TARGET", "REVISION", "ISOLATION", "CALL SILENT / IN ALL"], rows));
    output::line("");
    let rows = config.groups.iter().map(|group| {
        let members = group.servers.iter().map(|name| &**name).collect::<Vec<_>>().join(", ");
        let members = if members.is_empty() { "none".to_owned() } else { members };
        vec![group.name.to_string(), address(group), members, names(group).to_owned()]
    });
    output::line(&output::table(&["GROUP", "ADDRESS", "SERVERS", "NAMES"], rows));
}

/// Where a group is served.
fn address(group: &GroupSection) -> String {
    if &*group.name == "default" { "/mcp".to_owned() } else { format!("/mcp/{}", group.name) }
}

/// How names look in a group.
fn names(group: &GroupSection) -> &'static str {
    if group.servers.len() > 1 { group.naming.as_str() } else { "as the server has them" }
}

fn in_json(file: Option<&Path>, config: Option<&Config>, problems: &[Diagnostic]) -> Value {
    let problem = |problem: &Diagnostic| {
        json!({
            "file": problem.file.display().to_string(), "line": problem.line, "column": problem.column,
            "severity": problem.severity.as_str(), "message": problem.message, "hint": problem.hint,
        })
    };
    let group = |group: &GroupSection| {
        json!({
            "name": &*group.name, "address": address(group), "naming": group.naming.as_str(),
            "servers": group.servers.iter().map(|name| &**name).collect::<Vec<_>>(),
        })
    };
    json!({
        "file": file.map(|file| file.display().to_string()),
        "ok": config.is_some(),
        "problems": problems.iter().map(problem).collect::<Vec<_>>(),
        "listen": config.and_then(|config| config.listen).map(|listen| listen.to_string()),
        "admin": config.and_then(|config| config.admin).map(|admin| admin.to_string()),
        "store": config.map(|config| config.store.to_string()),
        "servers": config.map(|config| config.servers.iter().map(facts).collect::<Vec<_>>()),
        "groups": config.map(|config| config.groups.iter().map(group).collect::<Vec<_>>()),
    })
}

/// What is told of a server. Arguments, queries and headers may be secret and are not.
fn facts(server: &ServerSection) -> Value {
    let (kind, target) = match &server.kind {
        ServerKind::Elements => ("built in", "elements".to_owned()),
        ServerKind::Target(target @ Target::Command(_)) => ("command", target.to_string()),
        ServerKind::Target(target @ Target::Url(_)) => ("address", target.to_string()),
        ServerKind::Rest(rest) => {
            let base = Target::url(&rest.base_url.to_string()).map(|target| target.to_string()).unwrap_or_default();
            let document = match &rest.document {
                Some(DocumentSource::File(file)) => format!(", described by {}", file.display()),
                Some(DocumentSource::Url(url)) => format!(", described at {}", url.host().unwrap_or_default()),
                None => String::new(),
            };
            let tools = match rest.tools.len() {
                0 => String::new(),
                count => format!(", {count} by hand"),
            };
            ("rest", format!("{base}{document}{tools}"))
        }
    };
    json!({
        "name": &*server.name,
        "written": &*server.written,
        "kind": kind,
        "target": target,
        "disabled": server.disabled,
        "revision": server.settings.revision.map_or_else(|| "auto".to_owned(), |revision| revision.to_string()),
        "isolation": server.connection_mode.map_or("auto", ConnectionMode::as_str),
        "questions": server.allow_server_requests,
        "call": show_duration(server.settings.idle_timeout),
        "callCap": show_duration(server.settings.total_timeout),
    })
}

/// Writes a file to begin with.
pub(super) fn init(arguments: &InitArgs) -> ExitCode {
    let file = arguments.file.display();
    let opened = match arguments.force {
        true => std::fs::File::create(&arguments.file),
        false => std::fs::File::create_new(&arguments.file),
    };
    match opened.and_then(|mut opened| opened.write_all(config::STARTER.as_bytes())) {
        Ok(()) => {
            output::line(&format!(
                "{file} is written. `rialto check {file}` explains it, `rialto serve --config {file}` serves it."
            ));
            ExitCode::SUCCESS
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            eprintln!("rialto: {file} is there already and was left as it is; --force writes it anew");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("rialto: {file} cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the schema.
pub(super) fn schema() -> ExitCode {
    output::line(config::schema().trim_end());
    ExitCode::SUCCESS
}
