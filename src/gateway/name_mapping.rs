//! Maps names and URIs in messages between the names that clients see and those of the upstream.
//!
//! Only members that the specification defines as names or URIs are edited; every other byte passes
//! unchanged. Text and structured content are not searched for URIs: `find_by_uri` also resolves the
//! upstream's own URIs.

use std::sync::Arc;

use memchr::memmem;
use serde_json::json;

use super::names;
use crate::call::ServerRequest;
use crate::protocol::{ErrorObject, Key, Method, Notification, NotificationMethod, Payload, Raw};
use crate::upstream::List;

/// The name mapping of one upstream in a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NameMapping {
    /// The prefix of names and URIs; `None` where they are unchanged.
    pub prefix: Option<Arc<str>>,
}

/// The `_meta` key that names the upstream which sent a server request.
const SERVER_META_KEY: &str = "rialto/server";

impl NameMapping {
    fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// The URI that clients see.
    pub fn expose_uri(&self, uri: &str) -> String {
        names::expose_uri(self.prefix(), uri).into_owned()
    }

    /// Maps the URI in the member `key` of an object.
    fn map_uri_member(&self, object: &Raw, key: &'static str) -> Raw {
        let uri = object.get(key);
        match uri.as_ref().and_then(Raw::text) {
            Some(uri) => object.edit().set(key, Raw::of(&self.expose_uri(&uri))).finish(),
            None => object.clone(),
        }
    }

    /// Sets the exposed name of a list item and maps the URIs inside it.
    pub fn map_item(&self, list: List, item: &Raw, exposed_name: &str) -> Raw {
        if self.prefix.is_none() {
            return item.clone();
        }
        let item = item.edit().set(list.item_key(), Raw::of(exposed_name)).finish();
        let shown = item.at(&["_meta", "ui", "resourceUri"]);
        let Some(uri) = shown.as_ref().and_then(Raw::text) else { return item };
        let (Some(meta), Some(ui)) = (item.get("_meta"), item.at(&["_meta", "ui"])) else { return item };
        let ui = ui.edit().set("resourceUri", Raw::of(&self.expose_uri(&uri))).finish();
        item.edit().set("_meta", meta.edit().set("ui", ui).finish()).finish()
    }

    /// Whether [`Self::map_result`] changes no result that ends a call.
    pub fn passes_results_unchanged(&self) -> bool {
        self.prefix.is_none()
    }

    /// Maps a result for the client.
    pub fn map_result(&self, method: &Method, result: Payload) -> Payload {
        if self.prefix.is_none() {
            return result;
        }
        if let Some(requests) = result.member(Key::InputRequests) {
            return result.with(Key::InputRequests, &self.map_input_requests(&requests));
        }
        if memmem::find(result.as_bytes(), b"uri\"").is_none() {
            return result;
        }
        match method {
            Method::ToolsCall => map_elements(&result, "content", |content| self.map_content(content)).into(),
            Method::PromptsGet => map_elements(&result, "messages", |message| self.map_message(message)).into(),
            Method::ResourcesRead => {
                map_elements(&result, "contents", |content| self.map_uri_member(content, "uri")).into()
            }
            _ => result,
        }
    }

    fn map_message(&self, message: &Raw) -> Raw {
        match message.get("content") {
            Some(content) if content.is_array() => {
                map_elements(message, "content", |content| self.map_content(content))
            }
            Some(content) => message.edit().set("content", self.map_content(&content)).finish(),
            None => message.clone(),
        }
    }

    /// Maps the URIs of one content block. Only a tool result holds further blocks, and none of these may be a tool
    /// result: a server must not decide how deep we descend.
    fn map_content(&self, content: &Raw) -> Raw {
        match content.get("type").as_ref().and_then(Raw::text).as_deref() {
            Some("tool_result") => map_elements(content, "content", |content| self.map_resource(content)),
            _ => self.map_resource(content),
        }
    }

