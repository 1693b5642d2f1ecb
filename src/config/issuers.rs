//! Reads `[access.issuers.NAME]`.

use std::time::Duration;

use url::Url;
use zeroize::Zeroizing;

use super::reader::{TableReader, quoted_list, suggestion};
use super::servers::{check_name, resolve_path};
use super::spanned_value::{Span, SpannedEntry};
use crate::issuers::{
    AudienceClaim, DEFAULT_LEEWAY, DEFAULT_NAME_CLAIM, IssuerSettings, KeySource, MAX_LEEWAY, SigningAlgorithm,
    TokenFormat,
};

/// Reads all issuers. Those with mistakes are left out, and their mistakes are reported.
pub(super) fn read_issuers(access: &TableReader<'_>, key: &str) -> Option<Vec<IssuerSettings>> {
    access.entry(key)?;
    let mut issuers: Vec<IssuerSettings> = Vec::new();
    for entry in access.named_entries(key) {
        check_name(access.reader, entry, "issuer");
        let Some(issuer) = access.named_table(key, entry).and_then(|table| read_issuer(&table, &entry.key)) else {
            continue;
        };
        let same_url = issuers.iter().find(|other| other.issuer == issuer.issuer);
        if let Some(other) = same_url {
            let message = format!("[access.issuers.{}] has the same `issuer` as `{}`", entry.key, other.name);
            access.reader.error(&entry.key_span, message, Some("remove one of them".to_owned()));
        }
        let is_opaque = |issuer: &IssuerSettings| issuer.token_format == TokenFormat::Opaque;
        if let Some(other) = issuers.iter().find(|other| is_opaque(other) && is_opaque(&issuer)) {
            let message = format!("[access.issuers.{}] is the second issuer with opaque tokens", entry.key);
            let hint = format!("opaque tokens do not name their issuer; keep `{}` or this one", other.name);
            access.reader.error(&entry.key_span, message, Some(hint));
        }
        issuers.push(issuer);
    }
    Some(issuers)
}

fn read_issuer(table: &TableReader<'_>, name: &str) -> Option<IssuerSettings> {
    let issuer = table.string("issuer");
    let issuer = issuer.filter(|issuer| table.entry("issuer").is_some_and(|entry| check_url(table, issuer, entry)));
    let secret = table.string("client_secret").map(Zeroizing::new);
    if let Some(secret) = &secret {
        table.reader.secrets.add(secret);
    }
    let settings = IssuerSettings {
        audiences: table.strings("audiences").unwrap_or_default(),
        audience_claim: match table.choice("audience_claim") {
            Some("client_id") => AudienceClaim::ClientId,
            _ => AudienceClaim::Aud,
        },
        roles_claim: table.string("roles_claim"),
        name_claim: table.string("name_claim").unwrap_or_else(|| DEFAULT_NAME_CLAIM.to_owned()),
        algorithms: read_algorithms(table).unwrap_or_else(|| SigningAlgorithm::ALL.to_vec()),
        token_format: match table.choice("token_format") {
            Some("opaque") => TokenFormat::Opaque,
            _ => TokenFormat::Jwt,
        },
        client_id: table.string("client_id"),
        client_secret: secret,
        keys: read_keys(table).unwrap_or_default(),
        leeway: read_leeway(table).unwrap_or(DEFAULT_LEEWAY),
        ..IssuerSettings::new(name, &issuer?)
    };
    check_together(table, &settings);
    Some(settings)
}

/// Whether a text can be the URL of an issuer.
fn check_url(table: &TableReader<'_>, text: &str, entry: &SpannedEntry) -> bool {
    let span = &entry.node.span;
    let error = |why: &str, hint: Option<&str>| {
        let message = format!("{} {why}", table.subject("issuer"));
        table.reader.error(span, message, hint.map(str::to_owned));
        false
    };
    let url = match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => url,
        _ => return error("is not an HTTP URL", Some("write it as the issuer does: \"https://login.example\"")),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return error("has credentials in it", None);
    }
    if url.query().is_some() || url.fragment().is_some() || text.contains(|letter: char| "| \t".contains(letter)) {
        return error("has a query, a fragment or a sign that no issuer has", None);
    }
    let is_local = url.host_str().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]"));
    if url.scheme() == "http" && !is_local {
        let hint = "whoever is between us and the issuer can make tokens; use https".to_owned();
        table.reader.warn(span, format!("{} is not https", table.subject("issuer")), Some(hint));
    }
    true
}

fn read_algorithms(table: &TableReader<'_>) -> Option<Vec<SigningAlgorithm>> {
    let names = table.strings_with_spans("algorithms")?;
    let known: Vec<&str> = SigningAlgorithm::ALL.iter().map(|algorithm| algorithm.as_str()).collect();
    let mut algorithms = Vec::new();
    for (name, span) in &names {
        match SigningAlgorithm::named(name) {
            Some(algorithm) => algorithms.push(algorithm),
            None => refuse_algorithm(table, name, span, &known),
        }
    }
    if let (true, Some(entry)) = (names.is_empty(), table.entry("algorithms")) {
        let hint = format!("leave it out to accept {}", quoted_list(&known));
        table.reader.error(&entry.node.span, "an empty `algorithms` accepts no token", Some(hint));
    }
    Some(algorithms)
}

