//! A server as a process, and what the system says of it.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::Failure;
use crate::peers;

/// How long a server may take until it says where it listens.
const START: Duration = Duration::from_secs(10);
/// How long a server is left alone before it is looked at, so that it can tidy up after itself.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);

/// How long a killed server may take to be gone.
const END: Duration = Duration::from_secs(2);

/// A server that runs. Dropping it kills the process and waits for its end, also in a panic.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    // Held open: a server that writes to a closed pipe would fail.
    _output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts Rialto with the periodic table, as it comes.
    pub(crate) async fn rialto() -> Result<Self, Failure> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rialto"));
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RIALTO_")) {
            command.env_remove(name);
        }
        Self::start(command).await
    }

    /// Starts one of the servers in [`peers`].
    pub(crate) async fn peer(kind: &str) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([peers::ARGUMENT, kind]);
        Self::start(command).await
    }

    async fn start(mut command: Command) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("the server has no output")?);
        let mut line = String::new();
        tokio::time::timeout(START, output.read_line(&mut line)).await??;
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let address = address.and_then(|(address, _)| address.parse().ok());
        let address = address.ok_or_else(|| format!("the server does not say where it listens: {line:?}"))?;
        Ok(Self { child, address, _output: output })
    }

    fn file(&self, name: &str) -> Result<String, Failure> {
        let pid = self.child.id().ok_or("the server has ended")?;
        std::fs::read_to_string(format!("/proc/{pid}/{name}")).map_err(|error| format!("{name}: {error}").into())
    }

    /// The processor time that all threads took, in user and in system mode. Read where it is
    /// kept in nanoseconds, because `stat` has it in hundredths of a second.
    pub(crate) fn processor_time(&self) -> Result<Duration, Failure> {
        let pid = self.child.id().ok_or("the server has ended")?;
        let mut nanoseconds = 0;
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let line = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let ran = line.split_whitespace().next().ok_or("schedstat is empty")?;
            nanoseconds += ran.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
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
        // One that has ended already cannot be killed, and need not be.
        let _ = self.child.start_kill();
        let begin = Instant::now();
        while begin.elapsed() < END && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
