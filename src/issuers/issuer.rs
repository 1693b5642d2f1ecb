//! One issuer: its keys and addresses, kept fresh, and what is counted of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::TokenError;
use super::algorithm::SigningAlgorithm;
use super::cache::{TokenCache, TokenFinding};
use super::clock::{IssuerClock, time_since};
use super::counters::IssuerCounters;
use super::fetch::{self, FETCH_TIMEOUT, FetchError, MAX_KEYS_BYTES};
use super::introspection::Introspection;
use super::jwk::{KeySet, VerifyingKey};
use super::jwt::UnverifiedToken;
use super::metadata::{self, IssuerMetadata};
use super::settings::{IssuerSettings, KeySource, TokenFormat};
use crate::redact::redact;

/// How long what was fetched is used while nothing newer can be had.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// How long a request waits for a fetch that it needs.
const DEMAND_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two fetches that tokens with unknown keys cause.
const DEMAND_INTERVAL: Duration = Duration::from_secs(10);
/// The same while nothing was fetched yet.
const FIRST_DEMAND_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a failed fetch is repeated, without and with something to use meanwhile.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(60);
/// Most keys that are tried for a token that names none.
const MAX_TRIED_KEYS: usize = 8;
/// Most withdrawn keys that wait to be taken; the oldest are forgotten.
const MAX_WITHDRAWN_KEYS: usize = 1_000;

/// An issuer. Kept over reloads that do not change its settings.
pub(super) struct Issuer {
    pub(super) settings: IssuerSettings,
    pub(super) clock: IssuerClock,
    pub(super) counters: Arc<IssuerCounters>,
    pub(super) introspection: Introspection,
    /// Whether a token with too many roles was reported.
    pub(super) warned_of_roles: AtomicBool,
    keys: ArcSwapOption<KeySet>,
    metadata: ArcSwapOption<FetchedMetadata>,
    fetching: Mutex<Fetching>,
    /// Set when a reload removed or changed the issuer: what it verified counts no longer.
    retired: AtomicBool,
    /// Where its verified tokens are, to drop those of withdrawn keys.
    cache: Mutex<Weak<TokenCache>>,
    refresher: Mutex<Option<AbortHandle>>,
    /// Digests of keys that were withdrawn and not yet [taken](Self::take_withdrawn), the oldest first.
    withdrawn: Mutex<Vec<Arc<str>>>,
}

struct FetchedMetadata {
    content: IssuerMetadata,
    fetched_at: SystemTime,
    max_age: Duration,
}

#[derive(Default)]
struct Fetching {
    /// Closes when the fetch that is under way ends.
    running: Option<watch::Receiver<()>>,
    /// When a token last caused a fetch, while there was nothing or beside what there was.
    first_demanded_at: Option<SystemTime>,
    demanded_at: Option<SystemTime>,
    /// Whether the last fetch failed.
    has_failed: bool,
    /// How long until the next fetch is due.
    next_in: Duration,
}

/// What the keys at hand say of a signature.
enum KeyCheck {
    Verified(Arc<VerifyingKey>),
    /// The key that it names says no.
    Refused,
    /// The key that it names is not known.
    UnknownKey,
    /// There are no keys.
    NoKeys,
}

impl Issuer {
    pub(super) fn new(settings: IssuerSettings, clock: IssuerClock) -> Arc<Self> {
        Arc::new(Self {
            settings,
            clock,
            counters: Arc::default(),
            introspection: Introspection::default(),
            warned_of_roles: AtomicBool::new(false),
            keys: ArcSwapOption::empty(),
            metadata: ArcSwapOption::empty(),
            fetching: Mutex::default(),
            retired: AtomicBool::new(false),
            cache: Mutex::default(),
            refresher: Mutex::default(),
            withdrawn: Mutex::default(),
        })
    }

    /// The same settings with the counters of a predecessor, before it is used.
    pub(super) fn with_counters(self: Arc<Self>, counters: &Arc<IssuerCounters>) -> Arc<Self> {
        let mut new = Self::new(self.settings.clone(), self.clock.clone());
        if let Some(new) = Arc::get_mut(&mut new) {
            new.counters = Arc::clone(counters);
        }
        new
    }

