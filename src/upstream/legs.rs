//! The legs of an upstream that speaks both eras: which one serves a client, and the task that opens the handshake leg
//! once a client asks for it.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Upstream;
use super::health::HealthPhase;
use super::leg::{CallCounts, Leg};
use super::spec::UpstreamSpec;
use super::state::CatalogState;
use crate::dialect::{LegFacts, Revision};
use crate::failure::Failure;

/// The handshake leg of a server that also has a per-request leg.
#[derive(Debug, Clone)]
pub(super) enum HandshakeLeg {
    /// No client has asked for it.
    Unasked,
    /// It is being opened for the first time.
    Opening(Arc<Leg>),
    /// It serves the handshake-era clients.
    Open(Arc<Leg>),
    /// It serves nobody and is closed: why, and what it offers if there is one.
    Unused(Arc<str>, Option<LegFacts>),
}

/// The leg that serves the clients of one revision.
#[derive(Debug, Clone)]
pub struct LegChoice {
    /// The leg.
    pub leg: Arc<Leg>,
    /// Whether the choice and the lists of the leg are known, or the server failed to give them.
    pub is_settled: bool,
}

/// One leg of an upstream, for operators.
#[derive(Debug, Clone)]
pub struct LegReport {
    /// What was compared of it.
    pub facts: LegFacts,
    /// Revisions of the clients that it serves.
    pub clients: Vec<Revision>,
    /// Why it serves fewer clients than those of its era, as a clause.
    pub why: Option<Arc<str>>,
}

/// Opens, compares and closes the handshake leg.
pub(super) struct HandshakeLegTask {
    spec: UpstreamSpec,
    counts: CallCounts,
    probed: Arc<Leg>,
    handshake: watch::Sender<HandshakeLeg>,
    wanted: watch::Sender<bool>,
    stop: CancellationToken,
}

/// How the handshake leg began.
enum Beginning {
    Connected,
    Refused(Failure),
    ProbedLegChanged,
}

/// Failed connects after which a server counts as having no handshake leg.
const MAX_FAILED_CONNECTS: u32 = 3;

// === impl HandshakeLeg ===

impl HandshakeLeg {
    pub(super) fn leg(&self) -> Option<&Arc<Leg>> {
        match self {
            Self::Opening(leg) | Self::Open(leg) => Some(leg),
            Self::Unasked | Self::Unused(..) => None,
        }
    }
}

// === impl Upstream ===

impl Upstream {
    /// The leg that serves clients of that revision now.
    pub fn leg_for(&self, client: Revision) -> LegChoice {
        let probed = self.probed.state();
        let is_bridged = |server| self.spec.leg_rule.wants_handshake_leg(client, server);
        if !self.may_have_two_legs() || !probed.revision.is_some_and(is_bridged) {
            return LegChoice { leg: Arc::clone(&self.probed), is_settled: probed.startup_finished };
        }
        match &*self.handshake.borrow() {
            HandshakeLeg::Open(leg) => LegChoice { leg: Arc::clone(leg), is_settled: leg.state().startup_finished },
            // A server that is away is not waited for.
            HandshakeLeg::Unasked | HandshakeLeg::Opening(_) => {
                let is_away = probed.health.phase == HealthPhase::Down;
                LegChoice { leg: Arc::clone(&self.probed), is_settled: is_away }
            }
            HandshakeLeg::Unused(..) => LegChoice { leg: Arc::clone(&self.probed), is_settled: true },
        }
    }

    /// Asks for the leg that suits clients of that revision. Opens it in the background if the server has it.
    pub fn want_leg_for(&self, client: Revision) {
        if self.may_have_two_legs() && client.opens_with_handshake() {
            self.handshake_wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
        }
    }

    /// The handshake leg that is open beside the one found by probing, as it changes.
    pub fn watch_legs(&self) -> LegWatcher {
        LegWatcher(self.handshake.subscribe())
    }

    /// The legs of the server as far as they are known, with the clients that each serves.
    pub fn leg_reports(&self) -> Vec<LegReport> {
        let served = |leg: &Leg| {
            let is_served = |client: &Revision| std::ptr::eq(&*self.leg_for(*client).leg, leg);
            Revision::all().filter(is_served).collect::<Vec<_>>()
        };
        let probed = self.probed.facts();
        let probed = probed.map(|facts| LegReport { facts, clients: served(&self.probed), why: None });
        let handshake = match &*self.handshake.borrow() {
            HandshakeLeg::Open(leg) => leg.facts().map(|facts| LegReport { facts, clients: served(leg), why: None }),
            HandshakeLeg::Unused(why, Some(facts)) => {
                Some(LegReport { facts: facts.clone(), clients: Vec::new(), why: Some(Arc::clone(why)) })
            }
            HandshakeLeg::Unasked | HandshakeLeg::Opening(_) | HandshakeLeg::Unused(_, None) => None,
        };
        probed.into_iter().chain(handshake).collect()
    }
}

/// Watches which legs of an upstream are open.
#[derive(Debug)]
pub struct LegWatcher(watch::Receiver<HandshakeLeg>);

