//! A benchmark as a program: how it runs, and how it ends.

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;

/// Measures on one thread, which leaves the other cores to the servers. Past `patience` something hangs.
pub(crate) fn measured(patience: Duration, whole: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // However this ends, the servers are owned by the future that is dropped, and stop with it.
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            outcome = whole => outcome,
            _ = interrupt.recv() => Err("interrupted".into()),
            _ = terminate.recv() => Err("terminated".into()),
            () = tokio::time::sleep(patience) => Err("it took too long".into()),
        }
    })
}

/// What is told to whoever started it.
pub(crate) fn ended(name: &str, outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
