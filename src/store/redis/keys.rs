//! Key names in Redis.
//!
//! | key | type | content | expires |
//! |---|---|---|---|
//! | `rialto:s:{ID}` | hash | session: `owner`, `record`, its `changes` and `version` | with the session's time to live |
//! | `rialto:e:{ID}` | stream | its events, as entries `POSITION-0` of `s` (stream), `t` (ms since 1970), `d` (bytes) | with the session |
//! | `rialto:n:{NAME}` | string | the live node with that name: `NAME/INCARNATION` | with the node's lease |
//! | `rialto:m:{NAME}/INCARNATION` | list | mailbox of that node | with the time to live of its messages, or the lease |
//! | `rialto:p:{AFFINITY}` | string | the node that owns an affinity name, such as the stdio child of one caller | with the claim's time to live |
//! | `rialto:l:{LIMIT}` | string | when the bucket of a limit is full again, in µs since 1970 | when it is full |
//! | `rialto:u:{LIMIT}:START` | string | calls in the window of a quota that began at that second | with the window |
//! | `rialto:nodes` | set | node names; some may have expired | with the longest lease |
//! | `rialto:secret` | string | the sealing key that nodes share | thirty days after the last heartbeat of any node |
//!
//! Braces are Redis Cluster hash tags: a session is in the slot of its events, a node in that of its mailbox,
//! a bucket in that of its quota. LIMIT is a digest of the limit's name and of whom the bucket is for.
//! `rialto` is the prefix. Braces, percent signs, spaces and control characters are percent-encoded in ids, names
//! and prefixes.

use std::fmt::Display;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::store::NodeId;

/// Key names under one prefix.
#[derive(Debug)]
pub(super) struct RedisKeys {
    prefix: String,
}

const ESCAPED: &AsciiSet = &CONTROLS.add(b'{').add(b'}').add(b'%').add(b' ');

fn escape(text: &str) -> impl Display + '_ {
    utf8_percent_encode(text, ESCAPED)
}

impl RedisKeys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: escape(prefix).to_string() }
    }

    pub(super) fn session(&self, id: &str) -> String {
        format!("{}:s:{{{}}}", self.prefix, escape(id))
    }

    pub(super) fn events(&self, id: &str) -> String {
        format!("{}:e:{{{}}}", self.prefix, escape(id))
    }

    pub(super) fn node(&self, name: &str) -> String {
        format!("{}:n:{{{}}}", self.prefix, escape(name))
    }

    pub(super) fn mailbox(&self, node: &NodeId) -> String {
        format!("{}:m:{{{}}}/{}", self.prefix, escape(node.name()), node.incarnation())
    }

    pub(super) fn affinity(&self, name: &str) -> String {
        format!("{}:p:{{{}}}", self.prefix, escape(name))
    }

    pub(super) fn bucket(&self, limit: &str) -> String {
        format!("{}:l:{{{}}}", self.prefix, escape(limit))
    }

    pub(super) fn quota(&self, limit: &str, window_start: u64) -> String {
        format!("{}:u:{{{}}}:{window_start}", self.prefix, escape(limit))
    }

    pub(super) fn nodes(&self) -> String {
        format!("{}:nodes", self.prefix)
    }

    pub(super) fn shared_key(&self) -> String {
        format!("{}:secret", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn related_keys_share_a_hash_tag() {
        let keys = RedisKeys::new("my{app}");
        let tag = |key: &str| key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).unwrap().0.to_owned();
        for name in ["a", "host:3001", "}x{", "{}", "a b", "ä%"] {
            let node = NodeId::generate(name);
            assert_eq!(tag(&keys.node(name)), tag(&keys.mailbox(&node)), "{name}");
            assert_eq!(tag(&keys.session(name)), tag(&keys.events(name)), "{name}");
            assert_eq!(tag(&keys.bucket(name)), tag(&keys.quota(name, 7)), "{name}");
            assert!(!tag(&keys.node(name)).is_empty());
        }
        assert_eq!(RedisKeys::new("rialto").session("x"), "rialto:s:{x}");
    }
}
