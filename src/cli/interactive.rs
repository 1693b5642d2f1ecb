//! The terminal as the host of a client: shows progress and log messages, answers server requests at the prompt.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;

use super::connect_args::split_pair;
use super::output::strip_control_chars;
use crate::client::{Host, ServerRequestFuture};
use crate::error::{Error, Result};
use crate::mcp_client::Target;
use crate::protocol::{ErrorObject, Method, Notification, NotificationMethod, Outcome, Raw, code};

/// Answers to server requests given on the command line.
#[derive(Debug)]
pub(super) struct PreparedAnswers {
    roots: Vec<Value>,
    fields: Vec<(String, String)>,
    sample_with: Option<String>,
}

/// Host that interacts with the user at the terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    answers: PreparedAnswers,
    json_output: bool,
    /// Whether stdin and stderr are a terminal, so that the user can be prompted.
    is_interactive: bool,
    progress_bar: Mutex<Option<ProgressBar>>,
    /// Serializes prompts: one server request at a time.
    prompt_lock: tokio::sync::Mutex<()>,
}

/// JSON-RPC error code for a refused sampling request.
const SAMPLING_REFUSED: i64 = -1;

impl PreparedAnswers {
    pub(super) fn new(roots: &[PathBuf], fields: &[String], sample_with: Option<String>) -> Result<Self> {
        let root = |folder: &PathBuf| {
            let path = std::fs::canonicalize(folder)
                .map_err(|error| Error::usage(format!("--root {}: {error}", folder.display())))?;
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            Ok(json!({ "uri": format!("file://{}", path.display()), "name": name }))
        };
        let roots = roots.iter().map(root).collect::<Result<_>>()?;
        let fields = fields.iter().map(|pair| split_pair(pair, '=', "--answer")).collect::<Result<_>>()?;
        Ok(Self { roots, fields, sample_with })
    }
}

impl Terminal {
    pub(super) fn new(answers: PreparedAnswers, json_output: bool) -> Self {
        let is_interactive = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        Self {
            answers,
            json_output,
            is_interactive,
            progress_bar: Mutex::default(),
            prompt_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Spinner shown while connecting; hidden without a terminal.
    pub(super) fn connect_spinner(&self, target: &Target) -> ProgressBar {
        if self.json_output || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new_spinner().with_message(format!("connecting to {target}"));
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    /// Removes the progress bar.
    pub(super) fn clear_progress(&self) {
        if let Some(bar) = self.progress_bar.lock().take() {
            bar.finish_and_clear();
        }
    }

    /// Prints a line above the progress bar.
    fn print_line(&self, text: &str) {
        match &*self.progress_bar.lock() {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    fn show_progress(&self, params: &Raw) {
        let number = |key: &str| params.get(key).and_then(|raw| raw.read::<f64>().ok());
        let (done, total) = (number("progress").unwrap_or_default(), number("total"));
        let message =
            params.get("message").and_then(|raw| raw.text().map(std::borrow::Cow::into_owned)).unwrap_or_default();
        if !std::io::stderr().is_terminal() {
            let of = total.map(|total| format!("/{total}")).unwrap_or_default();
            eprintln!("progress: {done}{of} {}", strip_control_chars(&message));
            return;
        }
        let mut bar = self.progress_bar.lock();
        let bar = bar.get_or_insert_with(|| match total {
            Some(_) => {
                let style = ProgressStyle::with_template("{bar:40} {percent:>3}% {wide_msg}");
                ProgressBar::new(1000).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            }
            None => ProgressBar::new_spinner(),
        });
        if let Some(total) = total.filter(|total| *total > 0.0) {
            bar.set_position((done / total * 1000.0) as u64);
        }
        bar.set_message(strip_control_chars(&message));
        bar.tick();
    }

    async fn elicit(&self, params: &Raw) -> Outcome {
        let _prompting = self.prompt_lock.lock().await;
        let params: Value = params.read().unwrap_or(Value::Null);
        let message = strip_control_chars(params["message"].as_str().unwrap_or_default());
        self.clear_progress();
        eprintln!("The server requests input: {message}");
        if params["mode"] == "url" {
            let url = strip_control_chars(params["url"].as_str().unwrap_or_default());
            eprintln!("Open this URL if you trust it: {url}");
            let agreed = self.confirm("Done?").await;
            return Ok(Raw::of(&json!({ "action": if agreed { "accept" } else { "decline" } })).into());
        }
        let mut content = Map::new();
        let empty = Map::new();
        let required: Vec<&str> =
            params["requestedSchema"]["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, property) in params["requestedSchema"]["properties"].as_object().unwrap_or(&empty) {
            match self.form_field(name, property, required.contains(&name.as_str())).await {
                Some(Some(value)) => drop(content.insert(name.clone(), value)),
                Some(None) => {}
                None => return Ok(Raw::of(&json!({ "action": "cancel" })).into()),
            }
        }
        Ok(Raw::of(&json!({ "action": "accept", "content": content })).into())
    }

    /// One field of a form: from the command line, typed in, or the default. `None` means that the user cancelled;
    /// `Some(None)` leaves the field out.
    async fn form_field(&self, name: &str, property: &Value, required: bool) -> Option<Option<Value>> {
        let prepared = self.answers.fields.iter().find(|(key, _)| key == name);
        if let Some((_, value)) = prepared {
            return Some(Some(form_value(value, property).unwrap_or_else(|| value.as_str().into())));
        }
        let default = property.get("default").cloned();
        if !self.is_interactive {
            return if default.is_some() || !required { Some(default) } else { None };
        }
        loop {
            let label = strip_control_chars(property["title"].as_str().unwrap_or(name));
            let choices = choices(property).map(|all| format!(" [{}]", all.join(" | "))).unwrap_or_default();
            let hint = default.as_ref().map(|value| format!(" (default {value})")).unwrap_or_default();
            let line = self.prompt_line(&format!("  {label}{choices}{hint}: ")).await?;
            match line.as_str() {
                "" if default.is_some() || !required => return Some(default),
                "" => eprintln!("    this field is required; Ctrl-D cancels"),
                text => match form_value(text, property) {
                    Some(value) => return Some(Some(value)),
                    None => eprintln!("    not a valid {}", property["type"].as_str().unwrap_or("value")),
                },
            }
        }
    }

    async fn confirm(&self, question: &str) -> bool {
        if !self.is_interactive {
            return false;
        }
        let line = self.prompt_line(&format!("{question} [y/N] ")).await;
        matches!(line.as_deref(), Some("y" | "Y" | "yes"))
    }

    /// Prompts for a line; `None` at end of input.
    async fn prompt_line(&self, prompt: &str) -> Option<String> {
        eprint!("{prompt}");
        let _ = std::io::stderr().flush();
        let read = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).ok().filter(|length| *length > 0).map(|_| line.trim().to_owned())
        });
        read.await.ok().flatten()
    }

    async fn run_sampling_command(&self, params: &Raw) -> Outcome {
        let refuse = |why: String| Err(ErrorObject::new(SAMPLING_REFUSED, why));
        let Some(command) = &self.answers.sample_with else {
            return refuse("nobody samples here".into());
        };
        let child = tokio::process::Command::new("sh")
            .arg("-c")
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return refuse(format!("--sample-with: {error}")),
        };
        let input = child.stdin.take();
        let request = params.bytes();
        let writing = tokio::spawn(async move {
            if let Some(mut input) = input {
                // The command may exit without reading its input.
                let _ = input.write_all(&request).await;
            }
        });
        let output = child.wait_with_output().await;
        writing.abort();
        match output {
            Ok(output) if output.status.success() => {
                let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
                let content = json!({ "type": "text", "text": text });
                Ok(Raw::of(
                    &json!({ "role": "assistant", "content": content, "model": command, "stopReason": "endTurn" }),
                )
                .into())
            }
            Ok(output) => refuse(format!("--sample-with ended with {}", output.status)),
            Err(error) => refuse(format!("--sample-with: {error}")),
        }
    }
}

/// The allowed values of an enum field.
fn choices(property: &Value) -> Option<Vec<String>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(all) = property["enum"].as_array() {
        return Some(all.iter().filter_map(text).collect());
    }
    let titled = property["oneOf"].as_array()?;
    Some(titled.iter().filter_map(|option| text(&option["const"])).collect())
}

