//! Checklist of protocol rules: each names the test that covers it, or the reason why none does yet.

use Coverage::{NotYet, Test};

/// Whether a test covers a rule.
enum Coverage {
    /// Module path and name of the test.
    Test(&'static str),
    /// Why no test covers the rule yet.
    NotYet(&'static str),
}

const NEEDS_REMOTE_UPSTREAM: &str = "needs a test with an upstream behind a transport";
const NEEDS_SERVER_REQUESTS: &str = "needs a test with an upstream that sends server requests";
const NEEDS_SEVERAL_UPSTREAMS: &str = "needs a test with a group of several upstreams";
const NEEDS_OAUTH: &str = "needs OAuth support";

/// Rule number, the rule in short, and its coverage.
const CHECKLIST: &[(u16, &str, Coverage)] = &[
    (
        1,
        "a POST with a `_meta` envelope is per-request whatever session it names",
        Test("per_request::a_per_request_call_needs_no_session"),
    ),
    (
        2,
        "initialize with a complete envelope is 404",
        Test("per_request::handshake_methods_are_404_in_the_per_request_era"),
    ),
    (
        3,
        "initialize without an envelope is a handshake",
        Test("streamable::initialize_negotiates_the_proposed_revision"),
    ),
    (4, "an unknown proposal gets 2025-11-25", Test("streamable::initialize_negotiates_the_proposed_revision")),
    (5, "each known proposal is echoed", Test("streamable::initialize_negotiates_the_proposed_revision")),
    (
        6,
        "a 2026-07-28 version header without _meta is 400 -32602",
        Test("per_request::the_body_decides_the_era_of_a_post"),
    ),
    (
        7,
        "_meta without protocolVersion is 400 -32602",
        Test("per_request::invalid_envelopes_and_headers_are_refused_in_order"),
    ),
    (
        8,
        "_meta without clientCapabilities is 400 -32602",
        Test("per_request::invalid_envelopes_and_headers_are_refused_in_order"),
    ),
    (9, "_meta without clientInfo is served", Test("per_request::invalid_envelopes_and_headers_are_refused_in_order")),
    (
        10,
        "header and body versions that differ are -32020",
        Test("per_request::invalid_envelopes_and_headers_are_refused_in_order"),
    ),
    (
        11,
        "an unknown version in both is -32022 with data",
        Test("per_request::invalid_envelopes_and_headers_are_refused_in_order"),
    ),
    (12, "a missing version header is -32020", Test("per_request::invalid_envelopes_and_headers_are_refused_in_order")),
    (13, "a missing Mcp-Method is -32020", Test("per_request::invalid_envelopes_and_headers_are_refused_in_order")),
    (
        14,
        "Mcp-Method values are case-sensitive",
        Test("per_request::invalid_envelopes_and_headers_are_refused_in_order"),
    ),
    (15, "header names are case-insensitive", Test("per_request::invalid_envelopes_and_headers_are_refused_in_order")),
    (16, "a missing Mcp-Name is -32020", Test("per_request::the_mcp_name_header_must_match_the_body")),
    (17, "whitespace around Mcp-Name is trimmed", Test("per_request::the_mcp_name_header_must_match_the_body")),
    (18, "Mcp-Name may be Base64", Test("per_request::the_mcp_name_header_must_match_the_body")),
    (19, "bad Base64 is -32020", Test("per_request::the_mcp_name_header_must_match_the_body")),
    (
        20,
        "an incomplete Base64 sentinel is taken literally",
        Test("per_request::the_mcp_name_header_must_match_the_body"),
    ),
    (21, "a duplicate header is 400", Test("per_request::invalid_envelopes_and_headers_are_refused_in_order")),
    (22, "responses keep the JSON type of the id", Test("streamable::responses_keep_the_json_type_of_the_id")),
    (
        23,
        "an unknown method is 404, or -32601 in a session",
        Test("per_request::handshake_methods_are_404_in_the_per_request_era"),
    ),
    (
        24,
        "methods of the other era are unknown methods",
        Test("per_request::handshake_methods_are_404_in_the_per_request_era"),
    ),
    (25, "batches are accepted in 2025-03-26 only", Test("streamable::batches_are_accepted_in_2025_03_26_only")),
    (
        26,
        "a posted response is refused in the per-request era",
        Test("per_request::posted_notifications_are_202_and_responses_400"),
    ),
    (27, "malformed JSON is 400 -32700", Test("streamable::malformed_json_and_json_rpc_are_refused_with_their_codes")),
    (28, "a null id is refused", Test("streamable::malformed_json_and_json_rpc_are_refused_with_their_codes")),
    (29, "Accept is checked; */* is accepted", Test("streamable::accept_content_type_verb_and_path_are_checked")),
    (30, "Content-Type is checked", Test("streamable::accept_content_type_verb_and_path_are_checked")),
    (
        31,
        "GET and DELETE without a session are 405",
        Test("streamable::a_missing_session_id_is_400_and_an_unknown_one_404"),
    ),
    (32, "other verbs are 405 with Allow", Test("streamable::accept_content_type_verb_and_path_are_checked")),
    (33, "a bad Origin is 403 on every verb", Test("limits::foreign_hosts_and_origins_are_forbidden")),
    (
        34,
        "a foreign Host is 403; names of this machine are accepted",
        Test("limits::foreign_hosts_and_origins_are_forbidden"),
    ),
    (35, "the first HTTP+SSE event is endpoint", Test("sse::every_handshake_revision_works_over_every_http_sse_path")),
    (
        36,
        "POST is 202; the response arrives on the SSE stream",
        Test("sse::every_handshake_revision_works_over_every_http_sse_path"),
    ),
    (37, "an unknown SSE session is 404, a missing id 400", Test("sse::posted_messages_need_an_open_session")),
    (38, "a session of another principal is 404", Test("sse::an_sse_session_of_another_principal_is_404")),
    (
        39,
        "closing the SSE stream cancels running calls",
        Test("sse::closing_the_sse_stream_ends_the_session_and_cancels_its_calls"),
    ),
    (
        40,
        "any handshake revision works over HTTP+SSE",
        Test("sse::every_handshake_revision_works_over_every_http_sse_path"),
    ),
    (41, "session ids are visible ASCII", Test("streamable::initialize_negotiates_the_proposed_revision")),
    (
        42,
        "a missing session id is 400, an unknown one 404",
        Test("streamable::a_missing_session_id_is_400_and_an_unknown_one_404"),
    ),
    (43, "a session is 404 after DELETE", Test("streamable::delete_ends_a_session")),
    (
        44,
        "notifications and responses are 202 with an empty body",
        Test("streamable::notifications_and_responses_are_202"),
    ),
    (
        45,
        "an unsupported version header is 400",
        Test("streamable::the_protocol_version_header_is_checked_in_sessions"),
    ),
    (
        46,
        "an absent version header is accepted",
        Test("streamable::the_protocol_version_header_is_checked_in_sessions"),
    ),
    (
        47,
        "requests before the initialized notification are served",
        Test("streamable::requests_before_the_initialized_notification_are_served"),
    ),
    (48, "progress is sent on the stream of its call", Test("streams::progress_never_crosses_sessions")),
    (
        49,
        "server requests are sent on the stream of their call",
        Test("session::server_requests_are_resolved_once_and_cancelled_with_their_call"),
    ),
    (50, "a list change is sent on one stream only", Test("streams::list_changes_reach_the_newest_get_stream_once")),
    (
        51,
        "no response on a GET stream unless it resumes a POST stream",
        Test("streams::resumption_replays_only_its_own_stream"),
    ),
    (52, "a POST stream ends after the response", Test("streams::a_quick_response_is_json_and_progress_makes_it_sse")),
    (
        53,
        "a disconnect is not a cancellation in the handshake era",
        Test("streams::a_disconnect_does_not_cancel_a_handshake_call"),
    ),
    (54, "SSE event ids are unique in the session", Test("streams::sse_event_ids_are_unique_and_name_their_stream")),
    (55, "resumption replays later events of its stream", Test("streams::last_event_id_resumes_a_broken_stream")),
    (56, "resumption by another principal is 404", Test("streamable::a_session_of_another_principal_is_404")),
    (
        57,
        "only 2025-11-25 streams begin with a priming event",
        Test("streams::a_quick_response_is_json_and_progress_makes_it_sse"),
    ),
    (
        58,
        "a stream is closed early only after an event id and retry",
        Test("streams::a_quick_response_is_json_and_progress_makes_it_sse"),
    ),
    (
        59,
        "our client waits for the retry interval",
        Test("servers::strict::a_broken_post_stream_is_resumed_after_retry"),
    ),
    (
        60,
        "our client initializes a new session after 404",
        Test("servers::strict::a_404_session_is_initialized_again_and_the_call_retried"),
    ),
    (61, "our client resumes POST streams", Test("servers::strict::a_broken_post_stream_is_resumed_after_retry")),
    (
        62,
        "our client tolerates 405 on GET",
        Test("servers::strict::every_request_carries_session_id_and_protocol_version"),
    ),
    (63, "a second initialize is 400", Test("streamable::a_second_initialize_in_a_session_is_refused")),
    (64, "a bad Last-Event-ID is 400, not an empty stream", Test("streams::an_unknown_last_event_id_is_400")),
    (65, "a session id is not a credential", Test("streamable::a_session_of_another_principal_is_404")),
    (66, "every result has resultType", Test("per_request::results_carry_result_type_and_cache_hints")),
    (67, "discovery is complete", Test("per_request::discovery_advertises_what_is_served")),
    (68, "advertised capabilities are served", Test("per_request::discovery_advertises_what_is_served")),
    (69, "cacheable results carry cache hints", Test("per_request::results_carry_result_type_and_cache_hints")),
    (70, "input_required carries no cache hint", NotYet(NEEDS_SERVER_REQUESTS)),
    (71, "pages of a list share a cache scope", NotYet(NEEDS_SEVERAL_UPSTREAMS)),
    (72, "private results are not shared", NotYet(NEEDS_SEVERAL_UPSTREAMS)),
    (73, "retries with input are not cached", NotYet(NEEDS_SERVER_REQUESTS)),
    (74, "lists have a stable order", Test("per_request::lists_have_a_stable_order")),
    (
        75,
        "an empty cursor is checked as a cursor",
        Test("per_request::unknown_tools_resources_and_cursors_are_invalid_params"),
    ),
    (76, "an invalid cursor is -32602", Test("per_request::unknown_tools_resources_and_cursors_are_invalid_params")),
    (77, "a missing resource is -32602", Test("per_request::unknown_tools_resources_and_cursors_are_invalid_params")),
    (
        78,
        "-32042 never reaches a per-request client",
        Test("bridge::parked_calls::url_elicitation_required_error_becomes_input_required_and_retries"),
    ),
    (79, "no log messages without a log level", Test("per_request::log_messages_need_a_log_level_in_the_request")),
    (80, "log messages respect the level", Test("per_request::log_messages_need_a_log_level_in_the_request")),
    (81, "an invalid log level is -32602", Test("per_request::invalid_envelopes_and_headers_are_refused_in_order")),
    (
        82,
        "per-request SSE events have no id",
        Test("per_request::per_request_sse_has_no_event_ids_and_ends_with_the_response"),
    ),
    (
        83,
        "no server request is sent to a per-request client",
        Test("per_request::per_request_sse_has_no_event_ids_and_ends_with_the_response"),
    ),
    (
        84,
        "closing the connection cancels the call, as SSE and as JSON",
        Test("per_request::closing_the_connection_cancels_the_call"),
    ),
    (
        85,
        "nothing follows a cancellation on stdio",
        Test("stdio::per_request_calls_listen_and_cancellation_work_over_stdio"),
    ),
    (
        86,
        "a posted notification is 202 without effect",
        Test("per_request::posted_notifications_are_202_and_responses_400"),
    ),
    (87, "a missing capability is -32021", NotYet(NEEDS_SERVER_REQUESTS)),
    (88, "SSE is not buffered and has heartbeat comments", Test("streams::idle_sse_streams_get_heartbeat_comments")),
    (89, "a missing Mcp-Param is -32020", Test("per_request::mcp_param_headers_must_match_annotated_arguments")),
    (
        90,
        "an absent argument needs no Mcp-Param",
        Test("per_request::mcp_param_headers_must_match_annotated_arguments"),
    ),
    (
        91,
        "Mcp-Param compares numbers by value: 42 equals 42.0",
        Test("per_request::mcp_param_headers_must_match_annotated_arguments"),
    ),
    (92, "nested properties are mirrored", Test("dialect::annotations_are_parsed_and_validated")),
    (
        93,
        "a tool with invalid header annotations is dropped",
        Test("conformance::client_conformance_passes_except_expected_failures"),
    ),
    (94, "our client sends Mcp-Param", Test("conformance::client_conformance_passes_except_expected_failures")),
    (95, "header values outside visible ASCII are Base64", Test("dialect::values_are_encoded_only_where_necessary")),
    (96, "-32020 from upstream refreshes the list", NotYet(NEEDS_REMOTE_UPSTREAM)),
    (97, "an unknown Mcp-Param is ignored", Test("per_request::mcp_param_headers_must_match_annotated_arguments")),
    (
        98,
        "mirrored headers are ignored in a session",
        Test("streamable::mcp_method_and_mcp_name_headers_are_ignored_in_a_session"),
    ),
    (
        99,
        "an invalid requestState is -32602",
        Test("bridge::parked_calls::a_tampered_foreign_or_replayed_request_state_is_refused"),
    ),
    (100, "input_required from three methods only", NotYet(NEEDS_SERVER_REQUESTS)),
    (
        101,
        "no server request beyond the declared capabilities",
        Test("groups::messages::server_requests_are_refused_without_the_client_capability"),
    ),
    (
        102,
        "an unanswered input request is repeated",
        Test("bridge::parked_calls::unanswered_input_requests_are_repeated"),
    ),
    (103, "extra input responses are ignored", NotYet(NEEDS_SERVER_REQUESTS)),
    (104, "requestState is echoed exactly", Test("conformance::client_conformance_passes_except_expected_failures")),
    (
        105,
        "parallel calls keep separate request states",
        Test("conformance::client_conformance_passes_except_expected_failures"),
    ),
    (
        106,
        "listen is acknowledged first, with the subscription id",
        Test("per_request::subscriptions_listen_is_acknowledged_first_and_completed_at_shutdown"),
    ),
    (
        107,
        "only notifications of the listen filter are sent",
        Test("per_request::subscriptions_listen_is_acknowledged_first_and_completed_at_shutdown"),
    ),
    (
        108,
        "unsupported filter members are not acknowledged",
        Test("per_request::subscriptions_listen_is_acknowledged_first_and_completed_at_shutdown"),
    ),
    (
        109,
        "shutdown sends the listen result before closing",
        Test("per_request::subscriptions_listen_is_acknowledged_first_and_completed_at_shutdown"),
    ),
    (
        110,
        "no progress or log messages on a listen stream",
        Test("per_request::subscriptions_listen_is_acknowledged_first_and_completed_at_shutdown"),
    ),
    (
        111,
        "a lost upstream listen is reopened",
        Test("groups::upstream_failure::subscriptions_are_restored_after_an_upstream_reconnects"),
    ),
    (
        112,
        "a handshake client gets the input requests of a per-request server",
        Test("bridge::every_client_reaches_every_server_with_every_feature"),
    ),
    (113, "2025-06-18 gets elicitation without a mode", NotYet(NEEDS_SERVER_REQUESTS)),
    (
        114,
        "url elicitation has an id in 2025-11-25",
        Test("bridge::every_client_reaches_every_server_with_every_feature"),
    ),
    (115, "refused sampling fails the call", NotYet(NEEDS_SERVER_REQUESTS)),
    (
        116,
        "a parked call resumes with its input",
        Test("bridge::parked_calls::input_rounds_use_the_progress_token_of_each_round"),
    ),
    (
        117,
        "an abandoned parked call is cancelled",
        Test("bridge::parked_calls::an_abandoned_parked_call_is_cancelled_after_its_timeout"),
    ),
    (118, "an unsolicited roots/list is answered", NotYet(NEEDS_SERVER_REQUESTS)),
    (
        119,
        "-32042 becomes input_required",
        Test("bridge::parked_calls::url_elicitation_required_error_becomes_input_required_and_retries"),
    ),
    (120, "structured content is wrapped or dropped", Test("dialect::structured_content_is_downgraded")),
    (121, "links and audio are converted", Test("dialect::content_types_are_downgraded")),
    (
        122,
        "per-request members never reach handshake clients",
        Test("streamable::results_are_downgraded_to_the_client_revision"),
    ),
    (
        123,
        "logging/setLevel becomes a log level per request",
        Test("streams::log_messages_follow_the_log_level_of_the_session"),
    ),
    (124, "subscribers receive resource updates", Test("streams::resource_updates_reach_subscribers_only")),
    (
        125,
        "a child that exits on the discovery probe is restarted",
        Test("children::a_child_that_exits_on_the_discovery_probe_is_restarted"),
    ),
    (
        126,
        "discovery falls back to a handshake on 4xx, not on 5xx",
        Test("outbound::http_status_errors_are_reported_by_kind"),
    ),
    (
        127,
        "discovery of handshake versions only falls back to a handshake",
        Test("dialect::discover_outcomes_are_classified"),
    ),
    (
        128,
        "equal names at two upstreams are mapped apart",
        Test("groups::aggregation::merged_lists_keep_the_configured_order_and_prefixed_names_are_routed"),
    ),
    (129, "merged pages have no gaps", Test("groups::catalog::pagination_has_no_gaps_and_cursors_are_authenticated")),
    (130, "progress tokens and ids of two clients never cross", Test("streams::progress_never_crosses_sessions")),
    (131, "a client's bearer token never reaches an upstream", NotYet(NEEDS_REMOTE_UPSTREAM)),
    (132, "a wrong audience is 401", NotYet(NEEDS_OAUTH)),
    (133, "401 names the protected resource metadata", NotYet(NEEDS_OAUTH)),
    (134, "a missing scope is 403", NotYet(NEEDS_OAUTH)),
    (135, "an external $ref is not fetched", Test("conformance::client_conformance_passes_except_expected_failures")),
    (136, "private addresses are not fetched", NotYet(NEEDS_REMOTE_UPSTREAM)),
    (137, "an SSE endpoint of another origin is refused", Test("upstream::messages_stay_within_the_origin")),
    (
        138,
        "line breaks in client input cannot inject headers or events",
        Test("limits::echoed_client_input_is_truncated"),
    ),
];

/// The rule numbers are complete and in order. `tests/tidy.rs` checks that the named tests exist.
#[test]
fn every_protocol_rule_has_a_test_or_a_reason() {
    let numbers: Vec<u16> = CHECKLIST.iter().map(|(number, _, _)| *number).collect();
    assert_eq!(numbers, (1..=138).collect::<Vec<_>>());
    let mut uncovered = 0;
    for (number, rule, coverage) in CHECKLIST {
        match coverage {
            Test(test) => assert!(test.contains("::"), "{number}"),
            NotYet(reason) => {
                uncovered += 1;
                println!("{number} {rule}: {reason}");
            }
        }
    }
    println!("{} of {} rules are covered by a test", CHECKLIST.len() - uncovered, CHECKLIST.len());
}
