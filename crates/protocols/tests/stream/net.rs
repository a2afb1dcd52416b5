//! Two sockets with their users on a simulated fabric (EXS §IV).

use squall_fabric::sim::{Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Channel, Core, Duration, Fabric, Instant, NodeId};
use squall_protocols::stream::{
    CREDITS_MIN, SocketCore, SocketFailure, SocketKind, StreamSettings, TransferPolicy,
};

use crate::user::{SocketUser, UserPlan};

/// Two nodes.
pub(crate) struct SocketNet {
    pub(crate) world: SimWorld,
    pub(crate) nodes: Vec<SocketNode>,
}

/// A node with one socket and its user.
pub(crate) struct SocketNode {
    pub(crate) fabric: SimFabric,
    pub(crate) socket: SocketCore,
    pub(crate) user: SocketUser,
}

impl SocketNet {
    pub(crate) fn new(
        seed: u64,
        config: SimConfig,
        settings: [StreamSettings; 2],
        plans: [UserPlan; 2],
    ) -> Self {
        let world = SimWorld::new(seed, config, 2);
        let nodes = (0..2).zip(settings).zip(plans).map(|((i, settings), plan)| {
            let mut fabric = world.fabric(i);
            let socket =
                SocketCore::new(&mut fabric, NodeId(1 - i), Channel(1), settings).expect("good settings");
            let user = SocketUser::new(u64::from(i), plan, &mut fabric, seed);
            SocketNode { fabric, socket, user }
        });
        let nodes = nodes.collect();
        Self { world, nodes }
    }

    /// Lets nodes take turns until the living ones are done; calls `look` before each turn.
    ///
    /// # Panics
    /// If the run takes too long.
    pub(crate) fn run(&mut self, mut look: impl FnMut(&mut Self, u32)) {
        let until = Instant::from_nanos(0) + PATIENCE;
        while let Some(i) = self.world.next_poll(until) {
            look(self, i);
            self.step(i);
            if self.living().all(|node| node.user.is_done()) {
                return;
            }
        }
        let sockets: Vec<_> = self.living().map(|node| &node.socket).collect();
        panic!("nothing ends: {sockets:?}");
    }

    /// Returns the nodes that have not crashed.
    pub(crate) fn living(&self) -> impl Iterator<Item = &SocketNode> {
        (0..2).filter(|i| self.world.lives(*i)).map(|i| &self.nodes[i as usize])
    }

    /// Checks that everything that one end knows to be placed, the other has received, whatever happened since.
    pub(crate) fn assert_nothing_acknowledged_is_lost(&self) {
        for i in 0..2 {
            let (own, other) = (&self.nodes[i], &self.nodes[1 - i]);
            let has_given_up = own.user.closed == Some(Some(SocketFailure::Aborted));
            if self.world.lives(i as u32) && !has_given_up {
                let (received, acknowledged) = (own.user.received(), other.user.acknowledged());
                assert!(received >= acknowledged, "{acknowledged} were acknowledged, {received} received");
            }
        }
    }

    /// Checks that both ends are closed in order and have everything that the other sent [E8].
    pub(crate) fn assert_complete(&self) {
        for (own, other) in [(0, 1), (1, 0)].map(|(i, j)| (&self.nodes[i].user, &self.nodes[j].user)) {
            assert_eq!(own.closed, Some(None), "a clean end");
            assert_eq!((own.got, own.placed), (other.sent, own.sent));
        }
    }

    fn step(&mut self, i: u32) {
        let others_packets = self.nodes[1 - i as usize].user.packets.clone();
        let SocketNode { fabric, socket, user } = &mut self.nodes[i as usize];
        let mut events = Vec::new();
        let mut work = fabric.poll(&mut |event| events.push(event));
        events.iter().for_each(|event| socket.handle_event(fabric, event));
        let copied = socket.statistics().copied_bytes;
        work += user.act(socket, fabric, &others_packets);
        work += socket.poll(fabric);
        fabric.charge_copy(socket.statistics().copied_bytes - copied);
        work += user.act(socket, fabric, &others_packets);
        // Before the connection is open, nothing happens that the user has to see soon.
        let pause_us = if user.is_connected { 20 } else { 1000 };
        let look_again = (!user.is_done()).then(|| fabric.now() + Duration::from_micros(pause_us));
        let deadline = [look_again, Core::<SimFabric>::next_deadline(socket)].into_iter().flatten().min();
        self.world.rest(i, work > 0, deadline);
    }
}

/// Returns random settings of both ends: all kinds, policies and sizes.
pub(crate) fn settings(prng: &mut Prng) -> [StreamSettings; 2] {
    let kind = if prng.chance(250) { SocketKind::Packets } else { SocketKind::Stream };
    let policy = match prng.below(6) {
        0 => TransferPolicy::Direct,
        1 => TransferPolicy::Indirect,
        2 => TransferPolicy::Reference,
        _ => TransferPolicy::Dynamic,
    };
    let ring_words_max = [4, 64, 4096][prng.index(3)];
    [(); 2].map(|()| StreamSettings {
        kind,
        policy,
        renewal: prng.chance(700),
        renewal_gap_bytes: prng.below(5000),
        advert_bytes_min: prng.below(2) * prng.below(300),
        copy_bytes_per_us: prng.below(2) * (1 + prng.below(100)),
        ring_words: 1 + prng.below(ring_words_max),
        credits: CREDITS_MIN + prng.below(if ring_words_max == 4 { 4 } else { 60 }) as u32,
        sends_max: 16,
        receives_max: 16,
        ..StreamSettings::default()
    })
}

/// Returns random plans of both users: short and long pieces, eager and lazy users.
pub(crate) fn plans(prng: &mut Prng, kind: SocketKind) -> [UserPlan; 2] {
    [(); 2].map(|()| {
        let piece_max = [20, 300, 3000][prng.index(3)];
        let to_send = match (kind, prng.chance(200)) {
            (_, true) => 0,
            (SocketKind::Packets, _) => prng.below(60),
            (SocketKind::Stream, _) => prng.below(30 * piece_max as u64),
        };
        UserPlan {
            kind,
            to_send,
            send_max: piece_max,
            receive_max: if kind == SocketKind::Packets { 3000 } else { [20, 300, 3000][prng.index(3)] },
            sends: 1 + prng.index(8),
            receives: 1 + prng.index(8),
            wait_all_per_mille: [0, 300, 1000][prng.index(3)],
            eager_per_mille: [30, 300, 1000][prng.index(3)],
            cancel_per_mille: [0, 0, 20][prng.index(3)],
        }
    })
}

/// Returns a random net under a random adversary.
pub(crate) fn adversarial(seed: u64, change: impl FnOnce(&mut SimConfig, &mut Prng)) -> SocketNet {
    let mut prng = Prng::new(seed ^ 0x57_4ea3);
    let settings = settings(&mut prng);
    let plans = plans(&mut prng, settings[0].kind);
    let mut config = SimConfig::adversarial(seed);
    change(&mut config, &mut prng);
    SocketNet::new(seed, config, settings, plans)
}

/// The time limit of a run, which allows for all delays of the adversary.
const PATIENCE: Duration = Duration::from_secs(20);
