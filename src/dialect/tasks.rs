//! Tasks, which are another thing in each era: whose idea they are, and what their members are called.
//!
//! In 2025-11-25 the client asks for one, by a member `task` of the call, and tools say whether they
//! need that. The answer to the call is the task, `tasks/get` tells how far it is, and
//! `tasks/result` waits for what the call would have answered. In 2026-07-28 tasks are an extension:
//! the server makes one of a call if the client says that it knows them, and `tasks/get` brings what is
//! asked and, in the end, the result.

use std::time::Duration;

use memchr::memmem;

use super::{Revision, meta, to_upstream};
use crate::protocol::{ErrorObject, Method, Raw, code};

/// The extension that is tasks.
pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// The member of `_meta` that names the task that something belongs to. (2025-11-25)
const RELATED: &str = "io.modelcontextprotocol/related-task";
/// What tells of a task by itself. (2025-11-25)
const TOLD: &str = "notifications/tasks/status";

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskStatus {
    /// It is at work.
    Working,
    /// The client has to be asked something first.
    InputRequired,
    /// It is done.
    Completed,
    /// The call failed.
    Failed,
    /// Somebody has ended it.
    Cancelled,
}

/// What a server says of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its name.
    pub id: String,
    /// How far it is.
    pub status: TaskStatus,
    /// What the server says of that, for people.
    pub message: Option<String>,
    /// How often the server wants to be asked; nothing where it does not say, or says nonsense.
    pub pace: Option<Duration>,
}

