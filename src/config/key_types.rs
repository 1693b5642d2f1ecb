//! The types that values have in the file, by short names for the tables of [`settings`](super::settings).

use super::keys::{ConfigKey, MAX_COUNT, Section, ValueType, setting};
use super::setting_value::Choice;

pub(super) const ADDRESS: ConfigKey = setting(ValueType::Address);
pub(super) const BOOLEAN: ConfigKey = setting(ValueType::Boolean);
pub(super) const COUNT: ConfigKey = integer(1, MAX_COUNT);
pub(super) const COUNT_OR_ZERO: ConfigKey = integer(0, MAX_COUNT);
pub(super) const DATE: ConfigKey = setting(ValueType::Date);
pub(super) const DURATION: ConfigKey = setting(ValueType::Duration { allow_zero: false, allow_off: false });
pub(super) const DURATION_OR_ZERO: ConfigKey = setting(ValueType::Duration { allow_zero: true, allow_off: false });
pub(super) const DURATION_OR_OFF: ConfigKey = setting(ValueType::Duration { allow_zero: false, allow_off: true });
pub(super) const REVISION: ConfigKey = setting(ValueType::Revision);
pub(super) const SIZE: ConfigKey = setting(ValueType::Size);
pub(super) const STORE: ConfigKey = setting(ValueType::Store);
pub(super) const STRING: ConfigKey = setting(ValueType::String);
pub(super) const STRINGS: ConfigKey = setting(ValueType::StringList);
pub(super) const STRING_MAP: ConfigKey = setting(ValueType::StringMap);
pub(super) const URL: ConfigKey = setting(ValueType::Url);

pub(super) const fn integer(least: u64, most: u64) -> ConfigKey {
    setting(ValueType::Integer(least, most))
}

pub(super) const fn choice<T: Choice>() -> ConfigKey {
    setting(ValueType::Choice(T::WORDS))
}

pub(super) const fn table(section: &'static Section) -> ConfigKey {
    setting(ValueType::Table(section))
}

pub(super) const fn named_tables(section: &'static Section) -> ConfigKey {
    setting(ValueType::NamedTables(section))
}
