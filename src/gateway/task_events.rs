//! What a listening client is told of its tasks: of those that are held here, and of those of servers of its own era.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::Instant;

use super::caller_view::CallerView;
use super::group::Group;
use super::held_tasks::HeldTask;
use super::name_mapping::NameMapping;
use super::task_id::TaskId;
use crate::call::{Call, Replies, Reply};
use crate::dialect::{tasks, to_client};
use crate::protocol::{Method, Notification, NotificationMethod, Raw};
use crate::upstream::Leg;

/// The tasks that one listener hears of.
pub(super) struct TaskEvents {
    group: Arc<Group>,
    requested: Vec<RequestedTask>,
    /// Each resolves with the next state of its task; `None` when nothing more is told of it.
    sources: FuturesUnordered<BoxFuture<'static, Option<NextState>>>,
}

/// A state of a task, and the source of further ones unless the task has ended.
type NextState = (Raw, Option<TaskSource>);

/// A task that a listener wants to hear of.
enum RequestedTask {
    Held(Arc<HeldTask>),
    Upstream { id: Arc<str>, own: String, leg: Arc<Leg>, name_mapping: NameMapping },
}

/// Where a listener hears of a task.
enum TaskSource {
    Held(Arc<HeldTask>, watch::Receiver<u64>),
    /// A listen call for this one task at its server.
    Upstream {
        id: Arc<str>,
        own: String,
        events: Replies,
        name_mapping: NameMapping,
    },
}

impl TaskEvents {
    /// The tasks of the caller among these ids.
    pub(super) fn new(group: &Arc<Group>, call: &Call, caller: &CallerView<'_>, ids: &[Arc<str>]) -> Self {
        let requested = ids.iter().filter_map(|id| RequestedTask::find(group, call, caller, id)).collect();
        Self { group: Arc::clone(group), requested, sources: FuturesUnordered::new() }
    }

    /// Begins to listen; returns the ids that are granted.
    pub(super) async fn begin(&mut self, call: &Call, deadline: Instant) -> Vec<Arc<str>> {
        let mut granted = Vec::new();
        for requested in std::mem::take(&mut self.requested) {
            let (id, source) = match requested {
                RequestedTask::Held(task) => (Arc::clone(task.id()), TaskSource::Held(Arc::clone(&task), task.watch())),
                RequestedTask::Upstream { id, own, leg, name_mapping } => {
                    let listening = tokio::time::timeout_at(deadline, listen_upstream(&leg, call, &own)).await;
                    let Ok(Some(events)) = listening else { continue };
                    (Arc::clone(&id), TaskSource::Upstream { id, own, events, name_mapping })
                }
            };
            self.push(source);
            granted.push(id);
        }
        granted
    }

    fn push(&self, source: TaskSource) {
        self.sources.push(Box::pin(source.next(Arc::clone(&self.group))));
    }

    /// The next state of some task; waits for ever where none is listened to. Cancel-safe.
    pub(super) async fn next(&mut self) -> Raw {
        loop {
            match self.sources.next().await {
                Some(Some((task, source))) => {
                    if let Some(source) = source {
                        self.push(source);
                    }
                    return task;
                }
                Some(None) => {}
                None => std::future::pending().await,
            }
        }
    }
}

impl RequestedTask {
    /// The task of the caller with that id.
    fn find(group: &Group, call: &Call, caller: &CallerView<'_>, id: &Arc<str>) -> Option<Self> {
        let task = TaskId::open(group, call.caller.id(), id)?;
        let member = caller.members().find(|member| **member.upstream.name() == *task.upstream);
        if task.holder.is_some() {
            let is_hidden = caller.has_rules() && member.is_none();
            return group.held_tasks().get(id).filter(|_| !is_hidden).map(Self::Held);
        }
        let member = member.filter(|member| member.has_tasks_for(call.client.revision))?;
        let (id, own) = (Arc::clone(id), task.own);
        Some(Self::Upstream { id, own, leg: Arc::clone(&member.leg), name_mapping: member.name_mapping.clone() })
    }
}

/// Listens to a task at its server; `None` when the server does not grant it.
async fn listen_upstream(leg: &Arc<Leg>, call: &Call, own: &str) -> Option<Replies> {
    let mut events = leg.acquire(call, || None).await.ok()?.connection().listen_to_task(call, own);
    loop {
        match events.next().await? {
            Reply::Notification(notification) if notification.method == NotificationMethod::Acknowledged => {
                let granted = notification.params?.at(&["notifications", "taskIds"])?.items();
                return granted.iter().any(|id| id.text().as_deref() == Some(own)).then_some(events);
            }
            Reply::End(_) => return None,
            Reply::Notification(_) | Reply::ServerRequest(_) | Reply::Piece(_) => {}
        }
    }
}

impl TaskSource {
    /// The next state of the task; `None` when nothing more is told of it.
    async fn next(self, group: Arc<Group>) -> Option<NextState> {
        match self {
            Self::Held(task, mut changes) => {
                changes.changed().await.ok()?;
                let described = task.describe(&group);
                // What has ended does not change any more, and must not be kept by its listeners.
                let rest = (!task.has_ended()).then(|| Self::Held(task, changes));
                Some((described, rest))
            }
            Self::Upstream { id, own, mut events, name_mapping } => loop {
                let notification = match events.next().await? {
                    Reply::Notification(notification) => notification,
                    Reply::ServerRequest(_) | Reply::Piece(_) => continue,
                    Reply::End(_) => return None,
                };
                let task = tasks::notified_task(&notification);
                let is_own = |task: &&Raw| task.get("taskId").is_some_and(|told| told.text().as_deref() == Some(&own));
                let Some(task) = task.filter(is_own) else { continue };
                let task = tasks::with_id(task, &id);
                let task = name_mapping.map_result(&Method::from("tasks/get"), task.into()).into_raw();
                return Some((task, Some(Self::Upstream { id, own, events, name_mapping })));
            },
        }
    }
}

/// The notification of a task on the stream of a listen call.
pub(super) fn notification(task: &Raw, subscription_id: &Raw) -> Notification {
    tasks::task_notification(to_client::with_subscription_id(Some(task), subscription_id))
}
