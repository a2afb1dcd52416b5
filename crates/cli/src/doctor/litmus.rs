//! The litmus tests of the axioms F1 to F4, on a device that writes to itself: those of the conformance suite.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::OnceLock;
use std::time::Instant;

use serde::Serialize;
use squall::config::VerbsSettings;
use squall_fabric::NodeId;
use squall_fabric::conformance::{Harness, axioms};
use squall_transports::verbs::VerbsFabric;

/// What one test found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AxiomReport {
    pub(crate) name: &'static str,
    pub(crate) seconds: f64,
    /// What was seen that must not be.
    pub(crate) failure: Option<String>,
}

/// Runs the tests on the device that `settings` name. To be called once.
pub(crate) fn run(settings: &VerbsSettings) -> Vec<AxiomReport> {
    DEVICE.set(settings.clone()).expect("one device is examined");
    let mut tests = axioms::<OneDevice>();
    tests.retain(|(name, _)| AXIOMS.iter().any(|axiom| name.starts_with(axiom)));
    // A failed test is a panic, which is reported in words.
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let reports = tests.into_iter().map(|(name, test)| report(name, test)).collect();
    set_hook(hook);
    reports
}

fn report(name: &'static str, test: fn()) -> AxiomReport {
    let begun = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(test));
    let words = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(panic) => panic.downcast_ref::<&str>().map_or_else(|| "it failed".into(), ToString::to_string),
    };
    AxiomReport { name, seconds: begun.elapsed().as_secs_f64(), failure: outcome.err().map(words) }
}

/// The axioms about order and visibility, which depend on the device and its settings.
const AXIOMS: [&str; 4] = ["f1_", "f2_", "f3_", "f4_"];

/// The device under test.
static DEVICE: OnceLock<VerbsSettings> = OnceLock::new();

/// Nodes that all use this device, joined by streams over the loopback interface.
struct OneDevice {
    nodes: Vec<Option<VerbsFabric>>,
}

impl Harness for OneDevice {
    type Fabric = VerbsFabric;

    fn new(nodes: u32) -> Self {
        let settings = DEVICE.get().expect("set before the tests run");
        let node = |(node, streams)| {
            let fabric = VerbsFabric::new(NodeId(node), streams, settings);
            Some(fabric.unwrap_or_else(|error| panic!("{error}")))
        };
        Self { nodes: (0..).zip(mesh(nodes)).map(node).collect() }
    }

    fn node(&mut self, i: u32) -> &mut VerbsFabric {
        self.nodes[i as usize].as_mut().expect("it lives")
    }

    fn step(&mut self) {
        // Devices in software need the processor, too.
        std::thread::yield_now();
    }

    fn kill(&mut self, i: u32) {
        self.nodes[i as usize] = None;
    }
}

/// For each of `nodes` nodes one stream to each other.
fn mesh(nodes: u32) -> Vec<Vec<(NodeId, TcpStream)>> {
    let mut streams: Vec<Vec<_>> = (0..nodes).map(|_| Vec::new()).collect();
    for a in 0..nodes {
        for b in a + 1..nodes {
            let (ours, theirs) = pair().unwrap_or_else(|error| panic!("no stream to this process: {error}"));
            streams[a as usize].push((NodeId(b), ours));
            streams[b as usize].push((NodeId(a), theirs));
        }
    }
    streams
}

fn pair() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    Ok((ours, listener.accept()?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_test_is_reported_in_words() {
        let failed = report("f1_order", || panic!("word {} before word {}", 2, 1));
        assert_eq!(failed.failure.as_deref(), Some("word 2 before word 1"));
        assert_eq!(report("f1_order", || ()).failure, None);
    }

    #[test]
    fn order_and_visibility_are_tested() {
        for axiom in AXIOMS {
            assert!(axioms::<OneDevice>().iter().any(|(name, _)| name.starts_with(axiom)), "{axiom}");
        }
    }
}
