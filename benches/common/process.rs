//! A server process, its CPU time and memory.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::Failure;
use crate::client::PATH;

/// Timeout for a server to print its address.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before counters are read, so that a server can finish its cleanup.
pub(crate) const SETTLE_TIME: Duration = Duration::from_millis(20);

/// Timeout for the process to exit after SIGTERM, and again after SIGKILL.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A running server. Dropping it stops the process and waits for its exit, also on panic.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Start time of the process.
    pub(crate) begin: Instant,
    /// Path of the POST requests.
    pub(crate) path: &'static str,
    // Kept open, because a server that writes to a closed pipe would fail.
    _output: Option<BufReader<ChildStdout>>,
}

impl Server {
    /// A `rialto` command without `RIALTO_*` environment variables.
    pub(crate) fn rialto() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rialto"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RIALTO_")) {
            command.env_remove(name);
        }
        command
    }

    /// Starts a server that prints its address.
    pub(crate) async fn start(mut command: Command) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let begin = Instant::now();
        let mut child = command.spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("the server has no output")?);
        let mut line = String::new();
        tokio::time::timeout(START_TIMEOUT, output.read_line(&mut line)).await??;
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let address = address.and_then(|(address, _)| address.parse().ok());
        let address = address.ok_or_else(|| format!("the server does not say where it listens: {line:?}"))?;
        Ok(Self { child, address, begin, path: PATH, _output: Some(output) })
    }

    /// Starts a server that prints nothing, at a given address.
    pub(crate) async fn start_at(mut command: Command, address: SocketAddr) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let begin = Instant::now();
        let mut server = Self { child: command.spawn()?, address, begin, path: PATH, _output: None };
        while tokio::net::TcpStream::connect(address).await.is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("it ended at once: {status}").into());
            }
            if begin.elapsed() > START_TIMEOUT {
                return Err(format!("nothing listens at {address}").into());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(server)
    }

    fn pid(&self) -> Result<u32, Failure> {
        Ok(self.child.id().ok_or("the server has ended")?)
    }

    /// CPU time (user and system) of the process and its children. Children that run this binary are benchmark
    /// upstreams and do not count.
    pub(crate) fn processor_time(&self) -> Result<Duration, Failure> {
        let pid = self.pid()?;
        let children = descendants(pid).into_iter().filter_map(|child| cpu_nanos(child).ok());
        Ok(Duration::from_nanos(cpu_nanos(pid)? + children.sum::<u64>()))
    }

    /// Kills the process, as if the machine were lost.
    pub(crate) async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) async fn stop(&mut self) -> Result<(), Failure> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).ok_or("the server has ended")?;
        kill_process(pid, Signal::TERM)?;
        tokio::time::timeout(START_TIMEOUT, self.child.wait()).await??;
        Ok(())
    }

    /// Resident bytes of the process and its children, counted as for the CPU time.
    pub(crate) fn resident(&self) -> Result<u64, Failure> {
        let pid = self.pid()?;
        let children = descendants(pid).into_iter().filter_map(|child| resident(child).ok());
        Ok(resident(pid)? + children.sum::<u64>())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM first, because a killed process cannot stop its children.
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if !self.has_exited() {
            let _ = self.child.start_kill();
            self.has_exited();
        }
    }
}

impl Server {
    /// Waits for the exit of the process, up to [`EXIT_TIMEOUT`].
    fn has_exited(&mut self) -> bool {
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begin.elapsed() > EXIT_TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// All descendants of a process, except upstreams of the benchmark, which run this binary.
fn descendants(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children = texts.flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>());
    let ours = std::env::current_exe().ok();
    let mut all = Vec::new();
    for child in children.collect::<Vec<u32>>() {
        if std::fs::read_link(format!("/proc/{child}/exe")).ok() != ours {
            all.push(child);
            all.extend(descendants(child));
        }
    }
    all
}

/// Resident bytes of one process. From `smaps_rollup`, which is exact; `status` is an estimate.
fn resident(pid: u32) -> Result<u64, Failure> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).ok_or("smaps_rollup has no Rss")?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024)
}

/// CPU time of all threads in nanoseconds. From `schedstat`, because `stat` only has hundredths of a second.
fn cpu_nanos(pid: u32) -> Result<u64, Failure> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let line = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let ran = line.split_whitespace().next().ok_or("schedstat is empty")?;
        nanoseconds += ran.parse::<u64>()?;
    }
    Ok(nanoseconds)
}
