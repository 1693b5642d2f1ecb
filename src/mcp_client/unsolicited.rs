//! What an upstream says outside of any call, on its way to whoever hears it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{self, OwnedPermit};

use crate::call::ServerRequest;
use crate::protocol::Notification;

/// What an upstream says outside of any call.
#[derive(Debug)]
pub enum Unsolicited {
    /// Something changed, or is worth logging.
    Notice(Notification),
    /// It wants to know something of the client.
    Question(ServerRequest),
    /// It had forgotten our session, and a new one was opened: what was subscribed to is not.
    Reopened,
    /// What it said for a while was heard by nobody.
    Missed,
}

/// Sends what an upstream says, and never waits. Where the queue is full a message is dropped, and
/// [`Unsolicited::Missed`] takes its place: one slot of the queue is reserved for that, so that the last change of a
/// burst is never lost without a word.
#[derive(Debug, Clone)]
pub(super) struct UnsolicitedSender {
    sender: mpsc::Sender<Unsolicited>,
    spare: Arc<Mutex<Option<OwnedPermit<Unsolicited>>>>,
}

impl UnsolicitedSender {
    pub(super) fn new(sender: mpsc::Sender<Unsolicited>) -> Self {
        let spare = sender.clone().try_reserve_owned().ok();
        Self { sender, spare: Arc::new(Mutex::new(spare)) }
    }

    pub(super) fn send(&self, what: Unsolicited) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            // The last `Missed` was read, or still waits: what is dropped before it is read is covered by it.
            *spare = self.sender.clone().try_reserve_owned().ok();
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(what) {
            tracing::debug!("upstream notification dropped: its queue is full");
            if let Some(spare) = spare.take() {
                spare.send(Unsolicited::Missed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Notice;

    fn notice() -> Unsolicited {
        Unsolicited::Notice(Notification::new(Notice::ToolsChanged, None))
    }

    /// What waits, `m` for `Missed`.
    fn drain(receiver: &mut mpsc::Receiver<Unsolicited>) -> String {
        std::iter::from_fn(|| receiver.try_recv().ok())
            .map(|what| if matches!(what, Unsolicited::Missed) { 'm' } else { 'n' })
            .collect()
    }

    #[test]
    fn a_full_queue_ends_with_missed_however_much_is_dropped() {
        let (sender, mut receiver) = mpsc::channel(4);
        let sender = UnsolicitedSender::new(sender);
        for _ in 0..3 {
            (0..3).for_each(|_| sender.send(notice()));
            assert_eq!(drain(&mut receiver), "nnn", "nothing was dropped");
            (0..9).for_each(|_| sender.send(notice()));
            assert_eq!(drain(&mut receiver), "nnnm");
        }
        // Something is dropped again after `Missed` was read, and before the queue is empty.
        (0..9).for_each(|_| sender.send(notice()));
        for _ in 0..4 {
            receiver.try_recv().unwrap();
        }
        (0..9).for_each(|_| sender.send(notice()));
        assert_eq!(drain(&mut receiver), "nnnm");
    }

    #[test]
    fn the_channel_closes_with_its_senders() {
        let (sender, mut receiver) = mpsc::channel(4);
        drop(UnsolicitedSender::new(sender));
        assert_eq!(receiver.try_recv().unwrap_err(), mpsc::error::TryRecvError::Disconnected);
    }
}
