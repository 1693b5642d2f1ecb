//! The command line.

mod arguments;
mod check;
mod client;
mod connect_args;
mod interactive;
mod output;
mod probe;
mod serve;
mod status;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::Config;
use crate::telemetry::{self, LogFormat};
use check::{CheckArgs, InitArgs};
use client::ClientCommand;
use serve::{ServeArgs, StdioArgs};
use status::StatusArgs;

/// A gateway between every MCP client and every MCP server.
///
/// Without a command it serves, as `rialto serve` does: what ./rialto.toml says, or else the built-in
/// periodic table on http://127.0.0.1:3001/mcp.
#[derive(Debug, Parser)]
#[command(name = "rialto", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<CliCommand>,
    #[command(flatten)]
    serve: ServeArgs,
    /// What to log: error, warn, info, debug, trace, or targets such as rialto=debug.
    /// The default is info when serving, error otherwise.
    #[arg(long, global = true, env = "RIALTO_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// How a log line looks. The default is text.
    #[arg(long, global = true, env = "RIALTO_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Serve over HTTP (the default).
    Serve(ServeArgs),
    /// Serve one client on standard input and output.
    Stdio(StdioArgs),
    /// Explain a configuration, or say everything that is wrong with it.
    Check(CheckArgs),
    /// Write a configuration to begin with.
    Init(InitArgs),
    /// Print the JSON Schema of rialto.toml, for editors.
    Schema,
    /// Show what a running gateway holds, by asking it.
    Status(StatusArgs),
    #[command(flatten)]
    Client(ClientCommand),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Something was wrong with the arguments, as clap counts it.
const USAGE: u8 = 2;

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match &arguments.command {
        None => arguments.serve.load(),
        Some(CliCommand::Serve(serve)) => serve.load(),
        Some(CliCommand::Stdio(stdio)) => stdio.serve().load(),
        Some(CliCommand::Check(check)) => return check::check(check),
        Some(CliCommand::Init(init)) => return check::init(init),
        Some(CliCommand::Schema) => return check::schema(),
        Some(CliCommand::Client(_) | CliCommand::Status(_) | CliCommand::Completions { .. }) => Ok(Config::default()),
    };
    let config = match config {
        Ok(config) => config,
        Err(code) => return code,
    };
    let serving = matches!(arguments.command, None | Some(CliCommand::Serve(_) | CliCommand::Stdio(_)));
    let filter = arguments.log.as_deref().or(config.log.filter.as_deref());
    let filter = filter.unwrap_or(if serving { "info" } else { "error" });
    let format = arguments.log_format.or(config.log.format).unwrap_or(LogFormat::Text);
    if let Err(why) = telemetry::init(filter, format) {
        eprintln!("rialto: {why}");
        return ExitCode::from(USAGE);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("rialto: the runtime cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(async {
        match arguments.command {
            None => serve::http(arguments.serve, &config).await,
            Some(CliCommand::Serve(serve)) => serve::http(serve, &config).await,
            Some(CliCommand::Stdio(stdio)) => serve::stdio(stdio, &config).await,
            Some(CliCommand::Status(status)) => status::run(status).await,
            Some(CliCommand::Client(command)) => client::run(command).await,
            Some(CliCommand::Completions { shell }) => {
                clap_complete::generate(shell, &mut Arguments::command(), "rialto", &mut std::io::stdout());
                ExitCode::SUCCESS
            }
            // Done above, as they need neither logs nor a runtime.
            Some(CliCommand::Check(_) | CliCommand::Init(_) | CliCommand::Schema) => ExitCode::SUCCESS,
        }
    });
    // A read from standard input cannot be called back; do not wait for it.
    runtime.shutdown_background();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
