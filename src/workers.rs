//! Worker threads, each with a single-threaded runtime.
//!
//! A client connection and the upstream connections it uses stay on one worker, so a call wakes no other thread.
//! Everything else, and a process without workers, runs on the main runtime.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

thread_local! {
    static CURRENT_WORKER: Cell<usize> = const { Cell::new(0) };
}

/// A set of workers. Dropping it stops them and drops their unfinished tasks.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<Worker>,
    shutdown: CancellationToken,
}

/// A thread with a runtime of its own.
#[derive(Debug)]
pub struct Worker {
    runtime: Handle,
    /// One reference per tracked future; the reference count is the worker's load.
    load: Arc<()>,
}

/// Most threads for blocking work of one worker: name lookups, for the most part. Further work waits in a queue.
const WORKER_BLOCKING_THREADS: usize = 16;
/// Number of workers started in this process; numbers are never reused.
static WORKERS_STARTED: AtomicUsize = AtomicUsize::new(0);

/// Number of the current worker, from 1; 0 on any other thread.
pub fn current_worker() -> usize {
    CURRENT_WORKER.get()
}

impl Workers {
    /// Starts `count` workers.
    ///
    /// # Errors
    /// When the system refuses a thread or a runtime.
    pub fn start(count: usize) -> io::Result<Self> {
        let mut workers = Self { workers: Vec::with_capacity(count), shutdown: CancellationToken::new() };
        for _ in 0..count {
            let number = WORKERS_STARTED.fetch_add(1, Ordering::Relaxed) + 1;
            let (started, result) = mpsc::channel();
            let shutdown = workers.shutdown.clone();
            std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                CURRENT_WORKER.set(number);
                // Sending fails only if the starting thread has gone.
                let runtime = match Builder::new_current_thread()
                    .enable_all()
                    .max_blocking_threads(WORKER_BLOCKING_THREADS)
                    .build()
                {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(started.send(Err(error))),
                };
                let _ = started.send(Ok(runtime.handle().clone()));
                runtime.block_on(shutdown.cancelled());
                runtime.shutdown_background();
            })?;
            let runtime = result.recv().map_err(|_| io::Error::other("worker thread exited at start"))??;
            workers.workers.push(Worker { runtime, load: Arc::default() });
        }
        Ok(workers)
    }

    /// All workers.
    pub fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter()
    }

    /// The worker with the fewest tracked futures; `None` when there are no workers.
    pub fn least_loaded(&self) -> Option<&Worker> {
        self.workers.iter().min_by_key(|worker| Arc::strong_count(&worker.load))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Worker {
    /// Handle to spawn tasks on this worker.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Wraps a future so that it counts as load of this worker until it completes or is dropped.
    pub fn track_load<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let load = Arc::clone(&self.load);
        async move {
            let _load = load;
            work.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_spread_and_released() {
        let workers = Workers::start(2).unwrap();
        let (sender, receiver) = mpsc::channel();
        let release = CancellationToken::new();
        for _ in 0..4 {
            let (sender, release) = (sender.clone(), release.clone());
            let worker = workers.least_loaded().unwrap();
            worker.runtime().spawn(worker.track_load(async move {
                sender.send(current_worker()).unwrap();
                release.cancelled().await;
            }));
        }
        let mut numbers: Vec<usize> = receiver.iter().take(4).collect();
        numbers.sort_unstable();
        assert!(numbers[0] == numbers[1] && numbers[1] < numbers[2] && numbers[2] == numbers[3], "{numbers:?}");
        assert_eq!(current_worker(), 0, "the test thread is not a worker");
        release.cancel();
        drop(sender);
        assert!(receiver.recv().is_err(), "all tasks have ended");
        assert!(Workers::start(0).unwrap().least_loaded().is_none());
    }

    #[test]
    fn dropping_the_workers_drops_their_tasks() {
        let workers = Workers::start(1).unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        workers.least_loaded().unwrap().runtime().spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        drop(workers);
        assert!(receiver.recv().is_err());
    }
}
