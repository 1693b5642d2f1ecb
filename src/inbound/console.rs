//! The door to the console: which requests are for it, and who makes them. What it serves is a module above this one.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use ::http::{HeaderValue, Method as Verb, Response, Uri};

use super::admission::{Admission, ArrivedRequest, credential_request};
use super::body::ResponseContent;
use super::respond::Rejection;
use super::route::Route;
use super::{Inbound, ListenerRole};
use crate::http::codec::{HeaderFields, RequestHead};
use crate::http::server::ReceivedBody;
use crate::identity::Identity;
use crate::policy::{Identified, OperationsListener, Operator, OperatorRight, Policy};

/// What serves the console and its API.
pub trait ConsoleService: fmt::Debug + Send + Sync {
    /// Looks at the head of a request.
    fn admit(&self, policy: &Policy, head: &ConsoleHead<'_>) -> ConsoleAdmission;

    /// Who makes a call of the console's own, at the listener for these.
    fn own_caller(&self, headers: &HeaderFields) -> Option<Arc<Identity>>;

    /// Serves a request, away from the worker that its connection is on.
    fn serve(self: Arc<Self>, request: ConsoleRequest) -> ConsoleFuture;
}

/// A response to come.
pub type ConsoleFuture = Pin<Box<dyn Future<Output = Response<ResponseContent>> + Send>>;

/// The head of a request for the console.
#[derive(Debug)]
pub struct ConsoleHead<'r> {
    /// The HTTP method.
    pub verb: &'r Verb,
    /// The request target.
    pub uri: &'r Uri,
    /// The path without that of the public URL.
    pub path: &'r str,
    /// The header fields.
    pub headers: &'r HeaderFields,
    /// The listener.
    pub listener: OperationsListener,
    /// The other end of the connection.
    pub peer: SocketAddr,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
    /// The base URL by which the client knows the gateway.
    pub base_url: &'r str,
    /// The id of the request.
    pub request_id: &'r HeaderValue,
}

/// What the head of a request decides.
#[derive(Debug)]
pub enum ConsoleAdmission {
    /// Nothing is served here for this client.
    Absent,
    /// The response is complete.
    Answered(Box<Response<ResponseContent>>),
    /// The request is served for this caller.
    Admitted(ConsoleCaller),
}

/// Who asks the console.
#[derive(Debug)]
pub enum ConsoleCaller {
    /// Anybody, for what holds no secret.
    Public,
    /// An operator.
    Operator(Operator),
    /// The holder of a credential of the gateway's clients, who is yet to be known.
    Credential,
    /// Somebody whose credential is not accepted.
    Unknown,
}

/// A request for the console.
#[derive(Debug)]
pub struct ConsoleRequest {
    /// The HTTP method.
    pub verb: Verb,
    /// The request target.
    pub uri: Uri,
    /// The path without that of the public URL.
    pub path: String,
    /// The header fields.
    pub headers: HeaderFields,
    /// Who asks.
    pub caller: ConsoleCaller,
    /// The id of the request.
    pub request_id: HeaderValue,
    /// The address of the client.
    pub client: SocketAddr,
    /// The body.
    pub body: ReceivedBody,
    /// Whether another node has sent it here.
    pub is_relayed: bool,
}

impl Inbound {
    /// Lets the console be served.
    pub fn install_console(&self, console: Arc<dyn ConsoleService>) {
        // A second one would change nothing: there is one for each gateway.
        let _ = self.console.set(console);
    }

