//! `squall simulate --require-coverage` without the rest of `squall`, which would have to be built with counters, too.
//!
//! ```text
//! squall-coverage                            prints the names of the scenarios
//! squall-coverage SCENARIO SEEDS             runs the first seeds; fails if one breaks an invariant, or the scenario's promises are not kept
//! squall-coverage --update SCENARIO SEEDS    promises in the source tree what these runs reach
//! ```
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::process::ExitCode;

use squall_simulator::coverage::{self, Coverage};
use squall_simulator::{Scenario, scenario, scenarios, sweep};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (updates, arguments) = match &arguments[..] {
        [option, rest @ ..] if option == "--update" => (true, rest),
        all => (false, all),
    };
    let run = match arguments {
        [] => {
            scenarios().iter().for_each(|scenario| println!("{}", scenario.name()));
            return ExitCode::SUCCESS;
        }
        [name, seeds] => scenario(name).zip(seeds.parse().ok()),
        _ => None,
    };
    let Some((scenario, seeds)) = run else {
        eprintln!("usage: squall-coverage [[--update] SCENARIO SEEDS]");
        return ExitCode::from(2);
    };
    if !coverage::IS_ON {
        eprintln!("this build does not count what runs reach: build it with --features coverage");
        return ExitCode::from(2);
    }
    check(scenario.as_ref(), seeds, updates)
}

fn check(scenario: &dyn Scenario, seeds: u64, updates: bool) -> ExitCode {
    let summary = sweep(scenario, 0..seeds, 1, |_, _| true);
    println!("{}: {} seeds, {} deliveries", scenario.name(), summary.seeds, summary.delivered);
    let mut faults = summary.violations(scenario);
    if !updates {
        faults.extend(summary.unreached(scenario));
    } else if faults.is_empty() {
        update(scenario.name(), &summary.coverage).expect("the source tree can be written");
    }
    faults.iter().for_each(|fault| println!("{fault}"));
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Rewrites the section of a scenario, one process at a time.
fn update(scenario: &str, reached: &Coverage) -> io::Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/coverage/promises.txt");
    let mut file = File::options().read(true).write(true).open(path)?;
    file.lock()?;
    let mut snapshot = String::new();
    file.read_to_string(&mut snapshot)?;
    let snapshot = coverage::updated(&snapshot, scenario, reached);
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(snapshot.as_bytes())
}
