//! The plan of a run with more than 64 members, whose sets of ranks take several words (RamCast §2.2, Derecho §2).
//!
//! There are few messages. Members die on both sides of rank 64, and often some whose ranks are those of members of one shard but for
//! a multiple of 64: a set of one word takes the one for the other.

use squall_fabric::Duration;
use squall_fabric::sim::{Adversary, Prng};
use squall_protocols::genuine::{
    GenuineSettings, PART_HEADER_BYTES, QuorumRule, SHARDS_MAX, UPDATE_HEADER_BYTES,
};

use super::plan::{GenuinePlan, MESSAGE_MAX};
use crate::admission::BusPlan;
use crate::group::GroupPlan;

/// Ranks that are that far apart have the same bit in a word.
const WORD: u32 = u64::BITS;

impl GenuinePlan {
    /// The plan of `seed` with 66 to 96 members in the first view.
    #[must_use]
    pub(super) fn draw_large(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x1a49e);
        let mut plan = Self::draw_large_shape(seed, &mut prng);
        match prng.below(8) {
            0 => {}
            1 | 2 => plan.add_deaths_in_all_words(&mut prng),
            _ => {
                plan.settings.quorum = QuorumRule::Majority;
                match prng.below(8) {
                    0 => plan.add_member_behind(&mut prng),
                    1 => plan.add_lost_holder(&mut prng),
                    2 => plan.add_late_fetch(&mut prng),
                    3 => plan.add_deaths_in_all_words(&mut prng),
                    _ => plan.add_deaths_a_word_apart(&mut prng),
                }
            }
        }
        plan.settings.has_states = prng.chance(500);
        if plan.settings.has_states {
            plan.settings.message_max = UPDATE_HEADER_BYTES + plan.shards * (PART_HEADER_BYTES + MESSAGE_MAX);
        }
        plan
    }

    /// Shards and workload, without faults.
    fn draw_large_shape(seed: u64, prng: &mut Prng) -> Self {
        let most = if prng.chance(200) { 31 } else { 8 };
        let mut members = WORD + 2 + u32::try_from(prng.below(most)).expect("few");
        let shards = match prng.below(8) {
            0..3 => 1,
            3..5 => 2 + prng.index(3),
            5..7 => members as usize / 3,
            _ => SHARDS_MAX,
        };
        if shards == SHARDS_MAX {
            members = WORD + 2 + u32::try_from(prng.below(4)).expect("few");
        }
        let mut homes: Vec<Option<usize>> = (0..members as usize).map(|nth| Some(nth % shards)).collect();
        if prng.chance(200) {
            homes[prng.index(members as usize)] = None;
        }
        prng.shuffle(&mut homes);
        let soon = |prng: &mut Prng| Duration::from_nanos(prng.below(LAST_FAULT_NS));
        let joins: Vec<Duration> = (0..u64::from(prng.chance(200))).map(|_| soon(prng)).collect();
        homes.extend(joins.iter().map(|_| Some(prng.index(shards))));
        let leaver = |prng: &mut Prng| u32::try_from(prng.below(u64::from(members))).expect("few");
        let leaves = (0..u64::from(prng.chance(200))).map(|_| (leaver(prng), soon(prng))).collect();
        let calm = GroupPlan::calm(seed, members);
        let adversary = match prng.chance(300) {
            true => Adversary::drawn(prng),
            false => Adversary { scatter_per_mille: 60, ..calm.adversary.clone() },
        };
        let group = GroupPlan {
            joins,
            leaves,
            subgroups: Vec::new(),
            messages: 1 + prng.below(3),
            burst: 1 + prng.below(3),
            gap_max: Duration::from_nanos(prng.below(100_000)),
            adversary,
            // A look at all that is stored takes a run of this size longer than all else.
            early_sight: prng.chance(40),
            one_sided_progress: prng.chance(750),
            bus: BusPlan::draw(seed),
            ..calm
        };
        let set = |prng: &mut Prng| 1 << prng.index(shards) | 1 << prng.index(shards);
        Self {
            shards,
            senders: (0..2 + prng.below(5)).map(|_| prng.index(members as usize)).collect(),
            destinations: (0..1 + prng.below(3)).map(|_| set(prng)).collect(),
            settings: GenuineSettings {
                express: prng.chance(650),
                ..GenuineSettings::new(1 + prng.index(3), MESSAGE_MAX)
            },
            request_max: Duration::ZERO,
            transfer_max: Duration::from_nanos(prng.below(300_000)),
            counts_words: false,
            time_error_max: Duration::ZERO,
            standstill: None,
            keeps_all: false,
            homes,
            group,
        }
    }

    /// Some members die, of which about as many have ranks in one word as in the other.
    fn add_deaths_in_all_words(&mut self, prng: &mut Prng) {
        for _ in 0..1 + prng.below(4) {
            let words = u64::from(self.group.members.div_ceil(WORD));
            let first = WORD * u32::try_from(prng.below(words)).expect("few");
            let end = self.group.members.min(first + WORD);
            let node = first + u32::try_from(prng.below(u64::from(end - first))).expect("few");
            self.add_death(node, prng.below(LAST_FAULT_NS));
        }
    }

    /// Two senders die whose ranks are a word apart from those of two members of a shard, and the third one of it lacks what they have
    /// sent: it gets that from these two, which live.
    fn add_deaths_a_word_apart(&mut self, prng: &mut Prng) {
        let beyond = self.group.members - WORD;
        let mut below = |most: u32| u32::try_from(prng.below(u64::from(most))).expect("few");
        let low = below(beyond);
        let high = WORD + (low + 1 + below(beyond - 1)) % beyond;
        let to = beyond + below(WORD - beyond);
        if !self.fill_first_shard([low, to, high]) {
            return;
        }
        self.add_messages(0, prng);
        let at = prng.below(LAST_FAULT_NS);
        for node in [low + WORD, high - WORD] {
            self.add_slow_link(node, to, Duration::from_nanos(100_000 + prng.below(300_000)));
            self.senders.insert(node as usize);
            self.add_death(node, at + prng.below(3_000));
        }
    }

    /// Makes these nodes the members of shard 0, and the others of it members of the shards that these were in. Returns false if shards
    /// are so small that one would have no member.
    fn fill_first_shard(&mut self, nodes: [u32; 3]) -> bool {
        if self.shards == SHARDS_MAX {
            return false;
        }
        self.shards = self.shards.max(2);
        let is_out = |node: &u32| self.homes[*node as usize] == Some(0) && !nodes.contains(node);
        let mut out: Vec<u32> = (0..self.group.members).filter(is_out).collect();
        for node in nodes {
            let before = self.homes[node as usize].replace(0);
            if let Some(other) = out.pop_if(|_| before != Some(0)) {
                self.homes[other as usize] = before;
            }
        }
        out.into_iter().for_each(|node| self.homes[node as usize] = Some(1));
        true
    }
}

/// Faults begin within this time, while messages are under way.
const LAST_FAULT_NS: u64 = 400_000;
