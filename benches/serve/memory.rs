//! Memory per idle session and per open stream.

use crate::calls;
use crate::crowd;
use crate::peers;
use crate::process::Server;
use crate::{Failure, Plan};

/// Measured bytes, one figure per repetition.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) name: &'static str,
    pub(crate) per_session: Vec<f64>,
    pub(crate) per_stream: Vec<f64>,
    /// Resident bytes of the process with all sessions open.
    pub(crate) resident: Vec<f64>,
}

/// Measures both servers, in new processes for every repetition.
pub(crate) async fn measure(plan: &Plan) -> Result<Vec<Memory>, Failure> {
    let mut all = Vec::new();
    for (name, peer) in [("rialto", None), ("rmcp, defaults", Some(peers::DEFAULTS))] {
        let mut memory = Memory { name, per_session: Vec::new(), per_stream: Vec::new(), resident: Vec::new() };
        for _ in 0..plan.memory_rounds {
            let server = start(peer).await?;
            memory.per_session.push(crowd::per_session(&server, plan.sessions).await?);
            memory.resident.push(server.resident()? as f64);
            drop(server);
            let server = start(peer).await?;
            memory.per_stream.push(crowd::per_stream(&server, plan.streams).await?.0);
        }
        all.push(memory);
    }
    Ok(all)
}

async fn start(peer: Option<&str>) -> Result<Server, Failure> {
    match peer {
        None => calls::rialto().await,
        Some(kind) => peers::start(kind).await,
    }
}
