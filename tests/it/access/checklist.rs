//! Checklist of authorization rules: each names the test that covers it, or the reason why none does yet.

use crate::coverage::Coverage::{NotYet, Test};
use crate::coverage::{Rule, check};

/// Rule number, the rule in short, and its coverage. Numbers of rules that are covered elsewhere are left out.
const CHECKLIST: &[Rule] = &[
    (1, "no credential is 401 before the body is read", Test("access::rejections::a_strangers_body_is_never_read")),
    (
        2,
        "401 names the metadata of the address",
        Test("access::rejections::every_address_challenges_with_its_own_metadata"),
    ),
    (
        3,
        "`resource` is the URL of the document without the well-known part",
        Test("access::metadata::every_address_has_a_document_that_names_it"),
    ),
    (
        4,
        "`authorization_servers` is spelt as the issuer",
        Test("authorization::tokens::a_stranger_is_told_where_to_log_in"),
    ),
    (
        5,
        "the root document follows `accept_origin_audience`",
        Test("access::metadata::the_document_of_the_whole_gateway_follows_the_audience_rule"),
    ),
    (
        6,
        "keys only: no document, no `resource_metadata`",
        Test("access::metadata::keys_alone_have_no_document_and_name_none"),
    ),
    (
        7,
        "`scope` of a 401; `offline_access` is refused in the file",
        Test("access::keys::the_file_is_refused_with_the_reason"),
    ),
    (
        8,
        "401 on every verb and address alike",
        Test("access::rejections::every_address_challenges_with_its_own_metadata"),
    ),
    (9, "a session id without a token is 401", Test("access::rejections::a_session_id_is_no_credential")),
    (
        10,
        "OPTIONS needs no token; `WWW-Authenticate` is exposed",
        Test("access::rejections::host_and_path_are_judged_before_the_credential_and_the_verb_after_it"),
    ),
    (
        10,
        "a client in a web page logs in",
        Test("authorization::web_page::a_client_in_a_web_page_logs_in_calls_and_steps_up"),
    ),
    (
        11,
        "behind nginx with TLS all URLs are those of `public_url`",
        Test("access::proxy::behind_a_tls_proxy_all_urls_are_those_of_the_client"),
    ),
    (
        12,
        "`X-Forwarded-*` of a stranger does nothing",
        Test("access::metadata::forwarded_headers_of_a_stranger_do_nothing"),
    ),
    (
        13,
        "`public_url` with a path has both document forms",
        Test("access::metadata::a_public_url_with_a_path_is_served_in_both_forms"),
    ),
    (
        13,
        "a client logs in where `public_url` has a path",
        Test("authorization::rust_client::rmcp_logs_in_and_steps_up_below_a_path"),
    ),
    (
        14,
        "`public_url` is needed beyond loopback with issuers",
        Test("access::keys::the_file_is_refused_with_the_reason"),
    ),
    (
        15,
        "a client of 2025-03-26 logs in with `legacy_metadata`",
        Test("authorization::clients::a_client_of_2025_03_26_logs_in_with_legacy_metadata"),
    ),
    (16, "two `Authorization` lines are 400", Test("access::rejections::each_fault_of_a_credential_has_its_answer")),
    (17, "`access_token` in the query is 400", Test("access::rejections::each_fault_of_a_credential_has_its_answer")),
    (18, "only the whole key is admitted", Test("access::keys::a_new_key_is_printed_with_lines_that_admit_it")),
    (
        19,
        "two hashes; a removed or expired one ends what it opened",
        Test("access::keys::keys_are_replaced_while_the_gateway_runs"),
    ),
    (
        20,
        "21 bad keys in a minute are 429, a good one passes",
        Test("access::rejections::the_twenty_first_invalid_credential_in_a_minute_is_429"),
    ),
    (
        21,
        "a good token admits the principal of issuer and subject",
        Test("authorization::tokens::a_person_calls_with_a_signed_token"),
    ),
    (
        22,
        "algorithms and kinds of keys that do not fit are refused",
        Test("issuers::tests::lies::symmetric_and_unsigned_tokens_are_refused"),
    ),
    (
        23,
        "changed tokens and missing claims are refused",
        Test("issuers::tests::lies::no_change_of_a_token_is_accepted"),
    ),
    (24, "times are judged with leeway", Test("issuers::tests::lies::claims_are_checked")),
    (
        25,
        "an audience of another server, path or group is refused",
        Test("authorization::tokens::a_token_for_another_address_is_refused"),
    ),
    (
        26,
        "an audience with other case, default port or slash is accepted",
        Test("policy::audience::only_addresses_of_the_group_are_its_audiences"),
    ),
    (
        27,
        "the origin as audience",
        Test("policy::audience::the_origin_is_an_audience_unless_it_is_refused_or_others_live_there"),
    ),
    (28, "other types of tokens and `crit` are refused", Test("issuers::tests::lies::headers_are_checked")),
    (29, "keys in the header are never used", Test("issuers::tests::lies::keys_in_the_header_are_ignored")),
    (30, "an id token is refused", Test("authorization::tokens::a_person_calls_with_a_signed_token")),
    (
        31,
        "the same `sub` from two issuers is two principals",
        Test("authorization::tokens::the_same_name_at_two_issuers_is_two_people"),
    ),
    (32, "an unknown key is fetched once for all", Test("issuers::an_unknown_key_is_fetched_once_for_all")),
    (
        33,
        "a key that is gone is refused after the fetch",
        Test("authorization::tokens::new_keys_are_learned_and_old_ones_forgotten"),
    ),
    (
        34,
        "keys away at the start are 503, which heals",
        Test("authorization::tokens::an_issuer_that_is_away_at_the_start_is_waited_for"),
    ),
    (35, "keys away later are kept for a day", Test("issuers::known_keys_outlast_their_issuer_for_a_day")),
    (
        36,
        "opaque tokens: active, inactive, endpoint away",
        Test("authorization::tokens::opaque_tokens_are_asked_about"),
    ),
    (
        37,
        "without `sub` the client is the principal",
        Test("issuers::a_client_is_the_principal_where_there_is_no_subject"),
    ),
    (38, "a token is verified once", Test("issuers::a_token_is_verified_once_until_it_expires")),
    (
        39,
        "a call with a token, rules and limits costs at most a tenth more",
        NotYet("only instructions in user space are counted (tests/instructions), where a tenth is exceeded"),
    ),
    (
        40,
        "a session of another principal or client is 404",
        Test("authorization::binding::a_session_belongs_to_a_person_and_a_program"),
    ),
    (
        41,
        "a new token of the same caller continues the session",
        Test("authorization::binding::a_session_belongs_to_a_person_and_a_program"),
    ),
    (
        42,
        "cursor, event, request state and task of another caller are unknown",
        Test("access::binding::a_cursor_of_another_caller_is_as_an_unknown_one"),
    ),
    (
        43,
        "a listening stream ends at expiry and resumes without loss",
        Test("authorization::binding::a_listening_stream_ends_with_its_token_and_resumes_without_loss"),
    ),
    (
        44,
        "a running call survives the expiry of its token",
        Test("authorization::binding::a_running_call_outlives_its_token"),
    ),
    (45, "callers on one connection are told apart", Test("access::binding::callers_on_one_connection_are_told_apart")),
    (
        52,
        "a missing scope is challenged, and clients get it",
        Test("authorization::scopes::a_missing_scope_is_challenged_with_all_that_is_needed_to_get_it"),
    ),
    (58, "no access to a group is 403", Test("access::credentials::a_key_is_good_for_its_groups_only")),
    (
        65,
        "no byte of a client's credential reaches an upstream",
        Test("authorization::scopes::no_part_of_a_token_reaches_a_server"),
    ),
];

#[test]
fn every_authorization_rule_has_a_test_or_a_reason() {
    check(CHECKLIST, (1..=45).chain([52, 58, 65]));
}
