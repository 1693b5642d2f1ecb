//! How important a log message is, as the protocol counts it.

use super::json::Raw;

/// The levels, least important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Details for finding faults.
    Debug,
    /// What happens in the ordinary course.
    Info,
    /// Ordinary but worth a look.
    Notice,
    /// Something may be wrong.
    Warning,
    /// Something went wrong.
    Error,
    /// A part does not work.
    Critical,
    /// Act at once.
    Alert,
    /// Nothing works.
    Emergency,
}

impl Level {
    /// Every level, least important first.
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

    /// The level of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }

    /// The level that a JSON string names.
    pub fn from_raw(raw: &Raw) -> Option<Self> {
        raw.text().and_then(|name| Self::parse(&name))
    }

    /// What to tell someone who named a level that does not exist.
    pub fn choices() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}
