//! Sees to it that no child outlives us, also when we are killed.
//!
//! One small shell waits on a pipe and keeps the list of process groups that we started. When we
//! end in whatever way, the pipe closes and it kills those that are left. Unlike a parent-death
//! signal this reaches the children of children (`npx` starts a shell that starts a server), does
//! not depend on the thread that started the child, and needs no unsafe code.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Reads `+group` and `-group` lines; at the end kills every group that is left.
const SCRIPT: &str = r#"
groups=" "
while read -r line; do
  group="${line#?}"
  case "$line" in
    +*) groups="$groups$group " ;;
    -*) case "$groups" in *" $group "*) groups="${groups%% $group *} ${groups#* $group }" ;; esac ;;
  esac
done
for group in $groups; do kill -9 "-$group" 2>/dev/null; done
"#;

static SHELL: Mutex<Option<Child>> = Mutex::new(None);

/// Makes sure that the shell is there before a child is started, so that next to no time passes
/// between a child's start and its being known.
pub(super) fn prepare() {
    let mut shell = SHELL.lock().unwrap_or_else(PoisonError::into_inner);
    if shell.is_none() {
        *shell = start();
    }
}

/// Remembers a process group that has to end with us.
pub(super) fn adopt(group: i32) {
    tell(&format!("+{group}\n"));
}

/// Forgets a process group that has ended.
pub(super) fn release(group: i32) {
    tell(&format!("-{group}\n"));
}

fn tell(line: &str) {
    let mut shell = SHELL.lock().unwrap_or_else(PoisonError::into_inner);
    // A shell that is gone is started anew, once; without one children end with their input only.
    for _ in 0..2 {
        if shell.is_none() {
            *shell = start();
        }
        let input = shell.as_mut().and_then(|shell| shell.stdin.as_mut());
        let Some(input) = input else { return };
        match input.write_all(line.as_bytes()) {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!(%error, "the keeper of children is gone");
                *shell = None;
            }
        }
    }
}

fn start() -> Option<Child> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(SCRIPT).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // A group of its own, so that an interrupt at the terminal does not end it before us.
    command.process_group(0);
    match command.spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            tracing::warn!(%error, "no shell could be started; children of ours may outlive a kill");
            None
        }
    }
}
