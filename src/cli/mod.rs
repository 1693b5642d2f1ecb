//! The command line.

mod arguments;
mod caller_access;
mod check;
mod client;
mod connect_args;
mod console;
mod interactive;
mod key;
mod output;
mod probe;
mod serve;
mod setting_flags;
mod status;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::Config;
use crate::telemetry::{self, LogDelivery};
use check::{CheckArgs, InitArgs};
use client::ClientCommand;
use console::ConsoleArgs;
use key::KeyArgs;
use serve::{ServeArgs, StdioArgs};
use setting_flags::GlobalFlags;
use status::StatusArgs;

/// Most threads for blocking work: files, name lookups, standard input. Further work waits in a queue.
const MAX_BLOCKING_THREADS: usize = 64;

/// A gateway between every MCP client and every MCP server.
///
/// Without a command it runs `rialto serve`: serves ./rialto.toml, or without a file the built-in periodic table, on
/// http://127.0.0.1:3001/mcp.
#[derive(Debug, Parser)]
#[command(name = "rialto", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<CliCommand>,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    global: GlobalFlags,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Serve over HTTP (the default).
    Serve(ServeArgs),
    /// Serve one client on standard input and output.
    Stdio(StdioArgs),
    /// Validate a configuration and print a summary, or all mistakes.
    Check(CheckArgs),
    /// Write a starter configuration.
    Init(InitArgs),
    /// Print the JSON Schema of rialto.toml, for editors.
    Schema,
    /// Make API keys.
    Key(KeyArgs),
    /// Show the status of a running gateway.
    Status(StatusArgs),
    /// Print the link to the console of a running gateway.
    Console(ConsoleArgs),
    #[command(flatten)]
    Client(Box<ClientCommand>),
    /// Print shell completions.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Exit code for invalid arguments, the same as clap's.
const EXIT_USAGE: u8 = 2;

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match &arguments.command {
        None => arguments.serve.load(),
        Some(CliCommand::Serve(serve)) => serve.load(),
        Some(CliCommand::Stdio(stdio)) => stdio.serve().load(),
        Some(CliCommand::Check(check)) => return check::check(check),
        Some(CliCommand::Init(init)) => return check::init(init),
        Some(CliCommand::Schema) => return check::schema(),
        Some(CliCommand::Key(key)) => return key::run(key),
        Some(CliCommand::Console(arguments)) => return console::run(arguments),
        Some(CliCommand::Client(_) | CliCommand::Status(_) | CliCommand::Completions { .. }) => Ok(Config::default()),
    };
    let config = match config {
        Ok(config) => config,
        Err(code) => return code,
    };
    let serving = matches!(arguments.command, None | Some(CliCommand::Serve(_) | CliCommand::Stdio(_)));
    let log = match config.with_flags(&arguments.global.0) {
        Ok((config, _)) => config.settings.log,
        Err(mistakes) => return serve::usage_error(&mistakes),
    };
    let (default, delivery) = match serving {
        true => (telemetry::SERVING_FILTER, LogDelivery::Queued),
        false => (telemetry::COMMAND_FILTER, LogDelivery::Direct),
    };
    let filter = log.tracing_filter();
    if let Err(why) = telemetry::init(filter.as_deref().unwrap_or(default), log.format, delivery) {
        eprintln!("rialto: {why}");
        return ExitCode::from(EXIT_USAGE);
    }
    telemetry::set_samples(log.samples.of_log());
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("rialto: Tokio runtime failed to start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(async {
        match arguments.command {
            None => serve::http(arguments.serve, &arguments.global.0, &config).await,
            Some(CliCommand::Serve(serve)) => serve::http(serve, &arguments.global.0, &config).await,
            Some(CliCommand::Stdio(stdio)) => serve::stdio(stdio, &config).await,
            Some(CliCommand::Status(status)) => status::run(status).await,
            Some(CliCommand::Client(command)) => client::run(*command).await,
            Some(CliCommand::Completions { shell }) => {
                clap_complete::generate(shell, &mut Arguments::command(), "rialto", &mut std::io::stdout());
                ExitCode::SUCCESS
            }
            // Handled above: these need neither logging nor a runtime.
            Some(
                CliCommand::Check(_)
                | CliCommand::Init(_)
                | CliCommand::Schema
                | CliCommand::Key(_)
                | CliCommand::Console(_),
            ) => ExitCode::SUCCESS,
        }
    });
    // A blocking read of stdin cannot be cancelled; do not wait for it.
    runtime.shutdown_background();
    telemetry::flush();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_definition_is_valid() {
        Arguments::command().debug_assert();
    }
}
