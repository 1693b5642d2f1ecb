//! Registry of the tasks driven on one connection: routes what the server sends about them on any stream.

use std::collections::{HashMap, VecDeque};

use tokio::sync::mpsc;

use parking_lot::{Mutex, MutexGuard};

use crate::call::{Reply, ServerRequest};
use crate::dialect::tasks;
use crate::protocol::{Notification, NotificationMethod};

/// The tasks of one connection that [`super::task_driver`] drives.
#[derive(Debug, Default)]
pub(super) struct TaskRegistry(Mutex<RegistryState>);

#[derive(Debug, Default)]
struct RegistryState {
    drivers: HashMap<String, mpsc::Sender<Reply>>,
    /// Calls that are about to become tasks. Status notifications may arrive before the response that names the task.
    expected_tasks: usize,
    /// Tasks that have ended, most recent first. Status notifications may arrive after the end.
    finished_tasks: VecDeque<String>,
    /// Input requests that a client is asked or has answered, by task and key, most recent first. The server may list one
    /// for a while after it was answered.
    claimed_inputs: VecDeque<(String, String)>,
}

/// Messages that may wait for one driver. A server request beyond that is refused; a lost status is polled.
const DRIVER_QUEUE_CAPACITY: usize = 16;
/// Number of ended tasks that are remembered.
const MAX_FINISHED_TASKS: usize = 64;
/// Number of input requests that are remembered.
const MAX_CLAIMED_INPUTS: usize = 1024;

impl TaskRegistry {
    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.0.lock()
    }

    /// A call is about to become a task.
    pub(super) fn expect_task(&self) {
        self.lock().expected_tasks += 1;
    }

    /// The call has become a task, or will not.
    pub(super) fn stop_expecting_task(&self) {
        let mut state = self.lock();
        state.expected_tasks = state.expected_tasks.saturating_sub(1);
    }

    /// Registers a task; messages that name it go to the returned receiver.
    pub(super) fn register(&self, task: &str) -> mpsc::Receiver<Reply> {
        let (sender, receiver) = mpsc::channel(DRIVER_QUEUE_CAPACITY);
        self.lock().drivers.insert(task.to_owned(), sender);
        receiver
    }

    /// Removes a task that is no longer driven.
    pub(super) fn unregister(&self, task: &str) {
        let mut state = self.lock();
        state.drivers.remove(task);
        state.finished_tasks.push_front(task.to_owned());
        state.finished_tasks.truncate(MAX_FINISHED_TASKS);
    }

    /// Whether an input request is still to be asked; from now on it is not.
    pub(super) fn claim_input(&self, task: &str, key: &str) -> bool {
        let mut state = self.lock();
        if state.claimed_inputs.iter().any(|(known, claimed)| known == task && claimed == key) {
            return false;
        }
        state.claimed_inputs.push_front((task.to_owned(), key.to_owned()));
        state.claimed_inputs.truncate(MAX_CLAIMED_INPUTS);
        true
    }

    /// An input request was not answered and may be asked again.
    pub(super) fn release_input(&self, task: &str, key: &str) {
        self.lock().claimed_inputs.retain(|(known, claimed)| known != task || claimed != key);
    }

    /// Routes a server request to the driver of the task that it names; returns it if there is none.
    pub(super) fn route_server_request(&self, request: ServerRequest) -> Option<ServerRequest> {
        let driver = {
            let state = self.lock();
            let related_task = |request: &ServerRequest| tasks::related_task_id(request.params.as_ref());
            let task = related_task(&request).filter(|_| !state.drivers.is_empty());
            task.and_then(|task| state.drivers.get(&task).cloned())
        };
        match driver {
            Some(driver) => {
                // If the queue is full, dropping the request sends an error response to the server.
                let _ = driver.try_send(Reply::ServerRequest(request));
                None
            }
            None => Some(request),
        }
    }

    /// Consumes a status notification of a task driven here; false for any other notification. Status notifications are
    /// optional in the protocol, so consuming one of a client's own task does no harm.
    pub(super) fn on_notification(&self, notification: &Notification) -> bool {
        let NotificationMethod::Other(name) = &notification.method else { return false };
        let Some(task) = tasks::status_task_id(name, notification.params.as_ref()) else { return false };
        let state = self.lock();
        match state.drivers.get(&task) {
            Some(driver) => {
                let _ = driver.try_send(Reply::Notification(notification.clone()));
                true
            }
            None => state.expected_tasks > 0 || state.finished_tasks.contains(&task),
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
    fn messages_that_name_a_task_reach_its_driver() {
        let registry = TaskRegistry::default();
        let request = |params: &str| {
            let (answer, _) = oneshot::channel();
            let (method, responder) = (Method::from("elicitation/create"), answer.into());
            ServerRequest { method, params: raw(params), responder, asker: None }
        };
        let named = r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#;
        assert!(registry.route_server_request(request(named)).is_some(), "no driver is registered");
        let mut driver = registry.register("t");
        assert!(registry.route_server_request(request(named)).is_none());
        assert!(matches!(driver.try_recv(), Ok(Reply::ServerRequest(_))));
        assert!(
            registry.route_server_request(request(r#"{"_meta":{}}"#)).is_some()
                && registry.route_server_request(request(&named.replace("\"t\"", "\"u\""))).is_some()
        );
        let status = |id: &str| {
            let params = raw(&format!(r#"{{"taskId":"{id}","status":"completed"}}"#));
            Notification::new(NotificationMethod::from("notifications/tasks/status"), params)
        };
        assert!(registry.on_notification(&status("t")) && !registry.on_notification(&status("u")));
        assert!(matches!(driver.try_recv(), Ok(Reply::Notification(_))));
        registry.unregister("t");
        assert!(registry.on_notification(&status("t")), "status after the end of the task");
        assert!(registry.claim_input("t", "k") && registry.claim_input("u", "k") && !registry.claim_input("t", "k"));
        registry.release_input("t", "k");
        assert!(registry.claim_input("t", "k") && !registry.claim_input("u", "k"), "only what was released");
        registry.expect_task();
        assert!(registry.on_notification(&status("u")), "status of an expected task");
        registry.stop_expecting_task();
        assert!(!registry.on_notification(&status("u")));
    }
}
