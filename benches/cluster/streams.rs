//! Streams of events: a call that tells of its progress, at home and carried.

use tokio::task::JoinSet;

use crate::calls::{Cost, Standing};
use crate::client::{Caller, Connection, Era, Subject};
use crate::nodes::{Behind, Node};
use crate::{Failure, Plan};

/// What was done for each event.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) carried: bool,
    pub(crate) sessions: usize,
    /// The milliseconds between two events.
    pub(crate) pause: usize,
    pub(crate) costs: Vec<Cost>,
}

/// The token stands beside the arguments.
const SLOWLY: Subject = Subject {
    tool: "surveyElements",
    arguments: r#"{"delayMs":10},"_meta":{"progressToken":"p"}"#,
    answer: "118 elements".as_bytes(),
    length: None,
};
const AT_ONCE: Subject = Subject { arguments: r#"{"delayMs":0},"_meta":{"progressToken":"p"}"#, ..SLOWLY };

/// Measures both ways in turn, with one session and with many.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<Stream>, Failure> {
    let standing = Standing::together(Behind::Elements, Era::Handshake).await?;
    let mut streams = Vec::new();
    for (sessions, pause) in [(1, 10), (plan.sessions, 10), (1, 0)] {
        streams.extend([false, true].map(|carried| Stream { carried, sessions, pause, costs: Vec::new() }));
    }
    for _ in 0..plan.rounds.min(5) {
        for stream in &mut streams {
            let cost = stream.turn(&standing).await?;
            stream.costs.push(cost);
        }
    }
    Ok(streams)
}

impl Stream {
    async fn turn(&self, standing: &Standing) -> Result<Cost, Failure> {
        let subject = if self.pause == 0 { AT_ONCE } else { SLOWLY };
        let mut callers = Vec::new();
        for _ in 0..self.sessions {
            callers.push(caller(&standing.nodes, self.carried, subject).await?);
        }
        let before = standing.read().await?;
        let mut tasks = JoinSet::new();
        for mut caller in callers {
            tasks.spawn(async move { caller.messages().await });
        }
        let mut messages = 0;
        while let Some(ended) = tasks.join_next().await {
            messages += ended??;
        }
        standing.since(before, messages).await
    }
}

async fn caller(nodes: &[Node], carried: bool, subject: Subject<'_>) -> Result<Caller, Failure> {
    let session = Connection::open(nodes[0].address()).await?.handshake().await?;
    let mut connection = Connection::open(nodes[usize::from(carried)].address()).await?;
    // Where the session lives is looked up once, and not with the first event.
    connection.ping(session.as_deref()).await?;
    Caller::over(vec![connection], session.as_deref(), Era::Handshake, subject)
}
