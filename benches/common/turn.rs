//! One contender's turn: calls over all its sessions at once, and what the process took for them.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Failure;
use crate::client::{Caller, Share};
use crate::process::{SETTLE, Server};

/// What a contender did in one turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    calls: usize,
    wall: Duration,
    processor: Duration,
    /// How long the call in the middle took, and the one that all but a hundredth did not exceed.
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

    /// How long a call takes, by the one in the middle, in milliseconds.
    pub(crate) fn median(&self) -> f64 {
        self.middle.as_secs_f64() * 1e3
    }

    /// How long all but a hundredth of the calls take at most, in milliseconds.
    pub(crate) fn p99(&self) -> f64 {
        self.late.as_secs_f64() * 1e3
    }

    /// How long all of it took.
    pub(crate) fn wall(&self) -> Duration {
        self.wall
    }

    /// Makes that many calls over all sessions at once.
    pub(crate) async fn take(server: &Server, callers: &mut Vec<Caller>, calls: usize) -> Result<Self, Failure> {
        let sessions = callers.len();
        Self::share(server, callers, sessions, Share::of(calls.div_ceil(sessions))).await
    }

    /// Makes as many calls over some of the sessions at once as there is time for.
    pub(crate) async fn within(
        server: &Server,
        callers: &mut Vec<Caller>,
        sessions: usize,
        time: Duration,
    ) -> Result<Self, Failure> {
        Self::share(server, callers, sessions, Share::within(time)).await
    }

    async fn share(server: &Server, callers: &mut Vec<Caller>, sessions: usize, share: Share) -> Result<Self, Failure> {
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
        tokio::time::sleep(SETTLE).await;
        let processor = server.processor_time()? - processor;
        took.sort_unstable();
        let at = |share: f64| took.get((took.len() as f64 * share) as usize).copied().unwrap_or_default();
        Ok(Self { calls: took.len(), wall, processor, middle: at(0.5), late: at(0.99) })
    }
}

/// Who has the turn `n` of a round. Every other round goes backwards, so that nobody always follows the
/// same other.
pub(crate) fn whose(n: usize, round: usize, contenders: usize) -> usize {
    let step = (n + round) % contenders;
    if round.is_multiple_of(2) { step } else { contenders - 1 - step }
}
