//! A server as a process, and what the system says of it.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::Failure;

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
    /// Whether what its children take is counted, too.
    family: bool,
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
        let mut child = command.spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("the server has no output")?);
        let mut line = String::new();
        tokio::time::timeout(START, output.read_line(&mut line)).await??;
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let address = address.and_then(|(address, _)| address.parse().ok());
        let address = address.ok_or_else(|| format!("the server does not say where it listens: {line:?}"))?;
        Ok(Self { child, address, family: false, _output: Some(output) })
    }

    /// Starts a server that says nothing, and was told where to listen. What its children take counts.
    pub(crate) async fn start_at(mut command: Command, address: SocketAddr) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let server = Self { child: command.spawn()?, address, family: true, _output: None };
        let begin = Instant::now();
        while tokio::net::TcpStream::connect(address).await.is_err() {
            if begin.elapsed() > START {
                return Err(format!("nothing listens at {address}").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(server)
    }

    fn file(&self, name: &str) -> Result<String, Failure> {
        let pid = self.child.id().ok_or("the server has ended")?;
        std::fs::read_to_string(format!("/proc/{pid}/{name}")).map_err(|error| format!("{name}: {error}").into())
    }

    /// The processor time that all threads took, in user and in system mode.
    pub(crate) fn processor_time(&self) -> Result<Duration, Failure> {
        let pid = self.child.id().ok_or("the server has ended")?;
        let mut nanoseconds = ran(pid)?;
        if self.family {
            for child in self.file(&format!("task/{pid}/children"))?.split_whitespace() {
                nanoseconds += ran(child.parse()?)?;
            }
        }
        Ok(Duration::from_nanos(nanoseconds))
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

    /// Resident bytes. From `smaps_rollup`, which counts pages; `status` keeps an estimate.
    pub(crate) fn resident(&self) -> Result<u64, Failure> {
        let rollup = self.file("smaps_rollup")?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).ok_or("smaps_rollup has no Rss")?;
        let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kibibytes * 1024)
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
