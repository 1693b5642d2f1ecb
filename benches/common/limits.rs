//! Raises the file descriptor limit for the streams.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Failure;

/// Environment variable that marks the re-executed process.
const REEXEC_VAR: &str = "BENCH_RAISED";
/// File descriptors needed besides the streams.
const OTHER_DESCRIPTORS: usize = 400;

/// Ensures that this process and its children can have this many connections open. Only a shell can raise the limit
/// without unsafe code, so the program re-executes itself from one.
pub(crate) fn raise(streams: usize) -> Result<(), Failure> {
    let wanted = streams + OTHER_DESCRIPTORS;
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    if soft == "unlimited" || soft.parse().is_ok_and(|soft: usize| soft >= wanted) {
        return Ok(());
    }
    if std::env::var_os(REEXEC_VAR).is_some() {
        return Err(format!("{wanted} open files are needed and only {soft} are allowed").into());
    }
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -n {wanted} && exec \"$@\"")).arg("sh");
    Err(shell.arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(REEXEC_VAR, "1").exec().into())
}
