//! The types that a setting can have: how each is read from a table, shown, and handed to the struct that uses it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION};
use http::{HeaderName, Uri};
use serde_json::Value;

use super::console::{OperatorSection, read_operator_principals, read_operators};
use super::issuers::read_issuers;
use super::keys::ValueType;
use super::log_settings::{TargetLevels, TargetSamples, read_fraction};
use super::model::{ApiKeySection, CallerToken, ContainedScopes, Secret, StoreLocation};
use super::policy_rules::{is_scope, read_rules};
use super::reader::{TableReader, ValueSource};
use super::servers::{check_name, resolve_path};
use super::settings::{ApiKeySettings, FilterSection};
use super::spanned_value::SpannedValue;
use super::values::{ExpiryDate, format_duration, format_size};
use crate::access_log::AccessFormat;
use crate::audit::{ArgumentDetail, AuditOutput, RedactedPointers};
use crate::dialect::{LegRule, Revision};
use crate::gateway::{NameFilter, Naming};
use crate::http::server::{ClientCertificates, Http1Implementation, TlsVersion};
use crate::issuers::IssuerSettings;
use crate::otlp::{ExportHeaders, OtlpCompression, OtlpProtocol, ResourceAttributes};
use crate::policy::rules::{AccessRule, DefaultAccess, PrincipalPattern};
use crate::policy::{
    AdminToken, ApiKeySpec, ApiKeys, KEY_PREFIX, OperatorPrincipals, OperatorRight, PublicUrl, SecretDigest, Tokens,
    TrustedProxies, is_token68,
};
use crate::recording::{BodyRule, RecordMode};
use crate::telemetry::{LogFormat, LogLevel, SampleRate};
use crate::trace::SamplerName;
use crate::upstream::ConnectionMode;

/// A value of a setting.
pub(crate) trait SettingValue: PartialEq {
    /// Takes the value of `key` from a table that has it. A wrong one is reported, and the value stays as it was.
    fn read(&mut self, table: &TableReader<'_>, key: &str);

    /// The value as it would be written in the file, with secrets redacted; `null` if it is not set.
    fn to_json(&self, value_type: ValueType) -> Value;

    /// The values below this one with their dotted names, in the order of the tables; itself if it is no table.
    fn to_rows(&self, name: &str, value_type: ValueType) -> Vec<(String, Value)> {
        vec![(name.to_owned(), self.to_json(value_type))]
    }

    /// The dotted names of the values below this one that differ; its own name if it is no table.
    fn changes(&self, other: &Self, name: &str) -> Vec<String> {
        if self == other { Vec::new() } else { vec![name.to_owned()] }
    }
}

/// Hands a value to a field of another type.
pub(crate) trait FillPlace<Place> {
    fn fill(&self, place: &mut Place);
}

/// An enum that is written as one of a few words.
pub(super) trait Choice: Sized + 'static {
    /// The words, in the order of the values.
    const WORDS: &'static [&'static str];
    /// The values.
    const VALUES: &'static [Self];
}

/// Headers with credentials that are for this gateway alone.
const CREDENTIAL_HEADERS: [HeaderName; 3] = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION];

/// Polling interval that stands for "off": thirty years.
pub(super) const POLLING_OFF_INTERVAL: Duration = Duration::from_secs(30 * 365 * 86_400);

fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

/// Implements [`SettingValue`] by a method of the reader and a conversion to JSON.
macro_rules! values {
    ($($value:ty: $read:expr, $show:expr;)+) => {$(
        impl SettingValue for $value {
            fn read<'r>(&mut self, table: &TableReader<'r>, key: &str) {
                let read: fn(&TableReader<'r>, &str) -> Option<$value> = $read;
                set(self, read(table, key));
            }

            fn to_json(&self, value_type: ValueType) -> Value {
                let show: fn(&$value, ValueType) -> Value = $show;
                show(self, value_type)
            }
        }
    )+};
}

