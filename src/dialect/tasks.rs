//! Tasks. The eras define them differently: who creates a task, and what its members are called.
//!
//! In 2025-11-25 the client asks for a task with the member `task` of a call, and tools declare whether they
//! require it. The call returns the task, `tasks/get` its status, and `tasks/result` waits for the result of
//! the call. In 2026-07-28 tasks are an extension: the server turns a call into a task if the client declares
//! support, and `tasks/get` returns input requests and, at the end, the result.

use std::sync::LazyLock;
use std::time::Duration;

use memchr::memmem;

use super::{Revision, meta, task_details, to_upstream};
use crate::protocol::{ErrorObject, Key, Method, Notification, NotificationMethod, Payload, Raw, code};

/// The name of the tasks extension.
pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// The `_meta` key that names the related task. (2025-11-25)
const RELATED_TASK_KEY: &str = "io.modelcontextprotocol/related-task";
/// The notification about the status of a task. (2025-11-25)
const STATUS_NOTIFICATION: &str = "notifications/tasks/status";
/// The notification about a task on the stream of a listen call. (2026-07-28)
const TASK_NOTIFICATION: &str = "notifications/tasks";
/// What is declared to a client of 2025-11-25. There is no list of tasks in the other era.
const OFFERED_TASKS: &str = r#"{"cancel":{},"requests":{"tools":{"call":{}}}}"#;

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskStatus {
    /// The task is running.
    Working,
    /// The task waits for input from the client.
    InputRequired,
    /// The task has a result.
    Completed,
    /// The task failed.
    Failed,
    /// The task was cancelled.
    Cancelled,
}

/// A task as reported by a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The task id.
    pub id: String,
    /// The status.
    pub status: TaskStatus,
    /// The status message for users.
    pub message: Option<String>,
    /// The poll interval the server asks for; `None` when it gives none or an invalid one.
    pub poll_interval: Option<Duration>,
    /// Lifetime from creation; `None` when it is unlimited, unsaid or invalid.
    pub ttl: Option<Duration>,
}

impl TaskStatus {
    const ALL: [Self; 5] = [Self::Working, Self::InputRequired, Self::Completed, Self::Failed, Self::Cancelled];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status of that name. Unknown ones count as not final.
    fn parse(name: &str) -> Self {
        Self::ALL.into_iter().find(|status| status.as_str() == name).unwrap_or(Self::Working)
    }

