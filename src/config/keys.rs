//! Every key of `rialto.toml`: its name, what it takes and what it is for. The reader, the schema and
//! the test of the documentation all go by these tables.

/// A table of the file.
#[derive(Debug)]
pub(super) struct Section {
    /// What the table is for.
    pub(super) about: &'static str,
    /// Its keys, in parts that sections may share.
    pub(super) parts: &'static [&'static [ConfigKey]],
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConfigKey {
    pub(super) name: &'static str,
    pub(super) kind: ValueType,
    pub(super) about: &'static str,
    /// What holds when it is not given, for people.
    pub(super) default: Option<&'static str>,
    /// Another name for the same.
    pub(super) alias: Option<&'static str>,
    /// The keys that say of what kind a server is and that this one goes with; with any when it is empty.
    pub(super) with: &'static [&'static str],
    /// A value that is taken and is not the default, in TOML. A test reads each.
    pub(super) example: &'static str,
}

/// What a key takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum ValueType {
    /// Any text.
    Text,
    /// A text that has to be there.
    Needed,
    /// True or false.
    Flag,
    /// A whole number from the first to the second.
    Count(u64, u64),
    /// A number of bytes.
    Size,
    /// A duration; where the first is true it may be zero, where the second is true it may be `off`.
    Duration(bool, bool),
    /// A socket address.
    Address,
    /// A URL of HTTP.
    Url,
    /// `memory`, or a URL of Redis.
    Store,
    /// One of some words.
    Choice(&'static [&'static str]),
    /// A revision of the protocol, or `auto`.
    Revision,
    /// A list of texts.
    Texts,
    /// A table of texts. Their values are secrets.
    Pairs,
    /// Any value.
    Any,
    /// A list of any values.
    Values,
    /// A table.
    Table(&'static Section),
    /// Tables by name.
    Named(&'static Section),
    /// A list of tables.
    Tables(&'static Section),
}

/// The largest number of things that a limit may name.
const MANY: u64 = 1 << 40;

const fn key(name: &'static str, kind: ValueType, about: &'static str) -> ConfigKey {
    ConfigKey { name, kind, about, default: None, alias: None, with: &[], example: "" }
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

    const fn with(mut self, with: &'static [&'static str]) -> Self {
        self.with = with;
        self
    }

    const fn example(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }
}

impl Section {
    /// All its keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static ConfigKey> {
        self.parts.iter().copied().flatten()
    }

    /// The key of that name, or of which it is the other name.
    pub(super) fn key(&self, name: &str) -> Option<&'static ConfigKey> {
        self.keys().find(|key| key.name == name || key.alias == Some(name))
    }
}

/// The file itself.
pub(super) static FILE: Section = Section {
    about: "The configuration of Rialto, a gateway between MCP clients and MCP servers.",
    parts: &[&[
        key("listen", ValueType::Address, "Where to listen; port 0 lets the system choose.")
            .default("\"127.0.0.1:3001\"")
            .example("\"127.0.0.1:4001\""),
        key(
            "workers",
            ValueType::Count(1, 1024),
            "Threads that serve clients; as many as there are cores when nothing is said.",
        )
        .example("2"),
        key(
            "store",
            ValueType::Store,
            "Where sessions and their events are kept: in this process, or at a URL of Redis.",
        )
        .default("\"memory\"")
        .example("\"redis://127.0.0.1:6379\""),
        key("cluster", ValueType::Table(&CLUSTER), CLUSTER.about),
        key("log", ValueType::Table(&LOG), LOG.about),
        key("admin", ValueType::Table(&ADMIN), ADMIN.about),
        key("access", ValueType::Table(&ACCESS), ACCESS.about),
        key("limits", ValueType::Table(&LIMITS), LIMITS.about),
        key("defaults", ValueType::Table(&DEFAULTS), DEFAULTS.about),
        key("servers", ValueType::Named(&SERVER), SERVER.about),
        key("groups", ValueType::Named(&GROUP), GROUP.about),
    ]],
};

/// `[cluster]`
pub(super) static CLUSTER: Section = Section {
    about: "How nodes that share a store work together.",
    parts: &[&[
        key("node", ValueType::Text, "The name of this node, which no other has.")
            .default("the name of the machine, and the port")
            .example("\"gateway-1\""),
        key("prefix", ValueType::Text, "What all keys in the store begin with; nodes with the same are one cluster.")
            .default("\"rialto\"")
            .example("\"staging\""),
        key("lease", ValueType::Duration(false, false), "How long a node may be silent before others take over.")
            .default("\"6s\"")
            .example("\"10s\""),
        key("timeout", ValueType::Duration(false, false), "How long the store may take to answer.")
            .default("\"2s\"")
            .example("\"500ms\""),
        key("sealing_key", ValueType::Text, "Seals what clients carry for the gateway; the same for all nodes.")
            .default("made once and shared through the store")
            .example("\"a long s3cret of many letters\""),
    ]],
};

