//! The table itself: one row per member, the own one writable (Derecho §3.2).

use std::ops::Range;

use crate::mutation;
use squall_fabric::layout::Word;
use squall_fabric::{Column, Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region};

/// A shared state table, as one member sees it.
#[derive(Debug)]
pub struct StateTable {
    key: MirrorKey,
    /// Members by rank.
    members: Vec<NodeId>,
    /// This member's rank: `rank < members.len()`.
    rank: usize,
    /// Rows by rank; `rows[rank]` is writable, the others are views.
    rows: Vec<Region>,
    mirror: MirrorId,
    /// Who reads the own row already, or is excused, by rank.
    attached: Vec<bool>,
    /// Readers that are not yet attached; 0 means ready [S4].
    awaited: usize,
    /// Who was excused before it attached, by rank: it misses what is stored meanwhile.
    excused: Vec<bool>,
    /// A reader has attached late: see [`StateTable::take_late_reader`].
    has_late_reader: bool,
    /// What has been stored and is not yet posted, in order.
    posts: Vec<Post>,
}

/// One store that readers must get.
#[derive(Clone, Debug)]
enum Post {
    /// Words by reference, which a later guard announces.
    List(Range<usize>),
    /// One word by value.
    Guard(usize),
    /// Adjacent words by value, without order among them.
    Guards(Range<usize>),
}

impl StateTable {
    /// The table `key` of `members`, with rows of `words` words. Publishes the own row and attaches the others.
    ///
    /// # Panics
    /// If this node is not among the members.
    pub fn new<F: Fabric>(fabric: &mut F, key: MirrorKey, members: &[NodeId], words: usize) -> Self {
        let own = fabric.node();
        let rank = members.iter().position(|member| *member == own).expect("this node is a member");
        let row = fabric.register(words);
        let readers: Vec<NodeId> = members.iter().copied().filter(|member| *member != own).collect();
        let mirror = fabric.publish(key, &row, &readers);
        let rows = members
            .iter()
            .map(|member| if *member == own { row.clone() } else { fabric.attach(*member, key, words) })
            .collect();
        let attached = members.iter().map(|member| *member == own).collect();
        Self {
            key,
            members: members.to_vec(),
            rank,
            rows,
            mirror,
            attached,
            awaited: readers.len(),
            excused: vec![false; members.len()],
            has_late_reader: false,
            posts: Vec::with_capacity(64),
        }
    }

    /// Notes who has attached the own row. Other events are ignored.
    pub fn handle_event(&mut self, event: &FabricEvent) {
        let FabricEvent::Attached { key, reader } = event else { return };
        if *key != self.key {
            return;
        }
        let Some(rank) = self.members.iter().position(|member| member == reader) else { return };
        self.has_late_reader |= self.excused[rank];
        self.await_no_more(rank);
    }

    /// No longer waits for the reader with rank `rank`: it is suspected and may never attach.
    pub fn excuse(&mut self, rank: usize) {
        self.excused[rank] |= !self.attached[rank];
        self.await_no_more(rank);
    }

    fn await_no_more(&mut self, rank: usize) {
        if !self.attached[rank] {
            self.attached[rank] = true;
            self.awaited -= 1;
        }
    }

    /// Whether the reader with rank `rank` was excused before it attached: it may see a guard without what the guard
    /// announces, which was pushed before \[S2\].
    #[must_use]
    pub fn is_excused(&self, rank: usize) -> bool {
        self.excused[rank]
    }

    /// Whether a reader that was excused has attached since the last call. It has missed what was stored before.
    #[must_use]
    pub const fn take_late_reader(&mut self) -> bool {
        std::mem::replace(&mut self.has_late_reader, false)
    }