values! {
    bool: TableReader::boolean, |flag, _| (*flag).into();
    usize: TableReader::number, show_number;
    Option<usize>: |table, key| table.number(key).map(Some), |number, _| (*number).into();
    u32: |table, key| table.number(key).and_then(|number| u32::try_from(number).ok()), |number, _| (*number).into();
    Duration: TableReader::duration, |duration, _| format_duration(*duration).into();
    Option<Duration>: TableReader::duration_or_off,
        |duration, _| duration.map_or_else(|| "off".to_owned(), format_duration).into();
    String: TableReader::string, |text, _| text.as_str().into();
    Option<String>: |table, key| table.string(key).map(Some), |text, _| text.as_deref().into();
    Option<Secret>: |table, key| {
        let text = table.string(key)?;
        table.reader.secrets.add(&text);
        Some(Some(Secret(text)))
    },
        |secret, _| secret.as_ref().map(|_| "***").into();
    SocketAddr: TableReader::socket_addr, |address, _| address.to_string().into();
    Option<SocketAddr>: |table, key| table.socket_addr(key).map(Some),
        |address, _| address.map(|address| address.to_string()).into();
    StoreLocation: TableReader::store, |store, _| store.to_string().into();
    Option<Revision>: TableReader::revision,
        |revision, _| revision.map_or_else(|| "auto".to_owned(), |revision| revision.to_string()).into();
    Vec<String>: TableReader::strings, |words, _| words.as_slice().into();
    AuditOutput: read_audit_output, |output, _| output.to_string().into();
    Vec<HeaderName>: read_header_names, |names, _| names.iter().map(HeaderName::as_str).collect();
    Vec<AccessRule>: read_rules, |rules, _| rules.iter().map(|rule| &*rule.name).collect();
    TargetLevels: TargetLevels::read, |levels, _| levels.to_json();
    TargetSamples: TargetSamples::read, |samples, _| samples.to_json();
    Option<Uri>: |table, key| table.url(key).map(Some),
        |url, _| url.as_ref().map(crate::http::client::redacted).into();
    ExportHeaders: |table, key| read_pairs(table, key).map(ExportHeaders),
        |headers, _| headers.0.iter().map(|(name, _)| (name.clone(), Value::from("***"))).collect();
    ResourceAttributes: |table, key| read_pairs(table, key).map(ResourceAttributes),
        |attributes, _| attributes.0.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
    SampleRate: read_fraction, |part, _| part.get().into();
    Option<bool>: |table, key| table.boolean(key).map(Some), |flag, _| (*flag).into();
    ContainedScopes: read_contained_scopes, |scopes, _| {
        scopes.0.iter().map(|(scope, contained)| (scope.clone(), Value::from(contained.as_slice()))).collect()
    };
    Option<Vec<String>>: |table, key| table.strings(key).map(Some), |words, _| words.as_deref().into();
    Option<PublicUrl>: read_public_url, |url, _| url.as_ref().map(PublicUrl::as_str).into();
    TrustedProxies: read_networks, |proxies, _| proxies.networks().collect();
    Vec<SecretDigest>: read_digests, |digests, _| digests.iter().map(|digest| format!("{digest:?}")).collect();
    Option<ExpiryDate>: read_expiry, |expiry, _| expiry.as_ref().map(ToString::to_string).into();
    Vec<ApiKeySection>: read_api_keys,
        |keys, _| keys.iter().map(|key| (key.name.to_string(), Value::from(key.settings.to_object()))).collect();
    Vec<OperatorSection>: read_operators, |operators, _| {
        operators.iter().map(|one| (one.name.to_string(), Value::from(one.settings.to_object()))).collect()
    };
    OperatorPrincipals: read_operator_principals, |principals, _| {
        let texts = |patterns: &[PrincipalPattern]| patterns.iter().map(PrincipalPattern::as_str).collect::<Value>();
        principals.0.iter().map(|(right, patterns)| (right.as_str().to_owned(), texts(patterns))).collect()
    };
    Vec<CallerToken>: read_tokens, |tokens, _| tokens.iter().map(|token| token.name.as_str()).collect();
    Vec<IssuerSettings>: read_issuers, |issuers, _| issuers.iter().map(|issuer| &*issuer.name).collect();
}

