//! Memory over millions of calls, to detect leaks.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::client::{Caller, Era};
use crate::folder::Folder;
use crate::fronts::Frontend;
use crate::plan::Plan;
use crate::plot::Picture;
use crate::spread::Spread;
use crate::turn::Turn;
use crate::upstream::{SUBJECT, ToolSet, UpstreamTransport};

/// Concurrent clients.
pub(crate) const SESSIONS: usize = 16;
/// Number of memory samples.
const MEMORY_SAMPLES: usize = 200;

/// Resident bytes by number of calls.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) calls: usize,
    pub(crate) took: Duration,
    pub(crate) points: Vec<(usize, f64)>,
}

/// Calls at full speed and samples the memory.
pub(crate) async fn measure(plan: &Plan, calls: usize) -> Result<Curve, Failure> {
    let folder = Folder::new("curve")?;
    let deployment =
        Frontend::Rialto.start(UpstreamTransport::Http, Era::Handshake, &ToolSet::of(&[100]), &folder, plan).await?;
    let server = &deployment.measured;
    let mut callers = Vec::new();
    for _ in 0..SESSIONS {
        callers.push(Caller::open(server.address, Era::Handshake, SUBJECT).await?);
    }
    let (begin, step) = (Instant::now(), calls.div_ceil(MEMORY_SAMPLES));
    let mut points = vec![(0, server.resident()? as f64)];
    for look in 1..=MEMORY_SAMPLES {
        Turn::take(server, &mut callers, step).await?;
        points.push((look * step, server.resident()? as f64));
        if look % (MEMORY_SAMPLES / 10) == 0 {
            eprintln!("{} calls, {:.1} MiB", look * step, server.resident()? as f64 / 1024.0 / 1024.0);
        }
    }
    Ok(Curve { calls, took: begin.elapsed(), points })
}

impl Curve {
    /// Relative growth of memory from the first to the last tenth of the samples, without the very first sample.
    pub(crate) fn growth(&self) -> Option<f64> {
        let tenth = MEMORY_SAMPLES / 10;
        let middle = |points: &[(usize, f64)]| Spread::of(points.iter().map(|(_, bytes)| *bytes)).median;
        let (first, last) = (self.points.get(1..=tenth)?, self.points.get(self.points.len().checked_sub(tenth)?..)?);
        Some(middle(last) / middle(first) - 1.0)
    }

    /// The figures as text.
    pub(crate) fn text(&self) -> String {
        let mebibytes = |at: usize| self.points.get(at).map_or(f64::NAN, |(_, bytes)| bytes / 1024.0 / 1024.0);
        let most = self.points.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max) / 1024.0 / 1024.0;
        format!(
            "{} calls over {SESSIONS} sessions in {:.0} s: {:.1} MiB before, {:.1} MiB after the first tenth, {:.1} MiB \
             at the end, {most:.1} MiB at most.",
            self.calls,
            self.took.as_secs_f64(),
            mebibytes(0),
            mebibytes(MEMORY_SAMPLES / 10),
            mebibytes(self.points.len() - 1),
        )
    }

    /// The curve as SVG.
    pub(crate) fn plot(&self) -> String {
        let (width, height, left, top) = (1080.0, 360.0, 80.0, 60.0);
        let (right, bottom) = (width - 40.0, height - 70.0);
        let most = self.points.iter().map(|(_, bytes)| bytes / 1024.0 / 1024.0).fold(1.0, f64::max);
        let step =
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].into_iter().find(|step| most / step <= 6.0).unwrap_or(200.0);
        let to = (most / step + 0.2).ceil() * step;
        let x = |calls: f64| left + (right - left) * calls / self.calls.max(1) as f64;
        let y = |mebibytes: f64| bottom - (bottom - top) * mebibytes / to;
        let title = format!("Rialto's resident memory over {} calls, {SESSIONS} sessions, at full speed", self.calls);
        let mut picture = Picture::new(width, height, &title);
        for n in 0..=(to / step) as usize {
            let mebibytes = n as f64 * step;
            picture.line((left, y(mebibytes)), (right, y(mebibytes)), "grid", 1.0);
            picture.text(left - 8.0, y(mebibytes) + 4.0, "small", "end", &format!("{mebibytes:.0} MiB"));
        }
        for n in 0..=5 {
            let calls = self.calls as f64 * f64::from(n) / 5.0;
            let text = if self.calls >= 1_000_000 { format!("{:.1} M", calls / 1e6) } else { format!("{calls:.0}") };
            picture.text(x(calls), bottom + 18.0, "small", "middle", &text);
        }
        picture.text(right, bottom + 36.0, "small", "end", "calls");
        let points: Vec<(f64, f64)> =
            self.points.iter().map(|(calls, bytes)| (x(*calls as f64), y(bytes / 1024.0 / 1024.0))).collect();
        picture.path(&points, "us");
        picture.finish()
    }
}
