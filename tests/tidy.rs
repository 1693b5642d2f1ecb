//! House rules that the compiler does not check: module layering, where revisions and eras may be compared,
//! unique type names, the length of files and functions, and the checklist of protocol rules.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules that each module may import beside itself, from the bottom layer up.
const LAYERS: &[(&str, &[&str])] = &[
    ("redact", &[]),
    ("identity", &[]),
    ("line_log", &["redact"]),
    ("failure", &["redact"]),
    ("protocol", &["failure"]),
    ("metrics", &["redact", "workers"]),
    ("ndjson", &["protocol"]),
    ("shutdown", &[]),
    ("sync", &[]),
    ("telemetry", &["line_log", "redact"]),
    ("workers", &[]),
    ("recorder", &["workers"]),
    ("access_log", &["identity", "line_log", "protocol", "recorder", "telemetry"]),
    ("timer", &["sync", "workers"]),
    ("http", &["metrics", "recorder", "sync", "timer", "workers"]),
    ("otlp", &["failure", "http", "redact"]),
    ("trace", &["otlp", "redact"]),
    ("metrics_export", &["metrics", "otlp", "redact"]),
    ("request_span", &["protocol", "trace"]),
    ("issuers", &["http", "identity", "line_log", "metrics", "redact"]),
    ("dialect", &["http", "protocol"]),
    ("error", &["failure", "http", "protocol", "redact"]),
    ("call", &["access_log", "dialect", "failure", "identity", "metrics", "protocol", "recorder", "trace"]),
    ("recording", &["dialect", "line_log", "protocol", "recorder", "redact"]),
    ("audit", &["identity", "line_log", "protocol"]),
    ("store", &["dialect", "metrics", "protocol"]),
    ("policy", &["call", "dialect", "failure", "http", "identity", "issuers", "protocol", "store"]),
    ("local", &["call", "dialect", "error", "failure", "http", "protocol"]),
    (
        "session",
        &["call", "dialect", "failure", "http", "identity", "metrics", "policy", "protocol", "recorder", "store"],
    ),
    (
        "mcp_client",
        &[
            "call",
            "dialect",
            "error",
            "failure",
            "http",
            "identity",
            "metrics",
            "ndjson",
            "protocol",
            "recorder",
            "request_span",
            "timer",
            "trace",
        ],
    ),
    ("cluster", &["identity", "store"]),
    ("upstream", &["call", "dialect", "error", "failure", "identity", "local", "mcp_client", "protocol"]),
    (
        "gateway",
        &[
            "access_log",
            "audit",
            "call",
            "dialect",
            "error",
            "failure",
            "identity",
            "metrics",
            "policy",
            "protocol",
            "recorder",
            "request_span",
            "trace",
            "upstream",
        ],
    ),
    (
        "admin",
        &[
            "cluster",
            "dialect",
            "gateway",
            "http",
            "identity",
            "issuers",
            "mcp_client",
            "metrics",
            "metrics_export",
            "policy",
            "redact",
            "session",
            "shutdown",
            "telemetry",
            "upstream",
        ],
    ),
    ("client", &["call", "dialect", "error", "failure", "identity", "mcp_client", "protocol", "trace", "upstream"]),
    (
        "inbound",
        &[
            "access_log",
            "admin",
            "audit",
            "call",
            "cluster",
            "dialect",
            "failure",
            "gateway",
            "http",
            "identity",
            "issuers",
            "metrics",
            "ndjson",
            "policy",
            "protocol",
            "recorder",
            "recording",
            "request_span",
            "session",
            "shutdown",
            "store",
            "timer",
            "trace",
            "workers",
        ],
    ),
    (
        "config",
        &[
            "access_log",
            "audit",
            "dialect",
            "error",
            "gateway",
            "http",
            "identity",
            "inbound",
            "issuers",
            "local",
            "mcp_client",
            "metrics_export",
            "otlp",
            "policy",
            "recording",
            "redact",
            "session",
            "store",
            "telemetry",
            "trace",
            "upstream",
        ],
    ),
    (
        "console",
        &[
            "access_log",
            "admin",
            "audit",
            "call",
            "client",
            "cluster",
            "config",
            "dialect",
            "error",
            "failure",
            "gateway",
            "http",
            "identity",
            "inbound",
            "line_log",
            "mcp_client",
            "metrics",
            "policy",
            "protocol",
            "recorder",
            "recording",
            "redact",
            "session",
            "shutdown",
            "store",
            "telemetry",
            "trace",
            "upstream",
            "workers",
        ],
    ),
    (
        "app",
        &[
            "access_log",
            "admin",
            "audit",
            "cluster",
            "config",
            "console",
            "gateway",
            "http",
            "identity",
            "inbound",
            "issuers",
            "local",
            "metrics",
            "metrics_export",
            "otlp",
            "policy",
            "recording",
            "session",
            "shutdown",
            "store",
            "telemetry",
            "trace",
            "upstream",
            "workers",
        ],
    ),
    (
        "cli",
        &[
            "admin",
            "app",
            "client",
            "config",
            "console",
            "dialect",
            "error",
            "failure",
            "gateway",
            "identity",
            "inbound",
            "local",
            "mcp_client",
            "metrics_export",
            "otlp",
            "policy",
            "protocol",
            "redact",
            "session",
            "store",
            "telemetry",
            "trace",
            "upstream",
        ],
    ),
];

