//! File descriptors: as many as the streams need.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Failure;

/// Tells the second run of this program that it is the second.
const RAISED: &str = "BENCH_RAISED";
/// What is open beside the streams.
const OTHERS: usize = 400;

/// Makes sure that this process, and with it those that it starts, can have that many connections
/// open. Only a shell can raise the limit without unsafe code, so the program starts anew from one.
pub(crate) fn raise(streams: usize) -> Result<(), Failure> {
    let wanted = streams + OTHERS;
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    if soft == "unlimited" || soft.parse().is_ok_and(|soft: usize| soft >= wanted) {
        return Ok(());
    }
    if std::env::var_os(RAISED).is_some() {
        return Err(format!("{wanted} open files are needed and only {soft} are allowed").into());
    }
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -n {wanted} && exec \"$@\"")).arg("sh");
    Err(shell.arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(RAISED, "1").exec().into())
}
