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

/// The members of `_meta` that mean something here, as they stand there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    version: Option<Raw>,
    capabilities: Option<Raw>,
    level: Option<Raw>,
    info: Option<Raw>,
    progress: Option<Raw>,
}

static META: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"_meta\""));

/// The member `_meta`, where there is one.
pub fn of(object: Option<&Raw>) -> Option<Raw> {
    object.filter(|object| object.may_have(&META))?.get("_meta")
}

/// The member `_meta` and another one, in one pass. Where there is no `_meta`, the other may not be looked for.
pub fn and(other: &str, object: Option<&Raw>) -> [Option<Raw>; 2] {
    let there = object.filter(|object| object.may_have(&META));
    there.map(|object| object.pick(["_meta", other])).unwrap_or_default()
}

/// Whether a request of the per-request era asks for log messages.
pub fn asks_for_logs(params: Option<&Raw>) -> bool {
    params.and_then(|params| params.at(&["_meta", LOG_LEVEL])).is_some()
}

impl Said {
    /// What stands in `_meta`, if that is an object.
    pub fn of(meta: Option<&Raw>) -> Self {
        let keys = [PROTOCOL_VERSION, CLIENT_CAPABILITIES, LOG_LEVEL, CLIENT_INFO, "progressToken"];
        let Some(picked) = meta.map(|meta| meta.pick(keys)) else { return Self::default() };
        let [version, capabilities, level, info, progress] = picked;
        Self { version, capabilities, level, info, progress }
    }

    /// Whether it claims to be of the per-request era: it has the key, whatever stands there.
    pub fn claims(&self) -> bool {
        self.version.is_some()
    }

    /// Reads it.
    ///
    /// # Errors
    /// `-32602` that names every key that is missing or of the wrong type.
    pub fn read(self) -> Result<Meta, ErrorObject> {
        let version = self.version.as_ref().and_then(Raw::text).map(std::borrow::Cow::into_owned);
        let capabilities = self.capabilities.filter(Raw::is_object);
        let (version, capabilities) = match (version, capabilities) {
            (Some(version), Some(capabilities)) => (version, capabilities),
            (version, capabilities) => {
                let mut missing = Vec::new();
                if version.is_none() {
                    missing.push(format!("`{PROTOCOL_VERSION}` (a string)"));
                }
                if capabilities.is_none() {
                    missing.push(format!("`{CLIENT_CAPABILITIES}` (an object)"));
                }
                let message = format!("Invalid params: `params._meta` needs {}", missing.join(" and "));
                return Err(ErrorObject::new(code::INVALID_PARAMS, message));
            }
        };
        let level = match self.level {
            None => None,
            Some(raw) => Some(Level::from_raw(&raw).ok_or_else(|| {
                let choices = Level::choices();
                let message = format!("Invalid params: `{LOG_LEVEL}` must be one of {choices}");
                ErrorObject::new(code::INVALID_PARAMS, message)
            })?),
        };
        Ok(Meta { version, capabilities, info: self.info, level, progress: self.progress })
    }
}

/// Reads `_meta`.
///
/// # Errors
/// `-32602` that names every key that is missing or of the wrong type.
pub fn read(params: Option<&Raw>) -> Result<Meta, ErrorObject> {
    Said::of(of(params).as_ref()).read()
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
