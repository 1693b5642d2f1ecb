//! The ways in which clients and servers speak, and the features that pass between them.

use rialto::dialect::Revision;

/// A revision over a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
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

const fn form(revision: Revision, transport: Transport, name: &'static str) -> Form {
    Form { revision, transport, name }
}

/// Every form of a client, and of a server.
pub const FORMS: [Form; 7] = [
    form(Revision::V2024_11_05, Transport::Sse, "sse-2024-11"),
    form(Revision::V2025_03_26, Transport::Http, "http-2025-03"),
    form(Revision::V2025_06_18, Transport::Http, "http-2025-06"),
    HTTP_2025_11,
    form(Revision::V2025_11_25, Transport::Stdio, "stdio-2025-11"),
    HTTP_2026_07,
    form(Revision::V2026_07_28, Transport::Stdio, "stdio-2026-07"),
];
pub const HTTP_2025_11: Form = form(Revision::V2025_11_25, Transport::Http, "http-2025-11");
pub const HTTP_2026_07: Form = form(Revision::V2026_07_28, Transport::Http, "http-2026-07");

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
    Form,
    Url,
    Roots,
    Extension,
    UnknownFields,
    ErrorCodes,
}

impl Form {
    pub fn is_per_request(self) -> bool {
        self.revision == Revision::V2026_07_28
    }

    /// The form in words.
    pub fn words(self) -> String {
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
        Self::Form,
        Self::Url,
        Self::Roots,
        Self::Extension,
        Self::UnknownFields,
        Self::ErrorCodes,
    ];

    /// The feature in words.
    pub fn words(self) -> &'static str {
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
            Self::Form => "form elicitation",
            Self::Url => "url elicitation",
            Self::Roots => "roots",
            Self::Extension => "extension methods",
            Self::UnknownFields => "unknown fields",
            Self::ErrorCodes => "error codes",
        }
    }
}
