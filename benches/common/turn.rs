//! One contender in one round: concurrent calls over all its sessions, and the CPU time they took.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Failure;
use crate::client::{CallBudget, Caller};
use crate::process::{SETTLE_TIME, Server};

/// Measurements of a contender in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    calls: usize,
    wall: Duration,
    processor: Duration,
    /// Median and 99th percentile latency.
    middle: Duration,
    late: Duration,
}

impl Turn {
    pub(crate) fn calls_per_second(&self) -> f64 {
        self.calls as f64 / self.wall.as_secs_f64()
    }

    pub(crate) fn microseconds_per_call(&self) -> f64 {
        self.processor.as_secs_f64() * 1e6 / self.calls as f64
    }

    /// Median latency in milliseconds.
    pub(crate) fn median(&self) -> f64 {
        self.middle.as_secs_f64() * 1e3
    }

    /// 99th percentile latency in milliseconds.
    pub(crate) fn p99(&self) -> f64 {
        self.late.as_secs_f64() * 1e3
    }

    /// Wall-clock time.
    pub(crate) fn wall(&self) -> Duration {
        self.wall
    }

    /// Makes this many calls over all sessions concurrently.
    pub(crate) async fn take(server: &Server, callers: &mut Vec<Caller>, calls: usize) -> Result<Self, Failure> {
        let sessions = callers.len();
        Self::share(server, callers, sessions, CallBudget::of(calls.div_ceil(sessions))).await
    }

    /// Makes as many concurrent calls over some of the sessions as fit into the time.
    pub(crate) async fn within(
        server: &Server,
        callers: &mut Vec<Caller>,
        sessions: usize,
        time: Duration,
    ) -> Result<Self, Failure> {
        Self::share(server, callers, sessions, CallBudget::within(time)).await
    }

    async fn share(
        server: &Server,
        callers: &mut Vec<Caller>,
        sessions: usize,
        share: CallBudget,
    ) -> Result<Self, Failure> {
        let processor = server.processor_time()?;
        let begin = Instant::now();
        let mut tasks = JoinSet::new();
        for caller in callers.drain(..sessions.min(callers.len())) {
            tasks.spawn(caller.calls(share));
        }
        let mut took = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            let (caller, times) = ended??;
            callers.push(caller);
            took.extend(times);
        }
        let wall = begin.elapsed();
        tokio::time::sleep(SETTLE_TIME).await;
        let processor = server.processor_time()? - processor;
        took.sort_unstable();
        let at = |share: f64| took.get((took.len() as f64 * share) as usize).copied().unwrap_or_default();
        Ok(Self { calls: took.len(), wall, processor, middle: at(0.5), late: at(0.99) })
    }
}

/// Index of the contender at position `n` of a round. Every other round runs backwards, so that no contender always
/// follows the same other one.
pub(crate) fn contender_at(n: usize, round: usize, contenders: usize) -> usize {
    let step = (n + round) % contenders;
    if round.is_multiple_of(2) { step } else { contenders - 1 - step }
}
