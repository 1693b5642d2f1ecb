//! Messages of an upstream that belong to no call, and the bounded queue that carries them.

use std::sync::Arc;

use tokio::sync::mpsc::{self, OwnedPermit};

use parking_lot::Mutex;

use crate::call::ServerRequest;
use crate::protocol::Notification;

/// A message of an upstream that belongs to no call.
#[derive(Debug)]
pub enum Unsolicited {
    /// A change notification or a log message.
    Notification(Notification),
    /// A request to the client that names no call.
    ServerRequest(ServerRequest),
    /// The server had lost our session and a new one was opened, without subscriptions and log level.
    SessionReopened,
    /// Messages were dropped or not received; lists and subscribed resources must be read again.
    Missed,
}

/// Sends without waiting. When the queue is full, a message is dropped and [`Unsolicited::Missed`] follows: one queue slot
/// is reserved for it, so the last change of a burst is never lost silently.
#[derive(Debug, Clone)]
pub(super) struct UnsolicitedSender {
    sender: mpsc::Sender<Unsolicited>,
    /// The reserved slot; `None` after `Missed` was sent, until the slot can be reserved again.
    missed_permit: Arc<Mutex<Option<OwnedPermit<Unsolicited>>>>,
}

impl UnsolicitedSender {
    pub(super) fn new(sender: mpsc::Sender<Unsolicited>) -> Self {
        let missed_permit = sender.clone().try_reserve_owned().ok();
        Self { sender, missed_permit: Arc::new(Mutex::new(missed_permit)) }
    }

    pub(super) fn send(&self, message: Unsolicited) {
        let mut missed_permit = self.missed_permit.lock();
        if missed_permit.is_none() {
            // While an unread `Missed` is queued, it also covers what is dropped now.
            *missed_permit = self.sender.clone().try_reserve_owned().ok();
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(message) {
            tracing::debug!("upstream notification dropped: queue is full");
            if let Some(permit) = missed_permit.take() {
                permit.send(Unsolicited::Missed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::NotificationMethod;

    fn notification() -> Unsolicited {
        Unsolicited::Notification(Notification::new(NotificationMethod::ToolsChanged, None))
    }

    /// The queued messages: `m` for `Missed`, `n` for any other.
    fn drain(receiver: &mut mpsc::Receiver<Unsolicited>) -> String {
        std::iter::from_fn(|| receiver.try_recv().ok())
            .map(|message| if matches!(message, Unsolicited::Missed) { 'm' } else { 'n' })
            .collect()
    }

    #[test]
    fn full_queue_ends_with_missed() {
        let (sender, mut receiver) = mpsc::channel(4);
        let sender = UnsolicitedSender::new(sender);
        for _ in 0..3 {
            (0..3).for_each(|_| sender.send(notification()));
            assert_eq!(drain(&mut receiver), "nnn", "no message is dropped");
            (0..9).for_each(|_| sender.send(notification()));
            assert_eq!(drain(&mut receiver), "nnnm");
        }
        // Messages are dropped again after `Missed` was read and before the queue is empty.
        (0..9).for_each(|_| sender.send(notification()));
        for _ in 0..4 {
            receiver.try_recv().unwrap();
        }
        (0..9).for_each(|_| sender.send(notification()));
        assert_eq!(drain(&mut receiver), "nnnm");
    }

    #[test]
    fn channel_closes_with_its_senders() {
        let (sender, mut receiver) = mpsc::channel(4);
        drop(UnsolicitedSender::new(sender));
        assert_eq!(receiver.try_recv().unwrap_err(), mpsc::error::TryRecvError::Disconnected);
    }
}
