//! A quota of each caller: of each caller id, or of each address where nobody is known.

use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use foldhash::HashMap;
use foldhash::fast::FixedState;
use parking_lot::Mutex;

use super::quota::Quota;
use crate::call::Caller;
use crate::failure::{QuotaReached, QuotaScope};
use crate::identity::CallerId;

/// Whom a share is counted for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum QuotaKey {
    /// An authenticated caller.
    Caller(CallerId),
    /// An address: of IPv6 the network of 64 bits, which one host can use as it likes.
    Address(IpAddr),
}

/// A bound on a resource for each caller.
#[derive(Debug)]
pub struct CallerQuota {
    /// Limit and refusals; its use is that of all callers together.
    quota: Quota,
    shards: [Mutex<HashMap<QuotaKey, usize>>; KEY_SHARDS],
}

/// One unit of a caller's quota, given back on drop.
#[derive(Debug)]
pub struct CallerPermit {
    quota: Arc<CallerQuota>,
    key: QuotaKey,
}

/// Maps by the hash of the key, so that callers seldom wait for one another.
const KEY_SHARDS: usize = 16;

impl QuotaKey {
    /// The key of a caller; `None` on stdio, where there is one client only.
    pub fn of(caller: &Caller) -> Option<Self> {
        match caller.peer {
            Some(peer) if caller.identity.is_anonymous() => Some(Self::address(peer)),
            Some(_) => Some(Self::Caller(Arc::clone(caller.id()))),
            None => None,
        }
    }

    /// The key of an address.
    pub fn address(peer: SocketAddr) -> Self {
        Self::Address(match peer.ip().to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        })
    }
}

impl CallerQuota {
    pub(super) fn new(resource: &'static str, limit: usize) -> Self {
        Self { quota: Quota::new(QuotaScope::Caller, resource, limit), shards: Default::default() }
    }

    /// Takes one unit for a caller.
    ///
    /// # Errors
    /// When the caller has as many as it may have. The refusal is counted.
    pub fn acquire(self: &Arc<Self>, key: QuotaKey) -> Result<CallerPermit, QuotaReached> {
        let mut counts = self.shard(&key).lock();
        let count = counts.entry(key.clone()).or_default();
        if *count >= self.quota.limit() {
            if *count == 0 {
                counts.remove(&key);
            }
            return Err(self.quota.refuse());
        }
        *count += 1;
        drop(counts);
        Ok(CallerPermit { quota: Arc::clone(self), key })
    }

    /// How much the caller with the most has.
    pub fn highest_use(&self) -> usize {
        self.shards.iter().filter_map(|shard| shard.lock().values().max().copied()).max().unwrap_or(0)
    }

    /// Limit and refusals.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    fn shard(&self, key: &QuotaKey) -> &Mutex<HashMap<QuotaKey, usize>> {
        let hash = FixedState::default().hash_one(key);
        &self.shards[usize::try_from(hash % KEY_SHARDS as u64).unwrap_or(0)]
    }
}

impl Drop for CallerPermit {
    fn drop(&mut self) {
        let mut counts = self.quota.shard(&self.key).lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_a_limit_of_its_own_and_leaves_nothing_behind() {
        let quota = Arc::new(CallerQuota::new("sessions", 2));
        let ann = || QuotaKey::Caller("ann".into());
        let held: Vec<_> = (0..2).map(|_| quota.acquire(ann()).unwrap()).collect();
        assert_eq!(quota.acquire(ann()).unwrap_err(), QuotaReached { scope: QuotaScope::Caller, resource: "sessions" });
        let other = quota.acquire(QuotaKey::Caller("bob".into())).unwrap();
        assert_eq!((quota.highest_use(), quota.quota().refusals()), (2, 1));
        drop((held, other));
        assert_eq!(quota.highest_use(), 0);
        assert!(quota.shards.iter().all(|shard| shard.lock().is_empty()));
        quota.quota().set_limit(0);
        assert!(quota.acquire(ann()).is_err());
        assert!(quota.shards.iter().all(|shard| shard.lock().is_empty()));
    }

    #[test]
    fn a_host_cannot_multiply_itself_with_ipv6_addresses() {
        let key = |peer: &str| QuotaKey::address(peer.parse().unwrap());
        assert_eq!(key("[2001:db8::1]:1"), key("[2001:db8::ffff:2]:9"));
        assert_ne!(key("[2001:db8::1]:1"), key("[2001:db8:0:1::1]:1"));
        assert_eq!(key("[::ffff:10.0.0.1]:1"), key("10.0.0.1:2"));
        assert_ne!(key("10.0.0.1:1"), key("10.0.0.2:1"));
    }
}
