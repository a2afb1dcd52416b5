//! Mutations, one at a time: random runs catch each within a stated number of seeds (Derecho app. A).

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::random::{ReplicaRunTally, run};
use super::{readers, versions};
use crate::replica::mutation::{ReplicaMutation, with};

/// Returns the first seed that catches the mutation, and the fault.
fn caught(mutation: ReplicaMutation) -> Option<(u64, String)> {
    (0..SEEDS_MAX).find_map(|seed| {
        let run = || match mutation {
            ReplicaMutation::ReturnEarlier | ReplicaMutation::LoseDropped => readers::run(seed),
            ReplicaMutation::ContinueFromLater
            | ReplicaMutation::ReadBeforeBase
            | ReplicaMutation::ReadToNewest
            | ReplicaMutation::ReadBeyondTrim
            | ReplicaMutation::TrustEachTime
            | ReplicaMutation::ReadUnsettled => versions::run(seed),
            _ => run(seed, &mut ReplicaRunTally::default()),
        };
        let run = || with(Some(mutation), run);
        let fault = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return None,
            Ok(Err(fault)) => fault,
            Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
        };
        Some((seed, fault))
    })
}

const SEEDS_MAX: u64 = 20000;

/// Each mutation, and the invariant that it breaks first.
const MUTATIONS: [(ReplicaMutation, &str); 22] = [
    (ReplicaMutation::TakeOlderState, "[A1]"),
    (ReplicaMutation::ApplyAllKept, "[A1]"),
    (ReplicaMutation::ForgetKept, "[A1]"),
    (ReplicaMutation::TagWithNextView, "[A"),
    (ReplicaMutation::LeaveSessionsBehind, "[A1]"),
    (ReplicaMutation::ApplyRepeated, "[A1]"),
    (ReplicaMutation::DenyUnknown, "[A4]"),
    (ReplicaMutation::AnswerFromEarlierView, "[A5]"),
    (ReplicaMutation::LoseTooSoon, "[A7]"),
    (ReplicaMutation::DropLastHolder, "[A"),
    (ReplicaMutation::HoldAfterWedge, "[A"),
    (ReplicaMutation::AskTheSame, "[V8]"),
    (ReplicaMutation::RecoverWithoutSessions, "[A1]"),
    (ReplicaMutation::NumberSessionsAnew, "[A1]"),
    (ReplicaMutation::ContinueFromLater, "[A14]"),
    (ReplicaMutation::ReadBeforeBase, "[A14]"),
    (ReplicaMutation::ReadToNewest, "[A14]"),
    (ReplicaMutation::ReadBeyondTrim, "[A14]"),
    (ReplicaMutation::TrustEachTime, "[A14]"),
    (ReplicaMutation::ReadUnsettled, "[A14]"),
    (ReplicaMutation::ReturnEarlier, "[A15]"),
    (ReplicaMutation::LoseDropped, "[A15]"),
];

/// Mutations of clients with several updates in flight, and of updates that find no space, which only the simulator has.
const SIMULATED: [ReplicaMutation; 8] = [
    ReplicaMutation::AskAfterFailures,
    ReplicaMutation::AskOutOfOrder,
    ReplicaMutation::ApplyEarly,
    ReplicaMutation::ForgetReplies,
    ReplicaMutation::SendAgainInNewSession,
    ReplicaMutation::DenySent,
    ReplicaMutation::SkipUnanswered,
    ReplicaMutation::OvertakeBatch,
];

/// A unit test of the outbox breaks it and catches it.
const BY_UNIT_TEST: [ReplicaMutation; 1] = [ReplicaMutation::OvertakeElsewhere];

#[test]
fn every_mutation_is_caught() {
    let lines = MUTATIONS.len() + SIMULATED.len() + BY_UNIT_TEST.len();
    assert_eq!(lines, ReplicaMutation::ALL.len(), "each mutation has its line");
    let mut missed = Vec::new();
    for (mutation, invariant) in MUTATIONS {
        match caught(mutation) {
            // A member that considers the state lost may let others wait forever.
            Some((seed, fault)) if fault.contains(invariant) || fault.contains("[V8]") => {
                println!("{mutation:?}: seed {seed}: {fault}");
            }
            other => missed.push((mutation, other)),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
