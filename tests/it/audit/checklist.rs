//! Checklist of the rules for the audit log and for TLS: each names the test that covers it, or the reason why none does yet.

use crate::coverage::Coverage::{NotYet, Test};
use crate::coverage::{Rule, check};

/// Rule number of the authorization rules, the rule in short, and its coverage.
const CHECKLIST: &[Rule] = &[
    (93, "a rejected admission is recorded", Test("audit::rejections_are_recorded_with_their_reason_and_nothing_else")),
    (
        93,
        "an admission is recorded once per session",
        Test("audit::a_session_is_recorded_once_and_every_call_with_its_target"),
    ),
    (
        93,
        "a caller without a session is recorded once in five minutes",
        Test("audit::callers_without_a_session_are_recorded_once_in_a_while"),
    ),
    (
        93,
        "every call is recorded with outcome, server and both names",
        Test("audit::a_session_is_recorded_once_and_every_call_with_its_target"),
    ),
    (93, "requests of operators are recorded", Test("audit::operators_requests_are_recorded")),
    (
        93,
        "applied and refused configurations are recorded",
        Test("audit::outputs::the_file_is_reopened_after_rotation_and_reloads_are_recorded"),
    ),
    (
        93,
        "hidden, denied and step_up are recorded with the rule that decided",
        Test("audit::decisions::the_rule_that_decided_is_named"),
    ),
    (
        93,
        "rate_limited is recorded with the limit, for whole requests too",
        Test("audit::decisions::limits_of_requests_and_of_tools_are_recorded_by_name"),
    ),
    (
        93,
        "the kind of an upstream's credential is recorded",
        Test("audit::decisions::the_kind_of_the_upstream_credential_is_recorded_and_never_its_value"),
    ),
    (93, "grants and connections of users are recorded", NotYet("users have no grants at servers yet")),
    (
        94,
        "no secret is in anything that is written",
        Test("authorization::secrets::no_secret_is_in_anything_that_is_written"),
    ),
    (94, "no secret is in the audit log", Test("audit::arguments_are_written_as_configured")),
    (94, "no session id is in the audit log", Test("audit::a_session_is_recorded_once_and_every_call_with_its_target")),
    (95, "hostile names stay on one line and are cut", Test("audit::hostile_names_stay_on_one_line_and_are_cut")),
    (
        96,
        "an unread pipe costs events, which are counted, and no call",
        Test("audit::outputs::an_unread_pipe_costs_events_and_no_call"),
    ),
    (96, "so does a full disk", Test("audit::outputs::a_full_disk_costs_events_and_no_call")),
    (
        96,
        "with `lossless` calls are refused instead",
        Test("audit::outputs::lossless_refuses_calls_until_the_log_can_be_written"),
    ),
    (
        97,
        "`rialto check --as` agrees with what a client sees",
        Test("rules::check::check_agrees_with_what_a_client_sees"),
    ),
];

#[test]
fn every_audit_rule_has_a_test_or_a_reason() {
    check(CHECKLIST, 93..=97);
}
