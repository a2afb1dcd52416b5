//! Mutations put back one at a time (EXS fig. 2–8): random interleavings catch each within a stated number of seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pair::{EndPair, PairFault, ensure};
use super::random::{StreamRunTally, run};
use crate::stream::mutation::{StreamMutation, with};
use crate::stream::{CREDITS_MIN, StreamSettings, TransferPolicy};

/// The first seed that catches the mutation, and what it says.
fn caught(mutation: StreamMutation, seeds_max: u64) -> Option<(u64, String)> {
    (0..seeds_max).find_map(|seed| {
        let run = || with(Some(mutation), || run(seed, &mut StreamRunTally::default()));
        let fault = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => return None,
            Ok(Err(fault)) => fault,
            Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
        };
        Some((seed, fault))
    })
}

/// What mutations are, and within how many seeds they are caught.
const MUTATIONS: [(StreamMutation, u64); 12] = [
    (StreamMutation::NoResync, 100),
    (StreamMutation::AdvertiseBehindVoided, 1000),
    (StreamMutation::KeepPhaseOfDropped, 1000),
    (StreamMutation::IgnoreSequence, 100),
    (StreamMutation::IgnorePhase, 1000),
    (StreamMutation::AdvertiseOverStored, 1000),
    (StreamMutation::WriteAcrossEnd, 100),
    (StreamMutation::WaitAllOnce, 100),
    (StreamMutation::CancelAtOnce, 1000),
    (StreamMutation::EndBeforeData, 1000),
    (StreamMutation::DropRest, 100),
    (StreamMutation::CutPacket, 100),
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
fn all_at_once() -> Result<(), PairFault> {
    let mut pair = EndPair::alike(StreamSettings {
        policy: TransferPolicy::Indirect,
        credits: CREDITS_MIN,
        ..StreamSettings::default()
    });
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
        with(Some(StreamMutation::NoReserve), all_at_once).expect_err("no credit is left to return credits");
    assert!(fault.starts_with("[E6]"), "{fault}");
}
