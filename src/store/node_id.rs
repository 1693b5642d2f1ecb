//! Names of nodes.

use std::fmt;
use std::sync::Arc;

/// A node in one of its lives: one that starts again under its name is another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    name: Arc<str>,
    life: u64,
}

impl NodeId {
    /// A node of that name that begins to live now.
    ///
    /// # Panics
    /// When the system has no randomness to give.
    pub fn begin(name: impl Into<Arc<str>>) -> Self {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the system gives randomness");
        Self { name: name.into(), life: u64::from_be_bytes(bytes) }
    }

    /// The same node in another life.
    #[must_use]
    pub fn next_incarnation(&self) -> Self {
        Self::begin(Arc::clone(&self.name))
    }

    /// Reads what [`NodeId`] is written as.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, life) = text.rsplit_once('/')?;
        let hex = life.len() == 16 && life.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let life = u64::from_str_radix(life, 16).ok().filter(|_| hex && !name.is_empty())?;
        Some(Self { name: name.into(), life })
    }

    /// Its name, which it keeps from life to life.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Which of its lives this is.
    pub fn incarnation(&self) -> String {
        format!("{:016x}", self.life)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:016x}", self.name, self.life)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["a", "host:3001", "a/b", "{x}"] {
            let node = NodeId::begin(name);
            assert_eq!(NodeId::parse(&node.to_string()), Some(node));
        }
        for bad in ["", "a", "/0123456789abcdef", "a/1", "a/0123456789abcdeF", "a/+123456789abcdef"] {
            assert_eq!(NodeId::parse(bad), None, "{bad}");
        }
        let node = NodeId::begin("a");
        assert_ne!(node, node.next_incarnation());
        assert_eq!(node.name(), node.next_incarnation().name());
    }
}
