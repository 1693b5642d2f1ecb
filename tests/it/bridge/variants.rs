//! Client and server variants (a revision over a transport) and the features checked between them.

use rialto::dialect::Revision;

/// A revision over a transport, for a client or a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub revision: Revision,
    pub transport: Transport,
    /// Name of the server of this variant and of its group.
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

/// All client and server variants.
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

/// A protocol feature.
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

    /// The label in tables and messages.
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

    /// The column heading in tables.
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
