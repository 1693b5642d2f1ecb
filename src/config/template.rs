//! The starter configuration.

use std::fmt::Write;

use super::keys::{ConfigKey, Section, ValueType};
use super::settings::TOP_LEVEL;

/// Widest line of the starter file before the description moves to a line of its own.
const MAX_LINE: usize = 120;

const INTRODUCTION: &str = r"# Rialto configuration: upstream MCP servers and who may use them.
# `rialto check` validates this file, `rialto serve` serves it. Commented settings show defaults or examples.
# ${NAME} is an environment variable, ${NAME:-default} has a default value, ${file:PATH} is the text of a file.
# `rialto schema > rialto.schema.json` writes the JSON Schema that the next line refers to.
#:schema ./rialto.schema.json
";

const SERVERS: &str = r##"
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

/// The file that `rialto init` writes: serves the built-in periodic table and shows every setting as a comment.
pub fn starter_config() -> String {
    let mut text = format!("{INTRODUCTION}\n{}", section_lines(&TOP_LEVEL));
    for key in TOP_LEVEL.keys() {
        if let ValueType::Table(section) = key.value_type {
            let description = key.plain_description();
            let _ = write!(text, "\n# {description}\n# [{}]\n{}", key.name, section_lines(section));
        }
    }
    text + SERVERS
}

/// One commented line per setting, with its description behind or before it.
pub(super) fn section_lines(section: &Section) -> String {
    let mut text = String::new();
    // Tables without an example have sections of their own.
    let has_section = |key: &ConfigKey| match key.value_type {
        ValueType::Table(_) => true,
        ValueType::NamedTables(_) => key.example.is_empty(),
        _ => false,
    };
    for key in section.keys().filter(|key| !has_section(key)) {
        let (line, description) = (format!("# {} = {}", key.name, key.starter_value()), key.plain_description());
        let shown = format!("{line:<32} # {description}");
        let _ = match shown.len() <= MAX_LINE {
            true => writeln!(text, "{shown}"),
            false => writeln!(text, "# {description}\n{line}"),
        };
    }
    text
}
