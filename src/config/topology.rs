//! Conversion of the configuration into upstreams and groups of the gateway.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::model::{Config, GroupSection, ServerKind, ServerSection};
use crate::gateway::{GatewayConfig, GroupConfig};
use crate::local::elements::SPOTLIGHT_INTERVAL;
use crate::local::rest;
use crate::upstream::{SpecKind, UpstreamSpec};

impl Config {
    /// Upstreams and groups of the gateway.
    pub fn gateway_config(&self) -> GatewayConfig {
        let rules = self.rule_book();
        let enabled = self.servers.iter().filter(|server| !server.disabled);
        GatewayConfig {
            upstreams: enabled.map(upstream_spec).collect(),
            groups: self
                .groups
                .iter()
                .map(|group| GroupConfig { rules: rules.clone(), ..group_config(group) })
                .collect(),
        }
    }
}

fn upstream_spec(server: &ServerSection) -> UpstreamSpec {
    let kind = match &server.kind {
        ServerKind::Elements => SpecKind::Elements(SPOTLIGHT_INTERVAL),
        ServerKind::Target(target) => SpecKind::Target(target.clone()),
        ServerKind::Rest(rest) => SpecKind::Rest(rest.clone()),
    };
    let mut spec = UpstreamSpec::new(&server.name, kind);
    server.settings.fill(&mut spec);
    spec.file_fingerprint = document_hash(&server.kind);
    spec
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
    let mut config = GroupConfig::new(&group.name, group.servers.iter().cloned());
    group.settings.fill(&mut config);
    config
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use crate::config::setting_value::POLLING_OFF_INTERVAL;
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