/// Converts input to the type of a form field; `None` if it does not fit.
fn form_value(text: &str, property: &Value) -> Option<Value> {
    if let Some(all) = choices(property) {
        return all.contains(&text.to_owned()).then(|| text.into());
    }
    match property["type"].as_str() {
        Some("integer") => text.parse::<i64>().ok().map(Into::into),
        Some("number") => text.parse::<f64>().ok().map(Into::into),
        Some("boolean") => match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "y" => Some(true.into()),
            "false" | "no" | "n" => Some(false.into()),
            _ => None,
        },
        Some("array") => Some(text.split(',').map(|part| Value::from(part.trim())).collect()),
        _ => Some(text.into()),
    }
}

impl Host for Terminal {
    fn capabilities(&self) -> Raw {
        let mut capabilities = Map::new();
        if self.is_interactive || !self.answers.fields.is_empty() {
            let modes = if self.is_interactive { json!({ "form": {}, "url": {} }) } else { json!({ "form": {} }) };
            capabilities.insert("elicitation".into(), modes);
        }
        if !self.answers.roots.is_empty() {
            capabilities.insert("roots".into(), json!({}));
        }
        if self.answers.sample_with.is_some() {
            capabilities.insert("sampling".into(), json!({}));
        }
        Raw::of(&capabilities)
    }

    fn on_notification(&self, notification: &Notification) {
        let Some(params) = &notification.params else { return };
        match notification.method {
            NotificationMethod::Progress => self.show_progress(params),
            NotificationMethod::Message => {
                let level = params
                    .get("level")
                    .and_then(|level| level.text().map(std::borrow::Cow::into_owned))
                    .unwrap_or_default();
                let data = params.get("data").map(|data| data.to_string()).unwrap_or_default();
                self.print_line(&strip_control_chars(&format!("{level}: {data}")));
            }
            _ => {}
        }
    }

    fn on_server_request<'a>(&'a self, method: &'a Method, params: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        Box::pin(async move {
            let empty = Raw::empty();
            let params = params.unwrap_or(&empty);
            match method.as_str() {
                "elicitation/create" => self.elicit(params).await,
                "sampling/createMessage" => self.run_sampling_command(params).await,
                "roots/list" => Ok(Raw::of(&json!({ "roots": self.answers.roots })).into()),
                other => Err(ErrorObject::new(code::METHOD_NOT_FOUND, format!("this client is not asked {other}"))),
            }
        })
    }
}
