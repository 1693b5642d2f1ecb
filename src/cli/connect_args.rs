//! Connection arguments of the client commands: a URL, a server name, or a command after `--`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::interactive::{PreparedAnswers, Terminal};
use crate::client::{Client, ClientOptions};
use crate::config;
use crate::dialect::Revision;
use crate::error::{Error, Result};
use crate::mcp_client::{ConnectionSettings, HttpTransport, Target};
use crate::protocol::Level;
use crate::redact::Secrets;

/// Arguments shared by all client commands.
#[derive(Debug, Args)]
pub(super) struct ConnectArgs {
    /// Configuration file to look server names up in: rialto.toml, or the mcp.json of another client. [default: the
    /// first of ./rialto.toml, ./mcp.json, ./.mcp.json, ./.vscode/mcp.json]
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    config: Option<PathBuf>,
    /// Header to send, as 'Name: value'. Can be repeated.
    #[arg(long, short = 'H', value_name = "HEADER", help_heading = "Server")]
    header: Vec<String>,
    /// Environment variable for the command, as NAME=VALUE. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Server")]
    env: Vec<String>,
    /// Working directory of the command.
    #[arg(long, value_name = "FOLDER", help_heading = "Server")]
    cwd: Option<PathBuf>,
    /// Transport of the URL. [default: detected]
    #[arg(long, value_name = "TRANSPORT", value_parser = ["http", "sse"], help_heading = "Server")]
    transport: Option<String>,
    /// Protocol revision, such as 2025-06-18. [default: detected]
    #[arg(long, value_name = "REVISION", value_parser = parse_revision, help_heading = "Server")]
    revision: Option<Revision>,
    /// Connect timeout in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = "Server")]
    connect_timeout: u64,
    /// Idle timeout of a call in seconds; progress notifications reset it.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, help_heading = "Server")]
    timeout: u64,
    /// Total timeout of a call in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, help_heading = "Server")]
    max_time: u64,
    /// Minimum level of the server's log messages to show (debug, info, notice, warning, error).
    #[arg(long, value_name = "LEVEL", value_parser = parse_level, help_heading = "Server")]
    server_log: Option<Level>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Directory to offer to the server as a root. Can be repeated.
    #[arg(long, value_name = "FOLDER", help_heading = "Server requests")]
    root: Vec<PathBuf>,
    /// Answer to a field of an elicitation form, as key=value. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Server requests")]
    answer: Vec<String>,
    /// Shell command that answers sampling requests: reads the request as JSON on stdin and prints the text.
    #[arg(long, value_name = "COMMAND", help_heading = "Server requests")]
    sample_with: Option<String>,
    /// Command to start as the server, instead of a URL.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn parse_revision(name: &str) -> std::result::Result<Revision, String> {
    let known = || crate::dialect::FEATURES.iter().map(|features| features.name).collect::<Vec<_>>().join(", ");
    Revision::parse(name).ok_or_else(|| format!("the revisions are {}", known()))
}

fn parse_level(name: &str) -> std::result::Result<Level, String> {
    Level::parse(name).ok_or_else(|| format!("the levels are {}", Level::choices()))
}

impl ConnectArgs {
    /// Resolves the target: the command after `--`, or the first word, which is removed from `words`.
    pub(super) fn target(&self, words: &mut Vec<String>) -> Result<Target> {
        let target = match self.command.split_first() {
            Some((program, arguments)) => {
                let mut target = Target::command(program, arguments);
                if let Target::Command(command) = &mut target {
                    command.working_directory.clone_from(&self.cwd);
                    command.environment =
                        self.env.iter().map(|pair| split_pair(pair, '=', "--env")).collect::<Result<_>>()?;
                }
                target
            }
            None if words.is_empty() => {
                let why = "specify which server: a URL such as http://127.0.0.1:3001/mcp, a name from rialto.toml or mcp.json, or a command after --";
                return Err(Error::usage(why));
            }
            None => self.resolve(&words.remove(0))?,
        };
        self.secrets().install_also();
        self.with_headers(target)
    }

    /// The values of `--header` and `--env`, which are masked like those of a file.
    fn secrets(&self) -> Secrets {
        let pairs = |flags: &[String], at| {
            flags.iter().filter_map(|flag| flag.split_once(at)).map(own_pair).collect::<Vec<_>>()
        };
        config::pair_secrets(&pairs(&self.header, ':'), &pairs(&self.env, '='))
    }

    /// A URL, or else the name of a server in a configuration file.
    fn resolve(&self, word: &str) -> Result<Target> {
        if word.contains("://") {
            return Target::url(word);
        }
        let Some(file) = config::find_file(self.config.as_deref()) else {
            let why = format!(
                "{word:?} is not a URL, and there is no rialto.toml or mcp.json here to look it up in; give one with --config"
            );
            return Err(Error::usage(why));
        };
        let (target, secrets) = config::resolve_target(&file, word)?;
        secrets.install();
        Ok(target)
    }

    fn with_headers(&self, mut target: Target) -> Result<Target> {
        for header in &self.header {
            let (name, value) = split_pair(header, ':', "--header")?;
            target = target.with_header(name.trim(), value.trim())?;
        }
        if let (Target::Url(address), Some(transport)) = (&mut target, &self.transport) {
            address.transport = Some(if transport == "sse" { HttpTransport::Sse } else { HttpTransport::Streamable });
        }
        Ok(target)
    }

    /// Connects to a target, with the terminal as the host for server requests.
    pub(super) async fn connect(&self, target: &Target) -> Result<(Client, Arc<Terminal>)> {
        self.connect_at(target, self.revision).await
    }

    /// Connects to the handshake leg of a server whose per-request leg is `known`; `None` where there is none to look for.
    pub(super) async fn connect_other_leg(&self, target: &Target, known: &Client) -> Option<Client> {
        if self.revision.is_some() || known.revision().opens_with_handshake() {
            return None;
        }
        let mut target = target.clone();
        if let Target::Url(address) = &mut target {
            address.transport = Some(HttpTransport::Streamable);
        }
        let connected = self.connect_at(&target, Some(Revision::NEWEST_HANDSHAKE)).await;
        connected.ok().map(|(client, _)| client)
    }

    async fn connect_at(&self, target: &Target, revision: Option<Revision>) -> Result<(Client, Arc<Terminal>)> {
        let answers = PreparedAnswers::new(&self.root, &self.answer, self.sample_with.clone())?;
        let terminal = Arc::new(Terminal::new(answers, self.json));
        let options = ClientOptions {
            settings: ConnectionSettings {
                revision,
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
        let starting = terminal.connect_spinner(target);
        let client = Client::connect(target, options).await;
        starting.finish_and_clear();
        Ok((client?, terminal))
    }
}

fn own_pair((name, value): (&str, &str)) -> (String, String) {
    (name.trim().to_owned(), value.trim().to_owned())
}

/// Splits `name=value` at the separator; `what` is the flag for the error message.
pub(super) fn split_pair(pair: &str, at: char, what: &str) -> Result<(String, String)> {
    match pair.split_once(at) {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Error::usage(format!("{what} needs a name and a value separated by `{at}`, not {pair:?}"))),
    }
}