    /// Whether the status is final.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// The task that a call created; `None` when the result is a plain result.
pub fn created_task(result: &Payload, revision: Revision) -> Option<Task> {
    if revision.features().tool_tasks {
        return parse_task(&result.member(Key::Task).filter(Raw::is_object)?, revision).ok();
    }
    let is_task = !revision.features().sessions && result.text_of(Key::ResultType).as_deref() == Some("task");
    is_task.then(|| parse_task(result, revision).ok()).flatten()
}

/// Parses a task object.
///
/// # Errors
/// A description of the missing member.
pub fn parse_task(task: &Raw, revision: Revision) -> Result<Task, String> {
    let text = |key: &str| task.get(key).and_then(|value| value.text().map(std::borrow::Cow::into_owned));
    let Some(id) = text("taskId") else { return Err("it tells of a task without a name".into()) };
    let Some(status) = text("status").map(|name| TaskStatus::parse(&name)) else {
        return Err("it does not say how far the task is".into());
    };
    let millis = |key: &str| Duration::try_from_secs_f64(task.get(key)?.read::<f64>().ok()? / 1000.0).ok();
    let [ttl, poll_interval] = task_details::duration_keys(revision).map(millis);
    Ok(Task { id, status, message: text("statusMessage"), poll_interval, ttl })
}

/// Whether a tool must be called as a task.
pub fn tool_requires_task(tool: &Raw) -> bool {
    memmem::find(tool.as_bytes(), b"\"taskSupport\"").is_some()
        && tool.at(&["execution", "taskSupport"]).is_some_and(|support| support.text().as_deref() == Some("required"))
}

/// Whether a server accepts tool calls as tasks.
pub fn server_accepts_tasks(capabilities: &Raw, revision: Revision) -> bool {
    revision.features().tool_tasks && capabilities.at(&["tasks", "requests", "tools", "call"]).is_some()
}

/// Whether tasks of a server with these capabilities reach a client of the other era.
pub fn are_bridged(capabilities: &Raw, server: Revision, client: Revision) -> bool {
    let has_tasks = match client.features().sessions {
        true => client.features().tool_tasks && to_upstream::has_tasks(capabilities),
        false => server_accepts_tasks(capabilities, server),
    };
    has_tasks && server.is_bridged_to(client)
}

/// Whether tasks of a server with these capabilities pass as they are to a client of its own era.
pub fn are_shared(capabilities: &Raw, server: Revision, client: Revision) -> bool {
    let has_tasks = match client.features().sessions {
        true => client.features().tool_tasks && server.features().tool_tasks && capabilities.get("tasks").is_some(),
        false => to_upstream::has_tasks(capabilities),
    };
    has_tasks && !server.is_bridged_to(client)
}

/// Adds the declaration of tasks to server capabilities, in the form of the client's revision.
pub fn with_tasks_offered(capabilities: &Raw, client: Revision) -> Raw {
    match client.features().sessions {
        true => capabilities.edit().set("tasks", Raw::constant(OFFERED_TASKS)).finish(),
        false => with_tasks_declared(capabilities),
    }
}

/// The tool as one that may be called as a task: in 2026-07-28 the server decides, call by call.
pub fn with_optional_task(tool: &Raw) -> Raw {
    tool.edit().set("execution", Raw::constant(r#"{"taskSupport":"optional"}"#)).finish()
}

/// The tool as one that cannot be called as a task by the client.
pub fn without_task_hint(tool: &Raw) -> Raw {
    tool.edit().remove("execution").finish()
}

/// Whether a server supports `tasks/cancel`.
pub fn server_cancels_tasks(capabilities: &Raw, revision: Revision) -> bool {
    !revision.features().sessions || capabilities.at(&["tasks", "cancel"]).is_some()
}

/// Whether `tasks/get` returns input requests and the result; otherwise `tasks/result` does.
pub fn results_are_inline(revision: Revision) -> bool {
    !revision.features().sessions
}

/// Whether a client declares the tasks extension.
pub fn client_supports_tasks(capabilities: &Raw, revision: Revision) -> bool {
    !revision.features().sessions && to_upstream::has_tasks(capabilities)
}

/// Adds the tasks extension to capabilities.
pub fn with_tasks_declared(capabilities: &Raw) -> Raw {
    let extensions = capabilities.get("extensions").unwrap_or_else(Raw::empty);
    capabilities.edit().set("extensions", extensions.edit().set(EXTENSION, Raw::empty()).finish()).finish()
}

/// Whether the error says that the call needs a client with the tasks extension. The call was not carried
/// out.
pub fn requires_task_support(error: &ErrorObject) -> bool {
    error.code() == code::MISSING_CAPABILITY
        && error.data().is_some_and(|data| data.at(&["requiredCapabilities", "extensions", EXTENSION]).is_some())
}

/// The error for a client that uses tasks without declaring the extension.
pub fn missing_task_support() -> ErrorObject {
    let required = serde_json::json!({ "requiredCapabilities": { "extensions": { EXTENSION: {} } } });
    let why = format!("Missing required client capability: the extension {EXTENSION}");
    ErrorObject::new(code::MISSING_CAPABILITY, why).with_data(Raw::of(&required))
}

/// The error for a task id that the caller has no task of.
pub fn unknown_task() -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, "Invalid params: `taskId` names no task of this caller, or its time is over")
}

/// The error for the cancellation of a task that has ended. (2025-11-25)
pub fn already_ended(status: TaskStatus) -> ErrorObject {
    let why = format!("Invalid params: the task cannot be cancelled, it is {} already", status.as_str());
    ErrorObject::new(code::INVALID_PARAMS, why)
}

/// The lifetime that a call asks for, in milliseconds; `null` when it asks for none.
pub fn requested_ttl(params: Option<&Payload>) -> Raw {
    let ttl = params.and_then(|params| params.member(Key::Task)?.get("ttl"));
    ttl.filter(|ttl| ttl.read::<u64>().is_ok()).unwrap_or(Raw::constant("null"))
}

/// Adds a task request with a TTL to the parameters of a call.
pub fn with_task_request(params: Option<&Raw>, ttl: Duration) -> Raw {
    let ttl = Raw::of(&serde_json::json!({ "ttl": u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX) }));
    params.unwrap_or(&Raw::empty()).edit().set(Key::Task.as_str(), ttl).finish()
}

