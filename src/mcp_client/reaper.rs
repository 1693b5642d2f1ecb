//! Kills the process groups of our children when this process dies in any way, SIGKILL included.
//!
//! Two small shells, the reapers, each read the list of process groups from a pipe. When this process ends, the pipes close
//! and the shells kill the groups that are left. Unlike a parent-death signal this reaches grandchildren (`npx` starts a
//! shell that starts a server), does not depend on the thread that spawned the child, and needs no unsafe code.
//!
//! A reaper that dies is started again with the whole list. There are two of them, so that one is left when a reaper and
//! this process die at the same moment.
//!
//! A child is registered after it was spawned, and may leave its group. So children also carry a tag of this process in
//! their environment ([`child_tag`]), and the shell kills whatever has the tag, where there is a `/proc` to look for it.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

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

/// Number of reapers.
const REAPER_COUNT: usize = 2;
/// Least time between two starts of the same reaper.
const MIN_RESTART_INTERVAL: Duration = Duration::from_secs(1);

/// The process groups to kill, and the reapers that know them.
struct Reapers {
    groups: BTreeSet<i32>,
    slots: [ReaperSlot; REAPER_COUNT],
}

enum ReaperSlot {
    /// Never started, or it could not be started.
    Vacant,
    Running(ChildStdin),
    /// It has died, and its watcher starts it again.
    Restarting,
}

static REAPERS: Mutex<Reapers> =
    Mutex::new(Reapers { groups: BTreeSet::new(), slots: [const { ReaperSlot::Vacant }; REAPER_COUNT] });

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

/// Starts the reapers that are not running. Called before a child is spawned, to keep the time short in which the child
/// is not registered.
pub(super) fn ensure_running() {
    let mut reapers = REAPERS.lock();
    for slot in 0..REAPER_COUNT {
        if matches!(reapers.slots[slot], ReaperSlot::Vacant) {
            reapers.start(slot);
        }
    }
}

/// Registers a process group to be killed when this process dies.
pub(super) fn register_group(group: i32) {
    let mut reapers = REAPERS.lock();
    reapers.groups.insert(group);
    reapers.send_line(&format!("+{group}\n"));
}

/// Removes a process group that has ended.
pub(super) fn unregister_group(group: i32) {
    let mut reapers = REAPERS.lock();
    reapers.groups.remove(&group);
    reapers.send_line(&format!("-{group}\n"));
}

impl Reapers {
    fn send_line(&mut self, line: &str) {
        for slot in &mut self.slots {
            if let ReaperSlot::Running(stdin) = slot {
                // A reaper that has gone gets the whole list when it is started again.
                let _ = stdin.write_all(line.as_bytes());
            }
        }
    }

    /// Starts a reaper, tells it the list, and watches it in a thread of its own.
    fn start(&mut self, slot: usize) {
        let Some(mut reaper) = spawn_reaper() else { return };
        let Some(mut stdin) = reaper.stdin.take() else { return };
        let known: String = self.groups.iter().map(|group| format!("+{group}\n")).collect();
        let _ = stdin.write_all(known.as_bytes());
        self.slots[slot] = ReaperSlot::Running(stdin);
        let watched = std::thread::Builder::new().name("reaper-watch".into()).spawn(move || watch(reaper, slot));
        if let Err(error) = watched {
            tracing::warn!(%error, "watching the child reaper failed; it will not be started again");
        }
    }
}

/// Waits until a reaper dies, and starts it again.
fn watch(mut reaper: Child, slot: usize) {
    let started = Instant::now();
    let status = reaper.wait();
    REAPERS.lock().slots[slot] = ReaperSlot::Restarting;
    tracing::warn!(?status, "child reaper has gone; starting it again");
    std::thread::sleep(MIN_RESTART_INTERVAL.saturating_sub(started.elapsed()));
    let mut reapers = REAPERS.lock();
    reapers.slots[slot] = ReaperSlot::Vacant;
    reapers.start(slot);
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
