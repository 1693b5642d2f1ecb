//! Every setting, once. From these tables come the structs with their defaults, the reader of the file, the flags and
//! environment variables, the JSON Schema, the starter file, the reference page and the output of `rialto check`.

use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderName, Uri};

use super::app_settings::AppSettings;
use super::checks::{
    check_access, check_api_key, check_audit, check_cluster, check_filter, check_log, check_telemetry, check_timeouts,
};
use super::console::{OperatorSection, check_operator};
use super::key_types::{
    ADDRESS, BOOLEAN, COUNT, COUNT_OR_ZERO, DATE, DURATION, DURATION_OR_OFF, DURATION_OR_ZERO, REVISION, SIZE, STORE,
    STRING, STRING_MAP, STRINGS, URL, choice, integer, named_tables, table,
};
use super::keys::{ConfigKey, ValueType, setting};
use super::log_settings::{TargetLevels, TargetSamples};
use super::model::{ApiKeySection, CallerToken, ContainedScopes, Secret, StoreLocation};
use super::setting_table::settings;
use super::setting_value::Choice;
use super::structure::{ISSUER, LIMIT, NAMED_TABLES, RULE};
use super::values::ExpiryDate;
use crate::access_log::AccessFormat;
use crate::audit::{ArgumentDetail, AuditOutput};
use crate::dialect::{LegRule, Revision};
use crate::gateway::{DEFAULT_PAGE_SIZE, GroupConfig, Naming};
use crate::http::client::DEFAULT_CONNECTIONS_PER_ORIGIN;
use crate::http::server::{ClientCertificates, Http1Implementation, TlsVersion};
use crate::issuers::IssuerSettings;
use crate::otlp::{ExportHeaders, OtlpCompression, OtlpProtocol, ResourceAttributes};
use crate::policy::rules::{AccessRule, DefaultAccess};
use crate::policy::{LimitRule, OperatorPrincipals, OperatorRight, PublicUrl, SecretDigest, TrustedProxies};
use crate::recording::{BodyRule, RecordMode};
use crate::telemetry::{LogFormat, LogLevel, SampleRate};
use crate::trace::{MAX_QUEUE_SIZE, SamplerName};
use crate::upstream::{ConnectionMode, UpstreamSpec};

const API_KEYS: ConfigKey = setting(ValueType::NamedTables(&ACCESS_KEY));

// Headings of the help.
const LIMITS_HEADING: &str = "Limits";
const STREAMS_HEADING: &str = "SSE streams";
const TIMEOUTS_HEADING: &str = "Timeouts";

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

settings! {
    /// The settings of a file: its top level, with the sections below it.
    pub struct TopLevelSection as TOP_LEVEL + NAMED_TABLES: "The configuration of Rialto, a gateway between MCP clients and MCP servers."
    => AppSettings {
        /// Listen address; port 0 picks a free port.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 3001)),
            ADDRESS.example("\"127.0.0.1:4001\"").flag("listen", "ADDRESS") => listen;
        /// URL that clients know the gateway by, without a slash at its end; with a path where a proxy serves it below one.
        public_url: Option<PublicUrl> = None,
            URL.default("the `Host` of each request").example("\"https://mcp.example\"").flag("public-url", "URL")
            => policy.public_url;
        /// HTTP/1.1 implementation that serves clients: Rialto's own, or hyper's if the other has a fault.
        http1: Http1Implementation = Http1Implementation::Rialto,
            choice::<Http1Implementation>().example("\"hyper\"").flag("http1", "IMPLEMENTATION") => inbound.http1;
        /// Worker threads; a connection stays on one worker.
        workers: Option<usize> = None,
            integer(1, 1024).default("number of CPU cores").example("2").flag("workers", "N") => workers;
        /// Session and event store: `memory`, or a Redis or Valkey URL.
        store: StoreLocation = StoreLocation::Memory,
            STORE.example("\"redis://127.0.0.1:6379\"").flag("store", "STORE") => store.url;
        /// Nodes that share a store.
        cluster: ClusterSection = ClusterSection::default(), table(&CLUSTER);
        /// Logging, to standard error.
        log: LogSection = LogSection::default(), table(&LOG);
        /// Traces and metrics by OpenTelemetry. The `OTEL_*` variables count more.
        telemetry: TelemetrySection = TelemetrySection::default(), table(&TELEMETRY);
        /// Health, metrics, status and the console, for operators.
        admin: AdminSection = AdminSection::default(), table(&ADMIN);
        /// TLS for clients.
        tls: TlsSection = TlsSection::default(), table(&TLS);
        /// Access control.
        access: AccessSection = AccessSection::default(), table(&ACCESS);
        /// What callers may do, and how much of it.
        policy: PolicySection = PolicySection::default(), table(&POLICY);
        /// Audit log: one line of JSON for each decision.
        audit: AuditSection = AuditSection::default(), table(&AUDIT);
        /// Limits and timeouts on the client side.
        limits: LimitsSection = LimitsSection::default(), table(&LIMITS);
        /// Defaults for all servers.
        defaults: UpstreamSettings = UpstreamSettings::default(), table(&DEFAULTS);
    }
}

