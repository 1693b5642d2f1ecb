//! Checklists of rules: what a rule is covered by, and what holds for every checklist.

/// Whether a test covers a rule.
pub enum Coverage {
    /// Module path and name of the test. `tests/tidy.rs` checks that it exists there.
    Test(&'static str),
    /// The command that measures it; timing and instructions are no matter of these tests.
    Measured(&'static str),
    /// Why no test covers the rule yet.
    NotYet(&'static str),
}

/// Rule number, the rule in short, and its coverage. A rule of several parts stands once for each.
pub type Rule = (u16, &'static str, Coverage);

/// The rules are in order, their numbers are the expected ones, and each has a test or a reason.
pub fn check(checklist: &[Rule], expected: impl IntoIterator<Item = u16>) {
    let mut numbers: Vec<u16> = checklist.iter().map(|(number, ..)| *number).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    numbers.dedup();
    assert_eq!(numbers, expected.into_iter().collect::<Vec<_>>());
    for (number, rule, coverage) in checklist {
        match coverage {
            Coverage::Measured(command) => assert!(command.starts_with("just "), "{number} {rule}: {command}"),
            Coverage::Test(test) => assert!(test.contains("::"), "{number} {rule}: {test} has no module"),
            Coverage::NotYet(reason) => {
                assert!(!reason.is_empty(), "{number} {rule} has no reason");
                println!("{number} {rule}: {reason}");
            }
        }
    }
}
