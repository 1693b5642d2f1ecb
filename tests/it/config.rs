//! Configuration from the command line: `check`, `init`, `schema`, and config files that are served.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::harness::TEST_TIMEOUT;
use crate::process::rialto;

/// A temporary folder, removed on drop.
pub struct TempFolder(pub PathBuf);

struct CommandOutput {
    code: i32,
    output: String,
    errors: String,
}

impl TempFolder {
    pub fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("config-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    /// Runs the binary in this folder.
    async fn run(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = rialto();
        command.current_dir(&self.0).env_remove("RIALTO_CONFIG").env("RIALTO_TEST_TOKEN", "t0ken");
        let output = tokio::time::timeout(TEST_TIMEOUT, command.args(arguments).stdin(Stdio::null()).output());
        let output = output.await.expect("the command exits in time").unwrap();
        CommandOutput {
            code: output.status.code().unwrap(),
            output: String::from_utf8(output.stdout).unwrap(),
            errors: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Serves in this folder and returns the line with the address.
    async fn serve(&self, arguments: &[&str]) -> String {
        self.serve_with_variables(arguments, &[]).await
    }

    async fn serve_with_variables(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut command = rialto();
        command.envs(variables.iter().copied());
        command.current_dir(&self.0).env_remove("RIALTO_CONFIG").stderr(Stdio::null());
        let mut child = command.args(arguments).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        tokio::time::timeout(TEST_TIMEOUT, output.read_line(&mut line)).await.unwrap().unwrap();
        line
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn init_writes_a_config_that_check_and_serve_accept() {
    let folder = TempFolder::new("init");
    let ran = folder.run(&["init"]).await;
    assert_eq!(ran.code, 0, "{}", ran.errors);
    let ran = folder.run(&["check"]).await;
    assert_eq!((ran.code, ran.errors.as_str()), (0, ""));
    for word in ["rialto.toml is valid", "127.0.0.1:3001", "elements", "built-in", "default", "/mcp"] {
        assert!(ran.output.contains(word), "{word}: {}", ran.output);
    }
    folder.write("rialto.toml", "# mine");
    let ran = folder.run(&["init"]).await;
    assert!(ran.code == 1 && ran.errors.contains("--force"), "{}", ran.errors);
    assert_eq!(std::fs::read_to_string(folder.0.join("rialto.toml")).unwrap(), "# mine");
    let ran = folder.run(&["init", "--force"]).await;
    assert_eq!(ran.code, 0, "{}", ran.errors);
    let line = folder.serve(&["--listen", "127.0.0.1:0"]).await;
    assert!(line.contains("/mcp") && !line.contains(":0/"), "{line}");
    let ran = folder.run(&["init", "nowhere/rialto.toml"]).await;
    assert!(ran.code == 1 && ran.errors.contains("cannot be written"), "{}", ran.errors);
}

#[tokio::test]
async fn check_explains_the_config_with_secrets_redacted() {
    let folder = TempFolder::new("explain");
    folder.write(
        "rialto.toml",
        r#"
        listen = "127.0.0.1:4000"
        [access.tokens]
        ann = "${RIALTO_TEST_TOKEN}"
        [defaults]
        idle_timeout = "2m"
        [servers.files]
        command = "npx"
        args = ["--key", "${RIALTO_TEST_TOKEN}"]
        [servers.tracker]
        url = "https://tracker.example/mcp?key=${RIALTO_TEST_TOKEN}"
        headers = { Authorization = "Bearer ${RIALTO_TEST_TOKEN}" }
        revision = "2025-06-18"
        connection = "shared"
        [servers.old]
        builtin = "elements"
        disabled = true
        [servers.tool]
        command = "/opt/${RIALTO_TEST_TOKEN}/run"
        disabled = true
        [groups.research]
        servers = ["files", "tracker", "old"]
        naming = "plain"
        "#,
    );
    let ran = folder.run(&["check"]).await;
    assert_eq!(ran.code, 0, "{}", ran.errors);
    for word in ["127.0.0.1:4000", "ann", "npx", "tracker.example", "2025-06-18", "shared", "/mcp/research", "plain"] {
        assert!(ran.output.contains(word), "{word}: {}", ran.output);
    }
    assert!(ran.output.contains("/opt/***/run"), "{}", ran.output);
    assert!(ran.output.contains("old (disabled)"), "{}", ran.output);
    let changed = ran.output.lines().find(|line| line.contains("defaults.idle_timeout")).expect("a changed setting");
    assert!(changed.contains("\"2m\"") && changed.contains("\"1m\""), "{changed}");
    assert!(!ran.output.contains("defaults.total_timeout"), "{}", ran.output);
    let json_output = folder.run(&["check", "--json", "rialto.toml"]).await;
    let value: Value = serde_json::from_str(&json_output.output).unwrap();
    assert_eq!((&value["ok"], &value["problems"]), (&json!(true), &json!([])));
    assert_eq!(value["settings"]["listen"], "127.0.0.1:4000");
    assert_eq!(value["settings"]["access"]["tokens"], json!(["ann"]));
    assert_eq!(value["settings"]["limits"]["keep_alive_timeout"], "75s");
    assert_eq!(value["servers"][1]["connection"], "shared");
    assert_eq!(value["servers"][0]["idleTimeout"], "2m");
    assert_eq!(value["servers"][3]["target"], "/opt/***/run");
    assert_eq!(value["groups"][0]["servers"], json!(["files", "tracker"]));
    assert_eq!(value["groups"][1]["address"], "/mcp/research");
    assert!(!ran.output.contains("t0ken") && !json_output.output.contains("t0ken"), "{}", ran.output);
}

#[tokio::test]
async fn check_reports_all_config_errors_at_once() {
    let folder = TempFolder::new("mistakes");
    folder.write("bad.toml", "listn = 1\n[servers.a]\ncomand = \"x\"\nurl = \"${RIALTO_NOT_SET}\"\n");
    let ran = folder.run(&["check", "bad.toml"]).await;
    assert_eq!(ran.code, 1);
    for line in [
        "bad.toml:1:1: error: unknown key `listn`; did you mean `listen`?",
        "bad.toml:3:1: error: unknown key `comand` in [servers.a]; did you mean `command`?",
        "bad.toml:4:8: error: the variable `RIALTO_NOT_SET` is not set",
        "bad.toml is not valid: 3 errors",
    ] {
        assert!(ran.errors.contains(line), "{line}: {}", ran.errors);
    }
    let report: Value = serde_json::from_str(&folder.run(&["check", "--json", "bad.toml"]).await.output).unwrap();
    assert_eq!((&report["ok"], report["problems"].as_array().unwrap().len()), (&json!(false), 3));
    assert_eq!(report["problems"][1]["hint"], "did you mean `command`?");
    for command in ["serve", "stdio"] {
        let ran = folder.run(&[command, "--config", "bad.toml"]).await;
        assert!(ran.code == 2 && ran.errors.contains("bad.toml:1:1"), "{}", ran.errors);
    }
    let ran = folder.run(&["check", "nowhere.toml"]).await;
    assert!(ran.code == 1 && ran.errors.contains("nowhere.toml:1:1: error: the file cannot be read"), "{}", ran.errors);
    assert_eq!(folder.run(&["check", "--nonsense"]).await.code, 2);
}

#[tokio::test]
async fn check_without_a_file_explains_the_built_in_server() {
    let folder = TempFolder::new("none");
    let ran = folder.run(&["check"]).await;
    assert!(
        ran.code == 0 && ran.output.contains("no rialto.toml") && ran.output.contains("elements"),
        "{}",
        ran.output
    );
}

#[tokio::test]
async fn flags_override_variables_which_override_the_config() {
    let folder = TempFolder::new("listen");
    folder.write("rialto.toml", "listen = \"127.0.0.2:0\"");
    assert!(folder.serve(&[]).await.contains("http://127.0.0.2:"));
    assert!(folder.serve(&["serve", "--listen", "127.0.0.3:0"]).await.contains("http://127.0.0.3:"));
    let variable = [("RIALTO_LISTEN", "127.0.0.4:0")];
    assert!(folder.serve_with_variables(&[], &variable).await.contains("http://127.0.0.4:"));
    let line = folder.serve_with_variables(&["--listen", "127.0.0.3:0"], &variable).await;
    assert!(line.contains("http://127.0.0.3:"), "{line}");
    let ran = folder.run(&["stdio", "--group", "nope"]).await;
    assert!(ran.code == 2 && ran.errors.contains("unknown group \"nope\"; groups: default"), "{}", ran.errors);
}

#[tokio::test]
async fn the_config_json_schema_is_printed() {
    let folder = TempFolder::new("schema");
    let ran = folder.run(&["schema"]).await;
    let schema: Value = serde_json::from_str(&ran.output).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(
        schema["properties"]["servers"]["additionalProperties"]["properties"]["max_input_rounds"]["type"],
        "integer"
    );
}

/// Whoever copies an example serves nobody unknown.
#[test]
fn deploy_examples_are_closed_by_default() {
    let read = |name: &str| {
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)).unwrap()
    };
    let kubernetes = read("kubernetes.yaml");
    let (_, block) = kubernetes.split_once("rialto.toml: |\n").unwrap();
    let file: Vec<&str> = block.lines().take_while(|line| *line != "---").map(|line| line.trim_start()).collect();
    let variable = |name: &str| match name {
        "RIALTO_STORE_URL" => Some("redis://:s3cret@store".to_owned()),
        "RIALTO_TOKEN_ANN" | "RIALTO_ADMIN_TOKEN" | "POD_NAME" => Some(name.to_lowercase().replace('_', "-")),
        _ => None,
    };
    let format = rialto::config::ConfigFormat::Toml;
    let loaded =
        rialto::config::parse(&file.join("\n"), std::path::Path::new("rialto.toml"), format, &variable).unwrap();
    let settings = &loaded.config.settings;
    assert!(!settings.access.tokens.is_empty() && settings.admin.token.is_some() && settings.admin.listen.is_some());
    // The ingress ends TLS.
    let warnings = loaded.config.exposure_warnings();
    assert!(warnings.iter().all(|warning| warning.contains("in the clear unless a proxy")), "{warnings:?}");
    let own_tls = rialto::config::parse(&read("tls.toml"), std::path::Path::new("tls.toml"), format, &variable);
    assert_eq!(own_tls.unwrap().config.exposure_warnings(), Vec::<String>::new());
    assert!(!settings.access.hosts.iter().chain(&settings.access.origins).any(|allowed| allowed == "*"));
    let (services, _) = kubernetes.split_once("kind: StatefulSet").unwrap();
    assert!(
        !services.contains("port: 3002") && !services.contains("targetPort: 3002"),
        "the admin port has no service"
    );
    for part in ["kind: NetworkPolicy", "secretKeyRef: { name: rialto, key: token-ann }", "key: admin-token"] {
        assert!(kubernetes.contains(part), "{part}");
    }

    let compose = read("compose.yaml");
    for part in ["--requirepass", "RIALTO_TOKEN: ", "inside: { internal: true }", "${RIALTO_HOST:?"] {
        assert!(compose.contains(part), "{part}");
    }
    assert!(!compose.contains("\"*\"") && compose.matches("ports:").count() == 1, "only the front is published");
    for proxy in [&compose, &read("nginx.conf")] {
        for part in ["location /metrics { return 404; }", "location /admin { return 404; }", "X-Forwarded-For"] {
            assert!(proxy.contains(part), "{part}");
        }
    }
}
