//! `config`: the configuration file as it is served, checking another one, and writing it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute, entity_tag, rfc3339};
use super::{Console, shell_words};
use crate::admin::ReloadReport;
use crate::config::{self, ConfigFormat, Diagnostic, LoadedConfig, Severity};
use crate::policy::OperatorRight::{self, Act, Edit, Look};
use crate::redact::redact;
use crate::upstream::UpstreamSpec;

/// The text of the configuration file.
#[derive(Debug)]
pub(super) struct FileText {
    path: PathBuf,
    /// Name of the file, without its folder.
    pub(super) name: String,
    text: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckBody {
    text: Option<String>,
    add: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteBody {
    text: String,
}

/// What stands in place of a secret.
const MASK: &str = "***";

pub(super) fn routes() -> Vec<ApiRoute> {
    vec![
        ApiRoute::get("config", Look, |request| Box::pin(async move { read(&request) })),
        ApiRoute::post("config/check", Act, |request| Box::pin(async move { check(&request) })),
        ApiRoute::put("config", Edit, |request| Box::pin(async move { write(&request) })),
    ]
}

impl FileText {
    /// Reads the file that the gateway was started with.
    pub(super) fn read(console: &Console) -> Option<Self> {
        let path = PathBuf::from(console.inbound().ok()?.admin.status().configuration.file?);
        let text = std::fs::read_to_string(&path).ok()?;
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(Self { path, name, text })
    }

    /// The same with every secret masked.
    pub(super) fn masked(self) -> Self {
        Self { text: masked(&self.path, &self.text), ..self }
    }

    /// Where a table, or a key in it, stands: `rialto.toml:14`.
    pub(super) fn place(&self, table: &str, key: Option<&str>) -> Option<String> {
        let (line, part) = self.table(table)?;
        let names = |text: &str, key: &str| {
            let is_in_table = text.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(['=', '.']));
            is_in_table || text == format!("[{table}.{key}]")
        };
        let offset = key.and_then(|key| part.lines().position(|text| names(text.trim(), key))).unwrap_or(0);
        Some(format!("{}:{}", self.name, line + offset))
    }

    /// The line and the text of a table with what is in it.
    pub(super) fn table(&self, table: &str) -> Option<(usize, String)> {
        let is_of = |line: &str| {
            let name = line.trim_start().trim_start_matches('[');
            name.strip_prefix(table).is_some_and(|rest| rest.trim_end().starts_with([']', '.']))
        };
        let is_header = |line: &str| line.trim_start().starts_with('[');
        let lines: Vec<&str> = self.text.lines().collect();
        let start = lines.iter().position(|line| is_header(line) && is_of(line))?;
        let is_next = |line: &str| is_header(line) && !is_of(line);
        let length = lines[start + 1..].iter().position(|line| is_next(line)).map_or(lines.len() - start, |at| at + 1);
        Some((start + 1, lines[start..start + length].join("\n").trim_end().to_owned()))
    }
}

fn read(request: &AdminRequest) -> ApiResult {
    let (console, inbound) = (&request.console, request.console.inbound()?);
    let status = inbound.admin.status().configuration;
    let file = FileText::read(console);
    let problems = file.as_ref().map(|file| check_text(&file.path, &file.text).1).unwrap_or_default();
    let format = file.as_ref().map(|file| match ConfigFormat::detect(&file.path, &file.text) {
        ConfigFormat::Toml => "toml",
        ConfigFormat::McpJson => "json",
    });
    let tag = file.as_ref().map(|file| entity_tag(file.text.as_bytes()));
    let time = |seconds: u64| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let answer = json!({
        "file": status.file,
        "format": format,
        "text": file.as_ref().map(|file| masked(&file.path, &file.text)),
        "etag": tag,
        "problems": problems,
        "applied": status.applied.map(time),
        "refused": status.refused.map(time),
        "restart": status.restart,
        "reloads": inbound.admin.reloads().iter().map(reload_json).collect::<Vec<_>>(),
        "editable": file.is_some() && inbound.policy().console.edit && request.operator.may >= Edit,
    });
    let answer = ApiAnswer::json(&answer);
    Ok(match tag {
        Some(tag) => answer.with_header("etag", tag),
        None => answer,
    })
}

/// Those of the servers that are commands, which only some operators may run.
fn commands(loaded: Option<&LoadedConfig>, names: &[String]) -> Vec<String> {
    let servers = loaded.map(|loaded| loaded.config.app_settings().gateway.upstreams).unwrap_or_default();
    let commands = servers.iter().filter(|server| server.is_child()).map(|server| server.name.to_string());
    commands.filter(|name| names.contains(name)).collect()
}

/// What a reload did.
pub(super) fn reload_json(reload: &ReloadReport) -> Value {
    let changes = &reload.changes;
    json!({
        "at": rfc3339(reload.at),
        "outcome": if reload.is_applied { "applied" } else { "refused" },
        "added": changes.added, "changed": changes.changed, "removed": changes.removed, "closed": changes.closed,
        "settings": reload.settings,
        "problems": reload.problems.iter().map(|problem| redact(problem).into_owned()).collect::<Vec<_>>(),
    })
}

/// The text of a file with every secret masked, also with those that only the file on disk has, since it was refused.
fn masked(path: &Path, text: &str) -> String {
    let shown = config::masked_text(text, path, &config::environment, MASK);
    shown.split('\n').map(redact).collect::<Vec<_>>().join("\n")
}

/// The configuration of a text, and what is wrong with it.
fn check_text(path: &Path, text: &str) -> (Option<LoadedConfig>, Vec<Value>) {
    let format = ConfigFormat::detect(path, text);
    match config::parse(text, path, format, &config::environment) {
        Ok(loaded) => {
            let warnings = loaded.warnings.iter().map(problem_json).collect();
            (Some(loaded), warnings)
        }
        Err(diagnostics) => (None, diagnostics.iter().map(problem_json).collect()),
    }
}

fn problem_json(diagnostic: &Diagnostic) -> Value {
    json!({
        "line": diagnostic.line,
        "column": diagnostic.column,
        "severity": if diagnostic.severity == Severity::Error { "error" } else { "warning" },
        "message": redact(&diagnostic.message),
        "hint": diagnostic.hint.as_ref().map(|hint| redact(hint).into_owned()),
    })
}

fn check(request: &AdminRequest) -> ApiResult {
    let body: CheckBody = request.json()?;
    let file = FileText::read(&request.console);
    let current = file.as_ref().map_or("", |file| file.text.as_str());
    let path = file.as_ref().map_or_else(|| PathBuf::from(config::DEFAULT_CONFIG_FILE), |file| file.path.clone());
    let (text, lines) = match (body.text, body.add) {
        (Some(text), None) => (unmasked(&path, (current, &text))?, None),
        (None, Some(added)) => {
            let lines = server_lines(&added, body.name.as_deref())?;
            (format!("{}\n{lines}", current.trim_end()).trim_start().to_owned() + "\n", Some(lines))
        }
        _ => return Err(ApiError::invalid("give either text or add")),
    };
    let (loaded, problems) = check_text(&path, &text);
    let before = check_text(&path, current).0;
    let names = |loaded: &Option<LoadedConfig>| -> Vec<String> {
        let servers = loaded.as_ref().map(|loaded| loaded.config.servers.as_slice()).unwrap_or_default();
        servers.iter().map(|server| server.name.to_string()).collect()
    };
    let (old, new) = (names(&before), names(&loaded));
    let changed = before.as_ref().zip(loaded.as_ref()).map(|(before, now)| {
        let differs = |name: &&String| before.config.server(name) != now.config.server(name);
        new.iter().filter(|name| old.contains(name)).filter(differs).cloned().collect::<Vec<_>>()
    });
    let settings = before.as_ref().zip(loaded.as_ref());
    let settings = settings.map(|(before, now)| before.config.settings.changed_settings(&now.config.settings));
    let settings = settings.unwrap_or_default();
    let restart: Vec<&String> = settings.iter().filter(|name| config::needs_restart(name)).collect();
    let missing = |here: &[String], there: &[String]| -> Vec<String> {
        here.iter().filter(|name| loaded.is_some() && !there.contains(name)).cloned().collect()
    };
    Ok(ApiAnswer::json(&json!({
        "valid": loaded.is_some(),
        "problems": problems,
        "settings": settings,
        "added": missing(&new, &old),
        "changed": changed.unwrap_or_default(),
        "removed": missing(&old, &new),
        "restart": restart,
        "lines": lines,
        "commands": commands(loaded.as_ref(), &missing(&new, &old)),
        "text": masked(&path, &text),
        "difference": difference(&masked(&path, current), &masked(&path, &text)),
    })))
}

/// A server that was pasted, as a file with its lines would have it. Only who may write the file has variables of the
/// gateway's environment put in: they would go to whatever address was pasted.
pub(super) fn pasted_server(added: &str, name: Option<&str>, right: OperatorRight) -> Result<UpstreamSpec, ApiError> {
    let lines = server_lines(added, None)?;
    let lookup = |variable: &str| if right >= Edit { config::environment(variable) } else { None };
    let loaded = config::parse(&lines, Path::new(config::DEFAULT_CONFIG_FILE), ConfigFormat::Toml, &lookup);
    let loaded = loaded.map_err(|diagnostics| unprocessable(&diagnostics))?;
    let mut servers = loaded.config.app_settings().gateway.upstreams.into_iter();
    let server = servers.find(|server| name.is_none_or(|name| *server.name == *name));
    server.ok_or_else(|| ApiError::invalid("there is no such server in what was added"))
}

/// The lines of a server that was pasted: a URL, a command, or the `mcp.json` of another client.
fn server_lines(added: &str, name: Option<&str>) -> Result<String, ApiError> {
    let added = added.trim();
    let quoted = |text: &str| Value::from(text).to_string();
    if added.starts_with('{') {
        let loaded = config::parse(added, Path::new("mcp.json"), ConfigFormat::McpJson, &config::environment);
        loaded.map_err(|diagnostics| unprocessable(&diagnostics))?;
        let document: Value = serde_json::from_str(added).map_err(|error| ApiError::invalid(error.to_string()))?;
        return imported_lines(&document);
    }
    let given = |default: &str| name.map_or_else(|| clean_name(default), clean_name);
    if added.starts_with("http://") || added.starts_with("https://") {
        let host = url::Url::parse(added).ok().and_then(|url| url.host_str().map(str::to_owned));
        let host = host.ok_or_else(|| ApiError::invalid("this is no URL"))?;
        let first = host.split('.').find(|part| !matches!(*part, "mcp" | "www" | "api")).unwrap_or(&host);
        return Ok(format!("[servers.{}]\nurl = {}\n", given(first), quoted(added)));
    }
    let words = shell_words::split(added).map_err(|open| {
        ApiError::invalid(open).hint("write the command as for a shell: quotes keep spaces in a word")
    })?;
    let nothing = || ApiError::invalid("there is nothing to add");
    let (program, arguments) = words.split_first().filter(|(program, _)| !program.is_empty()).ok_or_else(nothing)?;
    let last = arguments.last().unwrap_or(program);
    let name = given(last.rsplit('/').next().unwrap_or(last));
    let arguments: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
    Ok(format!("[servers.{name}]\ncommand = {}\nargs = [{}]\n", quoted(program), arguments.join(", ")))
}

fn imported_lines(document: &Value) -> Result<String, ApiError> {
    let servers = ["mcpServers", "servers"].iter().find_map(|key| document.get(key)?.as_object());
    let servers = servers.ok_or_else(|| ApiError::invalid("the document has no mcpServers"))?;
    let mut lines = String::new();
    for (name, server) in servers {
        lines.push_str(&format!("[servers.{}]\n", clean_name(name)));
        for key in ["command", "args", "url"] {
            if let Some(value) = server.get(key) {
                lines.push_str(&format!("{key} = {value}\n"));
            }
        }
        for key in ["env", "headers"] {
            let pairs = server.get(key).and_then(Value::as_object);
            if let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) {
                let pairs: Vec<String> =
                    pairs.iter().map(|(name, value)| format!("{} = {value}", Value::from(name.as_str()))).collect();
                lines.push_str(&format!("{key} = {{ {} }}\n", pairs.join(", ")));
            }
        }
    }
    Ok(lines)
}

