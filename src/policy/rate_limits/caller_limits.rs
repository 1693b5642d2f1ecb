//! The limits that are for one caller, found once per identity and set of limits.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::buckets::BucketId;
use super::rule::LimitScope;
use super::{ActiveLimit, LimitedRequest};
use crate::call::Caller;
use crate::identity::Identity;
use crate::policy::caller_quota::QuotaKey;

/// All limits between two changes of the rules.
#[derive(Debug, Default)]
pub(super) struct LimitSet {
    /// Unique number of this set.
    number: u64,
    pub(super) limits: Vec<Arc<ActiveLimit>>,
    /// Whether a limit counts by windows of the calendar.
    pub(super) has_quotas: bool,
}

/// The limits whose patterns match one caller.
#[derive(Debug)]
pub(super) struct CallerLimits {
    /// The set that they are of.
    set: u64,
    pub(super) matched: Box<[CallerLimit]>,
}

/// A limit that is for a caller.
#[derive(Debug)]
pub(super) struct CallerLimit {
    pub(super) limit: Arc<ActiveLimit>,
    /// Digest of the limit and of what the identity says about whose bucket it is.
    owner: BucketId,
    /// Whether the request has to say more.
    needs_request: bool,
}

/// Keys of the digests that buckets are found by. Both are secret, so that nobody can share the bucket of another.
#[derive(Debug, Default)]
pub(super) struct DigestKeys([RandomState; 2]);

static NEXT_SET: AtomicU64 = AtomicU64::new(1);

impl LimitSet {
    pub(super) fn new(limits: Vec<Arc<ActiveLimit>>) -> Self {
        let has_quotas = limits.iter().any(|limit| limit.rule.quota.is_some());
        Self { number: NEXT_SET.fetch_add(1, Ordering::Relaxed), limits, has_quotas }
    }

    /// The limits that are for a caller.
    pub(super) fn of(&self, identity: &Identity, keys: &DigestKeys) -> Arc<CallerLimits> {
        if let Some(known) = identity.limits.get::<CallerLimits>().filter(|known| known.set == self.number) {
            return known;
        }
        let matched = self.limits.iter().filter(|limit| limit.rule.is_for_caller(identity));
        let matched = matched.map(|limit| CallerLimit::new(limit, identity, keys)).collect();
        let found = Arc::new(CallerLimits { set: self.number, matched });
        identity.limits.set(Arc::clone(&found));
        found
    }
}

impl CallerLimit {
    fn new(limit: &Arc<ActiveLimit>, identity: &Identity, keys: &DigestKeys) -> Self {
        let mut text = limit.number.to_be_bytes().to_vec();
        let (from_request, from_identity): (Vec<&LimitScope>, Vec<&LimitScope>) =
            limit.rule.per.iter().partition(|scope| needs_request(**scope, identity));
        for scope in from_identity {
            match scope {
                LimitScope::Caller => put(&mut text, identity.principal.as_bytes()),
                LimitScope::Client => put(&mut text, identity.client_id.as_deref().unwrap_or_default().as_bytes()),
                LimitScope::Role => put(&mut text, limit.rule.counted_role(identity).as_bytes()),
                LimitScope::Group | LimitScope::Server | LimitScope::Tool => {}
            }
        }
        Self { limit: Arc::clone(limit), owner: keys.digest(&text), needs_request: !from_request.is_empty() }
    }

    /// The bucket of a request of the caller.
    pub(super) fn bucket_id(&self, asked: &LimitedRequest<'_>, keys: &DigestKeys) -> BucketId {
        thread_local! {
            /// Reused, so that nothing is allocated.
            static TEXT: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
        }
        if !self.needs_request {
            return self.owner;
        }
        TEXT.with_borrow_mut(|text| {
            text.clear();
            text.extend_from_slice(&self.owner.to_ne_bytes());
            for scope in &self.limit.rule.per {
                match (scope, &asked.target) {
                    (LimitScope::Caller, _) => put_address(text, asked.caller),
                    (LimitScope::Group, _) => put(text, asked.group.as_bytes()),
                    (LimitScope::Server, Some(target)) => put(text, target.upstream.as_bytes()),
                    (LimitScope::Tool, Some(target)) => {
                        text.push(target.kind as u8);
                        put(text, target.upstream.as_bytes());
                        put(text, target.name.as_bytes());
                    }
                    (LimitScope::Client | LimitScope::Role | LimitScope::Server | LimitScope::Tool, _) => {}
                }
            }
            keys.digest(text)
        })
    }
}

/// Whether a request has to say which bucket it is, because the identity does not.
fn needs_request(scope: LimitScope, identity: &Identity) -> bool {
    match scope {
        LimitScope::Client | LimitScope::Role => false,
        // Where nobody is known, each address counts.
        LimitScope::Caller => identity.is_anonymous(),
        LimitScope::Group | LimitScope::Server | LimitScope::Tool => true,
    }
}

/// Adds the address of a caller that nobody knows.
fn put_address(text: &mut Vec<u8>, caller: &Caller) {
    match QuotaKey::of(caller) {
        Some(QuotaKey::Address(IpAddr::V4(address))) => put(text, &address.octets()),
        Some(QuotaKey::Address(IpAddr::V6(address))) => put(text, &address.octets()),
        Some(QuotaKey::Caller(_)) | None => {}
    }
}

/// Adds a part, so that no two lists of parts have the same text.
fn put(text: &mut Vec<u8>, part: &[u8]) {
    text.extend_from_slice(&part.len().to_ne_bytes());
    text.extend_from_slice(part);
}

impl DigestKeys {
    fn digest(&self, text: &[u8]) -> BucketId {
        let [high, low] = self.0.each_ref().map(|key| {
            let mut hasher = key.build_hasher();
            hasher.write(text);
            u128::from(hasher.finish())
        });
        high << 64 | low
    }
}