    /// Maps the URI of a content block that is a resource or a link to one.
    fn map_resource(&self, content: &Raw) -> Raw {
        let kind = content.get("type");
        match kind.as_ref().and_then(Raw::text).as_deref() {
            Some("resource_link") => self.map_uri_member(content, "uri"),
            Some("resource") => match content.get("resource") {
                Some(resource) => content.edit().set("resource", self.map_uri_member(&resource, "uri")).finish(),
                None => content.clone(),
            },
            _ => content.clone(),
        }
    }

    /// Maps the URI in the data of an error.
    pub fn map_error(&self, error: ErrorObject) -> ErrorObject {
        match error.data().filter(|data| self.prefix.is_some() && data.get("uri").is_some()) {
            Some(data) => error.with_data(self.map_uri_member(&data, "uri")),
            None => error,
        }
    }

    /// Maps the URI or the logger name of a notification.
    pub fn map_notification(&self, notification: Notification) -> Notification {
        let (Some(prefix), Some(params)) = (self.prefix(), &notification.params) else { return notification };
        let params = match notification.method {
            NotificationMethod::ResourceUpdated => self.map_uri_member(params, "uri"),
            NotificationMethod::Message => {
                let logger = params.get("logger");
                let logger = match logger.as_ref().and_then(Raw::text) {
                    Some(logger) => format!("{prefix}/{logger}"),
                    None => prefix.to_owned(),
                };
                params.edit().set("logger", Raw::of(&logger)).finish()
            }
            _ => return notification,
        };
        Notification::new(notification.method, Some(params))
    }

    /// Maps a server request; in a group with several upstreams it names the one that sent it.
    pub fn map_server_request(&self, request: ServerRequest) -> ServerRequest {
        match self.server_request_params(request.method.as_str(), request.params.as_ref()) {
            Some(params) => ServerRequest { params: Some(params), ..request },
            None => request,
        }
    }

    /// Maps the server requests of an `input_required` result.
    fn map_input_requests(&self, requests: &Raw) -> Raw {
        let mut edit = requests.edit();
        for (key, request) in requests.entries() {
            let method = request.get("method");
            let method = method.as_ref().and_then(Raw::text).unwrap_or_default();
            if let Some(params) = self.server_request_params(&method, request.get("params").as_ref()) {
                edit = edit.set(key, request.edit().set("params", params).finish());
            }
        }
        edit.finish()
    }

