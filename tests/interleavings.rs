//! The wake-gated future and the timer under every order in which threads can take their steps.
//!
//! shuttle runs each check many times and picks the next thread at random before every step on a shared primitive; a run
//! in which all threads wait is a lost wake-up and fails, with a schedule that repeats it. The files under test are
//! those of the library, compiled against the primitives below. Memory orderings are not weakened: every access is
//! sequentially consistent here. The outbox takes no primitives of its own: its check is a unit test of `session`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

#[path = "interleavings/gated.rs"]
mod gated;
#[path = "interleavings/sync.rs"]
mod sync;
#[allow(dead_code, unreachable_pub, reason = "the library uses all of it")]
#[path = "../src/timer/worker_timer.rs"]
mod timer;
#[path = "interleavings/timers.rs"]
mod timers;
#[path = "../src/http/server/wake_gated.rs"]
mod wake_gated;
#[path = "interleavings/workers.rs"]
mod workers;

/// Schedules per check, of each kind.
const SCHEDULES: usize = 2_000;

/// Runs a check under random schedules, and under schedules that switch threads seldom, which find other orders.
fn check(run: fn()) {
    shuttle::check_random(run, SCHEDULES);
    shuttle::check_pct(run, SCHEDULES, 3);
}

#[test]
fn a_wake_up_reaches_the_gated_future() {
    check(gated::wake_up_reaches_the_future);
}

#[test]
fn a_wake_up_reaches_the_task_that_the_gated_future_moved_to() {
    check(gated::wake_up_reaches_the_new_task);
}

#[test]
fn a_timer_fires_on_the_worker_that_it_moved_to() {
    check(timers::timer_fires_on_another_worker);
}
