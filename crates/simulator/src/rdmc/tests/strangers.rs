//! Tests with peers that violate the protocol: no member panics or receives wrong data, and all others are notified
//! (RDMC §2; [B1], [B7]).

use squall_fabric::sim::{Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::{Channel, ConnId, Fabric, FabricEvent, Grant, NodeId, Token, Write, WriteSource};

use super::super::cluster::{RdmcCluster, SETTLE};
use super::super::plan::RdmcGroupPlan;
use squall_protocols::rdmc::schedule::Algorithm;
use squall_protocols::rdmc::{BlockSummary, GroupId, ObjectSlot, RdmcMessage};

/// Node 2 of a group of three does not run RDMC: it answers with random messages, blocks and bytes, some of them
/// nearly correct.
#[test]
fn a_stranger_breaks_nothing() {
    let mut failed = 0;
    for seed in 0..150 {
        let mut cluster = RdmcCluster::new(seed, SimConfig::adversarial(seed), 3);
        let group = RdmcGroupPlan::new(1, &[0, 1, 2], Algorithm::Pipeline.into(), 64, &[640, 64]);
        for member in [0, 1] {
            cluster.create_at(member, &group, Vec::new());
            cluster.nodes[member as usize].core.application_mut().offers_per_mille = 500;
        }
        let mut stranger = Stranger::new(&cluster.world, seed);
        let until = cluster.world.now() + SETTLE;
        while let Some(i) = cluster.world.next_poll(until) {
            let worked = if i == 2 { stranger.step() } else { cluster.nodes[i as usize].step() };
            let deadline = (i < 2).then(|| cluster.nodes[i as usize].next_deadline()).flatten();
            cluster.world.rest(i, worked, deadline);
            assert_eq!(*cluster.watch.borrow(), None, "seed {seed}");
        }
        let stream = |i: usize| cluster.nodes[i].core.application().stream(group.id);
        assert_eq!(
            stream(0).failure.is_some(),
            stream(1).failure.is_some(),
            "seed {seed}: both or neither are notified"
        );
        failed += usize::from(stream(0).failure.is_some());
    }
    assert!(failed > 100, "only {failed} runs found out: the stranger has become too polite");
}

struct Stranger {
    fabric: SimFabric,
    conns: [ConnId; 2],
    prng: Prng,
    /// The rights that others have granted to it.
    grants: Vec<Grant>,
    left: u32,
    memory: squall_fabric::Region,
}

impl Stranger {
    fn new(world: &SimWorld, seed: u64) -> Self {
        let mut fabric = world.fabric(2);
        let memory = fabric.register(2048);
        let conns = [0, 1].map(|peer| fabric.open(NodeId(peer), Channel(3)));
        for i in 0..64_u64 {
            let first = usize::try_from(i).expect("small") * 32;
            let conn = conns[usize::from(i >= 32)];
            fabric.post_receive(conn, &memory, first..first + 32, Token(i)).expect("space");
        }
        Self { fabric, conns, prng: Prng::new(seed ^ 0x57a6), grants: vec![], left: 40, memory }
    }

    fn step(&mut self) -> bool {
        let mut events = Vec::new();
        self.fabric.poll(&mut |event| events.push(event));
        for event in &events {
            if let FabricEvent::Received { conn, token, length } = event {
                self.on_received(*conn, *token, *length);
            }
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            self.act();
        }
        self.left > 0 || !events.is_empty()
    }

    fn on_received(&mut self, conn: ConnId, token: Token, length: usize) {
        let mut bytes = vec![0; length];
        let first = usize::try_from(token.0).expect("small") * 32;
        self.memory.copy_bytes_out(first, &mut bytes);
        let message = RdmcMessage::decode(&bytes).expect("the others speak well");
        let _ = self.fabric.post_receive(conn, &self.memory, first..first + 32, token);
        match message {
            RdmcMessage::Hello { credits } => self.grants.push(credits),
            RdmcMessage::Offer { grant, .. } | RdmcMessage::Ready { grant, .. } => self.grants.push(grant),
            // It often answers as a member would, which takes it further.
            RdmcMessage::Join { .. } if self.prng.chance(800) => drop(self.fabric.send(conn, &bytes, None)),
            RdmcMessage::Announce { group, number, .. } if self.prng.chance(800) => {
                self.ready(conn, group, number);
            }
            _ => {}
        }
    }

    fn ready(&mut self, conn: ConnId, group: GroupId, number: u64) {
        let peer = NodeId(u32::from(conn == self.conns[1]));
        let target = self.fabric.register(100);
        let grant = self.fabric.grant(&target, 0..100, peer);
        let slot = self.prng.draw() as u8;
        self.say(
            conn,
            &RdmcMessage::Ready { group, number, slot, grant, bound: 5, held: BlockSummary::default() },
        );
    }

    fn offer(&mut self, conn: ConnId, group: GroupId, number: u64) {
        let peer = NodeId(u32::from(conn == self.conns[1]));
        let target = self.fabric.register(100);
        let grant = self.fabric.grant(&target, 0..1 + self.prng.index(100), peer);
        let slot = self.prng.draw() as u8;
        self.say(conn, &RdmcMessage::Offer { group, number, slot, grant });
    }

    fn say(&mut self, conn: ConnId, message: &RdmcMessage) {
        let (bytes, length) = message.encode();
        let _ = self.fabric.send(conn, &bytes[..length], None);
    }

    fn act(&mut self) {
        let conn = self.conns[self.prng.index(2)];
        let (group, number) = (GroupId(1), self.prng.below(3));
        match self.prng.below(12) {
            0 => self.ready(conn, group, number),
            1 => self.say(
                conn,
                &RdmcMessage::Announce { group, number, bytes: 640, slot: ObjectSlot { index: 0, uses: 1 } },
            ),
            2 => self.say(conn, &RdmcMessage::Stopped { group }),
            3 => {
                let length = self.prng.index(192);
                let bytes: Vec<u8> = (0..length).map(|_| self.prng.draw() as u8 & 7).collect();
                let _ = self.fabric.send(conn, &bytes, None);
            }
            4 | 5 if !self.grants.is_empty() => {
                let grant = self.grants[self.prng.index(self.grants.len())];
                let words: &[u64] = if grant.words == 257 { &[0] } else { &[] };
                // These blocks are expected by no member; blocks that are expected from a member are accepted as
                // correct.
                let immediate = Some(self.prng.draw() as u32 & 0x300_000f | 16);
                let write = Write {
                    source: WriteSource::Value(words),
                    grant: &grant,
                    offset: 0,
                    immediate,
                    signal: None,
                };
                let _ = self.fabric.write(conn, write);
            }
            6 => self.offer(conn, group, number),
            _ => {}
        }
    }
}
