//! `subscriptions/listen`: a call that stays open and streams change notifications.

use std::sync::Arc;

use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::AnnouncedChange;
use super::caller_view::CallerView;
use super::group::{Group, slot};
use super::route::invalid_params;
use super::task_events::{self, TaskEvents};
use super::view::{GroupMember, View};
use crate::call::{Answer, Call, ChangeEvent, Replies, ReplySender};
use crate::dialect::classify::method_not_found;
use crate::dialect::{tasks, to_client};
use crate::protocol::method::Capability;
use crate::protocol::{ErrorObject, Raw};
use crate::upstream::{HubListener, Leg, SUBSCRIBE_TIMEOUT, SubscriptionGuard};

/// The changes that one listener subscribes to.
#[derive(Debug, Default, PartialEq, Eq)]
struct ListenFilter {
    tools: bool,
    prompts: bool,
    resources: bool,
    updates: Vec<Arc<str>>,
    tasks: Vec<Arc<str>>,
}

/// The task of one listen call.
struct Listener {
    group: Arc<Group>,
    filter: ListenFilter,
    subscription_id: Raw,
    call: Call,
    changes: broadcast::Receiver<AnnouncedChange>,
    views: watch::Receiver<[Arc<View>; 2]>,
    /// What the leases of this caller announce.
    own_changes: broadcast::Receiver<ChangeEvent>,
    own_sender: broadcast::Sender<ChangeEvent>,
    caller_leases: Vec<(Arc<Leg>, HubListener)>,
    closing: CancellationToken,
    replies: ReplySender,
    /// Resource subscriptions to ask the upstreams for.
    requested: Vec<RequestedSubscription>,
    /// Resource subscriptions at the upstreams.
    subscriptions: Vec<GrantedSubscription>,
    tasks: TaskEvents,
}

/// A resource that a listener wants to hear of.
struct RequestedSubscription {
    /// As the client knows it.
    uri: Arc<str>,
    leg: Arc<Leg>,
    source: SubscriptionSource,
}

/// A resource that a listener hears of.
struct GrantedSubscription {
    uri: Arc<str>,
    leg: Arc<Leg>,
    /// Ends the subscription when it is dropped.
    _guard: Box<dyn Send>,
}

/// Where a listener hears of a resource.
enum SubscriptionSource {
    /// The shared connection of a leg.
    Catalog(SubscriptionGuard),
    /// The caller's lease at a leg, by the server's own URI.
    CallerLease(Box<str>),
}

/// Changes on a caller's leases buffered per listener.
const OWN_CHANGES_CAPACITY: usize = 256;

impl Group {
    pub(super) fn listen(self: &Arc<Self>, call: &Call, caller: &CallerView<'_>) -> Replies {
        let view = caller.view();
        let lists = [Capability::Tools, Capability::Prompts, Capability::Resources];
        if !view.has_subscriptions() && !lists.into_iter().any(|capability| view.has_list_changes(capability)) {
            return method_not_found(&call.method).into();
        }
        let requested = match ListenFilter::parse(call.params.as_deref()) {
            Ok(requested) => requested,
            Err(error) => return error.into(),
        };
        let knows_tasks = tasks::client_supports_tasks(&call.client.capabilities, call.client.revision);
        if !requested.tasks.is_empty() && !knows_tasks {
            return tasks::missing_task_support().into();
        }
        // Subscribe before the acknowledgement is sent, so that no change after it is missed.
        let (changes, views) = (self.changes(), self.watch_views());
        let (own_sender, own_changes) = broadcast::channel(OWN_CHANGES_CAPACITY);
        let tasks = TaskEvents::new(self, call, caller, &requested.tasks);
        let (filter, requested) = requested.grant(caller, call);
        let (sender, replies) = Replies::channel();
        let mut listener = Listener {
            group: Arc::clone(self),
            filter,
            subscription_id: call.id.to_raw(),
            call: call.clone(),
            changes,
            views,
            own_changes,
            own_sender,
            caller_leases: Vec::new(),
            closing: self.ended().clone(),
            replies: sender,
            requested,
            subscriptions: Vec::new(),
            tasks,
        };
        listener.listen_on_caller_leases(view);
        tokio::spawn(listener.run());
        replies
    }
}

/// Hears of what the caller's lease at a member announces, resources under the client's and the server's own URI.
fn listen_on_caller_lease(member: &GroupMember, call: &Call, changes: broadcast::Sender<ChangeEvent>) -> HubListener {
    let name_mapping = member.name_mapping.clone();
    let listener = move |change: ChangeEvent| {
        // A send error means that the listener has ended.
        if let ChangeEvent::ResourceUpdated(uri) = &change {
            let exposed = name_mapping.expose_uri(uri);
            if *exposed != **uri {
                let _ = changes.send(ChangeEvent::ResourceUpdated(exposed.into()));
            }
        }
        let _ = changes.send(change);
    };
    member.leg.listen_on_caller_lease(call, Arc::new(listener))
}

