//! Every quota of a gateway by name, with its limit, its use and its refusals.

use std::sync::Arc;

use super::caller_quota::CallerQuota;
use super::quota::Quota;
use crate::failure::QuotaScope;

/// Declares the quotas once: field, scope and noun of each, and its default limit.
macro_rules! quotas {
    (
        in_all { $($(#[doc = $doc:literal])+ $name:ident: $resource:literal, $limit:expr;)+ }
        per_caller { $($(#[doc = $caller_doc:literal])+ $caller_name:ident: $caller_resource:literal, $caller_limit:expr;)+ }
    ) => {
        /// The limits of all quotas.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct QuotaLimits {
            $($(#[doc = $doc])+ pub $name: usize,)+
            $($(#[doc = $caller_doc])+ pub $caller_name: usize,)+
        }

        impl Default for QuotaLimits {
            fn default() -> Self {
                Self { $($name: $limit,)+ $($caller_name: $caller_limit,)+ }
            }
        }

        /// All quotas of a gateway.
        #[derive(Debug)]
        pub struct Quotas {
            $($(#[doc = $doc])+ pub $name: Arc<Quota>,)+
            $($(#[doc = $caller_doc])+ pub $caller_name: Arc<CallerQuota>,)+
        }

        impl Quotas {
            /// Quotas with nothing in use.
            pub fn new(limits: &QuotaLimits) -> Self {
                Self {
                    $($name: Arc::new(Quota::new(QuotaScope::Gateway, $resource, limits.$name)),)+
                    $($caller_name: Arc::new(CallerQuota::new($caller_resource, limits.$caller_name)),)+
                }
            }

            /// Applies other limits to what is taken from now on.
            pub fn set_limits(&self, limits: &QuotaLimits) {
                $(self.$name.set_limit(limits.$name);)+
                $(self.$caller_name.quota().set_limit(limits.$caller_name);)+
            }

            /// The figures of every quota, by name. The use of a quota per caller is that of the caller with the most.
            pub fn usage(&self) -> Vec<QuotaUsage> {
                vec![
                    $(QuotaUsage::new(stringify!($name), &self.$name, self.$name.used()),)+
                    $(QuotaUsage::new(
                        stringify!($caller_name),
                        self.$caller_name.quota(),
                        self.$caller_name.highest_use(),
                    ),)+
                ]
            }
        }
    };
}

quotas! {
    in_all {
        /// Client connections.
        connections: "connections", 20_000;
        /// Sessions.
        sessions: "sessions", 100_000;
        /// Open SSE streams.
        streams: "open streams", 50_000;
        /// Calls in flight.
        calls: "calls in flight", 20_000;
        /// `subscriptions/listen` calls.
        listens: "listening streams", 20_000;
        /// Calls that wait for input from their clients.
        parked_calls: "calls that wait for input", 10_000;
        /// Bytes of events retained for clients that resume.
        event_bytes: "bytes of retained events", 1 << 30;
        /// Bytes of request bodies that are being read or served.
        body_bytes: "bytes of requests in flight", 256 << 20;
    }
    per_caller {
        /// Client connections of one address.
        connections_per_address: "connections", 10_000;
        /// Sessions of one caller.
        sessions_per_caller: "sessions", 20_000;
        /// `subscriptions/listen` calls of one caller.
        listens_per_caller: "listening streams", 2_000;
        /// Parked calls of one caller.
        parked_calls_per_caller: "calls that wait for input", 1_000;
    }
}

/// The figures of one quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaUsage {
    /// Name of the quota.
    pub name: &'static str,
    /// How much is in use.
    pub used: usize,
    /// How much may be in use.
    pub limit: usize,
    /// How often more was refused.
    pub refusals: u64,
}

impl QuotaUsage {
    fn new(name: &'static str, quota: &Quota, used: usize) -> Self {
        Self { name, used, limit: quota.limit(), refusals: quota.refusals() }
    }
}

impl Default for Quotas {
    fn default() -> Self {
        Self::new(&QuotaLimits::default())
    }
}
