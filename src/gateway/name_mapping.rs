//! Names and URIs in messages, as clients know them and as the upstream does.
//!
//! Every place where one stands is changed, and nothing else: what has none goes through byte for
//! byte. Texts and structured content are never searched for URIs; a client that reads one as the
//! upstream wrote it is served all the same.

use std::sync::Arc;

use memchr::memmem;
use serde_json::json;

use super::names;
use crate::call::ServerRequest;
use crate::protocol::{ErrorObject, Method, Notice, Notification, Raw};
use crate::upstream::List;

/// How one upstream's names and URIs look in a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NameMapping {
    /// What they begin with; nothing where they stay as they are.
    pub prefix: Option<Arc<str>>,
    /// What the ids of tasks begin with; nothing where only one upstream can have them.
    pub tasks: Option<Arc<str>>,
}

/// Who asks, in the `_meta` of a question.
const ASKED_BY: &str = "rialto/server";

impl NameMapping {
    fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// A URI as clients see it.
    pub fn uri(&self, uri: &str) -> String {
        names::uri_out(self.prefix(), uri).into_owned()
    }

    /// Sets the member `uri` of an object as clients see it.
    fn with_uri(&self, object: &Raw, key: &'static str) -> Raw {
        let uri = object.get(key);
        match uri.as_ref().and_then(Raw::text) {
            Some(uri) => object.edit().set(key, Raw::of(&self.uri(&uri))).finish(),
            None => object.clone(),
        }
    }

    /// An item of a list, under the name that was given to it.
    pub fn item(&self, list: List, item: &Raw, given: &str) -> Raw {
        if self.prefix.is_none() {
            return item.clone();
        }
        let item = item.edit().set(list.key(), Raw::of(given)).finish();
        let shown = item.at(&["_meta", "ui", "resourceUri"]);
        let Some(uri) = shown.as_ref().and_then(Raw::text) else { return item };
        let (Some(meta), Some(ui)) = (item.get("_meta"), item.at(&["_meta", "ui"])) else { return item };
        let ui = ui.edit().set("resourceUri", Raw::of(&self.uri(&uri))).finish();
        item.edit().set("_meta", meta.edit().set("ui", ui).finish()).finish()
    }

    /// The id of a task as clients see it.
    fn with_task(&self, result: Raw) -> Raw {
        let Some(prefix) = self.tasks.as_deref().filter(|_| memmem::find(result.as_bytes(), b"\"taskId\"").is_some())
        else {
            return result;
        };
        let id = result.get("taskId");
        match id.as_ref().and_then(Raw::text) {
            Some(id) => result.edit().set("taskId", Raw::of(&format!("{prefix}.{id}"))).finish(),
            None => result,
        }
    }

    /// The upstream that has a task, and its id there.
    pub fn task_in(id: &str) -> Option<(&str, &str)> {
        id.split_once('.')
    }

    /// A result as clients see it.
    pub fn result(&self, method: &Method, result: Raw) -> Raw {
        let result = if *method == Method::ToolsCall || method.is_of_tasks() { self.with_task(result) } else { result };
        if self.prefix.is_none() {
            return result;
        }
        if memmem::find(result.as_bytes(), b"\"inputRequests\"").is_some()
            && let Some(questions) = result.get("inputRequests")
        {
            return result.edit().set("inputRequests", self.questions(&questions)).finish();
        }
        if memmem::find(result.as_bytes(), b"uri\"").is_none() {
            return result;
        }
        match method {
            Method::ToolsCall => each(&result, "content", |content| self.content(content)),
            Method::PromptsGet => each(&result, "messages", |message| self.message(message)),
            Method::ResourcesRead => each(&result, "contents", |content| self.with_uri(content, "uri")),
            _ => result,
        }
    }

    fn message(&self, message: &Raw) -> Raw {
        match message.get("content") {
            Some(content) if content.is_array() => each(message, "content", |content| self.content(content)),
            Some(content) => message.edit().set("content", self.content(&content)).finish(),
            None => message.clone(),
        }
    }

    /// One block of content.
    fn content(&self, content: &Raw) -> Raw {
        let kind = content.get("type");
        match kind.as_ref().and_then(Raw::text).as_deref() {
            Some("resource_link") => self.with_uri(content, "uri"),
            Some("resource") => match content.get("resource") {
                Some(resource) => content.edit().set("resource", self.with_uri(&resource, "uri")).finish(),
                None => content.clone(),
            },
            Some("tool_result") => each(content, "content", |content| self.content(content)),
            _ => content.clone(),
        }
    }

    /// An error as clients see it.
    pub fn error(&self, error: ErrorObject) -> ErrorObject {
        match error.data().filter(|data| self.prefix.is_some() && data.get("uri").is_some()) {
            Some(data) => error.with_data(self.with_uri(&data, "uri")),
            None => error,
        }
    }

    /// A notification as clients see it.
    pub fn notification(&self, notification: Notification) -> Notification {
        let (Some(prefix), Some(params)) = (self.prefix(), &notification.params) else { return notification };
        let params = match notification.notice {
            Notice::ResourceUpdated => self.with_uri(params, "uri"),
            Notice::Message => {
                let logger = params.get("logger");
                let logger = match logger.as_ref().and_then(Raw::text) {
                    Some(logger) => format!("{prefix}/{logger}"),
                    None => prefix.to_owned(),
                };
                params.edit().set("logger", Raw::of(&logger)).finish()
            }
            _ => return notification,
        };
        Notification::new(notification.notice, Some(params))
    }

    /// A question as clients see it: where several upstreams may ask, it says which one does.
    pub fn question(&self, question: ServerRequest) -> ServerRequest {
        match self.asked(question.method.as_str(), question.params.as_ref()) {
            Some(params) => ServerRequest { params: Some(params), ..question },
            None => question,
        }
    }

