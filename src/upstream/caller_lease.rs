//! The main lease of a caller without a session: its listeners and subscriptions use the lease that its calls use.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::caller_hub::{CallerHub, HubListener};
use super::lease_key::AcceptedRequests;
use super::leg::Leg;
use super::spec::{ConnectionMode, SpecKind};
use crate::call::{Call, ChangeEvent, ClientSink};
use crate::protocol::{Method, Raw};

/// A resource subscription on the lease of a caller; dropping it unsubscribes.
#[derive(Debug)]
pub struct CallerSubscription {
    leg: Arc<Leg>,
    call: Call,
    uri: Box<str>,
    hub: Arc<CallerHub>,
}

/// How long a server may take to confirm a subscription.
pub const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

impl Leg {
    /// Whether each caller has a lease of its own, as far as the server's revision is known.
    pub fn has_caller_leases(&self) -> bool {
        let keeps_sessions = self.state().revision.is_some_and(|revision| revision.has_sessions());
        matches!(self.spec.kind, SpecKind::Target(_))
            && self.spec.connection_mode == ConnectionMode::PerClient
            && keeps_sessions
    }

    /// The server requests that tell the leases of one principal apart.
    pub fn accepted_requests(&self, call: &Call) -> AcceptedRequests {
        match self.spec.allow_server_requests {
            true => AcceptedRequests::of(&call.client.capabilities),
            false => AcceptedRequests::NONE,
        }
    }

    /// Hands the caller's listener what its lease announces, also if that is opened later.
    pub fn listen_on_caller_lease(&self, call: &Call, listener: Arc<dyn Fn(ChangeEvent) + Send + Sync>) -> HubListener {
        self.leases.hub(&self.lease_key(call)).listen(listener)
    }

    /// Subscribes to a resource on the caller's lease; `None` when the server does not grant it.
    pub async fn subscribe_on_caller_lease(self: &Arc<Self>, call: &Call, uri: &str) -> Option<CallerSubscription> {
        let key = self.lease_key(call);
        let hub = self.leases.hub(&key);
        let is_subscribed = || self.leases.main(&key).is_some_and(|lease| lease.lock().subscriptions.contains(uri));
        let subscription =
            |call: Call| CallerSubscription { leg: Arc::clone(self), call, uri: uri.into(), hub: Arc::clone(&hub) };
        if hub.is_subscribed(uri) && is_subscribed() {
            hub.add_subscriber(uri);
            return Some(subscription(call.clone()));
        }
        // A log level would ask for a connection beside the lease.
        let call = Call { level: None, limits: None, ..call.clone() };
        let lease = self.acquire_lease(&call, || None).await.ok()?;
        let request = lease.connection().request(Method::Subscribe, Some(Raw::of(&json!({ "uri": uri }))));
        tokio::time::timeout(SUBSCRIBE_TIMEOUT, request).await.ok()?.ok()?;
        lease.record_subscription(uri, true);
        hub.add_subscriber(uri);
        Some(subscription(call))
    }
}

impl Drop for CallerSubscription {
    fn drop(&mut self) {
        if !self.hub.remove_subscriber(&self.uri) {
            return;
        }
        let Some(lease) = self.leg.leases.main(&self.leg.lease_key(&self.call)) else { return };
        lease.lock().subscriptions.remove(&self.uri);
        let Some(connection) = lease.open_connection() else { return };
        let params = Raw::of(&json!({ "uri": self.uri }));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { connection.request(Method::Unsubscribe, Some(params)).await });
        }
    }
}
