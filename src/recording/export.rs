//! A recorded call for somebody else: as it is here, as an HTTP archive, or as a command line.

use serde_json::{Value, json};

use super::cut_text::KeptText;
use super::messages::{MessageForm, messages_of};
use super::row::{BodyAccess, RowMaker};
use super::store::StoredCall;
use crate::recorder::{Way, Wire};

/// The form of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportForm {
    /// The call as the API shows it.
    Rialto,
    /// An HTTP archive (HAR 1.2) of the client's wire and the server's.
    Har,
    /// The request of the client as a command line.
    Curl,
}

impl ExportForm {
    /// The form of this name.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "rialto" => Some(Self::Rialto),
            "har" => Some(Self::Har),
            "curl" => Some(Self::Curl),
            _ => None,
        }
    }

    /// Media type and the end of a file name.
    pub fn file(self) -> (&'static str, &'static str) {
        match self {
            Self::Rialto => ("application/json", "json"),
            Self::Har => ("application/json", "har"),
            Self::Curl => ("text/plain; charset=utf-8", "sh"),
        }
    }
}

/// Says that something was taken out.
const NOTE: &str = "Secrets were taken out of this export by Rialto; see `hidden`.";

/// The export of a call, redacted like everything that is shown.
pub fn export(call: &StoredCall, rows: &RowMaker, form: ExportForm) -> String {
    let detail = rows.detail(call, BodyAccess::Shown);
    match form {
        ExportForm::Rialto => json!({ "note": NOTE, "call": detail }).to_string(),
        ExportForm::Har => har(&detail).to_string(),
        ExportForm::Curl => curl(call, rows),
    }
}

fn har(detail: &Value) -> Value {
    let messages = detail["messages"].as_array().cloned().unwrap_or_default();
    let mut entries: Vec<Value> = Vec::new();
    for wire in ["client", "server"] {
        let (first, second) = if wire == "client" { ("in", "out") } else { ("out", "in") };
        let of_wire: Vec<&Value> = messages.iter().filter(|one| one["wire"] == wire).collect();
        for (n, asked) in of_wire.iter().enumerate().filter(|(_, one)| one["way"] == first) {
            if asked["http"]["verb"].is_null() {
                continue;
            }
            let answer = of_wire[n..].iter().find(|one| one["way"] == second && !one["http"]["status"].is_null());
            entries.push(entry(detail, asked, answer.copied().unwrap_or(&Value::Null), wire));
        }
    }
    let creator = json!({ "name": "rialto", "version": env!("CARGO_PKG_VERSION") });
    json!({ "log": { "version": "1.2", "creator": creator, "comment": NOTE, "entries": entries } })
}

fn entry(detail: &Value, asked: &Value, answer: &Value, wire: &str) -> Value {
    let headers = |message: &Value| -> Vec<Value> {
        let headers = message["http"]["headers"].as_array().cloned().unwrap_or_default();
        headers.iter().map(|pair| json!({ "name": pair[0], "value": pair[1] })).collect()
    };
    let text = |message: &Value| message["text"].as_str().unwrap_or_default().to_owned();
    let bytes = |message: &Value| message["bytes"].as_i64().unwrap_or(-1);
    let took = (answer["at_us"].as_f64().unwrap_or(0.0) - asked["at_us"].as_f64().unwrap_or(0.0)).max(0.0) / 1000.0;
    let path = asked["http"]["path"].as_str().unwrap_or("/");
    json!({
        "startedDateTime": detail["at"], "time": took, "comment": format!("{wire} wire, at {} µs", asked["at_us"]),
        "request": {
            "method": asked["http"]["verb"], "url": format!("http://{wire}.invalid{path}"), "httpVersion": "HTTP/1.1",
            "cookies": [], "headers": headers(asked), "queryString": [], "headersSize": -1, "bodySize": bytes(asked),
            "postData": { "mimeType": "application/json", "text": text(asked) },
        },
        "response": {
            "status": answer["http"]["status"].as_i64().unwrap_or(0), "statusText": "", "httpVersion": "HTTP/1.1",
            "cookies": [], "headers": headers(answer), "redirectURL": "", "headersSize": -1, "bodySize": bytes(answer),
            "content": { "size": bytes(answer).max(0), "mimeType": "application/json", "text": text(answer) },
        },
        "cache": {}, "timings": { "send": 0, "wait": took, "receive": 0 },
    })
}

/// Headers that a command line needs, beside those of MCP.
const CURL_HEADERS: [&str; 4] = ["accept", "authorization", "content-type", "last-event-id"];

fn curl(call: &StoredCall, rows: &RowMaker) -> String {
    let messages = messages_of(call);
    let asked = messages.iter().find(|one| one.wire == Wire::Client && one.way == Way::In);
    let Some(asked) = asked else { return format!("# nothing is kept of what the client sent\n# {NOTE}\n") };
    let shown = rows.detail(call, BodyAccess::Shown);
    let http = &shown["messages"]
        .as_array()
        .and_then(|all| all.iter().find(|one| one["wire"] == "client"))
        .map_or(Value::Null, |one| one["http"].clone());
    let (verb, path) = (http["verb"].as_str().unwrap_or("POST"), http["path"].as_str().unwrap_or("/mcp"));
    let headers = http["headers"].as_array().cloned().unwrap_or_default();
    let host = headers.iter().find(|pair| pair[0] == "host").and_then(|pair| pair[1].as_str().map(str::to_owned));
    let address = format!("http://{}{path}", host.as_deref().unwrap_or("127.0.0.1:3001"));
    let mut out = format!("# {NOTE}\ncurl -sS -X {verb} {}", quoted(&address));
    for pair in &headers {
        let (Some(name), Some(value)) = (pair[0].as_str(), pair[1].as_str()) else { continue };
        let name = name.to_ascii_lowercase();
        if CURL_HEADERS.contains(&name.as_str()) || name.starts_with("mcp-") {
            out.push_str(&format!(" \\\n  -H {}", quoted(&format!("{name}: {value}"))));
        }
    }
    if let Some(kept) = KeptText::of(asked).filter(|_| asked.form != MessageForm::Status) {
        out.push_str(&format!(" \\\n  --data-binary {}", quoted(&rows.rules.show_kept(&kept).text)));
    }
    out.push('\n');
    out
}

/// A word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