    /// The questions of a result that asks for input, likewise.
    fn questions(&self, questions: &Raw) -> Raw {
        let mut edit = questions.edit();
        for (key, question) in questions.entries() {
            let method = question.get("method");
            let method = method.as_ref().and_then(Raw::text).unwrap_or_default();
            if let Some(params) = self.asked(&method, question.get("params").as_ref()) {
                edit = edit.set(key, question.edit().set("params", params).finish());
            }
        }
        edit.finish()
    }

    /// The parameters of a question, where they are others for clients.
    fn asked(&self, method: &str, params: Option<&Raw>) -> Option<Raw> {
        let prefix = self.prefix()?;
        let params = params.cloned().unwrap_or_else(Raw::empty);
        let params = match method {
            "elicitation/create" => {
                let message = params.get("message");
                let message = message.as_ref().and_then(Raw::text).unwrap_or_default();
                params.edit().set("message", Raw::of(&format!("[{prefix}] {message}"))).finish()
            }
            "sampling/createMessage" => {
                // What other upstreams have said is none of its business.
                let context = params.get("includeContext");
                let all = context.as_ref().and_then(Raw::text).as_deref() == Some("allServers");
                let edit = params.edit();
                let edit = if all { edit.set("includeContext", Raw::constant(r#""none""#)) } else { edit };
                each(&edit.finish(), "messages", |message| self.message(message))
            }
            _ => return None,
        };
        let meta = params.get("_meta").unwrap_or_else(Raw::empty);
        let meta = meta.edit().set(ASKED_BY, Raw::of(&json!(prefix))).finish();
        Some(params.edit().set("_meta", meta).finish())
    }
}

/// Changes every element of one list.
fn each(object: &Raw, list: &'static str, change: impl Fn(&Raw) -> Raw) -> Raw {
    let Some(items) = object.get(list).filter(Raw::is_array) else { return object.clone() };
    let before = items.items();
    let after: Vec<Raw> = before.iter().map(change).collect();
    if before == after {
        return object.clone();
    }
    object.edit().set(list, Raw::of(&after)).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn raw(text: &str) -> Raw {
        Raw::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn files() -> NameMapping {
        NameMapping { prefix: Some("files".into()), tasks: Some("files".into()) }
    }

    #[test]
    fn every_place_of_a_result_is_changed() {
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
            assert_eq!(files().result(&method, raw(before)).to_string(), after);
            let untouched = raw(before);
            assert_eq!(NameMapping::default().result(&method, untouched.clone()), untouched);
        }
    }

    #[test]
    fn tasks_say_whose_they_are() {
        let created = raw(r#"{"resultType":"task","taskId":"t.1","status":"working"}"#);
        let seen = files().result(&Method::ToolsCall, created.clone());
        assert_eq!(seen.to_string(), r#"{"resultType":"task","taskId":"files.t.1","status":"working"}"#);
        assert_eq!(NameMapping::task_in("files.t.1"), Some(("files", "t.1")));
        assert_eq!(NameMapping::default().result(&Method::ToolsCall, created.clone()), created);
    }

    #[test]
    fn items_are_under_their_given_names() {
        let item = raw(r#"{"name":"show","inputSchema":{"x":1e2},"_meta":{"ui":{"resourceUri":"ui://a"}}}"#);
        assert_eq!(
            files().item(List::Tools, &item, "files__show").to_string(),
            r#"{"name":"files__show","inputSchema":{"x":1e2},"_meta":{"ui":{"resourceUri":"rialto://files/ui://a"}}}"#
        );
    }

    #[test]
    fn notices_and_errors_say_whose_they_are() {
        let log = Notification::new(Notice::Message, Some(raw(r#"{"level":"info","logger":"db","data":1}"#)));
        let log = files().notification(log).params.unwrap();
        assert_eq!(log.to_string(), r#"{"level":"info","logger":"files/db","data":1}"#);
        let updated = Notification::new(Notice::ResourceUpdated, Some(raw(r#"{"uri":"a:1"}"#)));
        assert_eq!(files().notification(updated).params.unwrap().to_string(), r#"{"uri":"rialto://files/a:1"}"#);
        let error = ErrorObject::new(-32002, "x").with_data(raw(r#"{"uri":"a:1"}"#));
        assert_eq!(files().error(error).data().unwrap().to_string(), r#"{"uri":"rialto://files/a:1"}"#);
    }

    #[test]
    fn questions_say_who_asks() {
        let ask = |method: &str, params: &str| {
            let (answer, _) = tokio::sync::oneshot::channel();
            let question = ServerRequest { method: Method::from(method), params: Some(raw(params)), answer };
            files().question(question).params.unwrap().to_string()
        };
        assert_eq!(
            ask("elicitation/create", r#"{"message":"Sure?"}"#),
            r#"{"message":"[files] Sure?","_meta":{"rialto/server":"files"}}"#
        );
        let sampled = ask("sampling/createMessage", r#"{"includeContext":"allServers","messages":[]}"#);
        assert!(sampled.contains(r#""includeContext":"none""#), "{sampled}");
        // The same in a result that asks for input.
        let result = r#"{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"Sure?"}}},"requestState":"s"}"#;
        let asked = files().result(&Method::ToolsCall, raw(result));
        let params = asked.at(&["inputRequests", "q", "params"]).unwrap();
        assert_eq!(params.to_string(), r#"{"message":"[files] Sure?","_meta":{"rialto/server":"files"}}"#);
        assert_eq!(asked.get("requestState").unwrap().to_string(), r#""s""#);
    }
}
