//! What a key of `rialto.toml` is: name, type with its range, default, description, flag. The settings in
//! [`settings`](super::settings) and the other tables in [`structure`](super::structure) consist of these.

use std::borrow::Cow;

use serde_json::Value;

/// One TOML table: its description and its keys.
#[derive(Debug)]
pub(crate) struct Section {
    /// Description of the table, used in the schema.
    pub(super) description: &'static str,
    /// Keys, as slices that several sections may share.
    pub(super) parts: &'static [&'static [ConfigKey]],
}

/// One configuration key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConfigKey {
    pub(crate) name: &'static str,
    pub(crate) value_type: ValueType,
    /// One or two sentences; names of things stand in backticks.
    pub(super) description: &'static str,
    pub(super) default: KeyDefault,
    /// Alternative spelling of the key.
    pub(super) alias: Option<&'static str>,
    /// Server kinds (see [`SERVER_KIND_KEYS`](super::structure::SERVER_KIND_KEYS)) that accept this key; empty for all.
    pub(super) server_kinds: &'static [&'static str],
    /// A valid value other than the default, in TOML. A test parses each of them.
    pub(crate) example: &'static str,
    /// The command line flag that overrides the file.
    pub(crate) flag: Option<Flag>,
}

/// Default of a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyDefault {
    /// There is none, or the value says it.
    None,
    /// In words, or in TOML where no struct holds it.
    Words(&'static str),
    /// The value that the struct of the section begins with.
    Value(fn() -> Value),
}

/// A command line flag of a setting. The environment variable is named after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flag {
    /// Long name without the dashes.
    pub(crate) name: &'static str,
    /// Placeholder of the value in the help.
    pub(crate) value_name: &'static str,
    /// Heading in the help.
    pub(crate) heading: Option<&'static str>,
    pub(crate) scope: FlagScope,
    /// Help of a flag that takes no value and turns the setting off.
    pub(crate) turns_off: Option<&'static str>,
}

/// Commands that take a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlagScope {
    /// `serve` and `stdio`.
    Serve,
    /// Every command.
    Global,
}

/// Type of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ValueType {
    /// Any string.
    String,
    /// A string that must be present.
    RequiredString,
    /// `true` or `false`.
    Boolean,
    /// An integer between the two bounds, inclusive.
    Integer(u64, u64),
    /// A size in bytes, with or without a unit.
    Size,
    /// A duration with a unit.
    Duration {
        /// Whether `"0s"` is valid.
        allow_zero: bool,
        /// Whether `"off"` is valid.
        allow_off: bool,
    },
    /// A socket address.
    Address,
    /// An `http` or `https` URL.
    Url,
    /// `memory`, or a Redis URL.
    Store,
    /// One of a fixed set of strings.
    Choice(&'static [&'static str]),
    /// A protocol revision, or `auto`.
    Revision,
    /// A date, or a date and time with an offset.
    Date,
    /// A list of strings.
    StringList,
    /// A table of strings. Values are treated as secrets.
    StringMap,
    /// A table of words of a fixed set.
    ChoiceMap(&'static [&'static str]),
    /// A number from 0 to 1.
    Fraction,
    /// A table of numbers from 0 to 1.
    FractionMap,
    /// A table of lists of strings.
    StringLists,
    /// Any value.
    Any,
    /// A list of values of any type.
    AnyList,
    /// A nested table.
    Table(&'static Section),
    /// A table of tables, keyed by a user-chosen name.
    NamedTables(&'static Section),
    /// A list of tables.
    TableList(&'static Section),
}

/// Upper bound of every count limit.
pub(super) const MAX_COUNT: u64 = 1 << 40;

/// Prefix of the environment variables of flags.
const VARIABLE_PREFIX: &str = "RIALTO_";

/// A key of a table that is not a settings struct.
pub(super) const fn key(name: &'static str, value_type: ValueType, description: &'static str) -> ConfigKey {
    let default = KeyDefault::None;
    ConfigKey { name, value_type, description, default, alias: None, server_kinds: &[], example: "", flag: None }
}

/// A key of a settings struct; the `settings!` macro adds name, description and default.
pub(super) const fn setting(value_type: ValueType) -> ConfigKey {
    key("", value_type, "")
}

// === impl ConfigKey ===

impl ConfigKey {
    /// Default in words, in place of the value that the struct begins with.
    pub(super) const fn default(mut self, default: &'static str) -> Self {
        self.default = KeyDefault::Words(default);
        self
    }

    pub(super) const fn alias(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    pub(super) const fn server_kinds(mut self, server_kinds: &'static [&'static str]) -> Self {
        self.server_kinds = server_kinds;
        self
    }

    pub(super) const fn example(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }

    /// Gives the key a flag. A duration is counted in seconds, or in milliseconds if the name ends in `-ms`.
    pub(super) const fn flag(mut self, name: &'static str, value_name: &'static str) -> Self {
        self.flag = Some(Flag { name, value_name, heading: None, scope: FlagScope::Serve, turns_off: None });
        self
    }

    /// Puts the flag under a heading of the help.
    pub(super) const fn heading(mut self, heading: &'static str) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.heading = Some(heading);
        }
        self
    }

    /// Gives the flag to every command.
    pub(super) const fn global(mut self) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.scope = FlagScope::Global;
        }
        self
    }

    /// Makes the flag one without a value that sets the key to `false`.
    pub(super) const fn turns_off(mut self, help: &'static str) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.turns_off = Some(help);
        }
        self
    }

    /// Name, description and default as the struct of the section has them.
    pub(super) const fn of_field(
        mut self,
        name: &'static str,
        description: &'static str,
        default: fn() -> Value,
    ) -> Self {
        self.name = name;
        self.description = description.trim_ascii();
        if let KeyDefault::None = self.default {
            self.default = KeyDefault::Value(default);
        }
        self
    }

    /// The description without backticks, for places that show no markup.
    pub(crate) fn plain_description(&self) -> String {
        self.description.replace('`', "")
    }

    /// The default, in TOML or in words.
    pub(super) fn default_text(&self) -> Option<Cow<'static, str>> {
        match self.default {
            KeyDefault::None => None,
            KeyDefault::Words(words) => Some(words.into()),
            KeyDefault::Value(value) => Some(value()).filter(is_shown).map(|value| value.to_string().into()),
        }
    }

    /// A value in TOML for the starter file: the default, or the example where words stand for the default.
    pub(super) fn starter_value(&self) -> String {
        match self.default {
            KeyDefault::Value(value) if is_shown(&value()) => value().to_string(),
            _ => self.example.to_owned(),
        }
    }

    /// Whether values of this type hold secrets.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.value_type, ValueType::Store | ValueType::StringMap)
    }
}

/// Whether a default says something: an unset value, an empty list and a table do not.
fn is_shown(value: &Value) -> bool {
    match value {
        Value::Null | Value::Object(_) => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

// === impl Flag ===

impl Flag {
    /// Name of the environment variable.
    pub(crate) fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.replace('-', "_").to_ascii_uppercase())
    }

    /// Unit in which the flag counts a duration, in the syntax of the file.
    pub(crate) fn duration_unit(&self) -> &'static str {
        if self.name.ends_with("-ms") { "ms" } else { "s" }
    }
}

// === impl Section ===

impl Section {
    /// All keys of the section.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static ConfigKey> {
        self.parts.iter().copied().flatten()
    }

    /// Finds a key by its name or its alias.
    pub(super) fn key(&self, name: &str) -> Option<&'static ConfigKey> {
        self.keys().find(|key| key.name == name || key.alias == Some(name))
    }
}
