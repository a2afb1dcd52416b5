//! Mistakes put back one at a time (EXS fig. 2–8): random interleavings catch each within a stated number of seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pair::{Fault, Pair, ensure};
use super::random::{Tally, run};
use crate::stream::mutation::{Mutation, with};
use crate::stream::{CREDITS_MIN, Policy, Settings};

/// The first seed that catches the mutation, and what it says.
fn caught(mutation: Mutation, seeds_max: u64) -> Option<(u64, String)> {
    (0..seeds_max).find_map(|seed| {
        let run = || with(Some(mutation), || run(seed, &mut Tally::default()));
        let fault = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return None,
            Ok(Err(fault)) => fault,
            Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
        };
        Some((seed, fault))
    })
}

/// What mistakes are, and within how many seeds they are caught.
const MUTATIONS: [(Mutation, u64); 12] = [
    (Mutation::NoResync, 100),
    (Mutation::AdvertiseBehindVoided, 1000),
    (Mutation::KeepPhaseOfDropped, 1000),
    (Mutation::IgnoreSequence, 100),
    (Mutation::IgnorePhase, 1000),
    (Mutation::AdvertiseOverStored, 1000),
    (Mutation::WriteAcrossEnd, 100),
    (Mutation::WaitAllOnce, 100),
    (Mutation::CancelAtOnce, 1000),
    (Mutation::EndBeforeData, 1000),
    (Mutation::DropRest, 100),
    (Mutation::CutPacket, 100),
];

#[test]
fn every_mutation_is_caught() {
    let mut missed = Vec::new();
    for (mutation, seeds_max) in MUTATIONS {
        match caught(mutation, seeds_max) {
            Some((seed, fault)) => println!("{mutation:?}: seed {seed}: {fault}"),
            None => missed.push(mutation),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// Both ends have as many sends as the other has credits, and nothing else to say, all at once.
fn all_at_once() -> Result<(), Fault> {
    let mut pair =
        Pair::alike(Settings { policy: Policy::Indirect, credits: CREDITS_MIN, ..Settings::default() });
    for i in 0..2 {
        assert!((0..=CREDITS_MIN).all(|_| pair.send(i, 1)));
        while pair.post(i)? {}
    }
    pair.calm()?;
    let hang = pair.sides.iter().map(|side| side.sends_outstanding()).sum::<usize>();
    ensure!(hang == 0, "[E6] {hang} sends hang for want of credits");
    Ok(())
}

/// [E6] Without the reserve both ends starve; random interleavings with these few sends hardly ever come there.
#[test]
fn without_reserve_both_ends_starve() {
    assert_eq!(all_at_once(), Ok(()));
    let fault =
        with(Some(Mutation::NoReserve), all_at_once).expect_err("no credit is left to return credits");
    assert!(fault.starts_with("[E6]"), "{fault}");
}
