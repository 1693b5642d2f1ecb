//! Which tasks of servers belong to which caller. A task id that a client carries says so by its seal; this memory is for
//! what names a task by the server's own id: lists and notifications.

use std::collections::VecDeque;

use foldhash::HashMap;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// The newest tasks of every caller, as far as this node has seen them.
#[derive(Debug, Default)]
pub(super) struct OwnedTasks(Mutex<OwnedTasksState>);

#[derive(Debug, Default)]
struct OwnedTasksState {
    /// Tasks by their owner, the newest last.
    by_owner: HashMap<TaskDigest, VecDeque<TaskDigest>>,
    /// All tasks with their owners, in the order in which they came.
    order: VecDeque<(TaskDigest, TaskDigest)>,
}

/// Digest of an owner or of a task id: server and client decide how long these are.
type TaskDigest = [u8; 16];

/// Tasks remembered of one owner; the oldest is forgotten for another one.
const MAX_TASKS_PER_OWNER: usize = 1_000;
/// Tasks remembered of all owners; the oldest is forgotten for another one.
const MAX_OWNED_TASKS: usize = 100_000;

/// Whom a task of a server belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskOwner<'a> {
    pub(super) group: &'a str,
    pub(super) upstream: &'a str,
    pub(super) caller: &'a str,
}

impl TaskOwner<'_> {
    fn digest(self) -> TaskDigest {
        digest(&[self.group, self.upstream, self.caller])
    }
}

impl OwnedTasks {
    /// Remembers that a task is the owner's.
    pub(super) fn add(&self, owner: TaskOwner<'_>, own_id: &str) {
        let (owner, task) = (owner.digest(), digest(&[own_id]));
        let mut state = self.0.lock();
        let tasks = state.by_owner.entry(owner).or_default();
        if tasks.contains(&task) {
            return;
        }
        tasks.push_back(task);
        let oldest = (tasks.len() > MAX_TASKS_PER_OWNER).then(|| tasks.pop_front()).flatten();
        state.order.push_back((owner, task));
        if let Some(oldest) = oldest {
            state.order.retain(|known| *known != (owner, oldest));
        }
        if state.order.len() > MAX_OWNED_TASKS {
            state.forget_oldest();
        }
    }

    /// Whether the task is known to be the owner's.
    pub(super) fn contains(&self, owner: TaskOwner<'_>, own_id: &str) -> bool {
        let state = self.0.lock();
        state.by_owner.get(&owner.digest()).is_some_and(|tasks| tasks.contains(&digest(&[own_id])))
    }
}

impl OwnedTasksState {
    fn forget_oldest(&mut self) {
        let Some((owner, task)) = self.order.pop_front() else { return };
        if let Some(tasks) = self.by_owner.get_mut(&owner) {
            tasks.retain(|known| *known != task);
            if tasks.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
    }
}

/// Digest of texts of any content: the length of each is part of it.
fn digest(parts: &[&str]) -> TaskDigest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let mut digest = TaskDigest::default();
    digest.copy_from_slice(&hash.finalize()[..16]);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(caller: &'static str) -> TaskOwner<'static> {
        TaskOwner { group: "default", upstream: "files", caller }
    }

    #[test]
    fn a_task_is_of_its_caller_server_and_group() {
        let tasks = OwnedTasks::default();
        tasks.add(owner("ann"), "t1");
        tasks.add(owner("ann"), "t1");
        assert!(tasks.contains(owner("ann"), "t1") && tasks.0.lock().order.len() == 1);
        for other in [
            owner("bob"),
            TaskOwner { group: "other", ..owner("ann") },
            TaskOwner { upstream: "wiki", ..owner("ann") },
            TaskOwner { group: "defaultf", upstream: "iles", caller: "ann" },
        ] {
            assert!(!tasks.contains(other, "t1"), "{other:?}");
        }
        assert!(!tasks.contains(owner("ann"), "t2"));
    }

    #[test]
    fn the_oldest_tasks_of_an_owner_make_room_for_new_ones() {
        let tasks = OwnedTasks::default();
        tasks.add(owner("bob"), "t0");
        for n in 0..=MAX_TASKS_PER_OWNER {
            tasks.add(owner("ann"), &format!("t{n}"));
        }
        assert!(!tasks.contains(owner("ann"), "t0") && tasks.contains(owner("ann"), "t1"));
        assert!(tasks.contains(owner("bob"), "t0"), "a caller displaces only its own");
        assert_eq!(tasks.0.lock().order.len(), MAX_TASKS_PER_OWNER + 1);
        let mut state = tasks.0.lock();
        state.forget_oldest();
        assert_eq!((state.by_owner.len(), state.order.len()), (1, MAX_TASKS_PER_OWNER), "bob's was the oldest");
    }
}
