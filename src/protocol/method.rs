//! Every method and notification by name, and how each is routed.
//!
//! A name that is not in the tables is kept as it came: extensions pass without a release of ours.

use std::fmt;

macro_rules! names {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)+
            /// A name that is not in the table.
            Other(Box<str>),
        }

        impl $type {
            /// The name on the wire, if it is one of the protocol's own.
            pub fn known(&self) -> Option<&'static str> {
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
    /// What a request asks.
    Method {
        /// Opens a session (handshake era).
        Initialize = "initialize",
        /// Is anybody there? (handshake era)
        Ping = "ping",
        /// What is served here? (per-request era)
        Discover = "server/discover",
        /// Tell me of changes. (per-request era)
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
        /// Tell me when a resource changes. (handshake era)
        Subscribe = "resources/subscribe",
        /// Tell me no longer. (handshake era)
        Unsubscribe = "resources/unsubscribe",
        /// Completes an argument.
        Complete = "completion/complete",
        /// Chooses what is logged to the client. (handshake era)
        SetLevel = "logging/setLevel",
    }
}

names! {
    /// What a notification tells.
    Notice {
        /// The client has read the answer to `initialize`.
        Initialized = "notifications/initialized",
        /// A request is no longer wanted.
        Cancelled = "notifications/cancelled",
        /// How far a request has come.
        Progress = "notifications/progress",
        /// A line for the client's log.
        Message = "notifications/message",
        /// The list of tools is another now.
        ToolsChanged = "notifications/tools/list_changed",
        /// The list of prompts is another now.
        PromptsChanged = "notifications/prompts/list_changed",
        /// The list of resources is another now.
        ResourcesChanged = "notifications/resources/list_changed",
        /// A resource is another now.
        ResourceUpdated = "notifications/resources/updated",
        /// The client's roots are others now.
        RootsChanged = "notifications/roots/list_changed",
        /// The first word on a listen stream. (per-request era)
        Acknowledged = "notifications/subscriptions/acknowledged",
    }
}

/// Which capability of a server a method belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
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

/// Where a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MethodRoute {
    /// By the gateway itself.
    Here,
    /// By all upstreams, merged into one list.
    List,
    /// By the one upstream that has what `params.name` says.
    ByName,
    /// By the one upstream that has what `params.uri` says.
    ByUri,
    /// By the one upstream that has what `params.ref` says.
    ByReference,
    /// Unknown to us; passed on where only one upstream can be meant.
    Unknown,
}

/// The methods of the tasks extension that name a task.
const TASKS: [&str; 3] = ["tasks/get", "tasks/update", "tasks/cancel"];

// === impl Method ===

impl Method {
    /// Where a request with this method is answered.
    pub fn route(&self) -> MethodRoute {
        match self {
            Self::Initialize | Self::Ping | Self::Discover | Self::Listen | Self::SetLevel => MethodRoute::Here,
            Self::Subscribe | Self::Unsubscribe => MethodRoute::Here,
            Self::ToolsList | Self::PromptsList | Self::ResourcesList | Self::TemplatesList => MethodRoute::List,
            Self::ToolsCall | Self::PromptsGet => MethodRoute::ByName,
            Self::ResourcesRead => MethodRoute::ByUri,
            Self::Complete => MethodRoute::ByReference,
            Self::Other(_) => MethodRoute::Unknown,
        }
    }

    /// Whether a server may have something to ask or to log because of it. Whatever else runs beside
    /// such a request, a list that is read say, what the server says is not about that.
    pub fn converses(&self) -> bool {
        match self {
            Self::ToolsCall | Self::PromptsGet | Self::ResourcesRead | Self::Complete => true,
            // How far a task is may be asked beside anything else.
            Self::Other(name) => !TASKS.contains(&name.as_ref()),
            Self::Initialize | Self::Ping | Self::Discover | Self::Listen | Self::SetLevel => false,
            Self::ToolsList | Self::PromptsList | Self::ResourcesList | Self::TemplatesList => false,
            Self::Subscribe | Self::Unsubscribe => false,
        }
    }

    /// The capability that a server must have for this method to exist.
    pub fn family(&self) -> Option<Family> {
        match self {
            Self::ToolsList | Self::ToolsCall => Some(Family::Tools),
            Self::PromptsList | Self::PromptsGet => Some(Family::Prompts),
            Self::ResourcesList | Self::TemplatesList | Self::ResourcesRead | Self::Subscribe | Self::Unsubscribe => {
                Some(Family::Resources)
            }
            Self::Complete => Some(Family::Completions),
            Self::SetLevel => Some(Family::Logging),
            Self::Initialize | Self::Ping | Self::Discover | Self::Listen | Self::Other(_) => None,
        }
    }

    /// Whether it is one of the methods that have to do with tasks.
    pub fn is_of_tasks(&self) -> bool {
        self.as_str().starts_with("tasks/")
    }

    /// The member of `params` that the header `Mcp-Name` mirrors.
    pub fn name_member(&self) -> Option<&'static str> {
        match self {
            Self::ToolsCall | Self::PromptsGet => Some("name"),
            Self::ResourcesRead => Some("uri"),
            Self::Other(name) if TASKS.contains(&name.as_ref()) => Some("taskId"),
            _ => None,
        }
    }
}

// === impl Family ===

impl Family {
    /// Every family, in the order of their values.
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
