//! The gateway under valgrind --tool=callgrind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::hot::HotPathFixture;

/// A gateway process whose instructions are counted; killed on drop.
pub struct CountingGateway {
    child: Child,
    pub address: SocketAddr,
    /// Prefix of the callgrind dump files.
    dump_prefix: PathBuf,
    dumps: u32,
    // Held open: the gateway would fail to write to a closed pipe.
    _output: BufReader<ChildStdout>,
}

impl CountingGateway {
    pub fn start(program: &Path, fixture: &HotPathFixture, config: &Path) -> Self {
        // Without the access log, which is on where standard error is no terminal.
        Self::start_with_log(program, fixture, config, "warn")
    }

    pub fn start_with_log(program: &Path, fixture: &HotPathFixture, config: &Path, level: &str) -> Self {
        let mut command = Command::new("valgrind");
        let name = config.file_stem().expect("a file").to_string_lossy();
        let dump_prefix = fixture.file(&format!("callgrind-{name}"));
        // The log of valgrind is printed only if the gateway does not start.
        let log = fixture.file("valgrind.log");
        command.args(["--tool=callgrind", "--quiet"]).arg(format!("--log-file={}", log.display()));
        command.arg(format!("--callgrind-out-file={}", dump_prefix.display()));
        command.arg(program).args(["serve", "--workers", "1", "--log", level, "--config"]).arg(config);
        if level == "info" {
            command.stderr(fs::File::create(fixture.file("access.log")).expect("the file can be written"));
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RIALTO_")) {
            command.env_remove(name);
        }
        // One worker thread: work distribution over several would vary from run to run.
        command.env("TOKIO_WORKER_THREADS", "1").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("valgrind is installed");
        let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("stdout is readable");
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        let address = address.and_then(|(address, _)| address.parse().ok());
        let output_text = || format!("{line}{}", fs::read_to_string(&log).unwrap_or_default());
        let address = address.unwrap_or_else(|| panic!("the gateway printed no address: {}", output_text()));
        Self { child, address, dump_prefix, dumps: 0, _output: output }
    }

    /// Instructions since the previous call of this method.
    pub fn take_count(&mut self) -> u64 {
        let dumped = Command::new("vgdb").arg(format!("--pid={}", self.child.id())).arg("dump").output();
        let dumped = dumped.expect("vgdb is installed with valgrind");
        assert!(dumped.status.success(), "vgdb dump failed: {}", String::from_utf8_lossy(&dumped.stderr));
        self.dumps += 1;
        let file = format!("{}.{}", self.dump_prefix.display(), self.dumps);
        let text = fs::read_to_string(&file).expect("the dump file is readable");
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        total.and_then(|total| total.parse().ok()).unwrap_or_else(|| panic!("{file} has no total"))
    }
}

impl Drop for CountingGateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