impl ListenFilter {
    fn parse(params: Option<&Raw>) -> Result<Self, ErrorObject> {
        let requested = params.and_then(|params| params.get("notifications")).filter(Raw::is_object);
        let requested = requested
            .ok_or_else(|| invalid_params("`params.notifications` must be an object that says what to listen to"))?;
        let flag = |key: &str| match requested.get(key).as_ref().map(Raw::as_bytes) {
            None | Some(b"false") => Ok(false),
            Some(b"true") => Ok(true),
            Some(_) => Err(invalid_params(&format!("`notifications.{key}` must be true or false"))),
        };
        let updates = match requested.get("resourceSubscriptions") {
            None => Vec::new(),
            Some(uris) => uris
                .read()
                .map_err(|_| invalid_params("`notifications.resourceSubscriptions` must be a list of URIs"))?,
        };
        let tasks = match requested.get("taskIds") {
            None => Vec::new(),
            Some(ids) => {
                ids.read().map_err(|_| invalid_params("`notifications.taskIds` must be a list of task ids"))?
            }
        };
        Ok(Self {
            tasks: tasks.into_iter().map(|id: String| id.into()).collect(),
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            updates: updates.into_iter().map(|uri: String| uri.into()).collect(),
        })
    }

    /// Restricts the filter to what the group supports, tasks aside. Resource subscriptions are granted when the
    /// upstream confirms them.
    fn grant(self, caller: &CallerView<'_>, call: &Call) -> (Self, Vec<RequestedSubscription>) {
        let (view, mut requested) = (caller.view(), Vec::new());
        for uri in self.updates {
            let found = caller.find_by_uri(&uri).filter(|found| caller.refusal(call, found).is_none());
            let Some(found) = found.filter(|found| found.member.state.supports_resource_subscriptions()) else {
                continue;
            };
            requested.push(RequestedSubscription::new(&uri, found.member, found.own));
        }
        let filter = Self {
            tools: self.tools && view.has_list_changes(Capability::Tools),
            prompts: self.prompts && view.has_list_changes(Capability::Prompts),
            resources: self.resources && view.has_list_changes(Capability::Resources),
            updates: Vec::new(),
            tasks: Vec::new(),
        };
        (filter, requested)
    }

    fn to_raw(&self) -> Raw {
        let mut granted = serde_json::Map::new();
        for (key, flag) in [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ] {
            if flag {
                granted.insert(key.into(), true.into());
            }
        }
        for (key, names) in [("resourceSubscriptions", &self.updates), ("taskIds", &self.tasks)] {
            if !names.is_empty() {
                let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
                granted.insert(key.into(), names.into());
            }
        }
        Raw::of(&granted)
    }

    fn matches(&self, change: &ChangeEvent) -> bool {
        match change {
            ChangeEvent::Tools => self.tools,
            ChangeEvent::Prompts => self.prompts,
            ChangeEvent::Resources => self.resources,
            ChangeEvent::ResourceUpdated(uri) => self.updates.iter().any(|wanted| wanted == uri),
        }
    }

    /// All changes of the filter, for a listener that lagged.
    fn all_changes(&self) -> Vec<ChangeEvent> {
        let lists = [ChangeEvent::Tools, ChangeEvent::Prompts, ChangeEvent::Resources];
        let lists = lists.into_iter().filter(|change| self.matches(change));
        lists.chain(self.updates.iter().cloned().map(ChangeEvent::ResourceUpdated)).collect()
    }
}

impl RequestedSubscription {
    fn new(uri: &Arc<str>, member: &GroupMember, own: &str) -> Self {
        let source = match member.leg.has_caller_leases() {
            true => SubscriptionSource::CallerLease(own.into()),
            false => SubscriptionSource::Catalog(member.leg.subscribe(own)),
        };
        Self { uri: Arc::clone(uri), leg: Arc::clone(&member.leg), source }
    }

    /// Waits for the upstream to confirm the subscription; `None` when it does not in time.
    async fn granted(self, call: &Call, deadline: Instant) -> Option<GrantedSubscription> {
        let Self { uri, leg, source } = self;
        let guard: Box<dyn Send> = match source {
            SubscriptionSource::Catalog(guard) => {
                let is_granted = tokio::time::timeout_at(deadline, guard.is_granted()).await.unwrap_or(false);
                is_granted.then(|| Box::new(guard))?
            }
            SubscriptionSource::CallerLease(own) => Box::new(leg.subscribe_on_caller_lease(call, &own).await?),
        };
        Some(GrantedSubscription { uri, leg, _guard: guard })
    }
}