/// Implements [`Choice`] and [`SettingValue`] for an enum and for one that need not be set.
macro_rules! choices {
    ($($choice:ty { $($word:literal => $variant:ident),+ })+) => {$(
        impl Choice for $choice {
            const WORDS: &'static [&'static str] = &[$($word),+];
            const VALUES: &'static [Self] = &[$(Self::$variant),+];
        }

        values! {
            $choice: read_choice, |value, _| choice_word(value).into();
            Option<$choice>: |table, key| read_choice(table, key).map(Some),
                |value, _| value.as_ref().map(choice_word).into();
        }
    )+};
}

choices! {
    LogFormat { "text" => Text, "json" => Json }
    AccessFormat { "text" => Text, "json" => Json, "combined" => Combined }
    LogLevel { "off" => Off, "error" => Error, "warn" => Warn, "info" => Info, "debug" => Debug, "trace" => Trace }
    Http1Implementation { "rialto" => Rialto, "hyper" => Hyper }
    ArgumentDetail { "none" => None, "keys" => Keys, "digest" => Digest, "all" => All }
    ClientCertificates { "required" => Required, "optional" => Optional }
    TlsVersion { "1.2" => Tls12, "1.3" => Tls13 }
    ConnectionMode { "per-client" => PerClient, "shared" => Shared }
    LegRule { "client" => Client, "handshake" => Handshake, "per-request" => PerRequest }
    Naming { "prefix" => Prefix, "plain" => Plain }
    DefaultAccess { "allow" => Allow, "deny" => Deny }
    RecordMode { "off" => Off, "watch" => Watch, "always" => Always }
    BodyRule { "never" => Never, "ask" => Ask, "always" => Always }
    OtlpProtocol { "http/protobuf" => HttpProtobuf, "grpc" => Grpc }
    OtlpCompression { "none" => Off, "gzip" => Gzip }
    SamplerName {
        "always_on" => AlwaysOn, "always_off" => AlwaysOff, "traceidratio" => TraceIdRatio,
        "parentbased_always_on" => ParentBasedAlwaysOn, "parentbased_always_off" => ParentBasedAlwaysOff,
        "parentbased_traceidratio" => ParentBasedTraceIdRatio
    }
    OperatorRight { "look" => Look, "bodies" => Bodies, "act" => Act, "edit" => Edit }
}

fn read_choice<T: Choice + Copy>(table: &TableReader<'_>, key: &str) -> Option<T> {
    let word = table.choice(key)?;
    T::WORDS.iter().zip(T::VALUES).find(|(known, _)| **known == word).map(|(_, value)| *value)
}

fn choice_word<T: Choice + PartialEq>(value: &T) -> &'static str {
    T::WORDS.iter().zip(T::VALUES).find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

fn show_number(number: &usize, value_type: ValueType) -> Value {
    match value_type {
        ValueType::Size => format_size(*number).into(),
        _ => (*number).into(),
    }
}

fn read_pairs(table: &TableReader<'_>, key: &str) -> Option<Vec<(String, String)>> {
    table.entry(key)?;
    Some(table.string_map(key).into_iter().map(|(name, value, _)| (name, value)).collect())
}

fn read_header_names(table: &TableReader<'_>, key: &str) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for (name, span) in table.strings_with_spans(key)? {
        match HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) if CREDENTIAL_HEADERS.contains(&name) => {
                let hint = "set what a server needs in the `headers` of its section".to_owned();
                let message = format!("`{name}` has the client's credentials and is never forwarded");
                table.reader.error(&span, message, Some(hint));
            }
            Ok(name) => names.push(name),
            Err(_) => {
                let name = table.reader.redacted(&name, &span);
                table.reader.error(&span, format!("{name:?} is not a valid header name"), None);
            }
        }
    }
    Some(names)
}

fn read_contained_scopes(table: &TableReader<'_>, key: &str) -> Option<ContainedScopes> {
    table.entry(key)?;
    let mut scopes = Vec::new();
    for (scope, contained, span) in table.string_lists(key) {
        for invalid in std::iter::once(&scope).chain(&contained).filter(|scope| !is_scope(scope)) {
            table.reader.error(&span, format!("{invalid:?} is not a scope"), None);
        }
        scopes.push((scope, contained));
    }
    Some(ContainedScopes(scopes))
}

