//! `subscriptions/listen`: a call that stays open and streams change notifications.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::Group;
use super::route::invalid_params;
use super::view::View;
use crate::call::{Answer, Call, ChangeEvent, Replies, ReplySender};
use crate::dialect::classify::method_not_found;
use crate::dialect::to_client;
use crate::protocol::method::Capability;
use crate::protocol::{ErrorObject, Raw};
use crate::upstream::SubscriptionGuard;

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
    changes: broadcast::Receiver<ChangeEvent>,
    closing: CancellationToken,
    replies: ReplySender,
    /// Resource subscriptions at the upstreams; they end when the guards drop.
    guards: Vec<(Arc<str>, SubscriptionGuard)>,
}

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
        let (filter, guards) = requested.grant(view);
        let subscription = call.id.to_raw();
        let (sender, replies) = Replies::channel();
        let closing = self.ended().clone();
        let listener = Listener { filter, subscription_id: subscription, changes, closing, replies: sender, guards };
        tokio::spawn(listener.run());
        replies
    }
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

    /// Restricts the filter to what the group supports. Resource subscriptions are started here and granted
    /// when the upstream confirms them.
    fn grant(self, view: &View) -> (Self, Vec<(Arc<str>, SubscriptionGuard)>) {
        let mut guards = Vec::new();
        for uri in self.updates {
            let Some((member, own)) =
                view.find_by_uri(&uri).filter(|(member, _)| member.state.supports_resource_subscriptions())
            else {
                continue;
            };
            let guard = member.leg.subscribe(own);
            guards.push((uri, guard));
        }
        let filter = Self {
            tools: self.tools && view.has_list_changes(Capability::Tools),
            prompts: self.prompts && view.has_list_changes(Capability::Prompts),
            resources: self.resources && view.has_list_changes(Capability::Resources),
            updates: Vec::new(),
        };
        (filter, guards)
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
        for (uri, guard) in std::mem::take(&mut self.guards) {
            let granted = tokio::select! {
                () = self.replies.cancelled() => return,
                () = self.closing.cancelled() => return,
                granted = tokio::time::timeout_at(deadline, guard.is_granted()) => granted.unwrap_or(false),
            };
            if granted {
                self.filter.updates.push(Arc::clone(&uri));
                self.guards.push((uri, guard));
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
            let changes = tokio::select! {
                () = self.replies.cancelled() => return,
                () = self.closing.cancelled() => break,
                change = self.changes.recv() => match change {
                    Ok(change) if self.filter.matches(&change) => vec![change],
                    Ok(_) => continue,
                    Err(broadcast::error::RecvError::Lagged(_)) => self.filter.all_changes(),
                    Err(broadcast::error::RecvError::Closed) => break,
                },
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
