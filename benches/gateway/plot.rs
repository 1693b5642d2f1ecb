//! SVG plots, readable on light and dark backgrounds.

use std::fmt::Write as _;

use crate::calls::Row;
use crate::client::Era;
use crate::document::circumstances;
use crate::fronts::Frontend;
use crate::plan::{SIZES, Scenario, size};
use crate::spread::Spread;
use crate::tables::of;
use crate::turn::Turn;
use crate::upstream::ResponseFormat;

/// Colours by class: `us` is Rialto, `base` the baselines, `them` the other gateways.
const STYLE: &str = "<style>
text { font: 12px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; fill: #24292f; }
.title { font-size: 17px; font-weight: 600; } .head { font-weight: 600; } .small { font-size: 11px; fill: #57606a; }
.page { fill: #ffffff; } .grid { stroke: #d8dee4; } .band { fill: #f6f8fa; }
.us { fill: #cf4a0c; stroke: #cf4a0c; } .base { fill: #57606a; stroke: #57606a; } .them { fill: #0969da; stroke: #0969da; }
text.us { stroke: none; font-weight: 600; } .open { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .small { fill: #9198a1; } .page, .open { fill: #0d1117; } .grid { stroke: #30363d; }
.band { fill: #151b23; } .us { fill: #ff8c42; stroke: #ff8c42; } .base { fill: #9198a1; stroke: #9198a1; }
.them { fill: #58a6ff; stroke: #58a6ff; } .open { fill: #0d1117; }
}
</style>";

/// An SVG image under construction.
pub(crate) struct Picture {
    width: f64,
    height: f64,
    body: String,
}

impl Picture {
    pub(crate) fn new(width: f64, height: f64, title: &str) -> Self {
        let mut new = Self { width, height, body: String::new() };
        new.text(20.0, 30.0, "title", "start", title);
        new.text(20.0, height - 14.0, "small", "start", &circumstances());
        new
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ =
            writeln!(self.body, r#"<text x="{x:.1}" y="{y:.1}" class="{class}" text-anchor="{anchor}">{text}</text>"#);
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str, width: f64) {
        let ((a, b), (c, d)) = (from, to);
        let line = format!(r#"<line x1="{a:.1}" y1="{b:.1}" x2="{c:.1}" y2="{d:.1}""#);
        let _ = writeln!(self.body, r#"{line} class="{class}" stroke-width="{width}" stroke-linecap="round"/>"#);
    }

    fn dot(&mut self, x: f64, y: f64, class: &str) {
        let _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" class="{class}" stroke-width="1.5"/>"#);
    }

    fn band(&mut self, x: f64, y: f64, width: f64, height: f64) {
        let place = format!(r#"x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}""#);
        let _ = writeln!(self.body, r#"<rect {place} class="band"/>"#);
    }

    /// A polyline.
    pub(crate) fn path(&mut self, points: &[(f64, f64)], class: &str) {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
        let style = "style=\"fill: none\" stroke-width=\"2\" stroke-linejoin=\"round\"";
        let _ = writeln!(self.body, r#"<polyline points="{points}" class="{class}" {style}/>"#);
    }

    pub(crate) fn finish(self) -> String {
        let Self { width, height, body } = self;
        let page = format!(r#"<rect width="{width}" height="{height}" rx="8" class="page"/>"#);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">\n{STYLE}\n{page}\n{body}</svg>\n"
        )
    }
}

/// Logarithmic horizontal scale.
struct Scale {
    from: f64,
    to: f64,
    x: f64,
    width: f64,
}

impl Scale {
    /// A scale that covers all figures.
    fn around(figures: &[f64], x: f64, width: f64) -> Self {
        let least = figures.iter().copied().fold(f64::INFINITY, f64::min).max(1e-3);
        let most = figures.iter().copied().fold(1e-3, f64::max);
        let (from, to) = (least.log10().floor(), most.log10().ceil());
        Self { from, to: to.max(from + 1.0), x, width }
    }

    fn at(&self, figure: f64) -> f64 {
        self.x + self.width * ((figure.max(1e-3).log10() - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn powers(&self) -> impl Iterator<Item = i32> + use<> {
        self.from as i32..=self.to as i32
    }
}

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 230.0;
const PANEL: f64 = 240.0;
const GAP: f64 = 40.0;
const STEP: f64 = 22.0;
const SESSIONS: usize = 16;

/// One row of panels: title, figures and units.
struct Band {
    title: &'static str,
    /// The figure shown as a dot.
    main: fn(&Turn) -> f64,
    /// A second figure, shown as a ring.
    ring: Option<fn(&Turn) -> f64>,
    /// Units, each a thousand times the previous one.
    units: [&'static str; 3],
}

const BANDS: [Band; 2] = [
    Band {
        title: "Processor time of the gateway for a call (line: least to most of all rounds)",
        main: Turn::microseconds_per_call,
        ring: None,
        units: ["µs", "ms", "s"],
    },
    Band {
        title: "Time of a call for the client: median (ring) and 99th percentile (dot)",
        main: |turn| turn.p99() * 1e3,
        ring: Some(|turn| turn.median() * 1e3),
        units: ["µs", "ms", "s"],
    },
];

/// CPU time and latency for each size, at 16 sessions.
pub(crate) fn calls(rows: &[Row]) -> Option<String> {
    let of_size = |bytes: usize| {
        let scenario = Scenario { era: Era::Handshake, form: ResponseFormat::Json, bytes, sessions: SESSIONS };
        let with_turns = rows.iter().filter(move |row| row.scenario == scenario && !row.turns.is_empty());
        let mut all: Vec<&Row> = with_turns.collect();
        all.sort_by_key(|row| row.contender.transport.name());
        all
    };
    let mut names: Vec<String> = Vec::new();
    for row in SIZES.into_iter().flat_map(of_size) {
        if !names.contains(&row.contender.title()) {
            names.push(row.contender.title());
        }
    }
    if names.is_empty() {
        return None;
    }
    let panel = names.len() as f64 * STEP;
    let mut picture = Picture::new(
        WIDTH,
        110.0 + BANDS.len() as f64 * (panel + 80.0),
        &format!("A tools/call through each gateway: 2025-11-25, JSON, {SESSIONS} sessions, logarithmic scales"),
    );
    picture.text(20.0, 50.0, "small", "start", "Left is better. stdio: the server behind is a child process instead of an HTTP server, for gateways that know nothing else.");
    for (n, band) in BANDS.iter().enumerate() {
        let top = 110.0 + n as f64 * (panel + 80.0);
        picture.text(20.0, top - 30.0, "head", "start", band.title);
        for (at, name) in names.iter().enumerate() {
            let y = top + (at as f64 + 0.5) * STEP;
            if at % 2 == 0 {
                picture.band(10.0, y - STEP / 2.0, WIDTH - 20.0, STEP);
            }
            let class = if name.starts_with("Rialto") { "us" } else { "" };
            picture.text(LEFT - 14.0, y + 4.0, class, "end", name);
        }
        for (column, bytes) in SIZES.into_iter().enumerate() {
            let x = LEFT + column as f64 * (PANEL + GAP);
            panel_of(&mut picture, band, &of_size(bytes), &names, (x, top), bytes);
        }
    }
    Some(picture.finish())
}

fn panel_of(picture: &mut Picture, band: &Band, rows: &[&Row], names: &[String], place: (f64, f64), bytes: usize) {
    let (x, top) = place;
    let bottom = top + names.len() as f64 * STEP;
    let spreads: Vec<(&Row, Spread)> = rows.iter().map(|row| (*row, of(&row.turns, band.main))).collect();
    let mut figures: Vec<f64> = spreads.iter().flat_map(|(_, spread)| [spread.least, spread.most]).collect();
    if let Some(ring) = band.ring {
        figures = spreads.iter().flat_map(|(row, spread)| [of(&row.turns, ring).median, spread.median]).collect();
    }
    let scale = Scale::around(&figures, x, PANEL - 44.0);
    for power in scale.powers() {
        let at = scale.at(10f64.powi(power));
        picture.line((at, top), (at, bottom), "grid", 1.0);
        // With many powers, label every other one.
        if scale.to - scale.from < 4.0 || (power - scale.from as i32) % 2 == 0 {
            picture.text(at, bottom + 15.0, "small", "middle", &short(10f64.powi(power), band.units));
        }
    }
    picture.text(x, top - 8.0, "small", "start", &format!("answers of {}", size(bytes)));
    for (row, spread) in spreads {
        let Some(at) = names.iter().position(|name| *name == row.contender.title()) else { continue };
        let y = top + (at as f64 + 0.5) * STEP;
        let class = match row.contender.front {
            Frontend::Rialto | Frontend::Beside => "us",
            Frontend::Direct | Frontend::Nginx => "base",
            Frontend::Other(_) => "them",
        };
        let (from, to) = match band.ring {
            Some(ring) => (of(&row.turns, ring).median, spread.median),
            None => (spread.least, spread.most),
        };
        picture.line((scale.at(from), y), (scale.at(to), y), class, 2.0);
        if band.ring.is_some() {
            picture.dot(scale.at(from), y, &format!("{class} open"));
        }
        picture.dot(scale.at(spread.median), y, class);
        let end = scale.at(to.max(spread.median));
        picture.text(end + 9.0, y + 4.0, "small", "start", &short(spread.median, band.units));
    }
}

/// A figure with few digits and a suitable unit.
fn short(figure: f64, units: [&str; 3]) -> String {
    let (figure, unit) = match figure {
        1e6.. => (figure / 1e6, units[2]),
        1e3.. => (figure / 1e3, units[1]),
        _ => (figure, units[0]),
    };
    match figure {
        10.0.. => format!("{figure:.0} {unit}"),
        1.0.. => format!("{} {unit}", (figure * 10.0).round() / 10.0),
        _ => format!("{} {unit}", (figure * 100.0).round() / 100.0),
    }
}
