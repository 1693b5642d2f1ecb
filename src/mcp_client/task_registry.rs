//! Tasks that are driven here, and what a server says of them. It may do so on any stream.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::call::{Reply, ServerRequest};
use crate::dialect::tasks;
use crate::protocol::{Notice, Notification};

/// The tasks of one connection that are driven here.
#[derive(Debug, Default)]
pub(super) struct TaskRegistry(Mutex<RegistryState>);

#[derive(Debug, Default)]
struct RegistryState {
    driven: HashMap<String, mpsc::Sender<Reply>>,
    /// How many calls are about to become tasks. What a server tells of a task may come before we know
    /// that it is ours.
    expected: usize,
    /// Tasks that were driven, the last one first. What a server tells of a task may come after its end.
    over: VecDeque<String>,
}

/// How much may wait for whoever drives a task; a question beyond that is not answered, and how far
/// the task is will be asked.
const WAITING: usize = 16;
/// How many tasks that are over are remembered.
const OVER: usize = 64;

impl TaskRegistry {
    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call is about to become a task.
    pub(super) fn expect(&self) {
        self.lock().expected += 1;
    }

    /// It has become one, or will not.
    pub(super) fn expect_no_longer(&self) {
        let mut state = self.lock();
        state.expected = state.expected.saturating_sub(1);
    }

    /// A task is driven from now on; what belongs to it comes there.
    pub(super) fn enter(&self, task: &str) -> mpsc::Receiver<Reply> {
        let (teller, told) = mpsc::channel(WAITING);
        self.lock().driven.insert(task.to_owned(), teller);
        told
    }

    /// It is driven no longer.
    pub(super) fn leave(&self, task: &str) {
        let mut state = self.lock();
        state.driven.remove(task);
        state.over.push_front(task.to_owned());
        state.over.truncate(OVER);
    }

    /// Passes a question on to the task that it belongs to; gives it back where there is none.
    pub(super) fn ask(&self, question: ServerRequest) -> Option<ServerRequest> {
        let driver = {
            let state = self.lock();
            let of = |question: &ServerRequest| tasks::related(question.params.as_ref());
            let task = of(&question).filter(|_| !state.driven.is_empty());
            task.and_then(|task| state.driven.get(&task).cloned())
        };
        match driver {
            Some(driver) => {
                // Dropped, it tells the server that nobody answers.
                let _ = driver.try_send(Reply::Question(question));
                None
            }
            None => Some(question),
        }
    }

    /// Takes what tells how far a task is that is driven here; false when it is something else. Nobody
    /// may rely on being told, so that one too many is no loss to whoever has tasks of its own.
    pub(super) fn on_notification(&self, notification: &Notification) -> bool {
        let Notice::Other(name) = &notification.notice else { return false };
        let Some(task) = tasks::told_of(name, notification.params.as_ref()) else { return false };
        let state = self.lock();
        match state.driven.get(&task) {
            Some(driver) => {
                let _ = driver.try_send(Reply::Notice(notification.clone()));
                true
            }
            None => state.expected > 0 || state.over.contains(&task),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Method, Raw};
    use bytes::Bytes;
    use tokio::sync::oneshot;

    fn raw(text: &str) -> Option<Raw> {
        Raw::parse(&Bytes::copy_from_slice(text.as_bytes())).ok()
    }

    #[test]
    fn what_names_a_task_reaches_whoever_drives_it() {
        let related = TaskRegistry::default();
        let ask = |params: &str| {
            let (answer, _) = oneshot::channel();
            ServerRequest { method: Method::from("elicitation/create"), params: raw(params), answer }
        };
        let named = r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#;
        assert!(related.ask(ask(named)).is_some(), "nobody drives it");
        let mut told = related.enter("t");
        assert!(related.ask(ask(named)).is_none());
        assert!(matches!(told.try_recv(), Ok(Reply::Question(_))));
        assert!(
            related.ask(ask(r#"{"_meta":{}}"#)).is_some()
                && related.ask(ask(&named.replace("\"t\"", "\"u\""))).is_some()
        );
        let status = |id: &str| {
            let params = raw(&format!(r#"{{"taskId":"{id}","status":"completed"}}"#));
            Notification::new(Notice::from("notifications/tasks/status"), params)
        };
        assert!(related.on_notification(&status("t")) && !related.on_notification(&status("u")));
        assert!(matches!(told.try_recv(), Ok(Reply::Notice(_))));
        related.leave("t");
        assert!(related.on_notification(&status("t")), "its last word comes late");
        related.expect();
        assert!(related.on_notification(&status("u")), "it may be the one that is expected");
        related.expect_no_longer();
        assert!(!related.on_notification(&status("u")));
    }
}
