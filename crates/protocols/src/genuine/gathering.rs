//! How a caller gets the replies of all shards of its updates (RamCast §2.2, §3.5; external clients of Derecho, app. A)
//! \[G18\] \[G19\].
//!
//! **State**: the open updates, each with the replies that are here; for each shard the member that is asked, and what it has been
//! asked. An open update was multicast, or will be.
//!
//! **Law.** The driver reports each view ([`ReplyGathering::begin_view`]), begins updates, carries out what
//! [`ReplyGathering::poll_ask`] returns, and reports each answer or failure. A member that is asked answers when it has applied the
//! update. One that cannot be reached, or has no state, has failed ([`ReplyGathering::handle_failure`]): then another one is asked
//! everything that is open, perhaps the same after all others; the driver pauses before that.

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::NodeId;

use super::mutation;
use super::placement::shards_of;
use super::replies::PartReplies;
use crate::coverage::{Point, reach};

/// A member to be asked for the replies of its shard to an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskForReplies {
    /// The shard.
    pub shard: usize,
    /// The member.
    pub node: NodeId,
    /// The update's number.
    pub number: u64,
}

/// What has become of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardedOutcome {
    /// All of its shards have applied it; their replies by shard.
    Replies(BTreeMap<usize, PartReplies>),
    /// The state of this shard is lost. All other shards of the update have applied it, but for those that are lost, too.
    Lost(usize),
    /// A member of this shard does not know the update any more.
    Forgotten(usize),
}

/// The updates of a caller whose replies are not all here. `W` is what waits for one.
#[derive(Debug)]
pub struct ReplyGathering<W> {
    node: NodeId,
    /// The number of the next update.
    next: u64,
    /// The least number of an update that has ended without the replies of all its shards: some may not have applied it.
    unfinished: Option<u64>,
    open: BTreeMap<u64, OpenUpdate<W>>,
    /// The members of each shard, by shard, as of the latest view.
    members: Vec<Vec<NodeId>>,
    lines: BTreeMap<usize, ShardLine>,
}

#[derive(Debug)]
struct OpenUpdate<W> {
    waiter: W,
    /// The shards whose replies are missing.
    missing: BTreeSet<usize>,
    replies: BTreeMap<usize, PartReplies>,
    /// A shard whose replies never come.
    lost: Option<usize>,
}

impl<W> OpenUpdate<W> {
    fn end(self) -> (W, ShardedOutcome) {
        let outcome = self.lost.map_or(ShardedOutcome::Replies(self.replies), ShardedOutcome::Lost);
        (self.waiter, outcome)
    }
}

/// The member of a shard that is asked.
#[derive(Debug, Default)]
struct ShardLine {
    node: Option<NodeId>,
    asked: BTreeSet<u64>,
}

impl<W> ReplyGathering<W> {
    /// Returns that of a caller, which has seen no view yet.
    #[must_use]
    pub const fn new(node: NodeId) -> Self {
        Self {
            node,
            next: 0,
            unfinished: None,
            open: BTreeMap::new(),
            members: Vec::new(),
            lines: BTreeMap::new(),
        }
    }

    /// Begins an update with parts for these shards, a set of bits; returns its number.
    pub fn begin(&mut self, shards: u64, waiter: W) -> u64 {
        let number = self.next;
        self.next += 1;
        let missing = shards_of(shards).collect();
        self.open.insert(number, OpenUpdate { waiter, missing, replies: BTreeMap::new(), lost: None });
        number
    }

    /// Gives up the latest update, which cannot be sent; returns what waits for it.
    pub fn cancel(&mut self, number: u64) -> Option<W> {
        self.open.remove(&number).map(|open| open.waiter)
    }

    /// All updates below this number have all their replies: members may forget these \[G19\]. It never passes an update that has
    /// ended without them.
    #[must_use]
    pub fn known(&self) -> u64 {
        mutant!(KnowEarly => return self.next.saturating_sub(1));
        let open = self.open.keys().next().copied();
        open.into_iter().chain(self.unfinished).min().unwrap_or(self.next)
    }

    fn leave_unfinished(&mut self, number: u64) {
        self.unfinished = Some(self.unfinished.map_or(number, |least| least.min(number)));
    }