fn clean_name(text: &str) -> String {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let name: String = text.chars().map(letter).collect();
    let name = name.trim_matches('-').to_owned();
    if name.is_empty() { "server".to_owned() } else { name }
}

fn unprocessable(diagnostics: &[Diagnostic]) -> ApiError {
    let first = diagnostics.iter().find(|one| one.severity == Severity::Error).or(diagnostics.first());
    let message = first.map_or_else(|| "the file has mistakes".to_owned(), ToString::to_string);
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "mistakes", message).hint("POST config/check has them all")
}

/// A text with its secrets: lines that are as they were shown get back what the mask stands for.
fn unmasked(path: &Path, (current, given): (&str, &str)) -> Result<String, ApiError> {
    if !given.contains(MASK) {
        return Ok(given.to_owned());
    }
    let shown = masked(path, current);
    let pairs: Vec<(&str, &str)> = shown.lines().zip(current.lines()).filter(|(shown, own)| shown != own).collect();
    let mut used = vec![false; pairs.len()];
    let mut lines = Vec::new();
    for (number, line) in given.lines().enumerate() {
        let known = pairs.iter().enumerate().find(|(at, (shown, _))| !used[*at] && *shown == line);
        match known {
            Some((at, (_, own))) => {
                used[at] = true;
                lines.push((*own).to_owned());
            }
            None if line.contains(MASK) => {
                let message = format!("line {} has a mask in place of a secret", number + 1);
                let error = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "masked", message);
                return Err(error.hint("write the secret, or better ${NAME}, or leave the line as it was"));
            }
            None => lines.push(line.to_owned()),
        }
    }
    let end = if given.ends_with('\n') { "\n" } else { "" };
    Ok(lines.join("\n") + end)
}

