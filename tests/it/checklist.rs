//! The checklist of wire rules, and the test that holds each; what cannot hold yet has its reason.

use Held::{By, Later};

/// How a rule is held.
enum Held {
    /// By a test of this name.
    By(&'static str),
    /// Not yet, for this reason.
    Later(&'static str),
}

const NO_UPSTREAM: &str = "needs a test with an upstream that is reached over a transport";
const NO_QUESTIONS: &str = "needs a test with an upstream that asks questions";
const ONE_UPSTREAM: &str = "needs a test with a group of several upstreams";
const NO_OAUTH: &str = "needs authorization by OAuth";

/// Number, rule in a few words, and how it is held.
const CHECKLIST: &[(u16, &str, Held)] = &[
    (
        1,
        "an enveloped POST is stateless whatever session it names",
        By("per_request::a_request_is_served_without_a_session"),
    ),
    (2, "initialize with a whole envelope is 404", By("per_request::methods_of_the_other_era_do_not_exist")),
    (
        3,
        "initialize without an envelope is a handshake",
        By("streamable::a_handshake_is_answered_with_the_revision_it_proposed"),
    ),
    (4, "an unknown proposal gets 2025-11-25", By("streamable::a_handshake_is_answered_with_the_revision_it_proposed")),
    (5, "each known proposal is echoed", By("streamable::a_handshake_is_answered_with_the_revision_it_proposed")),
    (6, "a modern header without _meta is 400 -32602", By("per_request::the_body_decides_the_era")),
    (7, "_meta without protocolVersion is 400 -32602", By("per_request::faulty_requests_are_refused_in_order")),
    (8, "_meta without clientCapabilities is 400 -32602", By("per_request::faulty_requests_are_refused_in_order")),
    (9, "_meta without clientInfo is served", By("per_request::faulty_requests_are_refused_in_order")),
    (10, "header and body versions that differ are -32020", By("per_request::faulty_requests_are_refused_in_order")),
    (11, "an unknown version in both is -32022 with data", By("per_request::faulty_requests_are_refused_in_order")),
    (12, "a missing version header is -32020", By("per_request::faulty_requests_are_refused_in_order")),
    (13, "a missing Mcp-Method is -32020", By("per_request::faulty_requests_are_refused_in_order")),
    (14, "Mcp-Method values are case-sensitive", By("per_request::faulty_requests_are_refused_in_order")),
    (15, "header names are not", By("per_request::faulty_requests_are_refused_in_order")),
    (16, "a missing Mcp-Name is -32020", By("per_request::the_name_header_mirrors_the_body")),
    (17, "Mcp-Name is trimmed", By("per_request::the_name_header_mirrors_the_body")),
    (18, "Mcp-Name may be Base64", By("per_request::the_name_header_mirrors_the_body")),
    (19, "bad Base64 is -32020", By("per_request::the_name_header_mirrors_the_body")),
    (20, "half a sentinel is literal", By("per_request::the_name_header_mirrors_the_body")),
    (21, "a header twice is 400", By("per_request::faulty_requests_are_refused_in_order")),
    (22, "errors echo the id with its type", By("streamable::answers_keep_the_type_of_the_id")),
    (23, "an unknown method is 404 or in band", By("per_request::methods_of_the_other_era_do_not_exist")),
    (24, "methods of the other era do not exist", By("per_request::methods_of_the_other_era_do_not_exist")),
    (25, "batches exist in 2025-03-26 only", By("streamable::batches_exist_in_one_revision")),
    (
        26,
        "a posted response is refused in the modern era",
        By("per_request::notifications_are_taken_and_answers_are_not"),
    ),
    (27, "broken JSON is 400 -32700", By("streamable::rubbish_is_refused_by_name")),
    (28, "a null id is refused", By("streamable::rubbish_is_refused_by_name")),
    (29, "Accept is checked, */* is fine", By("streamable::heads_that_cannot_work_are_refused")),
    (30, "Content-Type is checked", By("streamable::heads_that_cannot_work_are_refused")),
    (31, "GET and DELETE without a session are 405", By("streamable::requests_need_their_session")),
    (32, "other verbs are 405 with Allow", By("streamable::heads_that_cannot_work_are_refused")),
    (33, "a bad Origin is 403 on every verb", By("limits::strangers_are_turned_away")),
    (34, "an evil Host is 4xx, this machine's are fine", By("limits::strangers_are_turned_away")),
    (35, "the first event is endpoint", By("sse::every_handshake_revision_works_over_every_path")),
    (36, "POST is 202, the answer comes on the stream", By("sse::every_handshake_revision_works_over_every_path")),
    (37, "an unknown session is 404, a missing id 400", By("sse::messages_need_a_living_session")),
    (38, "another caller's session is 404", By("sse::a_session_belongs_to_who_opened_it")),
    (39, "closing the stream cancels what runs", By("sse::the_session_ends_with_its_stream")),
    (40, "any handshake revision works over HTTP+SSE", By("sse::every_handshake_revision_works_over_every_path")),
    (41, "session ids are visible ASCII", By("streamable::a_handshake_is_answered_with_the_revision_it_proposed")),
    (42, "no id is 400, an unknown one 404", By("streamable::requests_need_their_session")),
    (43, "after DELETE it is 404", By("streamable::deleting_a_session_ends_it")),
    (44, "what wants no answer is 202 and empty", By("streamable::what_wants_no_answer_is_accepted")),
    (45, "an unsupported version header is 400", By("streamable::the_version_header_is_checked_in_sessions")),
    (46, "an absent one is no fault", By("streamable::the_version_header_is_checked_in_sessions")),
    (47, "requests may overtake initialized", By("streamable::requests_may_overtake_the_initialized_notification")),
    (48, "progress is on its call's stream", By("streams::clients_never_hear_of_each_other")),
    (
        49,
        "questions are on their call's stream",
        By("session::questions_are_answered_once_and_withdrawn_with_their_call"),
    ),
    (50, "a change is told once", By("streams::changes_reach_the_newest_listener_once")),
    (51, "no answer on a GET stream unless it resumes", By("streams::a_resume_yields_nothing_of_other_streams")),
    (52, "a stream ends after the answer", By("streams::a_quick_answer_is_json_and_a_chatty_one_is_a_stream")),
    (53, "going away is not cancelling", By("streams::a_client_that_goes_away_has_not_cancelled")),
    (54, "event ids are unique in the session", By("streams::event_ids_are_unique_and_name_their_stream")),
    (55, "a resume yields later events of its stream", By("streams::a_broken_stream_is_resumed_where_it_broke")),
    (56, "a resume by another caller is 404", By("streamable::a_session_belongs_to_who_opened_it")),
    (57, "only 2025-11-25 is primed", By("streams::a_quick_answer_is_json_and_a_chatty_one_is_a_stream")),
    (58, "early close only after an id and retry", By("streams::a_quick_answer_is_json_and_a_chatty_one_is_a_stream")),
    (59, "as a client we wait for retry", By("strict::a_stream_that_was_cut_is_resumed")),
    (60, "as a client we open a new session after 404", By("strict::a_session_that_was_lost_is_opened_anew")),
    (61, "as a client we resume POST streams", By("strict::a_stream_that_was_cut_is_resumed")),
    (62, "as a client we tolerate 405", By("strict::the_session_is_named_on_every_request")),
    (63, "a second initialize is 400", By("streamable::a_second_handshake_in_a_session_is_refused")),
    (64, "a bad Last-Event-ID is 400, not an empty stream", By("streams::ids_that_resume_nothing_are_refused")),
    (65, "a session id is no credential", By("streamable::a_session_belongs_to_who_opened_it")),
    (66, "every result has resultType", By("per_request::every_result_says_what_it_is_and_how_long_it_holds")),
    (67, "discovery is whole", By("per_request::discovery_tells_the_truth")),
    (68, "what is advertised is served", By("per_request::discovery_tells_the_truth")),
    (69, "cache hints where they belong", By("per_request::every_result_says_what_it_is_and_how_long_it_holds")),
    (70, "none on input_required", Later(NO_QUESTIONS)),
    (71, "pages share a scope", Later(ONE_UPSTREAM)),
    (72, "private results are not shared", Later(ONE_UPSTREAM)),
    (73, "retries are not cached", Later(NO_QUESTIONS)),
    (74, "lists have a stable order", By("per_request::lists_come_in_the_same_order_every_time")),
    (75, "an empty cursor is a cursor", By("per_request::missing_things_are_invalid_params")),
    (76, "a bad cursor is -32602", By("per_request::missing_things_are_invalid_params")),
    (77, "a missing resource is -32602", By("per_request::missing_things_are_invalid_params")),
    (78, "-32042 never reaches a modern client", By("bridge::held::a_server_that_needs_a_visit_first_is_called_again")),
    (79, "no level, no log messages", By("per_request::logs_come_only_when_a_level_is_named")),
    (80, "log messages respect the level", By("per_request::logs_come_only_when_a_level_is_named")),
    (81, "a bad level is -32602", By("per_request::faulty_requests_are_refused_in_order")),
    (82, "modern frames have no id", By("per_request::a_stream_has_no_ids_and_ends_with_the_answer")),
    (83, "no request to a modern client", By("per_request::a_stream_has_no_ids_and_ends_with_the_answer")),
    (84, "closing cancels, as a stream and as JSON", By("per_request::closing_the_stream_gives_the_call_up")),
    (85, "nothing follows a cancellation on stdio", By("stdio::the_per_request_era_works")),
    (86, "a posted notification is 202 and harmless", By("per_request::notifications_are_taken_and_answers_are_not")),
    (87, "a missing capability is -32021", Later(NO_QUESTIONS)),
    (88, "streams are not buffered and are kept alive", By("streams::quiet_streams_are_kept_alive")),
    (89, "a missing Mcp-Param is -32020", By("per_request::annotated_arguments_are_mirrored")),
    (90, "no argument, no header", By("per_request::annotated_arguments_are_mirrored")),
    (91, "42 equals 42.0", By("per_request::annotated_arguments_are_mirrored")),
    (92, "nested properties are mirrored", By("dialect::annotations_are_found_and_judged")),
    (93, "bad annotations drop the tool", By("conformance::our_client_passes_what_is_not_listed")),
    (94, "we emit Mcp-Param", By("conformance::our_client_passes_what_is_not_listed")),
    (95, "odd values are Base64", By("dialect::values_are_encoded_only_where_they_must_be")),
    (96, "-32020 from upstream refreshes the list", Later(NO_UPSTREAM)),
    (97, "an unknown Mcp-Param is no fault", By("per_request::annotated_arguments_are_mirrored")),
    (98, "mirrored headers mean nothing in a session", By("streamable::mirrored_headers_mean_nothing_in_a_session")),
    (
        99,
        "a bad requestState is -32602",
        By("bridge::held::states_that_are_not_for_this_are_refused_and_disturb_nothing"),
    ),
    (100, "input_required from three methods only", Later(NO_QUESTIONS)),
    (101, "no undeclared question", By("groups::messages::who_cannot_be_asked_is_not")),
    (102, "a missing answer is asked again", By("bridge::held::what_is_not_answered_is_asked_again")),
    (103, "extra answers are ignored", Later(NO_QUESTIONS)),
    (104, "requestState is echoed exactly", By("conformance::our_client_passes_what_is_not_listed")),
    (105, "parallel calls keep separate states", By("conformance::our_client_passes_what_is_not_listed")),
    (
        106,
        "listening is acknowledged first, with the id",
        By("per_request::listening_is_acknowledged_first_and_ended_last"),
    ),
    (107, "only what was asked for", By("per_request::listening_is_acknowledged_first_and_ended_last")),
    (
        108,
        "what is not honoured is not acknowledged",
        By("per_request::listening_is_acknowledged_first_and_ended_last"),
    ),
    (109, "a stop sends the result first", By("per_request::listening_is_acknowledged_first_and_ended_last")),
    (110, "no progress or logs on it", By("per_request::listening_is_acknowledged_first_and_ended_last")),
    (
        111,
        "a lost upstream listen heals",
        By("groups::failure::what_was_subscribed_to_is_again_when_an_upstream_comes_back"),
    ),
    (112, "an old client is asked for a new server", By("bridge::every_client_meets_every_server")),
    (113, "2025-06-18 gets its own form of elicitation", Later(NO_QUESTIONS)),
    (114, "url elicitation has an id in 2025-11-25", By("bridge::every_client_meets_every_server")),
    (115, "a refused sampling fails the call", Later(NO_QUESTIONS)),
    (
        116,
        "a held call goes on",
        By("bridge::held::one_question_after_another_and_progress_under_the_token_of_each_round"),
    ),
    (117, "an abandoned one ends", By("bridge::held::a_call_that_its_client_leaves_ends_properly")),
    (118, "an unsolicited roots/list is answered", Later(NO_QUESTIONS)),
    (119, "-32042 becomes input_required", By("bridge::held::a_server_that_needs_a_visit_first_is_called_again")),
    (120, "structured content is wrapped or dropped", By("dialect::structured_content")),
    (121, "links and audio are converted", By("dialect::content_kinds")),
    (122, "modern members never reach old clients", By("streamable::every_revision_gets_the_shapes_that_it_knows")),
    (123, "setLevel becomes a level per call", By("streams::log_messages_follow_the_chosen_level")),
    (124, "subscribe yields updates", By("streams::subscriptions_are_heard_by_those_who_asked")),
    (
        125,
        "a child that exits on a probe is started again",
        By("children::one_that_ends_when_it_is_probed_is_started_again"),
    ),
    (126, "4xx falls back, 5xx does not", By("outbound::refusals_are_explained")),
    (127, "discovery of old versions only is a handshake", By("dialect::answers_to_a_probe_are_told_apart")),
    (
        128,
        "the same name at two upstreams",
        By("groups::aggregation::everything_is_listed_in_order_and_answers_under_its_name"),
    ),
    (129, "merged pages have no gaps", By("groups::catalog::a_list_is_walked_in_pages")),
    (130, "tokens and ids of two clients never cross", By("streams::clients_never_hear_of_each_other")),
    (131, "an inbound token never leaves", Later(NO_UPSTREAM)),
    (132, "a wrong audience is 401", Later(NO_OAUTH)),
    (133, "401 names the metadata", Later(NO_OAUTH)),
    (134, "a missing scope is 403", Later(NO_OAUTH)),
    (135, "an external $ref is not fetched", By("conformance::our_client_passes_what_is_not_listed")),
    (136, "private addresses are not fetched", Later(NO_UPSTREAM)),
    (137, "endpoint of another origin is refused", By("upstream::messages_stay_within_the_origin")),
    (138, "line ends inject nothing", By("limits::text_from_outside_stays_in_its_place")),
];

/// Every rule is on the list once, and each has a test or a reason. `tests/tidy.rs` makes sure that
/// the tests exist.
#[test]
fn every_rule_is_held_or_has_a_reason() {
    let numbers: Vec<u16> = CHECKLIST.iter().map(|(number, _, _)| *number).collect();
    assert_eq!(numbers, (1..=138).collect::<Vec<_>>());
    let mut later = 0;
    for (number, rule, held) in CHECKLIST {
        match held {
            By(test) => assert!(test.contains("::"), "{number}"),
            Later(reason) => {
                later += 1;
                println!("{number} {rule}: {reason}");
            }
        }
    }
    println!("{} of {} rules are held by a test", CHECKLIST.len() - later, CHECKLIST.len());
}