/// Whether a call asks for a task.
pub fn requests_task(method: &Method, params: Option<&Payload>) -> bool {
    *method == Method::ToolsCall && params.is_some_and(|params| params.has(Key::Task))
}

/// The parameters of a task method.
pub fn task_params(id: &str) -> Raw {
    Raw::empty().edit().set("taskId", Raw::of(id)).finish()
}

/// The id of the task that a server request belongs to. (2025-11-25)
pub fn related_task_id(params: Option<&Raw>) -> Option<String> {
    params?.at(&["_meta", RELATED_TASK_KEY, "taskId"])?.text().map(std::borrow::Cow::into_owned)
}

/// The id of the task that a status notification is about. (2025-11-25)
pub fn status_task_id(method: &str, params: Option<&Raw>) -> Option<String> {
    params.filter(|_| method == STATUS_NOTIFICATION)?.get("taskId")?.text().map(std::borrow::Cow::into_owned)
}

/// The status notification of a task. (2025-11-25)
pub fn status_notification(task: Raw) -> Notification {
    Notification::new(NotificationMethod::from(STATUS_NOTIFICATION), Some(task))
}

/// The task of a status notification. (2025-11-25)
pub fn status_of(notification: &Notification) -> Option<&Raw> {
    notification.params.as_ref().filter(|_| notification.method.as_str() == STATUS_NOTIFICATION)
}

/// The notification about a task on the stream of a listen call. (2026-07-28)
pub fn task_notification(task: Raw) -> Notification {
    Notification::new(NotificationMethod::from(TASK_NOTIFICATION), Some(task))
}

/// The task of a notification on the stream of a listen call. (2026-07-28)
pub fn notified_task(notification: &Notification) -> Option<&Raw> {
    notification.params.as_ref().filter(|_| notification.method.as_str() == TASK_NOTIFICATION)
}

/// The parameters of a listen call for one task. (2026-07-28)
pub fn listen_params(id: &str) -> Raw {
    Raw::of(&serde_json::json!({ "notifications": { "taskIds": [id] } }))
}

/// The task with another id.
pub fn with_id(task: &Raw, id: &str) -> Raw {
    task.edit().set("taskId", Raw::of(id)).finish()
}

/// The result of a call that created a task, with another id of the task.
pub fn with_created_id(result: &Payload, revision: Revision, id: &str) -> Payload {
    match result.member(Key::Task).filter(|_| revision.features().tool_tasks) {
        Some(task) => result.with(Key::Task, &with_id(&task, id)),
        None => result.with(Key::TaskId, &Raw::of(id)),
    }
}

/// Whether a message may name a related task. A backslash may spell the key with escapes.
pub fn mentions_related_task(message: &Raw) -> bool {
    static KEY: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(RELATED_TASK_KEY));
    let text = message.as_bytes();
    KEY.find(text).is_some() || memchr::memchr(b'\\', text).is_some()
}

/// The related task in the `_meta` of a message.
pub fn related_task(meta: &Raw) -> Option<Raw> {
    meta.get(RELATED_TASK_KEY)
}

/// The error for a cursor that is none of the caller's.
pub fn unknown_cursor() -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, "Invalid params: the cursor is none of this list; begin without one")
}

/// Removes the related task, whose id is of no use to the receiver.
pub fn without_related_task(value: &Raw) -> Raw {
    let Some(meta) = value.get("_meta").filter(|meta| related_task(meta).is_some()) else { return value.clone() };
    let meta = meta.edit().remove(RELATED_TASK_KEY).finish();
    let others = meta.entries().next().is_some();
    let edit = if others { value.edit().set("_meta", meta) } else { value.edit().remove("_meta") };
    edit.finish()
}

/// Adds the related task to a message.
pub fn with_related_task(result: &Raw, id: &str) -> Raw {
    meta::with_member(Some(result), RELATED_TASK_KEY, task_params(id))
}

