//! The plan of a run in which a majority of a shard is enough (RamCast §2.2) \[G6\] \[G10\] \[G11\].

use squall_fabric::sim::{Prng, Rule, RuleTrigger, Verdict};
use squall_fabric::{Duration, Instant};
use squall_protocols::genuine::QuorumRule;

use super::plan::{FollowerStandstill, GenuinePlan};

impl GenuinePlan {
    /// A majority is enough, and views end: mostly one member is behind, and a sender or a leader dies. Or a follower pauses, and nothing
    /// else happens.
    pub(super) fn draw_majority(&mut self) {
        let mut prng = Prng::new(self.group.seed ^ 0x3a10);
        let slows = |rule: &Rule| matches!(rule.what, Verdict::Slow { .. });
        let is_calm = self.group.suspicion_after.is_none() && self.group.rules.iter().all(slows);
        if is_calm && self.settings.quorum == QuorumRule::Majority {
            if prng.chance(600) {
                self.add_standstill(&mut prng);
            }
            return;
        }
        if self.settings.quorum == QuorumRule::Majority || !prng.chance(400) {
            return;
        }
        self.settings.quorum = QuorumRule::Majority;
        match prng.below(10) {
            0..6 => self.add_member_behind(&mut prng),
            6 => self.add_lost_holder(&mut prng),
            7 => self.add_lost_quorum(&mut prng),
            8 => self.add_late_fetch(&mut prng),
            _ => {}
        }
    }

    /// A member of a shard of three or more is behind the others when one that sends to the shard dies, and perhaps another one soon
    /// after.
    pub(super) fn add_member_behind(&mut self, prng: &mut Prng) {
        let Some((home, peers)) = self.draw_shard(prng) else { return };
        let to = peers[prng.index(peers.len())];
        let members = 0..self.group.members;
        let extra = Duration::from_nanos(10_000 + prng.below(200_000));
        members.clone().filter(|from| *from != to).for_each(|from| self.add_slow_link(from, to, extra));
        self.add_messages(home, prng);
        let others: Vec<u32> = members.filter(|node| *node != to).collect();
        let first = 1 + prng.below(150);
        for _ in 0..1 + prng.below(3).saturating_sub(1) {
            let node = others[prng.index(others.len())];
            let nth = first + prng.below(60);
            self.senders.insert(node as usize);
            self.group.rules.push(Rule { when: RuleTrigger::Post { node, nth }, what: Verdict::Crash(node) });
        }
    }

    /// A member that leads no shard of three or more pauses for longer than all messages take.
    fn add_standstill(&mut self, prng: &mut Prng) {
        let home = |node: u32| self.homes[node as usize];
        let is_follower = |node: &u32| {
            let peers: Vec<u32> =
                (0..self.group.members).filter(|other| home(*other) == home(*node)).collect();
            home(*node).is_some() && peers.len() > 2 && peers[0] != *node
        };
        let followers: Vec<u32> = (0..self.group.members).filter(is_follower).collect();
        if followers.is_empty() {
            return;
        }
        let node = followers[prng.index(followers.len())];
        let slow = |rule: &Rule| match rule.what {
            Verdict::Slow { extra, .. } => extra,
            _ => Duration::ZERO,
        };
        let slowest = self.group.rules.iter().map(slow).max().unwrap_or_default();
        let bound = Duration::from_millis(1) + (self.group.delay() + slowest) * 8;
        let begin = Instant::from_nanos(0) + Duration::from_nanos(prng.below(400_000));
        let span = bound + Duration::from_millis(10);
        self.group.rules.push(Rule { when: RuleTrigger::At(begin), what: Verdict::Pause { node, span } });
        self.standstill = Some(FollowerStandstill { node, end: begin + span, bound });
    }

