//! SSE streams: a call with progress notifications, at the owner and relayed.

use tokio::task::JoinSet;

use crate::calls::{Cost, Deployment};
use crate::client::{Caller, Connection, Era, ToolCall};
use crate::nodes::{Backend, Node};
use crate::{Failure, Plan};

/// Cost per event.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) relayed: bool,
    pub(crate) sessions: usize,
    /// Milliseconds between two events.
    pub(crate) pause: usize,
    pub(crate) costs: Vec<Cost>,
}

/// The progress token is appended to the arguments.
const SLOWLY: ToolCall = ToolCall {
    tool: "surveyElements",
    arguments: r#"{"delayMs":10},"_meta":{"progressToken":"p"}"#,
    answer: "118 elements".as_bytes(),
    length: None,
};
const AT_ONCE: ToolCall = ToolCall { arguments: r#"{"delayMs":0},"_meta":{"progressToken":"p"}"#, ..SLOWLY };

/// Measures local and relayed streams in turn, with one session and with many.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<Stream>, Failure> {
    let deployment = Deployment::together(Backend::Elements, Era::Handshake).await?;
    let mut streams = Vec::new();
    for (sessions, pause) in [(1, 10), (plan.sessions, 10), (1, 0)] {
        streams.extend([false, true].map(|relayed| Stream { relayed, sessions, pause, costs: Vec::new() }));
    }
    for _ in 0..plan.rounds.min(5) {
        for stream in &mut streams {
            let cost = stream.turn(&deployment).await?;
            stream.costs.push(cost);
        }
    }
    Ok(streams)
}

impl Stream {
    async fn turn(&self, deployment: &Deployment) -> Result<Cost, Failure> {
        let tool_call = if self.pause == 0 { AT_ONCE } else { SLOWLY };
        let mut callers = Vec::new();
        for _ in 0..self.sessions {
            callers.push(caller(&deployment.nodes, self.relayed, tool_call).await?);
        }
        let before = deployment.read().await?;
        let mut tasks = JoinSet::new();
        for mut caller in callers {
            tasks.spawn(async move { caller.messages().await });
        }
        let mut messages = 0;
        while let Some(ended) = tasks.join_next().await {
            messages += ended??;
        }
        deployment.since(before, messages).await
    }
}

async fn caller(nodes: &[Node], relayed: bool, tool_call: ToolCall<'_>) -> Result<Caller, Failure> {
    let session = Connection::open(nodes[0].address()).await?.handshake().await?;
    let mut connection = Connection::open(nodes[usize::from(relayed)].address()).await?;
    // Warm-up, so that the owner lookup is not part of the first event.
    connection.ping(session.as_deref()).await?;
    Caller::over(vec![connection], session.as_deref(), Era::Handshake, tool_call)
}
