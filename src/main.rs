//! The `rialto` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    rialto::cli::main()
}