    /// How many updates are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// A view begins, with these members in each shard that counts. Returns the updates that miss nothing any more but replies that
    /// never come, since the state of their shard is lost.
    pub fn begin_view(&mut self, members: Vec<Vec<NodeId>>) -> Vec<(W, ShardedOutcome)> {
        self.members = members;
        for (shard, line) in &mut self.lines {
            let is_there = line.node.is_some_and(|node| self.members[*shard].contains(&node));
            if !is_there {
                *line = ShardLine::default();
            }
        }
        self.poll_lost()
    }

    /// Returns what [`ReplyGathering::begin_view`] does, for updates that have begun since.
    pub fn poll_lost(&mut self) -> Vec<(W, ShardedOutcome)> {
        for open in self.open.values_mut() {
            let is_lost = |shard: &usize| self.members.get(*shard).is_some_and(Vec::is_empty);
            open.lost = open.missing.iter().copied().find(is_lost).or(open.lost);
            open.missing.retain(|shard| !is_lost(shard));
            if open.lost.is_some() {
                mutant!(LoseEarly => open.missing.clear());
            }
        }
        let ended: Vec<u64> =
            self.open.iter().filter(|(_, open)| open.missing.is_empty()).map(|(number, _)| *number).collect();
        if !ended.is_empty() {
            reach(Point::ReplyLost);
        }
        ended.into_iter().filter_map(|number| self.open.remove(&number)).map(OpenUpdate::end).collect()
    }

    /// Returns what a member of `shard` is to be asked next.
    pub fn poll_ask(&mut self, shard: usize) -> Option<AskForReplies> {
        let line = self.lines.entry(shard).or_default();
        let is_unasked = |(number, open): &(&u64, &OpenUpdate<W>)| {
            open.missing.contains(&shard) && !line.asked.contains(number)
        };
        let number = self.open.iter().find(is_unasked).map(|(number, _)| *number)?;
        if line.node.is_none() {
            // Its own replica, if it has one, else the member that is oldest in the shard.
            let members = self.members.get(shard)?;
            line.node = members.iter().find(|node| **node == self.node).or_else(|| members.first()).copied();
        }
        let node = line.node?;
        line.asked.insert(number);
        Some(AskForReplies { shard, node, number })
    }

    /// A member of `shard` has answered; returns the outcome if that was the last reply.
    pub fn handle_replies(
        &mut self,
        shard: usize,
        number: u64,
        replies: PartReplies,
    ) -> Option<(W, ShardedOutcome)> {
        self.lines.entry(shard).or_default().asked.remove(&number);
        let open = self.open.get_mut(&number)?;
        if open.missing.remove(&shard) {
            open.replies.insert(shard, replies);
        }
        if !open.missing.is_empty() {
            return None;
        }
        self.open.remove(&number).map(OpenUpdate::end)
    }

    /// A member of `shard` does not know the update any more.
    pub fn handle_forgotten(&mut self, shard: usize, number: u64) -> Option<(W, ShardedOutcome)> {
        self.lines.entry(shard).or_default().asked.remove(&number);
        let open = self.open.remove(&number)?;
        self.leave_unfinished(number);
        Some((open.waiter, ShardedOutcome::Forgotten(shard)))
    }

    /// The member `node` of `shard` cannot be asked: another one is asked everything that is open.
    pub fn handle_failure(&mut self, shard: usize, node: NodeId) {
        let line = self.lines.entry(shard).or_default();
        if line.node != Some(node) {
            return;
        }
        let members = self.members.get(shard).map_or(&[][..], Vec::as_slice);
        let place = members.iter().position(|other| *other == node).map_or(0, |place| place + 1);
        line.node = members.get(place).or_else(|| members.first()).copied();
        if line.node != Some(node) {
            reach(Point::ReplyAskedElsewhere);
        }
        self.ask_again(shard);
    }

    /// The member that is asked for `shard` knows more than it did, or another one is asked: it is asked everything that is open.
    pub fn ask_again(&mut self, shard: usize) {
        mutant!(AskOnce => return);
        self.lines.entry(shard).or_default().asked.clear();
    }