fn refuse_algorithm(table: &TableReader<'_>, name: &str, span: &Span, known: &[&str]) {
    let shown = table.reader.redacted(name, span);
    let (why, hint) = match name.to_ascii_lowercase().as_str() {
        "none" | "hs256" | "hs384" | "hs512" => {
            ("is never accepted", Some("tokens have to be signed by a key that only the issuer has".to_owned()))
        }
        _ => ("is not a known algorithm", suggestion(name, known)),
    };
    table.reader.error(span, format!("{shown:?} {why}"), hint);
}

fn read_keys(table: &TableReader<'_>) -> Option<KeySource> {
    let (text, entry) = (table.string("jwks")?, table.entry("jwks")?);
    if text.contains("://") {
        return table.parse_url(&text, entry).map(KeySource::Url);
    }
    let path = resolve_path(table.reader, &text);
    if !path.is_file() {
        table.reader.error(&entry.node.span, "the `jwks` file does not exist", None);
    }
    Some(KeySource::File(path))
}

fn read_leeway(table: &TableReader<'_>) -> Option<Duration> {
    let (leeway, entry) = (table.duration("leeway")?, table.entry("leeway")?);
    if leeway > MAX_LEEWAY {
        let message = format!("{} is more than two minutes", table.subject("leeway"));
        table.reader.error(&entry.node.span, message, Some("set the clocks right instead".to_owned()));
    }
    Some(leeway)
}

/// Checks keys that need one another.
fn check_together(table: &TableReader<'_>, settings: &IssuerSettings) {
    let reader = table.reader;
    if settings.token_format == TokenFormat::Opaque {
        for (key, is_set) in
            [("client_id", settings.client_id.is_some()), ("client_secret", settings.client_secret.is_some())]
        {
            if !is_set && table.entry(key).is_none() {
                let message = format!("`{key}` is missing in [access.issuers.{}]", settings.name);
                let hint = "the issuer is asked about opaque tokens with these credentials".to_owned();
                reader.error_unless_broken(&table.span, message, Some(hint));
            }
        }
        if let Some(entry) = table.entry("jwks").or_else(|| table.entry("algorithms")) {
            let hint = "opaque tokens have no signature; remove it".to_owned();
            reader.warn(&entry.key_span, format!("{} is not used", table.subject(&entry.key)), Some(hint));
        }
    }
    if let Some(entry) = table.entry("audience_claim")
        && settings.audience_claim == AudienceClaim::ClientId
        && settings.audiences.is_empty()
    {
        let hint = "list the clients whose tokens are accepted: audiences = [\"…\"]".to_owned();
        reader.error(&entry.node.span, "`audience_claim` needs `audiences`", Some(hint));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, ConfigFormat, parse};

    fn read(text: &str, folder: &Path) -> Config {
        parse(text, &folder.join("rialto.toml"), ConfigFormat::Toml, &|_| None).unwrap().config
    }

    #[test]
    fn issuers_are_read_in_order() {
        let folder = std::env::temp_dir();
        let secret_file = folder.join(format!("rialto-secret-{}", std::process::id()));
        std::fs::write(&secret_file, "s3cret of a file\n").unwrap();
        let text = format!(
            "[access.issuers.corp]\nissuer = \"https://login.example/realms/corp\"\naudiences = [\"api://rialto\"]\n\
             roles_claim = \"realm_access.roles\"\nname_claim = \"preferred_username\"\nalgorithms = [\"RS256\", \"ES256\"]\n\
             [access.issuers.id]\nissuer = \"https://id.example\"\ntoken_format = \"opaque\"\nclient_id = \"rialto\"\n\
             client_secret = \"${{file:{}}}\"\nleeway = \"0s\"\n",
            secret_file.file_name().unwrap().display()
        );
        let loaded = parse(&text, &folder.join("rialto.toml"), ConfigFormat::Toml, &|_| None);
        std::fs::remove_file(&secret_file).unwrap();
        let loaded = loaded.unwrap();
        let corp = IssuerSettings {
            audiences: vec!["api://rialto".into()],
            roles_claim: Some("realm_access.roles".into()),
            name_claim: "preferred_username".into(),
            algorithms: vec![SigningAlgorithm::Rs256, SigningAlgorithm::Es256],
            ..IssuerSettings::new("corp", "https://login.example/realms/corp")
        };
        let id = IssuerSettings {
            token_format: TokenFormat::Opaque,
            client_id: Some("rialto".into()),
            client_secret: Some("s3cret of a file".to_owned().into()),
            leeway: Duration::ZERO,
            ..IssuerSettings::new("id", "https://id.example")
        };
        assert_eq!(loaded.config.app_settings().issuers, [corp, id]);
        assert_eq!(loaded.warnings, []);
        loaded.secrets.install_also();
        assert_eq!(crate::redact::redact("it is s3cret of a file!"), "it is ***!");
    }

    #[test]
    fn a_key_file_is_beside_the_configuration_and_watched() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let config = read("[access.issuers.a]\nissuer = \"https://h\"\njwks = \"Cargo.toml\"", folder);
        assert_eq!(config.settings.access.issuers[0].keys, KeySource::File(folder.join("Cargo.toml")));
        assert_eq!(config.referenced_files(std::path::Path::new("rialto.toml")), [folder.join("Cargo.toml")]);
    }
}
