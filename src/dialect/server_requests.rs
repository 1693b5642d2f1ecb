//! Converts server requests to the client's revision.

use super::Revision;
use crate::protocol::{Method, Raw};

/// A server request as an entry of `inputRequests`, without members that belong to another hop.
pub fn input_request(method: &Method, params: Option<&Raw>) -> Raw {
    let request = Raw::empty().edit().set("method", Raw::of(method.as_str())).finish();
    let Some(params) = params else { return request };
    let params = params.edit().remove("_meta").remove("task").remove("elicitationId").finish();
    request.edit().set("params", params).finish()
}

/// Whether a response has the form that the method requires.
pub fn is_valid_response(method: &Method, response: &Raw) -> bool {
    let is_text = |key: &str| response.get(key).is_some_and(|value| value.text().is_some());
    match method.as_str() {
        "elicitation/create" => is_text("action"),
        "sampling/createMessage" => is_text("role") && response.get("content").is_some(),
        "roots/list" => response.get("roots").is_some_and(|roots| roots.is_array()),
        _ => response.is_object(),
    }
}

/// Converts the parameters of a server request for a client of that revision.
///
/// # Errors
/// A description of what the client does not support.
pub fn for_client(method: &Method, params: Option<Raw>, to: Revision) -> Result<Option<Raw>, &'static str> {
    let features = to.features();
    let Some(params) = params else { return Ok(None) };
    if !features.sessions {
        return Ok(Some(params));
    }
    let text = |key: &str| params.get(key).and_then(|value| value.text().map(|text| text.into_owned()));
    match method.as_str() {
        "elicitation/create" if text("mode").as_deref() == Some("url") => {
            if !features.rich_server_requests {
                return Err("the client cannot be sent to an address");
            }
            if params.get("elicitationId").is_some() {
                return Ok(Some(params));
            }
            let id = text("url").unwrap_or_default();
            Ok(Some(params.edit().set("elicitationId", Raw::of(&id)).finish()))
        }
        "elicitation/create" if !features.rich_server_requests => downgrade_form(&params).map(Some),
        "sampling/createMessage" if !features.rich_server_requests => downgrade_sampling(&params).map(Some),
        _ => Ok(Some(params)),
    }
}

/// Downgrades a form: no titled choices, no defaults except for booleans.
fn downgrade_form(params: &Raw) -> Result<Raw, &'static str> {
    let params = params.edit().remove("mode").finish();
    let Some(schema) = params.get("requestedSchema") else { return Ok(params) };
    let Some(properties) = schema.get("properties") else { return Ok(params) };
    let mut edit = properties.edit();
    for (key, property) in properties.entries() {
        edit = edit.set(key, downgrade_property(&property)?);
    }
    let schema = schema.edit().set("properties", edit.finish()).finish();
    Ok(params.edit().set("requestedSchema", schema).finish())
}

fn downgrade_property(property: &Raw) -> Result<Raw, &'static str> {
    let kind = property.get("type");
    let kind = kind.as_ref().and_then(Raw::text);
    if kind.as_deref() == Some("array") {
        return Err("the client cannot be asked for several choices at once");
    }
    let mut edit = property.edit();
    if kind.as_deref() != Some("boolean") {
        edit = edit.remove("default");
    }
    if let Some(choices) = property.get("oneOf") {
        let all = |key: &str| choices.items().iter().filter_map(|choice| choice.get(key)).collect::<Vec<Raw>>();
        edit = edit.remove("oneOf").set("enum", Raw::of(&all("const"))).set("enumNames", Raw::of(&all("title")));
    }
    Ok(edit.finish())
}

/// Downgrades a sampling request: no tools, one content block per message.
fn downgrade_sampling(params: &Raw) -> Result<Raw, &'static str> {
    if params.get("tools").is_some() || params.get("toolChoice").is_some() {
        return Err("the client cannot be given tools to sample with");
    }
    let Some(messages) = params.get("messages") else { return Ok(params.clone()) };
    let mut converted_messages = Vec::new();
    for message in messages.items() {
        let content = message.get("content").filter(Raw::is_array).map(|content| content.items());
        converted_messages.push(match content.as_deref() {
            None => message,
            Some([only]) => message.edit().set("content", only.clone()).finish(),
            Some(_) => return Err("the client cannot be given several blocks of content at once"),
        });
    }
    if converted_messages == messages.items() {
        return Ok(params.clone());
    }
    Ok(params.edit().set("messages", Raw::of(&converted_messages)).finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn converted(method: &str, params: &str, to: &str) -> Result<String, &'static str> {
        let params = Raw::parse(&Bytes::copy_from_slice(params.as_bytes())).unwrap();
        let converted = for_client(&Method::from(method), Some(params), Revision::parse(to).unwrap());
        converted.map(|params| params.unwrap().to_string())
    }

    #[test]
    fn forms_are_downgraded() {
        let form = r#"{"mode":"form","message":"m","requestedSchema":{"type":"object","properties":{"a":{"type":"string","oneOf":[{"const":"x","title":"X"}],"default":"x"},"b":{"type":"boolean","default":true}}}}"#;
        assert_eq!(converted("elicitation/create", form, "2025-11-25").unwrap(), form);
        assert_eq!(
            converted("elicitation/create", form, "2025-06-18").unwrap(),
            r#"{"message":"m","requestedSchema":{"type":"object","properties":{"a":{"type":"string","enum":["x"],"enumNames":["X"]},"b":{"type":"boolean","default":true}}}}"#
        );
        let several = r#"{"message":"m","requestedSchema":{"properties":{"a":{"type":"array"}}}}"#;
        assert!(converted("elicitation/create", several, "2025-06-18").is_err());
    }

    #[test]
    fn url_elicitation_gets_an_elicitation_id() {
        let url = r#"{"mode":"url","message":"m","url":"https://h/x"}"#;
        assert!(converted("elicitation/create", url, "2025-11-25").unwrap().contains("elicitationId"));
        assert!(converted("elicitation/create", url, "2025-06-18").is_err());
    }

    #[test]
    fn sampling_messages_have_one_block() {
        let one = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"t"}]}]}"#;
        assert_eq!(
            converted("sampling/createMessage", one, "2025-06-18").unwrap(),
            r#"{"messages":[{"role":"user","content":{"type":"text","text":"t"}}]}"#
        );
        assert_eq!(converted("sampling/createMessage", one, "2025-11-25").unwrap(), one);
        assert!(converted("sampling/createMessage", r#"{"messages":[],"tools":[]}"#, "2025-06-18").is_err());
    }

    #[test]
    fn malformed_responses_are_rejected() {
        let fits = |method: &str, text: &str| {
            is_valid_response(&Method::from(method), &Raw::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap())
        };
        assert!(fits("elicitation/create", r#"{"action":"decline"}"#));
        assert!(!fits("elicitation/create", r#"{"content":{}}"#));
        assert!(fits("roots/list", r#"{"roots":[]}"#) && !fits("roots/list", "[]"));
        assert!(!fits("sampling/createMessage", r#""text""#));
    }
}
