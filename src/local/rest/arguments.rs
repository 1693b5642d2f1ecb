//! Validation of tool arguments, as far as the HTTP request depends on them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::argument_value::ArgumentValue;
use super::spec::ValueKind;

/// One argument of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ToolArgument {
    pub(super) name: String,
    pub(super) required: bool,
    pub(super) default: Option<ArgumentValue>,
    /// Allowed JSON types; any when empty.
    pub(super) kinds: Vec<ValueKind>,
    /// Allowed values; any when empty.
    pub(super) choices: Vec<ArgumentValue>,
}

/// Bytes of a rejected value that an error message repeats.
const MAX_ECHOED_VALUE: usize = 60;

impl ToolArgument {
    /// Takes types and enum values from the argument's JSON Schema.
    pub(super) fn from_schema(name: &str, required: bool, schema: &Value) -> Self {
        let kinds: Vec<ValueKind> = match &schema["type"] {
            Value::String(kind) => ValueKind::named(kind).into_iter().collect(),
            Value::Array(kinds) => kinds.iter().filter_map(|kind| ValueKind::named(kind.as_str()?)).collect(),
            _ => Vec::new(),
        };
        let choices = schema["enum"].as_array().map(|choices| choices.iter().map(Into::into).collect());
        let choices = choices.unwrap_or_default();
        Self { name: name.to_owned(), required, default: None, kinds, choices }
    }

    /// Validates the given value and applies the default; the error is a sentence for the caller.
    fn validate(&self, given: Option<ArgumentValue>) -> Result<Option<ArgumentValue>, String> {
        let may_be_null = self.kinds.is_empty() || self.kinds.contains(&ValueKind::Null);
        // Many clients send null for an omitted argument; it is a value only where the type allows null.
        let given = given.filter(|value| !value.is_null() || may_be_null);
        let Some(value) = given.or_else(|| self.default.clone()) else {
            return if self.required { Err(format!("`{}` is missing", self.name)) } else { Ok(None) };
        };
        if !self.kinds.is_empty() && !self.kinds.iter().any(|kind| kind.matches(&value)) {
            let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.as_str()).collect();
            return Err(format!("`{}` must be of type {}; it was {}", self.name, kinds.join(" or "), excerpt(&value)));
        }
        let value = normalize_integer(value, &self.kinds);
        if !self.choices.is_empty() && !self.choices.iter().any(|choice| choice.is_same(&value)) {
            let choices: Vec<String> = self.choices.iter().take(20).map(excerpt).collect();
            let more = if self.choices.len() > 20 { " or another" } else { "" };
            let name = &self.name;
            return Err(format!("`{name}` must be one of {}{more}; it was {}", choices.join(", "), excerpt(&value)));
        }
        Ok(Some(value))
    }
}

/// Validates all arguments, in declaration order; the error names every violation at once.
pub(super) fn validate_all(
    arguments: &[ToolArgument],
    mut given: BTreeMap<String, ArgumentValue>,
) -> Result<Vec<Option<ArgumentValue>>, String> {
    let mut values = Vec::with_capacity(arguments.len());
    let mut violations = Vec::new();
    for argument in arguments {
        match argument.validate(given.remove(&argument.name)) {
            Ok(value) => values.push(value),
            Err(why) => violations.push(why),
        }
    }
    if !given.is_empty() {
        let unknown: Vec<String> =
            given.keys().take(10).map(|name| format!("`{}`", truncated(name, MAX_ECHOED_VALUE))).collect();
        let known: Vec<String> = arguments.iter().map(|argument| format!("`{}`", argument.name)).collect();
        let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
        violations.push(format!("{} is not among the arguments; this tool takes {known}", unknown.join(", ")));
    }
    if violations.is_empty() { Ok(values) } else { Err(violations.join("; ")) }
}

/// Turns `3.0` into `3` where only integers are allowed.
fn normalize_integer(value: ArgumentValue, kinds: &[ValueKind]) -> ArgumentValue {
    let wanted = kinds.contains(&ValueKind::Integer) && !kinds.contains(&ValueKind::Number);
    if wanted { value.with_plain_integer() } else { value }
}

fn excerpt(value: &ArgumentValue) -> String {
    let text = value.to_string();
    if text.len() <= MAX_ECHOED_VALUE { text } else { format!("{}…", truncated(&text, MAX_ECHOED_VALUE)) }
}

/// The longest prefix of at most `most` bytes that ends on a character boundary.
pub(super) fn truncated(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn arguments() -> Vec<ToolArgument> {
        vec![
            ToolArgument::from_schema("count", true, &json!({ "type": "integer" })),
            ToolArgument::from_schema("unit", false, &json!({ "type": "string", "enum": ["C", "F"] })),
            ToolArgument::from_schema("any", false, &json!({})),
        ]
    }

    fn checked(given: &Value) -> Result<Vec<Option<ArgumentValue>>, String> {
        let ArgumentValue::Object(given) = ArgumentValue::from(given) else { panic!() };
        validate_all(&arguments(), given)
    }

    fn number(number: i64) -> Option<ArgumentValue> {
        Some(ArgumentValue::from(&json!(number)))
    }

    #[test]
    fn all_violations_are_reported_at_once() {
        assert_eq!(checked(&json!({ "count": 3 })), Ok(vec![number(3), None, None]));
        assert_eq!(checked(&json!({ "count": 3.0, "unit": null })), Ok(vec![number(3), None, None]));
        assert_eq!(checked(&json!({ "count": 3, "any": null })), Ok(vec![number(3), None, Some(ArgumentValue::Null)]));
        let violations = checked(&json!({ "unit": "K", "more": 1 })).unwrap_err();
        assert_eq!(
            violations,
            "`count` is missing; `unit` must be one of \"C\", \"F\"; it was \"K\"; `more` is not among the arguments; \
             this tool takes `count`, `unit`, `any`"
        );
        let violations = checked(&json!({ "count": "3" })).unwrap_err();
        assert_eq!(violations, "`count` must be of type integer; it was \"3\"");
        assert_eq!(checked(&json!({ "count": null })).unwrap_err(), "`count` is missing");
    }

    #[test]
    fn default_replaces_an_absent_argument() {
        let mut argument = ToolArgument::from_schema("days", false, &json!({ "type": "integer" }));
        argument.default = number(7);
        assert_eq!(validate_all(&[argument], BTreeMap::new()), Ok(vec![number(7)]));
    }

    proptest! {
        #[test]
        fn arbitrary_arguments_never_panic(name in any::<String>(), text in any::<String>(), number in any::<f64>()) {
            let mut given = BTreeMap::new();
            given.insert(name, (&json!(text)).into());
            given.insert("count".to_owned(), (&json!(number)).into());
            given.insert("unit".to_owned(), (&json!([text])).into());
            prop_assert!(validate_all(&arguments(), given).is_err());
        }
    }
}
