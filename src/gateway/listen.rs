//! `subscriptions/listen`: a call that stays open and tells of changes.

use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::Group;
use crate::dialect::lift::method_not_found;
use crate::dialect::lower;
use crate::exchange::{Answer, Call, Change, Replier, Replies};
use crate::protocol::method::Family;
use crate::protocol::{ErrorObject, Notification, Raw, code};

/// Which changes one listener hears of.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wishes {
    tools: bool,
    prompts: bool,
    resources: bool,
    updates: Vec<Arc<str>>,
}

/// One listener at work.
struct Listener {
    wishes: Wishes,
    subscription: Raw,
    changes: broadcast::Receiver<Change>,
    closing: CancellationToken,
    replier: Replier,
}

impl Group {
    pub(super) fn listen(&self, call: &Call) -> Replies {
        if !self.offers_updates() && !self.tells_of_lists() {
            return method_not_found(&call.method).into();
        }
        let asked = match Wishes::read(call.params.as_ref()) {
            Ok(asked) => asked,
            Err(error) => return error.into(),
        };
        // From here on nothing is missed: the acknowledgement goes out after this.
        let changes = self.changes();
        let wishes = asked.granted(self);
        let subscription = call.id.to_raw();
        let acknowledgement = lower::acknowledgement(&subscription, wishes.to_raw());
        let (replier, replies) = Replies::channel();
        let closing = self.closing.clone();
        let listener = Listener { wishes, subscription, changes, closing, replier };
        tokio::spawn(listener.run(acknowledgement));
        replies
    }

    /// Whether any list of the group may change while it is served.
    fn tells_of_lists(&self) -> bool {
        [Family::Tools, Family::Prompts, Family::Resources].into_iter().any(|family| self.lists_change(family))
    }

    fn lists_change(&self, family: Family) -> bool {
        let path = [family.as_str(), "listChanged"];
        self.server.capabilities.at(&path).is_some_and(|raw| raw.as_bytes() == b"true")
    }
}

impl Wishes {
    fn read(params: Option<&Raw>) -> Result<Self, ErrorObject> {
        let invalid = |why: &str| ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"));
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

    /// What of it the group can do.
    fn granted(self, group: &Group) -> Self {
        Self {
            tools: self.tools && group.lists_change(Family::Tools),
            prompts: self.prompts && group.lists_change(Family::Prompts),
            resources: self.resources && group.lists_change(Family::Resources),
            updates: if group.offers_updates() { self.updates } else { Vec::new() },
        }
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

    fn wants(&self, change: &Change) -> bool {
        match change {
            Change::Tools => self.tools,
            Change::Prompts => self.prompts,
            Change::Resources => self.resources,
            Change::Updated(uri) => self.updates.iter().any(|wanted| wanted == uri),
        }
    }

    /// Everything that was asked for, for a listener that missed something.
    fn all(&self) -> Vec<Change> {
        let lists = [Change::Tools, Change::Prompts, Change::Resources];
        let lists = lists.into_iter().filter(|change| self.wants(change));
        lists.chain(self.updates.iter().cloned().map(Change::Updated)).collect()
    }
}

impl Listener {
    /// Only this task waits for its reader; who reads too slowly is told of everything at once.
    async fn run(mut self, acknowledgement: Notification) {
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
                notification.params = Some(lower::subscribed(notification.params.as_ref(), &self.subscription));
                if !self.replier.notice(notification).await {
                    return;
                }
            }
        }
        self.replier.end(Answer::result(lower::farewell(&self.subscription))).await;
    }
}
