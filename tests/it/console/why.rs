//! "Why not?": each of its ten steps, produced on purpose.

use std::sync::Arc;

use rialto::dialect::Revision;
use rialto::gateway::{GatewayConfig, GroupConfig, NameFilter, Naming};
use rialto::mcp_client::Target;
use rialto::policy::rules::{AccessRule, DefaultAccess, PrincipalPattern, RuleBook, TargetKind, TargetPattern};
use rialto::upstream::{HealthPhase, List, SpecKind, UpstreamSpec};
use serde_json::{Value, json};

use super::get;
use crate::config::TempFolder;
use crate::harness::{Rialto, initialize, until};
use crate::scripted_server::{DualServer, InjectedFault, ScriptedServer, ServerTransport, tool};

/// The number of the step that fails, from 1, and what it says; 0 if none does.
fn failed(why: &Value) -> (usize, String) {
    let steps = why["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 10, "{why}");
    let at = steps.iter().position(|step| step["ok"] == false);
    assert_eq!(why["there"], json!(at.is_none()), "{why}");
    at.map_or((0, String::new()), |at| (at + 1, steps[at]["what"].as_str().unwrap().to_owned()))
}

async fn why(rialto: &Rialto, group: &str, query: &str) -> (usize, String) {
    failed(&get(rialto, &format!("groups/{group}/why?{query}")).await)
}

fn spec(server: &ScriptedServer) -> UpstreamSpec {
    UpstreamSpec::new(&server.name, SpecKind::Target(server.target()))
}

#[tokio::test]
async fn each_step_names_its_reason() {
    let long = "a".repeat(80);
    let notes = ScriptedServer::with("notes", ServerTransport::PerRequest, |catalog| {
        catalog.tools = vec![tool("write"), tool("hidden"), tool(&long)];
    })
    .await;
    let files =
        ScriptedServer::with("files", ServerTransport::Http, |catalog| catalog.tools = vec![tool("write")]).await;
    let mute =
        ScriptedServer::with("mute", ServerTransport::PerRequest, |catalog| catalog.tools = vec![tool("x")]).await;
    mute.inject_fault("tools/list", InjectedFault::Error(json!({ "code": -32603, "message": "no" })));
    let broken = UpstreamSpec::new("broken", SpecKind::Target(Target::command("/absent/program", [""; 0])));
    let rialto = Rialto::with(|settings| {
        let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect::<Vec<Arc<str>>>();
        let mut work = GroupConfig::new("work", names(&["notes", "files", "mute", "broken"]));
        work.tools = NameFilter::new(&[], &["*hidden*".to_owned()]);
        let mut plain = GroupConfig::new("plain", names(&["notes", "files"]));
        plain.naming = Naming::Plain;
        let mut ruled = GroupConfig::new("ruled", names(&["notes", "files"]));
        let mut rule = AccessRule::new("nobody writes");
        rule.principals = vec![PrincipalPattern::parse("*").unwrap()];
        rule.deny.push(TargetKind::Tools, TargetPattern::parse("notes/write").unwrap());
        ruled.rules = Some(Arc::new(RuleBook::new(vec![rule], DefaultAccess::Allow, Vec::new())));
        settings.gateway = GatewayConfig {
            upstreams: vec![spec(&notes), spec(&files), spec(&mute), broken],
            groups: vec![GroupConfig::new("default", names(&["files"])), work, plain, ruled],
        };
    })
    .await;
    let gateway = &rialto.inbound.gateway;
    until("the servers have settled", || {
        let phase =
            |name: &str| gateway.upstreams().iter().find(|one| **one.name() == *name).unwrap().state().health.phase;
        let work = gateway.group(Some("work")).unwrap();
        phase("broken") == HealthPhase::Down
            && phase("mute") == HealthPhase::Ready
            && work.view(Revision::NEWEST).count(List::Tools) == 3
            && gateway.group(Some("plain")).unwrap().view(Revision::NEWEST).count(List::Tools) == 3
    })
    .await;
    for (group, query, step, words) in [
        ("work", "name=notes__write", 0, ""),
        ("work", "name=write", 0, ""),
        ("wrok", "name=write", 1, "did you mean work?"),
        ("default", "name=notes__write", 2, "notes is not among the servers of default"),
        ("work", "name=broken__x", 3, "broken is down"),
        ("work", "name=mute__x", 4, "mute did not return its tools"),
        ("work", "name=notes__wrtie", 5, "it has \"write\""),
        ("work", "name=notes__hidden", 6, "*hidden*"),
        ("plain", "name=files__write", 7, "notes has the same name"),
        ("work", &format!("name=notes__{long}"), 8, "too long"),
    ] {
        let (failed, what) = why(&rialto, group, query).await;
        assert_eq!(failed, step, "{group} {query}: {what}");
        assert!(what.contains(words), "{group} {query}: {what}");
    }
    let old = ScriptedServer::with("old", ServerTransport::Http, |catalog| catalog.tools = vec![tool("both")]).await;
    let new = ScriptedServer::with("new", ServerTransport::PerRequest, |catalog| {
        catalog.tools = vec![tool("both"), tool("newOnly")];
    })
    .await;
    let dual = DualServer::start(old, new).await;
    let legs = Rialto::with(|settings| {
        let spec = UpstreamSpec::new("dual", SpecKind::Target(dual.target()));
        let group = GroupConfig::new("default", [Arc::clone(&spec.name)]);
        settings.gateway = GatewayConfig { upstreams: vec![spec], groups: vec![group] };
    })
    .await;
    until("the newer leg is read", || legs.group().view(Revision::NEWEST).count(List::Tools) == 2).await;
    legs.open("2025-11-25").await.ask("tools/list", json!({})).await;
    until("the older leg is read", || legs.group().view(Revision::V2025_11_25).count(List::Tools) == 1).await;
    assert_eq!(why(&legs, "default", "name=newOnly&as=2026-07-28").await.0, 0);
    let (step, what) = why(&legs, "default", "name=newOnly&as=2025-11-25").await;
    assert_eq!(step, 9, "{what}");
    assert!(what.contains("leg that serves clients of 2025-11-25"), "{what}");
    assert_eq!(rialto.post("/mcp/ruled", &initialize("2025-11-25")).status().await, 200);
    let id = get(&rialto, "sessions").await["items"][0]["id"].as_str().unwrap().to_owned();
    let (step, what) = why(&rialto, "ruled", &format!("name=notes__write&as=2025-11-25&session={id}")).await;
    assert_eq!(step, 10, "{what}");
    assert!(what.contains("do not let"), "{what}");
    let (step, what) = why(&rialto, "ruled", &format!("name=files__write&as=2025-11-25&session={id}")).await;
    assert_eq!(step, 0, "{what}");
    let names = |group: &Value| -> Vec<String> {
        group["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let seen = get(&rialto, &format!("groups/ruled?as=2025-11-25&session={id}")).await;
    assert!(!names(&seen).contains(&"notes__write".to_owned()) && !seen["seen"].to_string().contains("notes__write"));
    assert!(names(&seen).contains(&"files__write".to_owned()), "{seen}");
    assert!(names(&get(&rialto, "groups/ruled?as=2025-11-25").await).contains(&"notes__write".to_owned()));
}

/// The line of the file that each step names.
async fn places(rialto: &Rialto, group: &str, query: &str) -> Vec<(bool, String)> {
    let why = get(rialto, &format!("groups/{group}/why?{query}")).await;
    let steps = why["steps"].as_array().unwrap().iter().filter(|step| step["ok"].is_boolean());
    let place = |step: &Value| step["where"].as_str().unwrap_or_else(|| panic!("{why:#}")).to_owned();
    steps.map(|step| (step["ok"] == true, place(step))).collect()
}

#[tokio::test]
async fn each_step_names_the_line_of_the_file_that_decides() {
    let long = "a".repeat(80);
    let tools = || vec![tool("write"), tool("secret"), tool("hidden"), tool(&long)];
    let notes = ScriptedServer::with("notes", ServerTransport::Http, |catalog| catalog.tools = tools()).await;
    let files = ScriptedServer::with("files", ServerTransport::Http, |catalog| catalog.tools = tools()).await;
    let url = |server: &ScriptedServer| match server.target() {
        Target::Url(address) => address.url.to_string(),
        Target::Command(_) => unreachable!(),
    };
    let lines = [
        "listen = \"127.0.0.1:0\"".to_owned(),
        "[servers.notes]".to_owned(),
        format!("url = \"{}\"", url(&notes)),
        "[servers.files]".to_owned(),
        format!("url = \"{}\"", url(&files)),
        "[servers.gone]".to_owned(),
        "command = \"/absent/program\"".to_owned(),
        "[groups.work]".to_owned(),
        "servers = [\"notes\", \"files\", \"gone\"]".to_owned(),
        "naming = \"plain\"".to_owned(),
        "[groups.work.tools]".to_owned(),
        "deny = [\"hidden\"]".to_owned(),
        "[groups.other]".to_owned(),
        "servers = [\"notes\", \"gone\"]".to_owned(),
        "naming = \"prefix\"".to_owned(),
        "[[policy.rules]]".to_owned(),
        "name = \"no secrets\"\nprincipals = [\"*\"]".to_owned(),
        "deny = { tools = [\"*/secret\"] }".to_owned(),
        "[policy]".to_owned(),
        "default = \"allow\"".to_owned(),
    ];
    let folder = TempFolder::new("why-places");
    folder.write("rialto.toml", &lines.join("\n"));
    let rialto = Rialto::from_file(&folder.0.join("rialto.toml"), |settings| settings.workers = 2).await;
    let group = |name: &str| rialto.inbound.gateway.group(Some(name)).unwrap();
    until("the lists are read", || {
        let count = |name| group(name).view(Revision::NEWEST).count(List::Tools);
        (count("work"), count("other")) == (3, 4)
    })
    .await;
    let open = async |path: &str| {
        assert_eq!(rialto.post(path, &initialize("2025-11-25")).status().await, 200);
        let sessions = get(&rialto, "sessions").await;
        sessions["items"][0]["id"].as_str().unwrap().to_owned()
    };
    let session = open("/mcp/work").await;
    let elsewhere = open("/mcp/other").await;
    let passed = [8, 9, 2, 2, 2, 11, 10, 10, 2];
    for (group, query, lines) in [
        ("work", "name=write".to_owned(), &passed[..]),
        ("wrok", "name=write".to_owned(), &[8]),
        ("other", "name=files__write".to_owned(), &[13, 14]),
        ("work", "name=gone__x".to_owned(), &[8, 9, 6]),
        ("work", "name=notes__wrtie".to_owned(), &[8, 9, 2, 2, 2]),
        ("work", "name=notes__hidden".to_owned(), &[8, 9, 2, 2, 2, 11]),
        ("work", "name=files__write".to_owned(), &[8, 9, 4, 4, 4, 11, 10]),
        ("other", format!("name=notes__{long}"), &[13, 14, 2, 2, 2, 13, 15, 15]),
        ("work", format!("name=secret&as=2025-11-25&session={session}"), &[8, 9, 2, 2, 2, 11, 10, 10, 2, 16]),
        ("work", format!("name=write&as=2025-11-25&session={session}"), &[8, 9, 2, 2, 2, 11, 10, 10, 2, 16]),
        ("work", format!("name=write&as=2025-11-25&session={elsewhere}"), &[8, 9, 2, 2, 2, 11, 10, 10, 2, 13]),
    ] {
        let found = places(&rialto, group, &query).await;
        let expected: Vec<String> = lines.iter().map(|line| format!("rialto.toml:{line}")).collect();
        assert_eq!(found.iter().map(|(_, place)| place.clone()).collect::<Vec<_>>(), expected, "{group} {query}");
        assert!(found.iter().rev().skip(1).all(|(ok, _)| *ok), "{group} {query}: {found:?}");
    }
}
