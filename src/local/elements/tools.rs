//! Tools of the built-in server: two lookups, and a slow survey that reports progress.

use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::data::{self, ELEMENTS, Element};
use super::{ElementJson, Elements, invalid_params, one_line, string_param};
use crate::call::{Answer, Call, Replies, ReplySender};
use crate::protocol::{Level, Method, Notification, NotificationMethod, Raw};

/// Upper bound on the `delayMs` argument of the survey, in milliseconds.
const MAX_DELAY_MS: u64 = 5_000;

pub(super) fn tool_definitions() -> Value {
    let read_only = json!({ "readOnlyHint": true, "openWorldHint": false, "idempotentHint": true });
    json!([
        {
            "name": "getElement",
            "title": "Look up an element",
            "description": "An element by its Chinese name, English name or symbol.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "name": { "type": "string", "description": "Chinese name, English name or symbol: 氢, Hydrogen or H." },
                },
                "required": ["name"],
                "additionalProperties": false,
            },
            "outputSchema": element_output_schema(),
            "annotations": read_only,
        },
        {
            "name": "getElementByPosition",
            "title": "Look up an element by its place",
            "description": "An element by its atomic number.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "position": { "type": "integer", "minimum": 1, "maximum": 118, "description": "Atomic number, 1 to 118." },
                },
                "required": ["position"],
                "additionalProperties": false,
            },
            "outputSchema": element_output_schema(),
            "annotations": read_only,
        },
        {
            "name": "surveyElements",
            "title": "Survey the table",
            "description": "Goes through the table slowly, from the first element on, and reports progress. Can be cancelled.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "count": {
                        "type": "integer", "minimum": 1, "maximum": 118, "default": 118,
                        "description": "How many elements, 1 to 118.",
                        "x-mcp-header": "Count",
                    },
                    "delayMs": {
                        "type": "integer", "minimum": 0, "maximum": MAX_DELAY_MS, "default": 100,
                        "description": "Milliseconds to rest at each element.",
                    },
                },
                "additionalProperties": false,
            },
            "annotations": read_only,
        },
    ])
}

fn element_output_schema() -> Value {
    let text = json!({ "type": "string" });
    let number = json!({ "type": "integer" });
    json!({
        "type": "object",
        "properties": {
            "content": { "type": "string", "description": "The element in one line." },
            "atomicNumber": number,
            "symbol": text,
            "chineseName": text,
            "pinyin": text,
            "englishName": text,
            "atomicMass": { "type": "number" },
            "period": number,
            "group": { "type": "string", "description": "IA to VIIA, IB to VIIB, VIII, or 0." },
        },
        "required": ["content", "atomicNumber", "symbol", "chineseName", "pinyin", "englishName", "atomicMass", "period", "group"],
    })
}

pub(super) fn call_tool(elements: &Elements, call: &Call) -> Replies {
    let name = match string_param(call, &["name"]) {
        Ok(name) => name,
        Err(error) => return error.into(),
    };
    let arguments = call.params.as_ref().and_then(|params| params.get("arguments"));
    let arguments = arguments.unwrap_or_else(Raw::empty);
    let found = match name.as_str() {
        "getElement" => find_by_name(&arguments),
        "getElementByPosition" => find_by_position(&arguments),
        "surveyElements" => return start_survey(elements, call, &arguments),
        other => {
            let why =
                format!("there is no tool {other:?}; there are getElement, getElementByPosition and surveyElements");
            return invalid_params(&why).into();
        }
    };
    let answer = Answer::result(match &found {
        Ok(element) => lookup_result(elements, element),
        Err(refused) => refusal_result(elements, refused),
    });
    let log_data = || json!({ "tool": name, "found": found.as_ref().ok().map(|element| element.symbol) });
    match log_message(call, Level::Debug, log_data) {
        Some(message) => Replies::queued([message], answer),
        None => answer.into(),
    }
}

