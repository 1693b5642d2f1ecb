//! Worker threads, each with a single-threaded runtime.
//!
//! A client connection and the upstream connections it uses stay on one worker, so a call wakes no other thread. What
//! only operators wait for, and is long to make, has a thread of low priority. Everything else, and a process without
//! workers, runs on the main runtime.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

thread_local! {
    static CURRENT_WORKER: Cell<usize> = const { Cell::new(0) };
    /// When this thread let others go first.
    static GAVE_WAY: Cell<Option<Instant>> = const { Cell::new(None) };
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

/// A thread with a runtime for long computations that no call waits for. On Linux the workers come before it.
///
/// A task that it runs must not open connections that calls use, too: their tasks would stay here. Dropping it drops its
/// unfinished tasks.
#[derive(Debug)]
pub struct BackgroundThread {
    runtime: Handle,
    shutdown: CancellationToken,
}

/// Most threads for blocking work of one worker: name lookups, for the most part. Further work waits in a queue.
const WORKER_BLOCKING_THREADS: usize = 16;
/// What is added to the nice value of a background thread: about a tenth of a worker's share of a processor.
#[cfg(target_os = "linux")]
const BACKGROUND_NICENESS: i32 = 10;
/// How long a background thread computes before others go first. Each time it may wait for a time slice of all of them, so
/// that a shorter one would make it starve on a busy machine.
const GIVE_WAY_INTERVAL: Duration = Duration::from_micros(500);
/// Number of workers started in this process; numbers are never reused.
static WORKERS_STARTED: AtomicUsize = AtomicUsize::new(0);

/// Number of the current worker, from 1; 0 on any other thread.
pub fn current_worker() -> usize {
    CURRENT_WORKER.get()
}

/// Lets other threads go first now and then, for loops of a background thread: the scheduler would leave it a processor for a
/// whole time slice, and calls would wait for that long.
pub fn give_way() {
    if GAVE_WAY.get().is_none_or(|last| last.elapsed() >= GIVE_WAY_INTERVAL) {
        std::thread::yield_now();
        GAVE_WAY.set(Some(Instant::now()));
    }
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
            let set_number = move || CURRENT_WORKER.set(number);
            let runtime = start_thread(format!("worker-{number}"), workers.shutdown.clone(), set_number)?;
            workers.workers.push(Worker { runtime, load: Arc::default() });
        }
        Ok(workers)
    }

    /// Handles to spawn tasks on each worker.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.workers.iter().map(|worker| worker.runtime.clone()).collect()
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

/// Starts a thread that runs a runtime until `shutdown` is cancelled, and `begin` before it.
fn start_thread(
    name: String,
    shutdown: CancellationToken,
    begin: impl FnOnce() + Send + 'static,
) -> io::Result<Handle> {
    let (started, result) = mpsc::channel();
    std::thread::Builder::new().name(name).spawn(move || {
        begin();
        // Sending fails only if the starting thread has gone.
        let runtime =
            match Builder::new_current_thread().enable_all().max_blocking_threads(WORKER_BLOCKING_THREADS).build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error))),
            };
        let _ = started.send(Ok(runtime.handle().clone()));
        runtime.block_on(shutdown.cancelled());
        runtime.shutdown_background();
    })?;
    result.recv().map_err(|_| io::Error::other("thread exited at start"))?
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

impl BackgroundThread {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// When the system refuses a thread or a runtime.
    pub fn start(name: &str) -> io::Result<Self> {
        let shutdown = CancellationToken::new();
        let runtime = start_thread(name.to_owned(), shutdown.clone(), || {
            // Elsewhere it would be the priority of the whole process. Where it is refused, nothing is lost but time.
            #[cfg(target_os = "linux")]
            let _ = rustix::process::nice(BACKGROUND_NICENESS);
        })?;
        Ok(Self { runtime, shutdown })
    }

    /// Runs a task.
    pub fn spawn<F: Future<Output: Send> + Send + 'static>(&self, work: F) -> JoinHandle<F::Output> {
        self.runtime.spawn(work)
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.shutdown.cancel();
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

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn background_work_has_a_low_priority_and_others_keep_theirs() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let background = BackgroundThread::start("background").unwrap();
        assert_eq!(background.spawn(async move { niceness() }).await.unwrap(), before + BACKGROUND_NICENESS);
        assert_eq!(niceness(), before);
        let (sender, receiver) = mpsc::channel::<()>();
        background.spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        drop(background);
        assert!(receiver.recv().is_err(), "its tasks end with it");
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
