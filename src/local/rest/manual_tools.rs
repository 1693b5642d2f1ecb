//! Tools whose HTTP request is written in the configuration.

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::arguments::ToolArgument;
use super::base_url::{BaseUrl, has_dot_segment, is_protected_header};
use super::body::{BodyTemplate, RequestBodyTemplate};
use super::encode::ParameterStyle;
use super::names::{MAX_NAME_LENGTH, UniqueNames, is_valid_name};
use super::openapi::{DEFAULT_ACCEPT, RestTool, ToolHints};
use super::request_template::{Placeholder, QueryParameter, RequestTemplate, TextTemplate, decode_query_text};
use super::spec::{ManualArgument, ManualBody, ManualTool};

/// Headers that no tool can set, because the HTTP client frames the message with them.
const FRAMING_HEADERS: &[&str] =
    &["host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"];

/// Builds a tool; the error says what is wrong with its configuration.
pub(super) fn build_tool(manual: &ManualTool, base: &BaseUrl, names: &mut UniqueNames) -> Result<RestTool, String> {
    let name = &manual.name;
    if !is_valid_name(name) {
        return Err(format!(
            "{name:?} is no name for a tool: 1 to {MAX_NAME_LENGTH} of letters, digits, `_`, `-` and `.`"
        ));
    }
    if !names.reserve(name) {
        return Err(format!("there are two tools of the name {name:?}"));
    }
    let in_tool = |why: String| format!("the tool {name:?}: {why}");
    let template = request_template(manual, base).map_err(in_tool)?;
    Ok(RestTool { name: name.clone(), definition: tool_definition(manual), template })
}

fn request_template(manual: &ManualTool, base: &BaseUrl) -> Result<RequestTemplate, String> {
    let mut reader = ManualToolReader { arguments: &manual.arguments, used: vec![false; manual.arguments.len()] };
    if manual.url.contains("://") || manual.url.starts_with("//") || manual.url.contains('#') {
        let why = "is a path below the base URL with or without a query, such as /v1/forecast?days={days}";
        return Err(format!("`url` {why}; it was {:?}", manual.url.split('?').next().unwrap_or_default()));
    }
    let (path, query) = manual.url.split_once('?').unwrap_or((&manual.url, ""));
    if has_dot_segment(path) {
        return Err(format!("the path {path:?} leads elsewhere: it has `.` or `..` in it"));
    }
    let path = reader.template(path)?;
    for placeholder in path.placeholders() {
        let argument = &manual.arguments[placeholder.argument_index];
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
        parameters.push(QueryParameter::Template(decode_query_text(name), reader.template(value)?.decode_query_text()));
    }
    let headers = header_templates(manual, base, &mut reader)?;
    let body = manual.body.as_ref().map(|body| reader.body(body)).transpose()?;
    let unused = reader.used.iter().position(|used| !used);
    if let Some(unused) = unused {
        return Err(format!("the argument {:?} is nowhere in the request", manual.arguments[unused].name));
    }
    let arguments = manual.arguments.iter().map(tool_argument).collect::<Result<_, _>>()?;
    Ok(RequestTemplate {
        verb: manual.method.clone(),
        path,
        query: parameters,
        headers,
        cookies: Vec::new(),
        body,
        accept: DEFAULT_ACCEPT,
        arguments,
        result_path: manual.result_path.clone(),
    })
}

fn header_templates(
    manual: &ManualTool,
    base: &BaseUrl,
    reader: &mut ManualToolReader<'_>,
) -> Result<Vec<(HeaderName, TextTemplate)>, String> {
    let mut headers = Vec::new();
    for (name, text) in &manual.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header"))?;
        let template = reader.template(text)?;
        let has_placeholder = template.placeholders().next().is_some();
        if FRAMING_HEADERS.contains(&name.as_str()) || (has_placeholder && is_protected_header(&name)) {
            return Err(format!("the header `{name}` cannot be set by a tool's arguments"));
        }
        if !has_placeholder && HeaderValue::from_str(text).is_err() {
            return Err(format!("the value of the header `{name}` is none"));
        }
        if !base.headers().contains_key(&name) {
            headers.push((name, template));
        }
    }
    Ok(headers)
}

