//! The tools: two look-ups, and a slow survey that reports progress.

use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::data::{self, ELEMENTS, Element};
use super::{Elements, Object, invalid, line, text_param};
use crate::call::{Answer, Call, Replies, ReplySender};
use crate::protocol::{Level, Method, Notice, Notification, Raw};

/// The longest that a survey may rest at one element.
const MAX_DELAY_MS: u64 = 5_000;

pub(super) fn list() -> Value {
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
            "outputSchema": output(),
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
            "outputSchema": output(),
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

fn output() -> Value {
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

pub(super) fn call(elements: &Elements, call: &Call) -> Replies {
    let name = match text_param(call, &["name"]) {
        Ok(name) => name,
        Err(error) => return error.into(),
    };
    let arguments = call.params.as_ref().and_then(|params| params.get("arguments"));
    let arguments = arguments.unwrap_or_else(Raw::empty);
    let found = match name.as_str() {
        "getElement" => by_name(&arguments),
        "getElementByPosition" => by_position(&arguments),
        "surveyElements" => return survey(elements, call, &arguments),
        other => {
            let why =
                format!("there is no tool {other:?}; there are getElement, getElementByPosition and surveyElements");
            return invalid(&why).into();
        }
    };
    let answer = Answer::result(match &found {
        Ok(element) => found_result(elements, element),
        Err(refused) => refusal(elements, refused),
    });
    let told = || json!({ "tool": name, "found": found.as_ref().ok().map(|element| element.symbol) });
    match log(call, Level::Debug, told) {
        Some(message) => Replies::queued([message], answer),
        None => answer.into(),
    }
}

/// The result of a look-up, written straight to text.
fn found_result(elements: &Elements, element: &Element) -> Raw {
    #[derive(Serialize)]
    struct Text<'a> {
        r#type: &'static str,
        text: &'a str,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ElementQuery<'a> {
        content: [Text<'a>; 1],
        structured_content: Object<'a>,
        is_error: bool,
        result_type: &'static str,
        #[serde(rename = "_meta")]
        meta: &'a RawValue,
    }
    let line = line(element);
    Raw::of(&ElementQuery {
        content: [Text { r#type: "text", text: &line }],
        structured_content: Object::new(element, &line),
        is_error: false,
        result_type: "complete",
        meta: &elements.0.meta,
    })
}

/// Why a tool cannot do what it was asked: a word for it, and what is allowed.
struct RefusedCall(&'static str, String);

fn refusal(elements: &Elements, refused: &RefusedCall) -> Raw {
    let content = json!([{ "type": "text", "text": refused.0 }, { "type": "text", "text": refused.1 }]);
    elements.result(&Method::ToolsCall, json!({ "content": content, "isError": true }))
}

fn by_name(arguments: &Raw) -> Result<&'static Element, RefusedCall> {
    let given = arguments.get("name");
    let name = given.as_ref().and_then(Raw::text);
    let element = name.as_deref().and_then(data::by_name);
    element.ok_or_else(|| {
        let said = given.as_ref().map_or_else(|| "nothing".to_owned(), ToString::to_string);
        let why = format!("`name` must be the Chinese name, the English name or the symbol of an element, such as 氢, Hydrogen or H; it was {said}");
        RefusedCall("元素不存在", why)
    })
}

fn by_position(arguments: &Raw) -> Result<&'static Element, RefusedCall> {
    let given = arguments.get("position");
    let position = given.as_ref().and_then(|raw| raw.read::<i64>().ok());
    position.and_then(data::by_number).ok_or_else(|| {
        let said = given.as_ref().map_or_else(|| "nothing".to_owned(), ToString::to_string);
        RefusedCall("位置无效", format!("`position` must be an integer from 1 to {}; it was {said}", ELEMENTS.len()))
    })
}

/// A message for the client's log, if it wants messages of that level.
fn log(call: &Call, level: Level, data: impl FnOnce() -> Value) -> Option<Notification> {
    call.level.filter(|wanted| *wanted <= level)?;
    let params = json!({ "level": level.as_str(), "logger": "elements", "data": data() });
    Some(Notification::new(Notice::Message, Some(Raw::of(&params))))
}

fn survey(elements: &Elements, call: &Call, arguments: &Raw) -> Replies {
    let read = |key: &str, default: u64, allowed: std::ops::RangeInclusive<u64>| {
        let Some(given) = arguments.get(key) else { return Ok(default) };
        let value = given.read::<u64>().ok().filter(|value| allowed.contains(value));
        value.ok_or_else(|| {
            let why =
                format!("`{key}` must be an integer from {} to {}; it was {given}", allowed.start(), allowed.end());
            RefusedCall("参数无效", why)
        })
    };
    let all = ELEMENTS.len() as u64;
    let plan = read("count", all, 1..=all).and_then(|count| Ok((count, read("delayMs", 100, 0..=MAX_DELAY_MS)?)));
    let (count, delay) = match plan {
        Ok((count, delay)) => (count as usize, Duration::from_millis(delay)),
        Err(refused) => return Answer::result(refusal(elements, &refused)).into(),
    };
    let (replier, replies) = Replies::channel();
    let walk = walk(elements.clone(), call.clone(), replier, count, delay);
    tokio::spawn(walk);
    replies
}

async fn walk(elements: Elements, call: Call, replier: ReplySender, count: usize, delay: Duration) {
    for (n, element) in ELEMENTS[..count].iter().enumerate() {
        tokio::select! {
            () = replier.abandoned() => return,
            () = tokio::time::sleep(delay) => {}
        }
        let mut notices = Vec::new();
        if let Some(token) = &call.progress {
            let params =
                json!({ "progressToken": token, "progress": n + 1, "total": count, "message": element.english });
            notices.push(Notification::new(Notice::Progress, Some(Raw::of(&params))));
        }
        notices.extend(log(&call, Level::Info, || json!({ "surveyed": element.symbol })));
        for notice in notices {
            if !replier.notice(notice).await {
                return;
            }
        }
    }
    let symbols: Vec<&str> = ELEMENTS[..count].iter().map(|element| element.symbol).collect();
    let text = format!("{count} elements: {}", symbols.join(" "));
    let content = json!([{ "type": "text", "text": text }]);
    let body = json!({ "content": content, "isError": false });
    replier.end(Answer::result(elements.result(&Method::ToolsCall, body))).await;
}
