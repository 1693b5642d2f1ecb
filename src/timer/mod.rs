//! Pooled timers for deadlines that are set on every call and rarely fire.

mod pooled;
#[cfg(test)]
mod tests;

pub use pooled::PooledTimer;
