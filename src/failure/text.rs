//! The sentence that a client reads.

use std::time::Duration;

use super::{Execution, Failure, FailureKind, FailureSide, QuotaScope, Retry};

/// The client's sentence: what failed, whether the call can have run, and what to do. It names the upstream but no
/// address, and quotes no server.
pub fn client_text(failure: &Failure) -> String {
    if failure.kind() == FailureKind::OverRateLimit {
        let when = failure.retry_after().map_or_else(|| "later".to_owned(), |delay| format!("in {}", rounded(delay)));
        return format!("Rate limit: try again {when}");
    }
    if failure.kind() == FailureKind::InsufficientScope {
        return match failure.scopes() {
            [] => "Forbidden: this needs another scope".to_owned(),
            [only] => format!("Forbidden: this needs the scope {only}"),
            scopes => format!("Forbidden: this needs the scopes {}", scopes.join(" ")),
        };
    }
    let mut text = format!("{} {}", subject(failure), what_happened(failure.kind()));
    text.push_str(match failure.execution() {
        Execution::NotRun => "; the call was not carried out",
        Execution::MayHaveRun => "; the call may have been carried out",
    });
    match (failure.kind(), failure.retry()) {
        (FailureKind::Credentials(_), _) => text.push_str("; the operator must correct them"),
        (FailureKind::StartFailed, _) => text.push_str("; the operator must correct its configuration"),
        // To repeat a call that may have run is the client's own decision.
        (_, Retry::After(delay)) if failure.execution() == Execution::NotRun => {
            text.push_str("; try again in ");
            text.push_str(&rounded(delay));
        }
        (_, Retry::Later) if failure.execution() == Execution::NotRun => text.push_str("; try again later"),
        _ => {}
    }
    text
}

fn subject(failure: &Failure) -> String {
    match (failure.kind(), failure.kind().side(), failure.upstream()) {
        (_, FailureSide::Upstream, Some(name)) => format!("Upstream {name:?}"),
        (_, FailureSide::Upstream, None) => "The server".to_owned(),
        (_, FailureSide::Client, _) => "The client".to_owned(),
        (FailureKind::StoreUnavailable, ..) => "The session".to_owned(),
        (FailureKind::StoreFull, ..) => "The session store".to_owned(),
        (FailureKind::NodeBusy, ..) => "The node that must take this call".to_owned(),
        (FailureKind::ParkedCallLost, ..) => "The call that waited for these answers".to_owned(),
        (FailureKind::QuotaReached(reached), ..) => match reached.scope {
            QuotaScope::Gateway => "The gateway".to_owned(),
            QuotaScope::Caller => "The caller".to_owned(),
            QuotaScope::Session => "The session".to_owned(),
        },
        (_, FailureSide::Gateway, _) => "The node that had this call".to_owned(),
    }
}

fn what_happened(kind: FailureKind) -> String {
    match kind {
        FailureKind::Unreachable => "cannot be reached".to_owned(),
        FailureKind::ConnectTimeout => "did not accept a connection in time".to_owned(),
        FailureKind::StartFailed => "cannot be started".to_owned(),
        FailureKind::Starting => "is still starting".to_owned(),
        FailureKind::LimitReached => "has as many clients as it may have".to_owned(),
        FailureKind::Credentials(status) => format!("refused the gateway's credentials ({status})"),
        FailureKind::RateLimited => "limits the rate of calls (429)".to_owned(),
        FailureKind::Unavailable => "is unavailable (503)".to_owned(),
        FailureKind::Status(status) => format!("answered with HTTP status {status}"),
        FailureKind::HandshakeRefused(code) => format!("refused the handshake with error {code}"),
        FailureKind::NoCommonRevision => "speaks no protocol revision that is spoken here".to_owned(),
        FailureKind::Broken => "closed the connection before it answered".to_owned(),
        FailureKind::ChildExited => "exited before it answered".to_owned(),
        FailureKind::Silent(limit) => format!("was silent for {}", exact(limit)),
        FailureKind::TimedOut(limit) => format!("did not finish within {}", exact(limit)),
        FailureKind::TooLarge(limit) => format!("sent a message of more than {limit} bytes"),
        FailureKind::TooDeep(limit) => format!("sent a message that nests more than {limit} levels deep"),
        FailureKind::Protocol => "violated the protocol".to_owned(),
        FailureKind::InsufficientScope => "lacks a scope".to_owned(),
        FailureKind::ClientUnanswered => "did not answer a request of the server".to_owned(),
        FailureKind::StoreUnavailable => "cannot be kept or reached just now".to_owned(),
        FailureKind::NodeBusy => "has too many messages waiting".to_owned(),
        FailureKind::NodeLost => "cannot be reached".to_owned(),
        FailureKind::ParkedCallLost => "was lost with the node that held it".to_owned(),
        FailureKind::QuotaReached(reached) => format!("has as many {} as it may have", reached.resource),
        FailureKind::StoreFull => "has no room for the messages of the call".to_owned(),
        FailureKind::OverRateLimit => "has reached a rate limit".to_owned(),
    }
}

fn exact(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{} ms", time.as_millis()),
    }
}

/// In whole seconds, rounded up: a client that comes too early is refused again.
fn rounded(delay: Duration) -> String {
    format!("{} s", whole_seconds(delay))
}

/// Whole seconds, rounded up.
pub fn whole_seconds(delay: Duration) -> u64 {
    delay.as_secs() + u64::from(delay.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_given_only_where_it_is_safe() {
        let text = |failure: Failure| client_text(&failure.of_upstream(&"x".into()));
        let limited = Failure::new(FailureKind::RateLimited, "").with_retry_after(Some(Duration::from_millis(2500)));
        assert_eq!(
            text(limited.clone()),
            r#"Upstream "x" limits the rate of calls (429); the call was not carried out; try again in 3 s"#
        );
        assert_eq!(
            text(limited.after_sending()),
            r#"Upstream "x" limits the rate of calls (429); the call may have been carried out"#
        );
        assert_eq!(
            text(Failure::new(FailureKind::Broken, "")),
            r#"Upstream "x" closed the connection before it answered; the call may have been carried out"#
        );
        assert_eq!(
            text(Failure::new(FailureKind::Broken, "").before_sending()),
            r#"Upstream "x" closed the connection before it answered; the call was not carried out; try again later"#
        );
        assert_eq!(
            client_text(&Failure::new(FailureKind::Silent(Duration::from_millis(300)), "")),
            "The server was silent for 300 ms; the call may have been carried out"
        );
    }

    #[test]
    fn a_rate_limit_says_when_to_try_again() {
        let limited = |delay| client_text(&Failure::new(FailureKind::OverRateLimit, "").with_retry_after(delay));
        assert_eq!(limited(Some(Duration::from_millis(6001))), "Rate limit: try again in 7 s");
        assert_eq!(limited(None), "Rate limit: try again later");
    }

    #[test]
    fn no_text_repeats_the_detail() {
        for kind in FailureKind::ALL {
            let text = client_text(&Failure::new(kind, "http://10.0.0.1:1/path?key=s3cret"));
            assert!(!text.contains("10.0.0.1") && !text.contains("s3cret"), "{text}");
        }
    }
}