impl Listener {
    /// Hears of what the caller's leases announce at the members of a view.
    fn listen_on_caller_leases(&mut self, view: &View) {
        let is_member = |leg: &Arc<Leg>| view.members.iter().any(|member| Arc::ptr_eq(&member.leg, leg));
        self.caller_leases.retain(|(leg, _)| is_member(leg));
        for member in view.members.iter().filter(|member| member.leg.has_caller_leases()) {
            if !self.caller_leases.iter().any(|(leg, _)| Arc::ptr_eq(leg, &member.leg)) {
                let listening = listen_on_caller_lease(member, &self.call, self.own_sender.clone());
                self.caller_leases.push((Arc::clone(&member.leg), listening));
            }
        }
    }

    /// Moves subscriptions to upstreams that took the place of others, as a reload does. Returns the resources that may
    /// have changed in between. Those that are not granted are tried again with the next view.
    async fn move_subscriptions(&mut self) -> Vec<ChangeEvent> {
        let view = Arc::clone(&self.views.borrow_and_update()[slot(self.call.client.revision)]);
        self.listen_on_caller_leases(&view);
        self.end_hidden_subscriptions(&view);
        let deadline = Instant::now() + SUBSCRIBE_TIMEOUT;
        let mut moved = Vec::new();
        for subscription in &mut self.subscriptions {
            let Some((member, own)) = view.find_by_uri(&subscription.uri) else { continue };
            if Arc::ptr_eq(&member.leg, &subscription.leg) || !member.state.supports_resource_subscriptions() {
                continue;
            }
            let requested = RequestedSubscription::new(&subscription.uri, member, own);
            let granted = tokio::time::timeout_at(deadline, requested.granted(&self.call, deadline)).await;
            if let Ok(Some(granted)) = granted {
                *subscription = granted;
                moved.push(ChangeEvent::ResourceUpdated(Arc::clone(&subscription.uri)));
            }
        }
        moved
    }

    /// Ends the subscriptions to what rules hide now.
    fn end_hidden_subscriptions(&mut self, view: &Arc<View>) {
        let caller = CallerView::new(view, &self.call.caller.identity);
        if caller.has_rules() {
            let is_hidden = |uri: &str| view.resolve_uri(uri).is_some() && caller.find_by_uri(uri).is_none();
            self.subscriptions.retain(|subscription| !is_hidden(&subscription.uri));
            self.filter.updates.retain(|uri| !is_hidden(uri));
        }
    }

    /// Whether a change of the group is one for this caller.
    fn concerns(&self, change: &AnnouncedChange) -> bool {
        let (client, identity) = (self.call.client.revision, &self.call.caller.identity);
        self.filter.matches(&change.change) && self.group.concerns(client, identity, change)
    }

    /// Waits for the upstreams to confirm the subscriptions of resources and tasks. One that misses the timeout is not
    /// granted, as the acknowledgement cannot be amended.
    async fn await_subscriptions(&mut self) {
        let deadline = Instant::now() + SUBSCRIBE_TIMEOUT;
        for requested in std::mem::take(&mut self.requested) {
            let granted = tokio::select! {
                () = self.replies.cancelled() => return,
                () = self.closing.cancelled() => return,
                granted = requested.granted(&self.call, deadline) => granted,
            };
            if let Some(granted) = granted {
                self.filter.updates.push(Arc::clone(&granted.uri));
                self.subscriptions.push(granted);
            }
        }
        tokio::select! {
            () = self.replies.cancelled() => {}
            () = self.closing.cancelled() => {}
            granted = self.tasks.begin(&self.call, deadline) => self.filter.tasks = granted,
        }
    }

    /// Only this task waits for its reader; a reader that lags gets every change of its filter.
    async fn run(mut self) {
        self.await_subscriptions().await;
        let acknowledgement = to_client::listen_ack(&self.subscription_id, self.filter.to_raw());
        if !self.replies.notify(acknowledgement).await {
            return;
        }
        loop {
            let change = tokio::select! {
                () = self.replies.cancelled() => return,
                () = self.closing.cancelled() => break,
                change = self.changes.recv() => match change {
                    Ok(change) if !self.concerns(&change) => continue,
                    change => Some(change.map(|change| change.change)),
                },
                change = self.own_changes.recv() => Some(change),
                task = self.tasks.next() => {
                    match self.replies.notify(task_events::notification(&task, &self.subscription_id)).await {
                        true => continue,
                        false => return,
                    }
                }
                changed = self.views.changed() => match changed {
                    Ok(()) => None,
                    Err(_) => break,
                },
            };
            let changes = match change {
                None => self.move_subscriptions().await,
                Some(Ok(change)) if self.filter.matches(&change) => vec![change],
                Some(Ok(_)) => continue,
                Some(Err(broadcast::error::RecvError::Lagged(_))) => self.filter.all_changes(),
                Some(Err(broadcast::error::RecvError::Closed)) => break,
            };
            for change in changes {
                let mut notification = change.notification();
                notification.params =
                    Some(to_client::with_subscription_id(notification.params.as_ref(), &self.subscription_id));
                if !self.replies.notify(notification).await {
                    return;
                }
            }
        }
        self.replies.end(Answer::result(to_client::listen_result(&self.subscription_id))).await;
    }
}
