//! Requests that are mapped by hand, as tools.

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::arguments::Input;
use super::base_url::{Base, climbs, closed};
use super::body::{BodyTemplate, RequestBodyTemplate};
use super::encode::Style;
use super::names::{LONGEST, ToolNames, is_clean};
use super::openapi::{ANYTHING, Hints, Tool};
use super::request_template::{Parameter, Placeholder, RequestTemplate, Template, meant};
use super::spec::{ManualArgument, ManualBody, ManualTool};

/// Headers that a tool cannot even say by itself: they frame the message.
const FRAMING: &[&str] = &["host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"];

/// A tool from its request, or what is wrong with it.
pub(super) fn tool(hand: &ManualTool, base: &Base, taken: &mut ToolNames) -> Result<Tool, String> {
    let name = &hand.name;
    if !is_clean(name) {
        return Err(format!("{name:?} is no name for a tool: 1 to {LONGEST} of letters, digits, `_`, `-` and `.`"));
    }
    if !taken.take(name) {
        return Err(format!("there are two tools of the name {name:?}"));
    }
    let wrong = |why: String| format!("the tool {name:?}: {why}");
    let plan = plan(hand, base).map_err(wrong)?;
    Ok(Tool { name: name.clone(), listed: listed(hand), plan })
}

fn plan(hand: &ManualTool, base: &Base) -> Result<RequestTemplate, String> {
    let mut reading = ManualToolReader { arguments: &hand.arguments, used: vec![false; hand.arguments.len()] };
    if hand.url.contains("://") || hand.url.starts_with("//") || hand.url.contains('#') {
        let why = "is a path below the base URL with or without a query, such as /v1/forecast?days={days}";
        return Err(format!("`url` {why}; it was {:?}", hand.url.split('?').next().unwrap_or_default()));
    }
    let (path, query) = hand.url.split_once('?').unwrap_or((&hand.url, ""));
    if climbs(path) {
        return Err(format!("the path {path:?} leads elsewhere: it has `.` or `..` in it"));
    }
    let path = reading.template(path)?;
    for slot in path.slots() {
        let argument = &hand.arguments[slot.input];
        if !argument.required && argument.default.is_none() {
            return Err(format!("`{}` is a part of the path, so it must be required or have a default", argument.name));
        }
    }
    let mut parameters = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name.contains(['{', '}']) {
            return Err(format!("the name of a query parameter is fixed; it was {name:?}"));
        }
        parameters.push(Parameter::Template(meant(name), reading.template(value)?.meant()));
    }
    let headers = headers(hand, base, &mut reading)?;
    let body = hand.body.as_ref().map(|body| reading.body(body)).transpose()?;
    let unused = reading.used.iter().position(|used| !used);
    if let Some(unused) = unused {
        return Err(format!("the argument {:?} is nowhere in the request", hand.arguments[unused].name));
    }
    let inputs = hand.arguments.iter().map(input).collect::<Result<_, _>>()?;
    Ok(RequestTemplate {
        verb: hand.method.clone(),
        path,
        query: parameters,
        headers,
        cookies: Vec::new(),
        body,
        accept: ANYTHING,
        inputs,
        pick: hand.result_path.clone(),
    })
}

fn headers(
    hand: &ManualTool,
    base: &Base,
    reading: &mut ManualToolReader<'_>,
) -> Result<Vec<(HeaderName, Template)>, String> {
    let mut headers = Vec::new();
    for (name, text) in &hand.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header"))?;
        let template = reading.template(text)?;
        let varies = template.slots().next().is_some();
        if FRAMING.contains(&name.as_str()) || (varies && closed(&name)) {
            return Err(format!("the header `{name}` cannot be set by a tool's arguments"));
        }
        if !varies && HeaderValue::from_str(text).is_err() {
            return Err(format!("the value of the header `{name}` is none"));
        }
        if !base.headers().contains_key(&name) {
            headers.push((name, template));
        }
    }
    Ok(headers)
}

