//! Session id of a handshake-era server, and the requests that use it.
//!
//! [`SessionSlot::acquire`] is the only way to the id: it returns a [`SessionUse`] and fails once the session is ending.
//! [`SessionSlot::end`] waits for all uses before it hands the id out for DELETE. Without that order a server could read
//! DELETE on one connection before a request that is still on its way on another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::http::client::InFlight;

/// Session of one connection. A per-request server has no session: uses then carry no id, and the rest applies as well.
#[derive(Debug, Default)]
pub(in crate::mcp_client) struct SessionSlot {
    state: Mutex<SlotState>,
    uses: TaskTracker,
    /// Set when the wait for uses is over: acquired requests that were not sent yet must not be sent.
    revoked: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct SlotState {
    id: Option<HeaderValue>,
    /// Number of sessions opened so far.
    generation: u64,
    is_ending: bool,
}

/// One request of the session, which is not deleted while this is held.
#[derive(Debug)]
pub(in crate::mcp_client) struct SessionUse {
    id: Option<HeaderValue>,
    generation: u64,
    in_flight: InFlight,
}

impl SessionSlot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock()
    }

    /// The session, for one request. If its caller goes away, the response is awaited for at most `abandoned_timeout`.
    ///
    /// # Errors
    /// When the session is ending or has ended.
    pub(in crate::mcp_client) fn acquire(&self, abandoned_timeout: Duration) -> Result<SessionUse> {
        let state = self.lock();
        if state.is_ending {
            return Err(connection_closed());
        }
        // The token is taken under the lock, so that an end that begins now waits for this use.
        let in_flight = InFlight { token: self.uses.token(), revoked: Arc::clone(&self.revoked), abandoned_timeout };
        Ok(SessionUse { id: state.id.clone(), generation: state.generation, in_flight })
    }

    /// Sets the id of a new session.
    ///
    /// # Errors
    /// When the connection is closing; the caller then has to delete the session.
    pub(in crate::mcp_client) fn open(&self, id: Option<&HeaderValue>) -> Result<()> {
        let mut state = self.lock();
        if state.is_ending {
            return Err(connection_closed());
        }
        state.id = id.cloned();
        state.generation += 1;
        Ok(())
    }

    /// Replaces the id with one from a later response; false when the response is of an earlier session, or names the same
    /// id or none that a header can have.
    pub(in crate::mcp_client) fn rename(&self, id: &[u8], generation: u64) -> bool {
        let mut state = self.lock();
        if state.generation != generation || state.is_ending || state.id.as_ref().is_some_and(|known| known == id) {
            return false;
        }
        let Ok(id) = HeaderValue::from_bytes(id) else { return false };
        state.id = Some(id);
        true
    }

    /// The id, for display and storage; requests must use [`Self::acquire`].
    pub(in crate::mcp_client) fn peek(&self) -> Option<HeaderValue> {
        self.lock().id.clone()
    }

    pub(in crate::mcp_client) fn generation(&self) -> u64 {
        self.lock().generation
    }

    pub(in crate::mcp_client) fn is_ending(&self) -> bool {
        self.lock().is_ending
    }

    /// Refuses new uses from now on.
    pub(in crate::mcp_client) fn begin_end(&self) {
        self.lock().is_ending = true;
        self.uses.close();
    }

    /// Waits for all uses, at most `timeout`, and takes the id for DELETE. Acquired requests that were not sent by then are
    /// revoked.
    pub(in crate::mcp_client) async fn end(&self, timeout: Duration) -> Option<HeaderValue> {
        self.begin_end();
        // Without an id there is no session to delete, and no order to keep.
        self.peek()?;
        let _ = tokio::time::timeout(timeout, self.uses.wait()).await;
        self.revoked.store(true, Ordering::Release);
        self.lock().id.take()
    }
}

impl SessionUse {
    /// The session id, if the server has given one.
    pub(in crate::mcp_client) fn id(&self) -> Option<&HeaderValue> {
        self.id.as_ref()
    }

    /// Number of the session; a reopened session has a higher one.
    pub(in crate::mcp_client) fn generation(&self) -> u64 {
        self.generation
    }

    /// Held by the request until its response begins.
    pub(in crate::mcp_client) fn in_flight(&self) -> InFlight {
        self.in_flight.clone()
    }
}

/// The error of a closed connection.
pub(in crate::mcp_client) fn connection_closed() -> Error {
    Failure::new(FailureKind::Broken, "the connection was closed").before_sending().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    fn open_slot() -> SessionSlot {
        let slot = SessionSlot::default();
        slot.open(Some(&HeaderValue::from_static("one"))).unwrap();
        slot
    }

    #[tokio::test(start_paused = true)]
    async fn ending_session_cannot_be_acquired() {
        let slot = open_slot();
        assert_eq!(slot.acquire(TIMEOUT).unwrap().id().unwrap(), "one");
        slot.begin_end();
        assert!(slot.acquire(TIMEOUT).is_err());
        assert!(slot.open(Some(&HeaderValue::from_static("two"))).is_err());
        assert!(!slot.rename(b"two", 1));
        assert_eq!(slot.end(TIMEOUT).await.unwrap(), "one");
        assert!(slot.acquire(TIMEOUT).is_err());
        assert_eq!(slot.end(TIMEOUT).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn end_waits_for_uses_and_requests_in_flight() {
        let slot = open_slot();
        let used = slot.acquire(TIMEOUT).unwrap();
        let in_flight = used.in_flight();
        let ending = slot.end(TIMEOUT);
        tokio::pin!(ending);
        assert!(futures_util::poll!(&mut ending).is_pending());
        drop(used);
        assert!(futures_util::poll!(&mut ending).is_pending(), "its request has no response yet");
        assert!(!in_flight.is_revoked());
        drop(in_flight);
        assert_eq!(ending.await.unwrap(), "one");
    }

    #[tokio::test(start_paused = true)]
    async fn unsent_requests_are_revoked_after_the_timeout() {
        let slot = open_slot();
        let used = slot.acquire(TIMEOUT).unwrap();
        assert_eq!(slot.end(TIMEOUT).await.unwrap(), "one");
        assert!(used.in_flight().is_revoked());
    }

    #[test]
    fn late_response_does_not_restore_an_earlier_session_id() {
        let slot = open_slot();
        let used = slot.acquire(TIMEOUT).unwrap();
        slot.open(Some(&HeaderValue::from_static("two"))).unwrap();
        assert!(!slot.rename(b"one", used.generation()));
        assert_eq!(slot.peek().unwrap(), "two");
        assert!(slot.rename(b"three", slot.generation()));
    }
}
