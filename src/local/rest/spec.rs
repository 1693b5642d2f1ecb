//! Configuration of an HTTP API.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, HeaderName, Method as Verb, Uri};
use serde_json::Value;

use super::argument_value::ArgumentValue;
use crate::http::client as web;

/// Timeouts and size limits of an HTTP API.
#[derive(Debug, Clone)]
pub struct RestLimits {
    /// Timeout of a connect.
    pub connect_timeout: Duration,
    /// Timeout of fetching the API document.
    pub discovery_timeout: Duration,
    /// Timeout of a call.
    pub call_timeout: Duration,
    /// Size limit of a response body.
    pub message_bytes: usize,
    /// Limit of the nesting depth of a JSON response body.
    pub json_depth: usize,
}

/// Configuration of an HTTP API.
#[derive(Clone, PartialEq)]
pub struct RestSpec {
    /// Scheme, authority and path prefix that every request stays below.
    pub base_url: Uri,
    /// Headers sent with each request. Their values are secret, and no argument can override them.
    pub headers: HeaderMap,
    /// Query parameters sent with each request, such as an API key. Their values are secret, and no argument can
    /// override them.
    pub query: Vec<(String, String)>,
    /// API document whose operations become tools.
    pub document: Option<DocumentSource>,
    /// Patterns of operations to offer; all when empty. `*` and `?` are wildcards, matched against tool name,
    /// operation id and `METHOD /path`.
    pub allow: Vec<String>,
    /// Patterns of operations not to offer; takes precedence over `allow`.
    pub deny: Vec<String>,
    /// Tools whose request is written in the configuration.
    pub tools: Vec<ManualTool>,
}

/// Location of an API document: OpenAPI 3.0 or 3.1, or Swagger 2.0, in JSON or YAML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentSource {
    /// A local file.
    File(PathBuf),
    /// A URL. The configured headers are sent only if it has the origin of the base URL.
    Url(Uri),
}

/// A tool whose request is written in the configuration. In templates, `{argument}` is a placeholder, `{{` and
/// `}}` are literal braces.
#[derive(Clone, PartialEq)]
pub struct ManualTool {
    /// Tool name.
    pub name: String,
    /// Display name.
    pub title: Option<String>,
    /// Tool description.
    pub description: Option<String>,
    /// HTTP method.
    pub method: Verb,
    /// Template of path and query below the base URL. A query parameter whose argument is absent is omitted.
    pub url: String,
    /// Arguments of the tool.
    pub arguments: Vec<ManualArgument>,
    /// Header templates. A header whose argument is absent is omitted.
    pub headers: Vec<(String, String)>,
    /// Request body.
    pub body: Option<ManualBody>,
    /// Selects a part of a JSON response: a JSON pointer (`/a/0/b`) or a dotted path (`a.0.b`).
    pub result_path: Option<String>,
    /// `readOnlyHint`; by default from the HTTP method.
    pub read_only: Option<bool>,
    /// `destructiveHint`; by default from the HTTP method.
    pub destructive: Option<bool>,
    /// `idempotentHint`; by default from the HTTP method.
    pub idempotent: Option<bool>,
}

/// An argument of a [`ManualTool`].
#[derive(Debug, Clone, PartialEq)]
pub struct ManualArgument {
    /// Argument name.
    pub name: String,
    /// JSON type.
    pub kind: ValueKind,
    /// Argument description.
    pub description: Option<String>,
    /// Whether the argument must be given.
    pub required: bool,
    /// Value used when the argument is absent.
    pub default: Option<Value>,
    /// Allowed values; any when empty.
    pub choices: Vec<Value>,
}

/// Body of a [`ManualTool`] request.
#[derive(Debug, Clone, PartialEq)]
pub enum ManualBody {
    /// JSON. A string that is exactly `{argument}` becomes the argument's value; a member or an element whose
    /// argument is absent is omitted.
    Json(Value),
    /// Form fields, as templates.
    Form(Vec<(String, String)>),
    /// Text, as a template.
    Text(String),
}

/// JSON Schema types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A string.
    String,
    /// Any number.
    Number,
    /// A number without a fraction.
    Integer,
    /// True or false.
    Boolean,
    /// An array.
    Array,
    /// An object.
    Object,
    /// Null.
    Null,
}

impl ValueKind {
    /// Name of the type in JSON Schema.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Number => "number",
            Self::Integer => "integer",
            Self::Boolean => "boolean",
            Self::Array => "array",
            Self::Object => "object",
            Self::Null => "null",
        }
    }

    /// The type with the given JSON Schema name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::String, Self::Number, Self::Integer, Self::Boolean, Self::Array, Self::Object, Self::Null];
        all.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether a value is of this type.
    pub(super) fn matches(self, value: &ArgumentValue) -> bool {
        match self {
            Self::String => matches!(value, ArgumentValue::String(_)),
            Self::Number => matches!(value, ArgumentValue::Number(_)),
            Self::Integer => value.is_integer(),
            Self::Boolean => matches!(value, ArgumentValue::Bool(_)),
            Self::Array => matches!(value, ArgumentValue::Array(_)),
            Self::Object => matches!(value, ArgumentValue::Object(_)),
            Self::Null => value.is_null(),
        }
    }
}

impl fmt::Debug for RestSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&HeaderName> = self.headers.keys().collect();
        let query: Vec<&String> = self.query.iter().map(|(name, _)| name).collect();
        let document = self.document.as_ref().map(|document| match document {
            DocumentSource::File(path) => path.display().to_string(),
            DocumentSource::Url(url) => web::redacted(url),
        });
        let mut debug = f.debug_struct("RestSpec");
        debug.field("base_url", &web::redacted(&self.base_url)).field("headers", &headers).field("query", &query);
        debug.field("document", &document).field("allow", &self.allow).field("deny", &self.deny);
        debug.field("tools", &self.tools).finish()
    }
}

impl fmt::Debug for ManualTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Literal parts of query, headers and body may hold secrets.
        let path = self.url.split('?').next().unwrap_or_default();
        let headers: Vec<&String> = self.headers.iter().map(|(name, _)| name).collect();
        let mut debug = f.debug_struct("ManualTool");
        debug.field("name", &self.name).field("method", &self.method).field("path", &path);
        debug.field("arguments", &self.arguments).field("headers", &headers).field("result_path", &self.result_path);
        debug.finish_non_exhaustive()
    }
}