/// Result of a lookup, serialized without an intermediate `Value`.
fn lookup_result(elements: &Elements, element: &Element) -> Raw {
    #[derive(Serialize)]
    struct TextContent<'a> {
        r#type: &'static str,
        text: &'a str,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct LookupResult<'a> {
        content: [TextContent<'a>; 1],
        structured_content: ElementJson<'a>,
        is_error: bool,
        result_type: &'static str,
        #[serde(rename = "_meta")]
        meta: &'a RawValue,
    }
    let line = one_line(element);
    Raw::of(&LookupResult {
        content: [TextContent { r#type: "text", text: &line }],
        structured_content: ElementJson::new(element, &line),
        is_error: false,
        result_type: "complete",
        meta: &elements.0.meta,
    })
}

/// Why a tool refused its arguments: a short label, and a sentence with what is allowed.
struct ToolRefusal(&'static str, String);

fn refusal_result(elements: &Elements, refused: &ToolRefusal) -> Raw {
    let content = json!([{ "type": "text", "text": refused.0 }, { "type": "text", "text": refused.1 }]);
    elements.complete_result(&Method::ToolsCall, json!({ "content": content, "isError": true }))
}

fn find_by_name(arguments: &Raw) -> Result<&'static Element, ToolRefusal> {
    let given = arguments.get("name");
    let name = given.as_ref().and_then(Raw::text);
    let element = name.as_deref().and_then(data::by_name);
    element.ok_or_else(|| {
        let given_text = given.as_ref().map_or_else(|| "nothing".to_owned(), ToString::to_string);
        let why = format!("`name` must be the Chinese name, the English name or the symbol of an element, such as 氢, Hydrogen or H; it was {given_text}");
        ToolRefusal("元素不存在", why)
    })
}

fn find_by_position(arguments: &Raw) -> Result<&'static Element, ToolRefusal> {
    let given = arguments.get("position");
    let position = given.as_ref().and_then(|raw| raw.read::<i64>().ok());
    position.and_then(data::by_number).ok_or_else(|| {
        let given_text = given.as_ref().map_or_else(|| "nothing".to_owned(), ToString::to_string);
        ToolRefusal(
            "位置无效",
            format!("`position` must be an integer from 1 to {}; it was {given_text}", ELEMENTS.len()),
        )
    })
}

/// A log message, if the client's log level includes it.
fn log_message(call: &Call, level: Level, data: impl FnOnce() -> Value) -> Option<Notification> {
    call.level.filter(|wanted| *wanted <= level)?;
    let params = json!({ "level": level.as_str(), "logger": "elements", "data": data() });
    Some(Notification::new(NotificationMethod::Message, Some(Raw::of(&params))))
}

fn start_survey(elements: &Elements, call: &Call, arguments: &Raw) -> Replies {
    let read = |key: &str, default: u64, allowed: std::ops::RangeInclusive<u64>| {
        let Some(given) = arguments.get(key) else { return Ok(default) };
        let value = given.read::<u64>().ok().filter(|value| allowed.contains(value));
        value.ok_or_else(|| {
            let why =
                format!("`{key}` must be an integer from {} to {}; it was {given}", allowed.start(), allowed.end());
            ToolRefusal("参数无效", why)
        })
    };
    let element_count = ELEMENTS.len() as u64;
    let survey_arguments = read("count", element_count, 1..=element_count)
        .and_then(|count| Ok((count, read("delayMs", 100, 0..=MAX_DELAY_MS)?)));
    let (count, delay) = match survey_arguments {
        Ok((count, delay)) => (count as usize, Duration::from_millis(delay)),
        Err(refused) => return Answer::result(refusal_result(elements, &refused)).into(),
    };
    let (sender, replies) = Replies::channel();
    let run = run_survey(elements.clone(), call.clone(), sender, count, delay);
    tokio::spawn(run);
    replies
}

async fn run_survey(elements: Elements, call: Call, sender: ReplySender, count: usize, delay: Duration) {
    for (n, element) in ELEMENTS[..count].iter().enumerate() {
        tokio::select! {
            () = sender.cancelled() => return,
            () = tokio::time::sleep(delay) => {}
        }
        let mut notices = Vec::new();
        if let Some(token) = &call.progress_token {
            let params =
                json!({ "progressToken": token, "progress": n + 1, "total": count, "message": element.english });
            notices.push(Notification::new(NotificationMethod::Progress, Some(Raw::of(&params))));
        }
        notices.extend(log_message(&call, Level::Info, || json!({ "surveyed": element.symbol })));
        for notice in notices {
            if !sender.notify(notice).await {
                return;
            }
        }
    }
    let symbols: Vec<&str> = ELEMENTS[..count].iter().map(|element| element.symbol).collect();
    let text = format!("{count} elements: {}", symbols.join(" "));
    let content = json!([{ "type": "text", "text": text }]);
    let body = json!({ "content": content, "isError": false });
    sender.end(Answer::result(elements.complete_result(&Method::ToolsCall, body))).await;
}
