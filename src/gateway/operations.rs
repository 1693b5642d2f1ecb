//! What metrics know of the operations of a group: requests of its clients, and requests to its servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::group::Group;
use super::name_mapping::NameMapping;
use super::names::prefixed_name;
use crate::call::{Call, Caller, InputClock};
use crate::dialect::Revision;
use crate::metrics::{
    CallMetrics, NetworkTransport, OperationError, OperationLabels, OperationMetrics, OperationSide, OperationTarget,
};
use crate::protocol::{ErrorObject, Key, Method, Outcome, Payload};
use crate::upstream::{Leg, List};

/// A request of a client, until its response is known. One that is dropped before was cancelled.
#[derive(Debug)]
pub struct ServerOperation {
    group: Arc<Group>,
    labels: OperationLabels,
    started: Instant,
    /// Set where the client was sent requests.
    input: Option<Arc<InputClock>>,
    is_recorded: bool,
}

/// A request to a server that has ended.
pub(super) struct ClientOperation<'c> {
    pub(super) call: &'c Call,
    pub(super) leg: &'c Leg,
    pub(super) metrics: &'c CallMetrics,
    pub(super) name_mapping: &'c NameMapping,
    /// The revision of the connection, if there was one.
    pub(super) revision: Option<Revision>,
    pub(super) error: Option<OperationError>,
    pub(super) took: Duration,
}

/// The error of what was cancelled.
pub(super) const CANCELLED: OperationError = OperationError::of_kind("cancelled");
/// The error of a tool result with `isError`.
pub(super) const TOOL_ERROR: OperationError = OperationError::of_kind("tool_error");

/// How metrics name an error.
pub(super) fn operation_error(error: &ErrorObject) -> OperationError {
    OperationError::of_code(error.code(), error.failure().map(|failure| failure.kind().name()))
}

/// How metrics name the failure of an outcome.
pub(super) fn outcome_error(method: &Method, outcome: &Outcome) -> Option<OperationError> {
    match outcome {
        Ok(result) => (*method == Method::ToolsCall && result.is_true(Key::IsError)).then_some(TOOL_ERROR),
        Err(error) => Some(operation_error(error)),
    }
}

impl Group {
    /// Begins to measure a request of a client.
    pub fn begin_operation(
        self: &Arc<Self>,
        (method, params): (&Method, Option<&Payload>),
        revision: Option<Revision>,
        caller: &Caller,
    ) -> ServerOperation {
        let exposed = |name: &str| name.to_owned();
        let labels = OperationLabels {
            place: self.label_name,
            method: OperationMetrics::method(method.known_name()),
            target: self.operation_target(method, params, exposed),
            error: None,
            revision: revision.map(Revision::as_str),
            // A request that no connection brought came over standard input.
            transport: Some(if caller.peer.is_some() { NetworkTransport::Tcp } else { NetworkTransport::Pipe }),
        };
        let group = Arc::clone(self);
        ServerOperation { group, labels, started: Instant::now(), input: None, is_recorded: false }
    }

    /// Measures a request to a server.
    pub(super) fn record_client_operation(&self, operation: &ClientOperation<'_>) {
        let (call, leg) = (operation.call, operation.leg);
        let look_up =
            |exposed: &dyn Fn(&str) -> String| self.operation_target(&call.method, call.params.as_ref(), exposed);
        let target = match &operation.name_mapping.prefix {
            Some(prefix) => look_up(&|name| prefixed_name(prefix, name)),
            // The server has the name that the client used.
            None => call.target_label.or_else(|| look_up(&str::to_owned)),
        };
        let labels = OperationLabels {
            place: operation.metrics.place(|| self.shared.metrics.operations().place(leg.name())),
            method: OperationMetrics::method(call.method.known_name()),
            target,
            error: operation.error,
            revision: operation.revision.map(Revision::as_str),
            transport: match leg.spec() {
                spec if spec.is_local() => None,
                spec if spec.is_child() => Some(NetworkTransport::Pipe),
                _ => Some(NetworkTransport::Tcp),
            },
        };
        self.shared.metrics.operations().record(OperationSide::Client, &labels, operation.took);
    }

    /// The tool or prompt of a request; one that no list has counts with all others.
    fn operation_target(
        &self,
        method: &Method,
        params: Option<&Payload>,
        exposed: impl FnOnce(&str) -> String,
    ) -> Option<OperationTarget> {
        let (list, of_name): (_, fn(_) -> _) = match method {
            Method::ToolsCall => (List::Tools, OperationTarget::Tool),
            Method::PromptsGet => (List::Prompts, OperationTarget::Prompt),
            _ => return None,
        };
        let name = params?.text_of(Key::Name)?;
        let is_listed = || {
            let exposed = exposed(&name);
            let is_in =
                |revision| self.view(revision).resolve_name(list, &exposed).is_some_and(|found| found.listed.is_some());
            is_in(Revision::NEWEST_HANDSHAKE) || is_in(Revision::NEWEST)
        };
        Some(of_name(self.shared.metrics.operations().target(&name, is_listed)))
    }
}

impl ServerOperation {
    /// The tool or prompt that it is about.
    pub fn target(&self) -> Option<OperationTarget> {
        self.labels.target
    }

    /// The group that serves it.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Leaves out the time of this clock, which runs while the client is asked.
    pub fn note_input(&mut self, clock: Option<&Arc<InputClock>>) {
        if let (None, Some(clock)) = (&self.input, clock) {
            self.input = Some(Arc::clone(clock));
        }
    }

    /// Ends the operation with what the client is told, unless it has ended.
    pub fn end(&mut self, method: &Method, outcome: &Outcome) {
        if !self.is_recorded {
            self.record(outcome_error(method, outcome));
        }
    }

    /// Ends the operation of a request that got a result.
    pub fn succeed(&mut self, revision: Revision) {
        self.labels.revision = Some(revision.as_str());
        self.record(None);
    }

    /// Ends the operation of a request that was turned away.
    pub fn reject(&mut self) {
        self.record(Some(OperationError::of_kind("rejected")));
    }

    fn record(&mut self, error: Option<OperationError>) {
        if std::mem::replace(&mut self.is_recorded, true) {
            return;
        }
        self.labels.error = error;
        let waited = self.input.as_ref().map_or(Duration::ZERO, |clock| clock.waited());
        let took = self.started.elapsed().saturating_sub(waited);
        self.group.shared.metrics.operations().record(OperationSide::Server, &self.labels, took);
    }
}

impl Drop for ServerOperation {
    fn drop(&mut self) {
        self.record(Some(CANCELLED));
    }
}
