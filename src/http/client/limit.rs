//! Bound of the open connections to one origin, with a queue of the requests that wait for one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::connection::Http1Connection;

/// Default of the connections to one origin per process, those of all workers together. Listening streams do not count:
/// they stay open as long as a lease, and `max_leases` bounds these.
pub const DEFAULT_CONNECTIONS_PER_ORIGIN: usize = 512;
/// Requests that may wait for a connection to one origin; further ones fail at once.
pub(super) const MAX_WAITING_REQUESTS: usize = 4096;

/// Whether a request waits where its origin has all the connections it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WhenFull {
    /// It waits in the queue, until the connect timeout at most.
    #[default]
    Wait,
    /// It gets a connection beyond the limit, which is closed after the response. For messages that calls wait for:
    /// behind these calls in the queue, both would wait for each other.
    Exceed,
}

/// Counts the open connections to one origin. A connection costs it something when it is opened or closed; its reuse
/// costs one load of `waiting`.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    max_connections: AtomicUsize,
    max_waiting: usize,
    open: AtomicUsize,
    /// Requests that got no connection.
    refusals: AtomicU64,
    /// Length of the queue, to be read without its lock.
    waiting: AtomicUsize,
    /// Requests in the order of their arrival. Not empty only while all slots are taken.
    queue: Mutex<VecDeque<oneshot::Sender<Granted>>>,
}

/// One open connection, counted until this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Option<Arc<ConnectionLimit>>);

/// What a waiting request is given.
#[derive(Debug)]
pub(super) enum Granted {
    /// An open connection whose response was read.
    Connection(Box<Http1Connection>),
    /// The permit to open one.
    Permit(ConnectionPermit),
}

/// A place in the queue, given up when this is dropped.
#[derive(Debug)]
pub(super) struct QueuePlace {
    pub(super) granted: oneshot::Receiver<Granted>,
    limit: Arc<ConnectionLimit>,
}

// === impl ConnectionLimit ===

impl ConnectionLimit {
    pub(super) fn new(max_connections: usize, max_waiting: usize) -> Arc<Self> {
        let (open, waiting, queue) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::default());
        let (max_connections, refusals) = (AtomicUsize::new(max_connections), AtomicU64::new(0));
        Arc::new(Self { max_connections, max_waiting, open, refusals, waiting, queue })
    }

    pub(super) fn max_connections(&self) -> usize {
        self.max_connections.load(Ordering::Relaxed)
    }

    /// Sets the limit. Open connections above a lower one stay open.
    pub(super) fn set_max_connections(&self, limit: usize) {
        self.max_connections.store(limit, Ordering::Relaxed);
    }

    /// Open connections, and requests that got none since the start.
    pub(super) fn usage(&self) -> (usize, u64) {
        (self.open.load(Ordering::Relaxed), self.refusals.load(Ordering::Relaxed))
    }

    /// Counts a request that got no connection.
    pub(super) fn count_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// Whether a request waits for a connection.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// A permit to open a connection, if there is one.
    pub(super) fn try_acquire(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let limit = self.max_connections();
        let below_limit = |open| (open < limit).then_some(open + 1);
        let counted = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below_limit);
        counted.is_ok().then(|| ConnectionPermit(Some(Arc::clone(self))))
    }

    /// Joins the queue; `None` when it is full. The caller then has to look for idle connections: whoever returned one
    /// before this saw no queue.
    pub(super) fn enqueue(self: &Arc<Self>) -> Option<QueuePlace> {
        let (sender, granted) = oneshot::channel();
        let mut queue = self.queue.lock();
        // Permits are given back under the lock, so none is overlooked between this and the queue.
        if let Some(permit) = self.try_acquire() {
            let _ = sender.send(Granted::Permit(permit));
        } else if queue.len() < self.max_waiting {
            queue.push_back(sender);
            self.waiting.store(queue.len(), Ordering::Relaxed);
        } else {
            return None;
        }
        drop(queue);
        Some(QueuePlace { granted, limit: Arc::clone(self) })
    }

    /// Gives something to the first request in the queue; returns it when nobody waits.
    pub(super) fn offer(&self, granted: Granted) -> Option<Granted> {
        Self::offer_locked(&self.waiting, &mut self.queue.lock(), granted)
    }

    fn offer_locked(
        waiting: &AtomicUsize,
        queue: &mut VecDeque<oneshot::Sender<Granted>>,
        mut granted: Granted,
    ) -> Option<Granted> {
        while let Some(sender) = queue.pop_front() {
            waiting.store(queue.len(), Ordering::Relaxed);
            match sender.send(granted) {
                Ok(()) => return None,
                Err(returned) => granted = returned,
            }
        }
        Some(granted)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let Some(limit) = self.0.take() else { return };
        let mut queue = limit.queue.lock();
        let granted = Granted::Permit(Self(Some(Arc::clone(&limit))));
        if let Some(Granted::Permit(mut unused)) = ConnectionLimit::offer_locked(&limit.waiting, &mut queue, granted) {
            unused.0 = None;
            limit.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        // What was granted meanwhile goes to the next in the queue when the receiver is dropped.
        self.granted.close();
        let mut queue = self.limit.queue.lock();
        queue.retain(|sender| !sender.is_closed());
        self.limit.waiting.store(queue.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted_permit(place: &mut QueuePlace) -> Option<ConnectionPermit> {
        match place.granted.try_recv() {
            Ok(Granted::Permit(permit)) => Some(permit),
            _ => None,
        }
    }

    #[test]
    fn permits_are_granted_in_the_order_of_the_queue() {
        let limit = ConnectionLimit::new(2, 3);
        let (one, two) = (limit.try_acquire().unwrap(), limit.try_acquire().unwrap());
        assert!(limit.try_acquire().is_none());
        let mut places = [limit.enqueue().unwrap(), limit.enqueue().unwrap(), limit.enqueue().unwrap()];
        assert!(limit.enqueue().is_none(), "the queue is full");
        assert!(limit.has_waiting());
        drop(one);
        let first = granted_permit(&mut places[0]).expect("the first in the queue");
        assert!(limit.try_acquire().is_none(), "nobody overtakes the queue");
        drop(two);
        let second = granted_permit(&mut places[1]).expect("the second in the queue");
        drop((first, second));
        assert!(granted_permit(&mut places[2]).is_some());
        drop(places);
        assert!(!limit.has_waiting());
        assert_eq!(limit.open.load(Ordering::Relaxed), 0, "every permit was given back");
    }

    #[test]
    fn permit_of_a_request_that_left_goes_to_the_next() {
        let limit = ConnectionLimit::new(1, 3);
        let permit = limit.try_acquire().unwrap();
        let [left_waiting, left_granted, mut last] = [(); 3].map(|()| limit.enqueue().unwrap());
        drop(left_waiting);
        drop(permit);
        // The permit is in the hands of a request that goes away without having taken it.
        drop(left_granted);
        assert!(granted_permit(&mut last).is_some());
        assert!(limit.enqueue().is_some_and(|mut place| granted_permit(&mut place).is_some()));
        assert_eq!(limit.open.load(Ordering::Relaxed), 0);
    }
}
