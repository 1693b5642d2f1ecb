//! Change notifications, in either era.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::broadcast;

use super::Client;
use crate::call::{ChangeEvent, Replies, Reply};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::mcp_client::Connection;
use crate::protocol::{Method, Notification, NotificationMethod, Raw};

/// Which changes to listen for.
#[derive(Debug, Clone, Default)]
pub struct ListenRequest {
    /// Changes to the lists of tools, prompts and resources.
    pub lists: bool,
    /// Changes to these resources.
    pub resources: Vec<String>,
}

/// A stream of change notifications.
#[derive(Debug)]
pub struct Listening(ListenSource);

#[derive(Debug)]
enum ListenSource {
    /// `subscriptions/listen`: a call that stays open.
    Call(Replies),
    /// Notifications of the handshake-era session, filtered.
    Session(Box<SessionSource>),
}

#[derive(Debug)]
struct SessionSource {
    notifications: broadcast::Receiver<Notification>,
    request: ListenRequest,
    connection: Arc<Connection>,
    /// Synthesized notifications after the channel lagged.
    missed: VecDeque<Notification>,
}

/// Timeout for the acknowledgement of `subscriptions/listen`.
const LISTEN_ACK_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn listen(client: &Client, request: ListenRequest) -> Result<Listening> {
    if !client.revision().listens_by_call() {
        let notifications = client.state.notifications.subscribe();
        for uri in &request.resources {
            client.request(Method::Subscribe, Some(Raw::of(&json!({ "uri": uri })))).await?;
            client.state.subscriptions.lock().push(uri.clone());
        }
        let connection = Arc::clone(&client.connection);
        let source = SessionSource { notifications, request, connection, missed: VecDeque::new() };
        return Ok(Listening(ListenSource::Session(Box::new(source))));
    }
    let lists = request.lists;
    let filter = json!({
        "toolsListChanged": lists,
        "promptsListChanged": lists,
        "resourcesListChanged": lists,
        "resourceSubscriptions": request.resources,
    });
    let mut replies = client.begin(Method::Listen, Some(Raw::of(&json!({ "notifications": filter }))));
    let first = tokio::time::timeout(LISTEN_ACK_TIMEOUT, replies.next()).await;
    match first.map_err(|_| missing_ack())? {
        Some(Reply::Notification(first)) if first.method == NotificationMethod::Acknowledged => {
            Ok(Listening(ListenSource::Call(replies)))
        }
        Some(Reply::End(answer)) => Err(answer.outcome.err().map_or_else(missing_ack, Error::from_error_object)),
        _ => Err(missing_ack()),
    }
}

fn missing_ack() -> Error {
    Error::failure(FailureKind::Protocol, "the server did not acknowledge subscriptions/listen")
}

impl Listening {
    /// The next change; `None` when the server ended the subscription or the connection closed.
    pub async fn next(&mut self) -> Option<Notification> {
        match &mut self.0 {
            ListenSource::Call(replies) => loop {
                match replies.next().await? {
                    Reply::Notification(notification) => return Some(notification),
                    Reply::ServerRequest(_) | Reply::Piece(_) => {}
                    Reply::End(_) => return None,
                }
            },
            ListenSource::Session(source) => source.next().await,
        }
    }
}

impl SessionSource {
    async fn next(&mut self) -> Option<Notification> {
        loop {
            if let Some(missed) = self.missed.pop_front() {
                return Some(missed);
            }
            let received = tokio::select! {
                received = self.notifications.recv() => received,
                _ = self.connection.closed() => return None,
            };
            match received {
                Ok(notification) if self.request.matches(&notification) => return Some(notification),
                Ok(_) => {}
                // The lost notifications are unknown, so report every subscribed item as changed.
                Err(broadcast::error::RecvError::Lagged(_)) => self.missed = self.request.all_notifications(),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

impl ListenRequest {
    /// One notification for each subscribed list and resource.
    fn all_notifications(&self) -> VecDeque<Notification> {
        let lists = ChangeEvent::LISTS.into_iter().filter(|_| self.lists);
        let updates = self.resources.iter().map(|uri| ChangeEvent::ResourceUpdated(uri.as_str().into()));
        lists.chain(updates).map(|change| change.notification()).collect()
    }

    fn matches(&self, notification: &Notification) -> bool {
        match notification.method {
            NotificationMethod::ToolsChanged
            | NotificationMethod::PromptsChanged
            | NotificationMethod::ResourcesChanged => self.lists,
            NotificationMethod::ResourceUpdated => {
                let uri = notification.params.as_ref().and_then(|params| params.get("uri"));
                let uri = uri.as_ref().and_then(Raw::text).unwrap_or_default();
                // The URI of an update may be a sub-resource of the subscribed one.
                self.resources.iter().any(|wanted| uri.starts_with(wanted.as_str()))
            }
            _ => false,
        }
    }
}
