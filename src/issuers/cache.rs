//! Verified tokens, so that none is verified twice.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::SystemTime;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::claims::VerifiedToken;
use super::issuer::Issuer;
use super::jwk::VerifyingKey;
use super::secret_bytes::SecretBytes;

/// Parts with a lock each.
const SHARDS: usize = 16;

type TokenMap = std::collections::HashMap<u64, Arc<CachedToken>, RandomState>;

/// What is known of a token.
pub(super) struct CachedToken {
    bytes: SecretBytes,
    pub(super) issuer: Arc<Issuer>,
    pub(super) finding: TokenFinding,
}

/// What was found about a token.
pub(super) enum TokenFinding {
    /// This key verified it.
    Signed(VerifiedToken, Arc<VerifyingKey>),
    /// The issuer said at this time that it is active.
    Active(VerifiedToken, SystemTime),
    /// The issuer said at this time that it is not, or what it said of it is unusable.
    Inactive(SystemTime),
}

/// Tokens by a seeded hash; the bytes decide. Each shard has two generations: what is used moves to the younger one, and
/// when that is full the older one is dropped, with what was used least recently.
pub(super) struct TokenCache {
    shards: [Mutex<Generations>; SHARDS],
    hasher: RandomState,
    generation_capacity: usize,
}

#[derive(Default)]
struct Generations {
    young: TokenMap,
    old: TokenMap,
}

impl TokenCache {
    /// A cache of at most `capacity` tokens.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::default(),
            generation_capacity: (capacity / SHARDS / 2).max(1),
        }
    }

    fn place(&self, token: &[u8]) -> (u64, &Mutex<Generations>) {
        let hash = self.hasher.hash_one(token);
        // The map uses the low bits.
        let shard = usize::try_from(hash >> 32).unwrap_or_default() % SHARDS;
        (hash, &self.shards[shard])
    }

    /// What is known of a token.
    pub(super) fn get(&self, token: &str) -> Option<Arc<CachedToken>> {
        let (hash, shard) = self.place(token.as_bytes());
        let found = {
            let mut generations = shard.lock();
            match generations.young.get(&hash) {
                Some(found) => Arc::clone(found),
                None => {
                    let found = generations.old.remove(&hash)?;
                    generations.insert(hash, Arc::clone(&found), self.generation_capacity);
                    found
                }
            }
        };
        found.bytes.is(token.as_bytes()).then_some(found)
    }

    pub(super) fn insert(&self, token: Arc<CachedToken>) {
        let (hash, shard) = self.place(token.bytes.as_ref());
        shard.lock().insert(hash, token, self.generation_capacity);
    }

    pub(super) fn remove(&self, token: &CachedToken) {
        let (hash, shard) = self.place(token.bytes.as_ref());
        let mut generations = shard.lock();
        generations.young.remove(&hash);
        generations.old.remove(&hash);
    }

    /// Drops what `keep` does not want.
    pub(super) fn retain(&self, keep: impl Fn(&CachedToken) -> bool) {
        for shard in &self.shards {
            let mut generations = shard.lock();
            generations.young.retain(|_, token| keep(token));
            generations.old.retain(|_, token| keep(token));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

impl Generations {
    fn insert(&mut self, hash: u64, token: Arc<CachedToken>, capacity: usize) {
        self.old.remove(&hash);
        if self.young.len() >= capacity && !self.young.contains_key(&hash) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, token);
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

impl CachedToken {
    pub(super) fn new(token: &str, issuer: &Arc<Issuer>, finding: TokenFinding) -> Arc<Self> {
        Arc::new(Self { bytes: SecretBytes::new(token.as_bytes()), issuer: Arc::clone(issuer), finding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issuers::clock::IssuerClock;
    use crate::issuers::settings::IssuerSettings;

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let cache = TokenCache::new(320);
        let settings = IssuerSettings::new("corp", "https://login.example");
        let issuer = Issuer::new(settings, IssuerClock::default());
        let entry = |token: &str| CachedToken::new(token, &issuer, TokenFinding::Inactive(SystemTime::UNIX_EPOCH));
        cache.insert(entry("used"));
        for number in 0..10_000 {
            cache.insert(entry(&format!("token {number}")));
            assert!(cache.get("used").is_some(), "{number}");
        }
        assert!(cache.len() <= 320, "{}", cache.len());
        assert!(cache.get("token 9999").is_some() && cache.get("token 0").is_none());
        assert!(cache.get("useD").is_none() && cache.get("").is_none());
        let used = cache.get("used").unwrap();
        cache.remove(&used);
        assert!(cache.get("used").is_none());
        cache.retain(|_| false);
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn bytes_decide_where_hashes_are_equal() {
        let cache = TokenCache::new(32);
        let issuer = Issuer::new(IssuerSettings::new("corp", "https://login.example"), IssuerClock::default());
        let ann = CachedToken::new("ann", &issuer, TokenFinding::Inactive(SystemTime::UNIX_EPOCH));
        let (hash, shard) = cache.place(b"bob");
        shard.lock().insert(hash, ann, 1);
        assert!(cache.get("bob").is_none());
    }
}
