//! Memory of a session in the node and in the store, and of an event in the store.

use std::time::Duration;

use crate::client::{Caller, Connection, Era, ToolCall};
use crate::nodes::{LEASE, Node, open_sessions};
use crate::store::Store;
use crate::{Failure, Plan};

/// Measured bytes, one figure per repetition.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Per idle session in a node without a store.
    pub(crate) alone: Vec<f64>,
    /// Per idle session in a node with a store.
    pub(crate) with_store: Vec<f64>,
    /// Of the session key, as reported by `MEMORY USAGE`.
    pub(crate) session: Vec<f64>,
    /// Per idle session in Redis as a whole.
    pub(crate) used: Vec<f64>,
    /// Per event in the event stream.
    pub(crate) event: Vec<f64>,
}

/// Sessions opened before the first measurement, as a warm-up.
const WARM_UP: usize = 500;
/// Pause before memory is read.
const REST_TIME: Duration = Duration::from_millis(300);
/// A call with 118 progress notifications; the progress token is appended to the arguments.
const SURVEY: ToolCall = ToolCall {
    tool: "surveyElements",
    arguments: r#"{"delayMs":0},"_meta":{"progressToken":"p"}"#,
    answer: "118 elements".as_bytes(),
    length: None,
};

/// Measures in new processes for every repetition.
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

/// Growth of a node per idle session.
async fn sessions(node: &Node, count: usize) -> Result<f64, Failure> {
    open_sessions(node, WARM_UP).await?;
    let before = resident_after_rest(node).await?;
    open_sessions(node, count).await?;
    Ok((resident_after_rest(node).await? - before) / count as f64)
}

async fn resident_after_rest(node: &Node) -> Result<f64, Failure> {
    tokio::time::sleep(REST_TIME).await;
    Ok(node.server.resident()? as f64)
}

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
