//! Conversion of the configuration into upstreams and groups of the gateway.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::model::{Config, FilterSection, GroupSection, ServerKind, ServerSection};
use crate::gateway::{self, GatewayConfig, GroupConfig};
use crate::local::elements::SPOTLIGHT_INTERVAL;
use crate::local::rest;
use crate::upstream::{SpecKind, UpstreamSpec};

/// Polling interval that stands for "off": thirty years.
const POLLING_OFF_INTERVAL: Duration = Duration::from_secs(30 * 365 * 86_400);

impl Config {
    /// Upstreams and groups of the gateway.
    pub fn gateway_config(&self) -> GatewayConfig {
        let enabled = self.servers.iter().filter(|server| !server.disabled);
        GatewayConfig {
            upstreams: enabled.map(upstream_spec).collect(),
            groups: self.groups.iter().map(group_config).collect(),
        }
    }
}

fn upstream_spec(server: &ServerSection) -> UpstreamSpec {
    let kind = match &server.kind {
        ServerKind::Elements => SpecKind::Elements(SPOTLIGHT_INTERVAL),
        ServerKind::Target(target) => SpecKind::Target(target.clone()),
        ServerKind::Rest(rest) => SpecKind::Rest(rest.clone()),
    };
    let defaults = UpstreamSpec::new(&server.name, kind);
    UpstreamSpec {
        settings: server.settings.clone(),
        connection_mode: server.connection_mode.unwrap_or_default(),
        max_leases: server.max_leases,
        lease_idle_timeout: server.lease_idle_timeout,
        list_poll_interval: server.list_poll_interval.unwrap_or(POLLING_OFF_INTERVAL),
        serve_stale_for: server.serve_stale_for,
        allow_server_requests: server.allow_server_requests,
        file_fingerprint: document_hash(&server.kind),
        ..defaults
    }
}

/// Hash of the OpenAPI file of a server, so that a reload notices a changed document; 0 without a file.
fn document_hash(kind: &ServerKind) -> u64 {
    let ServerKind::Rest(rest::RestSpec { document: Some(rest::DocumentSource::File(path)), .. }) = kind else {
        return 0;
    };
    let mut hash = DefaultHasher::new();
    // A read error is reported when the document is loaded.
    std::fs::read(path).ok().hash(&mut hash);
    hash.finish()
}

fn group_config(group: &GroupSection) -> GroupConfig {
    let filter = |filter: &FilterSection| gateway::NameFilter::new(&filter.allow, &filter.deny);
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
    use crate::config::{ConfigFormat, parse};

    #[test]
    fn list_poll_interval_off_disables_polling() {
        for (line, poll) in [
            ("", Duration::from_secs(60)),
            ("list_poll_interval = \"5m\"", Duration::from_secs(300)),
            ("list_poll_interval = \"off\"", POLLING_OFF_INTERVAL),
        ] {
            let file = format!("[servers.a]\ncommand = \"x\"\n{line}");
            let loaded = parse(&file, Path::new("rialto.toml"), ConfigFormat::Toml, &|_| None).unwrap();
            assert_eq!(loaded.config.gateway_config().upstreams[0].list_poll_interval, poll, "{line}");
        }
    }
}
