//! What makes an HTTP API an upstream, as a configuration says it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, HeaderName, Method as Verb, Uri};
use serde_json::Value;

use crate::http::client as web;

/// How long an HTTP API may take, and how much it may answer.
#[derive(Debug, Clone)]
pub struct RestLimits {
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long the document that describes it may take.
    pub discovery_timeout: Duration,
    /// How long a call may take.
    pub call_timeout: Duration,
    /// The largest body that is read.
    pub message_bytes: usize,
}

/// What makes an HTTP API an upstream.
#[derive(Clone, PartialEq)]
pub struct RestSpec {
    /// Scheme, authority and path prefix: the only place where requests ever go.
    pub base_url: Uri,
    /// Headers that go with each request. Their values are secrets, and no argument can replace them.
    pub headers: HeaderMap,
    /// Query parameters that go with each request, such as a key. Their values are secrets, and no
    /// argument can replace them.
    pub query: Vec<(String, String)>,
    /// The document that describes the API.
    pub document: Option<DocumentSource>,
    /// Which of the document's operations are offered; all when empty. A pattern with `*` and `?` is
    /// held against the tool's name, the operation's id, and `METHOD /path`.
    pub allow: Vec<String>,
    /// Which of them are not offered, even if they are allowed.
    pub deny: Vec<String>,
    /// Requests that are mapped by hand.
    pub tools: Vec<ManualTool>,
}

/// Where a document is that describes an API: OpenAPI 3.0 or 3.1, or Swagger 2.0, in JSON or YAML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentSource {
    /// A file.
    File(PathBuf),
    /// An address. The headers of the API go there only if it is of the same origin.
    Url(Uri),
}

/// A request that is mapped by hand. `{argument}` stands for the value of an argument, `{{` and `}}`
/// for braces.
#[derive(Clone, PartialEq)]
pub struct ManualTool {
    /// The name of the tool.
    pub name: String,
    /// Its name for people.
    pub title: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// The method of the request.
    pub method: Verb,
    /// Path and query below the base URL, as a template. A query parameter whose argument is not given
    /// is left out.
    pub url: String,
    /// What it takes.
    pub arguments: Vec<ManualArgument>,
    /// Headers as templates. One whose argument is not given is left out.
    pub headers: Vec<(String, String)>,
    /// What is sent.
    pub body: Option<ManualBody>,
    /// What to take from a JSON answer: a JSON pointer (`/a/0/b`) or a dotted path (`a.0.b`).
    pub result_path: Option<String>,
    /// Whether it changes nothing; by default what the method says.
    pub read_only: Option<bool>,
    /// Whether it may destroy something; by default what the method says.
    pub destructive: Option<bool>,
    /// Whether doing it twice is the same as doing it once; by default what the method says.
    pub idempotent: Option<bool>,
}

/// An argument of a tool that is mapped by hand.
#[derive(Debug, Clone, PartialEq)]
pub struct ManualArgument {
    /// Its name.
    pub name: String,
    /// What it must be.
    pub kind: ValueKind,
    /// What it means.
    pub description: Option<String>,
    /// Whether it must be given.
    pub required: bool,
    /// What it is when it is not given.
    pub default: Option<Value>,
    /// The only values that it may have; any when empty.
    pub choices: Vec<Value>,
}

/// The body of a request that is mapped by hand.
#[derive(Debug, Clone, PartialEq)]
pub enum ManualBody {
    /// JSON. A string that is exactly `{argument}` becomes the value itself; a member or an element
    /// whose argument is not given is left out.
    Json(Value),
    /// The fields of a form, as templates.
    Form(Vec<(String, String)>),
    /// Text, as a template.
    Text(String),
}

/// The types that a JSON value can be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// Text.
    String,
    /// Any number.
    Number,
    /// A whole number.
    Integer,
    /// True or false.
    Boolean,
    /// A list.
    Array,
    /// Members by name.
    Object,
    /// Nothing.
    Null,
}

impl ValueKind {
    /// Its name in JSON Schema.
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

    /// The type with a name in JSON Schema.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::String, Self::Number, Self::Integer, Self::Boolean, Self::Array, Self::Object, Self::Null];
        all.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether a value is of this type.
    pub(super) fn has(self, value: &Value) -> bool {
        match self {
            Self::String => value.is_string(),
            Self::Number => value.is_number(),
            Self::Integer => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|f| f.fract() == 0.0),
            Self::Boolean => value.is_boolean(),
            Self::Array => value.is_array(),
            Self::Object => value.is_object(),
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
        let mut shown = f.debug_struct("Spec");
        shown.field("base_url", &web::redacted(&self.base_url)).field("headers", &headers).field("query", &query);
        shown.field("document", &document).field("allow", &self.allow).field("deny", &self.deny);
        shown.field("tools", &self.tools).finish()
    }
}

impl fmt::Debug for ManualTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A fixed part of the query, of a header or of the body may hold a secret.
        let path = self.url.split('?').next().unwrap_or_default();
        let headers: Vec<&String> = self.headers.iter().map(|(name, _)| name).collect();
        let mut shown = f.debug_struct("HandTool");
        shown.field("name", &self.name).field("method", &self.method).field("path", &path);
        shown.field("arguments", &self.arguments).field("headers", &headers).field("pick", &self.result_path);
        shown.finish_non_exhaustive()
    }
}
