//! What to measure and how often: the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::Failure;
use crate::calls::contenders;
use crate::client::Era;
use crate::fronts::Frontend;
use crate::process::SETTLE_TIME;
use crate::upstream::ResponseFormat;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Calls through every contender, by scenario.
    Calls,
    /// Calls between clients and upstreams of the same and of different eras.
    Pairs,
    /// Calls with and without credentials, rules and limits.
    Guards,
    /// Calls that nobody sees, and such that are watched, traced or logged.
    Telemetry,
    /// Resident memory.
    Memory,
    /// Merged lists of tools.
    Lists,
    /// Time from process start to the first response, and binary sizes.
    Starts,
}

impl Part {
    pub(crate) const ALL: [Self; 7] =
        [Self::Calls, Self::Pairs, Self::Guards, Self::Telemetry, Self::Memory, Self::Lists, Self::Starts];

    /// Whether other gateways are measured, too.
    pub(crate) fn compares(self) -> bool {
        matches!(self, Self::Calls | Self::Memory | Self::Starts)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Pairs => "pairs",
            Self::Guards => "guards",
            Self::Telemetry => "telemetry",
            Self::Memory => "memory",
            Self::Lists => "lists",
            Self::Starts => "starts",
        }
    }
}

/// One scenario: era, response format, size and number of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) era: Era,
    pub(crate) form: ResponseFormat,
    pub(crate) bytes: usize,
    pub(crate) sessions: usize,
}

pub(crate) const SIZES: [usize; 3] = [100, 10_000, 1_000_000];
pub(crate) const SESSIONS: [usize; 3] = [1, 16, 64];
pub(crate) const ERAS: [Era; 2] = [Era::Handshake, Era::PerRequest];
const FORMS: [ResponseFormat; 2] = [ResponseFormat::Json, ResponseFormat::Events];

impl Scenario {
    /// All scenarios.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for era in ERAS {
            for form in FORMS {
                for bytes in SIZES {
                    all.extend(SESSIONS.map(|sessions| Self { era, form, bytes, sessions }));
                }
            }
        }
        all
    }

    /// The four parts of its name on the command line.
    fn words(&self) -> [String; 4] {
        [self.era.revision().into(), self.form.name().into(), size(self.bytes), format!("x{}", self.sessions)]
    }
}

/// A size with its unit.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        1_000_000.. => format!("{}MB", bytes / 1_000_000),
        1_000.. => format!("{}KB", bytes / 1_000),
        _ => format!("{bytes}B"),
    }
}

/// What to measure and how often.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) parts: Vec<Part>,
    pub(crate) scenarios: Vec<Scenario>,
    /// Name filters of the contenders; empty for all.
    pub(crate) only: Vec<String>,
    /// Number of rounds; each contender is measured once per round.
    pub(crate) rounds: usize,
    /// Duration of one measurement.
    pub(crate) turn: Duration,
    /// Time limit per contender and scenario; slower contenders get fewer rounds.
    pub(crate) budget: Duration,
    /// Repetitions of memory and start measurements, each in new processes.
    pub(crate) repeats: usize,
    /// The smaller and the larger number of idle sessions.
    pub(crate) crowds: [usize; 2],
    pub(crate) streams: usize,
    pub(crate) pairs: Pairs,
    /// Wrapper command for Rialto, such as a profiler.
    pub(crate) under: Vec<String>,
    /// Binary of another build of Rialto to compare with.
    pub(crate) beside: Option<PathBuf>,
    /// Number of calls for the memory curve; if set, nothing else is measured.
    pub(crate) curve: Option<usize>,
    /// Output directory.
    pub(crate) into: PathBuf,
}

/// Settings of the era-combination part.
#[derive(Debug, Clone)]
pub(crate) struct Pairs {
    pub(crate) rounds: usize,
    /// Calls per round, over all sessions.
    pub(crate) calls: usize,
    /// Concurrent clients, each with its own connection and session.
    pub(crate) sessions: usize,
    /// Size of the text in a response, in bytes.
    pub(crate) bytes: usize,
}

/// Default number of calls for the memory curve.
const CURVE: usize = 10_000_000;