settings! {
    /// `[cluster]`: settings of a node that shares its store with others.
    pub struct ClusterSection as CLUSTER: "Cluster of nodes that share a store.", check check_cluster => AppSettings {
        /// Node name, unique in the cluster.
        node: Option<String> = None,
            STRING.default("host name and port").example("\"gateway-1\"").flag("node", "NAME") => store.node;
        /// Prefix of all store keys; nodes with the same store and prefix form one cluster.
        prefix: String = "rialto".to_owned(), STRING.example("\"staging\"") => store.prefix;
        /// Node lease: time without a heartbeat after which other nodes take over its sessions.
        lease: Duration = seconds(6), DURATION.example("\"10s\"") => store.lease;
        /// Timeout of a store command; after it the store counts as unreachable.
        timeout: Duration = seconds(2), DURATION.example("\"500ms\"") => store.timeout;
        /// Secret that seals the tokens clients carry, such as request state; the same on all nodes, at least 16
        /// characters.
        sealing_key: Option<Secret> = None,
            STRING.default("generated once and shared through the store").example("\"a long s3cret of many letters\"")
            => store.sealing_key;
    }
}

settings! {
    /// `[log]`: logging settings.
    pub struct LogSection as LOG: "Logging, to standard error.", check check_log => AppSettings {
        /// Log level: `error`, `warn`, `info`, `debug`, `trace`, or levels per target as in `rialto=debug,hyper=warn`.
        filter: Option<String> = None,
            STRING
                .default("`level`, and `levels`")
                .example("\"rialto=debug\"")
                .flag("log", "FILTER")
                .global();
        /// Log level of everything that `levels` does not name, unless `filter` says it.
        level: Option<LogLevel> = None,
            choice::<LogLevel>().default("\"info\" when serving, \"error\" otherwise").example("\"warn\"");
        /// Log levels by target: a module of Rialto such as `upstream`, the `access` log, or a crate such as `hyper`.
        levels: TargetLevels = TargetLevels::default(),
            setting(ValueType::ChoiceMap(LogLevel::WORDS)).default("none").example("{ upstream = \"debug\", access = \"off\" }");
        /// The parts of the lines that are logged, from 0 to 1, by target as in `levels`. Warnings, errors, and requests that do not succeed are always logged.
        samples: TargetSamples = TargetSamples::default(),
            setting(ValueType::FractionMap).default("none").example("{ access = 0.1, http = 0.01 }") => access_log.sample;
        /// Whether every request has a line in the access log.
        access: Option<bool> = None,
            BOOLEAN.default("true where standard error is no terminal").example("true") => access_log.enabled;
        /// Format of the access log; `combined` is that of Apache and nginx, without the MCP parts.
        access_format: Option<AccessFormat> = None,
            choice::<AccessFormat>().default("that of `format`").example("\"combined\"") => access_log.format;
        /// Log format; `json` is one object per line.
        format: LogFormat = LogFormat::Text,
            choice::<LogFormat>().example("\"json\"").flag("log-format", "FORMAT").global();
    }
}

