//! Every known mistake, put back into the protocols, is caught within a stated number of seeds. A checker that has
//! never failed is not trusted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use squall_protocols::mutation::{self, Mutation};
use squall_simulator::{Scenario, scenarios};

/// Within so many seeds each mistake must be caught.
const SEEDS: u64 = 2000;

/// What catches the mistake first, a checker or an assertion of the protocol itself: all scenarios run each seed before
/// the next one.
fn caught(scenarios: &[Box<dyn Scenario>], mutation: Mutation) -> Option<String> {
    let run = |scenario: &dyn Scenario, seed: u64| {
        let found = match catch_unwind(AssertUnwindSafe(|| scenario.run(seed))) {
            Ok(outcome) => outcome.violation?.to_string(),
            Err(panic) => {
                format!("assertion: {}", panic.downcast_ref::<String>().cloned().unwrap_or_default())
            }
        };
        Some(format!("{} {seed}: {found}", scenario.name()))
    };
    mutation::with(mutation, || {
        (0..SEEDS).find_map(|seed| scenarios.iter().find_map(|scenario| run(scenario.as_ref(), seed)))
    })
}

#[test]
fn every_mistake_is_caught() {
    // Assertions of the protocol may catch a mistake first; their messages would only be noise here.
    std::panic::set_hook(Box::new(|_| ()));
    let scenarios = scenarios();
    let mut missed = Vec::new();
    for mutation in Mutation::ALL.iter().copied() {
        match caught(&scenarios, mutation) {
            Some(text) => println!("{mutation:?}: {text}"),
            None => missed.push(mutation),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not caught within {SEEDS} seeds: {missed:?}");
}
