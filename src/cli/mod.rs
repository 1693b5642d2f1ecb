//! The command line.

mod arguments;
mod client;
mod serve;
mod show;
mod target;
mod terminal;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::telemetry::{self, LogFormat};
use client::ClientCommand;
use serve::ServeArgs;

/// A gateway between every MCP client and every MCP server.
///
/// Without a command it serves, as `rialto serve` does: the built-in periodic table on
/// http://127.0.0.1:3001/mcp.
#[derive(Debug, Parser)]
#[command(name = "rialto", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
    /// What to log: error, warn, info, debug, trace, or targets such as rialto=debug.
    /// The default is info when serving, error otherwise.
    #[arg(long, global = true, env = "RIALTO_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// How a log line looks.
    #[arg(long, global = true, env = "RIALTO_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve over HTTP (the default).
    Serve(ServeArgs),
    /// Serve one client on standard input and output.
    Stdio(ServeArgs),
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
    let serving = !matches!(arguments.command, Some(Command::Client(_) | Command::Completions { .. }));
    let filter = arguments.log.as_deref().unwrap_or(if serving { "info" } else { "error" });
    if let Err(why) = telemetry::start(filter, arguments.log_format) {
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
            None => serve::http(arguments.serve).await,
            Some(Command::Serve(serve)) => serve::http(serve).await,
            Some(Command::Stdio(serve)) => serve::stdio(serve).await,
            Some(Command::Client(command)) => client::run(command).await,
            Some(Command::Completions { shell }) => {
                clap_complete::generate(shell, &mut Arguments::command(), "rialto", &mut std::io::stdout());
                ExitCode::SUCCESS
            }
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
