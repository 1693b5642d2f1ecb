//! Which leg of a server that speaks both eras serves a client.

use super::Revision;
use crate::protocol::Raw;
use crate::protocol::method::Capability;

/// Value of the setting `legs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LegRule {
    /// Each client gets the leg of its own era.
    #[default]
    Client,
    /// Every client gets the handshake leg, where there is one.
    Handshake,
    /// Every client gets the per-request leg, where there is one.
    PerRequest,
}

/// What is compared of a leg.
#[derive(Debug, Clone)]
pub struct LegFacts {
    /// The negotiated revision.
    pub revision: Revision,
    /// The capabilities that the server declares on this leg.
    pub capabilities: Raw,
    /// Whether the server can ask and notify one client: it keeps a session for it, or asks by result.
    pub reaches_client: bool,
}

impl LegRule {
    /// Whether clients of that revision are better served by a handshake leg than by a leg of `server` revision.
    pub fn wants_handshake_leg(self, client: Revision, server: Revision) -> bool {
        self == Self::Client && server.is_bridged_to(client) && client.opens_with_handshake()
    }

    /// Whether the handshake is tried before `server/discover`.
    pub fn opens_with_handshake(self) -> bool {
        self == Self::Handshake
    }
}

impl LegFacts {
    /// Why another leg serves the clients of this one better, as a clause; `None` where they keep their own. A leg that
    /// cannot reach its clients is replaced by one that can and offers at least the same.
    pub fn replaced_by(&self, other: &Self) -> Option<&'static str> {
        let offers = |facts: &Self, family: Capability| facts.capabilities.get(family.as_str()).is_some();
        let is_covered = Capability::ALL.into_iter().all(|family| !offers(self, family) || offers(other, family));
        let is_better = !self.reaches_client && other.reaches_client && is_covered;
        is_better.then_some("it opens no session, so it can neither ask nor notify, and the other leg offers the same")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts(revision: Revision, families: &[&str], reaches_client: bool) -> LegFacts {
        let capabilities = families.iter().map(|family| ((*family).to_owned(), json!({})));
        let capabilities = Raw::of(&capabilities.collect::<serde_json::Map<_, _>>());
        LegFacts { revision, capabilities, reaches_client }
    }

    #[test]
    fn only_a_leg_that_cannot_reach_its_clients_is_replaced() {
        let rich = facts(Revision::NEWEST_HANDSHAKE, &["tools", "logging", "completions"], true);
        let lean = facts(Revision::NEWEST, &["tools"], true);
        assert_eq!(rich.replaced_by(&lean), None, "a richer leg stays");
        assert_eq!(lean.replaced_by(&rich), None, "a leaner leg stays: its clients see what they see directly");
        let stateless = facts(Revision::NEWEST_HANDSHAKE, &["tools"], false);
        assert!(stateless.replaced_by(&lean).is_some());
        let stateless = facts(Revision::NEWEST_HANDSHAKE, &["tools", "completions"], false);
        assert_eq!(stateless.replaced_by(&lean), None, "nothing may be lost by the exchange");
    }

    #[test]
    fn handshake_leg_is_wanted_by_handshake_clients_alone() {
        let (old, new) = (Revision::NEWEST_HANDSHAKE, Revision::NEWEST);
        assert!(LegRule::Client.wants_handshake_leg(old, new));
        assert!(!LegRule::Client.wants_handshake_leg(old, old));
        assert!(!LegRule::Client.wants_handshake_leg(new, new));
        assert!(!LegRule::Client.wants_handshake_leg(new, old));
        assert!(!LegRule::PerRequest.wants_handshake_leg(old, new));
        assert!(!LegRule::Handshake.wants_handshake_leg(old, new));
    }
}
