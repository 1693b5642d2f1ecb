//! The gateway under valgrind, and what that has counted.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::hot::Stage;

/// A gateway whose instructions are counted. Dropping it ends the process.
pub struct Counted {
    child: Child,
    pub address: SocketAddr,
    /// What the files begin with that counts are written to.
    file: PathBuf,
    taken: u32,
    // Held open: a gateway that writes to a closed pipe would fail.
    _output: BufReader<ChildStdout>,
}

impl Counted {
    pub fn start(program: &Path, stage: &Stage) -> Self {
        let mut command = Command::new("valgrind");
        let file = stage.file("callgrind");
        // What valgrind has to say of itself is shown only where it does not start.
        let log = stage.file("valgrind.log");
        command.args(["--tool=callgrind", "--quiet"]).arg(format!("--log-file={}", log.display()));
        command.arg(format!("--callgrind-out-file={}", file.display()));
        command.arg(program).args(["serve", "--workers", "1", "--config"]).arg(stage.config());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RIALTO_")) {
            command.env_remove(name);
        }
        // One thread: how several share the work differs from run to run.
        command.env("TOKIO_WORKER_THREADS", "1").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("valgrind is installed");
        let mut output = BufReader::new(child.stdout.take().expect("it has an output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it can be read");
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let address = address.and_then(|(address, _)| address.parse().ok());
        let said = || format!("{line}{}", fs::read_to_string(&log).unwrap_or_default());
        let address = address.unwrap_or_else(|| panic!("it does not say where it listens: {}", said()));
        Self { child, address, file, taken: 0, _output: output }
    }

    /// What was counted since the last time.
    pub fn take(&mut self) -> u64 {
        let told = Command::new("vgdb").arg(format!("--pid={}", self.child.id())).arg("dump").output();
        let told = told.expect("vgdb is installed with valgrind");
        assert!(told.status.success(), "valgrind could not be asked: {}", String::from_utf8_lossy(&told.stderr));
        self.taken += 1;
        let file = format!("{}.{}", self.file.display(), self.taken);
        let text = fs::read_to_string(&file).expect("valgrind has written what it counted");
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        total.and_then(|total| total.parse().ok()).unwrap_or_else(|| panic!("{file} has no total"))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
