//! `[admin.tokens]` and `principals` of `[admin]`: who may use the console.

use std::sync::Arc;

use super::model::Secret;
use super::reader::TableReader;
use super::servers::check_name;
use super::setting_value::FillPlace;
use super::settings::OperatorTokenSettings;
use crate::policy::rules::PrincipalPattern;
use crate::policy::{OperatorPrincipals, OperatorRight, OperatorTokens, is_token68};

/// `[admin.tokens.NAME]`: one operator of the console.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorSection {
    /// Name of the operator.
    pub name: Arc<str>,
    /// The token and what it is good for.
    pub settings: OperatorTokenSettings,
}

pub(super) fn read_operators(table: &TableReader<'_>, key: &str) -> Option<Vec<OperatorSection>> {
    table.entry(key)?;
    let mut operators: Vec<OperatorSection> = Vec::new();
    for entry in table.named_entries(key) {
        check_name(table.reader, entry, "operator");
        let Some(inner) = table.named_table(key, entry) else { continue };
        let mut settings = OperatorTokenSettings::default();
        settings.read_table(&inner);
        if settings.token.is_some() && operators.iter().any(|other| other.settings.token == settings.token) {
            let message = format!("`{}` has the same token as another operator", entry.key);
            table.reader.error(&entry.key_span, message, None);
        }
        operators.push(OperatorSection { name: entry.key.as_str().into(), settings });
    }
    Some(operators)
}

pub(super) fn check_operator(operator: &mut OperatorTokenSettings, table: &TableReader<'_>) {
    let Some(entry) = table.entry("token") else {
        let message = format!("{} is missing", table.subject("token"));
        return table.reader.error_unless_broken(&table.span, message, None);
    };
    if operator.token.as_ref().is_some_and(|Secret(token)| !is_token68(token)) {
        let hint = "use letters, digits and any of - . _ ~ + /, such as `openssl rand -hex 32` prints".to_owned();
        let message = format!("{} cannot be sent as a bearer token", table.subject("token"));
        table.reader.error(&entry.node.span, message, Some(hint));
    }
}

pub(super) fn read_operator_principals(table: &TableReader<'_>, key: &str) -> Option<OperatorPrincipals> {
    table.entry(key)?;
    let mut principals = Vec::new();
    for (word, texts, span) in table.string_lists(key) {
        let Some(right) = OperatorRight::parse(&word) else {
            let hint = "the rights are look, bodies, act and edit".to_owned();
            table.reader.error(&span, format!("{word:?} is no right of operators"), Some(hint));
            continue;
        };
        let mut patterns = Vec::new();
        for text in texts {
            match PrincipalPattern::parse(&text) {
                // Everybody who can reach the address would be an operator.
                Ok(pattern) if matches!(pattern.as_str(), "*" | "anonymous") => {
                    table.reader.error(&span, format!("{text:?} names nobody in particular"), None);
                }
                Ok(pattern) => patterns.push(pattern),
                Err(why) => table.reader.error(&span, format!("{text:?} {why}"), None),
            }
        }
        principals.push((right, patterns));
    }
    Some(OperatorPrincipals(principals))
}

impl FillPlace<OperatorTokens> for Vec<OperatorSection> {
    fn fill(&self, place: &mut OperatorTokens) {
        let token = |section: &OperatorSection| {
            let Secret(token) = section.settings.token.clone()?;
            Some((section.name.to_string(), token, section.settings.may))
        };
        *place = OperatorTokens::new(self.iter().filter_map(token));
    }
}
