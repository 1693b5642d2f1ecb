//! Maps the ids of tasks in messages between one upstream and one caller of the same era.
//!
//! A server that knows only this gateway cannot tell its callers apart, so the id that a client sees is
//! [sealed](super::task_id) for its caller. A seal is made only for a task that is known to be the caller's: whoever has it
//! has the task.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::group::Group;
use super::owned_tasks::TaskOwner;
use super::task_id::TaskId;
use crate::call::{Answer, Call, ReplySink, ServerRequest};
use crate::dialect::{Revision, tasks};
use crate::identity::CallerId;
use crate::protocol::{ErrorObject, Key, Notification, Outcome, Payload, Raw};
use crate::upstream::LeaseGuard;

/// The tasks of one caller at one upstream.
#[derive(Clone, Copy)]
pub(super) struct TaskMapping<'a> {
    pub(super) group: &'a Group,
    pub(super) upstream: &'a str,
    pub(super) caller: &'a CallerId,
}

/// Pages that are asked for until one has a task of the caller.
const MAX_LIST_PAGES: usize = 10;

impl TaskMapping<'_> {
    fn owner(&self) -> TaskOwner<'_> {
        TaskOwner { group: self.group.name(), upstream: self.upstream, caller: self.caller }
    }

    fn seal(&self, own: &str) -> Arc<str> {
        let id = TaskId { upstream: self.upstream.to_owned(), own: own.to_owned(), holder: None };
        id.seal_stable(self.group, self.caller)
    }

    /// The id by which the caller knows a task of the server; `None` unless the task is the caller's.
    fn known_id(&self, own: &str) -> Option<Arc<str>> {
        self.group.owned_tasks().contains(self.owner(), own).then(|| self.seal(own))
    }

    /// Remembers a task as the caller's.
    pub(super) fn adopt(&self, own: &str) {
        self.group.owned_tasks().add(self.owner(), own);
    }

    /// The result of a call, which may have created a task for the caller.
    pub(super) fn map_created(&self, result: Payload, revision: Revision) -> Payload {
        let Some(task) = tasks::created_task(&result, revision) else { return result };
        self.adopt(&task.id);
        self.map_related(tasks::with_created_id(&result, revision, &self.seal(&task.id)).into_raw()).into()
    }

    /// Maps the related task of a message. One that is not the caller's is removed.
    fn map_related(&self, message: Raw) -> Raw {
        if !tasks::mentions_related_task(&message) {
            return message;
        }
        let own = tasks::related_task_id(Some(&message));
        match own.and_then(|own| self.known_id(&own)) {
            Some(id) => tasks::with_related_task(&message, &id),
            None => tasks::without_related_task(&message),
        }
    }

    /// Maps a notification; `None` when it is about a task of somebody else.
    pub(super) fn map_notification(&self, notification: Notification) -> Option<Notification> {
        let Some(params) = &notification.params else { return Some(notification) };
        if let Some(task) = tasks::status_of(&notification) {
            let id = self.known_id(&task.get("taskId")?.text()?)?;
            return Some(tasks::status_notification(self.map_related(tasks::with_id(task, &id))));
        }
        if !tasks::mentions_related_task(params) {
            return Some(notification);
        }
        let params = self.map_related(params.clone());
        Some(Notification { params: Some(params), ..notification })
    }

    /// Maps a server request of a task, and the client's response to it.
    pub(super) fn map_server_request(&self, request: ServerRequest) -> ServerRequest {
        let Some(own) = tasks::related_task_id(request.params.as_ref()) else { return request };
        let ServerRequest { method, params, responder: mut to_server, asker } = request;
        let (responder, response) = oneshot::channel::<Outcome>();
        tokio::spawn(async move {
            tokio::select! {
                response = response => if let Ok(outcome) = response {
                    // A send error means that the server stopped waiting.
                    let _ = to_server.send(outcome.map(|result| tasks::with_related_task(&result, &own).into()));
                },
                () = to_server.closed() => {} // the server has cancelled its request
            }
        });
        let params = params.map(|params| self.map_related(params));
        ServerRequest { method, params, responder: responder.into(), asker }
    }

    /// Maps the related task of a client's request to the server's own id. One that is not the caller's is removed.
    pub(super) fn map_request(&self, params: Payload) -> Payload {
        let meta = params.member(Key::Meta).filter(tasks::mentions_related_task);
        let Some(related) = meta.and_then(|meta| tasks::related_task(&meta)) else { return params };
        let id = related.get("taskId").and_then(|id| TaskId::open(self.group, self.caller, &id.text()?));
        match id.filter(|id| id.upstream == self.upstream && id.holder.is_none()) {
            Some(id) => tasks::with_related_task(&params, &id.own).into(),
            None => tasks::without_related_task(&params).into(),
        }
    }

    /// Maps the answer to a request about a task.
    pub(super) fn map_answer(&self, (own, id): (&str, &str), result: Payload) -> Payload {
        let is_own = result.text_of(Key::TaskId).is_some_and(|told| told == own);
        let result = if is_own { result.with(Key::TaskId, &Raw::of(id)) } else { result };
        match tasks::related_task_id(Some(&result)) {
            Some(related) if related == own => tasks::with_related_task(&result, id).into(),
            Some(_) => self.map_related(result.into_raw()).into(),
            None => result,
        }
    }

    /// Asks for the tasks of the server until a page has one of the caller's.
    pub(super) async fn run_list(&self, lease: &LeaseGuard, call: &Call, out: &mut impl ReplySink) -> Answer {
        let mut call = call.clone();
        for _ in 1..MAX_LIST_PAGES {
            let answer = lease.connection().run_call(&call, out).await;
            let Ok(page) = &answer.outcome else { return answer };
            let has_own = page.get("tasks").is_some_and(|tasks| tasks.items().iter().any(|task| self.owns(task)));
            let cursor = page.get("nextCursor").filter(|cursor| cursor.text().is_some());
            let Some(cursor) = cursor.filter(|_| !has_own) else { return answer };
            let params = call.params.take().map_or_else(Raw::empty, Payload::into_raw);
            call.params = Some(params.edit().set("cursor", cursor).finish().into());
        }
        lease.connection().run_call(&call, out).await
    }

    fn owns(&self, task: &Raw) -> bool {
        let own = task.get("taskId");
        own.as_ref().and_then(Raw::text).is_some_and(|own| self.group.owned_tasks().contains(self.owner(), &own))
    }

    /// The caller's own tasks of a page.
    pub(super) fn map_list(&self, page: &Payload) -> Payload {
        let map_task = |task: &Raw| Some(tasks::with_id(task, &self.known_id(&task.get("taskId")?.text()?)?));
        let tasks: Vec<Raw> =
            page.get("tasks").map_or_else(Vec::new, |tasks| tasks.items().iter().filter_map(map_task).collect());
        let edit = page.edit().set("tasks", Raw::of(&tasks));
        let cursor = page.get("nextCursor").and_then(|cursor| Some(self.seal_cursor(&cursor.text()?)));
        match cursor {
            Some(cursor) => edit.set("nextCursor", Raw::of(&cursor)).finish().into(),
            None => edit.remove("nextCursor").finish().into(),
        }
    }

    /// Seals a cursor of the server, which may be the id of a task of somebody else.
    fn seal_cursor(&self, cursor: &str) -> String {
        self.group.seal().seal_deterministic(&self.cursor_purpose(), cursor.as_bytes())
    }

    /// The parameters of a list request with the server's own cursor.
    ///
    /// # Errors
    /// When the cursor was not sealed for this caller.
    pub(super) fn map_list_request(&self, params: Option<Payload>) -> Result<Option<Payload>, ErrorObject> {
        let cursor = params.as_ref().and_then(|params| params.get("cursor")).filter(|cursor| !cursor.is_null());
        let (Some(params), Some(cursor)) = (&params, cursor) else { return Ok(params) };
        let own = cursor.text().and_then(|text| self.group.seal().open(&self.cursor_purpose(), &text));
        let own = own.and_then(|own| String::from_utf8(own).ok()).ok_or_else(tasks::unknown_cursor)?;
        Ok(Some(params.edit().set("cursor", Raw::of(&own)).finish().into()))
    }

    /// Associated data of the seal: binds a cursor to group, server and caller.
    fn cursor_purpose(&self) -> String {
        format!("task cursor {} {} {}", self.group.name(), self.upstream, self.caller)
    }
}