settings! {
    /// `[telemetry]`: traces and metrics by OpenTelemetry.
    pub struct TelemetrySection as TELEMETRY: "OpenTelemetry: spans of calls and metrics, sent to a collector by OTLP. The `OTEL_*` variables count more.", check check_telemetry => AppSettings {
        /// Whether calls are traced.
        traces: Option<bool> = None,
            BOOLEAN.default("true where `endpoint` or one of the `OTEL_*` variables for it is set").example("true")
            => trace.enabled;
        /// Whether metrics are exported, those that `/metrics` has.
        metrics: Option<bool> = None,
            BOOLEAN.default("true where `endpoint` or one of the `OTEL_*` variables for it is set").example("false")
            => metrics_export.enabled;
        /// Time between two exports of metrics.
        metrics_interval: Duration = seconds(60), DURATION.example("\"15s\"") => metrics_export.interval;
        /// URL of the collector. Over HTTP `/v1/traces` or `/v1/metrics` is added to it.
        endpoint: Option<Uri> = None,
            URL.default("`http://localhost:4318`, or port 4317 for `grpc`").example("\"http://collector:4318\"")
            => otlp.endpoint;
        /// How spans and metrics are sent.
        protocol: Option<OtlpProtocol> = None,
            choice::<OtlpProtocol>().default("\"http/protobuf\"").example("\"grpc\"") => otlp.protocol;
        /// How requests to the collector are compressed.
        compression: OtlpCompression = OtlpCompression::Off, choice::<OtlpCompression>().example("\"gzip\"") => otlp.compression;
        /// Headers sent to the collector.
        headers: ExportHeaders = ExportHeaders::default(),
            STRING_MAP.default("none").example("{ x-api-key = \"a s3cret of the collector\" }") => otlp.headers;
        /// Time that the collector may take for a request.
        timeout: Duration = seconds(10), DURATION.example("\"5s\"") => otlp.timeout;
        /// Name of this service in traces and metrics.
        service_name: Option<String> = None,
            STRING.default("\"rialto\"").example("\"mcp-gateway\"") => otlp.service_name;
        /// More attributes of this service.
        resource: ResourceAttributes = ResourceAttributes::default(),
            STRING_MAP.default("none").example("{ \"deployment.environment.name\" = \"staging\" }")
            => otlp.resource_attributes;
        /// Which calls are traced: all, none or a part; with `parentbased_`, only where the client does not say.
        sampler: SamplerName = SamplerName::ParentBasedAlwaysOn,
            choice::<SamplerName>().example("\"parentbased_traceidratio\"") => trace.sampler;
        /// The part of the traces that `traceidratio` samplers take, from 0 to 1.
        sample_ratio: SampleRate = SampleRate::default(),
            setting(ValueType::Fraction).example("0.01") => trace.sample_ratio;
        /// Maximum number of spans that wait for the collector; the excess is dropped and counted.
        queue: usize = 2048, integer(1, MAX_QUEUE_SIZE as u64).example("8192") => trace.queue_size;
        /// Maximum number of spans in a request to the collector.
        batch: usize = 512, integer(1, MAX_QUEUE_SIZE as u64).example("256") => trace.batch_size;
        /// How long spans wait for others before they are sent.
        interval: Duration = seconds(5), DURATION.example("\"1s\"") => trace.interval;
        /// How long a request is sent again and again to a collector that does not take it, before it is dropped.
        retry_time: Duration = seconds(30), DURATION.example("\"1m\"") => otlp.export_timeout;
    }
}

settings! {
    /// `[admin]`: the operators' listener.
    pub struct AdminSection as ADMIN: "Health, metrics, status and the console, for operators." => AppSettings {
        /// Listen address of the admin endpoints.
        listen: Option<SocketAddr> = None,
            ADDRESS.default("the client listener").example("\"127.0.0.1:3002\"") => admin_listen;
        /// Bearer token of operators: the only way to metrics and status from another machine, unless they have a
        /// listener of their own. If set, that listener needs it too.
        token: Option<Secret> = None,
            STRING.default("none").example("\"an operator s3cret\"") => policy.admin_token;
        /// Whether there is a console, at `/console`, with its API at `/admin/v1`. Without `tokens` and `principals` it is
        /// served to this machine only.
        console: bool = true, BOOLEAN.example("false") => policy.console.enabled;
        /// When calls are recorded for the console: `off`, `watch` (while somebody watches) or `always` (without the
        /// content of messages while nobody watches). They are kept in memory only.
        record: RecordMode = RecordMode::Watch, choice::<RecordMode>().example("\"always\"") => recording.mode;
        /// Whether the content of recorded messages is shown to operators who may see it: `never`, `ask` (for up to 15
        /// minutes after they asked) or `always`.
        bodies: BodyRule = BodyRule::Ask, choice::<BodyRule>().example("\"never\"") => recording.bodies;
        /// Memory for recorded calls; calls that operators keep have 16 MiB beside it.
        record_bytes: usize = 32 << 20, SIZE.example("\"64MiB\"") => recording.bytes;
        /// How much of one recorded message is kept: the first three quarters of it, and the last.
        record_body_bytes: usize = 64 << 10, SIZE.example("\"16KiB\"") => recording.body_bytes;
        /// Calls a second and worker that are all recorded; of more, one in 2, 4, 8 and so on, and every failure.
        record_rate: u32 = 200, COUNT.example("50") => recording.rate;
        /// Members (with everything in them) and headers of recorded messages that are never shown, by name or by JSON pointer,
        /// beside those that look secret.
        redact: Vec<String> = Vec::new(),
            STRINGS.default("none").example("[\"ssn\", \"/params/arguments/customer\"]") => recording.redact;
        /// Whether operators who may `edit` can write this file and run programs from the console.
        edit: bool = false, BOOLEAN.example("true") => policy.console.edit;
        /// Operators of the console, by name. With any, and if `Host` is allowed, the console can be used from other
        /// machines.
        tokens: Vec<OperatorSection> = Vec::new(),
            named_tables(&OPERATOR_TOKEN).default("none").example("{ ann = { token = \"an-operator-s3cret\", may = \"act\" } }")
            => policy.console.tokens;
        /// Callers who may use the console with their own credentials, by what they may do there: `look`, `bodies`, `act`
        /// or `edit`, each including those before it.
        principals: OperatorPrincipals = OperatorPrincipals::default(),
            setting(ValueType::StringLists).default("none").example("{ act = [\"role:operators\"] }")
            => policy.console.principals;
    }
}