/// Parses templates and records which arguments they use.
struct ManualToolReader<'h> {
    arguments: &'h [ManualArgument],
    used: Vec<bool>,
}

impl ManualToolReader<'_> {
    fn template(&mut self, text: &str) -> Result<TextTemplate, String> {
        TextTemplate::parse(text, true, |name| {
            let argument_index = self.arguments.iter().position(|argument| argument.name == name);
            let argument_index = argument_index.ok_or_else(|| format!("`{{{name}}}` is not among its arguments"))?;
            self.used[argument_index] = true;
            Ok(Placeholder { name: name.to_owned(), argument_index, style: ParameterStyle::Simple, explode: false })
        })
    }

    fn body(&mut self, body: &ManualBody) -> Result<RequestBodyTemplate, String> {
        Ok(match body {
            ManualBody::Json(value) => RequestBodyTemplate::Json(self.body_template(value)?),
            ManualBody::Form(fields) => {
                let fields = fields.iter().map(|(name, text)| Ok((name.clone(), self.template(text)?)));
                RequestBodyTemplate::Form(fields.collect::<Result<_, String>>()?)
            }
            ManualBody::Text(text) => RequestBodyTemplate::Text(self.template(text)?),
        })
    }

    fn body_template(&mut self, value: &Value) -> Result<BodyTemplate, String> {
        Ok(match value {
            Value::String(text) => {
                let template = self.template(text)?;
                match template.sole_placeholder() {
                    Some(placeholder) => BodyTemplate::Argument(placeholder.argument_index),
                    None => BodyTemplate::Text(template),
                }
            }
            Value::Array(items) => {
                BodyTemplate::Array(items.iter().map(|item| self.body_template(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(members) => {
                let members = members.iter().map(|(name, value)| Ok((name.clone(), self.body_template(value)?)));
                BodyTemplate::Object(members.collect::<Result<_, String>>()?)
            }
            fixed => BodyTemplate::Fixed(fixed.into()),
        })
    }
}

fn tool_argument(argument: &ManualArgument) -> Result<ToolArgument, String> {
    let ManualArgument { name, kind, required, default, choices, .. } = argument;
    if !is_valid_name(name) {
        return Err(format!("{name:?} is no name for an argument"));
    }
    for value in choices.iter().chain(default) {
        if !kind.matches(&value.into()) {
            return Err(format!("the argument {name:?} is of type {}, but {value} is not", kind.as_str()));
        }
    }
    if default.as_ref().is_some_and(|default| !choices.is_empty() && !choices.contains(default)) {
        return Err(format!("the default of the argument {name:?} is not among its choices"));
    }
    let required = *required && default.is_none();
    Ok(ToolArgument {
        name: name.clone(),
        required,
        default: default.as_ref().map(Into::into),
        kinds: vec![*kind],
        choices: choices.iter().map(Into::into).collect(),
    })
}

fn tool_definition(manual: &ManualTool) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for argument in &manual.arguments {
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
    let default_hints = ToolHints::of(&manual.method);
    let read_only = manual.read_only.unwrap_or(default_hints.read_only);
    let hints = ToolHints {
        read_only,
        destructive: manual.destructive.unwrap_or(default_hints.destructive),
        idempotent: manual.idempotent.unwrap_or(default_hints.idempotent || read_only),
    };
    let path = manual.url.split('?').next().unwrap_or_default();
    let description = manual.description.clone().unwrap_or_else(|| format!("{} {path}", manual.method));
    let mut definition = json!({
        "name": manual.name,
        "description": description,
        "inputSchema": schema,
        "annotations": hints.annotations(),
    });
    if let Some(title) = &manual.title {
        definition["title"] = title.as_str().into();
    }
    definition
}
