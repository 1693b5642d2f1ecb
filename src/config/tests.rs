//! Tests with complete configuration files.

mod mistakes;
mod reference;
mod table;

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::keys::ConfigKey;
use super::settings::{DEFAULTS, FILTER, TOP_LEVEL};
use super::structure::{ARGUMENT, GROUP, ISSUER, SERVER, SERVER_KIND_KEYS, TOOL};
use super::*;
use crate::gateway::Naming;
use crate::local::rest::{DocumentSource, ManualBody};
use crate::mcp_client::{HttpTransport, Target};
use crate::policy::{CallQuota, LimitScope, QuotaWindow, Rate};
use crate::upstream::ConnectionMode;

fn lookup(name: &str) -> Option<String> {
    match name {
        "TOKEN" | "ANN_TOKEN" => Some("t0ken".to_owned()),
        "PORT" => Some("4321".to_owned()),
        "BAD" => Some("b\u{1}d s3cret".to_owned()),
        "HOME" => Some("/home/ann".to_owned()),
        _ => None,
    }
}

/// The diagnostics of a text, one per line, without the file name.
fn diagnostics_of(text: &str, name: &str) -> String {
    let path = Path::new(name);
    let diagnostics = match parse(text, path, ConfigFormat::detect(path, text), &lookup) {
        Ok(loaded) => loaded.warnings,
        Err(diagnostics) => diagnostics,
    };
    diagnostics
        .iter()
        .map(|diagnostic| diagnostic.to_string().replacen(&format!("{name}:"), "", 1))
        .collect::<Vec<_>>()
        .join("\n")
}

fn toml(text: &str) -> Config {
    match parse(text, Path::new("rialto.toml"), ConfigFormat::Toml, &lookup) {
        Ok(loaded) => loaded.config,
        Err(diagnostics) => panic!("{text}\n{}", diagnostics.iter().map(|p| format!("{p}\n")).collect::<String>()),
    }
}

fn json(text: &str) -> Config {
    match parse(text, Path::new("project/.vscode/mcp.json"), ConfigFormat::McpJson, &lookup) {
        Ok(loaded) => loaded.config,
        Err(diagnostics) => panic!("{text}\n{diagnostics:?}"),
    }
}

#[test]
fn servers_and_groups_keep_file_order() {
    let config = toml(
        r#"
        listen = "127.0.0.1:${PORT}"
        [defaults]
        idle_timeout = "2m"
        connection = "shared"
        [servers.zebra]
        command = "npx"
        args = ["-y", "$${literal}"]
        env = { Z = "1", A = "2" }
        cwd = "."
        ping_interval = "off"
        [servers.apple]
        url = "https://tracker.example/mcp"
        headers = { Authorization = "Bearer ${TOKEN}" }
        type = "sse"
        revision = 2025-06-18
        connection = "per-client"
        [servers.off]
        builtin = "elements"
        disabled = true
        [groups.research]
        servers = ["apple", "zebra", "off"]
        naming = "plain"
        tools = { allow = ["get*"] }
        page_size = 10
        "#,
    );
    assert_eq!(config.settings.listen.port(), 4321);
    assert_eq!(config.servers.iter().map(|server| &*server.name).collect::<Vec<_>>(), ["zebra", "apple", "off"]);
    let [zebra, apple, off] = config.servers.as_slice() else { panic!("three") };
    let ServerKind::Target(Target::Command(command)) = &zebra.kind else { panic!("{zebra:?}") };
    assert_eq!(command.arguments, ["-y", "${literal}"]);
    assert_eq!(command.environment, [("Z".to_owned(), "1".to_owned()), ("A".to_owned(), "2".to_owned())]);
    assert_eq!((zebra.settings.idle_timeout, zebra.settings.ping_interval), (Duration::from_secs(120), None));
    assert_eq!(
        (zebra.settings.connection, apple.settings.connection),
        (Some(ConnectionMode::Shared), Some(ConnectionMode::PerClient))
    );
    let ServerKind::Target(Target::Url(address)) = &apple.kind else { panic!("{apple:?}") };
    assert_eq!(address.headers["authorization"], "Bearer t0ken");
    assert!(address.headers["authorization"].is_sensitive());
    assert_eq!(address.transport, Some(HttpTransport::Sse));
    assert_eq!(apple.settings.revision.unwrap().to_string(), "2025-06-18");
    assert!(off.disabled && off.kind == ServerKind::Elements);
    assert_eq!(config.groups.iter().map(|group| &*group.name).collect::<Vec<_>>(), ["default", "research"]);
    let members = |name| config.group(name).unwrap().servers.iter().map(|name| &**name).collect::<Vec<_>>();
    assert_eq!(members(None), ["zebra", "apple"]);
    assert_eq!(members(Some("research")), ["apple", "zebra"]);
    let research = config.group(Some("research")).unwrap();
    assert_eq!((research.settings.naming, research.settings.page_size), (Naming::Plain, 10));
    let tools = crate::gateway::NameFilter::new(&research.settings.tools.allow, &research.settings.tools.deny);
    assert!(tools.allows("getUser") && !tools.allows("putUser"));
}

