//! Log levels of MCP, those of syslog.

use super::json::Raw;

/// Log levels, least severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Debugging details.
    Debug,
    /// Normal operation.
    Info,
    /// Normal but significant.
    Notice,
    /// A possible problem.
    Warning,
    /// A failed operation.
    Error,
    /// A failed component.
    Critical,
    /// Immediate action is required.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl Level {
    /// Every level, least severe first.
    pub const ALL: [Level; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }

    /// The level with that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }

    /// The level named by a JSON string.
    pub fn from_raw(raw: &Raw) -> Option<Self> {
        raw.text().and_then(|name| Self::parse(&name))
    }

    /// The names of all levels, for error messages.
    pub fn choices() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}
