//! Mistakes put back one at a time: random runs catch each within a stated number of seeds (Derecho app. A).

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::random::{Tally, run};
use crate::replica::mutation::{Mutation, with};

/// The first seed that catches the mutation, and what it says.
fn caught(mutation: Mutation) -> Option<(u64, String)> {
    (0..SEEDS_MAX).find_map(|seed| {
        let run = || with(Some(mutation), || run(seed, &mut Tally::default()));
        let fault = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return None,
            Ok(Err(fault)) => fault,
            Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
        };
        Some((seed, fault))
    })
}

const SEEDS_MAX: u64 = 20000;

/// Each mistake, and the invariant that it breaks first.
const MUTATIONS: [(Mutation, &str); 12] = [
    (Mutation::TakeOlderState, "[A1]"),
    (Mutation::ApplyAllKept, "[A1]"),
    (Mutation::ForgetKept, "[A1]"),
    (Mutation::TagWithNextView, "[A"),
    (Mutation::LeaveSessionsBehind, "[A1]"),
    (Mutation::ApplyRepeated, "[A1]"),
    (Mutation::DenyUnknown, "[A4]"),
    (Mutation::AnswerFromEarlierView, "[A5]"),
    (Mutation::LoseTooSoon, "[A7]"),
    (Mutation::DropLastHolder, "[A"),
    (Mutation::HoldAfterWedge, "[A"),
    (Mutation::AskTheSame, "[V8]"),
];

/// Mistakes of clients with several updates under way, which only the simulator has.
const SIMULATED: [Mutation; 7] = [
    Mutation::AskAfterFailures,
    Mutation::AskOutOfOrder,
    Mutation::ApplyEarly,
    Mutation::ForgetReplies,
    Mutation::SendAgainInNewSession,
    Mutation::DenySent,
    Mutation::SkipUnanswered,
];

#[test]
fn every_mutation_is_caught() {
    assert_eq!(MUTATIONS.len() + SIMULATED.len(), Mutation::ALL.len(), "each mistake has its line");
    let mut missed = Vec::new();
    for (mutation, invariant) in MUTATIONS {
        match caught(mutation) {
            // Who takes the state for lost may let others wait for ever.
            Some((seed, fault)) if fault.contains(invariant) || fault.contains("[V8]") => {
                println!("{mutation:?}: seed {seed}: {fault}");
            }
            other => missed.push((mutation, other)),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
