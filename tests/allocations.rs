//! Heap allocations per call on the hot paths, checked against a budget.
//!
//! The gateway runs on the counted thread; clients and servers run on other threads or in another process. When a path
//! needs fewer allocations than its budget, lower the budget.

#![allow(missing_docs, unreachable_pub, reason = "a test has no outside users")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod hot;

use std::future;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use base64::Engine;
use hot::{Client, HotPathFixture, ROUTES};
use rialto::app::{App, AppSettings};
use rialto::config;
use rialto::issuers::{IssuerSettings, Issuers, KeySource};
use rialto::policy::rules::{AccessRule, DefaultAccess, PrincipalPattern, RuleBook, TargetKind, TargetPattern};
use ring::signature::{Ed25519KeyPair, KeyPair};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// Per route: name, allocations when last measured, and the budget.
const BUDGETS: [(&str, u64, u64); 11] = [
    ("2025-11-25 to 2025-11-25", 17, 19),
    ("2026-07-28 to 2026-07-28", 18, 20),
    ("2025-11-25 to 2026-07-28", 29, 30),
    ("2026-07-28 to 2025-11-25", 34, 36),
    ("2025-11-25 to 2025-11-25, events", 28, 30),
    ("2026-07-28 to 2026-07-28, events", 29, 31),
    ("2026-07-28 to 2025-11-25, 10 KB", 34, 36),
    ("2026-07-28 to 2025-11-25, stdio", 38, 40),
    ("2025-11-25 to built in", 19, 21),
    ("2026-07-28 to built in", 18, 20),
    ("2025-11-25 merged list", 8, 9),
];

/// Warm-up calls, which pay for one-time initialization.
const WARM_UP_CALLS: u32 = 50;
/// Measured calls; enough to average out periodic work.
const MEASURED_CALLS: u32 = 400;

#[test]
fn allocations_per_call_stay_within_budget() {
    check_budgets(None);
    // Rules are judged once per class of callers and view; a call looks the result up.
    check_budgets(Some(&ten_rules()));
}

/// Rules of which two match the caller of the test.
fn ten_rules() -> Arc<RuleBook> {
    let rule = |n: usize| {
        let mut rule = AccessRule::new(&format!("rule {n}"));
        let principal = if n < 2 { "*".to_owned() } else { format!("role:r{n}") };
        rule.principals = vec![PrincipalPattern::parse(&principal).unwrap()];
        for kind in TargetKind::ALL {
            let (targets, pattern) = if n == 0 { (&mut rule.allow, "*") } else { (&mut rule.deny, "*/delete_*") };
            targets.push(kind, TargetPattern::parse(pattern).unwrap());
        }
        rule
    };
    Arc::new(RuleBook::new((0..10).map(rule).collect(), DefaultAccess::Deny, Vec::new()))
}

fn check_budgets(rules: Option<&Arc<RuleBook>>) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let fixture = HotPathFixture::start(Path::new(env!("CARGO_BIN_EXE_rialto")));
    let loaded = config::load(&fixture.config(), &|_| None).unwrap();
    let defaults = AppSettings::default();
    let mut gateway = loaded.config.gateway_config();
    gateway.groups.iter_mut().for_each(|group| group.rules = rules.cloned());
    let settings = AppSettings { listen: loaded.config.settings.listen, gateway, ..defaults };
    let bound = runtime.block_on(App::bind(settings)).unwrap();
    let address = bound.address();
    runtime.spawn(bound.run(future::pending()));

    let mut over_budget = Vec::new();
    println!("with rules: {}", rules.is_some());
    println!("{:>11} {:>6} {:>6} {:>11}  allocations of a call", "allocations", "before", "budget", "bytes");
    for (route, (name, before, budget)) in ROUTES.into_iter().zip(BUDGETS) {
        assert_eq!(route.name, name, "budgets are in the order of ROUTES");
        let client = run_gateway_while(&runtime, move || Client::open(address, route, None).calls(WARM_UP_CALLS));
        let measured = allocation_counter::measure(|| {
            run_gateway_while(&runtime, move || client.calls(MEASURED_CALLS));
        });
        let per_call = |total: u64| (total + u64::from(MEASURED_CALLS) / 2) / u64::from(MEASURED_CALLS);
        let (count, bytes) = (per_call(measured.count_total), per_call(measured.bytes_total));
        println!("{count:>11} {before:>6} {budget:>6} {bytes:>11}  {name}");
        if count > budget {
            over_budget.push(format!("{name}: {count} allocations, budget {budget}"));
        }
    }
    assert!(over_budget.is_empty(), "{}", over_budget.join("\n"));
}

/// A token that is known costs a call no allocation.
#[test]
fn known_tokens_are_found_without_allocations() {
    let base64url = |bytes: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    let document = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).unwrap();
    let key = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let public = serde_json::json!({"kty": "OKP", "crv": "Ed25519", "x": base64url(key.public_key().as_ref())});
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("allocations-keys.json");
    std::fs::write(&file, serde_json::json!({"keys": [public]}).to_string()).unwrap();
    let (issuer, address) = ("https://login.example", "https://gate.example/mcp");
    let claims = serde_json::json!({"iss": issuer, "sub": "ann", "aud": address, "exp": 4_000_000_000_u64});
    let signed = format!("{}.{}", base64url(br#"{"alg":"EdDSA"}"#), base64url(claims.to_string().as_bytes()));
    let token = format!("{signed}.{}", base64url(key.sign(signed.as_bytes()).as_ref()));

    let settings = IssuerSettings { keys: KeySource::File(file), ..IssuerSettings::new("corp", issuer) };
    let issuers = Issuers::new(vec![settings]);
    let is_asked = |value: &str| value == address;
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(issuers.validate(&token, &is_asked)).unwrap();
    let measured = allocation_counter::measure(|| {
        assert!(issuers.cached(&token, &is_asked).unwrap().is_ok());
    });
    assert_eq!(measured.count_total, 0);
}

/// Runs the gateway on this thread while `work` runs on another.
fn run_gateway_while<T: Send + 'static>(runtime: &Runtime, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = oneshot::channel();
    thread::spawn(move || done.send(work()));
    runtime.block_on(wait).expect("the other thread finished; see its panic above")
}
