//! Checklist of the rules for limits: each names the test that covers it.

use crate::coverage::Coverage::Test;
use crate::coverage::{Rule, check};

const CHECKLIST: &[Rule] = &[
    (59, "burst then rate, to the count", Test("policy::rate_limits::tests::burst_then_rate_to_the_count")),
    (60, "429 has `Retry-After`", Test("rate_limits::a_limit_of_requests_is_429_with_retry_after")),
    (60, "a tool limit is `isError`", Test("rate_limits::a_limit_of_tools_is_a_tool_result_and_takes_nothing_else")),
    (
        61,
        "three nodes together within rate and one batch each, over 10 s",
        Test("rate_limits::cluster::three_nodes_together_stay_within_the_rate"),
    ),
    (
        62,
        "store away: degraded, counted, heals",
        Test("rate_limits::cluster::without_the_store_each_node_enforces_its_share_until_it_is_back"),
    ),
    (
        63,
        "`max_in_flight` returns to zero after cancel and disconnect",
        Test("rate_limits::in_flight::requests_in_flight_are_bounded_and_end_with_cancellation_or_disconnection"),
    ),
    (
        63,
        "`max_in_flight` returns to zero after a crash",
        Test("rate_limits::in_flight::requests_in_flight_end_when_their_server_crashes"),
    ),
    (63, "parked calls are in flight", Test("bridge::parked_calls::a_parked_call_is_in_flight_until_it_ends")),
    (
        64,
        "a rejected call consumes from no bucket",
        Test("policy::rate_limits::tests::a_rejected_request_takes_from_no_bucket"),
    ),
    (
        64,
        "a rejected call consumes from no bucket, over HTTP",
        Test("rate_limits::a_limit_of_tools_is_a_tool_result_and_takes_nothing_else"),
    ),
];

#[test]
fn every_rule_of_limits_has_a_test() {
    check(CHECKLIST, 59..=64);
}