/// Lines that were removed and added, as `diff` marks them.
fn difference(before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same_begin = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let rest = old.len().min(new.len()) - same_begin;
    let same_end = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(one, other)| one == other).count();
    let removed = old[same_begin..old.len() - same_end].iter().map(|line| format!("-{line}"));
    let added = new[same_begin..new.len() - same_end].iter().map(|line| format!("+{line}"));
    removed.chain(added).collect::<Vec<_>>().join("\n")
}

fn write(request: &AdminRequest) -> ApiResult {
    let body: WriteBody = request.json()?;
    let no_file = || ApiError::new(StatusCode::CONFLICT, "no_file", "the gateway runs without a file");
    let file = FileText::read(&request.console).ok_or_else(|| no_file().hint("`rialto init` writes one"))?;
    let expected = request.headers.get_text("if-match");
    let changed = |message: &str| ApiError::new(StatusCode::PRECONDITION_FAILED, "changed", message);
    match expected.as_deref() {
        None => return Err(changed("If-Match is missing").hint("send the ETag of GET config")),
        Some(tag) if tag != entity_tag(file.text.as_bytes()) => {
            return Err(changed("the file has changed meanwhile").hint("read it again"));
        }
        Some(_) => {}
    }
    let text = unmasked(&file.path, (&file.text, &body.text))?;
    let format = ConfigFormat::detect(&file.path, &text);
    let loaded = config::parse(&text, &file.path, format, &config::environment);
    let loaded = loaded.map_err(|diagnostics| unprocessable(&diagnostics))?;
    replace_file(&file.path, &text).map_err(|error| {
        ApiError::new(StatusCode::CONFLICT, "not_written", format!("the file was not written: {error}"))
    })?;
    let answer = json!({
        "file": file.path.display().to_string(),
        "etag": entity_tag(text.as_bytes()),
        "problems": loaded.warnings.iter().map(problem_json).collect::<Vec<_>>(),
    });
    Ok(ApiAnswer::json(&answer))
}

