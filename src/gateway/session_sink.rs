//! The sink that an upstream uses for one session: what belongs to no call reaches the client by the names that it knows.

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::forward::passes_log_level;
use super::group::Group;
use super::name_mapping::NameMapping;
use super::server_request_rules::admit_server_request;
use super::task_mapping::TaskMapping;
use crate::call::{ClientInfo, ClientSink, DropGuard, GatewaySlot, ServerRequest};
use crate::identity::Identity;
use crate::protocol::{Level, Notification, NotificationMethod, Raw};
use crate::upstream::Leg;

/// The sink that an upstream uses for one session: maps names, then delivers to the session.
#[derive(Debug)]
pub(super) struct SessionSink {
    pub(super) group: Arc<Group>,
    pub(super) leg: Arc<Leg>,
    pub(super) client: Arc<ClientInfo>,
    pub(super) identity: Arc<Identity>,
    pub(super) sink: Arc<dyn ClientSink>,
}

impl SessionSink {
    fn rename(&self) -> NameMapping {
        self.group.name_mapping(self.leg.name()).unwrap_or_default()
    }

    /// The tasks that the client has at the upstream.
    fn tasks(&self) -> TaskMapping<'_> {
        TaskMapping { group: &self.group, upstream: self.leg.name(), caller: &self.identity.caller_id }
    }

    /// Whether the resource of a notification exists for the client. The server may still tell of one that rules hide
    /// since.
    fn shows_resource(&self, notification: &Notification) -> bool {
        let uri = notification.params.as_ref().and_then(|params| params.get("uri"));
        let uri = uri.as_ref().and_then(Raw::text);
        uri.is_none_or(|uri| self.group.shows_resource(self.client.revision, &self.identity, &uri))
    }
}

impl ClientSink for SessionSink {
    fn key(&self) -> u128 {
        self.sink.key()
    }

    fn log_tag(&self) -> Option<String> {
        self.sink.log_tag()
    }

    fn level(&self) -> Option<Level> {
        self.sink.level()
    }

    fn notify(&self, notification: Notification) {
        if notification.method == NotificationMethod::Message
            && !passes_log_level(&notification, self.sink.level(), true)
        {
            return;
        }
        let Some(notification) = self.tasks().map_notification(notification) else { return };
        let renamed = self.rename().map_notification(notification.clone());
        // A client subscribed under the upstream's own URI is notified under that URI.
        let follows = |told: &Notification| {
            let uri = told.params.as_ref().and_then(|params| params.get("uri"));
            uri.as_ref().and_then(Raw::text).is_some_and(|uri| self.sink.is_subscribed(&uri))
        };
        let updated = notification.method == NotificationMethod::ResourceUpdated;
        if updated && self.group.has_rules() {
            let is_subscribed = follows(&notification) || follows(&renamed);
            if !is_subscribed || !self.shows_resource(&renamed) {
                return;
            }
        }
        let as_it_is = updated && follows(&notification) && !follows(&renamed);
        self.sink.notify(if as_it_is { notification } else { renamed });
    }

    fn send_request(self: Arc<Self>, request: ServerRequest) {
        if let Some(request) = admit_server_request(request, &self.leg, &self.client) {
            let request = self.rename().map_server_request(request);
            Arc::clone(&self.sink).send_request(self.tasks().map_server_request(request));
        }
    }

    fn ended(&self) -> &CancellationToken {
        self.sink.ended()
    }

    fn add_subscription(&self, uri: &str, kept: DropGuard) {
        self.sink.add_subscription(uri, kept);
    }

    fn remove_subscription(&self, uri: &str) {
        self.sink.remove_subscription(uri);
    }

    fn is_subscribed(&self, uri: &str) -> bool {
        self.sink.is_subscribed(uri)
    }

    fn gateway_slot(&self) -> &GatewaySlot {
        self.sink.gateway_slot()
    }

    fn saved_upstream_session(&self, upstream: &str) -> Option<Bytes> {
        self.sink.saved_upstream_session(upstream)
    }

    fn save_upstream_session(&self, upstream: &str, what: Option<Bytes>) {
        self.sink.save_upstream_session(upstream, what);
    }

    fn moved_to_other_node(&self) -> bool {
        self.sink.moved_to_other_node()
    }
}
