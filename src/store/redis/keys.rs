//! What things are called in Redis.
//!
//! | key | kind | what is in it | how long it is kept |
//! |---|---|---|---|
//! | `rialto:s:{ID}` | hash | a session: `owner`, `record`, and the `version` of that | the life of the session |
//! | `rialto:e:{ID}` | stream | its events, as entries `POSITION-0` of `s` (stream), `t` (ms since 1970), `d` (bytes) | as long as the session |
//! | `rialto:n:{NAME}` | string | the node of that name that is there: `NAME/LIFE` | the life of the node |
//! | `rialto:m:{NAME}/LIFE` | list | what was sent to that node | the life that was given with it, or that of the node |
//! | `rialto:p:{PLACE}` | string | the node that has a place, such as the child that serves one caller | the life that was given with it |
//! | `rialto:nodes` | set | names of nodes; some may be gone | the longest life of a node |
//! | `rialto:secret` | string | the secret that nodes share | thirty days after the last beat of any node |
//!
//! What is in braces says where a key lies in a Cluster, so a session lies beside its events, and a node
//! beside its mailbox. `rialto` is the prefix. Braces, percent signs and what is not printed are percent-encoded in ids,
//! names and prefixes.

use std::fmt::Display;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::store::NodeId;

/// The names of keys below a prefix.
#[derive(Debug)]
pub(super) struct RedisKeys {
    prefix: String,
}

const ODD: &AsciiSet = &CONTROLS.add(b'{').add(b'}').add(b'%').add(b' ');

fn plain(text: &str) -> impl Display + '_ {
    utf8_percent_encode(text, ODD)
}

impl RedisKeys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: plain(prefix).to_string() }
    }

    pub(super) fn session(&self, id: &str) -> String {
        format!("{}:s:{{{}}}", self.prefix, plain(id))
    }

    pub(super) fn events(&self, id: &str) -> String {
        format!("{}:e:{{{}}}", self.prefix, plain(id))
    }

    pub(super) fn node(&self, name: &str) -> String {
        format!("{}:n:{{{}}}", self.prefix, plain(name))
    }

    pub(super) fn mailbox(&self, node: &NodeId) -> String {
        format!("{}:m:{{{}}}/{}", self.prefix, plain(node.name()), node.incarnation())
    }

    pub(super) fn place(&self, name: &str) -> String {
        format!("{}:p:{{{}}}", self.prefix, plain(name))
    }

    pub(super) fn nodes(&self) -> String {
        format!("{}:nodes", self.prefix)
    }

    pub(super) fn secret(&self) -> String {
        format!("{}:secret", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_together_lies_together() {
        let keys = RedisKeys::new("my{app}");
        let tag = |key: &str| key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).unwrap().0.to_owned();
        for name in ["a", "host:3001", "}x{", "{}", "a b", "ä%"] {
            let node = NodeId::begin(name);
            assert_eq!(tag(&keys.node(name)), tag(&keys.mailbox(&node)), "{name}");
            assert_eq!(tag(&keys.session(name)), tag(&keys.events(name)), "{name}");
            assert!(!tag(&keys.node(name)).is_empty());
        }
        assert_eq!(RedisKeys::new("rialto").session("x"), "rialto:s:{x}");
    }
}
