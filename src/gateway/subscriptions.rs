//! `subscriptions/listen`: a call that stays open and streams change notifications.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::Group;
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
    /// What the places of this caller announce.
    own_changes: broadcast::Receiver<ChangeEvent>,
    places: Vec<HubListener>,
    closing: CancellationToken,
    replies: ReplySender,
    /// Resource subscriptions to ask the upstreams for.
    requested: Vec<RequestedSubscription>,
    /// Resource subscriptions at the upstreams; they end when the guards drop.
    guards: Vec<Box<dyn Send>>,
}

/// A resource that a listener wants to hear of.
struct RequestedSubscription {
    /// As the client knows it.
    uri: Arc<str>,
    source: SubscriptionSource,
}

/// Where a listener hears of a resource.
enum SubscriptionSource {
    /// The shared connection of a leg.
    Catalog(SubscriptionGuard),
    /// The caller's place at a leg, by the server's own URI.
    Place(Arc<Leg>, Box<str>),
}

/// Changes of a caller's places buffered per listener.
const OWN_CHANGES_CAPACITY: usize = 256;

impl Group {
    pub(super) fn listen(&self, call: &Call, view: &View) -> Replies {
        let lists = [Capability::Tools, Capability::Prompts, Capability::Resources];
        if !view.has_subscriptions() && !lists.into_iter().any(|capability| view.has_list_changes(capability)) {
            return method_not_found(&call.method).into();
        }
        let requested = match ListenFilter::parse(call.params.as_ref()) {
            Ok(requested) => requested,
            Err(error) => return error.into(),
        };
        // Subscribe before the acknowledgement is sent, so that no change after it is missed.
        let changes = self.changes();
        let (own_sender, own_changes) = broadcast::channel(OWN_CHANGES_CAPACITY);
        let places = view.members.iter().filter(|member| member.leg.gives_places());
        let places = places.map(|member| listen_at_place(member, call, own_sender.clone())).collect();
        let (filter, requested) = requested.grant(view);
        let (sender, replies) = Replies::channel();
        let listener = Listener {
            filter,
            subscription_id: call.id.to_raw(),
            call: call.clone(),
            changes,
            own_changes,
            places,
            closing: self.ended().clone(),
            replies: sender,
            requested,
            guards: Vec::new(),
        };
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
            let source = match member.leg.gives_places() {
                true => SubscriptionSource::Place(Arc::clone(&member.leg), own.into()),
                false => SubscriptionSource::Catalog(member.leg.subscribe(own)),
            };
            requested.push(RequestedSubscription { uri, source });
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

impl Listener {
    /// Waits for the upstreams to confirm the resource subscriptions. One that misses the timeout is not
    /// granted, as the acknowledgement cannot be amended.
    async fn await_subscriptions(&mut self) {
        let deadline = Instant::now() + SUBSCRIBE_TIMEOUT;
        for RequestedSubscription { uri, source } in std::mem::take(&mut self.requested) {
            let granted = async {
                match source {
                    SubscriptionSource::Catalog(guard) => {
                        let granted = tokio::time::timeout_at(deadline, guard.is_granted()).await.unwrap_or(false);
                        granted.then(|| Box::new(guard) as Box<dyn Send>)
                    }
                    SubscriptionSource::Place(leg, own) => {
                        let guard = leg.subscribe_at_place(&self.call, &own).await;
                        guard.map(|guard| Box::new(guard) as Box<dyn Send>)
                    }
                }
            };
            let granted = tokio::select! {
                () = self.replies.cancelled() => return,
                () = self.closing.cancelled() => return,
                granted = granted => granted,
            };
            if let Some(guard) = granted {
                self.filter.updates.push(uri);
                self.guards.push(guard);
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
                change = self.changes.recv() => change,
                // Never closed: the places keep its senders, and without any nothing is said here.
                change = self.own_changes.recv(), if !self.places.is_empty() => change,
            };
            let changes = match change {
                Ok(change) if self.filter.matches(&change) => vec![change],
                Ok(_) => continue,
                Err(broadcast::error::RecvError::Lagged(_)) => self.filter.all_changes(),
                Err(broadcast::error::RecvError::Closed) => break,
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
