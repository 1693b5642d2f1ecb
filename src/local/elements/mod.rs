//! The built-in server: the periodic table of 118 elements.
//!
//! It runs with no configuration and shows every part of the protocol that a server has: tools
//! with structured results, a slow tool with progress, resources with a template and one that
//! changes, completion, a prompt, and log messages. It answers in the shapes of the newest
//! revision.

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
use crate::dialect::to_client::{CacheHint, ServerInfo, cached};
use crate::dialect::{classify, meta};
use crate::protocol::{ErrorObject, Method, Raw, code};

use data::{ELEMENTS, Element};

/// The periodic table as a server.
#[derive(Debug, Clone)]
pub struct Elements(Arc<ElementsInner>);

#[derive(Debug)]
struct ElementsInner {
    server: ServerInfo,
    /// What every result says of who answers.
    meta: Box<RawValue>,
    tools: Raw,
    resources: Raw,
    templates: Raw,
    prompts: Raw,
    changes: broadcast::Sender<ChangeEvent>,
    spotlight: Duration,
}

/// The table never changes, so everybody may keep it for an hour.
const HINT: CacheHint = CacheHint { ttl: 3_600_000, public: true };
/// How long the element in the spotlight stays there.
pub const SPOTLIGHT: Duration = Duration::from_secs(60);
/// How many changes may wait for those who listen; who falls behind is told of all at once.
const CHANGES_WAITING: usize = 64;
/// How many values a completion may have.
const COMPLETIONS: usize = 100;

impl Elements {
    /// The server; the element in the spotlight changes every `spotlight`.
    pub fn new(spotlight: Duration) -> Self {
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
        let tools = finished(json!({ "tools": tools::list() }), &server, Some(HINT));
        let resources = finished(json!({ "resources": resources::list() }), &server, Some(HINT));
        let templates = finished(json!({ "resourceTemplates": resources::templates() }), &server, Some(HINT));
        let prompts = finished(json!({ "prompts": [prompt()] }), &server, Some(HINT));
        let changes = broadcast::Sender::new(CHANGES_WAITING);
        let meta = json!({ meta::SERVER_INFO: server.info }).to_string();
        let meta = RawValue::from_string(meta).expect("it was just written as JSON");
        Self(Arc::new(ElementsInner { server, meta, tools, resources, templates, prompts, changes, spotlight }))
    }

    /// What the server says of itself.
    pub fn server(&self) -> &ServerInfo {
        &self.0.server
    }

    /// The list that a method asks for; the tools where it asks for none.
    pub fn list(&self, method: &Method) -> &Raw {
        match method {
            Method::ResourcesList => &self.0.resources,
            Method::TemplatesList => &self.0.templates,
            Method::PromptsList => &self.0.prompts,
            _ => &self.0.tools,
        }
    }

    /// What changes, as it changes.
    pub fn changes(&self) -> broadcast::Receiver<ChangeEvent> {
        self.0.changes.subscribe()
    }

