//! A file to begin with.

/// What `rialto init` writes: it serves the periodic table, and shows what else there is.
pub const STARTER: &str = r##"# Rialto: which MCP servers there are, and who may use them.
# `rialto check` explains this file, `rialto serve` serves it. What is commented out shows the defaults
# or an example. `rialto schema > rialto.schema.json` writes a schema for editors that follow the next line.
#:schema ./rialto.schema.json

listen = "127.0.0.1:3001"

# [log]
# filter = "info"            # error, warn, info, debug, trace, or targets such as "rialto=debug"
# format = "text"            # or "json"

# Callers and their bearer tokens. Once one is given, every request needs one.
# ${NAME} is an environment variable, ${NAME:-default} has a default.
# [access.tokens]
# ann = "${ANN_TOKEN}"

# [limits]
# body_bytes = "4MiB"
# session_idle = "15m"

# What holds for all servers that do not say otherwise.
# [defaults]
# connect_timeout = "10s"
# idle_timeout = "1m"

# The periodic table, which is built in. Take it out once you have servers of your own.
[servers.elements]
builtin = "elements"

# A program that is started, on its standard input and output.
# [servers.files]
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "/data"]

# A server elsewhere. Its transport and revision are found out.
# [servers.tracker]
# url = "https://tracker.example/mcp"
# headers = { Authorization = "Bearer ${TRACKER_TOKEN}" }

# A REST interface that becomes a server.
# [servers.weather]
# base_url = "https://api.weather.example/v1"
# openapi = "weather.json"

# A group is a set of servers at an address of its own, here /mcp/research.
# Without [groups.default], /mcp serves all servers.
# [groups.research]
# servers = ["files", "tracker"]
# tools = { deny = ["*delete*"] }
"##;
