//! The limits that are for one caller, found once per identity and set of limits.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::buckets::BucketId;
use super::rule::{LimitRule, LimitScope};
use super::{ActiveLimit, LimitedRequest};
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
        for scope in limit.rule.per.iter().filter(|scope| !needs_request(**scope, identity)) {
            write_from_identity(&limit.rule, *scope, identity, &mut |part| put(&mut text, part));
        }
        let needs_request = limit.rule.per.iter().any(|scope| needs_request(*scope, identity));
        Self { limit: Arc::clone(limit), owner: keys.digest(&text), needs_request }
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
            let identity = &asked.caller.identity;
            for scope in self.limit.rule.per.iter().filter(|scope| needs_request(**scope, identity)) {
                write_from_request(*scope, asked, &mut |part| put(text, part));
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

/// Hands out the parts that tell whose bucket a request takes from.
pub(super) fn write_owner(rule: &LimitRule, asked: &LimitedRequest<'_>, write: &mut impl FnMut(&[u8])) {
    let identity = &asked.caller.identity;
    for scope in &rule.per {
        match needs_request(*scope, identity) {
            true => write_from_request(*scope, asked, write),
            false => write_from_identity(rule, *scope, identity, write),
        }
    }
}

fn write_from_identity(rule: &LimitRule, scope: LimitScope, identity: &Identity, write: &mut impl FnMut(&[u8])) {
    match scope {
        // Another client id is no further share: many issuers let clients register themselves.
        LimitScope::Caller => write(identity.principal.as_bytes()),
        LimitScope::Client => write(identity.client_id.as_deref().unwrap_or_default().as_bytes()),
        LimitScope::Role => write(rule.counted_role(identity).as_bytes()),
        LimitScope::Group | LimitScope::Server | LimitScope::Tool => {}
    }
}

fn write_from_request(scope: LimitScope, asked: &LimitedRequest<'_>, write: &mut impl FnMut(&[u8])) {
    match (scope, &asked.target) {
        (LimitScope::Caller, _) => match QuotaKey::of(asked.caller) {
            Some(QuotaKey::Address(IpAddr::V4(address))) => write(&address.octets()),
            Some(QuotaKey::Address(IpAddr::V6(address))) => write(&address.octets()),
            Some(QuotaKey::Caller(_)) | None => write(asked.caller.identity.principal.as_bytes()),
        },
        (LimitScope::Group, _) => write(asked.group.as_bytes()),
        (LimitScope::Server, Some(target)) => write(target.upstream.as_bytes()),
        (LimitScope::Tool, Some(target)) => {
            write(&[target.kind as u8]);
            write(target.upstream.as_bytes());
            write(target.name.as_bytes());
        }
        (LimitScope::Client | LimitScope::Role | LimitScope::Server | LimitScope::Tool, _) => {}
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
