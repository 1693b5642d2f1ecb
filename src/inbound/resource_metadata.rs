//! Public documents that tell clients where to log in: protected resource metadata (RFC 9728).

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL};
use http::{HeaderValue, Method as Verb, Response};
use serde_json::json;

use super::body::ResponseContent;
use super::respond::{self, Rejection};
use super::route::Route;
use super::{Inbound, cors};
use crate::http::codec::RequestHead;
use crate::policy::{Policy, RequestSource};

/// How long clients may cache a document.
const DOCUMENT_MAX_AGE: &str = "max-age=300";

impl Inbound {
    /// Serves a public document, or the preflight for it. Pages of any origin may read it; the host is checked as
    /// everywhere.
    ///
    /// # Errors
    /// When the host is not allowed.
    pub(super) fn serve_document(
        &self,
        policy: &Policy,
        head: &RequestHead,
        route: &Route<'_>,
        source: RequestSource,
    ) -> Result<Response<ResponseContent>, Rejection> {
        policy.host_origin.admit_host(&head.uri, &head.headers).map_err(Rejection::Denied)?;
        let mut response = match head.verb {
            Verb::OPTIONS => {
                let mut response = cors::preflight(&head.headers);
                let methods = HeaderValue::from_static(route.allowed_methods());
                response.headers_mut().insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
                response
            }
            Verb::GET | Verb::HEAD => match self.document(policy, head, route, source) {
                Some(document) => {
                    let mut response = respond::json(document);
                    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(DOCUMENT_MAX_AGE));
                    response
                }
                None => Rejection::NotFound.respond(),
            },
            _ => Rejection::MethodNotAllowed(route.allowed_methods()).respond(),
        };
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        Ok(response)
    }

    fn document(&self, policy: &Policy, head: &RequestHead, route: &Route<'_>, source: RequestSource) -> Option<Bytes> {
        // Without an issuer there is no document, so that no client begins to log in where it cannot.
        let issuers = policy.issuers.as_ref()?;
        let path = match route {
            Route::AuthorizationServerMetadata => return issuers.metadata().filter(|_| policy.legacy_metadata),
            Route::ResourceMetadata { address: None } if policy.accept_origin_audience => "",
            Route::ResourceMetadata { address: Some((path, group)) } => {
                self.gateway.group(*group)?;
                path
            }
            _ => return None,
        };
        let base = policy.base_url(&head.uri, &head.headers, source);
        let mut document = json!({
            "resource": format!("{base}{path}"),
            "authorization_servers": issuers.urls(),
            "bearer_methods_supported": ["header"],
        });
        if !policy.scopes.is_empty() {
            document["scopes_supported"] = policy.scopes.as_slice().into();
        }
        Some(document.to_string().into())
    }
}
