//! Kills the process groups of our children when this process dies in any way, SIGKILL included.
//!
//! A small shell reads the list of process groups from a pipe. When this process ends, the pipe closes and the shell
//! kills the groups that are left. Unlike a parent-death signal this reaches grandchildren (`npx` starts a shell that
//! starts a server), does not depend on the thread that spawned the child, and needs no unsafe code.
//!
//! A child is registered after it was spawned, and may leave its group. So children also carry a tag of this process in
//! their environment ([`child_tag`]), and the shell kills whatever has the tag, where there is a `/proc` to look for it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use parking_lot::Mutex;

/// Reads `+group` and `-group` lines; at end of input kills every group that is left, and every process with the tag `$1`
/// in its environment. It looks for those twice: the first time a child may not have been executed yet.
const REAPER_SCRIPT: &str = r#"
groups=" "
while read -r line; do
  group="${line#?}"
  case "$line" in
    +*) groups="$groups$group " ;;
    -*) case "$groups" in *" $group "*) groups="${groups%% $group *} ${groups#* $group }" ;; esac ;;
  esac
done
for group in $groups; do kill -9 "-$group" 2>/dev/null; done
for delay in 0 1; do
  sleep "$delay"
  for file in /proc/[0-9]*/environ; do
    grep -aqs "$1" "$file" || continue
    process="${file#/proc/}"
    kill -9 "${process%/environ}" 2>/dev/null
  done
done
"#;

/// Environment variable of children that holds the tag of this process.
pub(super) const TAG_VARIABLE: &str = "RIALTO_CHILD_OF";

static REAPER: Mutex<Option<Child>> = Mutex::new(None);

/// Random tag of this process.
pub(super) fn child_tag() -> &'static str {
    static TAG: LazyLock<String> = LazyLock::new(|| {
        let mut random = [0; 8];
        // Without randomness the process id alone tells processes that run at the same time apart.
        let _ = getrandom::fill(&mut random);
        format!("{}-{:016x}", std::process::id(), u64::from_be_bytes(random))
    });
    &TAG
}

/// Starts the reaper if it is not running. Called before a child is spawned, to keep the time short in which the child
/// is not registered.
pub(super) fn ensure_running() {
    let mut reaper = REAPER.lock();
    if reaper.is_none() {
        *reaper = spawn_reaper();
    }
}

/// Registers a process group to be killed when this process dies.
pub(super) fn register_group(group: i32) {
    send_line(&format!("+{group}\n"));
}

/// Removes a process group that has ended.
pub(super) fn unregister_group(group: i32) {
    send_line(&format!("-{group}\n"));
}

fn send_line(line: &str) {
    let mut reaper = REAPER.lock();
    // A reaper that has gone is restarted once; without one, children see only the end of their stdin.
    for _ in 0..2 {
        if reaper.is_none() {
            *reaper = spawn_reaper();
        }
        let stdin = reaper.as_mut().and_then(|reaper| reaper.stdin.as_mut());
        let Some(stdin) = stdin else { return };
        match stdin.write_all(line.as_bytes()) {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!(%error, "child reaper has gone; restarting it");
                *reaper = None;
            }
        }
    }
}

fn spawn_reaper() -> Option<Child> {
    let mut command = Command::new("sh");
    command
        .args(["-c", REAPER_SCRIPT, "reaper"])
        .arg(format!("{TAG_VARIABLE}={}", child_tag()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // In a process group of its own, so that Ctrl-C at the terminal does not end it before this process.
    command.process_group(0);
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            tracing::warn!(%error, "starting the child reaper failed; children may outlive a killed gateway");
            None
        }
    }
}