/// Sans-I/O folders: no I/O, no clock, no async runtime.
const SANS_IO_FOLDERS: &[&str] = &["src/protocol", "src/dialect", "src/http/codec"];

/// Maximum lines of a source file, not counting its unit tests.
const MAX_FILE_LINES: usize = 600;

/// Maximum lines of a function, from its `fn` line to its closing brace.
const MAX_FUNCTION_LINES: usize = 80;

/// Functions above `MAX_FUNCTION_LINES`: file, name, maximum lines and the reason.
const LONG_FUNCTIONS: &[(&str, &str, usize, &str)] = &[
    ("src/admin/gauges.rs", "metric_families", 95, "one entry per gauge: a table, not control flow"),
    ("src/cli/status.rs", "render_status", 85, "prints the sections of the status one after another"),
    ("src/inbound/respond.rs", "error", 85, "one match arm per rejection: a table, not control flow"),
];

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder is readable") {
            let path = entry.expect("the directory entry is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("the source file is readable");
                found.push((path.strip_prefix(root).expect("the path is below the root").into(), text));
            }
        }
    }
    found.sort();
    found
}

/// The top-level module of a source file.
fn top_module(path: &Path) -> String {
    let second = path.components().nth(1).expect("the path has a second component");
    second.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
}

/// The numbered lines of a file up to its unit tests.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line));
    lines.take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
}

