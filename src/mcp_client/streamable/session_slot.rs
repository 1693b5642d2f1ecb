//! The id of the session that a server of the handshake era gave us, and who is using it.
//!
//! The id can be had in one way only: [`SessionSlot::acquire`] gives a [`SessionUse`], and fails once the end of the
//! session has begun. [`SessionSlot::end`] waits for every use before it gives the id to the one who sends DELETE.
//!
//! Before, a request copied the id and the end of the session did not know of it. The catalog task and the task that
//! keeps the connection stop at the same moment: the first was about to POST `tools/list`, or had just been dropped with
//! that request unanswered on one connection; the second sent DELETE on another, and the server read DELETE first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use tokio_util::task::TaskTracker;

use crate::error::{Error, ErrorKind, Result};
use crate::http::client::InFlight;

/// The session of one connection. A per-request server has none: then uses carry no id, and the rest holds as well.
#[derive(Debug, Default)]
pub(in crate::mcp_client) struct SessionSlot {
    state: Mutex<SlotState>,
    uses: TaskTracker,
    /// The session ends now: what was acquired and is not on its way must not be sent any more.
    revoked: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct SlotState {
    id: Option<HeaderValue>,
    /// Counts the sessions that were opened.
    generation: u64,
    ending: bool,
}

/// One request in the session. The session is not ended while it is held.
#[derive(Debug)]
pub(in crate::mcp_client) struct SessionUse {
    id: Option<HeaderValue>,
    generation: u64,
    in_flight: InFlight,
}

impl SessionSlot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, for one request that the server may take `limit` to answer once nobody waits for it any more.
    ///
    /// # Errors
    /// When the session is ending, or has ended.
    pub(in crate::mcp_client) fn acquire(&self, limit: Duration) -> Result<SessionUse> {
        let state = self.lock();
        if state.ending {
            return Err(closed());
        }
        // Counted under the lock, so that an end that begins now waits for it.
        let in_flight = InFlight { token: self.uses.token(), revoked: Arc::clone(&self.revoked), limit };
        Ok(SessionUse { id: state.id.clone(), generation: state.generation, in_flight })
    }

    /// A session was opened.
    ///
    /// # Errors
    /// When the end of this connection has begun; then whoever opened it has to end it.
    pub(in crate::mcp_client) fn open(&self, id: Option<&HeaderValue>) -> Result<()> {
        let mut state = self.lock();
        if state.ending {
            return Err(closed());
        }
        state.id = id.cloned();
        state.generation += 1;
        Ok(())
    }

    /// The server names the session anew in a response; false when that is of an earlier session, or no news.
    pub(in crate::mcp_client) fn rename(&self, id: HeaderValue, generation: u64) -> bool {
        let mut state = self.lock();
        if state.generation != generation || state.ending || state.id.as_ref() == Some(&id) {
            return false;
        }
        state.id = Some(id);
        true
    }

    /// The id, to be shown or stored; never to be sent.
    pub(in crate::mcp_client) fn peek(&self) -> Option<HeaderValue> {
        self.lock().id.clone()
    }

    pub(in crate::mcp_client) fn generation(&self) -> u64 {
        self.lock().generation
    }

    pub(in crate::mcp_client) fn is_ending(&self) -> bool {
        self.lock().ending
    }

    /// Nothing can be acquired from now on.
    pub(in crate::mcp_client) fn begin_end(&self) {
        self.lock().ending = true;
        self.uses.close();
    }

    /// Waits until everything that was acquired is answered, but no longer than `limit`, and gives the id to whoever
    /// ends the session. What was not sent by then is not sent.
    pub(in crate::mcp_client) async fn end(&self, limit: Duration) -> Option<HeaderValue> {
        self.begin_end();
        // Without an id there is no session, and nothing whose order could matter.
        self.peek()?;
        let _ = tokio::time::timeout(limit, self.uses.wait()).await;
        self.revoked.store(true, Ordering::Release);
        self.lock().id.take()
    }
}

impl SessionUse {
    /// What says which session it is.
    pub(in crate::mcp_client) fn id(&self) -> Option<&HeaderValue> {
        self.id.as_ref()
    }

    /// Tells this session from the one that is opened when the server forgot it.
    pub(in crate::mcp_client) fn generation(&self) -> u64 {
        self.generation
    }

    /// What the request carries until its response begins.
    pub(in crate::mcp_client) fn in_flight(&self) -> InFlight {
        self.in_flight.clone()
    }
}

/// What is said of a connection that was closed.
pub(in crate::mcp_client) fn closed() -> Error {
    Error::new(ErrorKind::Broken, "the connection was closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn opened() -> SessionSlot {
        let slot = SessionSlot::default();
        slot.open(Some(&HeaderValue::from_static("one"))).unwrap();
        slot
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_ending_cannot_be_acquired() {
        let slot = opened();
        assert_eq!(slot.acquire(LIMIT).unwrap().id().unwrap(), "one");
        slot.begin_end();
        assert!(slot.acquire(LIMIT).is_err());
        assert!(slot.open(Some(&HeaderValue::from_static("two"))).is_err());
        assert!(!slot.rename(HeaderValue::from_static("two"), 1));
        assert_eq!(slot.end(LIMIT).await.unwrap(), "one");
        assert!(slot.acquire(LIMIT).is_err());
        assert_eq!(slot.end(LIMIT).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_every_use_and_for_what_is_in_flight_after_it() {
        let slot = opened();
        let used = slot.acquire(LIMIT).unwrap();
        let in_flight = used.in_flight();
        let ending = slot.end(LIMIT);
        tokio::pin!(ending);
        assert!(futures_util::poll!(&mut ending).is_pending());
        drop(used);
        assert!(futures_util::poll!(&mut ending).is_pending(), "its request is not answered");
        assert!(!in_flight.is_revoked());
        drop(in_flight);
        assert_eq!(ending.await.unwrap(), "one");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_sent_when_the_wait_is_over_is_never_sent() {
        let slot = opened();
        let used = slot.acquire(LIMIT).unwrap();
        assert_eq!(slot.end(LIMIT).await.unwrap(), "one");
        assert!(used.in_flight().is_revoked());
    }

    #[test]
    fn a_late_response_does_not_bring_an_earlier_session_back() {
        let slot = opened();
        let used = slot.acquire(LIMIT).unwrap();
        slot.open(Some(&HeaderValue::from_static("two"))).unwrap();
        assert!(!slot.rename(HeaderValue::from_static("one"), used.generation()));
        assert_eq!(slot.peek().unwrap(), "two");
        assert!(slot.rename(HeaderValue::from_static("three"), slot.generation()));
    }
}
