//! The macro that makes a settings struct, its defaults, its reader and its key table from one list of entries.
//!
//! An entry is the documentation of a setting and one statement:
//!
//! ```text
//! /// Maximum number of calls in flight per session.
//! calls: usize = 1000, COUNT.example("10").flag("max-calls", "N").heading(LIMITS_HEADING) => sessions.max_calls;
//! ```
//!
//! Key, Rust type and default; type in the file, example and flag; the place in the target struct that it goes to.

/// Declares a section of settings. `as` names its static [`Section`](super::keys::Section) with the description, `+`
/// a slice of further keys in it; `check` a function that runs after the section was read; `=>` the struct that the
/// values go to.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(as $section:ident $(+ $more:ident)?: $description:literal)? $(, check $check:path)? => $target:ty
        { $($entries:tt)* }
    ) => {
        $crate::config::setting_table::settings! {
            $(#[$meta])*
            $vis struct $name $(as $section $(+ $more)?: $description)? $(, check $check)? { $($entries)* }
        }
        $crate::config::setting_table::places! { $name => $target { $($entries)* } }
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(as $section:ident $(+ $more:ident)?: $description:literal)? $(, check $check:path)?
        {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $value:ty = $default:expr, $entry:expr $(=> $($place:ident).+)?;
            )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq)]
        $vis struct $name {
            $( $(#[doc = $doc])+ pub $key: $value, )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default),+ }
            }
        }

        $(
            pub(crate) static $section: $crate::config::keys::Section = $crate::config::keys::Section {
                description: $description,
                parts: &[$name::KEYS, $($more)?],
            };
        )?

        impl $name {
            pub(crate) const KEYS: &'static [$crate::config::keys::ConfigKey] = &[
                $({
                    fn default() -> serde_json::Value {
                        let value: $value = $default;
                        $crate::config::setting_value::SettingValue::to_json(&value, $entry.value_type)
                    }
                    $entry.of_field(stringify!($key), concat!($($doc),+), default)
                },)+
            ];

            /// Takes the values that a table has; reports those that are wrong.
            pub(crate) fn read_table(&mut self, table: &$crate::config::reader::TableReader<'_>) {
                $( $crate::config::setting_value::SettingValue::read(&mut self.$key, table, stringify!($key)); )+
                $( $check(self, table); )?
            }

            /// The values with their dotted names, in the order of the tables, with secrets redacted. `prefix` is
            /// the name of this table with a dot, or empty.
            pub(crate) fn rows(&self, prefix: &str) -> Vec<(String, serde_json::Value)> {
                let mut rows = Vec::new();
                $({
                    let name = format!(concat!("{}", stringify!($key)), prefix);
                    let value = &self.$key;
                    rows.extend($crate::config::setting_value::SettingValue::to_rows(value, &name, $entry.value_type));
                })+
                rows
            }

            /// The values by key, with secrets redacted.
            pub(crate) fn to_object(&self) -> serde_json::Map<String, serde_json::Value> {
                let mut object = serde_json::Map::new();
                $({
                    let value = $crate::config::setting_value::SettingValue::to_json(&self.$key, $entry.value_type);
                    object.insert(stringify!($key).to_owned(), value);
                })+
                object
            }
        }

        /// A section is the value of its table.
        impl $crate::config::setting_value::SettingValue for $name {
            fn read(&mut self, table: &$crate::config::reader::TableReader<'_>, key: &str) {
                if let Some(table) = table.subtable(key) {
                    self.read_table(&table);
                }
            }

            fn to_json(&self, _: $crate::config::keys::ValueType) -> serde_json::Value {
                self.to_object().into()
            }

            fn to_rows(&self, name: &str, _: $crate::config::keys::ValueType) -> Vec<(String, serde_json::Value)> {
                self.rows(&format!("{name}."))
            }

            fn changes(&self, other: &Self, name: &str) -> Vec<String> {
                let prefix = if name.is_empty() { String::new() } else { format!("{name}.") };
                let mut changes = Vec::new();
                $({
                    let name = format!(concat!("{}", stringify!($key)), prefix);
                    let (value, other) = (&self.$key, &other.$key);
                    changes.extend($crate::config::setting_value::SettingValue::changes(value, other, &name));
                })+
                changes
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), " {}"), serde_json::Value::from(self.to_object()))
            }
        }
    };
}

/// Fills the target struct of a section from its values.
macro_rules! places {
    (
        $name:ident => $target:ty
        {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $value:ty = $default:expr, $entry:expr $(=> $($place:ident).+)?;
            )+
        }
    ) => {
        impl $name {
            /// Puts the values into the struct that uses them.
            pub(crate) fn fill(&self, target: &mut $target) {
                $( $( $crate::config::setting_value::FillPlace::fill(&self.$key, &mut target.$($place).+); )? )+
            }
        }
    };
}

pub(crate) use {places, settings};
