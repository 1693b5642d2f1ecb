//! A child process: started in a group of its own, ended step by step, never left behind.

use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

use super::reaper;
use super::target::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::ndjson::{Lines, TextLine};

/// The variables of our own environment that every child gets; others only by configuration.
const INHERITED: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TERM",
    "TMPDIR",
    "TZ",
    "XDG_CACHE_HOME",
];
/// How many of the last lines on standard error are kept to explain an end.
const LAST_WORDS: usize = 5;
/// How long the last of them may take to arrive.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(200);
/// The longest line on standard error that is logged whole.
const LOG_LINE: usize = 4096;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// How many children this process has.
pub fn children() -> usize {
    RUNNING.load(Ordering::Relaxed)
}

/// A child and what it said last on standard error.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
    last_words: StderrTail,
    errors: JoinHandle<()>,
}

/// The last lines on standard error.
#[derive(Debug, Clone, Default)]
pub(super) struct StderrTail(Arc<Mutex<VecDeque<String>>>);

impl Process {
    /// Starts a command.
    pub(super) fn start(command: &Command) -> Result<(Self, ChildStdin, ChildStdout)> {
        let mut process = tokio::process::Command::new(&command.program);
        process.args(&command.arguments).env_clear().process_group(0).kill_on_drop(true);
        process.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        process.envs(command.environment.iter().map(|(name, value)| (name, value)));
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(folder) = &command.folder {
            process.current_dir(folder);
        }
        reaper::prepare();
        let mut child = process.spawn().map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => "; is it installed, and on the PATH?",
                _ => "",
            };
            Error::new(
                ErrorKind::Unreachable,
                format!("the command {:?} cannot be started: {error}{hint}", command.program),
            )
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            reaper::adopt(group.as_raw_nonzero().get());
        }
        tracing::debug!(program = %command.program, id = ?child.id(), "a child was started");
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(Error::new(ErrorKind::Unreachable, "the child has no pipes"));
        };
        let last_words = StderrTail::default();
        let errors = tokio::spawn(log_errors(errors, command.program.clone(), last_words.clone()));
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Ok((Self { child, group, last_words, errors }, input, output))
    }

    /// What it said last on standard error.
    pub(super) fn last_words(&self) -> StderrTail {
        self.last_words.clone()
    }

    /// Waits for a child that ends by itself, and for what it still had to say.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.wait().await.ok();
        // What it started may hold its standard error open for longer than it lives.
        let _ = tokio::time::timeout(LAST_WORDS_WAIT, &mut self.errors).await;
        status
    }

    /// Ends a child whose input was closed: waits, asks, then kills the whole group.
    pub(super) async fn stop(mut self, grace: Duration) {
        for signal in [None, Some(Signal::TERM)] {
            if let Some(signal) = signal {
                self.signal(signal);
            }
            if tokio::time::timeout(grace, self.child.wait()).await.is_ok() {
                break;
            }
        }
        // Dropping it kills what is left of the group.
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // A group that is gone is what we want.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
        self.signal(Signal::KILL);
        if let Some(group) = self.group {
            reaper::release(group.as_raw_nonzero().get());
        }
    }
}

impl StderrTail {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LAST_WORDS {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The lines, as the end of a sentence.
    pub(super) fn explained(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return String::new();
        }
        format!("; it said: {}", lines.iter().map(String::as_str).collect::<Vec<_>>().join(" / "))
    }
}

async fn log_errors(errors: impl AsyncRead + Unpin, program: String, last_words: StderrTail) {
    let mut lines = Lines::new(BufReader::new(errors), LOG_LINE);
    while let Ok(Some(line)) = lines.next().await {
        let text = match &line {
            TextLine::Text(text) => String::from_utf8_lossy(text).into_owned(),
            TextLine::TooLong => "(a line too long to show)".to_owned(),
        };
        tracing::info!(target: "rialto::upstream::stderr", %program, "{text}");
        last_words.push(text);
    }
}
