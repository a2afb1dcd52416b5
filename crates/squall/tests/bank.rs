//! The example `bank` with real processes: accounts in several shards, transfers between them, and members that are killed (RamCast §2.2).

#[path = "../examples/bank/bank"]
mod bank {
    pub(crate) mod branches;
    pub(crate) mod ledger;
    pub(crate) mod teller;
}
#[path = "../../transports/tests/patience/mod.rs"]
mod patience;

use std::process::Command;
use std::time::Duration;

use bank::branches::{Disturbance, ROLE, configuration};
use patience::patient;
use squall::config::Transport;

/// Not a test by itself: what a member does.
#[test]
fn the_member() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (config, joins) = configuration(&role);
    // The test harness has begun a line.
    println!();
    if let Err(error) = bank::teller::run(config, joins) {
        panic!("{error}");
    }
}

fn the_total_never_changes(transport: Transport, duration: Duration, stops: bool) {
    let duration = patient(duration);
    let program = std::env::current_exe().unwrap();
    let command = || {
        let mut command = Command::new(&program);
        command.args(["--exact", "the_member", "--nocapture"]);
        command
    };
    let report = bank::branches::run(Disturbance { transport, duration, stops }, command);
    println!("{transport:?}: {report:?}");
    assert!(report.kills >= 4 && report.paid > 0 && report.done >= report.paid, "{report:?}");
}

#[test]
fn the_total_never_changes_over_shm() {
    the_total_never_changes(Transport::Shm, Duration::from_secs(6), false);
}

#[test]
fn the_total_never_changes_over_tcp() {
    the_total_never_changes(Transport::Tcp, Duration::from_secs(6), false);
}

/// The long form: 10 minutes of kills and stops on each transport (`.ci/long bank`).
#[test]
#[ignore = "it takes 20 minutes"]
fn the_total_never_changes_for_long() {
    for transport in [Transport::Shm, Transport::Tcp] {
        the_total_never_changes(transport, Duration::from_secs(600), true);
    }
}