#[test]
fn empty_file_serves_the_built_in_server() {
    assert_eq!(toml(""), Config::default());
    assert_eq!(toml("# only a comment"), Config::default());
    assert_eq!(toml("[defaults]\nidle_timeout = \"5s\"").servers[0].settings.idle_timeout, Duration::from_secs(5));
    assert_eq!(toml(&starter_config()), Config::default());
}

#[test]
fn commented_lines_of_the_starter_file_are_valid() {
    let shown =
        |line: &str| line.starts_with("# [") || line.split_once(" = ").is_some_and(|(key, _)| !key[2..].contains(' '));
    let bare = |line: &str| match line.strip_prefix("# ") {
        Some(bare) if shown(line) => format!("{bare}\n"),
        _ => format!("{line}\n"),
    };
    let text: String = starter_config().lines().map(bare).collect();
    let loaded = parse(&text, Path::new("rialto.toml"), ConfigFormat::Toml, &|_| Some("x".to_owned()));
    let messages: Vec<String> = loaded.unwrap_err().iter().map(|diagnostic| diagnostic.message.clone()).collect();
    assert_eq!(messages, ["the `openapi` file does not exist"], "{text}");
    assert!(text.lines().filter(|line| line.starts_with('[')).count() > 6, "{text}");
}

#[test]
fn unset_timeout_follows_the_one_that_is_set() {
    let settings =
        |text: &str| toml(&format!("[servers.a]\nbuiltin = \"elements\"\n{text}")).servers[0].settings.clone();
    assert_eq!(settings("idle_timeout = \"1h\"").total_timeout, Duration::from_secs(3600));
    assert_eq!(settings("total_timeout = \"5s\"").idle_timeout, Duration::from_secs(5));
}

#[test]
fn rest_servers_are_read() {
    let config = toml(
        r#"
        [servers.weather]
        base_url = "https://api.example/v1"
        openapi = "https://api.example/openapi.json"
        headers = { X-Key = "${TOKEN}" }
        query = { key = "${TOKEN}" }
        operations = { allow = ["get*"], deny = ["*Internal"] }
        [[servers.weather.tools]]
        name = "forecast"
        title = "Forecast"
        description = "The days to come."
        method = "POST"
        url = "/forecast/{city}"
        headers = { Accept = "application/json" }
        body = { days = "{days}", units = ["C", 1, 1.5, true] }
        result_path = "data.days"
        read_only = true
        destructive = false
        idempotent = true
        [servers.weather.tools.arguments.city]
        description = "Where."
        required = true
        [servers.weather.tools.arguments.days]
        type = "integer"
        default = 3
        enum = [1, 3, 7]
        "#,
    );
    let ServerKind::Rest(rest) = &config.servers[0].kind else { panic!("{config:?}") };
    assert!(matches!(&rest.document, Some(DocumentSource::Url(url)) if url.host() == Some("api.example")));
    assert_eq!((rest.query[0].1.as_str(), rest.allow.len(), rest.deny.len()), ("t0ken", 1, 1));
    let tool = &rest.tools[0];
    assert_eq!(
        (tool.method.as_str(), tool.result_path.as_deref(), tool.read_only),
        ("POST", Some("data.days"), Some(true))
    );
    let Some(ManualBody::Json(body)) = &tool.body else { panic!("{tool:?}") };
    assert_eq!(body["units"], serde_json::json!(["C", 1, 1.5, true]));
    let [city, days] = tool.arguments.as_slice() else { panic!("{tool:?}") };
    assert_eq!((city.name.as_str(), city.kind.as_str(), city.required), ("city", "string", true));
    assert_eq!((days.kind.as_str(), days.choices.len(), &days.default), ("integer", 3, &Some(3.into())));
    assert!(!format!("{config:?}").contains("t0ken"));
}

