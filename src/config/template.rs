//! The starter configuration.

/// The file that `rialto init` writes: serves the built-in periodic table and shows other options as comments.
pub const STARTER_CONFIG: &str = r##"# Rialto configuration: upstream MCP servers and who may use them.
# `rialto check` validates this file, `rialto serve` serves it. Commented lines show defaults or examples.
# `rialto schema > rialto.schema.json` writes the JSON Schema that the next line refers to.
#:schema ./rialto.schema.json

listen = "127.0.0.1:3001"

# [log]
# filter = "info"            # error, warn, info, debug, trace, or a target such as "rialto=debug"
# format = "text"            # or "json"

# Bearer tokens by caller name. If any is set, every request needs one.
# ${NAME} is an environment variable, ${NAME:-default} has a default value.
# [access.tokens]
# ann = "${ANN_TOKEN}"

# [limits]
# body_bytes = "4MiB"
# session_idle = "15m"

# Defaults for all servers.
# [defaults]
# connect_timeout = "10s"
# idle_timeout = "1m"

# The built-in periodic table. Remove it once you have servers of your own.
[servers.elements]
builtin = "elements"

# A program that is started and speaks MCP over stdio.
# [servers.files]
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "/data"]

# A remote server. Transport and revision are detected.
# [servers.tracker]
# url = "https://tracker.example/mcp"
# headers = { Authorization = "Bearer ${TRACKER_TOKEN}" }

# A REST API exposed as an MCP server.
# [servers.weather]
# base_url = "https://api.weather.example/v1"
# openapi = "weather.json"

# A group is a set of servers at a path of its own, here /mcp/research.
# Without [groups.default], /mcp serves all servers.
# [groups.research]
# servers = ["files", "tracker"]
# tools = { deny = ["*delete*"] }
"##;
