//! Flags and environment variables of the settings, made from the tables of `config`.

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, StringValueParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{FlagScope, FlaggedKey, GivenFlag, ValueType, flagged_keys};

/// Flags of `serve` and `stdio` that were given.
#[derive(Debug, Clone)]
pub(super) struct ServeFlags(pub(super) Vec<GivenFlag>);

/// Flags of every command that were given.
#[derive(Debug, Clone)]
pub(super) struct GlobalFlags(pub(super) Vec<GivenFlag>);

/// The clap argument of a flag.
pub(super) fn argument(setting: FlaggedKey) -> Arg {
    let FlaggedKey { key, flag, .. } = setting;
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .env(flag.variable())
        .help(help(setting))
        .help_heading(flag.heading)
        .global(flag.scope == FlagScope::Global)
        .hide_env_values(key.is_secret());
    if flag.turns_off.is_some() {
        return argument.action(ArgAction::SetTrue);
    }
    let argument = argument.value_name(flag.value_name).value_parser(value_parser(key.value_type));
    match is_repeated(key.value_type) {
        true => argument.action(ArgAction::Append).value_delimiter(','),
        false => argument.action(ArgAction::Set),
    }
}

fn help(setting: FlaggedKey) -> String {
    if let Some(help) = setting.flag.turns_off {
        return help.to_owned();
    }
    let repeated = if is_repeated(setting.key.value_type) { " Can be repeated." } else { "" };
    let default = match setting.default_text() {
        Some(default) if !is_repeated(setting.key.value_type) => format!(" [default: {default}]"),
        _ => String::new(),
    };
    format!("{}{repeated}{default}", setting.key.plain_description())
}

fn is_repeated(value_type: ValueType) -> bool {
    matches!(value_type, ValueType::StringList | ValueType::StringMap)
}

/// Numbers and words are checked here, so that clap names the flag and its range. Everything else is checked where the
/// file is, because clap's messages repeat the value, which may be secret.
fn value_parser(value_type: ValueType) -> ValueParser {
    // TOML integers are signed.
    const MAX: u64 = i64::MAX as u64;
    let number = |least: u64, most: u64| {
        RangedU64ValueParser::<u64>::new().range(least..=most).map(|number| number.to_string()).into()
    };
    match value_type {
        ValueType::Integer(least, most) => number(least, most),
        ValueType::Size => number(1, MAX),
        ValueType::Duration { allow_zero, .. } => number(u64::from(!allow_zero), MAX),
        ValueType::Choice(words) => PossibleValuesParser::new(words).into(),
        _ => StringValueParser::new().into(),
    }
}

/// The flags that were given.
fn given(scope: FlagScope, matches: &ArgMatches) -> Vec<GivenFlag> {
    let one = |setting: FlaggedKey| {
        let name = setting.flag.name;
        let values: Vec<String> = match setting.flag.turns_off {
            Some(_) => Some(String::new()).filter(|_| matches.get_flag(name)).into_iter().collect(),
            None => matches.get_many::<String>(name).into_iter().flatten().cloned().collect(),
        };
        (!values.is_empty()).then_some(GivenFlag { setting, values })
    };
    flagged_keys(scope).filter_map(one).collect()
}

fn augment(scope: FlagScope, command: Command) -> Command {
    flagged_keys(scope).fold(command, |command, setting| command.arg(argument(setting)))
}

macro_rules! flatten {
    ($($flags:ident: $scope:expr;)+) => {$(
        impl Args for $flags {
            fn augment_args(command: Command) -> Command {
                augment($scope, command)
            }

            fn augment_args_for_update(command: Command) -> Command {
                augment($scope, command)
            }
        }

        impl FromArgMatches for $flags {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                Ok(Self(given($scope, matches)))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }
    )+};
}

flatten! {
    ServeFlags: FlagScope::Serve;
    GlobalFlags: FlagScope::Global;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn command() -> Command {
        augment(FlagScope::Global, augment(FlagScope::Serve, Command::new("rialto")))
    }

    #[test]
    fn every_setting_with_a_flag_has_an_argument_and_a_variable() {
        let command = command();
        command.clone().debug_assert();
        let help = command.clone().term_width(0).render_long_help().to_string();
        let mut checked = 0;
        for setting in flagged_keys(FlagScope::Serve).chain(flagged_keys(FlagScope::Global)) {
            let argument = command.get_arguments().find(|argument| argument.get_id() == setting.flag.name).unwrap();
            assert_eq!(argument.get_long(), Some(setting.flag.name));
            assert_eq!(argument.get_env(), Some(std::ffi::OsStr::new(&setting.flag.variable())));
            let (_, shown) = help
                .split_once(&format!("--{} ", setting.flag.name))
                .or_else(|| help.split_once(&format!("--{}\n", setting.flag.name)))
                .expect(setting.flag.name);
            // The help of one flag ends where the next begins.
            let shown = shown.split("\n      --").next().unwrap();
            assert!(shown.contains(&format!("[env: {}", setting.flag.variable())), "{shown}");
            let expected = setting.flag.turns_off.map_or_else(|| setting.key.plain_description(), str::to_owned);
            assert!(shown.contains(&expected), "{shown}");
            if let (Some(default), false) = (setting.default_text(), is_repeated(setting.key.value_type)) {
                let is_switch = setting.flag.turns_off.is_some();
                assert!(is_switch || shown.contains(&format!("[default: {default}]")), "{shown}");
            }
            checked += 1;
        }
        assert!(checked > 30, "only {checked} flags");
    }

    #[test]
    fn defaults_are_shown_in_the_unit_of_the_flag() {
        let defaults: Vec<(&str, Option<String>)> =
            flagged_keys(FlagScope::Serve).map(|setting| (setting.flag.name, setting.default_text())).collect();
        for (flag, default) in [
            ("listen", "127.0.0.1:3001"),
            ("http1", "rialto"),
            ("workers", "number of CPU cores"),
            ("store", "memory"),
            ("max-body-bytes", "4194304"),
            ("session-idle", "900"),
            ("keep-alive-timeout", "75"),
            ("sse-after-ms", "1000"),
        ] {
            assert!(defaults.contains(&(flag, Some(default.to_owned()))), "{flag}: {defaults:?}");
        }
    }

    #[test]
    fn values_are_parsed_by_type_and_range() {
        let parse = |arguments: &[&str]| {
            let matches = command().try_get_matches_from([&["rialto"], arguments].concat())?;
            Ok::<_, clap::Error>(given(FlagScope::Serve, &matches))
        };
        let flags = parse(&["--allow-host", "a,b", "--allow-host", "c", "--no-session-delete", "--http1", "hyper"]);
        let config = Config::default().with_flags(&flags.unwrap()).unwrap().0;
        assert_eq!(config.settings.access.hosts, ["a", "b", "c"]);
        assert!(!config.settings.access.allow_session_delete);
        assert_eq!(config.app_settings().inbound.http1, crate::http::server::Http1Implementation::Hyper);
        assert!(parse(&[]).unwrap().is_empty());
        for (flag, value, message) in [
            ("--max-calls", "0", "0 is not in 1..="),
            ("--max-calls", "x", "invalid digit"),
            ("--session-idle", "0", "0 is not in 1..="),
            ("--http1", "nginx", "[possible values: rialto, hyper]"),
            ("--workers", "1025", "1025 is not in 1..=1024"),
        ] {
            let refused = parse(&[flag, value]).unwrap_err().to_string();
            assert!(refused.contains(message) && refused.contains(flag), "{refused}");
        }
        assert_eq!(parse(&["--event-age", "0"]).unwrap().len(), 1);
    }
}
