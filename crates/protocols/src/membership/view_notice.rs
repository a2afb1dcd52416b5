//! The view notice: how a joiner learns of its first view (Derecho §2).
//!
//! Each member that installs a view publishes a mirror for each of its joiners, and stores the view once the joiner
//! has attached. The joiner waits for the first notice that is complete; all contain the same view \[V1\].

use std::ops::Range;

use squall_fabric::layout::Columns;
use squall_fabric::{Column, Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region, RowLayout};

use super::{MEMBERS_MAX, Member, RankSet, View};

/// The layout of a view notice.
#[derive(Debug)]
struct Words {
    id: Column<u64>,
    /// Node and tag of each member.
    members: Columns<u64>,
    leaving: Columns<u64>,
    /// The holders of each state, in as few words as sets of this view take, and then how the view before has ended.
    lists: Columns<u64>,
    /// The number of members, which announces the rest.
    count: Column<u64>,
    words: usize,
}

impl Words {
    fn new(states: usize, durable: usize) -> Self {
        let mut layout = RowLayout::new();
        let each = RankSet::words_for(MEMBERS_MAX);
        let (id, members, leaving) = (layout.column(), layout.list(2 * MEMBERS_MAX), layout.list(each));
        let (lists, count) = (layout.list(states * each + durable), layout.column());
        Self { id, members, leaving, lists, count, words: layout.words() }
    }
}

fn key(joiner: NodeId) -> MirrorKey {
    MirrorKey(1 << 63 | u64::from(joiner.0))
}

/// A member's side: sends the view to one joiner.
#[derive(Debug)]
pub struct ViewNotifier {
    joiner: NodeId,
    view: View,
    trims: Vec<u64>,
    region: Region,
    mirror: MirrorId,
    words: Words,
    attached: bool,
    notified: bool,
}

impl ViewNotifier {
    /// Returns a notifier that sends `view` to `joiner` once the joiner has attached, and how much counts of each durable subgroup in
    /// the view before.
    pub fn new<F: Fabric>(fabric: &mut F, joiner: NodeId, view: View, trims: Vec<u64>) -> Self {
        let words = Words::new(view.holders.len(), trims.len());
        let region = fabric.register(words.words);
        let mirror = fabric.publish(key(joiner), &region, &[joiner]);
        Self { joiner, view, trims, region, mirror, words, attached: false, notified: false }
    }

    /// Handles an event of the fabric.
    pub fn handle_event(&mut self, event: &FabricEvent) {
        let FabricEvent::Attached { key: attached, reader } = event else { return };
        self.attached |= (*attached, *reader) == (key(self.joiner), self.joiner);
    }

    /// Returns the joiner that it notifies.
    #[must_use]
    pub const fn joiner(&self) -> NodeId {
        self.joiner
    }

    /// Returns the mirror, to be retired when it is no longer needed.
    #[must_use]
    pub const fn mirror(&self) -> MirrorId {
        self.mirror
    }

    /// Sends the view, once; returns the amount of work done.
    pub fn poll<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        if !self.attached || self.notified {
            return 0;
        }
        let Words { id, members, leaving, lists, count, .. } = &self.words;
        id.store(&self.region, self.view.id);
        let (all, mut listed) = (self.view.members.len(), 0);
        for (i, word) in self.view.leaving.words(all).enumerate() {
            leaving.column(i).store(&self.region, word);
        }
        let holders = self.view.holders.iter().flat_map(|holders| holders.words(all));
        for word in holders.chain(self.trims.iter().copied()) {
            lists.column(listed).store(&self.region, word);
            listed += 1;
        }
        for (i, member) in self.view.members.iter().enumerate() {
            members.column(2 * i).store(&self.region, u64::from(member.node.0));
            members.column(2 * i + 1).store(&self.region, member.tag);
        }
        count.store(&self.region, self.view.members.len() as u64);
        fabric.push(self.mirror, id.word()..id.word() + 1);
        fabric.push(self.mirror, members.words(0..2 * all));
        fabric.push(self.mirror, leaving.words(0..RankSet::words_for(all)));
        if listed > 0 {
            fabric.push(self.mirror, lists.words(0..listed));
        }
        fabric.push_word(self.mirror, count.word());
        self.notified = true;
        1
    }
}

/// The joiner's side.
#[derive(Debug)]
pub struct ViewNotice {
    words: Words,
    states: usize,
    durable: usize,
    mirrors: Vec<Region>,
}

impl ViewNotice {
    /// Waits for a view from any of `contacts`, in a group in which `states` subgroups may have a state and `durable` subgroups are
    /// durable.
    pub fn new<F: Fabric>(fabric: &mut F, contacts: &[NodeId], states: usize, durable: usize) -> Self {
        let (words, key) = (Words::new(states, durable), key(fabric.node()));
        let mirrors = contacts.iter().map(|contact| fabric.attach(*contact, key, words.words)).collect();
        Self { words, states, durable, mirrors }
    }

    /// Returns the first view of this node, once a member has sent it, and how much counts of each durable subgroup in the view before.
    #[must_use]
    pub fn view(&self) -> Option<(View, Vec<u64>)> {
        self.mirrors.iter().find_map(|mirror| {
            let count = usize::try_from(self.words.count.load(mirror)).ok()?;
            if count == 0 || count > MEMBERS_MAX {
                return None;
            }
            let word = |i: usize| self.words.members.column(i).load(mirror);
            let member = |i: usize| {
                Some(Member { node: NodeId(u32::try_from(word(2 * i)).ok()?), tag: word(2 * i + 1) })
            };
            let members: Option<Vec<Member>> = (0..count).map(member).collect();
            let each = RankSet::words_for(count);
            let list = |words: Range<usize>| words.map(|i| self.words.lists.column(i).load(mirror));
            let holders = |state: usize| RankSet::from_words(list(state * each..(state + 1) * each));
            let holders = (0..self.states).map(holders).collect();
            let trims = list(self.states * each..self.states * each + self.durable).collect();
            let leaving = (0..each).map(|i| self.words.leaving.column(i).load(mirror));
            let (id, leaving) = (self.words.id.load(mirror), RankSet::from_words(leaving));
            Some((View { id, members: members?, leaving, holders }, trims))
        })
    }
}
