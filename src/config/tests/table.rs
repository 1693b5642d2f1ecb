//! One entry of a table is all that a setting needs: everything else is made from it.

use std::time::Duration;

use serde_json::Value;

use super::{lookup, reference, toml};
use crate::config::flags::{GivenFlag, flagged_keys_of, read_flags};
use crate::config::keys::{ConfigKey, Section, ValueType, setting};
use crate::config::setting_table::settings;
use crate::config::setting_value::SettingValue;
use crate::config::settings::TOP_LEVEL;
use crate::config::{AppSettings, Config, ConfigFormat, parse, schema, starter_config, template};

/// Every setting with the table that it stands in; the empty name is the top level.
fn all_settings() -> Vec<(&'static str, &'static ConfigKey)> {
    let below = |key: &'static ConfigKey| match key.value_type {
        ValueType::Table(section) => section.keys().map(|inner| (key.name, inner)).collect::<Vec<_>>(),
        ValueType::NamedTables(_) => Vec::new(),
        _ => vec![("", key)],
    };
    TOP_LEVEL.keys().flat_map(below).collect()
}

/// Dotted name of a setting.
fn dotted(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

fn values(config: &Config) -> Vec<(String, Value)> {
    config.settings.rows("")
}

fn value(config: &Config, name: &str) -> Value {
    values(config).into_iter().find(|(known, _)| known == name).map(|(_, value)| value).expect(name)
}

/// The part of a file for one setting with its example as the value.
fn example_file(table: &str, key: &ConfigKey) -> String {
    let line = format!("{} = {}\n", key.name, key.example);
    if table.is_empty() { line } else { format!("[{table}]\n{line}") }
}

#[test]
fn every_setting_is_read_shown_and_documented() {
    let (defaults, schema, starter) = (Config::default(), schema(), starter_config());
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let page = reference::reference_page();
    let settings = all_settings();
    assert!(settings.len() > 55, "only {} settings", settings.len());
    assert_eq!(values(&defaults).len(), settings.len());
    for (table, key) in settings {
        let name = dotted(table, key.name);
        let config = toml(&example_file(table, key));
        assert_ne!(value(&config, &name), value(&defaults, &name), "{name} is not read");
        assert!(config.settings.changed_settings(&defaults.settings).contains(&name), "{name}");
        let tables = if table.is_empty() { &schema } else { &schema["properties"][table] };
        let described = tables["properties"][key.name]["description"].as_str().unwrap_or_default();
        assert!(described.contains(&key.plain_description()), "{name} is not in the schema");
        assert!(!key.description.is_empty() && key.description.ends_with('.'), "{name}: {}", key.description);
        assert!(starter.contains(&format!("# {} = {}", key.name, key.starter_value())), "{name} is not in the starter");
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}`", key.name)));
        assert!(row.is_some(), "{name} is not on the page");
    }
}

#[test]
fn every_flag_sets_its_setting() {
    let flags: Vec<_> = flagged_keys_of(&TOP_LEVEL).collect();
    assert!(flags.len() > 30, "only {} flags", flags.len());
    let page = reference::reference_page();
    for setting in flags {
        let (key, flag) = (setting.key, setting.flag);
        let name = dotted(setting.table.unwrap_or_default(), key.name);
        let from_file = toml(&example_file(setting.table.unwrap_or_default(), key));
        let values: Vec<String> = match key.value_type {
            ValueType::Duration { .. } | ValueType::Size | ValueType::Integer(..) => vec!["7".into()],
            ValueType::StringList => from_file_list(&value(&from_file, &name)),
            ValueType::StringMap => vec!["ann=t0ken".into()],
            _ => vec![key.example.trim_matches('"').to_owned()],
        };
        let flags = [GivenFlag { setting, values }];
        let from_flags = Config::default().with_flags(&flags).unwrap().0;
        assert_ne!(value(&from_flags, &name), value(&Config::default(), &name), "--{}", flag.name);
        let numeric = matches!(key.value_type, ValueType::Duration { .. } | ValueType::Size | ValueType::Integer(..));
        if !numeric {
            assert_eq!(value(&from_flags, &name), value(&from_file, &name), "--{}", flag.name);
        }
        // A flag wins over the file and leaves the rest of it alone.
        let both = from_file.with_flags(&flags).unwrap().0;
        assert_eq!(value(&both, &name), value(&from_flags, &name), "--{}", flag.name);
        assert!(page.contains(&format!("`--{}`, `{}`", flag.name, flag.variable())), "--{}", flag.name);
    }
}

fn from_file_list(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

#[test]
fn values_reach_the_structs_that_use_them() {
    let changed = |table: &str, key: &ConfigKey| format!("{:?}", toml(&example_file(table, key)).app_settings());
    let defaults = format!("{:?}", Config::default().app_settings());
    // Logging is set up before there is a gateway, and TLS needs files.
    for (table, key) in all_settings().into_iter().filter(|(table, _)| !matches!(*table, "log" | "tls")) {
        match key.name {
            // The default is the number of cores, which the example may be, too.
            // Scopes count in rules only.
            "scope_hierarchy" => {}
            "workers" => assert!(changed(table, key).contains("workers: 2,")),
            _ => assert_ne!(changed(table, key), defaults, "{} goes nowhere", dotted(table, key.name)),
        }
    }
}

/// Where the setting of the test goes.
#[derive(Default)]
pub(super) struct BrewingSettings {
    steep_time: Duration,
    cups: usize,
}

settings! {
    /// A section as a newcomer would add it.
    pub(super) struct BrewingSection as BREWING: "Tea." => BrewingSettings {
        /// How long the tea is left to draw.
        steep_time: Duration = Duration::from_secs(180),
            setting(ValueType::Duration { allow_zero: false, allow_off: false })
                .example("\"5m\"")
                .flag("steep-time", "SECONDS")
            => steep_time;
        /// Number of cups.
        cups: usize = 2, setting(ValueType::Integer(1, 12)).example("4") => cups;
    }
}

/// A file whose only section is the one of the test.
static KITCHEN: Section = Section {
    description: "Kitchen.",
    parts: &[&[crate::config::keys::key("brewing", ValueType::Table(&BREWING), "Tea.")]],
};

fn read_kitchen(text: &str) -> (BrewingSection, Vec<String>) {
    use crate::config::reader::{ConfigReader, TableReader, ValueSource};
    let (root, errors) = crate::config::spanned_value::from_toml(text);
    assert!(errors.is_empty(), "{errors:?}");
    let path = std::path::Path::new("kitchen.toml");
    let (source, diagnostics) = (ValueSource::File, std::cell::RefCell::default());
    let secrets = crate::config::secrets::SecretCollector::default();
    let reader =
        ConfigReader { source, path, text, lookup: &lookup, has_syntax_errors: false, diagnostics, secrets: &secrets };
    let mut section = BrewingSection::default();
    section.read(&TableReader::open(&reader, &root, &KITCHEN, "", &(0..0)).unwrap(), "brewing");
    let diagnostics = reader.diagnostics.borrow().iter().map(ToString::to_string).collect();
    (section, diagnostics)
}

#[test]
fn one_entry_is_enough_for_a_new_setting() {
    // Struct and default.
    assert_eq!(BrewingSection::default().steep_time, Duration::from_secs(180));
    // File, with the position of a mistake.
    let (section, mistakes) = read_kitchen("[brewing]\nsteep_time = \"4m\"\n");
    assert_eq!((section.steep_time, section.cups, mistakes.len()), (Duration::from_secs(240), 2, 0));
    let (section, mistakes) = read_kitchen("[brewing]\nsteep_time = \"0s\"\ncups = 13\nstep_time = 1\n");
    assert_eq!(section, BrewingSection::default());
    let expected = [
        "kitchen.toml:4:1: error: unknown key `step_time` in [brewing]; did you mean `steep_time`?",
        "kitchen.toml:2:14: error: `steep_time` in [brewing]: \"0s\" must be more than 0",
        "kitchen.toml:3:8: error: `cups` in [brewing]: 13 must be from 1 to 12",
    ];
    assert_eq!(mistakes, expected);
    // Flag and variable.
    let [flag] = flagged_keys_of(&KITCHEN).collect::<Vec<_>>()[..] else { panic!("one flag") };
    assert_eq!((flag.flag.name, flag.flag.variable().as_str()), ("steep-time", "RIALTO_STEEP_TIME"));
    assert_eq!(flag.default_text().as_deref(), Some("180"));
    let given = |value: &str| [GivenFlag { setting: flag, values: vec![value.to_owned()] }];
    let mut section = BrewingSection::default();
    read_flags(&given("7"), &KITCHEN, |table| section.read(table, "brewing")).unwrap();
    assert_eq!((section.steep_time, section.cups), (Duration::from_secs(7), 2));
    let refused = read_flags(&given("0"), &KITCHEN, |table| section.read(table, "brewing")).unwrap_err();
    assert_eq!(refused, ["--steep-time: \"0s\" must be more than 0"]);
    // The struct that uses it.
    let mut target = BrewingSettings::default();
    section.fill(&mut target);
    assert_eq!((target.steep_time, target.cups), (Duration::from_secs(7), 2));
    // Schema, starter file, reference page, `rialto check`.
    let schema = crate::config::schema::section_schema(&BREWING);
    let described = schema["properties"]["steep_time"]["description"].as_str().unwrap();
    assert_eq!(described, "How long the tea is left to draw. Default: \"3m\".");
    assert_eq!(
        template::section_lines(&BREWING),
        "# steep_time = \"3m\"              # How long the tea is left to draw.\n\
         # cups = 2                       # Number of cups.\n"
    );
    let expected = "| `steep_time` | duration | How long the tea is left to draw. | `\"3m\"` | `--steep-time`, `RIALTO_STEEP_TIME` |\n";
    assert!(reference::markdown(BREWING.keys()).contains(expected));
    assert_eq!(section.rows("brewing.")[0], ("brewing.steep_time".to_owned(), "7s".into()));
}

#[test]
fn flags_are_checked_as_the_file_is() {
    let flags: Vec<_> = flagged_keys_of(&TOP_LEVEL).collect();
    for (name, value, message) in [
        ("listen", "here", "--listen: \"here\" is not an address"),
        ("store", "redis://:s3cret@a,b", "--store names several hosts"),
        ("token", "ann", "--token takes NAME=TOKEN"),
        ("log", "rialto=loud", "--log is not a log filter"),
        ("allow-origin", "app.example", "\"app.example\" is not an origin"),
        ("forward-header", "a b", "\"a b\" is not a valid header name"),
        ("http1", "nginx", "--http1: \"nginx\" is unknown"),
    ] {
        let setting = *flags.iter().find(|setting| setting.flag.name == name).unwrap();
        let given = [GivenFlag { setting, values: vec![value.to_owned()] }];
        let refused = Config::default().with_flags(&given).unwrap_err().join("\n");
        assert!(refused.contains(message) && !refused.contains("s3cret"), "{refused}");
        assert_eq!(format!("{given:?}"), format!("[--{name}]"));
    }
    // A flag is taken literally: what looks like a variable is not one.
    let setting = *flags.iter().find(|setting| setting.flag.name == "token").unwrap();
    let given = [GivenFlag { setting, values: vec!["ann=${TOKEN}".to_owned()] }];
    assert_eq!(Config::default().with_flags(&given).unwrap().0.settings.access.tokens[0].secret, "${TOKEN}");
}

#[test]
fn embedded_defaults_are_those_of_the_tables() {
    let (embedded, served) = (AppSettings::default(), Config::default().app_settings());
    // Embedded, a gateway has no worker threads of its own.
    let embedded = AppSettings { workers: served.workers, ..embedded };
    assert_eq!(format!("{embedded:?}"), format!("{served:?}"));
    let text = "[limits]\nkeep_alive_timeout = \"90s\"\nhttp1 = 1";
    let path = std::path::Path::new("rialto.toml");
    let mistakes = parse(text, path, ConfigFormat::Toml, &lookup).unwrap_err();
    assert_eq!(mistakes[0].message, "unknown key `http1` in [limits]");
}
