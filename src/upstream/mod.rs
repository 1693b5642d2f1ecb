//! Servers that we call.
//!
//! A [`Connection`] reaches one over stdio, HTTP+SSE or Streamable HTTP, whatever revision it
//! speaks; [`Target`] says where it is. What it says by itself, outside of any call, is
//! [`Unsolicited`].

mod child;
mod connect;
mod connection;
mod duplex;
mod events;
mod health;
mod http;
mod http_call;
mod managed;
mod reaper;
mod sse;
mod stdio;
mod target;
mod web;

use tokio::sync::broadcast;

use crate::dialect::lower::Server;
use crate::elements::Elements;
use crate::exchange::{Call, Change, Question, Replies};
use crate::protocol::{Notification, Raw};

pub use connect::Found;
pub use connection::Connection;
pub use health::{Health, Phase};
pub use managed::Managed;
pub use target::{Address, Command, HttpTransport, Settings, Target};

/// What an upstream says outside of any call.
#[derive(Debug)]
pub enum Unsolicited {
    /// Something changed, or is worth logging.
    Notice(Notification),
    /// It wants to know something of the client.
    Question(Question),
    /// It had forgotten our session, and a new one was opened: what was subscribed to is not.
    Reopened,
}

/// One server, whatever way it is reached.
#[derive(Debug, Clone)]
pub enum Upstream {
    /// The periodic table, in this process.
    Elements(Elements),
}

impl Upstream {
    /// What the server says of itself.
    pub fn server(&self) -> &Server {
        match self {
            Self::Elements(elements) => elements.server(),
        }
    }

    /// Passes a call on.
    pub fn call(&self, call: &Call) -> Replies {
        match self {
            Self::Elements(elements) => elements.call(call),
        }
    }

    /// Its list of tools as it was last seen.
    pub fn tools(&self) -> Option<Raw> {
        match self {
            Self::Elements(elements) => Some(elements.tools().clone()),
        }
    }

    /// What changes there, as it changes.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        match self {
            Self::Elements(elements) => elements.changes(),
        }
    }

    /// Does what has to be done in the background, for as long as the upstream lives.
    pub async fn run(self) {
        match self {
            Self::Elements(elements) => elements.run().await,
        }
    }
}