/// `[log]`
pub(super) static LOG: Section = Section {
    about: "What is logged, on standard error.",
    parts: &[&[
        key("filter", ValueType::Text, "A level (error, warn, info, debug, trace), or targets with levels.")
            .default("\"info\"")
            .example("\"rialto=debug\""),
        key("format", ValueType::Choice(&["text", "json"]), "How a line looks.")
            .default("\"text\"")
            .example("\"json\""),
    ]],
};

/// `[admin]`
pub(super) static ADMIN: Section = Section {
    about: "Health, metrics and status, on a listener of their own.",
    parts: &[&[key("listen", ValueType::Address, "Where to listen for administrators.").example("\"127.0.0.1:3002\"")]],
};

/// `[access]`
pub(super) static ACCESS: Section = Section {
    about: "Who may call.",
    parts: &[&[
        key("hosts", ValueType::Texts, "Hosts that requests may name beside those of this machine; * for any.")
            .example("[\"gateway.example\"]"),
        key("origins", ValueType::Texts, "Origins whose pages may call beside those of this machine; * for any.")
            .example("[\"https://app.example\"]"),
        key("forward_headers", ValueType::Texts, "Headers that travel with a call as part of its caller.")
            .example("[\"x-tenant\"]"),
        key("tokens", ValueType::Pairs, "Callers and their bearer tokens. Once one is given, every request needs one.")
            .example("{ ann = \"s3cret\" }"),
        key("allow_session_delete", ValueType::Flag, "Whether clients may end their sessions by DELETE.")
            .default("true")
            .example("false"),
    ]],
};

/// `[limits]`
pub(super) static LIMITS: Section = Section {
    about: "How much and how long clients may take.",
    parts: &[&[
        key("body_bytes", ValueType::Size, "Bytes that a body, or a line on stdio, may have.")
            .default("\"4MiB\"")
            .example("\"8MiB\""),
        key("headers", ValueType::Count(1, MANY), "Headers that a request may have.").default("100").example("50"),
        key("header_bytes", ValueType::Size, "Bytes that the headers of a request may have together.")
            .default("\"64KiB\"")
            .example("32768"),
        key("json_depth", ValueType::Count(1, 10_000), "How deep JSON may nest.").default("128").example("64"),
        key("batch", ValueType::Count(1, MANY), "Messages that a batch may hold.").default("100").example("10"),
        key("sessions", ValueType::Count(1, MANY), "Sessions that there may be in all.")
            .default("100000")
            .example("10"),
        key("streams", ValueType::Count(1, MANY), "Open streams that one session may have.").default("32").example("8"),
        key("calls", ValueType::Count(1, MANY), "Calls that may run in one session.").default("1000").example("10"),
        key("subscriptions", ValueType::Count(0, MANY), "Resources that one session may be subscribed to.")
            .default("1000")
            .example("10"),
        key("events", ValueType::Count(0, MANY), "Events that are kept for one session, for clients that resume.")
            .default("1000")
            .example("10"),
        key("event_bytes", ValueType::Size, "Bytes of events that are kept for one session.")
            .default("\"8MiB\"")
            .example("\"1MiB\""),
        key("event_age", ValueType::Duration(true, false), "How long events are kept.")
            .default("\"10m\"")
            .example("\"1m\""),
        key("session_idle", ValueType::Duration(false, false), "After how long an unused session ends.")
            .default("\"15m\"")
            .example("\"5m\""),
        key(
            "parked_calls",
            ValueType::Count(0, MANY),
            "Calls that may wait in all for answers from clients without a session.",
        )
        .default("10000")
        .example("10"),
        key("parked_calls_per_caller", ValueType::Count(0, MANY), "Such calls that one caller may have.")
            .default("1000")
            .example("5"),
        key(
            "elicitation_timeout",
            ValueType::Duration(false, false),
            "How long a form or an address may take to be answered.",
        )
        .default("\"10m\"")
        .example("\"5m\""),
        key(
            "sampling_timeout",
            ValueType::Duration(false, false),
            "How long sampling or roots may take to be answered.",
        )
        .default("\"2m\"")
        .example("\"1m\""),
        key("sse_after", ValueType::Duration(true, false), "After how long a quiet call is answered with a stream.")
            .default("\"1s\"")
            .example("\"250ms\""),
        key("sse_heartbeat", ValueType::Duration(false, false), "After how long a quiet stream gets a comment.")
            .default("\"15s\"")
            .example("\"5s\""),
        key("sse_retry", ValueType::Duration(true, false), "How long clients are told to wait before they reconnect.")
            .default("\"3s\"")
            .example("\"2s\""),
        key(
            "shutdown_timeout",
            ValueType::Duration(true, false),
            "How long running calls may take to finish at a stop.",
        )
        .default("\"10s\"")
        .example("\"1m\""),
    ]],
};

