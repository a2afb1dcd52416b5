//! Objects on one host under the adversary: every byte arrives at every receiver, in order, and memory does not
//! change while it is read; receivers and the root die; mutations must be caught (RDMC §2, properties 2–5).

use squall_fabric::bulk::ObjectLease;
use squall_fabric::sim::{Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Core, Duration, Fabric, MirrorKey, NodeId, Region, trusted};

use super::{BufferId, CopyProgress, LocalFailure, LocalMulticast};
use crate::rdmc::mutation::{RdmcMutation, with};

const BLOCK: usize = 64;
const KEY: MirrorKey = MirrorKey(100);

/// Returns byte `i` of object `number`, which is never 0.
fn byte(number: u64, i: usize) -> u8 {
    (number.wrapping_mul(31) + i as u64 * 7) as u8 | 1
}

struct Cluster {
    world: SimWorld,
    nodes: Vec<Node>,
}

struct Node {
    fabric: SimFabric,
    core: LocalMulticast,
    prng: Prng,
    user: User,
}

enum User {
    Root {
        sizes: Vec<usize>,
        sent: usize,
        /// The buffers, and the object in each.
        buffers: Vec<(Region, BufferId, Option<u64>)>,
    },
    Receiver {
        received: u64,
        /// The copy in progress, or the lease and how long it will be kept.
        target: Option<Vec<u8>>,
        lease: Option<(ObjectLease, u64)>,
    },
}

impl Cluster {
    fn new(seed: u64, members: u32, sizes: &[usize]) -> Self {
        let world = SimWorld::new(seed, SimConfig::adversarial(seed), members);
        let ids: Vec<NodeId> = (0..members).map(NodeId).collect();
        let node = |i: u32| {
            let mut fabric = world.fabric(i);
            let mut core = LocalMulticast::new(&mut fabric, KEY, &ids, BLOCK);
            let user = if i == 0 {
                let longest = sizes.iter().max().map_or(1, |bytes| bytes.div_ceil(8).max(1));
                let buffers = (0..2).map(|_| {
                    let region = fabric.register(longest);
                    let id = core.share(&mut fabric, &region);
                    (region, id, None)
                });
                User::Root { sizes: sizes.to_vec(), sent: 0, buffers: buffers.collect() }
            } else {
                User::Receiver { received: 0, target: None, lease: None }
            };
            Node { fabric, core, prng: Prng::new(seed ^ u64::from(i) << 32), user }
        };
        let nodes = (0..members).map(node).collect();
        Self { world, nodes }
    }

    fn run(&mut self, mut strike: impl FnMut(&mut SimWorld, u64)) -> Result<(), String> {
        let until = self.world.now() + Duration::from_secs(5);
        let mut steps = 0;
        while let Some(i) = self.world.next_poll(until) {
            steps += 1;
            strike(&mut self.world, steps);
            let node = &mut self.nodes[i as usize];
            let worked = node.step().map_err(|text| format!("node {i}: {text}"))?;
            let deadline = node.is_busy().then(|| node.fabric.now() + Duration::from_micros(100));
            self.world.rest(i, worked, deadline);
        }
        Ok(())
    }

    /// Checks that all live receivers have received everything, and that the root has all its memory back.
    fn check_done(&self, objects: u64) -> Result<(), String> {
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| self.world.lives(*i as u32)) {
            let done = match &node.user {
                User::Root { .. } => node.core.finished(),
                User::Receiver { received, .. } => *received,
            };
            if done != objects {
                return Err(format!("[B1] node {i} is done with {done} of {objects} objects"));
            }
        }
        Ok(())
    }
}

impl Node {
    fn step(&mut self) -> Result<bool, String> {
        let mut events = Vec::new();
        let mut worked = self.fabric.poll(&mut |event| events.push(event)) > 0;
        events.iter().for_each(|event| self.core.handle_event(&mut self.fabric, event));
        worked |= self.core.poll(&mut self.fabric) > 0;
        worked |= match &mut self.user {
            User::Root { sizes, sent, buffers } => send(&mut self.core, sizes, sent, buffers),
            User::Receiver { received, target, lease } => {
                let user = (&mut self.core, &mut self.fabric, &mut self.prng);
                receive(user, received, target, lease)?
            }
        };
        Ok(worked)
    }

    /// Returns whether it is to be called again soon.
    fn is_busy(&self) -> bool {
        match &self.user {
            User::Root { .. } => false,
            User::Receiver { target, lease, .. } => target.is_some() || lease.is_some(),
        }
    }
}

