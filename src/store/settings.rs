//! Settings of the store and the cluster.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::redis::RedisAddress;

/// Shared store and cluster membership of this node.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// Redis URL; `None` keeps sessions in this process.
    pub url: Option<String>,
    /// Prefix of every key in the store.
    pub prefix: String,
    /// Timeout of a store operation.
    pub timeout: Duration,
    /// Lease duration: other nodes take over after this time without a heartbeat.
    pub lease: Duration,
    /// Configured node name.
    pub node: Option<String>,
    /// Configured key that seals request state; otherwise the nodes share one through the store.
    pub sealing_key: Option<String>,
}

impl StoreSettings {
    /// Name of this node: the configured one, or `HOSTNAME:PORT`.
    pub fn node_name(&self, listen: SocketAddr) -> String {
        let hostname = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.node.clone().unwrap_or_else(|| format!("{}:{}", hostname(), listen.port()))
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            url: None,
            prefix: "rialto".to_owned(),
            timeout: Duration::from_secs(2),
            lease: Duration::from_secs(6),
            node: None,
            sealing_key: None,
        }
    }
}

/// Redacts the password in the URL and the sealing key.
impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, prefix, timeout, lease, node, sealing_key } = self;
        f.debug_struct("StoreSettings")
            .field("url", &url.as_deref().map(RedisAddress::parse))
            .field("prefix", prefix)
            .field("timeout", timeout)
            .field("lease", lease)
            .field("node", node)
            .field("sealing_key", &sealing_key.as_ref().map(|_| "***"))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_node_name_is_hostname_and_port() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 3001));
        let name = StoreSettings::default().node_name(listen);
        assert!(name.ends_with(":3001") && name.len() > ":3001".len(), "{name}");
        let named = StoreSettings { node: Some("a".into()), ..StoreSettings::default() };
        assert_eq!(named.node_name(listen), "a");
    }

    #[test]
    fn debug_output_redacts_secrets() {
        let url = Some("redis://ann:s3cret@h".to_owned());
        let settings = StoreSettings { url, sealing_key: Some("s3cret".into()), ..StoreSettings::default() };
        let printed = format!("{settings:?}");
        assert!(!printed.contains("s3cret") && printed.contains("redis://ann:***@h:6379"), "{printed}");
    }
}
