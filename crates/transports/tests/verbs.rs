//! The verbs backend on a real or software RDMA device: the conformance suite of all axioms, and tests of
//! what is specific to verbs.
//!
//! Without a device nothing is tested, and this program says so; `tools/rdma-vm` runs it in a virtual machine
//! that has devices:
//!
//! ```text cargo test -p squall-transports --test verbs --no-run tools/rdma-vm --nodes 4 --
//! target/debug/deps/verbs-… ```
//!
//! Arguments: names, or parts of names, of the tests to run; `--list`. Nodes use the devices in turn.

#[path = "peers/backend.rs"]
mod backend;
#[path = "composite/cluster.rs"]
mod cluster;
#[path = "verbs/fences.rs"]
mod fences;
#[path = "verbs/harness.rs"]
mod harness;
#[path = "peers/mixture.rs"]
mod mixture;
#[path = "verbs/nodes.rs"]
mod nodes;
#[path = "verbs/parking.rs"]
mod parking;
#[path = "verbs/peers.rs"]
mod peers;
#[path = "peers/scenes.rs"]
mod scenes;
#[path = "verbs/shortage.rs"]
mod shortage;
#[path = "verbs/turnover.rs"]
mod turnover;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use squall_fabric::NodeId;
use squall_fabric::conformance::axioms;
use squall_transports::verbs::{VerbsError, VerbsFabric, VerbsSettings};

use backend::Backend;
use harness::VerbsHarness;
use squall_transports::composite::{CompositeFabric, CompositeSettings};

/// Shared memory between nodes 0 and 2, RDMA between all others, each on a device that its settings name.
struct Mixture;

impl cluster::NodeParts for Mixture {
    fn settings(node: u32) -> CompositeSettings {
        let verbs = Some(harness::settings(node as usize));
        CompositeSettings { shm: node.is_multiple_of(2), verbs, relinking: None }
    }
}

/// Returns the device of a node: each has one.
fn device_of(node: NodeId) -> mixture::NodeDevice {
    Some(harness::settings(node.0 as usize))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, port] = arguments.as_slice()
        && flag == peers::CHILD
    {
        peers::push_forever(port);
    }
    let wanted = names(&arguments);
    let alone = axioms::<VerbsHarness>().into_iter().chain(OWN);
    let alone = alone.chain(peer_scenes::<VerbsFabric>());
    let mut tests: Vec<_> = alone.map(|(name, test)| (name.to_owned(), test)).collect();
    let mixed = axioms::<cluster::CompositeNodes<Mixture>>().into_iter();
    let mixed = mixed.chain(peer_scenes::<CompositeFabric>());
    tests.extend(mixed.map(|(name, test)| (format!("mixture_{name}"), test)));
    tests.retain(|(name, _)| wanted.is_empty() || wanted.iter().any(|part| name.contains(part)));
    if arguments.iter().any(|argument| argument == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if let Some(reason) = no_device() {
        println!("SKIPPED: the verbs backend is NOT TESTED here, because {reason}");
        println!("SKIPPED: run this program with tools/rdma-vm, which provides software RDMA");
        return ExitCode::SUCCESS;
    }
    run(&tests)
}

/// Returns the parts of test names among the arguments. Skips the flags of cargo's own test programs, some of
/// which have a value.
fn names(arguments: &[String]) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--test-threads" | "--skip" | "--format" | "--color" | "--logfile" => drop(rest.next()),
            flag if flag.starts_with('-') => {}
            name => names.push(name),
        }
    }
    names
}

/// Returns why there is no device to test on; `None` if there is one.
fn no_device() -> Option<String> {
    match VerbsFabric::new(NodeId(0), Vec::<(NodeId, std::net::TcpStream)>::new(), &VerbsSettings::default())
    {
        Ok(fabric) => {
            println!("the first device is {}", fabric.device());
            None
        }
        Err(error @ (VerbsError::LibraryMissing { .. } | VerbsError::NoDevice { .. })) => {
            Some(error.to_string())
        }
        Err(error) => panic!("{error}"),
    }
}

fn run(tests: &[(String, fn())]) -> ExitCode {
    let begun = Instant::now();
    let mut failed = Vec::new();
    for (name, test) in tests {
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(test));
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {verdict} ({:.2} s)", begun.elapsed().as_secs_f64());
        if outcome.is_err() {
            failed.push(name);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{} passed, {} failed in {seconds:.1} s", tests.len() - failed.len(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The tests of what is specific to verbs.
const OWN: [(&str, fn()); 18] = [
    ("a_stolen_grant_is_refused", fences::a_stolen_grant_is_refused),
    ("one_grant_of_two_is_revoked", fences::one_grant_of_two_is_revoked),
    ("a_new_grant_revives_the_connection", fences::a_new_grant_revives_the_connection),
    ("a_freeze_does_not_disturb_other_mirrors", fences::a_freeze_does_not_disturb_other_mirrors),
    ("channels_can_be_reopened", fences::channels_can_be_reopened),
    ("a_write_of_several_messages_lands_completely", fences::a_write_of_several_messages_lands_completely),
    ("posts_share_doorbells_and_completions", fences::posts_share_doorbells_and_completions),
    ("pushes_wake_a_sleeper", parking::pushes_wake_a_sleeper),
    ("writes_and_sends_wake_a_sleeper", parking::writes_and_sends_wake_a_sleeper),
    ("only_a_waker_ends_a_quiet_sleep", parking::only_a_waker_ends_a_quiet_sleep),
    ("a_killed_process_is_detected", peers::a_killed_process_is_detected),
    ("a_cut_wire_is_detected", peers::a_cut_wire_is_detected),
    ("a_silent_joiner_delays_no_one", peers::a_silent_joiner_delays_no_one),
    (
        "a_lack_of_lockable_memory_breaks_the_connection",
        shortage::a_lack_of_lockable_memory_breaks_the_connection,
    ),
    ("turnover_leaks_nothing", turnover::turnover_leaks_nothing),
    ("garbage_on_the_control_stream_is_a_loss", peers::garbage_on_the_control_stream_is_a_loss),
    ("an_iwarp_device_is_refused", peers::an_iwarp_device_is_refused),
    ("the_device_of_the_streams_is_chosen", peers::the_device_of_the_streams_is_chosen),
];

/// Returns the tests of peers that are added later and of peers that are removed.
fn peer_scenes<F: Backend>() -> Vec<(&'static str, fn())> {
    macro_rules! named {
        ($($scene:ident,)*) => { vec![$((stringify!($scene), scenes::$scene::<F> as fn())),*] };
    }
    scenes::each!(named)
}
