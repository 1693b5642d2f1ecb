//! The tables of `rialto.toml` that describe servers, tools and groups. Settings are in [`settings`](super::settings).

use super::keys::{ConfigKey, Section, ValueType, key};
use super::settings::{FILTER, GroupSettings, UpstreamSettings};

/// Keys of the top level that hold named tables.
pub(super) const NAMED_TABLES: &[ConfigKey] = &[
    key("servers", ValueType::NamedTables(&SERVER), SERVER.description).default("the built-in periodic table"),
    key("groups", ValueType::NamedTables(&GROUP), GROUP.description).default("`default`, with all servers"),
];

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
            key("command", ValueType::String, "Program that is started and speaks MCP over stdio.")
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
            key("url", ValueType::Url, "URL of a Streamable HTTP or HTTP+SSE server.")
                .server_kinds(&["url"])
                .example("\"https://tracker.example/mcp\""),
            key("headers", ValueType::StringMap, "Headers sent with every request.")
                .server_kinds(&["url", "base_url"])
                .example("{ Authorization = \"Bearer t0ken\" }"),
            key(
                "transport",
                ValueType::Choice(&["streamable-http", "http", "sse"]),
                "Transport of the URL; `http` is another word for `streamable-http`.",
            )
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
        UpstreamSettings::KEYS,
    ],
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
        key(
            "url",
            ValueType::RequiredString,
            "Path below `base_url`; `{argument}` is replaced by the argument's value.",
        )
        .example("\"/users\""),
        key("headers", ValueType::StringMap, "Additional request headers.").example("{ Accept = \"text/plain\" }"),
        key("body", ValueType::Any, "Request body: a string template, or a value sent as JSON.")
            .example("{ user = \"{name}\" }"),
        key("result_path", ValueType::String, "Path to the part of the response body that is returned as the result.")
            .default("the whole body")
            .example("\"data.items\""),
        key("read_only", ValueType::Boolean, "Annotation `readOnlyHint`.").example("true"),
        key("destructive", ValueType::Boolean, "Annotation `destructiveHint`.").example("true"),
        key("idempotent", ValueType::Boolean, "Annotation `idempotentHint`.").example("true"),
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
    description: "Groups of servers, each served at `/mcp/NAME`; the group `default` is served at `/mcp`.",
    parts: &[
        &[key("servers", ValueType::StringList, "Servers of the group, in order.").default("all").example("[\"a\"]")],
        GroupSettings::KEYS,
    ],
};

/// Group names that collide with a path below `/mcp/`.
pub(super) const RESERVED_GROUP_NAMES: [&str; 1] = ["streamable"];
