//! Calls that create tasks, and requests about tasks that a client of the other era has.

use std::sync::Arc;

use tokio::time::Instant;

use super::connection::Connection;
use super::round::total_timeout;
use super::task_driver::{self, DriverPurpose, TaskDriver};
use super::{call, probe};
use crate::call::{Answer, Call, Replies, ReplySink};
use crate::dialect::tasks::{self, Task, TaskStatus};
use crate::failure::{Failure, FailureKind};
use crate::protocol::{ErrorObject, Method, Payload, Raw};

impl Connection {
    /// Like [`Self::run_call`], for a tool that runs only as a task, which is driven to its end.
    pub async fn run_call_as_task(self: &Arc<Self>, call: &Call, out: &mut impl ReplySink) -> Answer {
        call::run_as_task(self, (call, DriverPurpose::Call), out).await
    }

    /// Like [`Self::run_call_as_task`], and hands each status of the task to `out`, the first with its creation.
    pub async fn run_call_as_held_task(self: &Arc<Self>, call: &Call, out: &mut impl ReplySink) -> Answer {
        call::run_as_task(self, (call, DriverPurpose::HeldTask), out).await
    }

    /// Like [`Self::run_call`], with the tasks extension declared: the answer may be a task. Also for requests about a
    /// task.
    pub async fn run_call_offering_task(self: &Arc<Self>, call: &Call, out: &mut impl ReplySink) -> Answer {
        call::run_offering_task(self, call, out).await
    }

    /// Waits for the outcome of a task and hands the input that it requires to `out`. Dropping the future leaves the task
    /// as it is.
    pub async fn run_task_result(self: &Arc<Self>, call: &Call, id: &str, out: &mut impl ReplySink) -> Answer {
        let task = Task {
            id: id.to_owned(),
            status: TaskStatus::InputRequired,
            message: None,
            poll_interval: None,
            ttl: None,
        };
        let deadline = Instant::now() + total_timeout(self.settings(), call);
        TaskDriver::new(self, (call, DriverPurpose::TaskResult), &task, deadline).run(out).await
    }

    /// Cancels a task that has not ended and returns it as the server shows it then.
    pub async fn run_task_cancel(self: &Arc<Self>, call: &Call, id: &str) -> Answer {
        let outcome = self.cancel_task(call, id).await.map(Payload::from);
        Answer { outcome, revision: self.revision() }
    }

    async fn cancel_task(&self, call: &Call, id: &str) -> Result<Raw, ErrorObject> {
        let (_, before) = self.get_task(call, id).await?;
        if before.is_final() {
            return Err(tasks::already_ended(before));
        }
        self.task_request(call, "tasks/cancel", id).await?;
        let (task, after) = self.get_task(call, id).await?;
        match after.is_final() && after != TaskStatus::Cancelled {
            true => Err(tasks::already_ended(after)),
            false => Ok(task),
        }
    }

    async fn get_task(&self, call: &Call, id: &str) -> Result<(Raw, TaskStatus), ErrorObject> {
        let task = self.task_request(call, "tasks/get", id).await?;
        match tasks::parse_task(&task, self.revision()) {
            Ok(parsed) => Ok((task, parsed.status)),
            Err(why) => Err(Failure::new(FailureKind::Protocol, why).into()),
        }
    }

    async fn task_request(&self, call: &Call, method: &str, id: &str) -> Result<Raw, ErrorObject> {
        let replies = task_driver::send(self, call, method, &tasks::task_params(id));
        let timeout = self.settings().idle_timeout;
        match probe::wait_for_response(replies, timeout, &format!("`{method}`")).await {
            Ok(outcome) => outcome.map(Payload::into_raw),
            Err(error) => Err(error.into_failure().into()),
        }
    }

    /// What the server tells of a task on the stream of a listen call. Ends when the server does not offer that.
    pub fn listen_to_task(&self, call: &Call, id: &str) -> Replies {
        task_driver::send(self, call, Method::Listen.as_str(), &tasks::listen_params(id))
    }
}