    /// Whether all members read the own row: only now may it be stored into [S4].
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.awaited == 0 || mutant!(StoreBeforeReady)
    }

    /// The mirror of the own row, to be retired when all readers are done with it.
    #[must_use]
    pub const fn mirror(&self) -> MirrorId {
        self.mirror
    }

    /// This member's rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The members by rank.
    #[must_use]
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// The row of the member with rank `rank`, read-only unless it is the own one.
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline]
    #[must_use]
    pub fn row(&self, rank: usize) -> &Region {
        &self.rows[rank]
    }

    /// All rows by rank.
    #[inline]
    #[must_use]
    pub fn rows(&self) -> &[Region] {
        &self.rows
    }

    /// The own row, for storing lists that a later [`StateTable::raise`] announces.
    #[inline]
    #[must_use]
    pub fn own(&self) -> &Region {
        &self.rows[self.rank]
    }

    /// Stores `value` into the own row; readers get it at the next [`StateTable::flush`], after all that was stored
    /// before it.
    ///
    /// # Panics
    /// If not all readers are attached [S4], or if the value is below the present one [S1].
    #[inline]
    pub fn raise<T: Word>(&mut self, column: Column<T>, value: T) {
        self.note(column, value);
        self.posts.push(Post::Guard(column.word()));
    }

    /// Stores `value` into the own row, for this member and for [`StateTable::publish`]; readers may see it at once, or never.
    ///
    /// # Panics
    /// As [`StateTable::raise`].
    #[inline]
    pub fn note<T: Word>(&mut self, column: Column<T>, value: T) {
        assert!(self.is_ready(), "[S4] a store before all readers are attached");
        self.store(column, value);
    }

    #[inline]
    fn store<T: Word>(&self, column: Column<T>, value: T) {
        let row = &self.rows[self.rank];
        let before = row.load_relaxed(column.word());
        assert!(
            before <= value.to_word(),
            "[S1] column {} back from {before} to {}",
            column.word(),
            value.to_word()
        );
        column.store(row, value);
    }

    /// Stores a value that will be stored again and again while the table lives, like a heartbeat: a reader that attaches
    /// late and misses this one gets a later one. So it may be stored before all readers are attached.
    ///
    /// # Panics
    /// If the value is below the present one [S1].
    #[inline]
    pub fn renew<T: Word>(&mut self, column: Column<T>, value: T) {
        self.store(column, value);
        self.posts.push(Post::Guard(column.word()));
    }

    /// Readers get the present values of adjacent columns that were noted, at the next [`StateTable::flush`], after all that
    /// was stored before. There is no order among them [F2].
    #[inline]
    pub fn publish(&mut self, words: Range<usize>) {
        self.posts.push(Post::Guards(words));
    }

    /// Queues words of the own row that the caller has stored and that a later [`StateTable::raise`] announces.
    ///
    /// # Panics
    /// If not all readers are attached [S4].
    #[inline]
    pub fn append(&mut self, words: Range<usize>) {
        assert!(self.is_ready(), "[S4] a store before all readers are attached");
        self.posts.push(Post::List(words));
    }

    /// Whether something has been stored since the last flush.
    #[inline]
    #[must_use]
    pub fn has_posts(&self) -> bool {
        !self.posts.is_empty()
    }

    /// Posts what has been stored since the last flush, in order; returns the number of posts.
    #[inline]
    pub fn flush<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let count = self.posts.len();
        mutant!(GuardBeforeList => self.posts.reverse());
        for post in self.posts.drain(..) {
            match post {
                Post::List(words) => fabric.push(self.mirror, words),
                Post::Guard(word) if mutant!(GuardByReference) => fabric.push(self.mirror, word..word + 1),
                Post::Guard(word) => fabric.push_word(self.mirror, word),
                Post::Guards(words) if mutant!(GuardByReference) => fabric.push(self.mirror, words),
                Post::Guards(words) => fabric.push_values(self.mirror, words),
            }
        }
        count
    }

    /// Stops the row of `rank`: it never changes again here [S5].
    ///
    /// # Panics
    /// If `rank` is the own one.
    pub fn freeze<F: Fabric>(&mut self, fabric: &mut F, rank: usize) {
        assert!(rank != self.rank, "the own row is not frozen");
        mutant!(NoFreeze => return);
        fabric.freeze(&self.rows[rank]);
    }
}
