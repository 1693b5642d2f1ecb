//! Hearing of changes, in either era.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::broadcast;

use super::Client;
use crate::error::{Error, Kind, Result};
use crate::exchange::{Replies, Reply};
use crate::protocol::{Method, Notice, Notification, Raw};
use crate::upstream::Connection;

/// What to hear of.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Changes to the lists of tools, prompts and resources.
    pub lists: bool,
    /// Changes to these resources.
    pub resources: Vec<String>,
}

/// Changes, as they come.
#[derive(Debug)]
pub struct Listening(Source);

#[derive(Debug)]
enum Source {
    /// A call that stays open.
    Call(Replies),
    /// What the session hears anyway.
    Session(broadcast::Receiver<Notification>, Wishes, Arc<Connection>),
}

/// How long a server may take to say what it will tell of.
const ACKNOWLEDGEMENT: Duration = Duration::from_secs(10);

pub(super) async fn listen(client: &Client, wishes: Wishes) -> Result<Listening> {
    if client.revision().facts().sessions {
        let notices = client.state.notices.subscribe();
        for uri in &wishes.resources {
            client.request(Method::Subscribe, Some(Raw::of(&json!({ "uri": uri })))).await?;
            client.state.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).push(uri.clone());
        }
        return Ok(Listening(Source::Session(notices, wishes, Arc::clone(&client.connection))));
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
        Some(Reply::Notice(first)) if first.notice == Notice::Acknowledged => Ok(Listening(Source::Call(replies))),
        Some(Reply::End(answer)) => Err(answer.outcome.err().map_or_else(early, Error::answered)),
        _ => Err(early()),
    }
}

fn early() -> Error {
    Error::new(Kind::Protocol, "the server does not begin with what it will tell of")
}

impl Listening {
    /// The next change; nothing when the server tells of no more.
    pub async fn next(&mut self) -> Option<Notification> {
        match &mut self.0 {
            Source::Call(replies) => loop {
                match replies.next().await? {
                    Reply::Notice(notification) => return Some(notification),
                    Reply::Question(_) => {}
                    Reply::End(_) => return None,
                }
            },
            Source::Session(notices, wishes, connection) => loop {
                let heard = tokio::select! {
                    heard = notices.recv() => heard,
                    _ = connection.closed() => return None,
                };
                match heard {
                    Ok(notification) if wishes.cover(&notification) => return Some(notification),
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            },
        }
    }
}

impl Wishes {
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