/// The templates of a tool, and which arguments they use.
struct ManualToolReader<'h> {
    arguments: &'h [ManualArgument],
    used: Vec<bool>,
}

impl ManualToolReader<'_> {
    fn template(&mut self, text: &str) -> Result<Template, String> {
        Template::parse(text, true, |name| {
            let input = self.arguments.iter().position(|argument| argument.name == name);
            let input = input.ok_or_else(|| format!("`{{{name}}}` is not among its arguments"))?;
            self.used[input] = true;
            Ok(Placeholder { name: name.to_owned(), input, style: Style::Simple, explode: false })
        })
    }

    fn body(&mut self, body: &ManualBody) -> Result<RequestBodyTemplate, String> {
        Ok(match body {
            ManualBody::Json(value) => RequestBodyTemplate::Shape(self.shape(value)?),
            ManualBody::Form(fields) => {
                let fields = fields.iter().map(|(name, text)| Ok((name.clone(), self.template(text)?)));
                RequestBodyTemplate::Form(fields.collect::<Result<_, String>>()?)
            }
            ManualBody::Text(text) => RequestBodyTemplate::Text(self.template(text)?),
        })
    }

    fn shape(&mut self, value: &Value) -> Result<BodyTemplate, String> {
        Ok(match value {
            Value::String(text) => {
                let template = self.template(text)?;
                match template.only() {
                    Some(slot) => BodyTemplate::Input(slot.input),
                    None => BodyTemplate::Text(template),
                }
            }
            Value::Array(items) => {
                BodyTemplate::Array(items.iter().map(|item| self.shape(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(members) => {
                let members = members.iter().map(|(name, value)| Ok((name.clone(), self.shape(value)?)));
                BodyTemplate::Object(members.collect::<Result<_, String>>()?)
            }
            fixed => BodyTemplate::Fixed(fixed.clone()),
        })
    }
}

fn input(argument: &ManualArgument) -> Result<Input, String> {
    let ManualArgument { name, kind, required, default, choices, .. } = argument;
    if !is_clean(name) {
        return Err(format!("{name:?} is no name for an argument"));
    }
    for value in choices.iter().chain(default) {
        if !kind.has(value) {
            return Err(format!("the argument {name:?} is of type {}, but {value} is not", kind.as_str()));
        }
    }
    if default.as_ref().is_some_and(|default| !choices.is_empty() && !choices.contains(default)) {
        return Err(format!("the default of the argument {name:?} is not among its choices"));
    }
    let required = *required && default.is_none();
    Ok(Input { name: name.clone(), required, default: default.clone(), kinds: vec![*kind], choices: choices.clone() })
}

fn listed(hand: &ManualTool) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for argument in &hand.arguments {
        let mut schema = json!({ "type": argument.kind.as_str() });
        if let Some(description) = &argument.description {
            schema["description"] = description.as_str().into();
        }
        if let Some(default) = &argument.default {
            schema["default"] = default.clone();
        } else if argument.required {
            required.push(argument.name.as_str());
        }
        if !argument.choices.is_empty() {
            schema["enum"] = argument.choices.clone().into();
        }
        properties.insert(argument.name.clone(), schema);
    }
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    let said = Hints::of(&hand.method);
    let read_only = hand.read_only.unwrap_or(said.read_only);
    let hints = Hints {
        read_only,
        destructive: hand.destructive.unwrap_or(said.destructive),
        idempotent: hand.idempotent.unwrap_or(said.idempotent || read_only),
    };
    let path = hand.url.split('?').next().unwrap_or_default();
    let description = hand.description.clone().unwrap_or_else(|| format!("{} {path}", hand.method));
    let mut listed = json!({
        "name": hand.name,
        "description": description,
        "inputSchema": schema,
        "annotations": hints.annotations(),
    });
    if let Some(title) = &hand.title {
        listed["title"] = title.as_str().into();
    }
    listed
}
