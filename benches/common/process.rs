//! A server as a process, and what the system says of it.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::Failure;
use crate::client::PATH;

/// How long a server may take until it says where it listens.
const START: Duration = Duration::from_secs(30);
/// How long a server is left alone before it is looked at, so that it can tidy up after itself.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);

/// How long a server may take to be gone, once told and again once killed.
const END: Duration = Duration::from_secs(2);

/// A server that runs. Dropping it ends the process and waits for that, also in a panic.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// When the process was started.
    pub(crate) begin: Instant,
    /// Where messages are posted to.
    pub(crate) path: &'static str,
    // Held open: a server that writes to a closed pipe would fail.
    _output: Option<BufReader<ChildStdout>>,
}

impl Server {
    /// Rialto, without what the environment would tell it.
    pub(crate) fn rialto() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rialto"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RIALTO_")) {
            command.env_remove(name);
        }
        command
    }

    /// Starts a server that says where it listens.
    pub(crate) async fn start(mut command: Command) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let begin = Instant::now();
        let mut child = command.spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("the server has no output")?);
        let mut line = String::new();
        tokio::time::timeout(START, output.read_line(&mut line)).await??;
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let address = address.and_then(|(address, _)| address.parse().ok());
        let address = address.ok_or_else(|| format!("the server does not say where it listens: {line:?}"))?;
        Ok(Self { child, address, begin, path: PATH, _output: Some(output) })
    }

    /// Starts a server that says nothing, and was told where to listen.
    pub(crate) async fn start_at(mut command: Command, address: SocketAddr) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let begin = Instant::now();
        let mut server = Self { child: command.spawn()?, address, begin, path: PATH, _output: None };
        while tokio::net::TcpStream::connect(address).await.is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("it ended at once: {status}").into());
            }
            if begin.elapsed() > START {
                return Err(format!("nothing listens at {address}").into());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(server)
    }

    fn pid(&self) -> Result<u32, Failure> {
        Ok(self.child.id().ok_or("the server has ended")?)
    }

    /// The processor time that all threads took, in user and in system mode, with those of its children. A child
    /// that is this program is a server behind the one that is measured, and does not count.
    pub(crate) fn processor_time(&self) -> Result<Duration, Failure> {
        let pid = self.pid()?;
        let children = family(pid).into_iter().filter_map(|child| ran(child).ok());
        Ok(Duration::from_nanos(ran(pid)? + children.sum::<u64>()))
    }

    /// Ends the process on the spot, as when the machine is lost.
    pub(crate) async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }

    /// Asks the process to end, and waits until it has.
    pub(crate) async fn stop(&mut self) -> Result<(), Failure> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).ok_or("the server has ended")?;
        kill_process(pid, Signal::TERM)?;
        tokio::time::timeout(START, self.child.wait()).await??;
        Ok(())
    }

    /// Resident bytes of the process and its children, as for the processor time.
    pub(crate) fn resident(&self) -> Result<u64, Failure> {
        let pid = self.pid()?;
        let children = family(pid).into_iter().filter_map(|child| resident(child).ok());
        Ok(resident(pid)? + children.sum::<u64>())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Told first, because one that is killed cannot end its children.
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if !self.is_gone() {
            let _ = self.child.start_kill();
            self.is_gone();
        }
    }
}

impl Server {
    /// Waits for the end of the process, but not for long.
    fn is_gone(&mut self) -> bool {
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begin.elapsed() > END {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// The children of a process and theirs, but for servers behind it, which are this program.
fn family(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children = texts.flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>());
    let ours = std::env::current_exe().ok();
    let mut all = Vec::new();
    for child in children.collect::<Vec<u32>>() {
        if std::fs::read_link(format!("/proc/{child}/exe")).ok() != ours {
            all.push(child);
            all.extend(family(child));
        }
    }
    all
}

/// Resident bytes of one process. From `smaps_rollup`, which counts pages; `status` keeps an estimate.
fn resident(pid: u32) -> Result<u64, Failure> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).ok_or("smaps_rollup has no Rss")?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024)
}

/// The nanoseconds that the threads of a process ran. Read where they are kept as such, because `stat`
/// has hundredths of a second.
fn ran(pid: u32) -> Result<u64, Failure> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let line = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let ran = line.split_whitespace().next().ok_or("schedstat is empty")?;
        nanoseconds += ran.parse::<u64>()?;
    }
    Ok(nanoseconds)
}
