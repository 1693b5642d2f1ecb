//! Memory: what a session takes in a node and in the store, and what an event takes there.

use std::time::Duration;

use crate::client::{Caller, Connection, Era, Subject};
use crate::nodes::{LEASE, Node, open_sessions};
use crate::store::Store;
use crate::{Failure, Plan};

/// Bytes, measured several times.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Of a node without a store, for each idle session.
    pub(crate) alone: Vec<f64>,
    /// Of a node with one.
    pub(crate) with_store: Vec<f64>,
    /// Of the key of a session, as Redis counts it.
    pub(crate) session: Vec<f64>,
    /// Of Redis as a whole, for each idle session.
    pub(crate) used: Vec<f64>,
    /// Of the stream of events, for each event.
    pub(crate) event: Vec<f64>,
}

/// What is opened before the first look, so that what is paid once is paid.
const WARM_UP: usize = 500;
/// How long a server rests before it is looked at.
const REST: Duration = Duration::from_millis(300);
/// A call with 118 signs of progress; the token stands beside the arguments.
const SURVEY: Subject = Subject {
    tool: "surveyElements",
    arguments: r#"{"delayMs":0},"_meta":{"progressToken":"p"}"#,
    answer: "118 elements".as_bytes(),
    length: None,
};

/// Measures in new processes each time.
pub(crate) async fn measure(plan: &Plan) -> Result<Memory, Failure> {
    let mut memory = Memory::default();
    for _ in 0..plan.repeats {
        let alone = Node::alone("alone", "", None).await?;
        memory.alone.push(sessions(&alone, plan.crowd).await?);
        drop(alone);
        let store = Store::start().await?;
        let node = Node::of("kept", &store, LEASE, "").await?;
        open_sessions(&node, WARM_UP).await?;
        let before = store.used().await?;
        memory.with_store.push(sessions(&node, plan.crowd).await?);
        let used = (store.used().await? - before) as f64 / (plan.crowd + WARM_UP) as f64;
        memory.used.push(used);
        memory.session.push(mean(&store.sizes("rialto:s:").await?));
        memory.event.push(event(&node, &store).await?);
    }
    Ok(memory)
}

/// The growth of a node by idle sessions, for each.
async fn sessions(node: &Node, count: usize) -> Result<f64, Failure> {
    open_sessions(node, WARM_UP).await?;
    let before = rested(node).await?;
    open_sessions(node, count).await?;
    Ok((rested(node).await? - before) / count as f64)
}

async fn rested(node: &Node) -> Result<f64, Failure> {
    tokio::time::sleep(REST).await;
    Ok(node.server.resident()? as f64)
}

/// The bytes of one event in the store.
async fn event(node: &Node, store: &Store) -> Result<f64, Failure> {
    let mut connection = Connection::open(node.address()).await?;
    let session = connection.handshake().await?;
    let mut caller = Caller::over(vec![connection], session.as_deref(), Era::Handshake, SURVEY)?;
    let events = caller.messages().await?;
    let kept: u64 = store.sizes("rialto:e:").await?.iter().sum();
    Ok(kept as f64 / events as f64)
}

fn mean(sizes: &[u64]) -> f64 {
    sizes.iter().sum::<u64>() as f64 / sizes.len() as f64
}