/// What can be set for one server, and for all that do not say otherwise.
const SETTINGS: &[ConfigKey] = &[
    key("revision", ValueType::Revision, "The revision to speak.").default("\"auto\"").example("\"2025-06-18\""),
    key(
        "connection",
        ValueType::Choice(&["per-client", "shared"]),
        "Whether each client gets a connection of its own, or all share one and the server can ask nothing.",
    )
    .default("what the server's revision needs")
    .example("\"shared\""),
    key("connect_timeout", ValueType::Duration(false, false), "How long a connection may take to open.")
        .default("\"10s\"")
        .example("\"3s\""),
    key(
        "discovery_timeout",
        ValueType::Duration(false, false),
        "How long an answer may take while we find out what is there.",
    )
    .default("\"10s\"")
    .example("\"3s\""),
    key(
        "startup_timeout",
        ValueType::Duration(false, false),
        "How long a package runner may take to say its first word.",
    )
    .default("\"1m\"")
    .example("\"5m\""),
    key("idle_timeout", ValueType::Duration(false, false), "How long a call may be silent; progress begins this anew.")
        .default("\"1m\"")
        .example("\"2m\""),
    key("total_timeout", ValueType::Duration(false, false), "How long a call may take in all.")
        .default("\"10m\"")
        .example("\"1h\""),
    key(
        "stop_timeout",
        ValueType::Duration(true, false),
        "How long a child may take to end, and again after it was told to.",
    )
    .default("\"2s\"")
    .example("\"5s\""),
    key("ping_interval", ValueType::Duration(false, true), "How often a quiet connection is pinged.")
        .default("\"30s\"")
        .example("\"off\""),
    key(
        "list_poll_interval",
        ValueType::Duration(false, true),
        "How often the lists of a server that tells of no changes are read again.",
    )
    .default("\"1m\"")
    .example("\"5m\""),
    key("message_bytes", ValueType::Size, "The largest message that is read from it.")
        .default("\"16MiB\"")
        .example("\"1MiB\""),
    key(
        "max_input_rounds",
        ValueType::Count(0, 1000),
        "How often a call may be asked for input before it is given up.",
    )
    .default("8")
    .example("3"),
    key("max_leases", ValueType::Count(1, MANY), "Most connections that are lent to clients at once.")
        .default("256")
        .example("16"),
    key(
        "lease_idle_timeout",
        ValueType::Duration(false, false),
        "After how long an unused connection of callers without a session closes.",
    )
    .default("\"5m\"")
    .example("\"1m\""),
    key(
        "serve_stale_for",
        ValueType::Duration(true, false),
        "How long the lists of a server that is away are still served.",
    )
    .default("\"5m\"")
    .example("\"1h\""),
    key("allow_server_requests", ValueType::Flag, "Whether it may ask clients: sampling, elicitation, roots.")
        .default("true")
        .example("false"),
];

/// `[defaults]`
pub(super) static DEFAULTS: Section =
    Section { about: "What holds for all servers that do not say otherwise.", parts: &[SETTINGS] };

/// The keys that say of what kind a server is.
pub(super) const KINDS: [&str; 4] = ["builtin", "command", "url", "base_url"];

/// `[servers.NAME]`
pub(super) static SERVER: Section = Section {
    about: "The servers, by name, in the order in which their lists are merged.",
    parts: &[
        &[
            key("builtin", ValueType::Choice(&["elements"]), "A server that is built in: the periodic table.")
                .with(&["builtin"])
                .example("\"elements\""),
            key("command", ValueType::Text, "A program to start; it is spoken to on its standard input and output.")
                .with(&["command"])
                .example("\"npx\""),
            key("args", ValueType::Texts, "Its arguments.").with(&["command"]).example("[\"-y\", \"some-server\"]"),
            key("env", ValueType::Pairs, "Environment variables for it, beside the few that every child gets.")
                .with(&["command"])
                .example("{ KEY = \"value\" }"),
            key("cwd", ValueType::Text, "Where it runs; relative to the folder of this file.")
                .default("where Rialto runs")
                .with(&["command"])
                .example("\".\""),
            key("url", ValueType::Url, "An address to call.").with(&["url"]).example("\"https://tracker.example/mcp\""),
            key("headers", ValueType::Pairs, "Headers to send along.")
                .with(&["url", "base_url"])
                .example("{ Authorization = \"Bearer t0ken\" }"),
            key("transport", ValueType::Choice(&["streamable-http", "http", "sse"]), "The transport of the address.")
                .default("found out by asking")
                .alias("type")
                .with(&["url"])
                .example("\"sse\""),
            key("base_url", ValueType::Url, "The address of a REST interface that is made a server.")
                .with(&["base_url"])
                .example("\"https://api.example/v1\""),
            key("openapi", ValueType::Text, "An OpenAPI document that describes it: a file or a URL.")
                .with(&["base_url"])
                .example("\"https://api.example/openapi.json\""),
            key("query", ValueType::Pairs, "What is added to the query of every request.")
                .with(&["base_url"])
                .example("{ key = \"value\" }"),
            key("operations", ValueType::Table(&FILTER), "Which operations of the document become tools.")
                .with(&["base_url"])
                .example("{ deny = [\"delete*\"] }"),
            key("tools", ValueType::Tables(&TOOL), TOOL.about)
                .with(&["base_url"])
                .example("[{ name = \"t\", url = \"/x\" }]"),
            key("disabled", ValueType::Flag, "Leaves the server out, as if it were not there.")
                .default("false")
                .example("true"),
        ],
        SETTINGS,
    ],
};

