//! The built-in server: the periodic table of 118 elements.
//!
//! It needs no configuration and exercises every server feature of MCP: tools with structured results, a slow
//! tool with progress, resources with a template and one that is updated, completion, a prompt, and log messages.
//! Results follow the newest revision.

pub mod data;
mod resources;
mod tools;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::broadcast;

use crate::call::{Answer, Call, ChangeEvent, Replies};
use crate::dialect::to_client::{CacheHint, ServerInfo, is_cacheable};
use crate::dialect::{classify, meta};
use crate::local::LocalServer;
use crate::protocol::{ErrorObject, Method, Raw, code};

use data::{ELEMENTS, Element};

/// The built-in periodic table server; clones share one instance.
#[derive(Debug, Clone)]
pub struct Elements(Arc<ElementsInner>);

#[derive(Debug)]
struct ElementsInner {
    server: ServerInfo,
    /// `_meta` of every result, with the server info.
    meta: Box<RawValue>,
    tools: Raw,
    resources: Raw,
    templates: Raw,
    prompts: Raw,
    changes: broadcast::Sender<ChangeEvent>,
    spotlight_interval: Duration,
}

/// Lists and elements never change, so results can be cached publicly for an hour.
const TABLE_CACHE_HINT: CacheHint = CacheHint { ttl: 3_600_000, public: true };
/// Default interval at which the spotlight moves to another element.
pub const SPOTLIGHT_INTERVAL: Duration = Duration::from_secs(5);
/// Queue bound for resource updates; a receiver that lags treats every resource as updated.
const MAX_QUEUED_CHANGE_EVENTS: usize = 64;
/// Values in one completion result, the maximum that MCP allows.
const MAX_COMPLETION_VALUES: usize = 100;

impl Elements {
    /// Creates the server; the spotlight moves every `spotlight_interval`.
    pub fn new(spotlight_interval: Duration) -> Self {
        let server = ServerInfo {
            info: Raw::of(&json!({
                "name": "elements",
                "title": "Periodic table",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "The 118 chemical elements, with their Chinese and English names.",
            })),
            capabilities: Raw::constant(
                r#"{"tools":{},"resources":{"subscribe":true},"prompts":{},"completions":{},"logging":{}}"#,
            ),
            instructions: Some(Raw::of(
                "Look up chemical elements: getElement takes a Chinese name, an English name or a symbol, \
                 getElementByPosition an atomic number from 1 to 118. The resource elements://table holds them all.",
            )),
        };
        let tools = with_result_fields(json!({ "tools": tools::tool_definitions() }), &server, Some(TABLE_CACHE_HINT));
        let resources = with_result_fields(
            json!({ "resources": resources::resource_definitions() }),
            &server,
            Some(TABLE_CACHE_HINT),
        );
        let templates = with_result_fields(
            json!({ "resourceTemplates": resources::template_definitions() }),
            &server,
            Some(TABLE_CACHE_HINT),
        );
        let prompts = with_result_fields(json!({ "prompts": [prompt_definition()] }), &server, Some(TABLE_CACHE_HINT));
        let changes = broadcast::Sender::new(MAX_QUEUED_CHANGE_EVENTS);
        let meta = json!({ meta::SERVER_INFO: server.info }).to_string();
        let meta = RawValue::from_string(meta).expect("it was just written as JSON");
        Self(Arc::new(ElementsInner {
            server,
            meta,
            tools,
            resources,
            templates,
            prompts,
            changes,
            spotlight_interval,
        }))
    }

    /// Server info and capabilities.
    pub fn server(&self) -> &ServerInfo {
        &self.0.server
    }

    /// Result of a list method; the tools for any other method.
    pub fn list(&self, method: &Method) -> &Raw {
        match method {
            Method::ResourcesList => &self.0.resources,
            Method::TemplatesList => &self.0.templates,
            Method::PromptsList => &self.0.prompts,
            _ => &self.0.tools,
        }
    }

    /// Resource updates as they happen.
    pub fn changes(&self) -> broadcast::Receiver<ChangeEvent> {
        self.0.changes.subscribe()
    }