/// The result of a completed task, as if the call had returned it.
pub fn inline_result(task: &Raw) -> Option<Raw> {
    let mut result = task.get("result").filter(Raw::is_object)?;
    if result.get("resultType").is_none() {
        result = result.edit().set("resultType", Raw::constant(r#""complete""#)).finish();
    }
    let server = task.at(&["_meta", meta::SERVER_INFO]);
    match server.filter(|_| result.at(&["_meta", meta::SERVER_INFO]).is_none()) {
        Some(server) => Some(meta::with_member(Some(&result), meta::SERVER_INFO, server)),
        None => Some(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::raw;

    const OLD: Revision = Revision::V2025_11_25;
    const NEW: Revision = Revision::V2026_07_28;

    #[test]
    fn tasks_are_distinguished_from_plain_results() {
        let created_task = |result: &Raw, revision| created_task(&result.clone().into(), revision);
        let old = raw(r#"{"task":{"taskId":"t","status":"working","pollInterval":50}}"#);
        let new = raw(r#"{"resultType": "task","taskId":"t","status":"working","pollIntervalMs":50}"#);
        let task = Task {
            id: "t".into(),
            status: TaskStatus::Working,
            message: None,
            poll_interval: Some(Duration::from_millis(50)),
            ttl: None,
        };
        assert_eq!((created_task(&old, OLD).as_ref(), created_task(&new, NEW).as_ref()), (Some(&task), Some(&task)));
        assert_eq!((created_task(&old, NEW), created_task(&new, OLD)), (None, None));
        assert_eq!(
            (created_task(&old, Revision::V2025_06_18), created_task(&new, Revision::V2025_06_18)),
            (None, None)
        );
        for plain in [r#"{"content":[]}"#, r#"{"task":"x"}"#, r#"{"resultType":"complete","taskId":"task"}"#] {
            assert_eq!((created_task(&raw(plain), OLD), created_task(&raw(plain), NEW)), (None, None), "{plain}");
        }
    }

    #[test]
    fn invalid_poll_interval_is_ignored() {
        for (poll_interval, read) in [("-1", None), ("\"1\"", None), ("1e400", None), ("null", None), ("0", Some(0))] {
            let task = raw(&format!(r#"{{"taskId":"t","status":"new","pollIntervalMs":{poll_interval}}}"#));
            let task = parse_task(&task, NEW).unwrap();
            assert_eq!(
                (task.status, task.poll_interval),
                (TaskStatus::Working, read.map(Duration::from_millis)),
                "{poll_interval}"
            );
        }
    }

    #[test]
    fn missing_task_capability_is_recognized() {
        let needs = |data: &str| requires_task_support(&ErrorObject::new(-32021, "no").with_data(raw(data)));
        assert!(needs(r#"{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#));
        assert!(!needs(r#"{"requiredCapabilities":{"sampling":{}}}"#));
        let capabilities = with_tasks_declared(&raw(r#"{"sampling":{},"extensions":{"a/b":{"c":1.0}}}"#));
        assert_eq!(
            capabilities.to_string(),
            r#"{"sampling":{},"extensions":{"a/b":{"c":1.0},"io.modelcontextprotocol/tasks":{}}}"#
        );
        assert!(
            client_supports_tasks(&capabilities, NEW)
                && !client_supports_tasks(&capabilities, OLD)
                && !client_supports_tasks(&Raw::empty(), NEW)
        );
    }

    #[test]
    fn related_task_is_added_and_removed() {
        let answer = with_related_task(&raw(r#"{"action":"accept","_meta":{"a/b":1}}"#), "t");
        assert_eq!(related_task_id(Some(&answer)).as_deref(), Some("t"));
        assert_eq!(without_related_task(&answer).to_string(), r#"{"action":"accept","_meta":{"a/b":1}}"#);
        assert_eq!(
            without_related_task(&with_related_task(&raw(r#"{"roots":[]}"#), "t")).to_string(),
            r#"{"roots":[]}"#
        );
        assert_eq!(status_task_id(STATUS_NOTIFICATION, Some(&task_params("t"))).as_deref(), Some("t"));
        assert_eq!(
            (status_task_id("notifications/other", Some(&task_params("t"))), related_task_id(Some(&task_params("t")))),
            (None, None)
        );
    }

    #[test]
    fn inline_result_gets_a_result_envelope() {
        let task = raw(
            r#"{"status":"completed","result":{"content":[],"x":1.50},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}"#,
        );
        assert_eq!(
            inline_result(&task).unwrap().to_string(),
            r#"{"content":[],"x":1.50,"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}"#
        );
        assert_eq!(inline_result(&raw(r#"{"status":"completed"}"#)), None);
    }
}