/// `{ allow = […], deny = […] }`
pub(super) static FILTER: Section = Section {
    about: "Which names are let through. * stands for any letters, ? for one.",
    parts: &[&[
        key("allow", ValueType::Texts, "Only names that one of these fits.").default("all").example("[\"a*\"]"),
        key("deny", ValueType::Texts, "No names that one of these fits.").default("none").example("[\"b?\"]"),
    ]],
};

/// `[[servers.NAME.tools]]`
pub(super) static TOOL: Section = Section {
    about: "Tools of a REST interface that are described by hand.",
    parts: &[&[
        key("name", ValueType::Needed, "The name of the tool.").example("\"getUser\""),
        key("title", ValueType::Text, "Its name for people.").example("\"Look up a user\""),
        key("description", ValueType::Text, "What it does, for models.").example("\"Gives a user by name.\""),
        key(
            "method",
            ValueType::Choice(&["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]),
            "The verb of the request.",
        )
        .default("\"GET\"")
        .example("\"POST\""),
        key("url", ValueType::Needed, "Where the request goes, below base_url, with {argument} in it.")
            .example("\"/users\""),
        key("headers", ValueType::Pairs, "Headers of the request.").example("{ Accept = \"text/plain\" }"),
        key("body", ValueType::Any, "The body of the request: a template as text, or a value.")
            .example("{ user = \"{name}\" }"),
        key("result_path", ValueType::Text, "The part of the answer that is the result.").example("\"data.items\""),
        key("read_only", ValueType::Flag, "Whether it changes nothing.").example("true"),
        key("destructive", ValueType::Flag, "Whether it may destroy something.").example("true"),
        key("idempotent", ValueType::Flag, "Whether doing it twice is the same as doing it once.").example("true"),
        key("arguments", ValueType::Named(&ARGUMENT), ARGUMENT.about).example("{ id = { type = \"integer\" } }"),
    ]],
};

/// `[servers.NAME.tools.arguments.ARGUMENT]`
pub(super) static ARGUMENT: Section = Section {
    about: "The arguments of the tool, by name.",
    parts: &[&[
        key(
            "type",
            ValueType::Choice(&["string", "integer", "number", "boolean", "array", "object"]),
            "What kind of value it is.",
        )
        .default("\"string\"")
        .example("\"string\""),
        key("description", ValueType::Text, "What it is, for models.").example("\"Who it is.\""),
        key("required", ValueType::Flag, "Whether it has to be given.").default("false").example("true"),
        key("default", ValueType::Any, "Its value when it is not given.").example("\"x\""),
        key("enum", ValueType::Values, "The values that it may have.").example("[\"x\", \"y\"]"),
    ]],
};

/// `[groups.NAME]`
pub(super) static GROUP: Section = Section {
    about: "Sets of servers, each at an address of its own: /mcp/NAME; /mcp serves the group default.",
    parts: &[&[
        key("servers", ValueType::Texts, "Its servers, by name, in order.").default("all").example("[\"a\"]"),
        key("naming", ValueType::Choice(&["prefix", "plain"]), "How names look when there are several servers.")
            .default("\"prefix\"")
            .example("\"plain\""),
        key("instructions", ValueType::Text, "Instructions for models, instead of those of the servers.")
            .example("\"Be brief.\""),
        key("tools", ValueType::Table(&FILTER), "Which tools are served, by the names that clients see.")
            .example("{ allow = [\"get*\"] }"),
        key("prompts", ValueType::Table(&FILTER), "Which prompts are served.").example("{ deny = [\"*\"] }"),
        key("resources", ValueType::Table(&FILTER), "Which resources are served, by their URIs.")
            .example("{ deny = [\"file:*\"] }"),
        key("page_size", ValueType::Count(1, 100_000), "Items in one page of a list.").default("1000").example("50"),
    ]],
};

/// Names that a group cannot have, because its address would be another.
pub(super) const RESERVED: [&str; 1] = ["streamable"];
