//! A configuration as the layout of a gateway.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::model::{Config, FilterSection, GroupSection, ServerKind, ServerSection};
use crate::gateway::{self, GatewayConfig, GroupConfig};
use crate::local::rest;
use crate::upstream::{SpecKind, UpstreamSpec};

/// How often that happens which is switched off: once in thirty years.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

impl Config {
    /// The upstreams and groups; the resource of the built-in server that changes does so every
    /// `spotlight`.
    pub fn layout(&self, spotlight: Duration) -> GatewayConfig {
        let enabled = self.servers.iter().filter(|server| !server.disabled);
        GatewayConfig {
            upstreams: enabled.map(|server| spec(server, spotlight)).collect(),
            groups: self.groups.iter().map(plan).collect(),
        }
    }
}

fn spec(server: &ServerSection, spotlight: Duration) -> UpstreamSpec {
    let kind = match &server.kind {
        ServerKind::Elements => SpecKind::Elements(spotlight),
        ServerKind::Target(target) => SpecKind::Target(target.clone()),
        ServerKind::Rest(rest) => SpecKind::Rest(rest.clone()),
    };
    let defaults = UpstreamSpec::new(&server.name, kind);
    UpstreamSpec {
        settings: server.settings.clone(),
        connection_mode: server.connection_mode.unwrap_or_default(),
        max_leases: server.max_leases,
        lease_idle_timeout: server.lease_idle_timeout,
        list_poll_interval: server.list_poll_interval.unwrap_or(NEVER),
        serve_stale_for: server.serve_stale_for,
        allow_server_requests: server.allow_server_requests,
        contents: contents(&server.kind),
        ..defaults
    }
}

/// Stands for what is in the files that a server names.
fn contents(kind: &ServerKind) -> u64 {
    let ServerKind::Rest(rest::RestSpec { document: Some(rest::DocumentSource::File(path)), .. }) = kind else {
        return 0;
    };
    let mut hash = DefaultHasher::new();
    // One that cannot be read is told of when it is loaded.
    std::fs::read(path).ok().hash(&mut hash);
    hash.finish()
}

fn plan(group: &GroupSection) -> GroupConfig {
    let filter = |filter: &FilterSection| gateway::ToolFilter::new(&filter.allow, &filter.deny);
    GroupConfig {
        naming: group.naming,
        instructions: group.instructions.clone(),
        tools: filter(&group.tools),
        prompts: filter(&group.prompts),
        resources: filter(&group.resources),
        page_size: group.page_size,
        ..GroupConfig::new(&group.name, group.servers.iter().cloned())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Format, parse};

    #[test]
    fn lists_are_polled_unless_that_is_off() {
        for (line, poll) in
            [("", Duration::from_secs(60)), ("poll = \"5m\"", Duration::from_secs(300)), ("poll = \"off\"", NEVER)]
        {
            let file = format!("[servers.a]\ncommand = \"x\"\n{line}");
            let loaded = parse(&file, Path::new("rialto.toml"), Format::Toml, &|_| None).unwrap();
            assert_eq!(loaded.config.layout(Duration::ZERO).upstreams[0].list_poll_interval, poll, "{line}");
        }
    }
}