fn read_public_url(table: &TableReader<'_>, key: &str) -> Option<Option<PublicUrl>> {
    let text = table.string(key)?;
    match PublicUrl::parse(&text) {
        Ok(url) => Some(Some(url)),
        Err((why, hint)) => {
            // Not shown: it may have a password in it.
            table.reader.secrets.add_url_password(&text);
            let span = table.entry(key).map_or(0..0, |entry| entry.node.span.clone());
            table.reader.error(&span, format!("{} {why}", table.subject(key)), Some(hint));
            None
        }
    }
}

fn read_audit_output(table: &TableReader<'_>, key: &str) -> Option<AuditOutput> {
    let text = table.string(key)?;
    match AuditOutput::parse(&text) {
        Some(AuditOutput::File(path)) => {
            Some(AuditOutput::File(resolve_path(table.reader, &path.display().to_string())))
        }
        Some(output) => Some(output),
        None => {
            let span = table.entry(key).map_or(0..0, |entry| entry.node.span.clone());
            let hint = "write \"off\", \"stdout\", \"stderr\", or a file as in \"file:audit.jsonl\"".to_owned();
            table.reader.error(&span, format!("{} is no output", table.subject(key)), Some(hint));
            None
        }
    }
}

fn read_networks(table: &TableReader<'_>, key: &str) -> Option<TrustedProxies> {
    let mut networks = Vec::new();
    for (text, span) in table.strings_with_spans(key)? {
        match TrustedProxies::parse_network(&text) {
            Some(network) => networks.push(network),
            None => {
                let text = table.reader.redacted(&text, &span);
                let hint = "write an IP address or a network, such as \"10.0.0.0/8\"".to_owned();
                table.reader.error(&span, format!("{text:?} is not a network"), Some(hint));
            }
        }
    }
    Some(TrustedProxies::new(networks))
}

/// Digests of API keys. What is wrong is not shown: it may be the key itself.
fn read_digests(table: &TableReader<'_>, key: &str) -> Option<Vec<SecretDigest>> {
    let mut digests = Vec::new();
    for (text, span) in table.strings_with_spans(key)? {
        match SecretDigest::parse(&text) {
            Some(digest) => digests.push(digest),
            None => {
                table.reader.secrets.add(&text);
                let hint = match text.starts_with(KEY_PREFIX) {
                    true => "this is a key itself; whoever has read it has it, so make another with `rialto key new`",
                    false => "write \"sha256:\" and 64 hexadecimal digits, as `rialto key new` prints them",
                };
                let message = format!("{} has a value that is not a digest", table.subject(key));
                table.reader.error(&span, message, Some(hint.to_owned()));
            }
        }
    }
    Some(digests)
}

fn read_expiry(table: &TableReader<'_>, key: &str) -> Option<Option<ExpiryDate>> {
    let entry = table.entry(key)?;
    let text = match &entry.node.value {
        SpannedValue::Date(date) => date.clone(),
        _ => table.string(key)?,
    };
    let expiry = ExpiryDate::parse(&text);
    if expiry.is_none() {
        let hint = "write a date such as 2027-06-30, or a time with an offset such as 2027-06-30T12:00:00Z".to_owned();
        table.reader.error(&entry.node.span, format!("{} is not a date", table.subject(key)), Some(hint));
    }
    expiry.map(Some)
}

fn read_api_keys(table: &TableReader<'_>, key: &str) -> Option<Vec<ApiKeySection>> {
    table.entry(key)?;
    let mut keys: Vec<ApiKeySection> = Vec::new();
    for entry in table.named_entries(key) {
        check_name(table.reader, entry, "key");
        let Some(inner) = table.named_table(key, entry) else { continue };
        let mut settings = ApiKeySettings::default();
        settings.read_table(&inner);
        let is_known = |digest| keys.iter().any(|other| other.settings.hashes.contains(digest));
        if settings.hashes.iter().any(is_known) {
            let message = format!("`{}` has the same hash as another key", entry.key);
            table.reader.error(&entry.key_span, message, None);
        }
        keys.push(ApiKeySection { name: entry.key.as_str().into(), settings });
    }
    Some(keys)
}

