//! Node ids.

use std::fmt;
use std::sync::Arc;

/// A node name and one incarnation of it. A node that restarts or loses its lease gets a new incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    name: Arc<str>,
    incarnation: u64,
}

impl NodeId {
    /// A new incarnation of the node with that name.
    ///
    /// # Panics
    /// When the operating system's random number generator fails.
    pub fn generate(name: impl Into<Arc<str>>) -> Self {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the system random number generator works");
        Self { name: name.into(), incarnation: u64::from_be_bytes(bytes) }
    }

    /// A new incarnation of the same node.
    #[must_use]
    pub fn next_incarnation(&self) -> Self {
        Self::generate(Arc::clone(&self.name))
    }

    /// Parses the form that `Display` writes: `NAME/INCARNATION`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, incarnation) = text.rsplit_once('/')?;
        let hex = incarnation.len() == 16 && incarnation.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let incarnation = u64::from_str_radix(incarnation, 16).ok().filter(|_| hex && !name.is_empty())?;
        Some(Self { name: name.into(), incarnation })
    }

    /// Node name, the same in every incarnation.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Incarnation as 16 hex digits.
    pub fn incarnation(&self) -> String {
        format!("{:016x}", self.incarnation)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:016x}", self.name, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_round_trip_and_malformed_ones_are_refused() {
        for name in ["a", "host:3001", "a/b", "{x}"] {
            let node = NodeId::generate(name);
            assert_eq!(NodeId::parse(&node.to_string()), Some(node));
        }
        for bad in ["", "a", "/0123456789abcdef", "a/1", "a/0123456789abcdeF", "a/+123456789abcdef"] {
            assert_eq!(NodeId::parse(bad), None, "{bad}");
        }
        let node = NodeId::generate("a");
        assert_ne!(node, node.next_incarnation());
        assert_eq!(node.name(), node.next_incarnation().name());
    }
}