/// Otherwise `log.levels` and `log.samples` take their names and match nothing.
#[test]
fn every_module_that_logs_is_a_target_of_the_settings() {
    let settings = fs::read_to_string("src/config/log_settings.rs").expect("the log settings are readable");
    let (_, list) = settings.split_once("const MODULES:").expect("the log settings list modules");
    let (_, list) = list.split_once("= [").expect("the list is an array");
    let (list, _) = list.split_once("];").expect("the array ends");
    let known: Vec<&str> = list.split(',').map(|name| name.trim().trim_matches('"')).collect();
    let macros = ["trace", "debug", "info", "warn", "error", "event"];
    let logs = |line: &str| {
        let is_call = |name: &&str| line.contains(&format!("tracing::{name}!("));
        let is_import = |name: &&str| {
            line.starts_with("use tracing::") && line.split(|c: char| !c.is_alphanumeric()).any(|word| word == *name)
        };
        macros.iter().any(|name| is_call(name) || is_import(name))
    };
    let mut missing = BTreeMap::new();
    let (mut found, folder) = (0, sources("src"));
    for (path, text) in &folder {
        let module = top_module(path);
        if let Some((number, _)) = code_lines(text).find(|(_, line)| logs(line)) {
            found += 1;
            if !known.contains(&module.as_str()) {
                missing.insert(module, format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(found > 10, "the lines are found");
    assert!(missing.is_empty(), "modules that log and are no target: {missing:?}");
}

#[test]
fn modules_import_only_lower_layers() {
    let layers: BTreeMap<&str, &[&str]> = LAYERS.iter().copied().collect();
    let mut violations = Vec::new();
    for (path, text) in sources("src") {
        let module = top_module(&path);
        if matches!(module.as_str(), "lib" | "main") {
            continue;
        }
        let Some(allowed) = layers.get(module.as_str()) else {
            violations.push(format!("{}: module {module} is missing from LAYERS", path.display()));
            continue;
        };
        for (line, text) in code_lines(&text) {
            for used in text.split("crate::").skip(1) {
                let name: String =
                    used.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
                let is_comment = text.trim_start().starts_with("//");
                if !is_comment && !name.is_empty() && name != module && !allowed.contains(&name.as_str()) {
                    violations.push(format!("{}:{line}: {module} may not import {name}", path.display()));
                }
            }
        }
    }
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn only_dialect_compares_revisions() {
    let mut violations = Vec::new();
    for (path, text) in sources("src") {
        if top_module(&path) == "dialect" {
            continue;
        }
        for (line, text) in code_lines(&text) {
            // The type of src/dialect only: other modules may have an enum whose name ends in `Era`.
            let names_era = text
                .match_indices("Era::PerRequest")
                .any(|(at, _)| !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'));
            let named = ["Revision::V20", ".era()", ".features()"].iter().any(|word| text.contains(word)) || names_era;
            let compared = ["==", "!=", "<", ">", "matches!"].iter().any(|sign| text.contains(sign));
            if named
                || (text.contains("revision")
                    && text.contains("Revision::")
                    && compared
                    && !text.contains("=>")
                    && !text.contains("->"))
            {
                violations.push(format!("{}:{line}: {}", path.display(), text.trim()));
            }
        }
    }
    assert!(violations.is_empty(), "ask src/dialect a named question instead:\n{}", violations.join("\n"));
}

#[test]
fn sans_io_modules_use_no_io_and_no_runtime() {
    for (path, text) in sources("src") {
        if !SANS_IO_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        for (line, text) in code_lines(&text) {
            for word in ["tokio", "std::net", "std::fs", "std::io", "Instant", "SystemTime", "async "] {
                assert!(!text.contains(word), "{}:{line}: {}", path.display(), text.trim());
            }
        }
    }
}

#[test]
fn files_stay_within_the_line_limit() {
    for (path, text) in sources("src") {
        let lines = code_lines(&text).count();
        assert!(lines <= MAX_FILE_LINES, "{} has {lines} lines; split it by responsibility", path.display());
    }
}

/// Whether a file has a test of this name and module path: each module is a part of its path, or within it.
fn has_test(path: &Path, text: &str, name: &str) -> bool {
    let (modules, function) = name.rsplit_once("::").unwrap_or(("", name));
    let is_module = |module: &str| {
        path.with_extension("").iter().any(|part| part == module) || text.contains(&format!("mod {module} {{"))
    };
    text.contains(&format!("fn {function}(")) && modules.split("::").all(is_module)
}

#[test]
fn every_test_named_in_a_checklist_exists() {
    let files: Vec<(PathBuf, String)> = sources("tests").into_iter().chain(sources("src")).collect();
    let mut named = 0;
    for (list, text) in files.iter().filter(|(path, _)| path.ends_with("checklist.rs")) {
        for part in text.split("Test(\"").skip(1) {
            let name = part.split('"').next().expect("a quoted name");
            let exists = files.iter().any(|(path, text)| has_test(path, text, name));
            assert!(exists, "{} names a test that does not exist: {name}", list.display());
            named += 1;
        }
    }
    assert!(named > 200, "only {named} rules of the checklists have a test");
}

/// The name after `keyword` on an item line, where visibility and modifiers may come first.
fn declared<'l>(line: &'l str, keyword: &str) -> Option<&'l str> {
    const MODIFIERS: [&str; 5] = ["pub", "async", "const", "unsafe", "default"];
    let mut rest = line;
    loop {
        if let Some(name) = rest.strip_prefix(keyword).and_then(|name| name.strip_prefix(' ')) {
            let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(name.len());
            return Some(&name[..end]).filter(|name| !name.is_empty());
        }
        rest = match rest.strip_prefix("pub(") {
            Some(scope) => scope.split_once(") ")?.1,
            None => MODIFIERS.iter().find_map(|modifier| rest.strip_prefix(modifier)?.strip_prefix(' '))?,
        };
    }
}

/// Structs, enums, unions, traits and type aliases at module level; associated types are indented and not counted.
#[test]
fn a_type_name_is_declared_once() {
    let mut declarations: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources("src") {
        for (line, text) in code_lines(&text) {
            // The structs of settings are declared within a macro.
            let text = if path.ends_with("config/settings.rs") { text.trim_start() } else { text };
            let name = ["struct", "enum", "union", "trait", "type"].iter().find_map(|keyword| declared(text, keyword));
            if let Some(name) = name {
                declarations.entry(name.to_owned()).or_default().push(format!("{}:{line}", path.display()));
            }
        }
    }
    assert!(declarations.len() > 300, "only {} type declarations were found", declarations.len());
    let duplicates: Vec<String> = declarations
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| format!("{name}: {}", places.join(", ")))
        .collect();
    assert!(duplicates.is_empty(), "a type name must stand once in src:\n{}", duplicates.join("\n"));
}

/// Relies on rustfmt: the closing brace of a function has the indentation of its `fn` line.
#[test]
fn functions_stay_within_the_line_limit() {
    let (mut counted, mut violations) = (0, Vec::new());
    for (path, text) in sources("src") {
        let lines: Vec<&str> = code_lines(&text).map(|(_, line)| line).collect();
        for (start, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let Some(name) = declared(&line[indent..], "fn") else { continue };
            let closing = format!("{}}}", &line[..indent]);
            // The signature ends at a semicolon (a trait method without a body) or at the body's brace.
            let signature_end = lines[start..].iter().position(|line| line.ends_with([';', '{', '}']));
            let has_body = signature_end.is_some_and(|offset| lines[start + offset].ends_with('{'));
            if !has_body {
                continue;
            }
            counted += 1;
            let end = lines[start..].iter().position(|line| *line == closing).unwrap_or_default();
            let length = end + 1;
            let exception = LONG_FUNCTIONS.iter().find(|(file, long, ..)| path == Path::new(file) && *long == name);
            if length > exception.map_or(MAX_FUNCTION_LINES, |(_, _, limit, _)| *limit) {
                violations.push(format!("{}:{}: {name} has {length} lines", path.display(), start + 1));
            }
        }
    }
    assert!(counted > 1000, "only {counted} functions were found");
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}
