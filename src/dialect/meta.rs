//! The reserved keys of `_meta`, and their parser for per-request messages.

use crate::protocol::{ErrorObject, Key, Level, Payload, Raw, code};

/// The revision of a request.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The client capabilities.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// The client's identity.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// The minimum log level for this request.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// The id of the listen request that a notification belongs to.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// The server's identity.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// The parsed `_meta` of a per-request request.
#[derive(Debug, Clone)]
pub struct ParsedMeta {
    /// The revision it names, possibly an unknown one.
    pub version: String,
    /// The client capabilities.
    pub capabilities: Raw,
    /// The client's identity, if given.
    pub info: Option<Raw>,
    /// The minimum log level for this request.
    pub level: Option<Level>,
    /// The progress token of this request.
    pub progress_token: Option<Raw>,
}

/// The reserved members of `_meta`, unparsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetaFields {
    version: Option<Raw>,
    capabilities: Option<Raw>,
    level: Option<Raw>,
    info: Option<Raw>,
    progress: Option<Raw>,
}

/// Whether a per-request request asks for log messages.
pub fn requests_logs(params: Option<&Payload>) -> bool {
    params.and_then(|params| params.member(Key::Meta)?.get(LOG_LEVEL)).is_some()
}

impl MetaFields {
    /// Picks the reserved members of `_meta`.
    pub fn of(meta: Option<&Raw>) -> Self {
        let keys = [PROTOCOL_VERSION, CLIENT_CAPABILITIES, LOG_LEVEL, CLIENT_INFO, "progressToken"];
        let Some(picked) = meta.map(|meta| meta.pick(keys)) else { return Self::default() };
        let [version, capabilities, level, info, progress] = picked;
        Self { version, capabilities, level, info, progress }
    }

    /// Whether the message claims to be of the per-request era: the version key is present, with any value.
    pub fn claims_per_request(&self) -> bool {
        self.version.is_some()
    }

    /// Parses the members.
    ///
    /// # Errors
    /// `-32602` that names every key that is missing or of the wrong type.
    pub fn read(self) -> Result<ParsedMeta, ErrorObject> {
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
        Ok(ParsedMeta { version, capabilities, info: self.info, level, progress_token: self.progress })
    }
}

/// Parses the `_meta` of `params`.
///
/// # Errors
/// `-32602` that names every key that is missing or of the wrong type.
pub fn read(params: Option<&Payload>) -> Result<ParsedMeta, ErrorObject> {
    MetaFields::of(params.and_then(|params| params.member(Key::Meta)).as_ref()).read()
}

/// The progress token of a request of either era.
pub fn progress_token(params: Option<&Payload>) -> Option<Raw> {
    params?.member(Key::Meta)?.get("progressToken")
}

/// The id of the listen request that a notification belongs to.
pub fn subscription_id(params: Option<&Raw>) -> Option<Raw> {
    params?.at(&["_meta", SUBSCRIPTION_ID])
}

/// Sets a member of `_meta`.
pub fn with_member(object: Option<&Raw>, key: &str, value: Raw) -> Raw {
    let empty = Raw::empty();
    let object = object.unwrap_or(&empty);
    let meta = object.get("_meta").unwrap_or_else(Raw::empty);
    let meta = meta.edit().set(key, value).finish();
    object.edit().set("_meta", meta).finish()
}