    /// What is sent to a shard comes late to all its members but the leader when its sender dies, and then the leader dies, too, which
    /// alone has that.
    pub(super) fn add_lost_holder(&mut self, prng: &mut Prng) {
        let Some((home, peers)) = self.draw_shard(prng) else { return };
        let others: Vec<u32> = (0..self.group.members).filter(|node| !peers.contains(node)).collect();
        if others.is_empty() {
            return;
        }
        let sender = others[prng.index(others.len())];
        for from in [sender, peers[0]] {
            for to in peers.iter().skip(1) {
                self.add_slow_link(from, *to, Duration::from_nanos(100_000 + prng.below(200_000)));
            }
        }
        self.add_messages(home, prng);
        self.senders.insert(sender as usize);
        let at = prng.below(600_000);
        self.add_death(sender, at);
        self.add_death(peers[0], at + prng.below(1_200_000));
    }

    /// A member that is behind loses the leader of the view while the view ends, so that the others decide without its echo, and it gets
    /// what it lacks from members of the next view.
    pub(super) fn add_late_fetch(&mut self, prng: &mut Prng) {
        let Some((home, peers)) = self.draw_shard(prng) else { return };
        let (to, leader) = (peers[peers.len() - 1], 0);
        let sender = self.group.members - 1;
        if [to, leader].contains(&sender) || to == leader {
            return;
        }
        for from in (0..self.group.members).filter(|from| ![to, leader].contains(from)) {
            self.add_slow_link(from, to, Duration::from_nanos(150_000 + prng.below(250_000)));
        }
        self.add_messages(home, prng);
        self.senders.insert(sender as usize);
        let at = 100_000 + prng.below(400_000);
        self.add_death(sender, at);
        let when = RuleTrigger::At(Instant::from_nanos(at + prng.below(1_200_000)));
        self.group.rules.push(Rule { when, what: Verdict::Break { a: to, b: leader } });
    }

    /// A majority of a shard dies at once, when another member of it is behind.
    fn add_lost_quorum(&mut self, prng: &mut Prng) {
        let Some((home, mut peers)) = self.draw_shard(prng) else { return };
        let to = peers.remove(1 + prng.index(peers.len() - 1));
        for from in peers.clone() {
            self.add_slow_link(from, to, Duration::from_nanos(100_000 + prng.below(200_000)));
        }
        self.add_messages(home, prng);
        peers.iter().for_each(|node| self.senders.insert(*node as usize));
        let (at, count) = (prng.below(600_000), QuorumRule::Majority.least(peers.len() + 1));
        for node in peers.into_iter().take(count) {
            self.add_death(node, at + prng.below(3_000));
        }
    }

    /// A shard of three or more members of the first view, and these, its first leader first.
    pub(super) fn draw_shard(&self, prng: &mut Prng) -> Option<(usize, Vec<u32>)> {
        let members = |shard: usize| {
            let is_in = |node: &u32| self.homes[*node as usize] == Some(shard);
            (0..self.group.members).filter(is_in).collect::<Vec<u32>>()
        };
        let mut shards: Vec<_> = (0..self.shards).map(|shard| (shard, members(shard))).collect();
        shards.retain(|(_, members)| members.len() > 2);
        (!shards.is_empty()).then(|| shards.swap_remove(prng.index(shards.len())))
    }

    /// Some messages are for a shard, perhaps with others.
    pub(super) fn add_messages(&mut self, shard: usize, prng: &mut Prng) {
        let more = self.destinations[prng.index(self.destinations.len())];
        self.destinations.push(1 << shard | if prng.chance(500) { more } else { 0 });
        self.group.messages = self.group.messages.max(4);
    }

    pub(super) fn add_slow_link(&mut self, from: u32, to: u32, extra: Duration) {
        let when = RuleTrigger::At(Instant::from_nanos(0));
        self.group.rules.push(Rule { when, what: Verdict::Slow { from, to, extra } });
    }

    pub(super) fn add_death(&mut self, node: u32, at_ns: u64) {
        let when = RuleTrigger::At(Instant::from_nanos(at_ns));
        self.group.rules.push(Rule { when, what: Verdict::Crash(node) });
    }
}
