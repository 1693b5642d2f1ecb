//! What threads share, under names of our own: `tests/interleavings.rs` compiles the files that use them a second time,
//! with primitives that run the threads in every order.

pub(crate) use std::sync::atomic::AtomicBool;

pub(crate) use futures_util::task::AtomicWaker;
pub(crate) use tokio::time::{Instant, Sleep, sleep_until};
