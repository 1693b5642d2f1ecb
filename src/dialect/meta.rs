//! The reserved keys of `_meta`, and reading them from a request of the per-request era.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::protocol::{ErrorObject, Level, Raw, code};

/// The revision that a request speaks.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// What the client can do.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// Who the client is.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// From which level on the client wants log messages for this request.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// Which listen request a notification belongs to.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// Who the server is.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// What a request of the per-request era says of itself.
#[derive(Debug, Clone)]
pub struct Meta {
    /// The revision it names, which may be one that we do not know.
    pub version: String,
    /// What the client can do.
    pub capabilities: Raw,
    /// Who the client is, if it says.
    pub info: Option<Raw>,
    /// From which level on it wants log messages.
    pub level: Option<Level>,
    /// What progress is to be reported under.
    pub progress: Option<Raw>,
}

static META: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"_meta\""));

/// The member `_meta`, where there is one.
pub fn of(object: Option<&Raw>) -> Option<Raw> {
    object.filter(|object| object.may_have(&META))?.get("_meta")
}

/// Whether a request or notification claims to be of the per-request era: it has the key,
/// whatever stands there.
pub fn claims(params: Option<&Raw>) -> bool {
    of(params).is_some_and(|meta| meta.get(PROTOCOL_VERSION).is_some())
}

/// Whether a request of the per-request era asks for log messages.
pub fn asks_for_logs(params: Option<&Raw>) -> bool {
    params.and_then(|params| params.at(&["_meta", LOG_LEVEL])).is_some()
}

/// Reads `_meta`.
///
/// # Errors
/// `-32602` that names every key that is missing or of the wrong type.
pub fn read(params: Option<&Raw>) -> Result<Meta, ErrorObject> {
    let meta = of(params).filter(Raw::is_object);
    let keys = [PROTOCOL_VERSION, CLIENT_CAPABILITIES, LOG_LEVEL, CLIENT_INFO, "progressToken"];
    let [version, capabilities, level, info, progress] = meta.map(|meta| meta.pick(keys)).unwrap_or_default();
    let version = version.as_ref().and_then(Raw::text).map(std::borrow::Cow::into_owned);
    let capabilities = capabilities.filter(Raw::is_object);
    let (Some(version), Some(capabilities)) = (&version, &capabilities) else {
        let mut missing = Vec::new();
        if version.is_none() {
            missing.push(format!("`{PROTOCOL_VERSION}` (a string)"));
        }
        if capabilities.is_none() {
            missing.push(format!("`{CLIENT_CAPABILITIES}` (an object)"));
        }
        let message = format!("Invalid params: `params._meta` needs {}", missing.join(" and "));
        return Err(ErrorObject::new(code::INVALID_PARAMS, message));
    };
    let level = match level {
        None => None,
        Some(raw) => Some(Level::from_raw(&raw).ok_or_else(|| {
            let choices = Level::choices();
            let message = format!("Invalid params: `{LOG_LEVEL}` must be one of {choices}");
            ErrorObject::new(code::INVALID_PARAMS, message)
        })?),
    };
    Ok(Meta { version: version.clone(), capabilities: capabilities.clone(), info, level, progress })
}

/// The progress token of a request of either era.
pub fn progress_token(params: Option<&Raw>) -> Option<Raw> {
    of(params)?.get("progressToken")
}

/// The listen request that a notification belongs to.
pub fn subscription(params: Option<&Raw>) -> Option<Raw> {
    params?.at(&["_meta", SUBSCRIPTION_ID])
}

/// `params` with a member of `_meta` set.
pub fn with(params: Option<&Raw>, key: &str, value: Raw) -> Raw {
    let empty = Raw::empty();
    let params = params.unwrap_or(&empty);
    let meta = params.get("_meta").unwrap_or_else(Raw::empty);
    let meta = meta.edit().set(key, value).finish();
    params.edit().set("_meta", meta).finish()
}
