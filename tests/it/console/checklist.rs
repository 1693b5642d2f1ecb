//! Checklist of what must hold of the console: each rule names the test that covers it, or the command that measures it.
//! Tests in a browser are named by the Rust test that runs their file.

use crate::coverage::Coverage::{Measured, Test};
use crate::coverage::{Rule, check};

/// Rule number, the rule in short, and its coverage. A rule of several parts stands once for each.
const CHECKLIST: &[Rule] = &[
    // Cost.
    (1, "closed, instructions of a call grow by less than 1%", Measured("just instructions")),
    (1, "closed, CPU per call grows by less than 2%", Measured("just bench --parts telemetry --beside BINARY")),
    (2, "after a viewer came and went, instructions are as before", Measured("just instructions")),
    (3, "closed, a call allocates nothing more", Test("allocations::allocations_per_call_stay_within_budget")),
    (4, "watched, CPU per call grows by at most 5%", Measured("just bench --parts telemetry")),
    (5, "recorded calls take no more than they may", Test("recording::recorded_calls_never_take_more_than_they_may")),
    (5, "rings are bounded", Test("recorder::ring::the_oldest_records_are_overwritten_and_counted_as_lost")),
    (
        5,
        "rings are freed after the last viewer",
        Test("recording::recording_ends_and_frees_everything_after_the_last_viewer"),
    ),
    (6, "p99 is unchanged while calls are read in a loop", Measured("just bench --parts telemetry")),
    (
        7,
        "a viewer that does not read: memory bounded, `lost` told",
        Test("console::live::a_slow_reader_is_told_what_it_lost_and_memory_is_bounded"),
    ),
    (
        7,
        "a viewer that does not read is told what it lost, over a socket",
        Test("console::streams::a_viewer_that_does_not_read_is_told_how_much_it_lost"),
    ),
    // Truth.
    (
        8,
        "both wires are byte for byte what was sent, in every cell",
        Test(
            "bridge::both_wires::both_wires_are_recorded_byte_for_byte_in_every_cell_and_every_difference_has_a_reason",
        ),
    ),
    (
        9,
        "every difference has a reason, in every cell",
        Test(
            "bridge::both_wires::both_wires_are_recorded_byte_for_byte_in_every_cell_and_every_difference_has_a_reason",
        ),
    ),
    (
        10,
        "changes applied to one side give the other",
        Test(
            "bridge::both_wires::both_wires_are_recorded_byte_for_byte_in_every_cell_and_every_difference_has_a_reason",
        ),
    ),
    (11, "the parts of the time are the whole", Test("recording::values_are_shown_only_with_bodies_and_secrets_never")),
    (
        12,
        "a call over two rounds is one row",
        Test("recording::rows::a_call_of_two_rounds_is_one_row_with_two_request_names"),
    ),
    (
        13,
        "a resumed stream shows from where, and what came again",
        Test("console::operators::a_resumed_stream_shows_from_where_and_how_many_events_came_again"),
    ),
    (
        14,
        "refused calls (401, 403, 404, 413 and others) have a row and a reason",
        Test("recording::rows::requests_that_are_refused_have_a_row_with_their_status"),
    ),
    (
        14,
        "cancelled, timed-out and never-sent calls have a row and a reason",
        Test("recording::rows::calls_that_are_cancelled_timed_out_or_never_sent_have_a_row_and_a_reason"),
    ),
    (
        15,
        "numbers are shown as they came, by the page",
        Test("console_page::modules_without_a_document_and_the_budgets_of_files"),
    ),
    (15, "numbers are shown as they came, by the API", Test("recording::redaction::other_bytes_stay_as_they_came")),
    (16, "batches show each message", Test("recording::rows::a_batch_of_2025_03_26_shows_each_of_its_messages")),
    (17, "stdio clients are recorded", Test("recording::rows::calls_over_stdio_are_recorded")),
    (17, "HTTP/2 clients are recorded", Test("recording::rows::calls_over_http2_are_recorded")),
    (
        18,
        "replay gives an equal result on both sides, in each revision",
        Test("recording::replayed::a_replay_of_either_side_gives_the_same_result_in_each_revision"),
    ),
    // Privacy.
    (
        19,
        "a secret of the file is in no answer, event, export or log",
        Test("console::privacy::a_secret_of_the_file_is_in_no_answer_event_export_or_log"),
    ),
    (
        19,
        "a secret that a reload replaces stays hidden",
        Test("console::redaction::a_secret_that_a_reload_replaces_stays_hidden_in_calls_that_are_kept"),
    ),
    (
        19,
        "messages that are cut hide what whole ones do",
        Test("console::redaction::what_is_hidden_is_hidden_in_messages_that_are_cut_too"),
    ),
    (
        20,
        "without `bodies` no value leaves the process",
        Test("recording::values_are_shown_only_with_bodies_and_secrets_never"),
    ),
    (
        20,
        "who may only look sees no value by any route or topic",
        Test("console::redaction::who_may_only_look_sees_no_value_of_any_message"),
    ),
    (
        20,
        "a call that is tried is told to its operator alone",
        Test("console::operators::a_try_is_told_to_its_operator_alone_and_shows_nothing_of_what_came"),
    ),
    (
        21,
        "showing bodies ends by itself",
        Test("recording::bodies_are_shown_for_a_while_and_never_where_they_are_never_shown"),
    ),
    (
        22,
        "whole session ids and states are in no answer",
        Test("console::privacy::whole_ids_of_sessions_and_request_states_are_in_no_answer"),
    ),
    (
        23,
        "nothing of the traffic is written to disk",
        Test("console::privacy::nothing_of_the_traffic_is_written_to_disk"),
    ),
    (
        24,
        "members named like secrets, and their false friends",
        Test("recording::redaction::members_named_like_secrets_are_hidden_and_their_false_friends_stay"),
    ),
    (
        24,
        "what looks like a key, and its false friends",
        Test("recording::redaction::what_looks_like_a_key_is_hidden_and_its_false_friends_stay"),
    ),
    (
        24,
        "secrets of the file, in Base64 too, and their false friends",
        Test("recording::redaction::secrets_of_the_file_are_hidden_in_text_and_base64_and_their_false_friends_stay"),
    ),
    (
        24,
        "ids, states and cursors, and their false friends",
        Test("recording::redaction::ids_states_and_cursors_are_known_by_their_whole_name"),
    ),
    (
        24,
        "ids in paths, and their false friends",
        Test("recording::redaction::ids_of_sessions_in_paths_are_shortened_and_their_false_friends_stay"),
    ),
    (24, "queries of addresses, and their false friends", Test("recording::redaction::queries_show_names_only")),
    (
        24,
        "what the file names, and what is beside it",
        Test("recording::redaction::everything_within_what_the_file_names_is_hidden_and_nothing_beside_it"),
    ),
    (24, "what is no JSON, and its false friends", Test("recording::redaction::members_are_hidden_in_what_is_no_json")),
    (
        24,
        "messages that are cut, and what is shown of them",
        Test("recording::cut_text::secrets_are_hidden_on_both_sides_of_a_cut_and_what_is_beside_them_is_shown"),
    ),
    // Access.
    (25, "without a key every route is 401", Test("console::access::every_route_needs_its_right_and_a_key")),
    (
        25,
        "from beyond loopback the console is 404",
        Test("console::access::without_tokens_the_console_is_for_this_machine_and_no_proxy"),
    ),
    (
        26,
        "foreign hosts, origins and forms are refused without CORS",
        Test("console::access::foreign_pages_hosts_and_forms_are_refused_without_cors"),
    ),
    (
        27,
        "a page of another port can neither read, act nor frame, in a browser",
        Test("console_page::the_key_other_origins_and_the_wire"),
    ),
    (28, "no `Set-Cookie` anywhere", Test("console_page::the_key_other_origins_and_the_wire")),
    (
        29,
        "the key is not in the address, history or `Referer`",
        Test("console_page::the_key_other_origins_and_the_wire"),
    ),
    (30, "no violation of the policy over all tests", Test("console_page::every_page_in_its_states_and_both_schemes")),
    (31, "a table of route and right, whole", Test("console::access::every_route_needs_its_right_and_a_key")),
    (
        32,
        "`admin.listen` beyond loopback without tokens has no console",
        Test("console::access::a_listener_of_its_own_has_the_console_alone_and_none_without_tokens_beyond_loopback"),
    ),
    (
        32,
        "the start says why there is no console, in one line",
        Test("console::access::a_start_without_a_console_says_why_in_one_line"),
    ),
    (
        33,
        "behind a proxy on the same machine: 404 without tokens",
        Test("console::access::foreign_pages_hosts_and_forms_are_refused_without_cors"),
    ),
    (34, "text of servers is shown as text", Test("console_page::words_of_servers_are_text")),
    (
        35,
        "a written configuration is whole, keeps comments, and 412 when the file changed",
        Test("console::configuration::a_file_is_written_whole_keeps_comments_and_secrets_and_is_not_overwritten"),
    ),
    // API.
    (36, "every route is in the document", Test("console::access::every_route_is_in_the_document_with_its_right")),
    (36, "every answer is as the document says", Test("console::api::every_answer_is_as_the_document_says")),
    (36, "types are made from the document", Test("console_page::types_are_those_of_the_api_and_hold_everywhere")),
    (37, "Rialto serves this API as tools", Test("console::api::rialto_serves_this_api_as_tools")),
    (
        38,
        "cursors page through calls without a gap or a double",
        Test("console::streams::cursors_page_through_ten_thousand_calls_while_new_ones_come"),
    ),
    (
        39,
        "a stream resumes by `Last-Event-ID`; what is gone is said",
        Test("console::streams::a_stream_that_breaks_resumes_and_what_is_gone_is_told"),
    ),
    (40, "limits have their status", Test("console::access::limits_have_their_status")),
    (40, "16 streams in all", Test("console::streams::sixteen_streams_are_open_at_most")),
    (40, "17 streams in all, 5 of one operator", Test("console::live::streams_are_limited_in_all_and_by_operator")),
    (41, "the filter means the same on the server", Test("recording::filter::cases_of_the_page_hold_here_too")),
    (
        41,
        "the filter means the same in the page",
        Test("console_page::modules_without_a_document_and_the_budgets_of_files"),
    ),
    // Pages.
    (
        42,
        "every page loading, empty, full, with an error and a lost stream",
        Test("console_page::every_page_in_its_states_and_both_schemes"),
    ),
    (42, "every page full, of a gateway at work", Test("console_page::pages_show_what_really_happens")),
    (43, "\"Why not?\" names the right reason at each of ten steps", Test("console::why::each_step_names_its_reason")),
    (
        44,
        "1,000 tools, 100 servers, 10,000 rows: as many in the document as are seen",
        Test("console_page::every_page_in_its_states_and_both_schemes"),
    ),
    (44, "first paint under 300 ms, a key answered within 50 ms", Measured("just bench-console")),
    (
        45,
        "new rows never move what one reads",
        Test("console_page::reading_is_not_disturbed_and_addresses_restore_everything"),
    ),
    (
        46,
        "a link opens a call in a new tab; one that is gone says so",
        Test("console_page::pages_show_what_really_happens"),
    ),
    (
        46,
        "a call is opened at another node; one that is gone says so",
        Test("console::nodes::calls_of_all_nodes_are_one_list_and_are_opened_at_any_node"),
    ),
    (
        47,
        "back, forward and reload restore everything",
        Test("console_page::reading_is_not_disturbed_and_addresses_restore_everything"),
    ),
    (
        48,
        "hidden tabs let go of their stream; six tabs load",
        Test("console_page::reading_is_not_disturbed_and_addresses_restore_everything"),
    ),
    // Access for all.
    (
        49,
        "axe finds nothing on any page, both schemes",
        Test("console_page::every_page_in_its_states_and_both_schemes"),
    ),
    (
        50,
        "every job but logging in to a server is done by keyboard alone",
        Test("console_page::reading_is_not_disturbed_and_addresses_restore_everything"),
    ),
    (
        51,
        "focus is visible, never lost, and returns",
        Test("console_page::reading_is_not_disturbed_and_addresses_restore_everything"),
    ),
    (51, "focus is never lost on any page", Test("console_page::focus_is_seen_and_never_lost")),
    (
        52,
        "tables are tables, live regions are polite and rare",
        Test("console_page::reading_is_not_disturbed_and_addresses_restore_everything"),
    ),
    (
        53,
        "at 320 pixels and at 200% nothing is cut off",
        Test("console_page::reading_is_not_disturbed_and_addresses_restore_everything"),
    ),
    (54, "forced colours and reduced motion", Test("console_page::jobs_by_keyboard_narrow_windows_and_forced_colours")),
    (55, "no meaning by colour alone", Test("console_page::reading_is_not_disturbed_and_addresses_restore_everything")),
    // Making.
    (56, "the console is in the binary", Test("console::assets::files_are_found_by_name_and_by_digest")),
    (56, "no file of it was forgotten", Test("console_page::modules_without_a_document_and_the_budgets_of_files")),
    (57, "no request leaves the origin", Test("console_page::every_page_in_its_states_and_both_schemes")),
    (58, "at most 150 KB gzipped", Test("console_page::modules_without_a_document_and_the_budgets_of_files")),
    (59, "vendored files match their sums", Test("console_page::modules_without_a_document_and_the_budgets_of_files")),
    (60, "types hold, strictly", Test("console_page::types_are_those_of_the_api_and_hold_everywhere")),
    (60, "files are formatted, functions short", Test("console_page::files_are_formatted_and_functions_short")),
    (
        61,
        "the pages show both nodes; one that is killed is greyed, and nothing hangs",
        Test("console_page::two_nodes_are_shown_and_one_that_is_killed_is_greyed"),
    ),
    (61, "two nodes show both, and one that left", Test("console::api::two_nodes_show_both_and_one_that_left")),
    (
        61,
        "calls of all nodes are one list",
        Test("console::nodes::calls_of_all_nodes_are_one_list_and_are_opened_at_any_node"),
    ),
    (
        61,
        "events of all nodes are one stream",
        Test("console::nodes::events_of_all_nodes_are_one_stream_that_is_limited_for_each_node"),
    ),
    (
        61,
        "a node that is killed is marked within a lease, and nothing hangs",
        Test("console::nodes::a_node_that_is_lost_is_marked_within_a_lease_and_nothing_hangs"),
    ),
];

#[test]
fn every_rule_of_the_console_has_a_test_or_a_reason() {
    check(CHECKLIST, 1..=61);
}