    pub(super) fn use_cache(&self, cache: &Arc<TokenCache>) {
        *self.cache.lock() = Arc::downgrade(cache);
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.settings.name
    }

    pub(super) fn is_opaque(&self) -> bool {
        self.settings.token_format == TokenFormat::Opaque
    }

    pub(super) fn key_count(&self) -> usize {
        self.keys.load().as_ref().map_or(0, |keys| keys.keys.len())
    }

    /// From now on nothing counts that it verified, and nothing is fetched in the background.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        if let Some(refresher) = self.refresher.lock().take() {
            refresher.abort();
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Whether what was found about a token still counts.
    pub(super) fn stands_by(&self, finding: &TokenFinding, now: SystemTime) -> bool {
        if self.is_retired() {
            return false;
        }
        match finding {
            TokenFinding::Signed(_, key) => !key.is_withdrawn() && self.usable_keys(now).is_some(),
            TokenFinding::Active(_, asked_at) => time_since(*asked_at, now) < super::ACTIVE_FOR,
            TokenFinding::Inactive(asked_at) => time_since(*asked_at, now) < super::INACTIVE_FOR,
        }
    }

    /// The keys, unless they are too old.
    fn usable_keys(&self, now: SystemTime) -> Option<arc_swap::Guard<Option<Arc<KeySet>>>> {
        let keys = self.keys.load();
        keys.as_ref().is_some_and(|keys| time_since(keys.fetched_at, now) < KEPT_FOR).then_some(keys)
    }

    /// The metadata, unless they are too old.
    pub(super) fn usable_metadata(&self) -> Option<IssuerMetadata> {
        let metadata = self.metadata.load();
        let usable = metadata.as_ref().filter(|metadata| self.clock.since(metadata.fetched_at) < KEPT_FOR);
        usable.map(|metadata| metadata.content.clone())
    }

    // === Signatures ===

    /// The key that verifies a token.
    pub(super) async fn verify(self: &Arc<Self>, token: &UnverifiedToken<'_>) -> Result<Arc<VerifyingKey>, TokenError> {
        let algorithm = SigningAlgorithm::named(&token.algorithm)
            .filter(|algorithm| self.settings.algorithms.contains(algorithm))
            .ok_or(TokenError::Unverifiable)?;
        match self.check(token, algorithm) {
            KeyCheck::Verified(key) => return Ok(key),
            KeyCheck::Refused => return Err(TokenError::Unverifiable),
            KeyCheck::UnknownKey | KeyCheck::NoKeys => self.demand().await,
        }
        match self.check(token, algorithm) {
            KeyCheck::Verified(key) => Ok(key),
            KeyCheck::Refused => Err(TokenError::Unverifiable),
            KeyCheck::NoKeys => Err(TokenError::Unavailable),
            // The key may be one that could not be fetched.
            KeyCheck::UnknownKey if self.fetching.lock().has_failed => Err(TokenError::Unavailable),
            KeyCheck::UnknownKey => Err(TokenError::Unverifiable),
        }
    }

    fn check(&self, token: &UnverifiedToken<'_>, algorithm: SigningAlgorithm) -> KeyCheck {
        let Some(keys) = self.usable_keys(self.clock.now()) else { return KeyCheck::NoKeys };
        let all = keys.as_ref().map(|keys| keys.keys.as_slice()).unwrap_or_default();
        let named: Vec<&Arc<VerifyingKey>> = match token.key_id.as_deref() {
            Some(id) => all.iter().filter(|key| key.id() == Some(id)).collect(),
            None => all.iter().collect(),
        };
        let fitting = named.iter().filter(|key| key.fits(algorithm)).take(MAX_TRIED_KEYS);
        let verified = fitting.into_iter().find(|key| {
            self.counters.verifications.fetch_add(1, Ordering::Relaxed);
            key.verifies(algorithm, token.signed, &token.signature)
        });
        match verified {
            Some(key) => KeyCheck::Verified(Arc::clone(key)),
            None if named.is_empty() || token.key_id.is_none() => KeyCheck::UnknownKey,
            None => KeyCheck::Refused,
        }
    }

