//! The arguments of a call, checked as far as a request depends on them.

use serde_json::{Map, Value};

use super::spec::ValueKind;

/// One argument that a tool takes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) required: bool,
    pub(super) default: Option<Value>,
    /// The types that it may have; any when empty.
    pub(super) kinds: Vec<ValueKind>,
    /// The values that it may have; any when empty.
    pub(super) choices: Vec<Value>,
}

/// How much of a wrong value is repeated.
const SHOWN: usize = 60;

impl Input {
    /// Reads from an argument's schema what is checked here.
    pub(super) fn of(name: &str, required: bool, schema: &Value) -> Self {
        let kinds: Vec<ValueKind> = match &schema["type"] {
            Value::String(kind) => ValueKind::named(kind).into_iter().collect(),
            Value::Array(kinds) => kinds.iter().filter_map(|kind| ValueKind::named(kind.as_str()?)).collect(),
            _ => Vec::new(),
        };
        let choices = schema["enum"].as_array().cloned().unwrap_or_default();
        Self { name: name.to_owned(), required, default: None, kinds, choices }
    }

    /// The value of this argument, or what is wrong with it.
    fn take(&self, given: Option<Value>) -> Result<Option<Value>, String> {
        let may_be_null = self.kinds.is_empty() || self.kinds.contains(&ValueKind::Null);
        // Many callers write null for what they leave out; where null is a value, it is one.
        let given = given.filter(|value| !value.is_null() || may_be_null);
        let Some(value) = given.or_else(|| self.default.clone()) else {
            return if self.required { Err(format!("`{}` is missing", self.name)) } else { Ok(None) };
        };
        if !self.kinds.is_empty() && !self.kinds.iter().any(|kind| kind.has(&value)) {
            let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.as_str()).collect();
            return Err(format!("`{}` must be of type {}; it was {}", self.name, kinds.join(" or "), shown(&value)));
        }
        let value = whole(value, &self.kinds);
        if !self.choices.is_empty() && !self.choices.iter().any(|choice| same(choice, &value)) {
            let choices: Vec<String> = self.choices.iter().take(20).map(shown).collect();
            let more = if self.choices.len() > 20 { " or another" } else { "" };
            let name = &self.name;
            return Err(format!("`{name}` must be one of {}{more}; it was {}", choices.join(", "), shown(&value)));
        }
        Ok(Some(value))
    }
}

/// The values of all inputs, in their order, or everything that is wrong with them.
pub(super) fn check(inputs: &[Input], mut given: Map<String, Value>) -> Result<Vec<Option<Value>>, String> {
    let mut values = Vec::with_capacity(inputs.len());
    let mut wrong = Vec::new();
    for input in inputs {
        match input.take(given.remove(&input.name)) {
            Ok(value) => values.push(value),
            Err(why) => wrong.push(why),
        }
    }
    if !given.is_empty() {
        let unknown: Vec<String> = given.keys().take(10).map(|name| format!("`{}`", truncated(name, SHOWN))).collect();
        let known: Vec<String> = inputs.iter().map(|input| format!("`{}`", input.name)).collect();
        let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
        wrong.push(format!("{} is not among the arguments; this tool takes {known}", unknown.join(", ")));
    }
    if wrong.is_empty() { Ok(values) } else { Err(wrong.join("; ")) }
}

/// A whole number as such, even if it was written with a fraction of zero.
fn whole(value: Value, kinds: &[ValueKind]) -> Value {
    let wanted = kinds.contains(&ValueKind::Integer) && !kinds.contains(&ValueKind::Number);
    match value.as_f64() {
        Some(number) if wanted && value.is_f64() && number.abs() < 9e15 => Value::from(number as i64),
        _ => value,
    }
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || (a.is_number() && b.is_number() && a.as_f64() == b.as_f64())
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= SHOWN { text } else { format!("{}…", truncated(&text, SHOWN)) }
}

/// The beginning of a text.
pub(super) fn truncated(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn inputs() -> Vec<Input> {
        vec![
            Input::of("count", true, &json!({ "type": "integer" })),
            Input::of("unit", false, &json!({ "type": "string", "enum": ["C", "F"] })),
            Input::of("any", false, &json!({})),
        ]
    }

    fn checked(given: Value) -> Result<Vec<Option<Value>>, String> {
        let Value::Object(given) = given else { panic!() };
        check(&inputs(), given)
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        assert_eq!(checked(json!({ "count": 3 })), Ok(vec![Some(json!(3)), None, None]));
        assert_eq!(checked(json!({ "count": 3.0, "unit": null })), Ok(vec![Some(json!(3)), None, None]));
        assert_eq!(checked(json!({ "count": 3, "any": null })), Ok(vec![Some(json!(3)), None, Some(Value::Null)]));
        let wrong = checked(json!({ "unit": "K", "more": 1 })).unwrap_err();
        assert_eq!(
            wrong,
            "`count` is missing; `unit` must be one of \"C\", \"F\"; it was \"K\"; `more` is not among the arguments; \
             this tool takes `count`, `unit`, `any`"
        );
        let wrong = checked(json!({ "count": "3" })).unwrap_err();
        assert_eq!(wrong, "`count` must be of type integer; it was \"3\"");
        assert_eq!(checked(json!({ "count": null })).unwrap_err(), "`count` is missing");
    }

    #[test]
    fn a_default_stands_in() {
        let mut input = Input::of("days", false, &json!({ "type": "integer" }));
        input.default = Some(json!(7));
        assert_eq!(check(&[input], Map::new()), Ok(vec![Some(json!(7))]));
    }

    proptest! {
        #[test]
        fn no_argument_makes_it_panic(name in any::<String>(), text in any::<String>(), number in any::<f64>()) {
            let mut given = Map::new();
            given.insert(name, json!(text));
            given.insert("count".to_owned(), json!(number));
            given.insert("unit".to_owned(), json!([text]));
            prop_assert!(check(&inputs(), given).is_err());
        }
    }
}
