//! Child process of a stdio server: its own process group, an orderly stop, stderr forwarded to the log.

use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

use super::log_limiter::LogLimiter;
use super::reaper;
use super::stderr_log::keep_line;
use super::target::Command;
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::ndjson::{LineReader, TextLine};

/// Environment variables that every child inherits; all others must be configured.
const INHERITED_VARIABLES: [&str; 12] = [
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
/// Lines of stderr that are kept to explain an exit.
const STDERR_TAIL_LINES: usize = 5;
/// How long a killed child may take to exit; the kernel may hold it for a moment.
const KILLED_EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for the rest of stderr after the child has exited.
const STDERR_DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// Longer lines of stderr are not logged.
const MAX_STDERR_LINE_BYTES: usize = 4096;

/// Environment variable of children with the number of Rialtos above them.
const NESTING_VARIABLE: &str = "RIALTO_NESTING";
/// Rialtos that may be children of one another. A Rialto that has itself as a server would start itself without end.
const MAX_NESTING: u32 = 4;

static RUNNING_CHILDREN: AtomicUsize = AtomicUsize::new(0);

/// Number of child processes that are running.
pub fn running_children() -> usize {
    RUNNING_CHILDREN.load(Ordering::Relaxed)
}

/// A running child process. Dropping it kills its process group.
#[derive(Debug)]
pub(super) struct ChildProcess {
    child: Child,
    group: Option<Pid>,
    stderr_tail: StderrTail,
    stderr_task: JoinHandle<()>,
}

/// The last lines of stderr, shared with the task that reads it.
#[derive(Debug, Clone, Default)]
pub(super) struct StderrTail(Arc<Mutex<VecDeque<String>>>);

impl ChildProcess {
    /// Starts a command with piped stdin, stdout and stderr.
    pub(super) fn start(command: &Command) -> Result<(Self, ChildStdin, ChildStdout)> {
        let mut process = tokio::process::Command::new(&command.program);
        process.args(&command.arguments).env_clear().process_group(0).kill_on_drop(true);
        process.envs(INHERITED_VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        process.envs(command.environment.iter().map(|(name, value)| (name, value)));
        process.env(reaper::TAG_VARIABLE, reaper::child_tag());
        process.env(NESTING_VARIABLE, nesting_of_children(std::env::var(NESTING_VARIABLE).ok())?.to_string());
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = &command.working_directory {
            process.current_dir(directory);
        }
        reaper::ensure_running();
        let mut child = process.spawn().map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => "; is it installed, and on the PATH?",
                _ => "",
            };
            Error::failure(
                FailureKind::StartFailed,
                format!("child {:?} cannot be started: {error}{hint}", command.program),
            )
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            reaper::register_group(group.as_raw_nonzero().get());
        }
        tracing::debug!(program = %command.program, id = ?child.id(), "child started");
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(Error::failure(FailureKind::StartFailed, "child started without pipes"));
        };
        let stderr_tail = StderrTail::default();
        let stderr_task = tokio::spawn(log_stderr(stderr, command.clone(), stderr_tail.clone()));
        RUNNING_CHILDREN.fetch_add(1, Ordering::Relaxed);
        Ok((Self { child, group, stderr_tail, stderr_task }, stdin, stdout))
    }

    /// The process id; `None` once it has exited.
    pub(super) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// The last lines of stderr.
    pub(super) fn stderr_tail(&self) -> StderrTail {
        self.stderr_tail.clone()
    }

    /// Waits until the child exits by itself, then briefly for the rest of its stderr.
    pub(super) async fn wait_for_exit(&mut self) -> Option<ExitStatus> {
        let status = self.child.wait().await.ok();
        // Descendants may hold stderr open for longer than the child lives.
        let _ = tokio::time::timeout(STDERR_DRAIN_TIMEOUT, &mut self.stderr_task).await;
        status
    }

    /// Stops a child whose stdin was closed: waits for `stop_timeout`, sends SIGTERM, waits again, then kills the group.
    /// Returns once the child has exited, so that whoever stops a gateway finds none of its children.
    pub(super) async fn stop(mut self, stop_timeout: Duration) {
        for (signal, timeout) in
            [(None, stop_timeout), (Some(Signal::TERM), stop_timeout), (Some(Signal::KILL), KILLED_EXIT_TIMEOUT)]
        {
            if let Some(signal) = signal {
                self.signal(signal);
            }
            if tokio::time::timeout(timeout, self.child.wait()).await.is_ok() {
                break;
            }
        }
        // Dropping `self` kills what is left of the process group.
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The group may already be gone.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        RUNNING_CHILDREN.fetch_sub(1, Ordering::Relaxed);
        self.signal(Signal::KILL);
        if let Some(group) = self.group {
            reaper::unregister_group(group.as_raw_nonzero().get());
        }
    }
}

/// What children are told of the number of Rialtos above them, by what this process was told.
fn nesting_of_children(nesting: Option<String>) -> Result<u32> {
    let nesting = nesting.and_then(|nesting| nesting.parse().ok()).unwrap_or(0_u32).saturating_add(1);
    match nesting <= MAX_NESTING {
        true => Ok(nesting),
        false => Err(Error::failure(
            FailureKind::StartFailed,
            format!(
                "{MAX_NESTING} Rialtos have started one another; is Rialto with this same file one of its servers?"
            ),
        )),
    }
}

impl StderrTail {
    fn push(&self, line: String) {
        let mut lines = self.0.lock();
        if lines.len() == STDERR_TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The lines in one clause that can be appended to an error message; empty without lines.
    pub(super) fn summary(&self) -> String {
        let lines = self.0.lock();
        if lines.is_empty() {
            return String::new();
        }
        format!("; stderr: {}", lines.iter().map(String::as_str).collect::<Vec<_>>().join(" / "))
    }
}

async fn log_stderr(stderr: impl AsyncRead + Unpin, command: Command, stderr_tail: StderrTail) {
    let mut lines = LineReader::new(BufReader::new(stderr), MAX_STDERR_LINE_BYTES);
    let program = &command.program;
    let log = LogLimiter::new(program.as_str());
    while let Ok(Some(line)) = lines.next().await {
        let text = match &line {
            TextLine::Text(text) => String::from_utf8_lossy(text).into_owned(),
            TextLine::TooLong(_) => "(line too long)".to_owned(),
        };
        if log.admits(text.len()) {
            tracing::info!(target: "rialto::upstream::stderr", %program, "{text}");
        }
        keep_line(&command, &text);
        stderr_tail.push(text);
    }
}
