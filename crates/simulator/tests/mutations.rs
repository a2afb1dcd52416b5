//! Every known mistake, put back into the protocols, is caught within a stated number of seeds. A checker that has
//! never failed is not trusted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use squall_protocols::mutation::{self, Mutation};
use squall_simulator::{Scenario, group, multicast, sst};

/// Within so many seeds each mistake must be caught.
const SEEDS: u64 = 2000;

/// The first seed at which a checker, or an assertion of the protocol itself, catches the mistake.
fn caught(scenario: &dyn Scenario, mutation: Mutation) -> Option<(u64, String)> {
    mutation::with(mutation, || {
        (0..SEEDS).find_map(|seed| match catch_unwind(AssertUnwindSafe(|| scenario.run(seed))) {
            Ok(outcome) => outcome.violation.map(|violation| (seed, violation.to_string())),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                Some((seed, format!("assertion: {text}")))
            }
        })
    })
}

#[test]
fn every_mistake_is_caught() {
    // Assertions of the protocol may catch a mistake first; their messages would only be noise here.
    std::panic::set_hook(Box::new(|_| ()));
    let scenarios: [&dyn Scenario; 3] = [&multicast::Multicast, &sst::Sst, &group::Groups];
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        match scenarios.iter().find_map(|scenario| caught(*scenario, mutation)) {
            Some((seed, text)) => println!("{mutation:?}: seed {seed}: {text}"),
            None => missed.push(mutation),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not caught within {SEEDS} seeds: {missed:?}");
}
