//! Runs a benchmark and reports its outcome.

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;

/// Runs the benchmark on one thread, which leaves the other cores to the servers, with a timeout.
pub(crate) fn run_with_timeout(
    timeout: Duration,
    benchmark: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // The future owns the servers: dropping it stops them, however the benchmark ends.
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            outcome = benchmark => outcome,
            _ = interrupt.recv() => Err("interrupted".into()),
            _ = terminate.recv() => Err("terminated".into()),
            () = tokio::time::sleep(timeout) => Err("timed out".into()),
        }
    })
}

/// Prints an error and returns the exit code.
pub(crate) fn exit_code(name: &str, outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
