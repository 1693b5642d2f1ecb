//! The official conformance suite, with our client under test.
//!
//! The suite runs a server per scenario and `examples/conformance_client.rs` against it. Known failures are listed with
//! their reason in `tests/conformance/client-expected-failures.yml`; an unlisted failure and a listed pass both fail.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::Mutex;

use crate::peers::installed;

/// Timeout of one suite run; each scenario has 30 s inside the suite.
const SUITE_TIMEOUT: Duration = Duration::from_secs(60);

/// The suite of extensions, which belong to no revision.
const EXTENSIONS: &str = "extensions";

/// Passing scenarios by revision. Every other scenario of a revision is an expected failure.
const PASSING: [(&str, &[&str]); 5] = [
    ("2025-03-26", &[]),
    ("2025-06-18", &["initialize", "tools_call"]),
    (
        "2025-11-25",
        &[
            "elicitation-sep1034-client-defaults",
            "initialize",
            "json-schema-2020-12-preservation",
            "sse-retry",
            "tools_call",
        ],
    ),
    (
        "2026-07-28",
        &[
            "http-custom-headers",
            "http-invalid-tool-headers",
            "http-standard-headers",
            "json-schema-2020-12-preservation",
            "json-schema-ref-no-deref",
            "request-metadata",
            "sep-2322-client-request-state",
            "tools_call",
        ],
    ),
    (EXTENSIONS, &[]),
];

/// Scenarios of newer revisions that must pass at older ones, too.
const NEWER_SCENARIOS: [(&str, &[&str]); 2] = [
    ("2025-03-26", &["json-schema-2020-12-preservation", "sse-retry", "tools_call"]),
    ("2025-06-18", &["elicitation-sep1034-client-defaults", "json-schema-2020-12-preservation", "sse-retry"]),
];

fn expected_failures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/client-expected-failures.yml")
}

/// The folder of built examples; panics if the named example is missing or out of date.
pub fn examples(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap().join("examples");
    // `cargo test` builds the examples, but `cargo test --test it` does not.
    let advice = format!("is {name} built? `cargo test` does that, otherwise `cargo build --examples`");
    let built = fs::metadata(folder.join(name)).and_then(|program| program.modified()).expect(&advice);
    let sources = fs::read_to_string(folder.join(format!("{name}.d"))).expect(&advice);
    for source in sources.split_whitespace().skip(1) {
        let changed = fs::metadata(source).and_then(|source| source.modified());
        assert!(changed.map_or(true, |changed| changed <= built), "{source} is newer; {advice}");
    }
    folder
}

/// A fresh folder for the results of one run.
fn results(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance-client").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A finished run of the suite.
struct SuiteRun {
    success: bool,
    /// Combined stdout and stderr.
    text: String,
    /// Folder of the recorded results.
    results: PathBuf,
}

impl SuiteRun {
    /// Runs the suite with `options` for the client and `arguments` for the suite.
    async fn new(name: &str, options: &str, arguments: &[&str]) -> Self {
        // One suite at a time: each starts all of its clients at once.
        static ONE: Mutex<()> = Mutex::const_new(());
        let place = tokio::task::spawn_blocking(installed).await.unwrap();
        let _one = ONE.lock().await;
        let modules = place.join("node/node_modules/.bin");
        let results = results(name);
        let mut command = Command::new(modules.join("node"));
        command.arg(modules.join("conformance")).arg("client");
        // The suite splits the command at spaces, so the path is passed as working directory.
        command
            .arg("--command")
            .arg(format!("./conformance_client{options}"))
            .current_dir(examples("conformance_client"));
        command.args(arguments).arg("--output-dir").arg(&results);
        // Clients that outlive the suite end when their server is gone.
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output =
            tokio::time::timeout(SUITE_TIMEOUT, command.output()).await.expect("the suite ends in time").unwrap();
        let text = [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).join("\n");
        Self { success: output.status.success(), text, results }
    }

    /// The scenarios that ran, and whether each passed: at least one check passed and none failed.
    fn verdicts(&self) -> Vec<(&str, bool)> {
        let verdict = |line| {
            let (_, line) = str::split_once(line, ' ')?;
            let (scenario, counts) = line.split_once(": ")?;
            let (passed, rest) = counts.split_once(" passed, ")?;
            let passed: u32 = passed.parse().ok()?;
            Some((scenario, passed > 0 && rest == "0 failed"))
        };
        let summary = self.text.lines().skip_while(|line| !line.contains("SUITE SUMMARY"));
        summary.skip(1).take_while(|line| !line.starts_with("Total:")).filter_map(verdict).collect()
    }

    /// Whether the client finished its scenario; the suite only checks received messages.
    fn client_was_done(&self, scenario: &str) -> bool {
        let folders = fs::read_dir(&self.results).unwrap().map(|entry| entry.unwrap().path());
        let of_scenario = |folder: &PathBuf| {
            let name = folder.file_name().unwrap().to_string_lossy();
            name.strip_prefix(scenario).is_some_and(|time| time.starts_with("-20"))
        };
        let folder = folders.into_iter().find(of_scenario).expect("results of the scenario");
        fs::read_to_string(folder.join("stdout.txt")).unwrap().ends_with("done\n")
    }
}

/// Runs every suite and returns the failed scenarios.
async fn suites(options: &str) -> BTreeSet<String> {
    let expected = expected_failures();
    let mut failed = BTreeSet::new();
    for (suite, passing) in PASSING {
        let mut arguments = vec!["--expected-failures", expected.to_str().unwrap(), "--suite"];
        match suite {
            EXTENSIONS => arguments.push(EXTENSIONS),
            revision => arguments.extend(["all", "--spec-version", revision]),
        }
        let name = format!("{suite}{options}");
        let run = SuiteRun::new(&name, options, &arguments).await;
        assert!(run.success, "{name}:\n{}", run.text);
        let verdicts = run.verdicts();
        let mut passed: Vec<&str> = verdicts.iter().filter(|(_, passed)| *passed).map(|(name, _)| *name).collect();
        passed.sort_unstable();
        assert_eq!(passed, passing, "{name}:\n{}", run.text);
        for scenario in passed {
            assert!(run.client_was_done(scenario), "{name} {scenario}:\n{}", run.text);
        }
        failed.extend(verdicts.iter().filter(|(_, passed)| !passed).map(|(name, _)| (*name).to_owned()));
    }
    failed
}

#[tokio::test]
async fn client_conformance_passes_except_expected_failures() {
    let failed = suites("").await;
    // The suite ignores listed scenarios that it never runs, so compare here.
    let list = fs::read_to_string(expected_failures()).unwrap();
    let listed = list.lines().filter_map(|line| line.trim().strip_prefix("- "));
    let listed: BTreeSet<String> = listed.map(|entry| entry.split(" #").next().unwrap().trim().to_owned()).collect();
    assert_eq!(listed, failed);
}

#[tokio::test]
async fn client_conformance_passes_with_probing() {
    suites(" --probe").await;
}

#[tokio::test]
async fn client_conformance_passes_newer_scenarios_at_older_revisions() {
    for (revision, scenarios) in NEWER_SCENARIOS {
        for scenario in scenarios {
            let name = format!("{revision}-{scenario}");
            let arguments = ["--scenario", scenario, "--spec-version", revision, "--force"];
            let run = SuiteRun::new(&name, "", &arguments).await;
            assert!(run.success, "{name}:\n{}", run.text);
        }
    }
}
