//! Where a command of the client goes: a URL, or a command after `--`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::interactive::{Answers, Terminal};
use crate::client::{Client, ClientOptions};
use crate::config;
use crate::dialect::Revision;
use crate::error::{Error, ErrorKind, Result};
use crate::mcp_client::{ConnectionSettings, HttpTransport, Target};
use crate::protocol::Level;

/// What all commands of the client take.
#[derive(Debug, Args)]
pub(super) struct Reach {
    /// A file that names servers: rialto.toml, or as other clients have it (mcpServers or servers).
    /// Otherwise ./rialto.toml, ./mcp.json, ./.mcp.json or ./.vscode/mcp.json.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    config: Option<PathBuf>,
    /// A header to send along, as 'Name: value'. May be repeated.
    #[arg(long, short = 'H', value_name = "HEADER", help_heading = "Server")]
    header: Vec<String>,
    /// An environment variable for the command, as NAME=VALUE. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Server")]
    env: Vec<String>,
    /// Where the command runs.
    #[arg(long, value_name = "FOLDER", help_heading = "Server")]
    cwd: Option<PathBuf>,
    /// The transport of a URL, if it is not to be found out.
    #[arg(long, value_name = "TRANSPORT", value_parser = ["http", "sse"], help_heading = "Server")]
    transport: Option<String>,
    /// The revision to speak, if it is not to be found out, such as 2025-06-18.
    #[arg(long, value_name = "REVISION", value_parser = revision, help_heading = "Server")]
    revision: Option<Revision>,
    /// Seconds to wait for a connection.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = "Server")]
    connect_timeout: u64,
    /// Seconds for which a call may be silent; progress begins them anew.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, help_heading = "Server")]
    timeout: u64,
    /// Seconds that a call may take in all.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, help_heading = "Server")]
    max_time: u64,
    /// Show the server's log messages from this level on (debug, info, notice, warning, error).
    #[arg(long, value_name = "LEVEL", value_parser = level, help_heading = "Server")]
    server_log: Option<Level>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub(super) json: bool,
    /// A folder that the server may know as a root. May be repeated.
    #[arg(long, value_name = "FOLDER", help_heading = "Questions of the server")]
    root: Vec<PathBuf>,
    /// A value for a field of a form that the server asks to be filled in, as key=value. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Questions of the server")]
    answer: Vec<String>,
    /// A shell command that answers requests for sampling: it reads the request as JSON and prints the text.
    #[arg(long, value_name = "COMMAND", help_heading = "Questions of the server")]
    sample_with: Option<String>,
    /// A command to start as the server, instead of a URL.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn revision(name: &str) -> std::result::Result<Revision, String> {
    let known = || crate::dialect::FACTS.iter().map(|facts| facts.name).collect::<Vec<_>>().join(", ");
    Revision::parse(name).ok_or_else(|| format!("the revisions are {}", known()))
}

fn level(name: &str) -> std::result::Result<Level, String> {
    Level::parse(name).ok_or_else(|| format!("the levels are {}", Level::choices()))
}

impl Reach {
    /// Takes the target off the words of a command line, unless a command follows `--`.
    pub(super) fn target(&self, words: &mut Vec<String>) -> Result<Target> {
        let target = match self.command.split_first() {
            Some((program, arguments)) => {
                let mut target = Target::command(program, arguments);
                if let Target::Command(command) = &mut target {
                    command.folder.clone_from(&self.cwd);
                    command.environment =
                        self.env.iter().map(|pair| split(pair, '=', "--env")).collect::<Result<_>>()?;
                }
                target
            }
            None if words.is_empty() => {
                let why = "say which server: a URL such as http://127.0.0.1:3001/mcp, a name from rialto.toml or mcp.json, or a command after --";
                return Err(Error::new(ErrorKind::Usage, why));
            }
            None => self.named(&words.remove(0))?,
        };
        self.with_headers(target)
    }

    /// A URL as it is, anything else as a name in a file.
    fn named(&self, word: &str) -> Result<Target> {
        if word.contains("://") {
            return Target::url(word);
        }
        let Some(file) = config::find(self.config.as_deref()) else {
            let why = format!(
                "{word:?} is no URL, and there is no rialto.toml or mcp.json here that could name it; give one with --config"
            );
            return Err(Error::new(ErrorKind::Usage, why));
        };
        config::target(&file, word)
    }

    fn with_headers(&self, mut target: Target) -> Result<Target> {
        for header in &self.header {
            let (name, value) = split(header, ':', "--header")?;
            target = target.with_header(name.trim(), value.trim())?;
        }
        if let (Target::Url(address), Some(transport)) = (&mut target, &self.transport) {
            address.transport = Some(if transport == "sse" { HttpTransport::Sse } else { HttpTransport::Streamable });
        }
        Ok(target)
    }

    /// Connects to a target.
    pub(super) async fn connect(&self, target: &Target) -> Result<(Client, Arc<Terminal>)> {
        let answers = Answers::new(&self.root, &self.answer, self.sample_with.clone())?;
        let terminal = Arc::new(Terminal::new(answers, self.json));
        let options = ClientOptions {
            settings: ConnectionSettings {
                revision: self.revision,
                connect_timeout: Duration::from_secs(self.connect_timeout),
                discovery_timeout: Duration::from_secs(self.connect_timeout),
                idle_timeout: Duration::from_secs(self.timeout),
                total_timeout: Duration::from_secs(self.max_time.max(self.timeout)),
                ..ConnectionSettings::default()
            },
            host: Arc::<Terminal>::clone(&terminal),
            level: self.server_log,
            ..ClientOptions::default()
        };
        let starting = terminal.starting(target);
        let client = Client::connect(target, options).await;
        starting.finish_and_clear();
        Ok((client?, terminal))
    }
}

/// Splits `name=value`.
pub(super) fn split(pair: &str, at: char, what: &str) -> Result<(String, String)> {
    match pair.split_once(at) {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Error::new(
            ErrorKind::Usage,
            format!("{what} takes a name and a value with `{at}` between them, not {pair:?}"),
        )),
    }
}
