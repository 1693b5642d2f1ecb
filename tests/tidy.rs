//! House rules that a compiler does not know: which module may use which, where revisions may be
//! compared, and how long a file may get.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What each module may use, beside itself. The order is that of the layers, from the bottom up.
const LAYERS: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("metrics", &[]),
    ("ndjson", &[]),
    ("shutdown", &[]),
    ("telemetry", &[]),
    ("workers", &[]),
    ("timer", &["workers"]),
    ("http", &["timer", "workers"]),
    ("dialect", &["http", "protocol"]),
    ("error", &["http", "protocol"]),
    ("call", &["dialect", "protocol"]),
    ("policy", &["call", "dialect", "protocol"]),
    ("store", &["dialect", "protocol"]),
    ("local", &["call", "dialect", "error", "http", "protocol"]),
    ("session", &["call", "dialect", "http", "protocol", "store"]),
    ("mcp_client", &["call", "dialect", "error", "http", "ndjson", "protocol", "timer"]),
    ("cluster", &["store"]),
    ("upstream", &["call", "dialect", "error", "local", "mcp_client", "protocol"]),
    ("gateway", &["call", "dialect", "error", "metrics", "protocol", "upstream"]),
    ("admin", &["cluster", "dialect", "gateway", "mcp_client", "metrics", "session", "shutdown", "upstream"]),
    ("client", &["call", "dialect", "error", "mcp_client", "protocol", "upstream"]),
    (
        "inbound",
        &[
            "admin", "call", "cluster", "dialect", "gateway", "http", "ndjson", "policy", "protocol", "session",
            "shutdown", "store", "timer", "workers",
        ],
    ),
    ("config", &["dialect", "error", "gateway", "local", "mcp_client", "store", "telemetry", "upstream"]),
    (
        "app",
        &[
            "admin", "cluster", "config", "gateway", "inbound", "local", "policy", "session", "shutdown", "store",
            "upstream", "workers",
        ],
    ),
    (
        "cli",
        &[
            "admin",
            "app",
            "client",
            "config",
            "dialect",
            "error",
            "gateway",
            "inbound",
            "local",
            "mcp_client",
            "policy",
            "protocol",
            "session",
            "store",
            "telemetry",
            "upstream",
        ],
    ),
];

/// Folders that must stay free of input, output and the runtime.
const PURE: &[&str] = &["src/protocol", "src/dialect", "src/http/codec"];

/// The longest that a file may be without its tests.
const LONGEST_FILE: usize = 600;

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of ours can be read") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source of ours can be read");
                found.push((path.strip_prefix(root).expect("it is below the root").into(), text));
            }
        }
    }
    found.sort();
    found
}

/// The module at the top that a file belongs to.
fn module(path: &Path) -> String {
    let second = path.components().nth(1).expect("a file in src");
    second.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
}

/// A file's lines before its tests.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line));
    lines.take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let layers: BTreeMap<&str, &[&str]> = LAYERS.iter().copied().collect();
    let mut faults = Vec::new();
    for (path, text) in sources("src") {
        let module = module(&path);
        if matches!(module.as_str(), "lib" | "main") {
            continue;
        }
        let Some(allowed) = layers.get(module.as_str()) else {
            faults.push(format!("{}: the module {module} has no place in the layers", path.display()));
            continue;
        };
        for (line, text) in code(&text) {
            for used in text.split("crate::").skip(1) {
                let name: String =
                    used.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
                let doc = text.trim_start().starts_with("//");
                if !doc && !name.is_empty() && name != module && !allowed.contains(&name.as_str()) {
                    faults.push(format!("{}:{line}: {module} may not use {name}", path.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn only_dialect_compares_revisions() {
    let mut faults = Vec::new();
    for (path, text) in sources("src") {
        if module(&path) == "dialect" {
            continue;
        }
        for (line, text) in code(&text) {
            let named = text.contains("Revision::V20") || text.contains(".era()") || text.contains("Era::PerRequest");
            let compared = ["==", "!=", "<", ">", "matches!"].iter().any(|sign| text.contains(sign));
            if named
                || (text.contains("revision")
                    && text.contains("Revision::")
                    && compared
                    && !text.contains("=>")
                    && !text.contains("->"))
            {
                faults.push(format!("{}:{line}: {}", path.display(), text.trim()));
            }
        }
    }
    assert!(faults.is_empty(), "ask a fact of the revision instead:\n{}", faults.join("\n"));
}

#[test]
fn pure_modules_stay_pure() {
    for (path, text) in sources("src") {
        if !PURE.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        for (line, text) in code(&text) {
            for word in ["tokio", "std::net", "std::fs", "std::io", "Instant", "SystemTime", "async "] {
                assert!(!text.contains(word), "{}:{line}: {}", path.display(), text.trim());
            }
        }
    }
}

#[test]
fn files_stay_short() {
    for (path, text) in sources("src") {
        let lines = code(&text).count();
        assert!(lines <= LONGEST_FILE, "{} has {lines} lines; is it still one matter?", path.display());
    }
}

#[test]
fn every_check_has_its_test() {
    let tests: String = sources("tests/it").into_iter().chain(sources("src")).map(|(_, text)| text).collect();
    let list = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/checklist.rs"))
        .expect("the list is there");
    let mut named = 0;
    for part in list.split("By(\"").skip(1) {
        let name = part.split('"').next().expect("a quoted name");
        let function = name.rsplit("::").next().expect("a name");
        assert!(tests.contains(&format!("fn {function}(")), "the checklist names {name}, which does not exist");
        named += 1;
    }
    assert!(named > 60, "only {named} checks have a test");
}