    /// Ends it; returns what waits.
    pub fn end(&mut self) -> Vec<W> {
        if let Some(number) = self.open.keys().next().copied() {
            self.leave_unfinished(number);
        }
        std::mem::take(&mut self.open).into_values().map(|open| open.waiter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::genuine::{GenuinePosition, Timestamp};

    const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];

    fn replies(reply: u8) -> PartReplies {
        let position = GenuinePosition { view: 0, timestamp: Timestamp { clock: 1, shard: 0 } };
        PartReplies { position, replies: vec![vec![reply]] }
    }

    /// The caller, node 0, in shard 0; nodes 1 and 2 in shard 1.
    fn gathering() -> ReplyGathering<&'static str> {
        let mut gathering = ReplyGathering::new(NODES[0]);
        assert!(gathering.begin_view(vec![vec![NODES[0]], vec![NODES[1], NODES[2]]]).is_empty());
        gathering
    }

    fn ask(gathering: &mut ReplyGathering<&'static str>, shard: usize) -> Option<(NodeId, u64)> {
        gathering.poll_ask(shard).map(|ask| (ask.node, ask.number))
    }

    #[test]
    fn an_update_is_done_when_all_its_shards_have_answered() {
        let mut gathering = gathering();
        assert_eq!((gathering.begin(0b11, "both"), gathering.begin(0b10, "one")), (0, 1));
        assert_eq!([ask(&mut gathering, 0), ask(&mut gathering, 0)], [Some((NODES[0], 0)), None]);
        assert_eq!(ask(&mut gathering, 1), Some((NODES[1], 0)));
        assert_eq!(gathering.handle_replies(0, 0, replies(1)), None);
        let one = gathering.handle_replies(1, 1, replies(2));
        assert_eq!(one, Some(("one", ShardedOutcome::Replies(BTreeMap::from([(1, replies(2))])))));
        assert_eq!(gathering.known(), 0, "the first one is open");
        let both = gathering.handle_replies(1, 0, replies(3));
        let all = BTreeMap::from([(0, replies(1)), (1, replies(3))]);
        assert_eq!(both, Some(("both", ShardedOutcome::Replies(all))));
        assert_eq!((gathering.known(), gathering.open()), (2, 0));
        assert_eq!(gathering.handle_replies(1, 0, replies(3)), None, "it was answered before");
    }

    #[test]
    fn another_member_is_asked_for_all_that_is_open() {
        let mut gathering = gathering();
        gathering.begin(0b10, "a");
        gathering.begin(0b10, "b");
        assert_eq!(
            [ask(&mut gathering, 1), ask(&mut gathering, 1)],
            [Some((NODES[1], 0)), Some((NODES[1], 1))]
        );
        gathering.handle_failure(1, NODES[2]);
        assert_eq!(ask(&mut gathering, 1), None, "it was not asked");
        gathering.handle_failure(1, NODES[1]);
        assert_eq!(
            [ask(&mut gathering, 1), ask(&mut gathering, 1)],
            [Some((NODES[2], 0)), Some((NODES[2], 1))]
        );
        assert!(gathering.begin_view(vec![vec![NODES[0]], vec![NODES[1]]]).is_empty());
        assert_eq!(ask(&mut gathering, 1), Some((NODES[1], 0)), "the other one has left");
    }

    #[test]
    fn what_a_lost_shard_owes_is_reported() {
        let mut gathering = gathering();
        gathering.begin(0b11, "both");
        gathering.begin(0b01, "own");
        assert_eq!(
            gathering.begin_view(vec![vec![NODES[0]], Vec::new()]),
            [],
            "the other shard may not have it yet"
        );
        assert_eq!(gathering.handle_replies(0, 0, replies(1)), Some(("both", ShardedOutcome::Lost(1))));
        gathering.begin(0b10, "late");
        assert_eq!(gathering.poll_lost(), [("late", ShardedOutcome::Lost(1))]);
        assert_eq!(gathering.handle_forgotten(0, 1), Some(("own", ShardedOutcome::Forgotten(0))));
        assert!(gathering.end().is_empty());
    }

    /// \[G19\] An update that has ended without all its replies may not be applied yet: no later one may let members forget it.
    #[test]
    fn what_has_ended_without_its_replies_is_never_known() {
        let mut gathering = gathering();
        gathering.begin(0b01, "done");
        gathering.begin(0b11, "under way");
        assert!(gathering.handle_replies(0, 0, replies(1)).is_some());
        assert_eq!(gathering.end(), ["under way"]);
        gathering.begin(0b11, "later");
        assert_eq!(gathering.known(), 1);
        assert!(gathering.handle_forgotten(1, 2).is_some());
        assert_eq!((gathering.open(), gathering.known()), (0, 1));
    }
}
