//! Replies in the client's own words: its id, its revision, its group's identity.

use std::sync::Arc;

use bytes::Bytes;

use crate::call::{Answer, Reply};
use crate::dialect::{Revision, to_client};
use crate::gateway::Group;
use crate::protocol::{ErrorObject, Id, Method, Outcome, Response, code};

/// What is needed to write the replies to one call.
#[derive(Debug, Clone)]
pub(super) struct ReplyEncoder {
    pub(super) id: Id,
    pub(super) method: Method,
    pub(super) revision: Revision,
    pub(super) group: Arc<Group>,
}

impl ReplyEncoder {
    /// The outcome as this client's revision has it.
    pub(super) fn outcome(&self, answer: Answer) -> Outcome {
        to_client::outcome(answer.outcome, &self.method, answer.revision, self.revision, &self.group.view().server)
    }

    /// The whole response.
    pub(super) fn response(&self, answer: Answer) -> Bytes {
        self.encode_outcome(self.outcome(answer))
    }

    pub(super) fn encode_outcome(&self, outcome: Outcome) -> Bytes {
        Response::new(Some(self.id.clone()), outcome).encode()
    }

    /// A reply as a message; nothing for a question, which a client of the per-request era
    /// cannot be sent: whoever asked learns that there will be no answer.
    pub(super) fn encode(&self, reply: Reply) -> Option<Bytes> {
        match reply {
            Reply::Notice(notification) => Some(to_client::notification(notification, self.revision).encode()),
            Reply::End(answer) => Some(self.response(answer)),
            Reply::Question(question) => {
                let why = format!("the client cannot be asked {}", question.method);
                // The upstream may have stopped waiting; then nobody has to be told.
                let _ = question.answer.send(Err(ErrorObject::new(code::METHOD_NOT_FOUND, why)));
                None
            }
        }
    }
}
