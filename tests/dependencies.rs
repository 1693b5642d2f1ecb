//! What we depend on: licences that a user of ours can take, one version of each crate, and the registry as only source.
//!
//! Advisories are not looked up here, because their database may be out of reach: `just advisories` does that.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Licences that demand no more than ours of somebody who passes the binary on.
const LICENCES: [&str; 10] = [
    "Apache-2.0",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "Apache-2.0 WITH LLVM-exception",
];

/// Crates of which two versions are built, and why that is so.
const DUPLICATES: [(&str, &str); 14] = [
    ("base64", "oauth2 is at 0.22; only the OAuth client of rmcp uses it, in a test"),
    ("bit-vec", "an option of rcgen that is off names an older one, which cargo lists and does not build"),
    ("block-buffer", "as base64, for oauth2's sha2"),
    ("cpufeatures", "as block-buffer"),
    ("crypto-common", "as block-buffer"),
    ("digest", "as block-buffer"),
    ("getrandom", "ring is at 0.2, everybody else at 0.4"),
    ("rand", "shuttle and oauth2 are at 0.8, proptest and rmcp are newer; only tests use any"),
    ("rand_core", "as rand"),
    ("sha2", "as base64: oauth2 is at 0.10"),
    ("syn", "tracing-attributes is at 2, the other macros at 3; only the compiler runs them"),
    ("synstructure", "as bit-vec"),
    ("thiserror", "as base64: oauth2 is at 1"),
    ("thiserror-impl", "as thiserror"),
];

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The packages that are built on this platform, tests included.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let rustc = Command::new("rustc").arg("-vV").output().unwrap();
    let about = String::from_utf8(rustc.stdout).unwrap();
    let platform = about.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let options = ["metadata", "--locked", "--format-version", "1", "--filter-platform", platform];
    let output = Command::new(cargo).args(options).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let built: BTreeSet<String> = nodes.iter().map(|node| node["id"].as_str().unwrap().to_owned()).collect();
    let Value::Array(packages) = metadata["packages"].take() else { panic!("{metadata}") };
    packages.into_iter().filter(|package| built.contains(package["id"].as_str().unwrap())).collect()
}

/// Whether a licence expression can be met by [`LICENCES`]. `/` is an old form of `OR`.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let allowed = any_of(&mut words);
    allowed && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// Alternatives, of which one is enough.
fn any_of(words: &mut Words<'_>) -> bool {
    let mut allowed = all_of(words);
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all_of(words);
    }
    allowed
}

/// Licences that all apply.
fn all_of(words: &mut Words<'_>) -> bool {
    let mut allowed = one(words);
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words);
    }
    allowed
}

fn one(words: &mut Words<'_>) -> bool {
    match words.next() {
        Some("(") => {
            let allowed = any_of(words);
            words.next_if_eq(&")").is_some() && allowed
        }
        Some(name) if words.next_if_eq(&"WITH").is_some() => {
            words.next().is_some_and(|exception| LICENCES.contains(&format!("{name} WITH {exception}").as_str()))
        }
        Some(name) => LICENCES.contains(&name),
        None => false,
    }
}

#[test]
fn licence_expressions_are_understood() {
    for expression in [
        "MIT",
        "GPL-3.0 OR MIT",
        "Unlicense/MIT",
        "(MIT OR GPL-3.0) AND ISC",
        "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
    ] {
        assert!(is_allowed(expression), "{expression}");
    }
    for expression in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT ISC", "", "GPL-2.0 WITH LLVM-exception"] {
        assert!(!is_allowed(expression), "{expression}");
    }
}

#[test]
fn every_dependency_has_a_permitted_licence_and_comes_from_the_registry() {
    let packages = packages();
    assert!(packages.len() > 100, "{} packages", packages.len());
    let mut faults = Vec::new();
    for package in &packages {
        let name = format!("{} {}", package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
        let licence = package["license"].as_str().unwrap_or_default();
        if !is_allowed(licence) {
            faults.push(format!("{name}: licence {licence:?}"));
        }
        // Our own package has no source.
        if package["name"] != "rialto" && package["source"] != REGISTRY {
            faults.push(format!("{name}: from {}", package["source"]));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_crate_is_built_in_one_version_unless_listed() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let [name, version] = ["name", "version"].map(|member| package[member].as_str().unwrap().to_owned());
        versions.entry(name).or_default().insert(version);
    }
    let several: BTreeMap<&str, _> =
        versions.iter().filter(|(_, all)| all.len() > 1).map(|(name, all)| (name.as_str(), all)).collect();
    let listed: BTreeSet<&str> = DUPLICATES.iter().map(|(name, _)| *name).collect();
    assert_eq!(several.keys().copied().collect::<BTreeSet<_>>(), listed, "{several:?}");
}