    // === Fetching ===

    /// Keeps keys and addresses fresh from now on, on the current runtime.
    pub(super) fn start(self: &Arc<Self>) {
        let mut refresher = self.refresher.lock();
        if !self.is_retired()
            && refresher.as_ref().is_none_or(AbortHandle::is_finished)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            *refresher = Some(runtime.spawn(keep_fresh(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Reads the keys again where they are in a file, which may be why the configuration was read again.
    pub(super) fn read_file_again(self: &Arc<Self>) {
        let mut fetching = self.fetching.lock();
        let is_file = matches!(self.settings.keys, KeySource::File(_));
        if is_file && tokio::runtime::Handle::try_current().is_ok() {
            self.spawn_fetch(&mut fetching);
        }
    }

    /// Waits for a fetch because a token needs it: one that is under way, or a new one, unless there was one just now.
    pub(super) async fn demand(self: &Arc<Self>) {
        self.start();
        let running = {
            let mut fetching = self.fetching.lock();
            let has_any = self.keys.load().is_some() || (self.is_opaque() && self.metadata.load().is_some());
            let under_way = fetching.under_way();
            let (demanded_at, interval) = match has_any {
                true => (&mut fetching.demanded_at, DEMAND_INTERVAL),
                false => (&mut fetching.first_demanded_at, FIRST_DEMAND_INTERVAL),
            };
            let is_due = demanded_at.is_none_or(|demanded_at| self.clock.since(demanded_at) >= interval);
            match under_way {
                Some(running) => running,
                None if is_due => {
                    *demanded_at = Some(self.clock.now());
                    self.spawn_fetch(&mut fetching)
                }
                None => return,
            }
        };
        wait(running, DEMAND_TIMEOUT).await;
    }

    /// Fetches, or waits for the fetch that is under way, and says when the next one is due.
    async fn refresh(self: &Arc<Self>) -> Duration {
        let running = {
            let mut fetching = self.fetching.lock();
            match fetching.under_way() {
                Some(running) => running,
                None => self.spawn_fetch(&mut fetching),
            }
        };
        wait(running, 2 * FETCH_TIMEOUT).await;
        self.fetching.lock().next_in
    }

    /// Starts a fetch in a task of its own: it goes on when the request that needs it goes away.
    fn spawn_fetch(self: &Arc<Self>, fetching: &mut Fetching) -> watch::Receiver<()> {
        let (ended, running) = watch::channel(());
        fetching.running = Some(running.clone());
        let issuer = Arc::clone(self);
        tokio::spawn(async move {
            let fetched = tokio::time::timeout(FETCH_TIMEOUT, issuer.fetch()).await;
            let fetched = fetched.unwrap_or_else(|_| Err(format!("there was no answer within {FETCH_TIMEOUT:?}")));
            issuer.conclude(fetched);
            drop(ended);
        });
        running
    }

    /// Records how a fetch ended.
    fn conclude(&self, fetched: Result<Duration, String>) {
        let mut fetching = self.fetching.lock();
        let had_failed = std::mem::replace(&mut fetching.has_failed, fetched.is_err());
        match fetched {
            Ok(max_age) => {
                self.counters.fetches.fetch_add(1, Ordering::Relaxed);
                fetching.next_in = max_age;
                if had_failed {
                    tracing::info!(issuer = &**self.name(), "the issuer answers again");
                }
            }
            Err(why) => {
                self.counters.failed_fetches.fetch_add(1, Ordering::Relaxed);
                let has_keys = self.usable_keys(self.clock.now()).is_some();
                let has_any = has_keys || (self.is_opaque() && self.usable_metadata().is_some());
                fetching.next_in = if has_any { RETRY } else { FIRST_RETRY };
                // The address of the keys may have changed.
                if !self.is_opaque() {
                    self.metadata.store(None);
                }
                let why = redact(&why);
                match had_failed {
                    false => tracing::warn!(issuer = &**self.name(), %why, "keys or metadata could not be fetched"),
                    true => tracing::debug!(issuer = &**self.name(), %why, "keys or metadata could not be fetched"),
                }
            }
        }
    }

    /// Fetches what is needed to verify tokens, and says how long it is good for.
    async fn fetch(&self) -> Result<Duration, String> {
        if self.is_opaque() {
            let (metadata, max_age) = self.fetch_metadata().await?;
            return match metadata.introspection_endpoint {
                Some(_) => Ok(max_age),
                None => Err("its metadata have no `introspection_endpoint`".to_owned()),
            };
        }
        let get =
            |url: http::Uri| async move { fetch::get(&url, MAX_KEYS_BYTES).await.map_err(FetchError::into_reason) };
        let document = match &self.settings.keys {
            KeySource::File(path) => fetch::read_file(path).await?,
            KeySource::Url(url) => get(url.clone()).await?,
            KeySource::Metadata => {
                let known =
                    self.metadata.load_full().filter(|known| self.clock.since(known.fetched_at) < known.max_age);
                let metadata = match known {
                    Some(known) => known.content.clone(),
                    None => self.fetch_metadata().await?.0,
                };
                get(metadata.jwks_uri.ok_or("its metadata have no `jwks_uri`; set `jwks`")?).await?
            }
        };
        let (keys, skipped) = KeySet::read(&document.content, self.clock.now())?;
        self.replace_keys(keys, &skipped);
        Ok(document.max_age)
    }

    async fn fetch_metadata(&self) -> Result<(IssuerMetadata, Duration), String> {
        let (content, max_age) = metadata::discover(&self.settings.issuer).await?;
        let fetched = FetchedMetadata { content: content.clone(), fetched_at: self.clock.now(), max_age };
        self.metadata.store(Some(Arc::new(fetched)));
        Ok((content, max_age))
    }

    /// Puts new keys into use. What a key verified that is gone is forgotten.
    fn replace_keys(&self, mut keys: KeySet, skipped: &[String]) {
        let before = self.keys.load_full();
        let withdrawn = before.as_ref().map(|before| keys.succeed(before)).unwrap_or_default();
        let is_news = before.is_none_or(|before| {
            before.keys.len() != keys.keys.len() || !before.keys.iter().all(|key| !key.is_withdrawn())
        });
        for why in skipped.iter().filter(|_| is_news) {
            tracing::warn!(issuer = &**self.name(), "{why}");
        }
        self.keys.store(Some(Arc::new(keys)));
        if is_news && let Some(cache) = self.cache.lock().upgrade() {
            let now = self.clock.now();
            cache.retain(|token| !std::ptr::eq(&*token.issuer, self) || self.stands_by(&token.finding, now));
        }
        let mut all = self.withdrawn.lock();
        all.extend(withdrawn);
        let surplus = all.len().saturating_sub(MAX_WITHDRAWN_KEYS);
        all.drain(..surplus);
    }

    /// Takes the digests of the keys that were withdrawn since they were last taken.
    pub(super) fn take_withdrawn(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut *self.withdrawn.lock())
    }
}

impl Fetching {
    fn under_way(&self) -> Option<watch::Receiver<()>> {
        self.running.as_ref().filter(|running| running.has_changed().is_ok()).cloned()
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        if let Some(refresher) = self.refresher.get_mut().take() {
            refresher.abort();
        }
    }
}

/// Waits until a fetch has ended.
async fn wait(mut running: watch::Receiver<()>, timeout: Duration) {
    let _ = tokio::time::timeout(timeout, running.changed()).await;
}

/// Fetches when it is due, as long as the issuer is in use.
async fn keep_fresh(issuer: Weak<Issuer>) {
    loop {
        let Some(current) = issuer.upgrade() else { return };
        let next_in = current.refresh().await;
        drop(current);
        tokio::time::sleep(next_in.max(FIRST_DEMAND_INTERVAL)).await;
    }
}
