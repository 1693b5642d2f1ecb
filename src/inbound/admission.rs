//! Admission of a request by its head: host and origin, path, credential, in this order. A stranger learns nothing else,
//! and no stranger's body is read.

use std::borrow::Cow;
use std::sync::Arc;

use ::http::header::{ACCEPT, WWW_AUTHENTICATE};
use ::http::{HeaderValue, Method as Verb, Response, StatusCode};

use super::body::ResponseContent;
use super::challenge::{Challenge, add_metadata};
use super::connection::ClientConnection;
use super::console::ConsoleCaller;
use super::respond::{self, Rejection};
use super::route::{RESOURCE_METADATA, Route};
use super::{Inbound, ListenerRole, cors, headers};
use crate::access_log::AccessRecord;
use crate::call::Caller;
use crate::gateway::DEFAULT_GROUP;
use crate::http::codec::RequestHead;
use crate::identity::Identity;
use crate::issuers::TokenError;
use crate::metrics::TextFormat;
use crate::policy::{
    CredentialError, CredentialRequest, Identified, OperationsListener, Policy, RequestSource, Revoked, RulesNumber,
};

/// Outcome of admission.
pub(super) enum Admission<'r> {
    /// A request to an MCP route, admitted by the rules of this number.
    Call(Route<'r>, Arc<Caller>, RulesNumber),
    /// A request to an MCP route whose token has yet to be validated.
    Undecided(Route<'r>, &'r str),
    /// An admitted request for the console.
    Console(Route<'r>, Box<ConsoleCaller>),
    /// The response is complete without a body: probes and CORS preflight.
    Answered(Response<ResponseContent>),
    /// The response is complete, and nothing is added for pages: metrics and status, which none may read, and documents
    /// that every page may read.
    Complete(Response<ResponseContent>),
}

/// What is known of a request before its body is read.
#[derive(Clone)]
pub(super) struct ArrivedRequest<'r> {
    pub(super) head: &'r RequestHead,
    pub(super) request_id: HeaderValue,
    pub(super) connection: &'r ClientConnection,
    /// The record of the request in the access log.
    pub(super) access: Option<Arc<AccessRecord>>,
}