fn read_tokens(table: &TableReader<'_>, key: &str) -> Option<Vec<CallerToken>> {
    table.entry(key)?;
    let mut tokens: Vec<CallerToken> = Vec::new();
    for (name, secret, span) in table.string_map(key) {
        if secret.is_empty() {
            table.reader.error(&span, format!("the token of `{name}` is empty"), None);
        } else if table.reader.source == ValueSource::File && !is_token68(&secret) {
            let hint = "use letters, digits and any of - . _ ~ + /, such as `openssl rand -hex 32` prints".to_owned();
            let message = format!("the token of `{name}` cannot be sent as a bearer token");
            table.reader.error(&span, message, Some(hint));
        } else if tokens.iter().any(|token| token.secret == secret) {
            table.reader.error(&span, format!("`{name}` has the same token as another caller"), None);
        }
        tokens.push(CallerToken { name, secret });
    }
    Some(tokens)
}

// === Places of another type ===

impl<T: Clone> FillPlace<T> for T {
    fn fill(&self, place: &mut T) {
        place.clone_from(self);
    }
}

/// Threads: unless a number is set, one for each CPU core available to this process.
impl FillPlace<usize> for Option<usize> {
    fn fill(&self, place: &mut usize) {
        *place = self.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    }
}

impl FillPlace<f64> for SampleRate {
    fn fill(&self, place: &mut f64) {
        *place = self.get();
    }
}

impl FillPlace<SampleRate> for TargetSamples {
    fn fill(&self, place: &mut SampleRate) {
        *place = self.of_access_log();
    }
}

/// Milliseconds.
impl FillPlace<u64> for Duration {
    fn fill(&self, place: &mut u64) {
        *place = u64::try_from(self.as_millis()).unwrap_or(u64::MAX);
    }
}

/// An interval that may be off.
impl FillPlace<Duration> for Option<Duration> {
    fn fill(&self, place: &mut Duration) {
        *place = self.unwrap_or(POLLING_OFF_INTERVAL);
    }
}

impl FillPlace<ConnectionMode> for Option<ConnectionMode> {
    fn fill(&self, place: &mut ConnectionMode) {
        *place = self.unwrap_or_default();
    }
}

impl FillPlace<Option<String>> for Option<Secret> {
    fn fill(&self, place: &mut Option<String>) {
        *place = self.as_ref().map(|secret| secret.0.clone());
    }
}

impl FillPlace<AdminToken> for Option<Secret> {
    fn fill(&self, place: &mut AdminToken) {
        *place = self.as_ref().map_or_else(AdminToken::default, |secret| AdminToken::new(&secret.0));
    }
}

/// The URL of a store that is not in this process.
impl FillPlace<Option<String>> for StoreLocation {
    fn fill(&self, place: &mut Option<String>) {
        *place = match self {
            Self::Memory => None,
            Self::Redis(url) => Some(url.clone()),
        };
    }
}

impl FillPlace<Tokens> for Vec<CallerToken> {
    fn fill(&self, place: &mut Tokens) {
        *place = Tokens::new(self.iter().cloned().map(|token| (token.name, token.secret)));
    }
}

impl FillPlace<ApiKeys> for Vec<ApiKeySection> {
    fn fill(&self, place: &mut ApiKeys) {
        let words = |words: &[String]| words.iter().map(|word| word.as_str().into()).collect();
        *place = ApiKeys::new(self.iter().map(|ApiKeySection { name, settings }| ApiKeySpec {
            name: Arc::clone(name),
            hashes: settings.hashes.clone(),
            roles: words(&settings.roles),
            groups: settings.groups.as_deref().map(words),
            expires: settings.expires.as_ref().map(|expiry| expiry.at),
        }));
    }
}

impl FillPlace<RedactedPointers> for Vec<String> {
    fn fill(&self, place: &mut RedactedPointers) {
        *place = RedactedPointers::new(self);
    }
}

impl FillPlace<NameFilter> for FilterSection {
    fn fill(&self, place: &mut NameFilter) {
        *place = NameFilter::new(&self.allow, &self.deny);
    }
}