settings! {
    /// `[admin.tokens.NAME]`: one operator of the console.
    pub struct OperatorTokenSettings as OPERATOR_TOKEN: "Operators of the console, by name.", check check_operator {
        /// Bearer token of the operator.
        token: Option<Secret> = None, STRING.default("required").example("\"an-operator-s3cret\"");
        /// What the operator may do: `look`; `bodies`, which is to see the content of messages, too; `act`; or `edit`.
        may: OperatorRight = OperatorRight::Look, choice::<OperatorRight>().example("\"act\"");
    }
}

settings! {
    /// `[tls]`: TLS for clients.
    pub struct TlsSection as TLS: "TLS for clients. The admin listener stays as it is." {
        /// PEM file with the certificate, followed by the intermediate ones; relative to the directory of this file. With it
        /// clients speak TLS only.
        certificate: Option<String> = None, STRING.default("none").example("\"tls/chain.pem\"");
        /// PEM file with the private key: RSA, ECDSA or Ed25519.
        key: Option<String> = None, STRING.default("none").example("\"tls/key.pem\"");
        /// PEM file with the authorities that sign the certificates of clients. A client with one is the caller
        /// `cert|NAME`.
        client_ca: Option<String> = None, STRING.default("none").example("\"tls/clients.pem\"");
        /// Whether every client needs a certificate, where `client_ca` is set.
        client_certificates: ClientCertificates = ClientCertificates::Required,
            choice::<ClientCertificates>().example("\"optional\"");
        /// Oldest version of TLS that is spoken.
        min_version: TlsVersion = TlsVersion::Tls12, choice::<TlsVersion>().example("\"1.3\"");
        /// How long browsers are told to use HTTPS only (`Strict-Transport-Security`).
        hsts: Option<Duration> = None, DURATION_OR_OFF.example("\"365d\"");
    }
}

settings! {
    /// `[access]`: who may call.
    pub struct AccessSection as ACCESS: "Access control.", check check_access => AppSettings {
        /// Allowed `Host` header values besides loopback; `*` allows any.
        hosts: Vec<String> = Vec::new(),
            STRINGS.default("none").example("[\"gateway.example\"]").flag("allow-host", "HOST");
        /// Allowed `Origin` header values besides loopback; `*` allows any.
        origins: Vec<String> = Vec::new(),
            STRINGS.default("none").example("[\"https://app.example\"]").flag("allow-origin", "ORIGIN");
        /// Addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` count.
        trusted_proxies: TrustedProxies = TrustedProxies::default(),
            STRINGS.default("none").example("[\"10.0.0.0/8\"]").flag("trusted-proxy", "NETWORK")
            => policy.trusted_proxies;
        /// Request headers of the client that are forwarded to upstream servers, but not those with its credentials.
        forward_headers: Vec<HeaderName> = Vec::new(),
            STRINGS.default("none").example("[\"x-tenant\"]").flag("forward-header", "NAME") => policy.forward_headers;
        /// API keys, by name; `rialto key new NAME` makes one. If there is any, every request needs a credential.
        keys: Vec<ApiKeySection> = Vec::new(),
            API_KEYS.default("none").example("{ ci = { hashes = [\"sha256:c61fcc0675de3fcd602d7206eb44c97f06b1f1ef386d7f96501ab5ece31e95a9\"] } }")
            => policy.keys;
        /// Whether requests without a credential are admitted though there are tokens or keys. An invalid credential is
        /// never admitted.
        allow_anonymous: bool = false, BOOLEAN.example("true") => policy.allow_anonymous;
        /// Scopes that clients ask for when they log in: what basic use needs.
        scopes: Vec<String> = Vec::new(), STRINGS.default("none").example("[\"mcp:read\"]") => policy.scopes;
        /// Whether a token whose audience is `public_url` itself is accepted for every group. Many clients ask for no
        /// other.
        accept_origin_audience: bool = true, BOOLEAN.example("false") => policy.accept_origin_audience;
        /// Whether the metadata of the first issuer is also served where clients of 2025-03-26 look for it.
        legacy_metadata: bool = false, BOOLEAN.example("true") => policy.legacy_metadata;
        /// Bearer tokens by caller name. If any is set, every request needs a credential.
        tokens: Vec<CallerToken> = Vec::new(),
            STRING_MAP.default("none").example("{ ann = \"${ANN_TOKEN}\" }").flag("token", "NAME=TOKEN")
            => policy.tokens;
        /// Scopes that contain others: who has one has those that it lists, too.
        scope_hierarchy: ContainedScopes = ContainedScopes::default(),
            setting(ValueType::StringLists).default("none").example("{ \"mcp:admin\" = [\"mcp:write\"] }");
        /// Authorization servers whose tokens are accepted, by name.
        issuers: Vec<IssuerSettings> = Vec::new(),
            named_tables(&ISSUER).default("none").example("{ corp = { issuer = \"https://login.example\" } }")
            => issuers;
        /// Whether clients may end their session with DELETE.
        allow_session_delete: bool = true,
            BOOLEAN
                .example("false")
                .flag("no-session-delete", "")
                .turns_off("Refuse DELETE: sessions only end when they expire.")
            => inbound.allow_session_delete;
    }
}

