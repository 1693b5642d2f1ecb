//! `subscriptions/listen`: a call that stays open and streams change notifications.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::{Group, slot};
use super::route::invalid_params;
use super::view::{GroupMember, View};
use crate::call::{Answer, Call, ChangeEvent, Replies, ReplySender};
use crate::dialect::classify::method_not_found;
use crate::dialect::to_client;
use crate::protocol::method::Capability;
use crate::protocol::{ErrorObject, Raw};
use crate::upstream::{HubListener, Leg, SubscriptionGuard};

/// The changes that one listener subscribes to.
#[derive(Debug, Default, PartialEq, Eq)]
struct ListenFilter {
    tools: bool,
    prompts: bool,
    resources: bool,
    updates: Vec<Arc<str>>,
}

/// How long upstreams may take to confirm resource subscriptions.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The task of one listen call.
struct Listener {
    filter: ListenFilter,
    subscription_id: Raw,
    call: Call,
    changes: broadcast::Receiver<ChangeEvent>,
    views: watch::Receiver<[Arc<View>; 2]>,
    /// What the places of this caller announce.
    own_changes: broadcast::Receiver<ChangeEvent>,
    own_sender: broadcast::Sender<ChangeEvent>,
    places: Vec<(Arc<Leg>, HubListener)>,
    closing: CancellationToken,
    replies: ReplySender,
    /// Resource subscriptions to ask the upstreams for.
    requested: Vec<RequestedSubscription>,
    /// Resource subscriptions at the upstreams.
    subscriptions: Vec<GrantedSubscription>,
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
    /// The caller's place at a leg, by the server's own URI.
    Place(Box<str>),
}

/// Changes of a caller's places buffered per listener.
const OWN_CHANGES_CAPACITY: usize = 256;

impl Group {
    pub(super) fn listen(&self, call: &Call, view: &View) -> Replies {
        let lists = [Capability::Tools, Capability::Prompts, Capability::Resources];
        if !view.has_subscriptions() && !lists.into_iter().any(|capability| view.has_list_changes(capability)) {
            return method_not_found(&call.method).into();
        }
        let requested = match ListenFilter::parse(call.params.as_deref()) {
            Ok(requested) => requested,
            Err(error) => return error.into(),
        };
        // Subscribe before the acknowledgement is sent, so that no change after it is missed.
        let (changes, views) = (self.changes(), self.watch_views());
        let (own_sender, own_changes) = broadcast::channel(OWN_CHANGES_CAPACITY);
        let (filter, requested) = requested.grant(view);
        let (sender, replies) = Replies::channel();
        let mut listener = Listener {
            filter,
            subscription_id: call.id.to_raw(),
            call: call.clone(),
            changes,
            views,
            own_changes,
            own_sender,
            places: Vec::new(),
            closing: self.ended().clone(),
            replies: sender,
            requested,
            subscriptions: Vec::new(),
        };
        listener.listen_at_places(view);
        tokio::spawn(listener.run());
        replies
    }
}

/// Hears of what the caller's place at a member announces, resources under the client's and the server's own URI.
fn listen_at_place(member: &GroupMember, call: &Call, changes: broadcast::Sender<ChangeEvent>) -> HubListener {
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
    member.leg.listen_at_place(call, Arc::new(listener))
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
        Ok(Self {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            updates: updates.into_iter().map(|uri: String| uri.into()).collect(),
        })
    }

    /// Restricts the filter to what the group supports. Resource subscriptions are granted when the upstream confirms
    /// them.
    fn grant(self, view: &View) -> (Self, Vec<RequestedSubscription>) {
        let mut requested = Vec::new();
        for uri in self.updates {
            let Some((member, own)) =
                view.find_by_uri(&uri).filter(|(member, _)| member.state.supports_resource_subscriptions())
            else {
                continue;
            };
            requested.push(RequestedSubscription::new(&uri, member, own));
        }
        let filter = Self {
            tools: self.tools && view.has_list_changes(Capability::Tools),
            prompts: self.prompts && view.has_list_changes(Capability::Prompts),
            resources: self.resources && view.has_list_changes(Capability::Resources),
            updates: Vec::new(),
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
        if !self.updates.is_empty() {
            let uris: Vec<&str> = self.updates.iter().map(AsRef::as_ref).collect();
            granted.insert("resourceSubscriptions".into(), uris.into());
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
        let source = match member.leg.gives_places() {
            true => SubscriptionSource::Place(own.into()),
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
            SubscriptionSource::Place(own) => Box::new(leg.subscribe_at_place(call, &own).await?),
        };
        Some(GrantedSubscription { uri, leg, _guard: guard })
    }
}

impl Listener {
    /// Hears of what the caller's places announce at the members of a view.
    fn listen_at_places(&mut self, view: &View) {
        let is_member = |leg: &Arc<Leg>| view.members.iter().any(|member| Arc::ptr_eq(&member.leg, leg));
        self.places.retain(|(leg, _)| is_member(leg));
        for member in view.members.iter().filter(|member| member.leg.gives_places()) {
            if !self.places.iter().any(|(leg, _)| Arc::ptr_eq(leg, &member.leg)) {
                let place = listen_at_place(member, &self.call, self.own_sender.clone());
                self.places.push((Arc::clone(&member.leg), place));
            }
        }
    }

    /// Moves subscriptions to upstreams that took the place of others, as a reload does. Returns the resources that may
    /// have changed in between. Those that are not granted are tried again with the next view.
    async fn move_subscriptions(&mut self) -> Vec<ChangeEvent> {
        let view = Arc::clone(&self.views.borrow_and_update()[slot(self.call.client.revision)]);
        self.listen_at_places(&view);
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

    /// Waits for the upstreams to confirm the resource subscriptions. One that misses the timeout is not
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
                change = self.changes.recv() => Some(change),
                change = self.own_changes.recv() => Some(change),
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