    /// Admits a request for the console by its head.
    pub(super) fn admit_console<'r>(
        &self,
        policy: &Policy,
        route: &Route<'r>,
        request: &ArrivedRequest<'r>,
    ) -> Result<Admission<'r>, Rejection> {
        let (head, connection) = (request.head, request.connection);
        let listener = match connection.role {
            ListenerRole::Operators => Some(OperationsListener::Operators),
            ListenerRole::Combined => Some(OperationsListener::Clients),
            ListenerRole::Clients | ListenerRole::Console => None,
        };
        let base_url = policy.base_url(&head.uri, &head.headers, request.source(policy));
        let admitted = self.console.get().zip(listener).map(|(console, listener)| {
            let head = ConsoleHead {
                verb: &head.verb,
                uri: &head.uri,
                path: route.console_path(),
                headers: &head.headers,
                listener,
                peer: connection.peer,
                is_tls: connection.tls.is_some(),
                base_url: &base_url,
                request_id: &request.request_id,
            };
            console.admit(policy, &head)
        });
        Ok(match admitted.unwrap_or(ConsoleAdmission::Absent) {
            ConsoleAdmission::Admitted(caller) => Admission::Console(route.clone(), Box::new(caller)),
            ConsoleAdmission::Answered(response) => Admission::Complete(*response),
            // What an unknown path gets, but no page may ever read it.
            ConsoleAdmission::Absent => {
                let denied = match connection.role {
                    ListenerRole::Operators | ListenerRole::Console => None,
                    _ => policy.host_origin.admit(&head.uri, &head.headers).err(),
                };
                Admission::Complete(denied.map_or(Rejection::NotFound, Rejection::Denied).respond())
            }
        })
    }

    /// Serves an admitted request for the console.
    pub(super) async fn serve_console(
        &self,
        request: &ArrivedRequest<'_>,
        route: &Route<'_>,
        caller: ConsoleCaller,
        body: ReceivedBody,
    ) -> Response<ResponseContent> {
        let Some(console) = self.console.get() else { return Rejection::NotFound.respond() };
        let (policy, head) = (self.policy.load_full(), request.head);
        let caller = match caller {
            ConsoleCaller::Credential => match self.console_principal(&policy, request, route).await {
                Some(operator) => ConsoleCaller::Operator(operator),
                None => ConsoleCaller::Unknown,
            },
            known => known,
        };
        let client = policy.trusted_proxies.client_address(request.connection.peer, &head.headers);
        let request = ConsoleRequest {
            verb: head.verb.clone(),
            uri: head.uri.clone(),
            path: route.console_path().to_owned(),
            headers: head.headers.clone(),
            caller,
            request_id: request.request_id.clone(),
            client,
            body,
            is_relayed: false,
        };
        Arc::clone(console).serve(request).await
    }

    /// Serves a request for the console that another node has relayed here.
    pub(super) async fn serve_relayed_console(
        &self,
        head: RequestHead,
        path: String,
        identity: &Identity,
        (request_id, body): (Option<HeaderValue>, Bytes),
    ) -> Option<Response<ResponseContent>> {
        let console = self.console.get()?;
        let name = identity.principal.split_once('|').map_or(&*identity.principal, |(_, name)| name);
        let may = identity.roles.first().and_then(|role| OperatorRight::parse(role)).unwrap_or_default();
        let request = ConsoleRequest {
            verb: head.verb,
            uri: head.uri,
            path,
            headers: head.headers,
            caller: ConsoleCaller::Operator(Operator { name: name.into(), may, principal: None }),
            request_id: request_id.unwrap_or(HeaderValue::from_static("relayed")),
            client: SocketAddr::from(([127, 0, 0, 1], 0)),
            body: Ok(body),
            is_relayed: true,
        };
        Some(Arc::clone(console).serve(request).await)
    }

    /// The operator whose credential of the gateway's clients was shown.
    async fn console_principal(
        &self,
        policy: &Policy,
        request: &ArrivedRequest<'_>,
        route: &Route<'_>,
    ) -> Option<Operator> {
        let asked = credential_request(request, route, request.source(policy));
        let identity: Arc<Identity> = match policy.identify(&asked).ok()? {
            Identified::Caller(identity) => identity,
            Identified::Unvalidated(token) => {
                let client = policy.trusted_proxies.client_address(request.connection.peer, &request.head.headers);
                if self.failed_credentials.throttle_validation(client).is_some() {
                    return None;
                }
                policy.validate(&asked, token).await.ok()?
            }
        };
        policy.console.principals.operator(&identity)
    }
}
