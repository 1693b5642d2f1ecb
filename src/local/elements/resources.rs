//! Resources of the built-in server: the table, single elements, and a spotlight that is updated over time.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::data::{self, ELEMENTS};
use super::{Elements, element_json, invalid_params, string_param};
use crate::call::Call;
use crate::protocol::{ErrorObject, Raw};

/// The whole table.
const TABLE_URI: &str = "elements://table";
/// The element in the spotlight, which changes at every spotlight interval.
pub(super) const SPOTLIGHT_URI: &str = "elements://spotlight";
/// One element by its symbol.
pub(super) const SYMBOL_URI_TEMPLATE: &str = "elements://symbol/{symbol}";
const SYMBOL_URI_PREFIX: &str = "elements://symbol/";
const JSON_MIME_TYPE: &str = "application/json";

pub(super) fn resource_definitions() -> Value {
    json!([
        {
            "uri": TABLE_URI,
            "name": "table",
            "title": "The periodic table",
            "description": "All 118 elements.",
            "mimeType": JSON_MIME_TYPE,
        },
        {
            "uri": SPOTLIGHT_URI,
            "name": "spotlight",
            "title": "The element in the spotlight",
            "description": "One element, which changes as time goes by. Subscribe to be told.",
            "mimeType": JSON_MIME_TYPE,
        },
    ])
}

pub(super) fn template_definitions() -> Value {
    json!([{
        "uriTemplate": SYMBOL_URI_TEMPLATE,
        "name": "element",
        "title": "One element",
        "description": "An element by its symbol, such as elements://symbol/Fe.",
        "mimeType": JSON_MIME_TYPE,
    }])
}

pub(super) fn read_resource(elements: &Elements, call: &Call) -> Result<Raw, ErrorObject> {
    let uri = string_param(call, &["uri"])?;
    let mut hint = super::TABLE_CACHE_HINT;
    let body = match uri.as_str() {
        TABLE_URI => Value::Array(ELEMENTS.iter().map(element_json).collect()),
        SPOTLIGHT_URI => {
            hint.ttl = 0;
            element_json(&ELEMENTS[spotlight_index(elements)])
        }
        other => {
            let symbol = other.strip_prefix(SYMBOL_URI_PREFIX);
            let element = symbol.and_then(|symbol| ELEMENTS.iter().find(|element| element.symbol == symbol));
            element_json(element.ok_or_else(|| unknown_resource(&uri))?)
        }
    };
    let contents = json!([{ "uri": uri, "mimeType": JSON_MIME_TYPE, "text": body.to_string() }]);
    let server = elements.server();
    Ok(super::with_result_fields(json!({ "contents": contents }), server, Some(hint)))
}

/// Index of the spotlight element, from the wall clock: all nodes show the same one.
fn spotlight_index(elements: &Elements) -> usize {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let turns = now.as_millis() / elements.0.spotlight_interval.as_millis().max(1);
    (turns % ELEMENTS.len() as u128) as usize
}

fn unknown_resource(uri: &str) -> ErrorObject {
    let example = data::by_number(26).map_or("", |iron| iron.symbol);
    let why = format!(
        "there is no resource {uri:?}; there are {TABLE_URI}, {SPOTLIGHT_URI} and, for example, {SYMBOL_URI_PREFIX}{example}"
    );
    invalid_params(&why).with_data(Raw::of(&json!({ "uri": uri })))
}
