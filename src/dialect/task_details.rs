//! What is told of a task, read and written in the form of either era.
//!
//! The members are the same but for the names of two, and for where the outcome is: in 2026-07-28 it is a member of
//! the task, in 2025-11-25 the response to `tasks/result`. A tool result with `isError` is a failed task in 2025-11-25
//! and a completed one in 2026-07-28, where a task fails by a JSON-RPC error only.

use super::tasks::{self, TaskStatus};
use super::to_client::ServerInfo;
use super::{Revision, meta};
use crate::protocol::{ErrorObject, Raw};

/// The members of a task that both eras have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDetails {
    /// The status.
    pub status: TaskStatus,
    /// The status message for users.
    pub message: Option<String>,
    /// When the task was created, as a timestamp.
    pub created_at: String,
    /// When the task was last updated, as a timestamp.
    pub updated_at: String,
    /// Lifetime from creation in milliseconds; `null` is unlimited.
    pub ttl: Raw,
    /// The suggested poll interval in milliseconds.
    pub poll_interval: Option<Raw>,
}

/// What a task of 2026-07-28 has beside its details.
#[derive(Debug, Clone)]
pub enum TaskContent {
    /// Nothing: the task is running or was cancelled.
    None,
    /// The server requests that wait for input, by key.
    InputRequests(Vec<(String, Raw)>),
    /// The result of the call.
    Result(Raw),
    /// The error of the call.
    Error(ErrorObject),
}

/// An object without members, to be edited.
static EMPTY: Raw = Raw::empty();

impl TaskDetails {
    /// A running task that was created at this timestamp and lives for `ttl` milliseconds.
    pub fn new(created_at: &str, ttl: Raw) -> Self {
        Self {
            status: TaskStatus::Working,
            message: None,
            created_at: created_at.to_owned(),
            updated_at: created_at.to_owned(),
            ttl,
            poll_interval: None,
        }
    }

    /// Reads a task of that revision. A timestamp that the server leaves out is `now`.
    ///
    /// # Errors
    /// A description of the missing member.
    pub fn read(task: &Raw, revision: Revision, now: &str) -> Result<Self, String> {
        let parsed = tasks::parse_task(task, revision)?;
        let [ttl, poll_interval] = duration_keys(revision);
        let number = |key: &str| task.get(key).filter(|value| value.read::<f64>().is_ok());
        let text = |key: &str| Some(task.get(key)?.text()?.into_owned());
        let created_at = text("createdAt").unwrap_or_else(|| now.to_owned());
        Ok(Self {
            status: parsed.status,
            message: parsed.message,
            updated_at: text("lastUpdatedAt").unwrap_or_else(|| created_at.clone()),
            created_at,
            ttl: number(ttl).unwrap_or(Raw::constant("null")),
            poll_interval: number(poll_interval),
        })
    }

    /// Reads a task of 2026-07-28 with its content as 2025-11-25 has it: a tool result with `isError` is a failure.
    ///
    /// # Errors
    /// A description of the missing member.
    pub fn read_with_outcome(task: &Raw, revision: Revision, now: &str) -> Result<Self, String> {
        let mut details = Self::read(task, revision, now)?;
        let is_error = task.at(&["result", "isError"]).is_some_and(|flag| flag.as_bytes() == b"true");
        if details.status == TaskStatus::Completed && is_error {
            details.status = TaskStatus::Failed;
        }
        if details.status == TaskStatus::Failed && details.message.is_none() {
            let text = |value: Option<Raw>| Some(value?.text()?.into_owned());
            let first_block = || task.at(&["result", "content"])?.items().first()?.get("text");
            details.message = text(task.at(&["error", "message"])).or_else(|| text(first_block()));
        }
        Ok(details)
    }

    /// Writes the task in the form of that revision, under this id.
    pub fn write(&self, id: &str, revision: Revision) -> Raw {
        let [ttl, poll_interval] = duration_keys(revision);
        let mut edit = EMPTY.edit().set("taskId", Raw::of(id)).set("status", Raw::of(self.status.as_str()));
        if let Some(message) = &self.message {
            edit = edit.set("statusMessage", Raw::of(message));
        }
        edit = edit.set("createdAt", Raw::of(&self.created_at)).set("lastUpdatedAt", Raw::of(&self.updated_at));
        edit = edit.set(ttl, self.ttl.clone());
        if let Some(interval) = &self.poll_interval {
            edit = edit.set(poll_interval, interval.clone());
        }
        edit.finish()
    }

