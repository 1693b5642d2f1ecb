//! Checklist of authorization rules that are about what callers may do: each names the test that covers it.

use crate::coverage::Coverage::Test;
use crate::coverage::{Rule, check};

const CHECKLIST: &[Rule] = &[
    (
        46,
        "a hidden tool is not listed and answers as an unknown one",
        Test("rules::visibility::hidden_targets_answer_as_unknown_ones_do"),
    ),
    (47, "deny beats allow in any order", Test("policy::rules::properties::deny_wins_in_any_order")),
    (
        48,
        "a rule follows the server and its own name",
        Test("rules::visibility::a_rule_follows_the_server_and_its_own_name"),
    ),
    (
        49,
        "a template and a concrete URI are judged alike",
        Test("rules::visibility::a_template_and_its_expansions_are_judged_alike"),
    ),
    (
        50,
        "completion, subscribe and listen follow their target",
        Test("rules::visibility::completion_subscription_and_listening_follow_their_target"),
    ),
    (51, "list and call never disagree", Test("policy::rules::properties::list_and_call_never_disagree")),
    (
        52,
        "a missing scope is 403 with all scopes, before the server is called",
        Test("rules::step_up::a_missing_scope_is_challenged_before_the_server_is_called"),
    ),
    (
        53,
        "a scope that contains the needed one counts",
        Test("rules::step_up::a_scope_that_contains_the_needed_one_counts"),
    ),
    (
        54,
        "older clients, stdio and tokens get the error in band",
        Test("rules::step_up::clients_and_credentials_that_cannot_step_up_get_the_error_in_the_response"),
    ),
    (55, "conditions on arguments", Test("policy::rules::arguments::tests::conditions_on_arguments")),
    (
        56,
        "changed rules and roles give a new view and list_changed",
        Test("rules::changes::reloaded_rules_hold_at_once_and_are_told_to_those_they_concern"),
    ),
    (57, "annotations and unverified addresses grant nothing", Test("rules::visibility::annotations_grant_nothing")),
    (
        58,
        "a forbidden group is 403, an unknown one 404 after authentication",
        Test("rules::visibility::a_group_without_anything_for_the_caller_is_forbidden"),
    ),
    (
        97,
        "rialto check --as agrees with what a client sees",
        Test("rules::check::check_agrees_with_what_a_client_sees"),
    ),
];

#[test]
fn every_authorization_rule_has_a_test() {
    check(CHECKLIST, (46..=58).chain([97]));
}
