//! Hearing of changes, in either era.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::broadcast;

use super::Client;
use crate::call::{ChangeEvent, Replies, Reply};
use crate::error::{Error, ErrorKind, Result};
use crate::mcp_client::Connection;
use crate::protocol::{Method, Notice, Notification, Raw};

/// What to hear of.
#[derive(Debug, Clone, Default)]
pub struct ListenRequest {
    /// Changes to the lists of tools, prompts and resources.
    pub lists: bool,
    /// Changes to these resources.
    pub resources: Vec<String>,
}

/// Changes, as they come.
#[derive(Debug)]
pub struct Listening(ListenSource);

#[derive(Debug)]
enum ListenSource {
    /// A call that stays open.
    Call(Replies),
    /// What the session hears anyway.
    Session(Box<SessionSource>),
}

#[derive(Debug)]
struct SessionSource {
    notices: broadcast::Receiver<Notification>,
    wishes: ListenRequest,
    connection: Arc<Connection>,
    /// What is told in the place of changes that were missed.
    missed: VecDeque<Notification>,
}

/// How long a server may take to say what it will tell of.
const ACKNOWLEDGEMENT: Duration = Duration::from_secs(10);

pub(super) async fn listen(client: &Client, wishes: ListenRequest) -> Result<Listening> {
    if client.revision().facts().sessions {
        let notices = client.state.notices.subscribe();
        for uri in &wishes.resources {
            client.request(Method::Subscribe, Some(Raw::of(&json!({ "uri": uri })))).await?;
            client.state.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).push(uri.clone());
        }
        let connection = Arc::clone(&client.connection);
        let source = SessionSource { notices, wishes, connection, missed: VecDeque::new() };
        return Ok(Listening(ListenSource::Session(Box::new(source))));
    }
    let lists = wishes.lists;
    let asked = json!({
        "toolsListChanged": lists,
        "promptsListChanged": lists,
        "resourcesListChanged": lists,
        "resourceSubscriptions": wishes.resources,
    });
    let mut replies = client.begin(Method::Listen, Some(Raw::of(&json!({ "notifications": asked }))));
    let first = tokio::time::timeout(ACKNOWLEDGEMENT, replies.next()).await;
    match first.map_err(|_| early())? {
        Some(Reply::Notice(first)) if first.notice == Notice::Acknowledged => {
            Ok(Listening(ListenSource::Call(replies)))
        }
        Some(Reply::End(answer)) => Err(answer.outcome.err().map_or_else(early, Error::answered)),
        _ => Err(early()),
    }
}

fn early() -> Error {
    Error::new(ErrorKind::Protocol, "the server does not begin with what it will tell of")
}

impl Listening {
    /// The next change; nothing when the server tells of no more.
    pub async fn next(&mut self) -> Option<Notification> {
        match &mut self.0 {
            ListenSource::Call(replies) => loop {
                match replies.next().await? {
                    Reply::Notice(notification) => return Some(notification),
                    Reply::Question(_) => {}
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
            let heard = tokio::select! {
                heard = self.notices.recv() => heard,
                _ = self.connection.closed() => return None,
            };
            match heard {
                Ok(notification) if self.wishes.cover(&notification) => return Some(notification),
                Ok(_) => {}
                // Which changes were missed is not known, so each may have been.
                Err(broadcast::error::RecvError::Lagged(_)) => self.missed = self.wishes.all(),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

impl ListenRequest {
    /// A notice of each thing that is wished for.
    fn all(&self) -> VecDeque<Notification> {
        let lists = ChangeEvent::LISTS.into_iter().filter(|_| self.lists);
        let updates = self.resources.iter().map(|uri| ChangeEvent::Updated(uri.as_str().into()));
        lists.chain(updates).map(|change| change.notification()).collect()
    }

    fn cover(&self, notification: &Notification) -> bool {
        match notification.notice {
            Notice::ToolsChanged | Notice::PromptsChanged | Notice::ResourcesChanged => self.lists,
            Notice::ResourceUpdated => {
                let uri = notification.params.as_ref().and_then(|params| params.get("uri"));
                let uri = uri.as_ref().and_then(Raw::text).unwrap_or_default();
                // An update may name a part of what was subscribed to.
                self.resources.iter().any(|wanted| uri.starts_with(wanted.as_str()))
            }
            _ => false,
        }
    }
}