settings! {
    /// `[access.keys.NAME]`: what an API key is good for.
    pub struct ApiKeySettings as ACCESS_KEY: "API keys, by name; `rialto key new NAME` prints one with these lines.", check check_api_key {
        /// Digest of the secret, as `rialto key new` prints it; two while the key is being replaced.
        hashes: Vec<SecretDigest> = Vec::new(),
            STRINGS.default("required")
                .example("[\"sha256:c61fcc0675de3fcd602d7206eb44c97f06b1f1ef386d7f96501ab5ece31e95a9\"]");
        /// Roles of whoever has the key.
        roles: Vec<String> = Vec::new(), STRINGS.default("none").example("[\"robots\"]");
        /// Groups that the key is good for.
        groups: Option<Vec<String>> = None, STRINGS.default("all").example("[\"default\"]");
        /// Last day on which the key is accepted (UTC), or a date and time with an offset.
        expires: Option<ExpiryDate> = None, DATE.default("never").example("2027-06-30");
    }
}

settings! {
    /// `[audit]`: the audit log.
    pub struct AuditSection as AUDIT: "Audit log: one line of JSON for each decision.", check check_audit => AppSettings {
        /// Where lines go: `off`, `stdout`, `stderr`, or `file:PATH`, relative to the directory of this file.
        output: AuditOutput = AuditOutput::Off, STRING.example("\"file:audit.jsonl\"") => audit.output;
        /// What is written of the arguments of a call: nothing, the names of the members, a keyed digest, or all.
        arguments: ArgumentDetail = ArgumentDetail::None,
            choice::<ArgumentDetail>().example("\"keys\"") => audit.arguments;
        /// JSON Pointers to members of the arguments that are masked, where all are written.
        redact: Vec<String> = Vec::new(), STRINGS.default("none").example("[\"/password\"]") => audit.redact;
        /// Refuse calls with 503 while they cannot be recorded, instead of losing lines.
        lossless: bool = false, BOOLEAN.example("true") => audit.lossless;
        /// Record lists, too.
        lists: bool = false, BOOLEAN.example("true") => audit.lists;
        /// Key of the digests of arguments; the same on all nodes, if theirs are to be compared.
        digest_key: Option<Secret> = None,
            STRING.default("random, until the next start").example("\"a long s3cret of many letters\"")
            => audit.digest_key;
    }
}

