//! The table and its elements as resources.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::data::{self, ELEMENTS};
use super::{Elements, invalid, object, text_param};
use crate::call::Call;
use crate::protocol::{ErrorObject, Raw};

/// The whole table.
const TABLE: &str = "elements://table";
/// One element, which is another one from time to time.
pub(super) const SPOTLIGHT: &str = "elements://spotlight";
/// One element by its symbol.
pub(super) const TEMPLATE: &str = "elements://symbol/{symbol}";
const BY_SYMBOL: &str = "elements://symbol/";
const JSON: &str = "application/json";

pub(super) fn list() -> Value {
    json!([
        {
            "uri": TABLE,
            "name": "table",
            "title": "The periodic table",
            "description": "All 118 elements.",
            "mimeType": JSON,
        },
        {
            "uri": SPOTLIGHT,
            "name": "spotlight",
            "title": "The element in the spotlight",
            "description": "One element, which changes as time goes by. Subscribe to be told.",
            "mimeType": JSON,
        },
    ])
}

pub(super) fn templates() -> Value {
    json!([{
        "uriTemplate": TEMPLATE,
        "name": "element",
        "title": "One element",
        "description": "An element by its symbol, such as elements://symbol/Fe.",
        "mimeType": JSON,
    }])
}

pub(super) fn read(elements: &Elements, call: &Call) -> Result<Raw, ErrorObject> {
    let uri = text_param(call, &["uri"])?;
    let mut hint = super::HINT;
    let body = match uri.as_str() {
        TABLE => Value::Array(ELEMENTS.iter().map(object).collect()),
        SPOTLIGHT => {
            hint.ttl = 0;
            object(&ELEMENTS[position(elements)])
        }
        other => {
            let symbol = other.strip_prefix(BY_SYMBOL);
            let element = symbol.and_then(|symbol| ELEMENTS.iter().find(|element| element.symbol == symbol));
            object(element.ok_or_else(|| missing(&uri))?)
        }
    };
    let contents = json!([{ "uri": uri, "mimeType": JSON, "text": body.to_string() }]);
    let server = elements.server();
    Ok(super::finished(json!({ "contents": contents }), server, Some(hint)))
}

/// Which element stands in the spotlight now.
fn position(elements: &Elements) -> usize {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let turns = now.as_millis() / elements.0.spotlight.as_millis().max(1);
    (turns % ELEMENTS.len() as u128) as usize
}

fn missing(uri: &str) -> ErrorObject {
    let known = data::by_number(26).map_or("", |iron| iron.symbol);
    let why =
        format!("there is no resource {uri:?}; there are {TABLE}, {SPOTLIGHT} and, for example, {BY_SYMBOL}{known}");
    invalid(&why).with_data(Raw::of(&json!({ "uri": uri })))
}