    /// Writes the task with its content, as `tasks/get` and the notifications of 2026-07-28 show it.
    pub fn write_with(&self, id: &str, content: &TaskContent) -> Raw {
        let task = self.write(id, Revision::NEWEST);
        let (key, content) = match content {
            TaskContent::None => return task,
            TaskContent::Result(result) => ("result", result.clone()),
            TaskContent::Error(error) => ("error", error_raw(error)),
            TaskContent::InputRequests(requests) => {
                let each = requests.iter().map(|(key, request)| (key.as_str(), request.clone()));
                ("inputRequests", each.fold(EMPTY.edit(), |edit, (key, request)| edit.set(key, request)).finish())
            }
        };
        task.edit().set(key, content).finish()
    }

    /// The result of the call that has become this task, for a client of that revision.
    pub fn creation_result(&self, id: &str, to: Revision, server: &ServerInfo) -> Raw {
        let task = self.write(id, to);
        match to.has_result_envelope() {
            true => with_envelope(&task, Raw::constant(r#""task""#), server),
            false => EMPTY.edit().set("task", task).finish(),
        }
    }
}

/// Adds the members that every result of 2026-07-28 has to the result of a task method.
pub fn complete_result(result: &Raw, server: &ServerInfo) -> Raw {
    with_envelope(result, Raw::constant(r#""complete""#), server)
}

fn with_envelope(result: &Raw, result_type: Raw, server: &ServerInfo) -> Raw {
    let result = result.edit().set("resultType", result_type).finish();
    meta::with_member(Some(&result), meta::SERVER_INFO, server.info.clone())
}

/// The RFC 3339 timestamp of a moment, given in seconds since 1970.
pub fn timestamp(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Years that begin in March end with the leap day, and 400 of them always have the same number of days.
    let day_of_cycle = (days + 719_468) % 146_097;
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = (days + 719_468) / 146_097 * 400 + year_of_cycle + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The names of the lifetime and of the poll interval.
pub(super) fn duration_keys(revision: Revision) -> [&'static str; 2] {
    match revision.has_sessions() {
        true => ["ttl", "pollInterval"],
        false => ["ttlMs", "pollIntervalMs"],
    }
}

fn error_raw(error: &ErrorObject) -> Raw {
    let edit = EMPTY.edit().set("code", Raw::of(&error.code())).set("message", Raw::of(&error.message()));
    match error.data() {
        Some(data) => edit.set("data", data).finish(),
        None => edit.finish(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::raw;

    const OLD: Revision = Revision::V2025_11_25;
    const NEW: Revision = Revision::V2026_07_28;

    #[test]
    fn a_task_is_written_in_the_words_of_the_other_era() {
        let old = r#"{"taskId":"a","status":"working","statusMessage":"m","createdAt":"x","lastUpdatedAt":"y","ttl":6e4,"pollInterval":5}"#;
        let new = r#"{"taskId":"b","status":"working","statusMessage":"m","createdAt":"x","lastUpdatedAt":"y","ttlMs":6e4,"pollIntervalMs":5}"#;
        assert_eq!(TaskDetails::read(&raw(old), OLD, "now").unwrap().write("b", NEW).to_string(), new);
        assert_eq!(TaskDetails::read(&raw(new), NEW, "now").unwrap().write("a", OLD).to_string(), old);
        let bare = raw(r#"{"taskId":"a","status":"working","ttl":"long"}"#);
        assert_eq!(
            TaskDetails::read(&bare, OLD, "now").unwrap().write("b", NEW).to_string(),
            r#"{"taskId":"b","status":"working","createdAt":"now","lastUpdatedAt":"now","ttlMs":null}"#
        );
        assert!(TaskDetails::read(&raw("{}"), OLD, "now").is_err());
    }

    #[test]
    fn a_failed_tool_is_a_failed_task_in_the_handshake_era_only() {
        let failed = |content: &str| {
            let task = raw(&format!(r#"{{"taskId":"a",{content}}}"#));
            let details = TaskDetails::read_with_outcome(&task, NEW, "now").unwrap();
            (details.status, details.message)
        };
        assert_eq!(
            failed(r#""status":"completed","result":{"isError":true,"content":[{"type":"text","text":"no"}]}"#),
            (TaskStatus::Failed, Some("no".into()))
        );
        assert_eq!(failed(r#""status":"completed","result":{"content":[]}"#), (TaskStatus::Completed, None));
        assert_eq!(
            failed(r#""status":"failed","error":{"code":1,"message":"no"}"#),
            (TaskStatus::Failed, Some("no".into()))
        );
    }

    #[test]
    fn timestamps_follow_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_000_000, "2026-11-18T11:06:40Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }
}
