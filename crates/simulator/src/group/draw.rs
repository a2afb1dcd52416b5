//! What is drawn of a plan's subgroups.

use squall_fabric::sim::Prng;
use squall_protocols::group::SubgroupId;
use squall_protocols::multicast::{
    Batching, Carrier, DeliveryMode, LargeMessages, PIECE_BYTES, SubgroupSettings,
};
use squall_protocols::rdmc::{self, schedule::Algorithm};

use super::plan::{MESSAGE_MAX, SubgroupPlan};
use crate::multicast::draw_piece_bytes;

/// One subgroup of all; perhaps one that overlaps it; perhaps two shards.
pub(super) fn draw_subgroups(seed: u64, prng: &mut Prng) -> Vec<SubgroupPlan> {
    let mut sets = vec![(0, u64::MAX)];
    if prng.chance(300) {
        sets.push((1, prng.draw()));
    }
    if prng.chance(300) {
        let shard = prng.draw();
        sets.extend([(2, shard), (3, !shard)]);
    }
    // Of its own, so that plans without large messages do not depend on it.
    let mut large = Prng::new(seed ^ 0x1a46e);
    sets.into_iter()
        .map(|(id, nodes)| SubgroupPlan {
            id: SubgroupId(id),
            nodes,
            senders: prng.draw() | prng.draw(),
            pullers: if prng.chance(500) { prng.draw() & prng.draw() } else { 0 },
            settings: SubgroupSettings {
                large: draw_large(&mut large),
                piece_bytes: draw_piece_bytes(seed),
                ..draw_settings(prng)
            },
        })
        .collect()
}

fn draw_settings(prng: &mut Prng) -> SubgroupSettings {
    let windows = [3, 10, 40][prng.index(3)];
    let stage = |prng: &mut Prng| prng.chance(800);
    let mode = [
        DeliveryMode::Atomic,
        DeliveryMode::Atomic,
        DeliveryMode::Atomic,
        DeliveryMode::Unordered,
        DeliveryMode::Raw,
    ][prng.index(5)];
    let (window, window_bytes) = (1 + prng.index(windows), 1 + prng.index(1000));
    SubgroupSettings {
        mode,
        window,
        message_max: MESSAGE_MAX,
        window_bytes,
        piece_bytes: PIECE_BYTES,
        batching: Batching { send: stage(prng), receive: stage(prng), delivery: stage(prng) },
        large: None,
        null_sends: true,
        express: !window_bytes.is_multiple_of(4),
        slow_after: None,
        senders: Vec::new(),
    }
}

fn draw_large(prng: &mut Prng) -> Option<LargeMessages> {
    prng.chance(400).then(|| LargeMessages {
        message_max: MESSAGE_MAX + 1 + prng.index(600),
        window: 1 + prng.index(4),
        window_bytes: prng.index(2000),
        carrier: if prng.chance(750) { Carrier::Relayed } else { Carrier::Pushed },
    })
}

/// Few blocks or many, by any schedule.
pub(super) fn draw_relays(seed: u64) -> rdmc::RdmcSettings {
    let mut prng = Prng::new(seed ^ 0x4d3c);
    let algorithms = [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline];
    let schedule = algorithms[prng.index(4)].into();
    rdmc::RdmcSettings { block_bytes: 8 << prng.below(7), schedule, in_flight_bytes: prng.below(500) }
}
