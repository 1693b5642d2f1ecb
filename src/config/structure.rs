//! The tables of `rialto.toml` that describe servers, tools and groups. Settings are in [`settings`](super::settings).

use super::keys::{ConfigKey, MAX_COUNT, Section, ValueType, key};
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

/// `[[policy.limits]]`
pub(super) static LIMIT: Section = Section {
    description: "Rate limits and quotas. All that match a request must have room.",
    parts: &[&[
        key("name", ValueType::RequiredString, "Name of the limit, which metrics and status show.").example("\"a\""),
        key(
            "principals",
            ValueType::StringList,
            "Callers that it is for: `*`, `anonymous`, `local`, `role:R`, `key:N`, `token:N`, `issuer:N`, `client:ID`, `user:ISSUER/SUB`, `email:A`, `claim:PATH=VALUE`.",
        )
        .default("all")
        .example("[\"role:engineering\"]"),
        key("groups", ValueType::StringList, "Groups that it is for.").default("all").example("[\"default\"]"),
        key(
            "tools",
            ValueType::StringList,
            "Tools whose calls count, as patterns of the server and its own name. Without tools, prompts and resources every request counts.",
        )
        .example("[\"*/search\"]"),
        key("prompts", ValueType::StringList, "Prompts that count, likewise.").example("[\"*/review\"]"),
        key("resources", ValueType::StringList, "Resources that count, likewise, by the server's own URI.")
            .example("[\"*/file:*\"]"),
        key(
            "per",
            ValueType::StringList,
            "What is counted for itself: `caller`, `client`, `role`, `group`, and with targets `server`, `tool`.",
        )
        .default("all together")
        .example("[\"caller\"]"),
        key("rate", ValueType::String, "Requests per second, minute or hour: `20/s`, `30/m`, `500/h`.").example("\"20/s\""),
        key("burst", ValueType::Integer(1, u32::MAX as u64), "Requests that may come at once.")
            .default("the number of `rate`")
            .example("60"),
        key(
            "quota",
            ValueType::String,
            "Requests per minute, hour, day or month of UTC: `10/m`, `100/h`, `1000/d`, `10000/month`.",
        )
        .example("\"1000/d\""),
        key("max_in_flight", ValueType::Integer(1, MAX_COUNT), "Requests at one time, on each node.").example("2"),
        key("max_argument_bytes", ValueType::Size, "Maximum size of the arguments of a call.").example("\"64KiB\""),
        key(
            "total_timeout",
            ValueType::Duration { allow_zero: false, allow_off: false },
            "Maximum duration of a call, where the server has a longer one.",
        )
        .example("\"30s\""),
        key(
            "exact",
            ValueType::Boolean,
            "Whether a node of a cluster asks the store for every request, and not for a batch of them.",
        )
        .default("false")
        .example("true"),
    ]],
};

/// `[[policy.rules]]`
pub(super) static RULE: Section = Section {
    description: "Rules: who may do what. A denial always wins; otherwise their order does not matter.",
    parts: &[&[
        key("name", ValueType::String, "Name, for people.").default("`rule N`").example("\"nobody deletes\""),
        key(
            "principals",
            ValueType::StringList,
            "Callers that the rule is for, any of these: `*`, `anonymous`, `local`, `role:NAME`, `key:NAME`, \
             `token:NAME`, `issuer:NAME`, `client:ID`, `user:ISSUER/SUBJECT`, `email:ADDRESS`, `claim:PATH=VALUE`.",
        )
        .example("[\"role:engineering\"]"),
        key("require", ValueType::StringList, "What the caller must be besides, all of these.")
            .default("nothing")
            .example("[\"issuer:corp\"]"),
        key("groups", ValueType::StringList, "Groups in which the rule holds.").default("all").example("[\"default\"]"),
        key("allow", ValueType::Table(&TARGETS), "What the rule allows.")
            .default("nothing")
            .example("{ tools = [\"elements/get*\"] }"),
        key("deny", ValueType::Table(&TARGETS), "What the rule denies; wins over every `allow`.")
            .default("nothing")
            .example("{ tools = [\"*/delete_*\"] }"),
        key("require_scopes", ValueType::StringList, "Scopes that a token must have for what the rule allows.")
            .default("none")
            .example("[\"tracker:write\"]"),
        key(
            "when",
            ValueType::StringLists,
            "Arguments for which the rule allows: JSON Pointers, each with patterns of which one must match.",
        )
        .default("any")
        .example("{ \"/project\" = [\"ACME-*\"] }"),
    ]],
};

/// `allow` and `deny` of a rule.
pub(super) static TARGETS: Section = Section {
    description: "Targets as `server/name`, with the server's own name. * matches any characters and ? matches one.",
    parts: &[&[
        key("tools", ValueType::StringList, "Tools, by name.").default("none").example("[\"tracker/get_*\"]"),
        key("prompts", ValueType::StringList, "Prompts, by name.").default("none").example("[\"tracker/*\"]"),
        key("resources", ValueType::StringList, "Resources by URI, templates by the template.")
            .default("none")
            .example("[\"files/file:///public/*\"]"),
        key("methods", ValueType::StringList, "Extension methods, by name.")
            .default("none")
            .example("[\"tracker/acme/*\"]"),
    ]],
};

/// `[access.issuers.NAME]`
pub(super) static ISSUER: Section = Section {
    description: "Authorization servers whose tokens are accepted, by name; the first is the one that clients should use.",
    parts: &[&[
        key("issuer", ValueType::RequiredString, "URL by which the issuer names itself, exactly as in `iss`.")
            .example("\"https://login.example\""),
        key("audiences", ValueType::StringList, "Audiences that are accepted beside the addresses of this gateway.")
            .default("none")
            .example("[\"api://rialto\"]"),
        key(
            "audience_claim",
            ValueType::Choice(&["aud", "client_id"]),
            "Claim that says whom a token is for; `client_id` for issuers without `aud`, together with `audiences`.",
        )
        .default("\"aud\"")
        .example("\"client_id\""),
        key("roles_claim", ValueType::String, "Claim with the roles; dots descend into objects.")
            .default("`roles` and `groups`")
            .example("\"realm_access.roles\""),
        key("name_claim", ValueType::String, "Claim with the name to show; it decides nothing.")
            .default("\"name\"")
            .example("\"preferred_username\""),
        key("algorithms", ValueType::StringList, "Signature algorithms that are accepted.")
            .default("RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA")
            .example("[\"ES256\"]"),
        key(
            "token_format",
            ValueType::Choice(&["jwt", "opaque"]),
            "How tokens are verified: `jwt` by their signature, `opaque` by asking the issuer (introspection).",
        )
        .default("\"jwt\"")
        .example("\"opaque\""),
        key("client_id", ValueType::String, "Id of this gateway at the issuer, for `opaque`.").example("\"rialto\""),
        key("client_secret", ValueType::String, "Secret of this gateway at the issuer, for `opaque`.")
            .example("\"s3cret\""),
        key("jwks", ValueType::String, "Keys of the issuer: a file or a URL.")
            .default("`jwks_uri` of its metadata")
            .example("\"https://login.example/keys\""),
        key(
            "leeway",
            ValueType::Duration { allow_zero: true, allow_off: false },
            "Difference between the clocks that is tolerated, at most two minutes.",
        )
        .default("\"30s\"")
        .example("\"5s\""),
    ]],
};

/// Group names that collide with a path below `/mcp/`.
pub(super) const RESERVED_GROUP_NAMES: [&str; 1] = ["streamable"];
