//! Threads that keep what they are given. A connection is served by one thread, which waits for it and for the
//! connections to servers that it uses; a call between the two wakes nobody else. What belongs to nobody's
//! connection, and whoever has no such threads, runs in the runtime that is there.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

thread_local! {
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Some threads. They end when this is dropped, and what they still do is cut off.
#[derive(Debug)]
pub struct Workers {
    all: Vec<Worker>,
    ended: CancellationToken,
}

/// One thread with a runtime of its own.
#[derive(Debug)]
pub struct Worker {
    runtime: Handle,
    /// Shared by what is kept here, and thereby counts it.
    kept: Arc<()>,
}

/// How many there ever were in this process.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// The number of this thread among all workers of the process; 0 when it is none.
pub fn current_worker() -> usize {
    HERE.get()
}

impl Workers {
    /// Starts so many threads.
    ///
    /// # Errors
    /// When the system has no room for them.
    pub fn start(count: usize) -> io::Result<Self> {
        let mut workers = Self { all: Vec::with_capacity(count), ended: CancellationToken::new() };
        for _ in 0..count {
            let number = STARTED.fetch_add(1, Ordering::Relaxed) + 1;
            let (say, said) = mpsc::channel();
            let ended = workers.ended.clone();
            std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                HERE.set(number);
                // Whoever started this may have gone away meanwhile.
                let runtime = match Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(say.send(Err(error))),
                };
                let _ = say.send(Ok(runtime.handle().clone()));
                runtime.block_on(ended.cancelled());
                runtime.shutdown_background();
            })?;
            let runtime = said.recv().map_err(|_| io::Error::other("it ended as it began"))??;
            workers.all.push(Worker { runtime, kept: Arc::default() });
        }
        Ok(workers)
    }

    /// The one that keeps the least; nothing when there is none.
    pub fn least_loaded(&self) -> Option<&Worker> {
        self.all.iter().min_by_key(|worker| Arc::strong_count(&worker.kept))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl Worker {
    /// Where its tasks run.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The same work, which counts as kept here from now until it ends.
    pub fn keeping<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let kept = Arc::clone(&self.kept);
        async move {
            let _kept = kept;
            work.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_keeps_its_share_and_lets_go_of_it() {
        let workers = Workers::start(2).unwrap();
        let (say, said) = mpsc::channel();
        let go_on = CancellationToken::new();
        for _ in 0..4 {
            let (say, go_on) = (say.clone(), go_on.clone());
            let worker = workers.least_loaded().unwrap();
            worker.runtime().spawn(worker.keeping(async move {
                say.send(current_worker()).unwrap();
                go_on.cancelled().await;
            }));
        }
        let mut places: Vec<usize> = said.iter().take(4).collect();
        places.sort_unstable();
        assert!(places[0] == places[1] && places[1] < places[2] && places[2] == places[3], "{places:?}");
        assert_eq!(current_worker(), 0, "this is none of them");
        go_on.cancel();
        drop(say);
        assert!(said.recv().is_err(), "all have ended");
        assert!(Workers::start(0).unwrap().least_loaded().is_none());
    }

    #[test]
    fn what_they_do_ends_with_them() {
        let workers = Workers::start(1).unwrap();
        let (say, said) = mpsc::channel::<()>();
        workers.least_loaded().unwrap().runtime().spawn(async move {
            std::future::pending::<()>().await;
            drop(say);
        });
        drop(workers);
        assert!(said.recv().is_err());
    }
}
