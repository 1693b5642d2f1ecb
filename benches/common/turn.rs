//! One contender's turn: calls over all its sessions at once, and what the process took for them.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Failure;
use crate::client::Caller;
use crate::process::{SETTLE, Server};

/// What a contender did in one turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    calls: usize,
    wall: Duration,
    processor: Duration,
}

impl Turn {
    pub(crate) fn calls_per_second(&self) -> f64 {
        self.calls as f64 / self.wall.as_secs_f64()
    }

    pub(crate) fn microseconds_per_call(&self) -> f64 {
        self.processor.as_secs_f64() * 1e6 / self.calls as f64
    }

    /// Makes calls over all sessions at once.
    pub(crate) async fn take(server: &Server, callers: &mut Vec<Caller>, calls: usize) -> Result<Self, Failure> {
        let each = calls.div_ceil(callers.len());
        let calls = each * callers.len();
        let processor = server.processor_time()?;
        let begin = Instant::now();
        let mut tasks = JoinSet::new();
        for caller in callers.drain(..) {
            tasks.spawn(caller.calls(each));
        }
        while let Some(ended) = tasks.join_next().await {
            callers.push(ended??);
        }
        let wall = begin.elapsed();
        tokio::time::sleep(SETTLE).await;
        let processor = server.processor_time()? - processor;
        Ok(Self { calls, wall, processor })
    }
}

/// Who has the turn `n` of a round. Every other round goes backwards, so that nobody always follows the
/// same other.
pub(crate) fn whose(n: usize, round: usize, contenders: usize) -> usize {
    let step = (n + round) % contenders;
    if round.is_multiple_of(2) { step } else { contenders - 1 - step }
}