settings! {
    /// `[limits]`: limits and timeouts on the client side.
    pub struct LimitsSection as LIMITS: "Limits and timeouts on the client side." => AppSettings {
        /// Maximum size of a request body, or of a line on stdio.
        body_bytes: usize = 4 << 20,
            SIZE.example("\"8MiB\"").flag("max-body-bytes", "N").heading(LIMITS_HEADING) => inbound.limits.body_bytes;
        /// Maximum number of headers in a request.
        headers: usize = 100,
            integer(1, 1_000).example("50").flag("max-headers", "N").heading(LIMITS_HEADING)
            => inbound.limits.header_count;
        /// Maximum total size of the headers of a request.
        header_bytes: usize = 64 << 10,
            SIZE.example("32768").flag("max-header-bytes", "N").heading(LIMITS_HEADING) => inbound.limits.header_bytes;
        /// Maximum JSON nesting depth.
        json_depth: usize = 128,
            integer(1, 10_000).example("64").flag("max-json-depth", "N").heading(LIMITS_HEADING)
            => inbound.limits.json_depth;
        /// Maximum number of messages in a batch.
        batch: usize = 100,
            COUNT.example("10").flag("max-batch", "N").heading(LIMITS_HEADING) => inbound.limits.batch_length;
        /// Maximum bytes of client capabilities and client info that a session keeps from `initialize`.
        initialize_bytes: usize = 4 << 10, SIZE.example("\"8KiB\"") => inbound.limits.initialize_bytes;
        /// Maximum number of client connections; the excess gets 503 and is closed.
        connections: usize = 20_000,
            COUNT.example("1000").flag("max-connections", "N").heading(LIMITS_HEADING) => quotas.connections;
        /// Maximum number of connections per client address. All clients behind one proxy have its address.
        connections_per_address: usize = 10_000, COUNT.example("100") => quotas.connections_per_address;
        /// Maximum number of sessions.
        sessions: usize = 100_000,
            COUNT.example("10").flag("max-sessions", "N").heading(LIMITS_HEADING) => quotas.sessions;
        /// Maximum number of sessions per caller, or per address where there are no tokens.
        sessions_per_caller: usize = 20_000, COUNT.example("100") => quotas.sessions_per_caller;
        /// Maximum number of open SSE streams per session. A call is refused before it is forwarded while there are as
        /// many; one that runs already gets its stream.
        streams: usize = 128,
            COUNT.example("8").flag("max-streams", "N").heading(LIMITS_HEADING) => sessions.max_streams;
        /// Maximum number of open SSE streams of all sessions and calls.
        total_streams: usize = 50_000, COUNT.example("1000") => quotas.streams;
        /// Maximum number of calls in flight in all.
        total_calls: usize = 20_000, COUNT.example("1000") => quotas.calls;
        /// Maximum number of `subscriptions/listen` calls.
        listens: usize = 20_000, COUNT_OR_ZERO.example("1000") => quotas.listens;
        /// Maximum number of `subscriptions/listen` calls per caller, or per address where there are no tokens.
        listens_per_caller: usize = 2000, COUNT_OR_ZERO.example("10") => quotas.listens_per_caller;
        /// Maximum bytes of request bodies that are being read or served.
        total_body_bytes: usize = 256 << 20, SIZE.example("\"1GiB\"") => quotas.body_bytes;
        /// Maximum bytes of events retained for all sessions. While there are more, each session that adds to them keeps
        /// 16 KiB.
        total_event_bytes: usize = 1 << 30, SIZE.example("\"256MiB\"") => quotas.event_bytes;
        /// Maximum number of connections to one origin of HTTP servers, listening streams not counted. Further requests
        /// wait for one.
        connections_per_origin: usize = DEFAULT_CONNECTIONS_PER_ORIGIN, COUNT.example("64") => connections_per_origin;
        /// Maximum number of calls in flight per session.
        calls: usize = 1000,
            COUNT.example("10").flag("max-calls", "N").heading(LIMITS_HEADING) => sessions.max_calls;
        /// Maximum number of resource subscriptions per session, and of URIs in one `subscriptions/listen`.
        subscriptions: usize = 1000,
            COUNT_OR_ZERO.example("10").flag("max-subscriptions", "N").heading(LIMITS_HEADING)
            => sessions.max_subscriptions;
        /// Maximum number of server requests (sampling, elicitation, roots) that await an answer per session.
        server_requests: usize = 256, COUNT.example("10") => sessions.max_server_requests;
        /// Maximum number of events retained per session for resumption.
        events: usize = 1000,
            COUNT_OR_ZERO.example("10").flag("max-events", "N").heading(LIMITS_HEADING)
            => sessions.retention.max_events;
        /// Maximum bytes of events retained per session.
        event_bytes: usize = 8 << 20,
            SIZE.example("\"1MiB\"").flag("max-event-bytes", "N").heading(LIMITS_HEADING)
            => sessions.retention.max_bytes;
        /// How long events are retained for resumption.
        event_age: Duration = seconds(600),
            DURATION_OR_ZERO.example("\"1m\"").flag("event-age", "SECONDS").heading(LIMITS_HEADING)
            => sessions.retention.max_age;
        /// Idle time after which a session expires.
        session_idle: Duration = seconds(900),
            DURATION.example("\"5m\"").flag("session-idle", "SECONDS").heading(LIMITS_HEADING)
            => sessions.idle_timeout;
        /// Maximum number of parked calls: calls waiting for input from per-request clients, and tasks held for clients.
        parked_calls: usize = 10_000, COUNT_OR_ZERO.example("10") => quotas.parked_calls;
        /// Maximum number of parked calls per caller, or per address where there are no tokens.
        parked_calls_per_caller: usize = 1000, COUNT_OR_ZERO.example("5") => quotas.parked_calls_per_caller;
        /// How long to wait for the answer to an elicitation request.
        elicitation_timeout: Duration = seconds(600), DURATION.example("\"5m\"") => parking.elicitation_timeout;
        /// How long to wait for the answer to a sampling or roots request.
        sampling_timeout: Duration = seconds(120), DURATION.example("\"1m\"") => parking.sampling_timeout;
        /// How long the head of a request may take to arrive.
        header_timeout: Duration = seconds(30),
            DURATION.example("\"10s\"").flag("header-timeout", "SECONDS").heading(TIMEOUTS_HEADING)
            => inbound.header_timeout;
        /// How long the body of a request may take to arrive.
        body_timeout: Duration = seconds(30),
            DURATION.example("\"1m\"").flag("body-timeout", "SECONDS").heading(TIMEOUTS_HEADING)
            => inbound.body_timeout;
        /// Idle time after which a connection is closed; longer than that of usual load balancers, so that they close
        /// first.
        keep_alive_timeout: Duration = seconds(75),
            DURATION.example("\"2m\"").flag("keep-alive-timeout", "SECONDS").heading(TIMEOUTS_HEADING)
            => inbound.keep_alive_timeout;
        /// Time after which a client that accepts no byte of a response is disconnected.
        write_stall_timeout: Duration = seconds(60),
            DURATION.example("\"30s\"").flag("write-stall-timeout", "SECONDS").heading(TIMEOUTS_HEADING)
            => inbound.write_stall_timeout;
        /// Time without a response after which a call is answered with an SSE stream.
        sse_after: Duration = seconds(1),
            DURATION_OR_ZERO.example("\"250ms\"").flag("sse-after-ms", "MS").heading(STREAMS_HEADING)
            => inbound.sse_after;
        /// Idle time of an SSE stream after which a keep-alive comment is sent.
        sse_heartbeat: Duration = seconds(15),
            DURATION.example("\"5s\"").flag("sse-heartbeat-ms", "MS").heading(STREAMS_HEADING)
            => inbound.sse_heartbeat;
        /// Reconnection delay sent to clients (the SSE `retry` field).
        sse_retry: Duration = seconds(3),
            DURATION_OR_ZERO.example("\"2s\"").flag("sse-retry-ms", "MS").heading(STREAMS_HEADING)
            => sessions.sse_retry_ms;
        /// How long calls in flight may take to finish at shutdown.
        shutdown_timeout: Duration = seconds(10),
            DURATION_OR_ZERO.example("\"1m\"").flag("shutdown-timeout", "SECONDS").heading(TIMEOUTS_HEADING)
            => inbound.shutdown_timeout;
    }
}

