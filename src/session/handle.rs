//! [`ClientSink`] for sessions: messages from the gateway that belong to no call; and who the owner is by now.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::outbox::StreamTarget;
use super::{NO_CALL_SERIAL, Session, SubscriptionHold};
use crate::call::{ClientSink, DropGuard, GatewaySlot, ServerRequest};
use crate::dialect::to_client;
use crate::identity::Identity;
use crate::protocol::{Level, Notification, NotificationMethod};
use crate::recorder::Mark;

impl Session {
    /// The owner, as the latest credential describes it.
    pub fn latest_identity(&self) -> Arc<Identity> {
        self.latest_identity.load_full().unwrap_or_else(|| Arc::clone(&self.identity))
    }

    /// Takes what a new credential of the owner says; returns what the previous one said, if that is something else.
    pub fn replace_identity(&self, identity: &Arc<Identity>) -> Option<Arc<Identity>> {
        let before = self.latest_identity();
        if Arc::ptr_eq(&before, identity) {
            return None;
        }
        self.latest_identity.store(Some(Arc::clone(identity)));
        (*before != **identity).then_some(before)
    }
}

impl ClientSink for Session {
    fn key(&self) -> u128 {
        self.id.key()
    }

    fn log_tag(&self) -> Option<String> {
        Some(self.tag().to_string())
    }

    fn level(&self) -> Option<Level> {
        self.lock().log_level
    }

    fn notify(&self, notification: Notification) {
        let notification = match self.client.get() {
            Some(client) => to_client::convert_notification(notification, client.revision),
            None => notification,
        };
        // Log notifications are dropped for a lagging reader, so that a full queue does not close the session.
        if notification.method == NotificationMethod::Message && self.lock().outbox.is_behind(StreamTarget::Listening) {
            return;
        }
        self.send(StreamTarget::Listening, notification.encode());
        self.record_private_list(&notification.method);
    }

    fn send_request(self: Arc<Self>, request: ServerRequest) {
        let stream = {
            let state = self.lock();
            if state.closed {
                return; // dropping the request fails it at the upstream
            }
            if state.server_requests.len() >= self.settings().max_server_requests {
                return request.refuse_over_limit(self.settings().max_server_requests);
            }
            state.outbox.server_request_target()
        };
        let message = self.register_server_request(stream, (NO_CALL_SERIAL, Mark::NONE), request);
        self.send(stream, message);
    }

    fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    fn add_subscription(&self, uri: &str, guard: DropGuard) {
        self.update(|state| {
            state.forget_pending_subscription(uri);
            if !state.closed {
                state.subscriptions.insert(uri.into(), SubscriptionHold(guard));
            }
        });
    }

    fn remove_subscription(&self, uri: &str) {
        self.update(|state| {
            state.forget_pending_subscription(uri);
            state.subscriptions.remove(uri)
        });
    }

    fn is_subscribed(&self, uri: &str) -> bool {
        self.lock().subscriptions.contains_key(uri)
    }

    fn gateway_slot(&self) -> &GatewaySlot {
        &self.gateway_slot
    }

    fn saved_upstream_session(&self, upstream: &str) -> Option<Bytes> {
        self.lock().persistence.as_ref().and_then(|persistence| persistence.upstream_sessions.get(upstream).cloned())
    }

    fn save_upstream_session(&self, upstream: &str, saved: Option<Bytes>) {
        self.update(|state| {
            if let Some(persistence) = &mut state.persistence {
                match saved {
                    Some(saved) => drop(persistence.upstream_sessions.insert(upstream.to_owned(), saved)),
                    None => drop(persistence.upstream_sessions.remove(upstream)),
                }
                self.upstream_session_saves.fetch_add(1, Ordering::AcqRel);
            }
        });
    }

    fn moved_to_other_node(&self) -> bool {
        self.has_moved()
    }
}