impl Inbound {
    /// Admits a request by its head alone.
    pub(super) fn admit<'r>(&self, request: &ArrivedRequest<'r>) -> Result<Admission<'r>, Rejection> {
        match self.settings().limits.head_fits(&request.head.headers) {
            true => self.admit_route(request),
            false => Err(Rejection::HeadTooLarge),
        }
    }

    /// Routes a request; answers operations routes, public documents and CORS preflight without a body.
    fn admit_route<'r>(&self, request: &ArrivedRequest<'r>) -> Result<Admission<'r>, Rejection> {
        let (policy, head) = (self.policy(), request.head);
        let mut route = Route::parse(head.uri.path(), policy.public_path());
        if let Some(operations @ (Route::Health | Route::Ready | Route::Metrics | Route::Status)) = &route {
            if let Some(answered) = self.serve_operations(&policy, operations, request)? {
                return Ok(answered);
            }
            // For this caller it is a path like any other that nothing is served at.
            route = None;
        }
        if let Some(console @ Route::Console { .. }) = &route {
            return self.admit_console(&policy, console, request);
        }
        if request.connection.role == ListenerRole::Operators {
            return Err(Rejection::NotFound);
        }
        if request.connection.role == ListenerRole::Console {
            let identity = self.console.get().and_then(|console| console.own_caller(&head.headers));
            let (route, identity) = route.zip(identity).ok_or(Rejection::NotFound)?;
            let caller = caller(&policy, identity, request);
            return Ok(Admission::Call(route, Arc::new(caller), policy.number));
        }
        let source = request.source(&policy);
        if let Some(route @ (Route::ResourceMetadata { .. } | Route::AuthorizationServerMetadata)) = &route {
            return self.serve_document(&policy, head, route, source).map(Admission::Complete);
        }
        policy.host_origin.admit(&head.uri, &head.headers).map_err(Rejection::Denied)?;
        let route = route.ok_or(Rejection::NotFound)?;
        if head.verb == Verb::OPTIONS {
            return Ok(Admission::Answered(cors::preflight(&head.headers)));
        }
        match policy.identify(&credential_request(request, &route, source)) {
            Ok(Identified::Caller(identity)) => {
                let caller = caller(&policy, identity, request);
                Ok(Admission::Call(route, Arc::new(caller), policy.number))
            }
            Ok(Identified::Unvalidated(token)) => Ok(Admission::Undecided(route, token)),
            Err(error) => Err(self.reject_credential(&policy, request, &route, error)),
        }
    }

    /// Completes the admission of a request whose token was not known yet. Its body is read after this.
    pub(super) async fn validate_token<'r>(
        &self,
        request: &ArrivedRequest<'r>,
        (route, token): (Route<'r>, &'r str),
    ) -> Result<Admission<'r>, Rejection> {
        let policy = self.policy.load_full();
        let source = request.source(&policy);
        let client = policy.trusted_proxies.client_address(request.connection.peer, &request.head.headers);
        if let Some(wait) = self.failed_credentials.throttle_validation(client) {
            return Err(Rejection::TooManyFailures(wait));
        }
        match policy.validate(&credential_request(request, &route, source), token).await {
            Ok(identity) => {
                let caller = caller(&policy, identity, request);
                Ok(Admission::Call(route, Arc::new(caller), policy.number))
            }
            Err(error) => Err(self.reject_credential(&policy, request, &route, error)),
        }
    }

    /// Admits a request once more, by the rules of now.
    pub(super) async fn readmit<'r>(&self, request: &ArrivedRequest<'r>) -> Result<Admission<'r>, Rejection> {
        match self.admit(request)? {
            Admission::Undecided(route, token) => self.validate_token(request, (route, token)).await,
            admission => Ok(admission),
        }
    }

    /// The rejection of a request for its credential. Those that cannot be verified are counted by address.
    fn reject_credential(
        &self,
        policy: &Policy,
        request: &ArrivedRequest<'_>,
        route: &Route<'_>,
        error: CredentialError,
    ) -> Rejection {
        let (head, peer) = (request.head, request.connection.peer);
        let client = policy.trusted_proxies.client_address(peer, &head.headers);
        if error == CredentialError::Token(TokenError::Unverifiable)
            && let Some(wait) = self.failed_credentials.record(client)
        {
            return Rejection::TooManyFailures(wait);
        }
        let (base, path) = address(policy, request, route);
        Rejection::Credential(Box::new(Challenge {
            error,
            metadata: policy.issuers.is_some().then(|| format!("{base}{RESOURCE_METADATA}{path}")),
            resource: format!("{base}{path}"),
            scope: policy.scopes.join(" "),
        }))
    }

    /// Adds the metadata of the address to the challenge for a missing scope. Only the node that the client asked knows
    /// the address; the challenge may come from another one.
    pub(super) fn complete_challenge(&self, request: &ArrivedRequest<'_>, response: &mut Response<ResponseContent>) {
        if response.status() != StatusCode::FORBIDDEN {
            return;
        }
        let policy = self.policy();
        let route = Route::parse(request.head.uri.path(), policy.public_path());
        if let Some(challenge) = response.headers_mut().get_mut(WWW_AUTHENTICATE)
            && let Some(route) = route.filter(|_| policy.issuers.is_some())
        {
            let (base, path) = address(&policy, request, &route);
            add_metadata(challenge, &format!("{base}{RESOURCE_METADATA}{path}"));
        }
    }

    /// Serves health, readiness, metrics and status. Health and readiness are public; for anyone but operators, metrics
    /// and status do not exist, which is `None`. Guesses of the admin token are counted by address, as other credentials
    /// are.
    fn serve_operations(
        &self,
        policy: &Policy,
        route: &Route<'_>,
        request: &ArrivedRequest<'_>,
    ) -> Result<Option<Admission<'static>>, Rejection> {
        let head = request.head;
        let is_public = matches!(route, Route::Health | Route::Ready);
        let listener = match request.connection.role {
            ListenerRole::Operators => Some(OperationsListener::Operators),
            ListenerRole::Combined => Some(OperationsListener::Clients),
            ListenerRole::Clients | ListenerRole::Console => None,
        };
        let is_operator = |listener| policy.is_operator(listener, &head.uri, &head.headers, request.connection.peer);
        if !is_public && !listener.is_some_and(is_operator) {
            let client = policy.trusted_proxies.client_address(request.connection.peer, &head.headers);
            let is_guess = listener.is_some() && policy.admin_token.is_guessed(&head.headers);
            return match is_guess.then(|| self.failed_credentials.record(client)).flatten() {
                Some(wait) => Err(Rejection::TooManyFailures(wait)),
                None => Ok(None),
            };
        }
        let response = match route {
            _ if !matches!(head.verb, Verb::GET | Verb::HEAD) => {
                Rejection::MethodNotAllowed(route.allowed_methods()).respond()
            }
            Route::Health => respond::probe(true, "alive\n"),
            Route::Ready => {
                let ready = self.admin.ready();
                respond::probe(ready.is_ok(), ready.err().unwrap_or("ready\n"))
            }
            Route::Metrics => {
                let format = TextFormat::accepted(head.headers.get(ACCEPT));
                respond::text(format.content_type(), self.admin.metrics_as(format))
            }
            _ => respond::text(headers::JSON, self.admin.status_document()),
        };
        Ok(Some(if is_public { Admission::Answered(response) } else { Admission::Complete(response) }))
    }

    /// Ends what callers have open with credentials that are no longer accepted: streams, sessions and parked calls.
    pub(super) fn end_revoked(&self, revoked: &Revoked) {
        if revoked.is_empty() {
            return;
        }
        revoked.cancel();
        let sessions = self.sessions.close_owned_by(|identity, group| revoked.ends(identity, group));
        let parked_calls = self.gateway.end_parked_calls(|identity, group| revoked.ends(identity, group));
        if sessions + parked_calls > 0 {
            tracing::info!(sessions, parked_calls, "sessions and parked calls of revoked credentials ended");
        }
    }
}