impl LegWatcher {
    /// The handshake leg that is open now, if it is not the one that probing found.
    pub fn handshake_leg(&mut self) -> Option<Arc<Leg>> {
        self.0.borrow_and_update().leg().cloned()
    }

    /// Waits for a change; false when the upstream is gone.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

// === impl HandshakeLegTask ===

impl HandshakeLegTask {
    pub(super) fn new(upstream: &Upstream) -> Self {
        Self {
            spec: upstream.spec.clone(),
            counts: upstream.counts.clone(),
            probed: Arc::clone(&upstream.probed),
            handshake: upstream.handshake.clone(),
            wanted: upstream.handshake_wanted.clone(),
            stop: upstream.stop.clone(),
        }
    }

    pub(super) async fn run(self) {
        while self.stop.run_until_cancelled(self.wait_until_needed()).await.is_some() {
            let connects = self.probed.state().health.connects;
            let leg = Leg::start_handshake(self.spec.clone(), self.counts.clone());
            self.handshake.send_replace(HandshakeLeg::Opening(Arc::clone(&leg)));
            if let Some(unused) = self.stop.run_until_cancelled(self.serve(&leg)).await {
                self.handshake.send_replace(unused);
            }
            leg.stop().await;
            if self.stop.run_until_cancelled(self.wait_for_reconnect(connects)).await.is_none() {
                return;
            }
            self.wanted.send_replace(false);
            self.handshake.send_replace(HandshakeLeg::Unasked);
        }
    }

    /// Waits until a client has asked for the leg and the probed leg is connected in the other era.
    async fn wait_until_needed(&self) {
        let is_needed = |state: &CatalogState| {
            let is_bridged = |server| self.spec.leg_rule.wants_handshake_leg(Revision::NEWEST_HANDSHAKE, server);
            state.startup_finished && state.revision.is_some_and(is_bridged) && state.health.phase == HealthPhase::Ready
        };
        // The senders live as long as this task, so waiting for them cannot fail.
        let _ = self.wanted.subscribe().wait_for(|wanted| *wanted).await;
        let _ = self.probed.watch().wait_for(|state| is_needed(state)).await;
    }

    /// Another connection may reach another version of the server, which has to be compared again.
    async fn wait_for_reconnect(&self, connects: u64) {
        let _ = self.probed.watch().wait_for(|state| state.health.connects != connects).await;
    }

    /// Keeps the leg for as long as it serves clients; returns why it no longer does.
    async fn serve(&self, leg: &Arc<Leg>) -> HandshakeLeg {
        let (why, facts) = match self.begin(leg).await {
            Beginning::Connected => {
                let facts = leg.facts().zip(self.probed.facts());
                match facts.and_then(|(own, other)| Some((own.replaced_by(&other)?, own))) {
                    Some((why, own)) => (why.to_owned(), Some(own)),
                    None => {
                        self.handshake.send_replace(HandshakeLeg::Open(Arc::clone(leg)));
                        let refusal = self.wait_until_gone(leg).await;
                        (refusal.map(|failure| failure.to_string()).unwrap_or_default(), None)
                    }
                }
            }
            Beginning::Refused(failure) => (failure.to_string(), None),
            Beginning::ProbedLegChanged => (String::new(), None),
        };
        tracing::info!(upstream = %self.spec.name, reason = %why, "handshake leg not used");
        HandshakeLeg::Unused(why.into(), facts)
    }

    /// Waits until the leg has its lists, or the server has refused it for good.
    async fn begin(&self, leg: &Leg) -> Beginning {
        let mut states = leg.watch();
        let mut probed = self.probed.watch();
        let mut failed_connects = 0;
        loop {
            let state = Arc::clone(&states.borrow_and_update());
            match state.health.down() {
                Some(failure) => {
                    failed_connects += 1;
                    if !failure.is_retryable() || failed_connects >= MAX_FAILED_CONNECTS {
                        return Beginning::Refused(failure);
                    }
                }
                None if state.startup_finished => return Beginning::Connected,
                None => {}
            }
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return Beginning::ProbedLegChanged },
                _ = probed.wait_for(|state| !self.is_per_request(state)) => return Beginning::ProbedLegChanged,
            }
        }
    }

    /// Waits until the server refuses the handshake for good, or its probed leg has become a handshake leg.
    async fn wait_until_gone(&self, leg: &Leg) -> Option<Failure> {
        let (mut states, mut probed) = (leg.watch(), self.probed.watch());
        let refusal = |state: &CatalogState| state.health.down().filter(|failure| !failure.is_retryable());
        tokio::select! {
            state = states.wait_for(|state| refusal(state).is_some()) => state.ok().and_then(|state| refusal(&state)),
            _ = probed.wait_for(|state| !self.is_per_request(state)) => None,
        }
    }

    fn is_per_request(&self, state: &CatalogState) -> bool {
        let is_bridged = |server| self.spec.leg_rule.wants_handshake_leg(Revision::NEWEST_HANDSHAKE, server);
        state.revision.is_some_and(is_bridged)
    }
}
