//! Methods of requests and notifications, and how requests are routed.
//!
//! Unknown names are kept as received, so that extensions pass through.

use super::payload::Key;
use std::fmt;

macro_rules! names {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)+
            /// A method that is not in the table.
            Other(Box<str>),
        }

        impl $type {
            /// The name on the wire, if MCP itself defines it.
            pub fn known_name(&self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($name),)+
                    Self::Other(_) => None,
                }
            }

            /// The name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)+
                    Self::Other(name) => name,
                }
            }
        }

        impl From<&str> for $type {
            fn from(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)+
                    other => Self::Other(other.into()),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names! {
    /// The method of a request.
    Method {
        /// Opens a session. (handshake era)
        Initialize = "initialize",
        /// Checks that the peer is alive. (handshake era)
        Ping = "ping",
        /// Returns capabilities and supported revisions. (per-request era)
        Discover = "server/discover",
        /// Streams change notifications. (per-request era)
        Listen = "subscriptions/listen",
        /// Lists tools.
        ToolsList = "tools/list",
        /// Calls a tool.
        ToolsCall = "tools/call",
        /// Lists prompts.
        PromptsList = "prompts/list",
        /// Gets a prompt.
        PromptsGet = "prompts/get",
        /// Lists resources.
        ResourcesList = "resources/list",
        /// Lists resource templates.
        TemplatesList = "resources/templates/list",
        /// Reads a resource.
        ResourcesRead = "resources/read",
        /// Subscribes to changes of a resource. (handshake era)
        Subscribe = "resources/subscribe",
        /// Unsubscribes from changes of a resource. (handshake era)
        Unsubscribe = "resources/unsubscribe",
        /// Completes an argument.
        Complete = "completion/complete",
        /// Sets the log level of a session. (handshake era)
        SetLevel = "logging/setLevel",
    }
}

names! {
    /// The method of a notification.
    NotificationMethod {
        /// The client has received the result of `initialize`.
        Initialized = "notifications/initialized",
        /// A request was cancelled.
        Cancelled = "notifications/cancelled",
        /// Progress of a request.
        Progress = "notifications/progress",
        /// A log message.
        Message = "notifications/message",
        /// The list of tools changed.
        ToolsChanged = "notifications/tools/list_changed",
        /// The list of prompts changed.
        PromptsChanged = "notifications/prompts/list_changed",
        /// The list of resources changed.
        ResourcesChanged = "notifications/resources/list_changed",
        /// A resource changed.
        ResourceUpdated = "notifications/resources/updated",
        /// The list of the client's roots changed.
        RootsChanged = "notifications/roots/list_changed",
        /// The acknowledgement of a listen call. (per-request era)
        Acknowledged = "notifications/subscriptions/acknowledged",
    }
}

/// The server capability that a method belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// `tools`
    Tools,
    /// `prompts`
    Prompts,
    /// `resources`
    Resources,
    /// `completions`
    Completions,
    /// `logging`
    Logging,
}

/// Which part of the gateway answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MethodRoute {
    /// The gateway itself.
    Gateway,
    /// All upstreams, merged into one list.
    List,
    /// The upstream that has the name in `params.name`.
    ByName,
    /// The upstream that has the URI in `params.uri`.
    ByUri,
    /// The upstream that has the prompt or template in `params.ref`.
    ByReference,
    /// Unknown method; forwarded where only one upstream can be meant.
    Unknown,
}

/// Task methods with the parameter `taskId`.
const TASK_METHODS: [&str; 3] = ["tasks/get", "tasks/update", "tasks/cancel"];

// === impl Method ===

impl Method {
    /// How a request with this method is routed.
    pub fn route(&self) -> MethodRoute {
        match self {
            Self::Initialize | Self::Ping | Self::Discover | Self::Listen | Self::SetLevel => MethodRoute::Gateway,
            Self::Subscribe | Self::Unsubscribe => MethodRoute::Gateway,
            Self::ToolsList | Self::PromptsList | Self::ResourcesList | Self::TemplatesList => MethodRoute::List,
            Self::ToolsCall | Self::PromptsGet => MethodRoute::ByName,
            Self::ResourcesRead => MethodRoute::ByUri,
            Self::Complete => MethodRoute::ByReference,
            Self::Other(_) => MethodRoute::Unknown,
        }
    }

    /// Whether a server may send requests or log messages because of this method. Such messages are
    /// attributed to these calls, never to a list request that runs concurrently.
    pub fn may_trigger_server_messages(&self) -> bool {
        match self {
            Self::ToolsCall | Self::PromptsGet | Self::ResourcesRead | Self::Complete => true,
            // Polling a task triggers no messages.
            Self::Other(name) => !TASK_METHODS.contains(&name.as_ref()),
            Self::Initialize | Self::Ping | Self::Discover | Self::Listen | Self::SetLevel => false,
            Self::ToolsList | Self::PromptsList | Self::ResourcesList | Self::TemplatesList => false,
            Self::Subscribe | Self::Unsubscribe => false,
        }
    }

    /// Whether a server of the per-request era may end this method with an `input_required` result.
    pub fn may_require_input(&self) -> bool {
        matches!(self, Self::ToolsCall | Self::PromptsGet | Self::ResourcesRead)
    }

    /// The capability that a server must have for this method to exist.
    pub fn capability(&self) -> Option<Capability> {
        match self {
            Self::ToolsList | Self::ToolsCall => Some(Capability::Tools),
            Self::PromptsList | Self::PromptsGet => Some(Capability::Prompts),
            Self::ResourcesList | Self::TemplatesList | Self::ResourcesRead | Self::Subscribe | Self::Unsubscribe => {
                Some(Capability::Resources)
            }
            Self::Complete => Some(Capability::Completions),
            Self::SetLevel => Some(Capability::Logging),
            Self::Initialize | Self::Ping | Self::Discover | Self::Listen | Self::Other(_) => None,
        }
    }

    /// Whether this is a method of tasks.
    pub fn is_task_method(&self) -> bool {
        self.as_str().starts_with("tasks/")
    }

    /// The member of `params` that the header `Mcp-Name` mirrors.
    pub fn name_member(&self) -> Option<Key> {
        match self {
            Self::ToolsCall | Self::PromptsGet => Some(Key::Name),
            Self::ResourcesRead => Some(Key::Uri),
            Self::Other(name) if TASK_METHODS.contains(&name.as_ref()) => Some(Key::TaskId),
            _ => None,
        }
    }
}

// === impl Capability ===

impl Capability {
    /// Every capability, in the order of the discriminants.
    pub const ALL: [Self; 5] = [Self::Tools, Self::Prompts, Self::Resources, Self::Completions, Self::Logging];

    /// The name of the capability.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Completions => "completions",
            Self::Logging => "logging",
        }
    }
}