settings! {
    /// `[policy]`: what callers may do, and how much of it.
    pub struct PolicySection as POLICY: "What callers may do, and how much of it." => AppSettings {
        /// What holds where no rule matches: `allow`, or `deny`.
        default: Option<DefaultAccess> = None,
            choice::<DefaultAccess>().default("`deny` if there are rules").example("\"deny\"");
        /// Rules: who may do what.
        rules: Vec<AccessRule> = Vec::new(),
            setting(ValueType::TableList(&RULE))
                .default("none")
                .example("[{ principals = [\"*\"], allow = { tools = [\"elements/get*\"] } }]");
        /// Rate limits and quotas; all that match a request must have room.
        limits: Vec<LimitRule> = Vec::new(),
            setting(ValueType::TableList(&LIMIT)).default("none").example("[{ name = \"a\", rate = \"20/s\" }]")
            => rate_limits;
    }
}

settings! {
    /// Settings of one server, valid per server and in `[defaults]`.
    pub struct UpstreamSettings as DEFAULTS: "Defaults for all servers.", check check_timeouts => UpstreamSpec {
        /// Protocol revision to use, such as `2025-06-18`.
        revision: Option<Revision> = None, REVISION.example("\"2025-06-18\"") => settings.revision;
        /// `per-client`: one upstream session per client. `shared`: one for all clients; the server cannot send
        /// requests to them.
        connection: Option<ConnectionMode> = None,
            choice::<ConnectionMode>().default("depends on the server's revision").example("\"shared\"")
            => connection_mode;
        /// Which leg serves a client where the server speaks both eras: `client`, the one of the client's own era, or
        /// always `handshake` or `per-request`.
        legs: LegRule = LegRule::Client, choice::<LegRule>().example("\"per-request\"") => leg_rule;
        /// Timeout for opening a connection.
        connect_timeout: Duration = seconds(10), DURATION.example("\"3s\"") => settings.connect_timeout;
        /// Timeout of each request while transport and revision are detected.
        discovery_timeout: Duration = seconds(10), DURATION.example("\"3s\"") => settings.discovery_timeout;
        /// Timeout for the first response of a package runner (`npx`, `uvx`), which may have to download first.
        startup_timeout: Duration = seconds(60), DURATION.example("\"5m\"") => settings.startup_timeout;
        /// Time without a message after which a call fails; progress notifications reset it.
        idle_timeout: Duration = seconds(60), DURATION.example("\"2m\"") => settings.idle_timeout;
        /// Maximum duration of a call.
        total_timeout: Duration = seconds(600), DURATION.example("\"1h\"") => settings.total_timeout;
        /// How long a child process may take to exit after its stdin is closed, and again after SIGTERM.
        stop_timeout: Duration = seconds(2), DURATION_OR_ZERO.example("\"5s\"") => settings.stop_timeout;
        /// Interval between pings on an idle connection.
        ping_interval: Option<Duration> = Some(seconds(30)), DURATION_OR_OFF.example("\"off\"")
            => settings.ping_interval;
        /// Time without a byte on a listening stream over HTTP after which it is opened again, and lists and subscribed
        /// resources count as changed.
        listen_read_timeout: Option<Duration> = Some(seconds(300)), DURATION_OR_OFF.example("\"1m\"")
            => settings.listen_read_timeout;
        /// Interval at which lists are re-read if the server sends no list-changed notifications.
        list_poll_interval: Option<Duration> = Some(seconds(60)), DURATION_OR_OFF.example("\"5m\"")
            => list_poll_interval;
        /// Maximum size of a message from the server.
        message_bytes: usize = 16 << 20, SIZE.example("\"1MiB\"") => settings.message_bytes;
        /// Size above which the answer to a call, over HTTP, is passed on in pieces as it arrives, where the client can
        /// take it unchanged. What goes wrong after that breaks the response off.
        stream_answers_over: usize = 256 << 10, SIZE.example("\"1MiB\"") => settings.stream_answers_over;
        /// Maximum JSON nesting depth of a message from the server.
        json_depth: usize = 128, integer(1, 10_000).example("64") => settings.json_depth;
        /// Maximum number of input rounds (results that request input) in one call.
        max_input_rounds: u32 = 8, integer(0, 1000).example("3") => settings.max_input_rounds;
        /// Maximum number of leases: connections reserved for single clients.
        max_leases: usize = 256, COUNT.example("16") => max_leases;
        /// Maximum number of leases of one caller for its calls without a session.
        max_leases_per_caller: usize = 32, COUNT.example("4") => max_leases_per_caller;
        /// Idle time after which the lease of a per-request client is closed.
        lease_idle_timeout: Duration = seconds(300), DURATION.example("\"1m\"") => lease_idle_timeout;
        /// How long cached lists are served while the server is unreachable.
        serve_stale_for: Duration = seconds(300), DURATION_OR_ZERO.example("\"1h\"") => serve_stale_for;
        /// Whether the server may send requests to clients (sampling, elicitation, roots).
        allow_server_requests: bool = true, BOOLEAN.example("false") => allow_server_requests;
    }
}

