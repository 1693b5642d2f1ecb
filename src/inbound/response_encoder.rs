//! Encodes replies for one client request: with its id, in its revision, with the group's server info.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::access_log::AccessRecord;
use crate::call::{Answer, Call, Caller, Reply};
use crate::dialect::{Revision, to_client};
use crate::gateway::{Group, ServerOperation};
use crate::protocol::{ErrorObject, Id, Method, Outcome, Raw, Request, Response, code};
use crate::session::Session;

/// Encodes the replies to one call.
#[derive(Debug)]
pub(super) struct ReplyEncoder {
    pub(super) id: Id,
    pub(super) method: Method,
    pub(super) revision: Revision,
    /// Ends with the response; has the group.
    pub(super) operation: ServerOperation,
    /// The pieces of the result so far, where the response cannot be written in pieces any more.
    pub(super) gathered: BytesMut,
    /// The record of the request in the access log.
    pub(super) access: Option<Arc<AccessRecord>>,
}

impl ReplyEncoder {
    /// Encodes the replies to a call of the per-request era.
    pub(super) fn of_call(call: Call, operation: ServerOperation) -> Self {
        Self {
            id: call.id,
            method: call.method,
            revision: call.client.revision,
            operation,
            gathered: BytesMut::new(),
            access: call.caller.access.clone(),
        }
    }

    /// Encodes the replies to a request of a session.
    pub(super) fn in_session(session: &Session, request: &Request, group: &Arc<Group>, caller: &Caller) -> Self {
        let revision = session.client().map(|client| client.revision);
        let operation = group.begin_operation((&request.method, request.params.as_ref()), revision, caller);
        Self {
            id: request.id.clone(),
            method: request.method.clone(),
            revision: revision.unwrap_or(Revision::NEWEST_HANDSHAKE),
            operation,
            gathered: BytesMut::new(),
            access: caller.access.clone(),
        }
    }

    /// Ends the operation, and converts an outcome to the client's revision. In this order: a converted result has no index
    /// of its members.
    pub(super) fn outcome(&mut self, answer: Answer) -> Outcome {
        self.operation.end(&self.method, &answer.outcome);
        to_client::convert_outcome(
            answer.outcome,
            &self.method,
            answer.revision,
            self.revision,
            &self.operation.group().view(self.revision).server,
        )
    }

    /// Encodes the final response.
    pub(super) fn response(&mut self, answer: Answer) -> Bytes {
        let outcome = self.outcome(answer);
        self.encode_outcome(outcome)
    }

    pub(super) fn encode_outcome(&mut self, outcome: Outcome) -> Bytes {
        self.operation.end(&self.method, &outcome);
        let error = outcome.as_ref().err().map(ErrorObject::code);
        let reason = self.access.as_ref().and_then(|_| Some(outcome.as_ref().err()?.failure()?.kind().name()));
        let encoded = Response::new(Some(self.id.clone()), outcome).encode();
        if let Some(access) = &self.access {
            if let Some(reason) = reason {
                access.note_reason(reason);
            }
            access.note_reply(encoded.len(), error);
        }
        encoded
    }

    /// Encodes a reply; pieces of a result are gathered until its end. A server request cannot be sent to a per-request client: it is answered with an error, and
    /// the result is `None`.
    pub(super) fn encode(&mut self, reply: Reply) -> Option<Bytes> {
        match reply {
            Reply::Notification(notification) => {
                Some(to_client::convert_notification(notification, self.revision).encode())
            }
            Reply::Piece(piece) => {
                self.gathered.extend_from_slice(&piece);
                None
            }
            Reply::End(mut answer) => {
                if answer.outcome.is_ok() && !self.gathered.is_empty() {
                    // Every piece was checked as it arrived, and the end came only after the last.
                    answer.outcome = Ok(Raw::trusted(self.gathered.split().freeze()).into());
                }
                Some(self.response(answer))
            }
            Reply::ServerRequest(question) => {
                let why = format!("the client cannot be asked {}", question.method);
                // The upstream may have cancelled the request; then the error is not needed.
                let _ = question.responder.send(Err(ErrorObject::new(code::METHOD_NOT_FOUND, why)));
                None
            }
        }
    }
}
