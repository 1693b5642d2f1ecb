//! Every key of `rialto.toml`: name, value type, description. The reader, the JSON Schema and the documentation test
//! are all driven by these tables.

/// One TOML table: its description and its keys.
#[derive(Debug)]
pub(super) struct Section {
    /// Description of the table, used in the schema.
    pub(super) description: &'static str,
    /// Keys, as slices that several sections may share.
    pub(super) parts: &'static [&'static [ConfigKey]],
}

/// One configuration key.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConfigKey {
    pub(super) name: &'static str,
    pub(super) value_type: ValueType,
    pub(super) description: &'static str,
    /// Default value as documented, in TOML or in words.
    pub(super) default: Option<&'static str>,
    /// Alternative spelling of the key.
    pub(super) alias: Option<&'static str>,
    /// Server kinds (see [`SERVER_KIND_KEYS`]) that accept this key; empty for all.
    pub(super) server_kinds: &'static [&'static str],
    /// A valid value other than the default, in TOML. A test parses each of them.
    pub(super) example: &'static str,
}

/// Type of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum ValueType {
    /// Any string.
    String,
    /// A string that must be present.
    RequiredString,
    /// `true` or `false`.
    Boolean,
    /// An integer between the two bounds, inclusive.
    Integer(u64, u64),
    /// A size in bytes, with or without a unit.
    Size,
    /// A duration with a unit.
    Duration {
        /// Whether `"0s"` is valid.
        allow_zero: bool,
        /// Whether `"off"` is valid.
        allow_off: bool,
    },
    /// A socket address.
    Address,
    /// An `http` or `https` URL.
    Url,
    /// `memory`, or a Redis URL.
    Store,
    /// One of a fixed set of strings.
    Choice(&'static [&'static str]),
    /// A protocol revision, or `auto`.
    Revision,
    /// A list of strings.
    StringList,
    /// A table of strings. Values are treated as secrets.
    StringMap,
    /// Any value.
    Any,
    /// A list of values of any type.
    AnyList,
    /// A nested table.
    Table(&'static Section),
    /// A table of tables, keyed by a user-chosen name.
    NamedTables(&'static Section),
    /// A list of tables.
    TableList(&'static Section),
}

const DURATION: ValueType = ValueType::Duration { allow_zero: false, allow_off: false };
const DURATION_OR_ZERO: ValueType = ValueType::Duration { allow_zero: true, allow_off: false };
const DURATION_OR_OFF: ValueType = ValueType::Duration { allow_zero: false, allow_off: true };

/// Upper bound of every count limit.
const MAX_COUNT: u64 = 1 << 40;

const fn key(name: &'static str, value_type: ValueType, description: &'static str) -> ConfigKey {
    ConfigKey { name, value_type, description, default: None, alias: None, server_kinds: &[], example: "" }
}

impl ConfigKey {
    const fn default(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    const fn alias(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    const fn server_kinds(mut self, server_kinds: &'static [&'static str]) -> Self {
        self.server_kinds = server_kinds;
        self
    }

    const fn example(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }
}

impl Section {
    /// All keys of the section.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static ConfigKey> {
        self.parts.iter().copied().flatten()
    }

    /// Finds a key by its name or its alias.
    pub(super) fn key(&self, name: &str) -> Option<&'static ConfigKey> {
        self.keys().find(|key| key.name == name || key.alias == Some(name))
    }
}

/// The top level of the file.
pub(super) static TOP_LEVEL: Section = Section {
    description: "The configuration of Rialto, a gateway between MCP clients and MCP servers.",
    parts: &[&[
        key("listen", ValueType::Address, "Listen address; port 0 picks a free port.")
            .default("\"127.0.0.1:3001\"")
            .example("\"127.0.0.1:4001\""),
        key("workers", ValueType::Integer(1, 1024), "Worker threads. Default: the number of CPU cores.").example("2"),
        key("store", ValueType::Store, "Session and event store: \"memory\", or a Redis URL.")
            .default("\"memory\"")
            .example("\"redis://127.0.0.1:6379\""),
        key("cluster", ValueType::Table(&CLUSTER), CLUSTER.description),
        key("log", ValueType::Table(&LOG), LOG.description),
        key("admin", ValueType::Table(&ADMIN), ADMIN.description),
        key("access", ValueType::Table(&ACCESS), ACCESS.description),
        key("limits", ValueType::Table(&LIMITS), LIMITS.description),
        key("defaults", ValueType::Table(&DEFAULTS), DEFAULTS.description),
        key("servers", ValueType::NamedTables(&SERVER), SERVER.description),
        key("groups", ValueType::NamedTables(&GROUP), GROUP.description),
    ]],
};

/// `[cluster]`
pub(super) static CLUSTER: Section = Section {
    description: "Cluster of nodes that share a store.",
    parts: &[&[
        key("node", ValueType::String, "Node name, unique in the cluster.")
            .default("host name and port")
            .example("\"gateway-1\""),
        key(
            "prefix",
            ValueType::String,
            "Prefix of all store keys; nodes with the same store and prefix form one cluster.",
        )
        .default("\"rialto\"")
        .example("\"staging\""),
        key("lease", DURATION, "Node lease: time without a heartbeat after which other nodes take over its sessions.")
            .default("\"6s\"")
            .example("\"10s\""),
        key("timeout", DURATION, "Timeout of a store command.").default("\"2s\"").example("\"500ms\""),
        key(
            "sealing_key",
            ValueType::String,
            "Secret that seals the tokens clients carry, such as request state; the same on all nodes.",
        )
        .default("generated once and shared through the store")
        .example("\"a long s3cret of many letters\""),
    ]],
};

/// `[log]`
pub(super) static LOG: Section = Section {
    description: "Logging, to standard error.",
    parts: &[&[
        key("filter", ValueType::String, "Log level (error, warn, info, debug, trace), or levels per target.")
            .default("\"info\"")
            .example("\"rialto=debug\""),
        key("format", ValueType::Choice(&["text", "json"]), "Log format.").default("\"text\"").example("\"json\""),
    ]],
};

/// `[admin]`
pub(super) static ADMIN: Section = Section {
    description: "Separate listener for health, metrics and status.",
    parts: &[&[
        key("listen", ValueType::Address, "Listen address of the admin endpoints.").example("\"127.0.0.1:3002\"")
    ]],
};

/// `[access]`
pub(super) static ACCESS: Section = Section {
    description: "Access control.",
    parts: &[&[
        key("hosts", ValueType::StringList, "Allowed Host header values besides loopback; * allows any.")
            .example("[\"gateway.example\"]"),
        key("origins", ValueType::StringList, "Allowed Origin header values besides loopback; * allows any.")
            .example("[\"https://app.example\"]"),
        key(
            "forward_headers",
            ValueType::StringList,
            "Request headers of the client that are forwarded to upstream servers.",
        )
        .example("[\"x-tenant\"]"),
        key("tokens", ValueType::StringMap, "Bearer tokens by caller name. If any is set, every request needs one.")
            .example("{ ann = \"s3cret\" }"),
        key("allow_session_delete", ValueType::Boolean, "Whether clients may end their session with DELETE.")
            .default("true")
            .example("false"),
    ]],
};

/// `[limits]`
pub(super) static LIMITS: Section = Section {
    description: "Limits and timeouts on the client side.",
    parts: &[&[
        key("body_bytes", ValueType::Size, "Maximum size of a request body, or of a line on stdio.")
            .default("\"4MiB\"")
            .example("\"8MiB\""),
        key("headers", ValueType::Integer(1, MAX_COUNT), "Maximum number of headers in a request.")
            .default("100")
            .example("50"),
        key("header_bytes", ValueType::Size, "Maximum total size of the headers of a request.")
            .default("\"64KiB\"")
            .example("32768"),
        key("json_depth", ValueType::Integer(1, 10_000), "Maximum JSON nesting depth.").default("128").example("64"),
        key("batch", ValueType::Integer(1, MAX_COUNT), "Maximum number of messages in a batch.")
            .default("100")
            .example("10"),
        key("sessions", ValueType::Integer(1, MAX_COUNT), "Maximum number of sessions.")
            .default("100000")
            .example("10"),
        key("streams", ValueType::Integer(1, MAX_COUNT), "Maximum number of open SSE streams per session.")
            .default("32")
            .example("8"),
        key("calls", ValueType::Integer(1, MAX_COUNT), "Maximum number of calls in flight per session.")
            .default("1000")
            .example("10"),
        key("subscriptions", ValueType::Integer(0, MAX_COUNT), "Maximum number of resource subscriptions per session.")
            .default("1000")
            .example("10"),
        key(
            "events",
            ValueType::Integer(0, MAX_COUNT),
            "Maximum number of events retained per session for resumption.",
        )
        .default("1000")
        .example("10"),
        key("event_bytes", ValueType::Size, "Maximum bytes of events retained per session.")
            .default("\"8MiB\"")
            .example("\"1MiB\""),
        key("event_age", DURATION_OR_ZERO, "How long events are retained for resumption.")
            .default("\"10m\"")
            .example("\"1m\""),
        key("session_idle", DURATION, "Idle time after which a session expires.").default("\"15m\"").example("\"5m\""),
        key(
            "parked_calls",
            ValueType::Integer(0, MAX_COUNT),
            "Maximum number of parked calls: calls waiting for input from per-request clients.",
        )
        .default("10000")
        .example("10"),
        key("parked_calls_per_caller", ValueType::Integer(0, MAX_COUNT), "Maximum number of parked calls per caller.")
            .default("1000")
            .example("5"),
        key("elicitation_timeout", DURATION, "How long to wait for the answer to an elicitation request.")
            .default("\"10m\"")
            .example("\"5m\""),
        key("sampling_timeout", DURATION, "How long to wait for the answer to a sampling or roots request.")
            .default("\"2m\"")
            .example("\"1m\""),
        key(
            "sse_after",
            DURATION_OR_ZERO,
            "Time without a response after which a call is answered with an SSE stream.",
        )
        .default("\"1s\"")
        .example("\"250ms\""),
        key("sse_heartbeat", DURATION, "Idle time of an SSE stream after which a keep-alive comment is sent.")
            .default("\"15s\"")
            .example("\"5s\""),
        key("sse_retry", DURATION_OR_ZERO, "Reconnection delay sent to clients (the SSE retry field).")
            .default("\"3s\"")
            .example("\"2s\""),
        key("shutdown_timeout", DURATION_OR_ZERO, "How long calls in flight may take to finish at shutdown.")
            .default("\"10s\"")
            .example("\"1m\""),
    ]],
};

/// Connection settings, valid per server and in `[defaults]`.
const SERVER_SETTINGS: &[ConfigKey] = &[
    key("revision", ValueType::Revision, "Protocol revision to use.").default("\"auto\"").example("\"2025-06-18\""),
    key(
        "connection",
        ValueType::Choice(&["per-client", "shared"]),
        "\"per-client\": one upstream session per client. \"shared\": one for all clients; the server cannot send requests to them.",
    )
    .default("depends on the server's revision")
    .example("\"shared\""),
    key("connect_timeout", DURATION, "Timeout for opening a connection.")
        .default("\"10s\"")
        .example("\"3s\""),
    key(
        "discovery_timeout",
        DURATION,
        "Timeout of each request while transport and revision are detected.",
    )
    .default("\"10s\"")
    .example("\"3s\""),
    key(
        "startup_timeout",
        DURATION,
        "Timeout for the first response of a package runner (npx, uvx), which may have to download first.",
    )
    .default("\"1m\"")
    .example("\"5m\""),
    key("idle_timeout", DURATION, "Time without a message after which a call fails; progress notifications reset it.")
        .default("\"1m\"")
        .example("\"2m\""),
    key("total_timeout", DURATION, "Maximum duration of a call.")
        .default("\"10m\"")
        .example("\"1h\""),
    key(
        "stop_timeout",
        DURATION_OR_ZERO,
        "How long a child process may take to exit after its stdin is closed, and again after SIGTERM.",
    )
    .default("\"2s\"")
    .example("\"5s\""),
    key("ping_interval", DURATION_OR_OFF, "Interval between pings on an idle connection.")
        .default("\"30s\"")
        .example("\"off\""),
    key(
        "list_poll_interval",
        DURATION_OR_OFF,
        "Interval at which lists are re-read if the server sends no list-changed notifications.",
    )
    .default("\"1m\"")
    .example("\"5m\""),
    key("message_bytes", ValueType::Size, "Maximum size of a message from the server.")
        .default("\"16MiB\"")
        .example("\"1MiB\""),
    key(
        "max_input_rounds",
        ValueType::Integer(0, 1000),
        "Maximum number of input rounds (results that request input) in one call.",
    )
    .default("8")
    .example("3"),
    key("max_leases", ValueType::Integer(1, MAX_COUNT), "Maximum number of leases: connections reserved for single clients.")
        .default("256")
        .example("16"),
    key(
        "lease_idle_timeout",
        DURATION,
        "Idle time after which the lease of a per-request client is closed.",
    )
    .default("\"5m\"")
    .example("\"1m\""),
    key(
        "serve_stale_for",
        DURATION_OR_ZERO,
        "How long cached lists are served while the server is unreachable.",
    )
    .default("\"5m\"")
    .example("\"1h\""),
    key("allow_server_requests", ValueType::Boolean, "Whether the server may send requests to clients (sampling, elicitation, roots).")
        .default("true")
        .example("false"),
];

/// `[defaults]`
pub(super) static DEFAULTS: Section = Section { description: "Defaults for all servers.", parts: &[SERVER_SETTINGS] };

/// The keys that determine the kind of a server; each server has exactly one of them.
pub(super) const SERVER_KIND_KEYS: [&str; 4] = ["builtin", "command", "url", "base_url"];

/// `[servers.NAME]`
pub(super) static SERVER: Section = Section {
    description: "Upstream servers, by name; their lists are merged in this order.",
    parts: &[
        &[
            key("builtin", ValueType::Choice(&["elements"]), "Built-in server: the periodic table.")
                .server_kinds(&["builtin"])
                .example("\"elements\""),
            key("command", ValueType::String, "Program to start as an MCP server over stdio.")
                .server_kinds(&["command"])
                .example("\"npx\""),
            key("args", ValueType::StringList, "Arguments of the program.")
                .server_kinds(&["command"])
                .example("[\"-y\", \"some-server\"]"),
            key(
                "env",
                ValueType::StringMap,
                "Environment variables, in addition to the few that every child process inherits.",
            )
            .server_kinds(&["command"])
            .example("{ KEY = \"value\" }"),
            key("cwd", ValueType::String, "Working directory, relative to the directory of this file.")
                .default("the working directory of Rialto")
                .server_kinds(&["command"])
                .example("\".\""),
            key("url", ValueType::Url, "URL of an MCP server.")
                .server_kinds(&["url"])
                .example("\"https://tracker.example/mcp\""),
            key("headers", ValueType::StringMap, "Headers sent with every request.")
                .server_kinds(&["url", "base_url"])
                .example("{ Authorization = \"Bearer t0ken\" }"),
            key("transport", ValueType::Choice(&["streamable-http", "http", "sse"]), "Transport of the URL.")
                .default("detected")
                .alias("type")
                .server_kinds(&["url"])
                .example("\"sse\""),
            key("base_url", ValueType::Url, "Base URL of a REST API that is exposed as an MCP server.")
                .server_kinds(&["base_url"])
                .example("\"https://api.example/v1\""),
            key("openapi", ValueType::String, "OpenAPI document: a file or a URL.")
                .server_kinds(&["base_url"])
                .example("\"https://api.example/openapi.json\""),
            key("query", ValueType::StringMap, "Query parameters added to every request.")
                .server_kinds(&["base_url"])
                .example("{ key = \"value\" }"),
            key(
                "operations",
                ValueType::Table(&FILTER),
                "Filter for the operations of the document that become tools.",
            )
            .server_kinds(&["base_url"])
            .example("{ deny = [\"delete*\"] }"),
            key("tools", ValueType::TableList(&TOOL), TOOL.description)
                .server_kinds(&["base_url"])
                .example("[{ name = \"t\", url = \"/x\" }]"),
            key("disabled", ValueType::Boolean, "Disables the server.").default("false").example("true"),
        ],
        SERVER_SETTINGS,
    ],
};

/// `{ allow = […], deny = […] }`
pub(super) static FILTER: Section = Section {
    description: "Name filter. In a pattern, * matches any characters and ? matches one.",
    parts: &[&[
        key("allow", ValueType::StringList, "Patterns of names to include.").default("all").example("[\"a*\"]"),
        key("deny", ValueType::StringList, "Patterns of names to exclude; wins over allow.")
            .default("none")
            .example("[\"b?\"]"),
    ]],
};

/// `[[servers.NAME.tools]]`
pub(super) static TOOL: Section = Section {
    description: "Manually described tools of a REST API.",
    parts: &[&[
        key("name", ValueType::RequiredString, "Name of the tool.").example("\"getUser\""),
        key("title", ValueType::String, "Display name.").example("\"Look up a user\""),
        key("description", ValueType::String, "Description for the model.").example("\"Gives a user by name.\""),
        key("method", ValueType::Choice(&["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]), "HTTP method.")
            .default("\"GET\"")
            .example("\"POST\""),
        key("url", ValueType::RequiredString, "Path below base_url; {argument} is replaced by the argument's value.")
            .example("\"/users\""),
        key("headers", ValueType::StringMap, "Additional request headers.").example("{ Accept = \"text/plain\" }"),
        key("body", ValueType::Any, "Request body: a string template, or a value sent as JSON.")
            .example("{ user = \"{name}\" }"),
        key("result_path", ValueType::String, "Path to the part of the response body that is returned as the result.")
            .example("\"data.items\""),
        key("read_only", ValueType::Boolean, "Annotation readOnlyHint.").example("true"),
        key("destructive", ValueType::Boolean, "Annotation destructiveHint.").example("true"),
        key("idempotent", ValueType::Boolean, "Annotation idempotentHint.").example("true"),
        key("arguments", ValueType::NamedTables(&ARGUMENT), ARGUMENT.description)
            .example("{ id = { type = \"integer\" } }"),
    ]],
};

/// `[servers.NAME.tools.arguments.ARGUMENT]`
pub(super) static ARGUMENT: Section = Section {
    description: "Arguments of the tool, by name.",
    parts: &[&[
        key(
            "type",
            ValueType::Choice(&["string", "integer", "number", "boolean", "array", "object"]),
            "JSON type of the argument.",
        )
        .default("\"string\"")
        .example("\"string\""),
        key("description", ValueType::String, "Description for the model.").example("\"Who it is.\""),
        key("required", ValueType::Boolean, "Whether the argument is required.").default("false").example("true"),
        key("default", ValueType::Any, "Default value.").example("\"x\""),
        key("enum", ValueType::AnyList, "Allowed values.").example("[\"x\", \"y\"]"),
    ]],
};

/// `[groups.NAME]`
pub(super) static GROUP: Section = Section {
    description: "Groups of servers, each served at /mcp/NAME; the group \"default\" is served at /mcp.",
    parts: &[&[
        key("servers", ValueType::StringList, "Servers of the group, in order.").default("all").example("[\"a\"]"),
        key(
            "naming",
            ValueType::Choice(&["prefix", "plain"]),
            "How names from several servers are kept apart: prefixed with the server name, or unchanged.",
        )
        .default("\"prefix\"")
        .example("\"plain\""),
        key("instructions", ValueType::String, "Instructions for the model; replaces those of the servers.")
            .example("\"Be brief.\""),
        key("tools", ValueType::Table(&FILTER), "Filter for tools, by the names that clients see.")
            .example("{ allow = [\"get*\"] }"),
        key("prompts", ValueType::Table(&FILTER), "Filter for prompts.").example("{ deny = [\"*\"] }"),
        key("resources", ValueType::Table(&FILTER), "Filter for resources, by URI.").example("{ deny = [\"file:*\"] }"),
        key("page_size", ValueType::Integer(1, 100_000), "Page size of lists.").default("1000").example("50"),
    ]],
};

/// Group names that collide with a path below `/mcp/`.
pub(super) const RESERVED_GROUP_NAMES: [&str; 1] = ["streamable"];
