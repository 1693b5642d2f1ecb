//! The ways in which clients and servers speak, and the features that pass between them.

use rialto::dialect::Revision;

/// A revision over a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub revision: Revision,
    pub transport: Transport,
    /// Names the server of this form, and the group that has it alone.
    pub name: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// HTTP+SSE.
    Sse,
    /// Streamable HTTP.
    Http,
    Stdio,
}

const fn variant(revision: Revision, transport: Transport, name: &'static str) -> Variant {
    Variant { revision, transport, name }
}

/// Every form of a client, and of a server.
pub const VARIANTS: [Variant; 7] = [
    variant(Revision::V2024_11_05, Transport::Sse, "sse-2024-11"),
    variant(Revision::V2025_03_26, Transport::Http, "http-2025-03"),
    variant(Revision::V2025_06_18, Transport::Http, "http-2025-06"),
    HTTP_2025_11,
    variant(Revision::V2025_11_25, Transport::Stdio, "stdio-2025-11"),
    HTTP_2026_07,
    variant(Revision::V2026_07_28, Transport::Stdio, "stdio-2026-07"),
];
pub const HTTP_2025_11: Variant = variant(Revision::V2025_11_25, Transport::Http, "http-2025-11");
pub const HTTP_2026_07: Variant = variant(Revision::V2026_07_28, Transport::Http, "http-2026-07");

/// What passes between a client and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    Tools,
    Structured,
    Progress,
    Cancellation,
    Logging,
    Resources,
    Templates,
    Subscription,
    ListChanges,
    Prompts,
    Completion,
    Sampling,
    FormElicitation,
    UrlElicitation,
    Roots,
    Extension,
    UnknownFields,
    ErrorCodes,
}

impl Variant {
    pub fn is_per_request(self) -> bool {
        self.revision == Revision::V2026_07_28
    }

    /// The form in words.
    pub fn label(self) -> String {
        let transport = match self.transport {
            Transport::Sse => "HTTP+SSE",
            Transport::Http => "HTTP",
            Transport::Stdio => "stdio",
        };
        format!("{} {transport}", self.revision)
    }
}

impl Feature {
    pub const ALL: [Self; 18] = [
        Self::Tools,
        Self::Structured,
        Self::Progress,
        Self::Cancellation,
        Self::Logging,
        Self::Resources,
        Self::Templates,
        Self::Subscription,
        Self::ListChanges,
        Self::Prompts,
        Self::Completion,
        Self::Sampling,
        Self::FormElicitation,
        Self::UrlElicitation,
        Self::Roots,
        Self::Extension,
        Self::UnknownFields,
        Self::ErrorCodes,
    ];

    /// The feature in words.
    pub fn label(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Structured => "structured content",
            Self::Progress => "progress",
            Self::Cancellation => "cancellation",
            Self::Logging => "logging",
            Self::Resources => "resources",
            Self::Templates => "templates",
            Self::Subscription => "subscriptions",
            Self::ListChanges => "list changes",
            Self::Prompts => "prompts",
            Self::Completion => "completion",
            Self::Sampling => "sampling",
            Self::FormElicitation => "form elicitation",
            Self::UrlElicitation => "url elicitation",
            Self::Roots => "roots",
            Self::Extension => "extension methods",
            Self::UnknownFields => "unknown fields",
            Self::ErrorCodes => "error codes",
        }
    }
}
