//! Deadlines of work that may move from one worker to another.

#[cfg(test)]
mod tests;
mod worker_timer;

pub use worker_timer::WorkerTimer;
