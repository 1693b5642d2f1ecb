//! `subscriptions/listen`: a call that stays open and tells of changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group::Group;
use super::route::invalid;
use super::view::View;
use crate::call::{Answer, Call, ChangeEvent, Replies, ReplySender};
use crate::dialect::classify::method_not_found;
use crate::dialect::to_client;
use crate::protocol::method::Family;
use crate::protocol::{ErrorObject, Raw};
use crate::upstream::SubscriptionGuard;

/// Which changes one listener hears of.
#[derive(Debug, Default, PartialEq, Eq)]
struct ListenFilter {
    tools: bool,
    prompts: bool,
    resources: bool,
    updates: Vec<Arc<str>>,
}

/// How long upstreams may take to say what they tell of.
const ANSWERED: Duration = Duration::from_secs(2);

/// One listener at work.
struct Listener {
    wishes: ListenFilter,
    subscription: Raw,
    changes: broadcast::Receiver<ChangeEvent>,
    closing: CancellationToken,
    replier: ReplySender,
    /// Upstreams tell of the resources as long as these are held.
    watches: Vec<(Arc<str>, SubscriptionGuard)>,
}

impl Group {
    pub(super) fn listen(&self, call: &Call, view: &View) -> Replies {
        let lists = [Family::Tools, Family::Prompts, Family::Resources];
        if !view.offers_updates() && !lists.into_iter().any(|family| view.lists_change(family)) {
            return method_not_found(&call.method).into();
        }
        let asked = match ListenFilter::read(call.params.as_ref()) {
            Ok(asked) => asked,
            Err(error) => return error.into(),
        };
        // From here on nothing is missed: the acknowledgement goes out after this.
        let changes = self.changes();
        let (wishes, watches) = asked.granted(view);
        let subscription = call.id.to_raw();
        let (replier, replies) = Replies::channel();
        let closing = self.ended().clone();
        let listener = Listener { wishes, subscription, changes, closing, replier, watches };
        tokio::spawn(listener.run());
        replies
    }
}

impl ListenFilter {
    fn read(params: Option<&Raw>) -> Result<Self, ErrorObject> {
        let asked = params.and_then(|params| params.get("notifications")).filter(Raw::is_object);
        let asked =
            asked.ok_or_else(|| invalid("`params.notifications` must be an object that says what to listen to"))?;
        let flag = |key: &str| match asked.get(key).as_ref().map(Raw::as_bytes) {
            None | Some(b"false") => Ok(false),
            Some(b"true") => Ok(true),
            Some(_) => Err(invalid(&format!("`notifications.{key}` must be true or false"))),
        };
        let updates = match asked.get("resourceSubscriptions") {
            None => Vec::new(),
            Some(uris) => {
                uris.read().map_err(|_| invalid("`notifications.resourceSubscriptions` must be a list of URIs"))?
            }
        };
        Ok(Self {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            updates: updates.into_iter().map(|uri: String| uri.into()).collect(),
        })
    }

    /// What of it the group can do, but for resources, whose upstreams have to be asked: what has to be held
    /// so that they are.
    fn granted(self, view: &View) -> (Self, Vec<(Arc<str>, SubscriptionGuard)>) {
        let mut watches = Vec::new();
        for uri in self.updates {
            let Some((member, own)) = view.by_uri(&uri).filter(|(member, _)| member.state.offers_updates()) else {
                continue;
            };
            let watch = member.upstream.subscribe(own);
            watches.push((uri, watch));
        }
        let wishes = Self {
            tools: self.tools && view.lists_change(Family::Tools),
            prompts: self.prompts && view.lists_change(Family::Prompts),
            resources: self.resources && view.lists_change(Family::Resources),
            updates: Vec::new(),
        };
        (wishes, watches)
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

    fn wants(&self, change: &ChangeEvent) -> bool {
        match change {
            ChangeEvent::Tools => self.tools,
            ChangeEvent::Prompts => self.prompts,
            ChangeEvent::Resources => self.resources,
            ChangeEvent::Updated(uri) => self.updates.iter().any(|wanted| wanted == uri),
        }
    }

    /// Everything that was asked for, for a listener that missed something.
    fn all(&self) -> Vec<ChangeEvent> {
        let lists = [ChangeEvent::Tools, ChangeEvent::Prompts, ChangeEvent::Resources];
        let lists = lists.into_iter().filter(|change| self.wants(change));
        lists.chain(self.updates.iter().cloned().map(ChangeEvent::Updated)).collect()
    }
}

impl Listener {
    /// Waits until every upstream has said whether it tells of what is wanted of it, but not for long: who has not
    /// answered by then is left out, as an acknowledgement cannot be amended.
    async fn ask(&mut self) {
        let deadline = Instant::now() + ANSWERED;
        for (uri, watch) in std::mem::take(&mut self.watches) {
            let granted = tokio::select! {
                () = self.replier.abandoned() => return,
                () = self.closing.cancelled() => return,
                granted = tokio::time::timeout_at(deadline, watch.is_granted()) => granted.unwrap_or(false),
            };
            if granted {
                self.wishes.updates.push(Arc::clone(&uri));
                self.watches.push((uri, watch));
            }
        }
    }

    /// Only this task waits for its reader; who reads too slowly is told of everything at once.
    async fn run(mut self) {
        self.ask().await;
        let acknowledgement = to_client::listen_ack(&self.subscription, self.wishes.to_raw());
        if !self.replier.notice(acknowledgement).await {
            return;
        }
        loop {
            let changes = tokio::select! {
                () = self.replier.abandoned() => return,
                () = self.closing.cancelled() => break,
                change = self.changes.recv() => match change {
                    Ok(change) if self.wishes.wants(&change) => vec![change],
                    Ok(_) => continue,
                    Err(broadcast::error::RecvError::Lagged(_)) => self.wishes.all(),
                    Err(broadcast::error::RecvError::Closed) => break,
                },
            };
            for change in changes {
                let mut notification = change.notification();
                notification.params = Some(to_client::subscribed(notification.params.as_ref(), &self.subscription));
                if !self.replier.notice(notification).await {
                    return;
                }
            }
        }
        self.replier.end(Answer::result(to_client::listen_result(&self.subscription))).await;
    }
}
