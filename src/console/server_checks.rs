//! Why a server is down: the attempts to connect, and the checks on the way to it in their order. How a server that was
//! reached was found out.

use http::Uri;
use serde_json::{Value, json};

use super::api::rfc3339;
use crate::failure::{ConnectStep, Failure, FailureKind};
use crate::mcp_client::{Command, Target};
use crate::redact::redact;
use crate::upstream::{CatalogState, Health, HealthPhase, SpecKind};

/// One thing that has to hold on the way to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Name,
    Address,
    Tls,
    Status,
    Program,
    Process,
    Message,
}

/// Where the way to a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// At this check; what comes before it has passed.
    At(Check),
    /// At this check or at one before it.
    AtOrBefore(Check),
    /// Before any: the gateway itself had no room.
    Here,
}

/// How transport and revision were found out, as `rialto probe` says it.
pub(super) fn found_out(state: &CatalogState) -> Value {
    let Some((facts, revision)) = state.connection.as_ref().zip(state.revision) else { return Value::Null };
    let report = &facts.report;
    let notes = report.oddities.iter().map(|oddity| redact(oddity).into_owned());
    json!({
        "transport": report.transport,
        "revision": revision.as_str(),
        "why": redact(&report.why),
        "offered": facts.offered,
        "session": facts.has_session_id,
        "connect_us": u64::try_from(report.elapsed.as_micros()).unwrap_or(u64::MAX),
        "oddities": notes.collect::<Vec<_>>(),
    })
}

/// The last attempts to connect, newest first.
pub(super) fn attempts(health: &Health) -> Value {
    let attempts = health.attempts.iter().rev().map(|attempt| {
        let reason = attempt.failure.as_ref().map(|failure| redact(&failure.to_string()).into_owned());
        json!({ "at": rfc3339(attempt.at), "ok": reason.is_none(), "reason": reason })
    });
    attempts.collect()
}

/// What was checked of a server that is down, in its order, and which check failed.
pub(super) fn checks(kind: &SpecKind, health: &Health) -> Value {
    let (SpecKind::Target(target), HealthPhase::Down, Some(failure)) = (kind, health.phase, &health.failure) else {
        return json!([]);
    };
    let (order, broken) = match target {
        Target::Command(_) => (vec![Check::Program, Check::Process, Check::Message], command_end(failure.kind())),
        Target::Url(address) => {
            let is_tls = address.url.scheme_str() == Some("https");
            let tls = is_tls.then_some(Check::Tls);
            let order = [Check::Name, Check::Address].into_iter().chain(tls).chain([Check::Status, Check::Message]);
            (order.collect(), url_end(failure, is_tls))
        }
    };
    let failed = match broken {
        Broken::At(check) | Broken::AtOrBefore(check) => order.iter().position(|one| *one == check),
        Broken::Here => None,
    };
    let row = |(place, check): (usize, &Check)| {
        let passed = match failed {
            Some(failed) if place == failed => Some(false),
            Some(failed) if place < failed && matches!(broken, Broken::At(_)) => Some(true),
            _ => None,
        };
        let is_failed = passed == Some(false);
        json!({
            "ok": passed,
            "what": redact(&check.what(target)),
            "detail": is_failed.then(|| redact(&failure.to_string()).into_owned()),
            "hint": is_failed.then(|| check.hint(failure.kind())),
        })
    };
    order.iter().enumerate().map(row).collect()
}

fn command_end(kind: FailureKind) -> Broken {
    match kind {
        FailureKind::StartFailed => Broken::At(Check::Program),
        FailureKind::ChildExited | FailureKind::Broken => Broken::At(Check::Process),
        _ => Broken::At(Check::Message),
    }
}

fn url_end(failure: &Failure, is_tls: bool) -> Broken {
    match (failure.kind(), failure.step()) {
        (_, Some(ConnectStep::Name)) => Broken::At(Check::Name),
        (_, Some(ConnectStep::Tls)) => Broken::At(Check::Tls),
        (_, Some(ConnectStep::Address)) | (FailureKind::Unreachable, None) => Broken::At(Check::Address),
        // One limit for the lookup, TCP and TLS.
        (FailureKind::ConnectTimeout, None) if is_tls => Broken::AtOrBefore(Check::Tls),
        (FailureKind::ConnectTimeout, None) => Broken::AtOrBefore(Check::Address),
        (FailureKind::LimitReached, None) => Broken::Here,
        (
            FailureKind::Credentials(_)
            | FailureKind::RateLimited
            | FailureKind::Unavailable
            | FailureKind::Status(_)
            | FailureKind::Broken,
            None,
        ) => Broken::At(Check::Status),
        // The head of a response, or a message on its stream.
        (FailureKind::Silent(_) | FailureKind::TimedOut(_), None) => Broken::AtOrBefore(Check::Message),
        _ => Broken::At(Check::Message),
    }
}

impl Check {
    fn what(self, target: &Target) -> String {
        match (self, target) {
            (Self::Name, Target::Url(address)) => match is_literal(&address.url) {
                true => format!("{} is an address", host(&address.url)),
                false => format!("the name {} has an address", host(&address.url)),
            },
            (Self::Address, Target::Url(address)) => format!("{} takes connections", authority(&address.url)),
            (Self::Tls, _) => "TLS is set up, and the certificate is trusted".to_owned(),
            (Self::Status, _) => "a POST is answered, with a status that is no refusal".to_owned(),
            (Self::Program, Target::Command(Command { program, .. })) => format!("{program} can be started"),
            (Self::Process, _) => "the process goes on running".to_owned(),
            _ => "the first message, server/discover or initialize, is answered as MCP says".to_owned(),
        }
    }

    /// What to do where this check failed.
    fn hint(self, kind: FailureKind) -> &'static str {
        match (self, kind) {
            (Self::Name, _) => "check the host in url, and that this machine can look it up",
            (Self::Address, FailureKind::ConnectTimeout) => "check host and port in url, and firewalls on the way",
            (Self::Address, _) => "start the server, or check host and port in url",
            (Self::Tls, FailureKind::ConnectTimeout) => {
                "check host and port in url, firewalls on the way, and that the port speaks TLS"
            }
            (Self::Tls, _) => {
                "check that the port speaks TLS, and that the system of this machine trusts who issued the certificate"
            }
            (Self::Status, FailureKind::Credentials(_)) => "give the server what it wants in headers",
            (Self::Status, FailureKind::Status(404 | 405)) => "check the path in url: often /mcp or /sse",
            (Self::Status, FailureKind::RateLimited | FailureKind::Unavailable) => {
                "wait: it is tried again when the server said, or later"
            }
            (Self::Status, _) => "look into the log of the server, and of proxies before it",
            (Self::Program, _) => "check command and args, and that PATH of the gateway has the program",
            (Self::Process, _) => "look at its standard error, and run the command by hand",
            (Self::Message, FailureKind::NoCommonRevision) => "remove revision from the file, or update the server",
            (Self::Message, FailureKind::Silent(_) | FailureKind::TimedOut(_)) => {
                "check that this is an MCP server; raise discovery_timeout for one that is slow"
            }
            (Self::Message, _) => "check that this is an MCP server, and look into its log",
        }
    }
}

fn host(url: &Uri) -> &str {
    url.host().unwrap_or_default()
}

/// Host and port, without credentials.
fn authority(url: &Uri) -> String {
    match url.port_u16() {
        Some(port) => format!("{}:{port}", host(url)),
        None => host(url).to_owned(),
    }
}

fn is_literal(url: &Uri) -> bool {
    host(url).trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
}