    /// Publishes an update of the spotlight resource at each interval. Never returns.
    pub async fn run_spotlight(self) {
        let mut ticks = tokio::time::interval(self.0.spotlight_interval);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            // An error means no receiver, which is fine.
            let _ = self.0.changes.send(ChangeEvent::ResourceUpdated(resources::SPOTLIGHT_URI.into()));
        }
    }

    /// Answers a call.
    pub fn call(&self, call: &Call) -> Replies {
        let answered = match &call.method {
            Method::ToolsList | Method::ResourcesList | Method::TemplatesList | Method::PromptsList => {
                single_page(call, self.list(&call.method))
            }
            Method::ToolsCall => return tools::call_tool(self, call),
            Method::ResourcesRead => resources::read_resource(self, call),
            Method::PromptsGet => self.get_prompt(call),
            Method::Complete => self.complete(call),
            other => Err(classify::method_not_found(other)),
        };
        answered.map_or_else(Replies::from, |result| Answer::result(result).into())
    }

    /// A result with cache hint and `_meta` added as the method requires.
    fn complete_result(&self, method: &Method, body: serde_json::Value) -> Raw {
        with_result_fields(body, &self.0.server, is_cacheable(method).then_some(TABLE_CACHE_HINT))
    }

    fn get_prompt(&self, call: &Call) -> Result<Raw, ErrorObject> {
        let name = string_param(call, &["name"])?;
        if name != "describeElement" {
            return Err(invalid_params(&format!("there is no prompt {name:?}; there is `describeElement`")));
        }
        let name = string_param(call, &["arguments", "name"])?;
        let Some(element) = data::by_name(&name) else {
            return Err(invalid_params(&format!("元素不存在: {name:?} is no Chinese name, English name or symbol")));
        };
        let text = format!(
            "Describe the element {} ({}, atomic number {}) to a curious reader: where it is found, \
             what it is like, and what it is used for. The table says: {}",
            element.english,
            element.chinese,
            element.number,
            one_line(element)
        );
        let body = json!({
            "description": format!("Describe {}", element.english),
            "messages": [{ "role": "user", "content": { "type": "text", "text": text } }],
        });
        Ok(self.complete_result(&Method::PromptsGet, body))
    }

    fn complete(&self, call: &Call) -> Result<Raw, ErrorObject> {
        let kind = string_param(call, &["ref", "type"])?;
        let argument = string_param(call, &["argument", "name"])?;
        let prefix = string_param(call, &["argument", "value"])?;
        let known = match kind.as_str() {
            "ref/prompt" => string_param(call, &["ref", "name"])? == "describeElement" && argument == "name",
            "ref/resource" => {
                string_param(call, &["ref", "uri"])? == resources::SYMBOL_URI_TEMPLATE && argument == "symbol"
            }
            other => {
                return Err(invalid_params(&format!("`ref.type` must be ref/prompt or ref/resource, not {other:?}")));
            }
        };
        if !known {
            return Err(invalid_params(&format!("nothing here has an argument {argument:?} to complete")));
        }
        let matches: Vec<&str> = if kind == "ref/prompt" {
            let has_prefix = |name: &str| name.to_lowercase().starts_with(&prefix.to_lowercase());
            let is_match = |element: &&Element| has_prefix(element.english) || element.chinese == prefix;
            ELEMENTS.iter().filter(is_match).map(|element| element.english).collect()
        } else {
            ELEMENTS.iter().map(|element| element.symbol).filter(|symbol| symbol.starts_with(&prefix)).collect()
        };
        let total = matches.len();
        let values = &matches[..total.min(MAX_COMPLETION_VALUES)];
        let body = json!({ "completion": { "values": values, "total": total, "hasMore": total > values.len() } });
        Ok(self.complete_result(&Method::Complete, body))
    }
}

impl LocalServer for Elements {
    fn server_info(&self) -> &ServerInfo {
        self.server()
    }

    fn list(&self, method: &Method) -> Option<&Raw> {
        match method {
            Method::ToolsList | Method::ResourcesList | Method::TemplatesList | Method::PromptsList => {
                Some(Elements::list(self, method))
            }
            _ => None,
        }
    }

    fn call(&self, call: &Call) -> Replies {
        Elements::call(self, call)
    }
}

/// One line of text that describes an element.
pub fn one_line(element: &Element) -> String {
    format!(
        "元素名称: {} ({}, {}), 原子序数: {}, 符号: {}, 相对原子质量: {}, 周期: {}, 族: {}",
        element.chinese,
        element.pinyin,
        element.english,
        element.number,
        element.symbol,
        element.mass,
        element.period,
        element.group
    )
}

/// JSON object of an element, in structured results and resources.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ElementJson<'e> {
    content: &'e str,
    atomic_number: u8,
    symbol: &'e str,
    chinese_name: &'e str,
    pinyin: &'e str,
    english_name: &'e str,
    atomic_mass: f64,
    period: u8,
    group: &'e str,
}

impl<'e> ElementJson<'e> {
    fn new(element: &'e Element, line: &'e str) -> Self {
        Self {
            content: line,
            atomic_number: element.number,
            symbol: element.symbol,
            chinese_name: element.chinese,
            pinyin: element.pinyin,
            english_name: element.english,
            atomic_mass: element.mass.parse().unwrap_or_default(),
            period: element.period,
            group: element.group,
        }
    }
}

fn element_json(element: &Element) -> serde_json::Value {
    serde_json::to_value(ElementJson::new(element, &one_line(element))).unwrap_or_default()
}

/// Adds `resultType`, the cache hint and `_meta`, which the newest revision requires.
fn with_result_fields(mut body: serde_json::Value, server: &ServerInfo, hint: Option<CacheHint>) -> Raw {
    body["resultType"] = "complete".into();
    if let Some(hint) = hint {
        body["ttlMs"] = hint.ttl.into();
        body["cacheScope"] = if hint.public { "public" } else { "private" }.into();
    }
    body["_meta"] = json!({ meta::SERVER_INFO: server.info });
    Raw::of(&body)
}

fn prompt_definition() -> serde_json::Value {
    json!({
        "name": "describeElement",
        "title": "Describe an element",
        "description": "Asks for a description of one element for a curious reader.",
        "arguments": [{
            "name": "name",
            "title": "Element",
            "description": "Chinese name, English name or symbol, such as 铁, Iron or Fe.",
            "required": true,
        }],
    })
}

/// Lists fit on one page, so no cursor was ever issued and any cursor is invalid.
fn single_page(call: &Call, list: &Raw) -> Result<Raw, ErrorObject> {
    match call.params.as_ref().and_then(|params| params.get("cursor")) {
        None => Ok(list.clone()),
        Some(_) => Err(invalid_params("this list has one page, so `cursor` names none; leave it out")),
    }
}

fn string_param(call: &Call, path: &[&str]) -> Result<String, ErrorObject> {
    let value = call.params.as_ref().and_then(|params| params.at(path));
    let text = value.as_ref().and_then(Raw::text);
    text.map(std::borrow::Cow::into_owned)
        .ok_or_else(|| invalid_params(&format!("`params.{}` must be a string", path.join("."))))
}

fn invalid_params(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}
