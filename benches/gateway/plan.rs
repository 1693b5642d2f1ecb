//! What is measured, and how much of it: the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::Failure;
use crate::calls::contenders;
use crate::client::Era;
use crate::fronts::Front;
use crate::process::SETTLE;
use crate::upstream::Form;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Calls through every contender, cell by cell.
    Calls,
    /// Calls through Rialto between clients and upstreams of the same and of different eras.
    Pairs,
    /// Resident memory.
    Memory,
    /// Merged lists of tools.
    Lists,
    /// From the start of a process to its first answer, and the size of programs.
    Starts,
}

impl Part {
    pub(crate) const ALL: [Self; 5] = [Self::Calls, Self::Pairs, Self::Memory, Self::Lists, Self::Starts];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Pairs => "pairs",
            Self::Memory => "memory",
            Self::Lists => "lists",
            Self::Starts => "starts",
        }
    }
}

/// One way to call: what is measured for every contender that can do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) era: Era,
    pub(crate) form: Form,
    pub(crate) bytes: usize,
    pub(crate) sessions: usize,
}

pub(crate) const SIZES: [usize; 3] = [100, 10_000, 1_000_000];
pub(crate) const SESSIONS: [usize; 3] = [1, 16, 64];
pub(crate) const ERAS: [Era; 2] = [Era::Handshake, Era::PerRequest];
const FORMS: [Form; 2] = [Form::Json, Form::Events];

impl Cell {
    /// All that there are.
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

    /// What it is called on the command line, in four words.
    fn words(&self) -> [String; 4] {
        [self.era.revision().into(), self.form.name().into(), size(self.bytes), format!("x{}", self.sessions)]
    }
}

/// A size as people write it.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        1_000_000.. => format!("{}MB", bytes / 1_000_000),
        1_000.. => format!("{}KB", bytes / 1_000),
        _ => format!("{bytes}B"),
    }
}

/// How much is measured.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) parts: Vec<Part>,
    pub(crate) cells: Vec<Cell>,
    /// Parts of the names of those that are measured; all, if there are none.
    pub(crate) only: Vec<String>,
    /// How often each contender has its turn.
    pub(crate) rounds: usize,
    /// How long a turn is.
    pub(crate) turn: Duration,
    /// How long one contender may take for one cell; what is slower has fewer turns.
    pub(crate) budget: Duration,
    /// How often memory and starts are measured, each time in new processes.
    pub(crate) repeats: usize,
    /// The smaller and the larger number of idle sessions, and the number of open streams.
    pub(crate) crowds: [usize; 2],
    pub(crate) streams: usize,
    pub(crate) pairs: Pairs,
    /// What Rialto is started under.
    pub(crate) under: Vec<String>,
    /// Another build of Rialto.
    pub(crate) beside: Option<PathBuf>,
    /// Calls over which memory is watched, instead of all else.
    pub(crate) curve: Option<usize>,
    /// Where the figures are written.
    pub(crate) into: PathBuf,
}

/// How much of the pairs is measured.
#[derive(Debug, Clone)]
pub(crate) struct Pairs {
    pub(crate) rounds: usize,
    /// Calls in a turn, over all sessions.
    pub(crate) calls: usize,
    /// Clients at once, each with a connection and a session of its own.
    pub(crate) sessions: usize,
    /// The size of the text in an answer.
    pub(crate) bytes: usize,
}

/// As many calls as show whether memory grows.
const CURVE: usize = 10_000_000;

impl Plan {
    /// Reads the command line.
    pub(crate) fn read(arguments: &[String]) -> Result<Self, Failure> {
        let mut plan = Self {
            parts: Part::ALL.to_vec(),
            cells: Cell::all(),
            only: Vec::new(),
            rounds: 7,
            turn: Duration::from_millis(250),
            budget: Duration::from_millis(2_500),
            repeats: 3,
            crowds: [1_000, 10_000],
            streams: 1_000,
            pairs: Pairs { rounds: 21, calls: 3_200, sessions: 64, bytes: 100 },
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
                "--quick" => plan.be_quick(),
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
                other => return Err(format!("there is no option {other}").into()),
            }
        }
        // Rough or partial figures do not replace the whole ones.
        let rough = || PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("figures");
        plan.into = into.unwrap_or_else(|| if is_whole { plan.into } else { rough() });
        Ok(plan)
    }

    /// Rougher, in a few minutes: fewer cells and shorter turns.
    fn be_quick(&mut self) {
        self.rounds = 3;
        self.turn = Duration::from_millis(100);
        self.budget = Duration::from_millis(500);
        self.repeats = 1;
        self.crowds = [500, 2_000];
        self.streams = 400;
        (self.pairs.rounds, self.pairs.calls) = (7, 960);
        self.cells.retain(|cell| cell.sessions > 1 && (cell.form == Form::Json || cell.sessions == 16));
    }

    /// Keeps the cells that have all words of one of the patterns: `100B/x16,1MB`.
    fn choose(&mut self, patterns: &str) -> Result<(), Failure> {
        let fits = |cell: &Cell, pattern: &str| pattern.split('/').all(|word| cell.words().iter().any(|w| w == word));
        self.cells = Cell::all();
        self.cells.retain(|cell| patterns.split(',').any(|pattern| fits(cell, pattern.trim())));
        if self.cells.is_empty() {
            return Err(format!("no cell is called {patterns}; one is {}", Cell::all()[0].words().join("/")).into());
        }
        Ok(())
    }

    pub(crate) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// How the calls are made, in words.
    pub(crate) fn how(&self) -> String {
        let (rounds, turn) = (self.rounds, self.turn.as_millis());
        format!(
            "{rounds} rounds of turns of {turn} ms, in which all sessions call at once, each its next call when the \
             last is answered. A contender that needs longer than {:.1} s for a cell has fewer turns.",
            self.budget.as_secs_f64()
        )
    }

    /// About how long it will take, installations apart.
    pub(crate) fn estimate(&self) -> Duration {
        let served = |cell: &Cell| {
            let all = contenders(self).into_iter().filter(|contender| contender.behind(cell.era).is_some());
            all.filter(|contender| contender.does(cell)).count() as u32
        };
        let turns = (self.turn + SETTLE) * self.rounds as u32 + self.turn / 2;
        let calls: Duration = self.cells.iter().map(|cell| turns.min(self.budget * 2) * served(cell)).sum();
        let count = contenders(self).len() as u32;
        let repeats = self.repeats as u32;
        let part = |part: Part, time: Duration| if self.has(part) { time } else { Duration::ZERO };
        part(Part::Calls, calls * 5 / 4 + Duration::from_secs(10) * count)
            + part(Part::Pairs, Duration::from_millis(3) * (self.pairs.rounds * self.pairs.calls / 100) as u32)
            + part(Part::Memory, Duration::from_secs(15) * (count + repeats))
            + part(Part::Lists, turns * 8)
            + part(Part::Starts, Duration::from_millis(1_500) * count * (repeats + 2))
    }

    /// Whether a contender is to be measured.
    pub(crate) fn wants(&self, front: Front) -> bool {
        self.names(front.name())
    }

    /// Whether a name is one of those that were asked for.
    pub(crate) fn names(&self, whole: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| whole.to_lowercase().contains(name))
    }
}

fn parts(names: &str) -> Result<Vec<Part>, Failure> {
    let find = |name: &str| Part::ALL.into_iter().find(|part| part.name() == name.trim());
    names.split(',').map(|name| find(name).ok_or_else(|| format!("there is no part {name}").into())).collect()
}
