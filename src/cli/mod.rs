//! The command line.

mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::telemetry::{self, LogFormat};
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
    #[arg(long, global = true, env = "RIALTO_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
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
}

/// Something was wrong with the arguments, as clap counts it.
const USAGE: u8 = 2;

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(why) = telemetry::start(&arguments.log, arguments.log_format) {
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
        }
    });
    // A read from standard input cannot be called back; do not wait for it.
    runtime.shutdown_background();
    code
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
