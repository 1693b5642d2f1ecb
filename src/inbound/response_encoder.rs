//! Encodes replies for one client request: with its id, in its revision, with the group's server info.

use std::sync::Arc;

use bytes::Bytes;

use crate::call::{Answer, Reply};
use crate::dialect::{Revision, to_client};
use crate::gateway::Group;
use crate::protocol::{ErrorObject, Id, Method, Outcome, Response, code};

/// Encodes the replies to one call.
#[derive(Debug, Clone)]
pub(super) struct ReplyEncoder {
    pub(super) id: Id,
    pub(super) method: Method,
    pub(super) revision: Revision,
    pub(super) group: Arc<Group>,
}

impl ReplyEncoder {
    /// Converts an outcome to the client's revision.
    pub(super) fn outcome(&self, answer: Answer) -> Outcome {
        to_client::convert_outcome(
            answer.outcome,
            &self.method,
            answer.revision,
            self.revision,
            &self.group.view(self.revision).server,
        )
    }

    /// Encodes the final response.
    pub(super) fn response(&self, answer: Answer) -> Bytes {
        self.encode_outcome(self.outcome(answer))
    }

    pub(super) fn encode_outcome(&self, outcome: Outcome) -> Bytes {
        Response::new(Some(self.id.clone()), outcome).encode()
    }

    /// Encodes a reply. A server request cannot be sent to a per-request client: it is answered with an error, and
    /// the result is `None`.
    pub(super) fn encode(&self, reply: Reply) -> Option<Bytes> {
        match reply {
            Reply::Notification(notification) => {
                Some(to_client::convert_notification(notification, self.revision).encode())
            }
            Reply::End(answer) => Some(self.response(answer)),
            Reply::ServerRequest(question) => {
                let why = format!("the client cannot be asked {}", question.method);
                // The upstream may have cancelled the request; then the error is not needed.
                let _ = question.responder.send(Err(ErrorObject::new(code::METHOD_NOT_FOUND, why)));
                None
            }
        }
    }
}