impl TaskStatus {
    /// Whether nothing comes after it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// The task that a call became, where it did; nothing when it was simply answered.
pub fn created(result: &Raw, by: Revision) -> Option<Task> {
    memmem::find(result.as_bytes(), b"\"task\"")?;
    if by.facts().tool_tasks {
        return read(&result.get("task").filter(Raw::is_object)?, by).ok();
    }
    let kind = result.get("resultType").filter(|_| !by.facts().sessions)?;
    read(result, by).ok().filter(|_| kind.text().as_deref() == Some("task"))
}

/// Reads what a server says of a task.
///
/// # Errors
/// A sentence about what is missing.
pub fn read(task: &Raw, by: Revision) -> Result<Task, String> {
    let text = |key: &str| task.get(key).and_then(|value| value.text().map(std::borrow::Cow::into_owned));
    let Some(id) = text("taskId") else { return Err("it tells of a task without a name".into()) };
    let status = match text("status").as_deref() {
        Some("input_required") => TaskStatus::InputRequired,
        Some("completed") => TaskStatus::Completed,
        Some("failed") => TaskStatus::Failed,
        Some("cancelled") => TaskStatus::Cancelled,
        // Whatever else it may be called, it is not over.
        Some(_) => TaskStatus::Working,
        None => return Err("it does not say how far the task is".into()),
    };
    let pace = if by.facts().sessions { "pollInterval" } else { "pollIntervalMs" };
    let pace = task.get(pace).and_then(|pace| pace.read::<f64>().ok());
    let pace = pace.and_then(|pace| Duration::try_from_secs_f64(pace / 1000.0).ok());
    Ok(Task { id, status, message: text("statusMessage"), pace })
}

/// Whether a tool can be called as a task only.
pub fn needed_by(tool: &Raw) -> bool {
    memmem::find(tool.as_bytes(), b"\"taskSupport\"").is_some()
        && tool.at(&["execution", "taskSupport"]).is_some_and(|support| support.text().as_deref() == Some("required"))
}

/// Whether a server makes tasks of calls when it is asked to.
pub fn taken_by(able: &Raw, revision: Revision) -> bool {
    revision.facts().tool_tasks && able.at(&["tasks", "requests", "tools", "call"]).is_some()
}

/// Whether a server ends a task when it is asked to.
pub fn ended_by(able: &Raw, revision: Revision) -> bool {
    !revision.facts().sessions || able.at(&["tasks", "cancel"]).is_some()
}

/// Whether `tasks/get` brings what is asked and the result; otherwise `tasks/result` does.
pub fn are_inlined(by: Revision) -> bool {
    !by.facts().sessions
}

/// Whether a client has said that it knows tasks, as the newest era has them.
pub fn known_to(able: &Raw, revision: Revision) -> bool {
    !revision.facts().sessions && to_upstream::has_tasks(able)
}

/// What a client can do, and tasks.
pub fn declared(able: &Raw) -> Raw {
    let extensions = able.get("extensions").unwrap_or_else(Raw::empty);
    able.edit().set("extensions", extensions.edit().set(EXTENSION, Raw::empty()).finish()).finish()
}

/// Whether a server says that it can only answer those who know tasks. It has done nothing then.
pub fn wanted_by(error: &ErrorObject) -> bool {
    error.code() == code::MISSING_CAPABILITY
        && error.data().is_some_and(|data| data.at(&["requiredCapabilities", "extensions", EXTENSION]).is_some())
}

/// The parameters of a call that is to become a task, which is kept for a while.
pub fn augmented(params: Option<&Raw>, kept: Duration) -> Raw {
    let kept = Raw::of(&serde_json::json!({ "ttl": u64::try_from(kept.as_millis()).unwrap_or(u64::MAX) }));
    params.unwrap_or(&Raw::empty()).edit().set("task", kept).finish()
}

/// Whether a call asks for a task.
pub fn are_asked_for(method: &Method, params: Option<&Raw>) -> bool {
    let Some(params) = params.filter(|_| *method == Method::ToolsCall) else { return false };
    memmem::find(params.as_bytes(), b"\"task\"").is_some() && params.get("task").is_some()
}

/// The parameters of whatever is said of a task.
pub fn named(id: &str) -> Raw {
    Raw::empty().edit().set("taskId", Raw::of(id)).finish()
}

/// The task that a question belongs to. (2025-11-25)
pub fn related(params: Option<&Raw>) -> Option<String> {
    params?.at(&["_meta", RELATED, "taskId"])?.text().map(std::borrow::Cow::into_owned)
}

/// The task that a notice tells of. (2025-11-25)
pub fn told_of(notice: &str, params: Option<&Raw>) -> Option<String> {
    params.filter(|_| notice == TOLD)?.get("taskId")?.text().map(std::borrow::Cow::into_owned)
}

/// The same without the name of a task that only the gateway knows.
pub fn unrelated(value: &Raw) -> Raw {
    if memmem::find(value.as_bytes(), RELATED.as_bytes()).is_none() {
        return value.clone();
    }
    let Some(meta) = value.get("_meta").map(|meta| meta.edit().remove(RELATED).finish()) else { return value.clone() };
    let others = meta.entries().next().is_some();
    let edit = if others { value.edit().set("_meta", meta) } else { value.edit().remove("_meta") };
    edit.finish()
}

/// A client's answer to what was asked for a task, as belonging to it.
pub fn answering(result: &Raw, id: &str) -> Raw {
    meta::with(Some(result), RELATED, named(id))
}

/// The result that came with a task that is done, as if the call had been answered with it.
pub fn inlined(task: &Raw) -> Option<Raw> {
    let mut result = task.get("result").filter(Raw::is_object)?;
    if result.get("resultType").is_none() {
        result = result.edit().set("resultType", Raw::constant(r#""complete""#)).finish();
    }
    let server = task.at(&["_meta", meta::SERVER_INFO]);
    match server.filter(|_| result.at(&["_meta", meta::SERVER_INFO]).is_none()) {
        Some(server) => Some(meta::with(Some(&result), meta::SERVER_INFO, server)),
        None => Some(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const OLD: Revision = Revision::V2025_11_25;
    const NEW: Revision = Revision::V2026_07_28;

    fn raw(text: &str) -> Raw {
        Raw::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[test]
    fn a_task_is_told_from_an_answer() {
        let old = raw(r#"{"task":{"taskId":"t","status":"working","pollInterval":50}}"#);
        let new = raw(r#"{"resultType": "task","taskId":"t","status":"working","pollIntervalMs":50}"#);
        let task =
            Task { id: "t".into(), status: TaskStatus::Working, message: None, pace: Some(Duration::from_millis(50)) };
        assert_eq!((created(&old, OLD).as_ref(), created(&new, NEW).as_ref()), (Some(&task), Some(&task)));
        assert_eq!((created(&old, NEW), created(&new, OLD)), (None, None));
        assert_eq!((created(&old, Revision::V2025_06_18), created(&new, Revision::V2025_06_18)), (None, None));
        for plain in [r#"{"content":[]}"#, r#"{"task":"x"}"#, r#"{"resultType":"complete","taskId":"task"}"#] {
            assert_eq!((created(&raw(plain), OLD), created(&raw(plain), NEW)), (None, None), "{plain}");
        }
    }

    #[test]
    fn nonsense_is_no_pace() {
        for (pace, read) in [("-1", None), ("\"1\"", None), ("1e400", None), ("null", None), ("0", Some(0))] {
            let task = raw(&format!(r#"{{"taskId":"t","status":"new","pollIntervalMs":{pace}}}"#));
            let task = super::read(&task, NEW).unwrap();
            assert_eq!((task.status, task.pace), (TaskStatus::Working, read.map(Duration::from_millis)), "{pace}");
        }
    }

    #[test]
    fn a_task_that_needs_a_client_that_knows_tasks() {
        let needs = |data: &str| wanted_by(&ErrorObject::new(-32021, "no").with_data(raw(data)));
        assert!(needs(r#"{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#));
        assert!(!needs(r#"{"requiredCapabilities":{"sampling":{}}}"#));
        let able = declared(&raw(r#"{"sampling":{},"extensions":{"a/b":{"c":1.0}}}"#));
        assert_eq!(
            able.to_string(),
            r#"{"sampling":{},"extensions":{"a/b":{"c":1.0},"io.modelcontextprotocol/tasks":{}}}"#
        );
        assert!(known_to(&able, NEW) && !known_to(&able, OLD) && !known_to(&Raw::empty(), NEW));
    }

    #[test]
    fn what_belongs_to_a_task_says_so_on_one_side_only() {
        let answer = answering(&raw(r#"{"action":"accept","_meta":{"a/b":1}}"#), "t");
        assert_eq!(related(Some(&answer)).as_deref(), Some("t"));
        assert_eq!(unrelated(&answer).to_string(), r#"{"action":"accept","_meta":{"a/b":1}}"#);
        assert_eq!(unrelated(&answering(&raw(r#"{"roots":[]}"#), "t")).to_string(), r#"{"roots":[]}"#);
        assert_eq!(told_of(TOLD, Some(&named("t"))).as_deref(), Some("t"));
        assert_eq!((told_of("notifications/other", Some(&named("t"))), related(Some(&named("t")))), (None, None));
    }

    #[test]
    fn a_result_that_comes_with_a_task_is_a_whole_one() {
        let task = raw(
            r#"{"status":"completed","result":{"content":[],"x":1.50},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}"#,
        );
        assert_eq!(
            inlined(&task).unwrap().to_string(),
            r#"{"content":[],"x":1.50,"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}"#
        );
        assert_eq!(inlined(&raw(r#"{"status":"completed"}"#)), None);
    }
}
