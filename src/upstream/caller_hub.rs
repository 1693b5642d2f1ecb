//! A caller without a session, as its lease sees it: what the lease announces goes to the listeners of the same caller.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::call::{ChangeEvent, ClientSink, DropGuard, GatewaySlot, ServerRequest};
use crate::protocol::{Level, Notification, NotificationMethod, Raw};

/// The listeners of one caller at one leg. Lives as long as one of them or the caller's lease.
#[derive(Default)]
pub struct CallerHub {
    listeners: Mutex<Vec<Weak<HubCallback>>>,
    /// Listeners per subscribed resource, by the server's own URI.
    subscribers: Mutex<BTreeMap<Box<str>, usize>>,
    slot: GatewaySlot,
    never: CancellationToken,
}

/// Where one listener takes changes.
type HubCallback = dyn Fn(ChangeEvent) + Send + Sync;

/// Keeps a listener at its hub; dropping it ends that.
pub struct HubListener {
    _hub: Arc<CallerHub>,
    _listener: Arc<HubCallback>,
}

impl CallerHub {
    /// Adds a listener, which must not block.
    pub(super) fn listen(self: &Arc<Self>, listener: Arc<HubCallback>) -> HubListener {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(&listener));
        drop(listeners);
        HubListener { _hub: Arc::clone(self), _listener: listener }
    }

    pub(super) fn has_listeners(&self) -> bool {
        self.listeners.lock().iter().any(|listener| listener.strong_count() > 0)
    }

    /// Counts one more subscriber of a resource.
    pub(super) fn add_subscriber(&self, uri: &str) {
        *self.subscribers.lock().entry(uri.into()).or_default() += 1;
    }

    /// Counts one subscriber less; true when none is left.
    pub(super) fn remove_subscriber(&self, uri: &str) -> bool {
        let mut subscribers = self.subscribers.lock();
        let Some(count) = subscribers.get_mut(uri) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            subscribers.remove(uri);
        }
        is_last
    }

    fn publish(&self, change: &ChangeEvent) {
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        for listener in listeners {
            listener(change.clone());
        }
    }
}

impl ClientSink for CallerHub {
    fn key(&self) -> u128 {
        0
    }

    fn level(&self) -> Option<Level> {
        None
    }

    /// Log messages and progress outside of calls have nowhere to go.
    fn notify(&self, notification: Notification) {
        let uri = notification.params.as_ref().and_then(|params| params.get("uri"));
        match notification.method {
            NotificationMethod::ToolsChanged => self.publish(&ChangeEvent::Tools),
            NotificationMethod::PromptsChanged => self.publish(&ChangeEvent::Prompts),
            NotificationMethod::ResourcesChanged => self.publish(&ChangeEvent::Resources),
            NotificationMethod::ResourceUpdated => {
                if let Some(uri) = uri.as_ref().and_then(Raw::text) {
                    self.publish(&ChangeEvent::ResourceUpdated(uri.as_ref().into()));
                }
            }
            _ => {}
        }
    }

    fn send_request(self: Arc<Self>, question: ServerRequest) {
        question.abandon();
    }

    fn ended(&self) -> &CancellationToken {
        &self.never
    }

    fn add_subscription(&self, _: &str, _: DropGuard) {}

    fn remove_subscription(&self, _: &str) {}

    fn is_subscribed(&self, uri: &str) -> bool {
        self.subscribers.lock().contains_key(uri)
    }

    fn gateway_slot(&self) -> &GatewaySlot {
        &self.slot
    }
}

impl fmt::Debug for CallerHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerHub").field("subscribers", &self.subscribers).finish_non_exhaustive()
    }
}

impl fmt::Debug for HubListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubListener").finish_non_exhaustive()
    }
}
