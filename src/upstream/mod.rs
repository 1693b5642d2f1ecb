//! Servers that we call.

use tokio::sync::broadcast;

use crate::dialect::lower::Server;
use crate::elements::Elements;
use crate::exchange::{Call, Change, Replies};
use crate::protocol::Raw;

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