/// Replaces a file by a whole new one: readers see the one or the other.
fn replace_file(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    // Behind a link, the file that it leads to is replaced, not the link.
    let path = std::fs::canonicalize(path)?;
    let folder = path.parent().ok_or_else(|| std::io::Error::other("it has no folder"))?;
    let temporary = folder.join(format!(".rialto-{}.tmp", std::process::id()));
    let permissions = std::fs::metadata(&path)?.permissions();
    let written = (|| {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        file.set_permissions(permissions)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# ours\n[access.tokens]\nann = \"s3cret-of-ann\"\nbob = \"s3cret-of-bob\"\n\n[servers.a]\nurl = \"http://127.0.0.1:1/mcp\"\n";

    #[test]
    fn secrets_are_masked_and_come_back() {
        let path = Path::new("rialto.toml");
        let unmasked = |given: &str| unmasked(path, (FILE, given));
        let shown = masked(path, FILE);
        assert!(!shown.contains("s3cret") && shown.contains("# ours"), "{shown}");
        assert_eq!(unmasked(&shown).unwrap(), FILE);
        let edited = shown.replace("# ours", "# yours") + "\n[servers.b]\nurl = \"http://127.0.0.1:2/mcp\"\n";
        let written = unmasked(&edited).unwrap();
        assert!(written.contains("s3cret-of-bob") && written.contains("# yours") && written.contains("servers.b"));
        let moved = edited.replace("bob =", "eve =");
        assert_eq!(unmasked(&moved).unwrap_err().code, "masked");
    }

    #[test]
    fn what_is_pasted_becomes_lines() {
        for (added, name, lines) in [
            ("https://mcp.notes.example/mcp", None, "[servers.notes]\nurl = \"https://mcp.notes.example/mcp\"\n"),
            (
                "npx -y @acme/files",
                Some("Files!"),
                "[servers.files]\ncommand = \"npx\"\nargs = [\"-y\", \"@acme/files\"]\n",
            ),
            (
                "npx files \"/srv/my files\" 'it is' a\\ b",
                Some("files"),
                "[servers.files]\ncommand = \"npx\"\nargs = [\"files\", \"/srv/my files\", \"it is\", \"a b\"]\n",
            ),
            (
                r#"{"mcpServers": {"My Server": {"command": "uvx", "args": ["x"]}}}"#,
                None,
                "[servers.my-server]\ncommand = \"uvx\"\nargs = [\"x\"]\n",
            ),
        ] {
            assert_eq!(server_lines(added, name).unwrap(), lines);
        }
        assert!(server_lines("", None).is_err() && server_lines("{", None).is_err());
        let open = server_lines("npx files \"/srv/my files", None).unwrap_err();
        assert_eq!(
            (open.status, open.message.as_str()),
            (StatusCode::BAD_REQUEST, "a double quote (\") is never closed")
        );
    }

    #[test]
    fn a_table_has_its_place() {
        let file = FileText { path: "rialto.toml".into(), name: "rialto.toml".into(), text: FILE.to_owned() };
        assert_eq!(file.place("servers.a", Some("url")).as_deref(), Some("rialto.toml:7"));
        assert_eq!(file.place("servers.a", None).as_deref(), Some("rialto.toml:6"));
        assert_eq!(file.place("servers.b", None), None);
        let rules = FileText { text: "[[policy.rules]]\nname = \"a\"\n[policies]\n".to_owned(), ..file };
        assert_eq!(rules.table("policy"), Some((1, "[[policy.rules]]\nname = \"a\"".to_owned())));
        assert_eq!(rules.place("policies", None).as_deref(), Some("rialto.toml:3"));
        let file = FileText { text: FILE.to_owned(), ..rules };
        assert_eq!(file.place("access", Some("tokens")).as_deref(), Some("rialto.toml:2"));
    }

    #[test]
    fn the_difference_is_what_lies_between_equal_lines() {
        assert_eq!(difference("a\nb\nc", "a\nx\ny\nc"), "-b\n+x\n+y");
        assert_eq!(difference("a", "a"), "");
        assert_eq!(difference("", "a"), "+a");
    }
}
