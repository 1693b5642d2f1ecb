//! Rows of the comparison: which nodes run, and which of them receive the calls of a session.

use crate::client::{Caller, Connection, Era};
use crate::nodes::{Backend, Node};
use crate::{Failure, Plan};

/// Which nodes receive the calls of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routing {
    /// A single node without a store.
    Alone,
    /// The same with the other build.
    Beside,
    /// Round-robin over nodes that share nothing: the cost of several processes alone.
    Apart,
    /// The owner of the session.
    Home,
    /// Round-robin over this many nodes except the owner: every call is relayed.
    Carried(usize),
    /// Round-robin over this many nodes, including the owner.
    Around(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) backend: Backend,
    pub(crate) era: Era,
    pub(crate) routing: Routing,
}

/// Maximum number of nodes in a row.
pub(crate) const NODES: usize = 3;

/// The rows for one kind of upstream.
pub(crate) fn rows(backend: Backend, plan: &Plan) -> Vec<Row> {
    let with_sessions = [
        Routing::Alone,
        Routing::Beside,
        Routing::Home,
        Routing::Carried(2),
        Routing::Carried(3),
        Routing::Around(2),
        Routing::Around(3),
    ];
    let without = [Routing::Alone, Routing::Beside, Routing::Apart, Routing::Around(3)];
    let with_sessions = with_sessions.map(|routing| Row { backend, era: Era::Handshake, routing });
    let without = without.map(|routing| Row { backend, era: Era::PerRequest, routing });
    let all = with_sessions.into_iter().chain(without);
    all.filter(|row| row.routing != Routing::Beside || plan.beside.is_some()).collect()
}

impl Routing {
    /// Number of independent nodes the row needs; `None` if it uses the cluster.
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

    /// A client whose session is owned by the node `home` (modulo the number of nodes).
    pub(crate) async fn caller(
        self,
        nodes: &[Node],
        owner: usize,
        era: Era,
        backend: Backend,
    ) -> Result<Caller, Failure> {
        let among = match self {
            Self::Alone | Self::Beside | Self::Home => 1,
            Self::Apart => NODES,
            Self::Carried(nodes) | Self::Around(nodes) => nodes,
        };
        let owner = owner % among;
        let session = match era {
            Era::Handshake => Connection::open(nodes[owner].address()).await?.handshake().await?,
            Era::PerRequest => None,
        };
        // Clients start at different nodes, so that they are not all at the same node at once.
        let mut connections = Vec::new();
        for at in (0..among).map(|n| (owner + n) % among) {
            if at != owner || !matches!(self, Self::Carried(_)) {
                connections.push(Connection::open(nodes[at].address()).await?);
            }
        }
        Caller::over(connections, session.as_deref(), era, backend.tool_call())
    }
}
