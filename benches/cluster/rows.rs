//! What is compared: which nodes are there, and at which of them a session's calls arrive.

use crate::client::{Caller, Connection, Era};
use crate::nodes::{Behind, Node};
use crate::{Failure, Plan};

/// Where the calls of a session arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// At a node that has no store.
    Alone,
    /// The same, in the other build.
    Beside,
    /// At as many nodes in turn as there are, which share nothing: what several processes cost by themselves.
    Apart,
    /// At the session's home.
    Home,
    /// At every other of so many nodes in turn, and never at home.
    Carried(usize),
    /// At all of so many nodes in turn.
    Around(usize),
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) behind: Behind,
    pub(crate) era: Era,
    pub(crate) way: Way,
}

/// The most nodes of a row.
pub(crate) const NODES: usize = 3;

/// The rows of one subject.
pub(crate) fn rows(behind: Behind, plan: &Plan) -> Vec<Row> {
    let with_sessions =
        [Way::Alone, Way::Beside, Way::Home, Way::Carried(2), Way::Carried(3), Way::Around(2), Way::Around(3)];
    let without = [Way::Alone, Way::Beside, Way::Apart, Way::Around(3)];
    let with_sessions = with_sessions.map(|way| Row { behind, era: Era::Handshake, way });
    let without = without.map(|way| Row { behind, era: Era::PerRequest, way });
    let all = with_sessions.into_iter().chain(without);
    all.filter(|row| row.way != Way::Beside || plan.beside.is_some()).collect()
}

impl Way {
    /// How many nodes without a store have to be there for it, if any.
    pub(crate) fn without_store(self) -> Option<usize> {
        match self {
            Self::Alone | Self::Beside => Some(1),
            Self::Apart => Some(NODES),
            Self::Home | Self::Carried(_) | Self::Around(_) => None,
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Alone => "alone, memory".to_owned(),
            Self::Beside => "alone, memory, other build".to_owned(),
            Self::Apart => format!("{NODES} nodes, memory, in turn"),
            Self::Home => "Redis, at home".to_owned(),
            Self::Carried(nodes) => format!("Redis, {nodes} nodes, carried"),
            Self::Around(nodes) => format!("Redis, {nodes} nodes, in turn"),
        }
    }

    /// A client of a session that lives at the node `home`, counted on and on.
    pub(crate) async fn caller(self, nodes: &[Node], home: usize, era: Era, behind: Behind) -> Result<Caller, Failure> {
        let among = match self {
            Self::Alone | Self::Beside | Self::Home => 1,
            Self::Apart => NODES,
            Self::Carried(nodes) | Self::Around(nodes) => nodes,
        };
        let home = home % among;
        let session = match era {
            Era::Handshake => Connection::open(nodes[home].address()).await?.handshake().await?,
            Era::PerRequest => None,
        };
        // Each begins at another node, so that not all are at the same one at once.
        let mut connections = Vec::new();
        for at in (0..among).map(|n| (home + n) % among) {
            if at != home || !matches!(self, Self::Carried(_)) {
                connections.push(Connection::open(nodes[at].address()).await?);
            }
        }
        Caller::over(connections, session.as_deref(), era, behind.subject())
    }
}