impl Plan {
    /// Parses the command line.
    pub(crate) fn read(arguments: &[String]) -> Result<Self, Failure> {
        let mut plan = Self {
            parts: Part::ALL.to_vec(),
            scenarios: Scenario::all(),
            only: Vec::new(),
            rounds: 7,
            turn: Duration::from_millis(250),
            budget: Duration::from_millis(2_500),
            repeats: 3,
            crowds: [1_000, 10_000],
            streams: 1_000,
            pairs: Pairs { rounds: 21, calls: 16_000, sessions: 64, bytes: 100 },
            under: Vec::new(),
            beside: None,
            curve: None,
            into: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs"),
        };
        let (mut is_whole, mut into) = (true, None);
        let mut arguments = arguments.iter().peekable();
        while let Some(argument) = arguments.next() {
            is_whole &= ["--bench", "--curve", "--parts", "--into"].contains(&argument.as_str());
            if argument == "--curve" {
                let count = arguments.next_if(|next| !next.starts_with("--")).map(|count| count.parse());
                plan.curve = Some(count.transpose()?.unwrap_or(CURVE));
                is_whole &= plan.curve >= Some(CURVE);
                continue;
            }
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--bench" => {}
                "--quick" => plan.apply_quick_mode(),
                "--parts" => plan.parts = parts(value()?)?,
                "--cells" => plan.choose(value()?)?,
                "--only" => plan.only = value()?.split(',').map(|name| name.trim().to_lowercase()).collect(),
                "--rounds" => {
                    (plan.rounds, plan.pairs.rounds) = {
                        let n = value()?.parse()?;
                        (n, n)
                    }
                }
                "--turn" => plan.turn = Duration::from_millis(value()?.parse()?),
                "--calls" => plan.pairs.calls = value()?.parse()?,
                "--sessions" => plan.pairs.sessions = value()?.parse()?,
                "--bytes" => plan.pairs.bytes = value()?.parse()?,
                "--beside" => plan.beside = Some(value()?.into()),
                "--under" => plan.under = value()?.split_whitespace().map(str::to_owned).collect(),
                "--into" => into = Some(PathBuf::from(value()?)),
                other => return Err(format!("unknown option {other}").into()),
            }
        }
        // Quick or partial figures must not overwrite the complete ones.
        let rough = || PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("figures");
        plan.into = into.unwrap_or_else(|| if is_whole { plan.into } else { rough() });
        Ok(plan)
    }

    /// Quick mode: fewer scenarios and shorter measurements.
    fn apply_quick_mode(&mut self) {
        self.rounds = 3;
        self.turn = Duration::from_millis(100);
        self.budget = Duration::from_millis(500);
        self.repeats = 1;
        self.crowds = [500, 2_000];
        self.streams = 400;
        (self.pairs.rounds, self.pairs.calls) = (7, 960);
        self.scenarios.retain(|scenario| {
            scenario.sessions > 1 && (scenario.form == ResponseFormat::Json || scenario.sessions == 16)
        });
    }

    /// Keeps the scenarios that match one of the patterns, such as `100B/x16,1MB`.
    fn choose(&mut self, patterns: &str) -> Result<(), Failure> {
        let fits = |scenario: &Scenario, pattern: &str| {
            pattern.split('/').all(|word| scenario.words().iter().any(|w| w == word))
        };
        self.scenarios = Scenario::all();
        self.scenarios.retain(|scenario| patterns.split(',').any(|pattern| fits(scenario, pattern.trim())));
        if self.scenarios.is_empty() {
            return Err(format!("no cell is called {patterns}; one is {}", Scenario::all()[0].words().join("/")).into());
        }
        Ok(())
    }

    pub(crate) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Description of the measurement.
    pub(crate) fn how(&self) -> String {
        let (rounds, turn) = (self.rounds, self.turn.as_millis());
        format!(
            "{rounds} rounds of turns of {turn} ms, in which all sessions call at once, each its next call when the \
             last is answered. A contender that needs longer than {:.1} s for a scenario has fewer turns.",
            self.budget.as_secs_f64()
        )
    }

    /// Estimated duration, without installations.
    pub(crate) fn estimate(&self) -> Duration {
        let served = |scenario: &Scenario| {
            let all = contenders(self).into_iter().filter(|contender| contender.upstream_era(scenario.era).is_some());
            all.filter(|contender| contender.supports(scenario)).count() as u32
        };
        let turns = (self.turn + SETTLE_TIME) * self.rounds as u32 + self.turn / 2;
        let calls: Duration = self.scenarios.iter().map(|scenario| turns.min(self.budget * 2) * served(scenario)).sum();
        let count = contenders(self).len() as u32;
        let repeats = self.repeats as u32;
        let part = |part: Part, time: Duration| if self.has(part) { time } else { Duration::ZERO };
        part(Part::Calls, calls * 5 / 4 + Duration::from_secs(10) * count)
            + part(Part::Pairs, Duration::from_millis(3) * (self.pairs.rounds * self.pairs.calls / 100) as u32)
            + part(Part::Guards, Duration::from_millis(3) * (self.pairs.rounds * self.pairs.calls / 100) as u32)
            + part(Part::Telemetry, Duration::from_millis(3) * (self.pairs.rounds * self.pairs.calls / 100) as u32)
            + part(Part::Memory, Duration::from_secs(15) * (count + repeats))
            + part(Part::Lists, turns * 8)
            + part(Part::Starts, Duration::from_millis(1_500) * count * (repeats + 2))
    }

    /// Whether a contender is selected.
    pub(crate) fn wants(&self, front: Frontend) -> bool {
        self.names(front.name())
    }

    /// Whether a name matches the filters.
    pub(crate) fn names(&self, whole: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| whole.to_lowercase().contains(name))
    }
}

fn parts(names: &str) -> Result<Vec<Part>, Failure> {
    let find = |name: &str| Part::ALL.into_iter().find(|part| part.name() == name.trim());
    names.split(',').map(|name| find(name).ok_or_else(|| format!("there is no part {name}").into())).collect()
}
