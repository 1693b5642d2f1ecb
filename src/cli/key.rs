//! `rialto key`: makes API keys.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output;
use super::serve::usage_error;
use crate::config::{ExpiryDate, is_valid_name};
use crate::policy::GeneratedKey;

/// Arguments of `rialto key`.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make an API key: prints it once, with the lines for rialto.toml.
    New(NewKeyArgs),
}

/// Arguments of `rialto key new`.
#[derive(Debug, Args)]
struct NewKeyArgs {
    /// Name of the key: who or what uses it.
    name: String,
    /// A role of whoever has the key; can be repeated.
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// A group that the key is good for; can be repeated. [default: all]
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// Last day on which the key is accepted (UTC), such as 2027-06-30. [default: never ends]
    #[arg(long, value_name = "DATE")]
    expires: Option<String>,
}

/// Runs `rialto key`.
pub(super) fn run(arguments: &KeyArgs) -> ExitCode {
    let KeyCommand::New(new) = &arguments.command;
    let lines = match new.file_lines() {
        Ok(lines) => lines,
        Err(mistakes) => return usage_error(&mistakes),
    };
    let made = match GeneratedKey::random() {
        Ok(made) => made,
        Err(error) => {
            eprintln!("rialto: the system has no random numbers: {error}");
            return ExitCode::FAILURE;
        }
    };
    output::print_line(&made.key);
    output::print_line("");
    output::print_line("# The key above is shown once. It is sent as `Authorization: Bearer KEY`. For rialto.toml:");
    output::print_line(&format!("[access.keys.{}]\nhashes = [\"{}\"]{lines}", new.name, made.hash));
    ExitCode::SUCCESS
}

impl NewKeyArgs {
    /// The lines for the file that follow the hash.
    fn file_lines(&self) -> Result<String, Vec<String>> {
        let mut mistakes = Vec::new();
        if !is_valid_name(&self.name) {
            mistakes.push(format!("{:?} is not a name; use lowercase letters, digits and hyphens", self.name));
        }
        let wrong_group = self.groups.iter().find(|group| !is_valid_name(group));
        mistakes.extend(wrong_group.map(|group| format!("--group {group:?} is not the name of a group")));
        let list = |name: &str, words: &[String]| match words {
            [] => String::new(),
            words => format!("\n{name} = {}", serde_json::Value::from(words)),
        };
        let mut lines = format!("{}{}", list("roles", &self.roles), list("groups", &self.groups));
        if let Some(expires) = &self.expires {
            match ExpiryDate::parse(expires) {
                Some(expires) => lines.push_str(&format!("\nexpires = {expires}")),
                None => mistakes.push(format!("--expires {expires:?} is not a date; write it as 2027-06-30")),
            }
        }
        if mistakes.is_empty() { Ok(lines) } else { Err(mistakes) }
    }
}