    /// Moves the spotlight on, for as long as the server lives.
    pub async fn run(self) {
        let mut ticks = tokio::time::interval(self.0.spotlight);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            // Nobody may be listening; that is no fault.
            let _ = self.0.changes.send(ChangeEvent::Updated(resources::SPOTLIGHT.into()));
        }
    }

    /// Answers a call.
    pub fn call(&self, call: &Call) -> Replies {
        let answered = match &call.method {
            Method::ToolsList | Method::ResourcesList | Method::TemplatesList | Method::PromptsList => {
                listed(call, self.list(&call.method))
            }
            Method::ToolsCall => return tools::call(self, call),
            Method::ResourcesRead => resources::read(self, call),
            Method::PromptsGet => self.prompt(call),
            Method::Complete => self.complete(call),
            other => Err(classify::method_not_found(other)),
        };
        answered.map_or_else(Replies::from, |result| Answer::result(result).into())
    }

    /// A whole result from its own members.
    fn result(&self, method: &Method, body: serde_json::Value) -> Raw {
        finished(body, &self.0.server, cached(method).then_some(HINT))
    }

    fn prompt(&self, call: &Call) -> Result<Raw, ErrorObject> {
        let name = text_param(call, &["name"])?;
        if name != "describeElement" {
            return Err(invalid(&format!("there is no prompt {name:?}; there is `describeElement`")));
        }
        let name = text_param(call, &["arguments", "name"])?;
        let Some(element) = data::by_name(&name) else {
            return Err(invalid(&format!("元素不存在: {name:?} is no Chinese name, English name or symbol")));
        };
        let text = format!(
            "Describe the element {} ({}, atomic number {}) to a curious reader: where it is found, \
             what it is like, and what it is used for. The table says: {}",
            element.english,
            element.chinese,
            element.number,
            line(element)
        );
        let body = json!({
            "description": format!("Describe {}", element.english),
            "messages": [{ "role": "user", "content": { "type": "text", "text": text } }],
        });
        Ok(self.result(&Method::PromptsGet, body))
    }

    fn complete(&self, call: &Call) -> Result<Raw, ErrorObject> {
        let kind = text_param(call, &["ref", "type"])?;
        let argument = text_param(call, &["argument", "name"])?;
        let given = text_param(call, &["argument", "value"])?;
        let known = match kind.as_str() {
            "ref/prompt" => text_param(call, &["ref", "name"])? == "describeElement" && argument == "name",
            "ref/resource" => text_param(call, &["ref", "uri"])? == resources::TEMPLATE && argument == "symbol",
            other => return Err(invalid(&format!("`ref.type` must be ref/prompt or ref/resource, not {other:?}"))),
        };
        if !known {
            return Err(invalid(&format!("nothing here has an argument {argument:?} to complete")));
        }
        let matches: Vec<&str> = if kind == "ref/prompt" {
            let begins = |name: &str| name.to_lowercase().starts_with(&given.to_lowercase());
            let fitting = |element: &&Element| begins(element.english) || element.chinese == given;
            ELEMENTS.iter().filter(fitting).map(|element| element.english).collect()
        } else {
            ELEMENTS.iter().map(|element| element.symbol).filter(|symbol| symbol.starts_with(&given)).collect()
        };
        let total = matches.len();
        let values = &matches[..total.min(COMPLETIONS)];
        let body = json!({ "completion": { "values": values, "total": total, "hasMore": total > values.len() } });
        Ok(self.result(&Method::Complete, body))
    }
}

/// How an element reads in one line.
pub fn line(element: &Element) -> String {
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

/// An element as an object: its line, and its fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'e> {
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

impl<'e> Object<'e> {
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

/// An element as JSON.
fn object(element: &Element) -> serde_json::Value {
    serde_json::to_value(Object::new(element, &line(element))).unwrap_or_default()
}

/// Adds what the newest revision wants in every result.
fn finished(mut body: serde_json::Value, server: &ServerInfo, hint: Option<CacheHint>) -> Raw {
    body["resultType"] = "complete".into();
    if let Some(hint) = hint {
        body["ttlMs"] = hint.ttl.into();
        body["cacheScope"] = if hint.public { "public" } else { "private" }.into();
    }
    body["_meta"] = json!({ meta::SERVER_INFO: server.info });
    Raw::of(&body)
}

fn prompt() -> serde_json::Value {
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

/// Everything fits on one page, so no cursor was ever given out.
fn listed(call: &Call, list: &Raw) -> Result<Raw, ErrorObject> {
    match call.params.as_ref().and_then(|params| params.get("cursor")) {
        None => Ok(list.clone()),
        Some(_) => Err(invalid("this list has one page, so `cursor` names none; leave it out")),
    }
}

fn text_param(call: &Call, path: &[&str]) -> Result<String, ErrorObject> {
    let value = call.params.as_ref().and_then(|params| params.at(path));
    let text = value.as_ref().and_then(Raw::text);
    text.map(std::borrow::Cow::into_owned)
        .ok_or_else(|| invalid(&format!("`params.{}` must be a string", path.join("."))))
}

fn invalid(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}