impl ArrivedRequest<'_> {
    /// Who is at the other end of the connection.
    pub(super) fn source(&self, policy: &Policy) -> RequestSource {
        match policy.trusted_proxies.source(self.connection.peer) {
            RequestSource::Stranger if self.connection.tls.is_some() => RequestSource::TlsClient,
            source => source,
        }
    }
}

/// The base URL and the path by which the client knows the address that it asked for.
fn address<'r>(policy: &'r Policy, request: &ArrivedRequest<'r>, route: &Route<'r>) -> (Cow<'r, str>, Cow<'r, str>) {
    let head = request.head;
    let base = policy.base_url(&head.uri, &head.headers, request.source(policy));
    (base, route.resource_path(head.uri.path(), policy.public_path()))
}

pub(super) fn credential_request<'r>(
    request: &ArrivedRequest<'r>,
    route: &Route<'r>,
    source: RequestSource,
) -> CredentialRequest<'r> {
    let (head, group) = (request.head, route.group().unwrap_or(DEFAULT_GROUP));
    let certificate = request.connection.certificate();
    let (served_port, last) = (request.connection.served_port, &request.connection.last_credential);
    CredentialRequest { uri: &head.uri, headers: &head.headers, source, group, certificate, served_port, last }
}

fn caller(policy: &Policy, identity: Arc<Identity>, request: &ArrivedRequest<'_>) -> Caller {
    let client = policy.trusted_proxies.client_address(request.connection.peer, &request.head.headers);
    if let Some(access) = &request.access {
        access.note_identity(&identity);
        access.note_peer(client.ip(), || None);
    }
    let caller = policy.caller(identity, &request.head.headers, Some(request.request_id.clone()), Some(client));
    Caller { access: request.access.clone(), ..caller }
}