#[test]
fn mcp_json_variants_of_other_clients_are_imported() {
    let config = json(
        r#"{
          // As in Visual Studio Code.
          "inputs": [{ "id": "x" }],
          "servers": {
            "My Files": { "type": "stdio", "command": "npx", "args": ["-y", "${workspaceFolder}/x"], "env": { "A": "${env:TOKEN}", "N": 5 }, "cwd": "sub" },
            "my-files": { "url": "https://h/mcp", "type": "http", "headers": { "Authorization": "Bearer ${TOKEN}" }, },
            "日本": { "serverUrl": "http://h/sse", "transport": "sse", "disabled": true },
            "old": { "httpUrl": "http://h/mcp", "enabled": false, "url": null },
          },
        }"#,
    );
    let names: Vec<_> =
        config.servers.iter().map(|server| (&*server.name, &*server.original_name, server.disabled)).collect();
    assert_eq!(
        names,
        [
            ("my-files", "My Files", false),
            ("my-files-2", "my-files", false),
            ("server", "日本", true),
            ("old", "old", true)
        ]
    );
    assert_eq!(config.groups.len(), 1);
    assert_eq!(config.groups[0].servers.len(), 2);
    let ServerKind::Target(Target::Command(command)) = &config.servers[0].kind else { panic!("{config:?}") };
    let workspace = std::path::absolute("project").unwrap();
    assert_eq!(command.arguments[1], format!("{}/x", workspace.display()));
    assert_eq!(command.environment[0].1, "t0ken");
    assert_eq!(command.environment[1].1, "5");
    assert_eq!(command.working_directory.as_deref(), Some(workspace.join("sub").as_path()));
    let transport = |at: usize| match &config.servers[at].kind {
        ServerKind::Target(Target::Url(address)) => address.transport,
        other => panic!("{other:?}"),
    };
    assert_eq!((transport(1), transport(2), transport(3)), (None, Some(HttpTransport::Sse), None));
    assert_eq!(config.servers[0].settings, UpstreamSettings::default());
    // As in desktop clients, and nested in the settings of an editor.
    assert_eq!(json(r#"{"globalShortcut":"","mcpServers":{"a":{"command":"x"}}}"#).servers.len(), 1);
    assert_eq!(json(r#"{"mcp":{"servers":{"a":{"command":"x"}}},"editor.fontSize":12}"#).servers.len(), 1);
}

#[test]
fn env_file_is_imported() {
    const ENV_FILE: &str =
        "# comment\nexport A=1\nB=\"two words\"\n\nC='x=y'\nD=old\nnonsense\nE=pa$$word\nF=two words\nG=C:\\dir\n";
    let folder = std::env::temp_dir().join(format!("rialto-env-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("a.env"), ENV_FILE).unwrap();
    let text = r#"{"mcpServers":{"a":{"command":"x","envFile":"${workspaceFolder}/a.env","env":{"D":"new"}}}}"#;
    let loaded = parse(text, &folder.join("mcp.json"), ConfigFormat::McpJson, &lookup).unwrap();
    let ServerKind::Target(Target::Command(command)) = &loaded.config.servers[0].kind else { panic!("a command") };
    let literal = [
        ("A", "1"),
        ("B", "two words"),
        ("C", "x=y"),
        ("E", "pa$$word"),
        ("F", "two words"),
        ("G", "C:\\dir"),
        ("D", "new"),
    ];
    let pairs: Vec<_> = command.environment.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(pairs, literal);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn imported_names_are_normalized() {
    for (name, slug) in [
        ("My Server", "my-server"),
        ("@scope/pkg_name", "scope-pkg-name"),
        ("--x--", "x"),
        ("", "server"),
        ("ÄÖÜ", "server"),
        ("abcdefghijklmnopqrstuvw-xyz", "abcdefghijklmnopqrstuvw"),
    ] {
        assert_eq!(import::slug(name, &[]), slug, "{name}");
        assert!(servers::is_valid_name(&import::slug(name, &[slug])), "{name}");
    }
    assert_eq!(import::slug("a b", &["a-b", "a-b-2"]), "a-b-3");
    for (name, fits) in [("a", true), ("0-a", true), ("-a", false), ("A", false), ("a_b", false), ("", false)] {
        assert_eq!(servers::is_valid_name(name), fits, "{name}");
    }
}

#[test]
fn target_resolves_despite_errors_in_other_servers() {
    let folder = std::env::temp_dir().join(format!("rialto-target-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("mcp.json");
    let text = r#"{"mcpServers":{"My Good":{"command":"x"},"bad":{"command":"${RIALTO_NOT_SET}"}}}"#;
    std::fs::write(&file, text).unwrap();
    assert_eq!(resolve_target(&file, "My Good").unwrap(), resolve_target(&file, "my-good").unwrap());
    for (name, word) in [("bad", "RIALTO_NOT_SET"), ("my god", "did you mean \"My Good\"?"), ("qqq", "it has My Good")]
    {
        let error = resolve_target(&file, name).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let file = folder.join("rialto.toml");
    std::fs::write(&file, "[servers.here]\nurl = \"http://h\"\n[servers.table]\nbuiltin = \"elements\"").unwrap();
    assert!(matches!(resolve_target(&file, "here"), Ok((Target::Url(_), _))));
    assert!(resolve_target(&file, "table").unwrap_err().to_string().contains("no URL or command of its own"));
    assert!(resolve_target(&folder.join("none.json"), "x").unwrap_err().to_string().contains("cannot be read"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn secrets_are_collected() {
    let text = r#"
        store = "redis://:store-pass@h"
        [access.tokens]
        ann = "caller-token"
        [cluster]
        sealing_key = "a-key-of-sixteen"
        [servers.a]
        command = "${DIR}/run"
        env = { API_KEY = "env-secret", MODE = "production", HOME_OF = "${HOME}", PORT = "${PORT}" }
        [servers.b]
        url = "http://h/${IN_PATH}"
        headers = { Authorization = "Bearer header-secret", Accept = "text/plain" }
    "#;
    let lookup = |name: &str| match name {
        "DIR" => Some("/from/variable".to_owned()),
        "HOME" => Some("/home/ann".to_owned()),
        "PORT" => Some("8080".to_owned()),
        "IN_PATH" => Some("path-secret".to_owned()),
        _ => None,
    };
    let loaded = parse(text, Path::new("rialto.toml"), ConfigFormat::Toml, &lookup).unwrap();
    let expected = [
        "store-pass",
        "caller-token",
        "a-key-of-sixteen",
        "/from/variable",
        "env-secret",
        "path-secret",
        "Bearer header-secret",
        "header-secret",
    ];
    assert_eq!(loaded.secrets, Secrets::new(expected.map(str::to_owned)));
    let text = r#"{"mcpServers":{"a":{"command":"${DIR}","cwd":"${workspaceFolder}","env":{"TOKEN":"json-secret"}}}}"#;
    let loaded = parse(text, Path::new("/etc/mcp.json"), ConfigFormat::McpJson, &lookup).unwrap();
    assert_eq!(loaded.secrets, Secrets::new(["/from/variable", "json-secret"].map(str::to_owned)));
}

#[test]
fn file_format_is_detected() {
    for (path, text, format) in [
        ("a.toml", "{", ConfigFormat::Toml),
        ("a.json", "x", ConfigFormat::McpJson),
        ("a.jsonc", "", ConfigFormat::McpJson),
        ("a", " \n{", ConfigFormat::McpJson),
        ("a", "// x\n{", ConfigFormat::McpJson),
        ("a.conf", "listen = 1", ConfigFormat::Toml),
    ] {
        assert_eq!(ConfigFormat::detect(Path::new(path), text), format, "{path} {text}");
    }
    let bom = "\u{feff}listen = \"127.0.0.1:1\"";
    assert_eq!(toml(bom).settings.listen.port(), 1);
}

/// A file with the example line of a key, and the same file without it.
fn with_and_without(before: &str, key: &ConfigKey, after: &str) -> (String, String) {
    (format!("{before}\n{} = {}\n{after}", key.name, key.example), format!("{before}\n{after}"))
}

#[test]
fn every_key_changes_the_configuration() {
    let other = "[servers.a]\nbuiltin = \"elements\"\n[servers.b]\nbuiltin = \"elements\"\n";
    let mut files = Vec::new();
    for key in TOP_LEVEL.keys() {
        match key.value_type {
            keys::ValueType::Table(section) => {
                let before = format!("[{}]", key.name);
                files.extend(section.keys().map(|key| with_and_without(&before, key, "")));
            }
            keys::ValueType::NamedTables(_) => {}
            _ => files.push(with_and_without("", key, "")),
        }
    }
    for key in SERVER.keys() {
        let kind = match key.server_kinds.first() {
            _ if SERVER_KIND_KEYS.contains(&key.name) => "",
            Some(&"command") => "command = \"x\"",
            Some(&"url") => "url = \"http://h\"",
            Some(&"base_url") => "base_url = \"http://h\"\ntools = []",
            _ => "builtin = \"elements\"",
        };
        let kind = if key.name == "tools" { "base_url = \"http://h\"\nopenapi = \"http://h\"" } else { kind };
        let (with, mut without) = with_and_without(
            &format!("[servers.a]\n{kind}"),
            key,
            if key.name == "base_url" { "tools = []" } else { "" },
        );
        if SERVER_KIND_KEYS.contains(&key.name) {
            without = "[servers.a]\ncommand = \"other\"".to_owned();
        }
        files.push((with, without));
    }
    for key in ISSUER.keys() {
        let needed = match key.name {
            "issuer" => "issuer = \"https://other.example\"",
            "audience_claim" => "issuer = \"https://h\"\naudiences = [\"a\"]",
            "token_format" => "issuer = \"https://h\"\nclient_id = \"a\"\nclient_secret = \"s3cret\"",
            _ => "issuer = \"https://h\"",
        };
        let (with, without) = with_and_without(&format!("[access.issuers.a]\n{needed}"), key, "");
        let with = if key.name == "issuer" { with.replace(&format!("{needed}\n"), "") } else { with };
        files.push((with, without));
    }
    files.extend(GROUP.keys().map(|key| with_and_without(&format!("{other}[groups.default]"), key, "")));
    files.extend(FILTER.keys().map(|key| with_and_without(&format!("{other}[groups.default.tools]"), key, "")));
    for key in TOOL.keys() {
        let needed: String = TOOL
            .keys()
            .filter(|other| matches!(other.value_type, keys::ValueType::RequiredString) && other.name != key.name)
            .map(|key| format!("{} = \"x\"\n", key.name))
            .collect();
        let (with, without) =
            with_and_without(&format!("[servers.a]\nbase_url = \"http://h\"\n[[servers.a.tools]]\n{needed}"), key, "");
        let without =
            if needed.matches('\n').count() == 2 { without } else { format!("{without}\n{} = \"other\"", key.name) };
        files.push((with, without));
    }
    for key in ARGUMENT.keys() {
        let before = "[servers.a]\nbase_url = \"http://h\"\n[[servers.a.tools]]\nname = \"x\"\nurl = \"x\"\n[servers.a.tools.arguments.b]";
        let (with, without) = with_and_without(before, key, "");
        // The example type must fit the other examples, so it is compared with another type.
        files.push((with, if key.name == "type" { format!("{without}\ntype = \"array\"") } else { without }));
    }
    for (with, without) in files {
        assert_ne!(
            toml(&with),
            toml(&without),
            "this key has no effect:
{with}"
        );
    }
}

#[test]
fn defaults_of_the_tables_are_those_of_the_code() {
    let line = |key: &ConfigKey| format!("{} = {}\n", key.name, key.starter_value());
    let literal = |key: &&ConfigKey| matches!(key.default, keys::KeyDefault::Value(_)) && key.default_text().is_some();
    let mut text = String::new();
    for key in TOP_LEVEL.keys() {
        match key.value_type {
            keys::ValueType::Table(section) => {
                text += &format!("[{}]\n{}", key.name, section.keys().filter(literal).map(line).collect::<String>());
            }
            _ if literal(&key) => text.insert_str(0, &line(key)),
            _ => {}
        }
    }
    assert_eq!(toml(&text), Config::default(), "{text}");
    assert!(DEFAULTS.keys().filter(literal).count() > 12, "{text}");
    // Upstreams that are made without a file have the same settings.
    let [upstream] = &Config::default().gateway_config().upstreams[..] else { panic!("one upstream") };
    let spec = crate::upstream::UpstreamSpec::new("elements", upstream.kind.clone());
    assert_eq!(*upstream, spec);
}

#[test]
fn deep_nesting_is_refused() {
    for text in ["[".repeat(100_000), "a = ".to_owned() + &"[".repeat(100_000), "{\"a\":".repeat(100_000)] {
        assert!(!diagnostics_of(&text, "rialto.toml").is_empty());
        assert!(!diagnostics_of(&text, "mcp.json").is_empty());
    }
}

/// A file with many features, for mutation.
const WHOLE: &str = "listen = \"127.0.0.1:1\"\n[defaults]\nidle_timeout = \"2m\"\n[servers.a]\ncommand = \"x\"\nargs = [\"${TOKEN}\", \"é\"]\n[servers.b]\nurl = \"https://h\"\nheaders = { A = \"b\" }\n[servers.c]\nbase_url = \"http://h\"\n[[servers.c.tools]]\nname = \"t\"\nurl = \"/{x}\"\n[servers.c.tools.arguments.x]\ntype = \"integer\"\n[groups.g]\nservers = [\"a\", \"b\"]\ntools = { allow = [\"*\"] }\n";
const WHOLE_JSON: &str = "{ // c\n \"servers\": { \"a b\": { \"command\": \"x\", \"args\": [\"${TOKEN}\"], \"env\": {\"é\": \"b\"} }, \"c\": { \"url\": \"http://h\", \"type\": \"sse\" }, } }";

proptest! {
    #[test]
    fn random_text_never_panics(text in "\\PC{0,200}") {
        diagnostics_of(&text, "rialto.toml");
        diagnostics_of(&text, "mcp.json");
    }

    #[test]
    fn mutated_file_never_panics_or_leaks_secrets(at in 0..WHOLE.len(), cut in 0..20usize, put in "[\\[\\]{}=\"'.,$0-9a-z\n é-]{0,6}") {
        for (whole, name) in [(WHOLE, "rialto.toml"), (WHOLE_JSON, "mcp.json")] {
            let letters: Vec<char> = whole.chars().collect();
            let at = at % letters.len();
            let rest = &letters[(at + cut).min(letters.len())..];
            let text: String = letters[..at].iter().copied().chain(put.chars()).chain(rest.iter().copied()).collect();
            for line in diagnostics_of(&text, name).lines() {
                prop_assert!(!line.contains("t0ken"));
            }
        }
    }
}

#[test]
fn limits_are_read_whole() {
    let config = toml(
        r#"
        [[policy.limits]]
        name = "searches"
        principals = ["role:engineering"]
        groups = ["default"]
        tools = ["elements/get*"]
        per = ["caller", "tool"]
        rate = "30/m"
        quota = "1000/month"
        max_in_flight = 2
        max_argument_bytes = "64KiB"
        total_timeout = "30s"
        exact = true

        [[policy.limits]]
        name = "all"
        rate = "20/s"
        burst = 60
        "#,
    );
    let [searches, all] = &config.app_settings().rate_limits[..] else { panic!("two limits") };
    assert_eq!(searches.per, [LimitScope::Caller, LimitScope::Tool]);
    assert_eq!(searches.rate, Some(Rate { count: 30, period: Duration::from_secs(60), burst: 30 }));
    assert_eq!(searches.quota, Some(CallQuota { count: 1000, window: QuotaWindow::Month }));
    assert_eq!((searches.max_in_flight, searches.max_argument_bytes), (Some(2), Some(64 << 10)));
    assert_eq!((searches.total_timeout, searches.exact), (Some(Duration::from_secs(30)), true));
    assert!(searches.has_targets() && !all.has_targets());
    assert_eq!(all.rate, Some(Rate { count: 20, period: Duration::from_secs(1), burst: 60 }));
}

#[test]
fn rules_make_a_book_unless_everything_is_allowed() {
    use crate::policy::rules::DefaultAccess;
    let rule = "[[policy.rules]]\nprincipals = [\"*\"]\nallow = { tools = [\"elements/*\"] }\n";
    for (text, expected) in [
        ("", None),
        ("[policy]\ndefault = \"allow\"", None),
        ("[policy]\ndefault = \"deny\"", Some(DefaultAccess::Deny)),
        (rule, Some(DefaultAccess::Deny)),
        (&format!("[policy]\ndefault = \"allow\"\n{rule}"), Some(DefaultAccess::Allow)),
    ] {
        let config = toml(text);
        assert_eq!(config.rule_book().map(|book| book.default_access()), expected, "{text}");
        assert_eq!(config.rule_book(), toml(text).rule_book(), "the same file gives an equal book");
        assert!(config.gateway_config().groups.iter().all(|group| group.rules.is_some() == expected.is_some()));
    }
}
