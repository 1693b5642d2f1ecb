//! A session as the rest of the gateway knows it: somebody who can be reached outside of calls.

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::outbox::StreamTarget;
use super::{NO_CALL, QUESTIONS, Session, SubscriptionHold};
use crate::call::{ClientSink, DropGuard, GatewaySlot, ServerRequest};
use crate::dialect::to_client;
use crate::protocol::{Level, Notice, Notification};

impl ClientSink for Session {
    fn key(&self) -> u128 {
        self.id.key()
    }

    fn level(&self) -> Option<Level> {
        self.lock().level
    }

    fn notify(&self, notification: Notification) {
        let notification = match self.client.get() {
            Some(client) => to_client::notification(notification, client.revision),
            None => notification,
        };
        // A log that nobody reads must not end the session.
        if notification.notice == Notice::Message && self.lock().outbox.is_behind(StreamTarget::Listening) {
            return;
        }
        self.send(StreamTarget::Listening, notification.encode());
        self.knows_own_list(&notification.notice);
    }

    fn ask(self: Arc<Self>, question: ServerRequest) {
        let stream = {
            let live = self.lock();
            if live.closed || live.server_requests.len() >= QUESTIONS {
                return; // dropping the question says that no answer will come
            }
            live.outbox.best_for_questions()
        };
        let message = self.enter(stream, NO_CALL, question);
        self.send(stream, message);
    }

    fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    fn subscribed(&self, uri: &str, kept: DropGuard) {
        self.change(|live| {
            live.forget_pending_subscription(uri);
            if !live.closed {
                live.subscriptions.insert(uri.into(), SubscriptionHold(kept));
            }
        });
    }

    fn unsubscribed(&self, uri: &str) {
        self.change(|live| {
            live.forget_pending_subscription(uri);
            live.subscriptions.remove(uri)
        });
    }

    fn follows(&self, uri: &str) -> bool {
        self.lock().subscriptions.contains_key(uri)
    }

    fn shelf(&self) -> &GatewaySlot {
        &self.shelf
    }

    fn remembered(&self, upstream: &str) -> Option<Bytes> {
        self.lock().persistence.as_ref().and_then(|keeping| keeping.upstreams.get(upstream).cloned())
    }

    fn remember(&self, upstream: &str, what: Option<Bytes>) {
        self.change(|live| {
            if let Some(keeping) = &mut live.persistence {
                match what {
                    Some(what) => drop(keeping.upstreams.insert(upstream.to_owned(), what)),
                    None => drop(keeping.upstreams.remove(upstream)),
                }
            }
        });
    }

    fn moved_to_other_node(&self) -> bool {
        self.has_moved()
    }
}
