//! The simulated fabric as a backend of the conformance suite.

use std::cell::RefCell;

use squall_fabric::Duration;
use squall_fabric::conformance::Harness;
use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};

/// A simulated cluster whose time passes between polls, event by event or in leaps.
pub(crate) struct SimCluster {
    world: SimWorld,
    nodes: Vec<SimFabric>,
}

impl SimCluster {
    pub(crate) fn new(seed: u64, config: SimConfig, nodes: u32) -> Self {
        let world = SimWorld::new(seed, config, nodes);
        let nodes = (0..nodes).map(|i| world.fabric(i)).collect();
        Self { world, nodes }
    }

    /// Usually performs one event, so that the suite looks between any two; sometimes all events of up to a
    /// millisecond.
    fn step(&mut self) {
        let leap = self.world.draw(|prng| if prng.chance(900) { 0 } else { prng.below(1_000_000) });
        let limit = self.world.now() + Duration::from_millis(1);
        match self.world.next_event_at() {
            Some(at) if leap == 0 && at <= limit => assert!(self.world.step(), "there is an event"),
            Some(at) if at <= limit => self.world.advance_to(self.world.now() + Duration::from_nanos(leap)),
            _ => self.world.advance_to(limit),
        }
    }
}

/// The cost model, without an adversary.
#[allow(dead_code, reason = "not every test binary needs it")]
pub(crate) struct HardwareCluster(SimCluster);

impl Harness for HardwareCluster {
    type Fabric = SimFabric;

    fn new(nodes: u32) -> Self {
        Self(SimCluster::new(1, SimConfig::hardware(), nodes))
    }
    fn node(&mut self, i: u32) -> &mut SimFabric {
        &mut self.0.nodes[i as usize]
    }
    fn step(&mut self) {
        self.0.step();
    }
    fn kill(&mut self, i: u32) {
        self.0.world.crash(i);
    }
}

thread_local! {
    /// The next seed, and the configuration if it is not the seed's own.
    static NEXT: RefCell<(u64, Option<SimConfig>)> = const { RefCell::new((0, None)) };
}

/// A cluster with an adversary; each cluster of a thread has the next seed.
pub(crate) struct AdverseCluster(SimCluster);

impl AdverseCluster {
    /// Gives the next clusters of this thread the seeds from `seed` on, and the adversaries of these seeds.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub(crate) fn seed(seed: u64) {
        NEXT.set((seed, None));
    }

    /// Gives the next clusters of this thread the seeds from `seed` on, and this configuration.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub(crate) fn configure(seed: u64, config: SimConfig) {
        NEXT.set((seed, Some(config)));
    }
}

impl Harness for AdverseCluster {
    type Fabric = SimFabric;

    fn new(nodes: u32) -> Self {
        let (seed, config) = NEXT.take();
        NEXT.set((seed + 1, config.clone()));
        Self(SimCluster::new(seed, config.unwrap_or_else(|| SimConfig::adversarial(seed)), nodes))
    }
    fn node(&mut self, i: u32) -> &mut SimFabric {
        &mut self.0.nodes[i as usize]
    }
    fn step(&mut self) {
        self.0.step();
    }
    fn kill(&mut self, i: u32) {
        self.0.world.crash(i);
    }
}
