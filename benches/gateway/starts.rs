//! Time from process start to the first response, and binary sizes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::calls::{Contender, Missing, contenders};
use crate::client::{Caller, Connection, Era};
use crate::folder::Folder;
use crate::fronts::Frontend;
use crate::plan::{Plan, SIZES};
use crate::turn::contender_at;
use crate::upstream::{ResponseFormat, ToolSet, tool_call};

/// Time of a contender to its first response, in milliseconds.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) contender: Contender,
    pub(crate) took: Vec<f64>,
}

/// Timeout of one start.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Measures all contenders in turn. HTTP upstreams are already running; a stdio upstream is started as well.
pub(crate) async fn measure(plan: &Plan, missing: &[Missing]) -> Result<Vec<Start>, Failure> {
    let all = contenders(plan).into_iter();
    let there = all.filter(|contender| !Missing::has(missing, *contender, Era::Handshake));
    let mut starts: Vec<Start> = there.map(|contender| Start { contender, took: Vec::new() }).collect();
    for round in 0..plan.repeats + 2 {
        for n in 0..starts.len() {
            let at = contender_at(n, round, starts.len());
            let Start { contender, took } = &mut starts[at];
            let first = tokio::time::timeout(TIMEOUT, once(*contender, plan)).await;
            match first.map_err(Failure::from).and_then(|outcome| outcome) {
                Ok(time) => took.push(time.as_secs_f64() * 1e3),
                Err(error) => eprintln!("{}: {error}", contender.title()),
            }
        }
    }
    Ok(starts)
}

async fn once(contender: Contender, plan: &Plan) -> Result<Duration, Failure> {
    let folder = Folder::new("start")?;
    let behind = contender.upstream_era(Era::Handshake).ok_or("it has no sessions")?;
    let deployment = contender.front.start(contender.transport, behind, &ToolSet::of(&SIZES), &folder, plan).await?;
    let server = &deployment.measured;
    let tool = format!("{}{}", contender.front.prefix(), ResponseFormat::Json.tool(SIZES[0]));
    let connection = Connection::open_at(server.address, server.path).await?;
    let mut caller = Caller::enter(connection, Era::Handshake, tool_call(&tool, SIZES[0])).await?;
    caller.size().await?;
    let end = Instant::now();
    Ok(end - server.begin)
}

/// Sizes of the single-file programs, with and without debug symbols.
pub(crate) fn sizes() -> Vec<(String, u64, Option<u64>)> {
    let rialto = (Frontend::Rialto.title(), PathBuf::from(env!("CARGO_BIN_EXE_rialto")));
    let places = std::env::var_os("PATH").unwrap_or_default();
    let nginx = std::env::split_paths(&places).map(|place| place.join("nginx")).find(|file| file.is_file());
    let programs = [Some(rialto), nginx.map(|file| (Frontend::Nginx.title(), file))];
    let sized = programs.into_iter().flatten().filter_map(|(name, file)| {
        let size = std::fs::metadata(&file).ok()?.len();
        Some((name, size, stripped(&file).ok()))
    });
    sized.collect()
}

fn stripped(file: &Path) -> Result<u64, Failure> {
    let folder = Folder::new("size")?;
    let result = folder.place().join("stripped");
    let status = std::process::Command::new("strip").arg("-o").arg(&result).arg(file).status()?;
    if !status.success() {
        return Err("it cannot be stripped".into());
    }
    Ok(std::fs::metadata(result)?.len())
}
