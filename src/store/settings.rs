//! What governs the store and the cluster.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::redis::RedisAddress;

/// Where sessions are kept, and how this node shares them with others.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// Where Redis is; nothing when all is kept in this process.
    pub url: Option<String>,
    /// What all keys in the store begin with.
    pub prefix: String,
    /// How long the store may take to answer.
    pub timeout: Duration,
    /// How long a node may be silent before others take over.
    pub lease: Duration,
    /// The name of this node, if it was given one.
    pub node: Option<String>,
    /// What seals that which clients carry, if it was given.
    pub sealing_key: Option<String>,
}

impl StoreSettings {
    /// The name of a node that listens there: its own, or that of the machine, with the port.
    pub fn node_name(&self, listen: SocketAddr) -> String {
        let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.node.clone().unwrap_or_else(|| format!("{}:{}", machine(), listen.port()))
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

/// What is secret is not shown.
impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, prefix, timeout, lease, node, sealing_key: secret } = self;
        f.debug_struct("StoreSettings")
            .field("url", &url.as_deref().map(RedisAddress::parse))
            .field("prefix", prefix)
            .field("timeout", timeout)
            .field("lease", lease)
            .field("node", node)
            .field("secret", &secret.as_ref().map(|_| "***"))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_after_its_machine_and_port() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 3001));
        let name = StoreSettings::default().node_name(listen);
        assert!(name.ends_with(":3001") && name.len() > ":3001".len(), "{name}");
        let named = StoreSettings { node: Some("a".into()), ..StoreSettings::default() };
        assert_eq!(named.node_name(listen), "a");
    }

    #[test]
    fn secrets_are_not_shown() {
        let url = Some("redis://ann:s3cret@h".to_owned());
        let settings = StoreSettings { url, sealing_key: Some("s3cret".into()), ..StoreSettings::default() };
        let shown = format!("{settings:?}");
        assert!(!shown.contains("s3cret") && shown.contains("redis://ann:***@h:6379"), "{shown}");
    }
}