settings! {
    /// Settings of one group.
    pub struct GroupSettings => GroupConfig {
        /// Names from several servers: `prefix` puts the server's name in front, `plain` leaves them unchanged, and
        /// duplicates are then an error.
        naming: Naming = Naming::Prefix, choice::<Naming>().example("\"plain\"") => naming;
        /// Instructions for the model; replaces those of the servers.
        instructions: Option<String> = None,
            STRING.default("those of the servers").example("\"Be brief.\"") => instructions;
        /// Filter for tools, by the names that clients see, the server's own, and the whole prefixed name.
        tools: FilterSection = FilterSection::default(),
            table(&FILTER).default("all").example("{ allow = [\"get*\"] }") => tools;
        /// Filter for prompts, by the same names.
        prompts: FilterSection = FilterSection::default(),
            table(&FILTER).default("all").example("{ deny = [\"*\"] }") => prompts;
        /// Filter for resources, by the URIs that clients see and the server's own.
        resources: FilterSection = FilterSection::default(),
            table(&FILTER).default("all").example("{ deny = [\"file:*\"] }") => resources;
        /// Page size of lists.
        page_size: usize = DEFAULT_PAGE_SIZE, integer(1, 100_000).example("50") => page_size;
    }
}

settings! {
    /// Name filter: `*` matches any characters, `?` matches one.
    pub struct FilterSection as FILTER: "Name filter. In a pattern, * matches any characters and ? matches one.", check check_filter {
        /// Patterns of names to include.
        allow: Vec<String> = Vec::new(), STRINGS.default("all").example("[\"a*\"]");
        /// Patterns of names to exclude; wins over `allow`.
        deny: Vec<String> = Vec::new(), STRINGS.default("none").example("[\"b?\"]");
    }
}