    /// The mapped parameters of a server request; `None` where they are unchanged.
    fn server_request_params(&self, method: &str, params: Option<&Raw>) -> Option<Raw> {
        let prefix = self.prefix()?;
        let params = params.cloned().unwrap_or_else(Raw::empty);
        let params = match method {
            "elicitation/create" => {
                let message = params.get("message");
                let message = message.as_ref().and_then(Raw::text).unwrap_or_default();
                params.edit().set("message", Raw::of(&format!("[{prefix}] {message}"))).finish()
            }
            "sampling/createMessage" => {
                // The context of other upstreams must not leak to this one.
                let context = params.get("includeContext");
                let all = context.as_ref().and_then(Raw::text).as_deref() == Some("allServers");
                let edit = params.edit();
                let edit = if all { edit.set("includeContext", Raw::constant(r#""none""#)) } else { edit };
                map_elements(&edit.finish(), "messages", |message| self.map_message(message))
            }
            _ => return None,
        };
        let meta = params.get("_meta").unwrap_or_else(Raw::empty);
        let meta = meta.edit().set(SERVER_META_KEY, Raw::of(&json!(prefix))).finish();
        Some(params.edit().set("_meta", meta).finish())
    }
}

/// Maps every element of one array member.
fn map_elements(object: &Raw, list: &'static str, convert: impl Fn(&Raw) -> Raw) -> Raw {
    let Some(items) = object.get(list).filter(Raw::is_array) else { return object.clone() };
    let before = items.items();
    let after: Vec<Raw> = before.iter().map(convert).collect();
    if before == after {
        return object.clone();
    }
    object.edit().set(list, Raw::of(&after)).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::raw;

    fn files() -> NameMapping {
        NameMapping { prefix: Some("files".into()) }
    }

    #[test]
    fn uris_are_mapped_in_every_result_member() {
        for (method, before, after) in [
            (
                Method::ToolsCall,
                r#"{"content":[{"type":"resource_link","uri":"a:1","name":"x"},{"type":"resource","resource":{"uri":"a:2","text":"a:3"}},{"type":"text","text":"uri\" a:1"}],"structuredContent":{"uri":"a:1"}}"#,
                r#"{"content":[{"type":"resource_link","uri":"rialto://files/a:1","name":"x"},{"type":"resource","resource":{"uri":"rialto://files/a:2","text":"a:3"}},{"type":"text","text":"uri\" a:1"}],"structuredContent":{"uri":"a:1"}}"#,
            ),
            (
                Method::PromptsGet,
                r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"a:2"}}}]}"#,
                r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"rialto://files/a:2"}}}]}"#,
            ),
            (
                Method::ResourcesRead,
                r#"{"contents":[{"uri":"a:1","n":1.0},{"uri":"https://h/x"}]}"#,
                r#"{"contents":[{"uri":"rialto://files/a:1","n":1.0},{"uri":"https://h/x"}]}"#,
            ),
        ] {
            assert_eq!(files().map_result(&method, raw(before).into()).to_string(), after);
            let untouched = raw(before);
            assert_eq!(NameMapping::default().map_result(&method, untouched.clone().into()), untouched.into());
        }
    }

    #[test]
    fn list_items_have_exposed_names() {
        let item = raw(r#"{"name":"show","inputSchema":{"x":1e2},"_meta":{"ui":{"resourceUri":"ui://a"}}}"#);
        assert_eq!(
            files().map_item(List::Tools, &item, "files__show").to_string(),
            r#"{"name":"files__show","inputSchema":{"x":1e2},"_meta":{"ui":{"resourceUri":"rialto://files/ui://a"}}}"#
        );
    }

    #[test]
    fn notifications_and_errors_are_mapped() {
        let log =
            Notification::new(NotificationMethod::Message, Some(raw(r#"{"level":"info","logger":"db","data":1}"#)));
        let log = files().map_notification(log).params.unwrap();
        assert_eq!(log.to_string(), r#"{"level":"info","logger":"files/db","data":1}"#);
        let updated = Notification::new(NotificationMethod::ResourceUpdated, Some(raw(r#"{"uri":"a:1"}"#)));
        assert_eq!(files().map_notification(updated).params.unwrap().to_string(), r#"{"uri":"rialto://files/a:1"}"#);
        let error = ErrorObject::new(-32002, "x").with_data(raw(r#"{"uri":"a:1"}"#));
        assert_eq!(files().map_error(error).data().unwrap().to_string(), r#"{"uri":"rialto://files/a:1"}"#);
    }

    #[test]
    fn server_requests_name_their_upstream() {
        let ask = |method: &str, params: &str| {
            let (answer, _) = tokio::sync::oneshot::channel();
            let request = ServerRequest {
                method: Method::from(method),
                params: Some(raw(params)),
                responder: answer.into(),
                asker: None,
            };
            files().map_server_request(request).params.unwrap().to_string()
        };
        assert_eq!(
            ask("elicitation/create", r#"{"message":"Sure?"}"#),
            r#"{"message":"[files] Sure?","_meta":{"rialto/server":"files"}}"#
        );
        let sampled = ask("sampling/createMessage", r#"{"includeContext":"allServers","messages":[]}"#);
        assert!(sampled.contains(r#""includeContext":"none""#), "{sampled}");
        // The same inside an `input_required` result.
        let result = r#"{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"Sure?"}}},"requestState":"s"}"#;
        let asked = files().map_result(&Method::ToolsCall, raw(result).into());
        let params = asked.at(&["inputRequests", "q", "params"]).unwrap();
        assert_eq!(params.to_string(), r#"{"message":"[files] Sure?","_meta":{"rialto/server":"files"}}"#);
        assert_eq!(asked.get("requestState").unwrap().to_string(), r#""s""#);
    }
}