/// Fills free buffers with the next objects, and overwrites those that remain free.
fn send(
    core: &mut LocalMulticast,
    sizes: &[usize],
    sent: &mut usize,
    buffers: &mut [(Region, BufferId, Option<u64>)],
) -> bool {
    let mut worked = false;
    for (region, id, object) in buffers.iter_mut() {
        if object.is_some_and(|number| number < core.finished()) {
            (0..region.words()).for_each(|word| region.store(word, 0));
            *object = None;
        }
        if object.is_none() && *sent < sizes.len() && core.is_ready() {
            let bytes: Vec<u8> = (0..sizes[*sent]).map(|i| byte(*sent as u64, i)).collect();
            region.copy_bytes_in(0, &bytes);
            *object = core.send(*id, bytes.len() as u64);
            assert_eq!(*object, Some(*sent as u64), "two objects fit the ring");
            *sent += 1;
            worked = true;
        }
    }
    worked
}

fn receive(
    (core, fabric, prng): (&mut LocalMulticast, &mut SimFabric, &mut Prng),
    received: &mut u64,
    target: &mut Option<Vec<u8>>,
    lease: &mut Option<(ObjectLease, u64)>,
) -> Result<bool, String> {
    if let Some((object, steps)) = lease {
        check(*received, object)?;
        if *steps > 0 {
            *steps -= 1;
            return Ok(false);
        }
        *lease = None;
        *received += 1;
        core.give_back(fabric);
        return Ok(true);
    }
    let Some(offer) = core.next() else { return Ok(false) };
    if offer.number != *received {
        return Err(format!("offered {offer:?} instead of {received}"));
    }
    if target.is_none() && prng.chance(300) {
        let attachment = core.lease(fabric);
        *lease = Some((trusted::lease(attachment, offer.bytes as usize), prng.below(5)));
        return Ok(true);
    }
    let target_bytes = target.get_or_insert_with(|| vec![0; offer.bytes as usize]);
    match core.copy(fabric, target_bytes) {
        CopyProgress::Block => return Ok(true),
        CopyProgress::Later => return Ok(false),
        CopyProgress::All => {}
    }
    check(*received, target_bytes)?;
    *target = None;
    *received += 1;
    core.give_back(fabric);
    Ok(true)
}

fn check(number: u64, bytes: &[u8]) -> Result<(), String> {
    let wrong = bytes.iter().enumerate().find(|(i, found)| **found != byte(number, *i));
    wrong.map_or(Ok(()), |(i, found)| {
        Err(format!("[B1] byte {i} of {} of object {number} is {found}", bytes.len()))
    })
}

const SIZES: [usize; 12] =
    [5 * BLOCK + 3, 0, 1, 7, 8, 9, BLOCK - 1, BLOCK, BLOCK + 1, 20 * BLOCK, 0, 3 * BLOCK];

fn run_without_faults(seed: u64) -> Result<(), String> {
    let members = 1 + (seed % 6) as u32;
    let mut cluster = Cluster::new(seed, members, &SIZES);
    cluster.run(|_, _| ())?;
    cluster.check_done(SIZES.len() as u64)
}

/// Every byte arrives at every receiver, in order, for empty objects and for one byte more than a block, and for a
/// root alone [B5] [B8].
#[test]
fn all_objects_arrive_and_all_memory_is_returned() {
    for seed in 0..200 {
        run_without_faults(seed).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
}

/// A receiver that dies at any step does not affect other members [B7].
#[test]
fn a_lost_receiver_holds_up_no_other() {
    for seed in 0..200 {
        let mut cluster = Cluster::new(seed, 4, &SIZES);
        let at = 1 + seed % 120;
        let outcome = cluster.run(|world, step| {
            if step == at {
                world.crash(1 + (seed % 3) as u32);
            }
        });
        let outcome = outcome.and_then(|()| cluster.check_done(SIZES.len() as u64));
        outcome.unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
}

/// When the root dies, receivers notice it, and what they have received is correct.
#[test]
fn a_lost_root_is_noticed() {
    for seed in 0..100 {
        let mut cluster = Cluster::new(seed, 3, &SIZES);
        let at = 1 + seed % 120;
        cluster
            .run(|world, step| {
                if step == at {
                    world.crash(0);
                }
            })
            .unwrap_or_else(|text| panic!("seed {seed}: {text}"));
        for node in &cluster.nodes[1..] {
            let done = matches!(node.user, User::Receiver { received, .. } if received == SIZES.len() as u64);
            assert!(done || node.core.failure() == Some(LocalFailure::RootLost), "seed {seed}");
        }
    }
}

/// The mutations of this part are switched on one at a time.
#[test]
fn mutations_are_caught() {
    for mutation in [RdmcMutation::ReadyUnattached, RdmcMutation::FinishWithFirst] {
        let caught = with(mutation, || (0..100).any(|seed| run_without_faults(seed).is_err()));
        assert!(caught, "{mutation:?} was not noticed");
    }
}
