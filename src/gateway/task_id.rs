//! The ids of tasks that clients see. An id is sealed for one caller and one group, so that nobody else has the task, and
//! names where the task is, so that every node with the key finds it.

use std::sync::Arc;

use super::group::Group;
use crate::identity::CallerId;

/// What a task id stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskId {
    /// The upstream that runs the task.
    pub(super) upstream: String,
    /// The upstream's own id of the task.
    pub(super) own: String,
    /// The node that holds the task, if the upstream alone cannot answer for it.
    pub(super) holder: Option<Arc<str>>,
}

/// The prefix of sealed task ids.
const TASK_PREFIX: &str = "t.";

impl TaskId {
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::json!([self.upstream, self.own, self.holder.as_deref()]).to_string().into_bytes()
    }

    /// Seals the id for the caller, each time differently.
    pub(super) fn seal(&self, group: &Group, caller: &CallerId) -> Arc<str> {
        format!("{TASK_PREFIX}{}", group.seal().seal(&purpose(group, caller), &self.to_bytes())).into()
    }

    /// Seals the id for the caller, each time alike: lists and notifications name a task as its call did.
    pub(super) fn seal_stable(&self, group: &Group, caller: &CallerId) -> Arc<str> {
        let sealed = group.seal().seal_deterministic(&purpose(group, caller), &self.to_bytes());
        format!("{TASK_PREFIX}{sealed}").into()
    }

    /// Opens an id; `None` when it was not sealed for this caller.
    pub(super) fn open(group: &Group, caller: &CallerId, id: &str) -> Option<Self> {
        let bytes = group.seal().open(&purpose(group, caller), id.strip_prefix(TASK_PREFIX)?)?;
        let (upstream, own, holder): (String, String, Option<String>) = serde_json::from_slice(&bytes).ok()?;
        Some(Self { upstream, own, holder: holder.map(Into::into) })
    }
}

/// Associated data of the seal: binds the id to group and caller.
fn purpose(group: &Group, caller: &CallerId) -> String {
    format!("{TASK_PREFIX} {} {caller}", group.name())
}
