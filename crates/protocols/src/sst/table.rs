//! The table itself: one row per member, of which the member's own is writable (Derecho §3.2).

use std::ops::Range;

use crate::mutation;
use squall_fabric::layout::Word;
use squall_fabric::{Column, Fabric, FabricEvent, MirrorId, MirrorKey, NodeId, Region, WriteSource};

/// A shared state table, as one member sees it.
#[derive(Debug)]
pub struct StateTable {
    key: MirrorKey,
    /// The members by rank.
    members: Vec<NodeId>,
    /// This member's rank: `rank < members.len()`.
    rank: usize,
    /// The rows by rank; `rows[rank]` is writable, the others are read-only mirrors.
    rows: Vec<Region>,
    mirror: MirrorId,
    /// Whether each reader, by rank, has attached this member's row, or is excused.
    attached: Vec<bool>,
    /// The number of readers that have not attached yet; 0 means ready [S4].
    awaited: usize,
    /// Whether each reader, by rank, was excused before it attached: it misses what is stored meanwhile.
    excused: Vec<bool>,
    /// The number of readers that have attached, whether or not they were excused before.
    readers: usize,
    /// A reader has attached late: see [`StateTable::take_late_reader`].
    has_late_reader: bool,
    /// What has been stored and is not posted yet, in order.
    posts: Vec<Post>,
}

/// A store that is to be posted to readers.
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
    /// Returns the table `key` of `members`, with rows of `words` words. Publishes this member's row and attaches the
    /// others.
    ///
    /// # Panics
    /// If this node is not among the members.
    pub fn new<F: Fabric>(fabric: &mut F, key: MirrorKey, members: &[NodeId], words: usize) -> Self {
        let own = fabric.node();
        let rank = members.iter().position(|member| *member == own).expect("this node is a member");
        let row = fabric.register(words);
        // The next member first: if all members began with the same one, its link would be full while those of the
        // others are idle, and each round of pushes would take twice its time.
        let readers = [&members[rank + 1..], &members[..rank]].concat();
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
            readers: 0,
            has_late_reader: false,
            posts: Vec::with_capacity(64),
        }
    }

    /// Notes which readers have attached this member's row. Other events are ignored.
    pub fn handle_event(&mut self, event: &FabricEvent) {
        let FabricEvent::Attached { key, reader } = event else { return };
        if *key != self.key {
            return;
        }
        let Some(rank) = self.members.iter().position(|member| member == reader) else { return };
        self.readers += 1;
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

    /// Returns how many readers have attached this member's row, those that were excused before included.
    #[must_use]
    pub const fn readers(&self) -> usize {
        self.readers
    }

    /// Returns whether the reader with rank `rank` was excused before it attached: it may see a guard without what
    /// the guard announces, which was pushed before \[S2\].
    #[must_use]
    pub fn is_excused(&self, rank: usize) -> bool {
        self.excused[rank]
    }

    /// Returns whether a reader that was excused has attached since the last call. It has missed what was stored
    /// before.
    #[must_use]
    pub const fn take_late_reader(&mut self) -> bool {
        std::mem::replace(&mut self.has_late_reader, false)
    }

    /// Returns whether all members have attached this member's row: only then may it be stored into [S4].
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.awaited == 0 || mutant!(StoreBeforeReady)
    }

    /// Returns the mirror of this member's row, to be retired when all readers are done with it.
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

    /// Returns the row of the member with rank `rank`, which is read-only unless it is this member's.
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline]
    #[must_use]
    pub fn row(&self, rank: usize) -> &Region {
        &self.rows[rank]
    }

    /// Returns all rows by rank.
    #[inline]
    #[must_use]
    pub fn rows(&self) -> &[Region] {
        &self.rows
    }

    /// Returns this member's row, for storing lists that a later [`StateTable::raise`] announces.
    #[inline]
    #[must_use]
    pub fn own(&self) -> &Region {
        &self.rows[self.rank]
    }

    /// Stores `value` into this member's row; readers get it at the next [`StateTable::flush`], after all that was
    /// stored before it.
    ///
    /// # Panics
    /// If not all readers have attached [S4], or if the value is below the current one [S1].
    #[inline]
    pub fn raise<T: Word>(&mut self, column: Column<T>, value: T) {
        self.note(column, value);
        self.posts.push(Post::Guard(column.word()));
    }

    /// Stores `value` into this member's row, for this member and for [`StateTable::publish`]; readers may see it at
    /// once, or never.
    ///
    /// # Panics
    /// If [`StateTable::raise`] would panic.
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
            "[S1] column {} would decrease from {before} to {}",
            column.word(),
            value.to_word()
        );
        column.store(row, value);
    }

    /// Stores a value that will be stored repeatedly while the table lives, like a heartbeat: a reader that attaches
    /// late and misses this one gets a later one. So it may be stored before all readers have attached.
    ///
    /// # Panics
    /// If the value is below the current one [S1].
    #[inline]
    pub fn renew<T: Word>(&mut self, column: Column<T>, value: T) {
        self.store(column, value);
        self.posts.push(Post::Guard(column.word()));
    }

    /// Queues the current values of adjacent columns that were noted: readers get them at the next
    /// [`StateTable::flush`], after all that was stored before. There is no order among them [F2], and many come in several pieces.
    #[inline]
    pub fn publish(&mut self, words: Range<usize>) {
        self.posts.push(Post::Guards(words));
    }

    /// Queues words of this member's row that the caller has stored and that a later [`StateTable::raise`] announces.
    ///
    /// # Panics
    /// If not all readers have attached [S4].
    #[inline]
    pub fn append(&mut self, words: Range<usize>) {
        assert!(self.is_ready(), "[S4] a store before all readers are attached");
        self.posts.push(Post::List(words));
    }

    /// Returns whether something has been stored since the last flush.
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
                Post::Guards(words) => {
                    let pieces = words.clone().step_by(WriteSource::VALUE_WORDS_MAX);
                    let piece = |first| first..words.end.min(first + WriteSource::VALUE_WORDS_MAX);
                    let most = if mutant!(FirstPieceOnly) { 1 } else { pieces.len() };
                    pieces.take(most).for_each(|first| fabric.push_values(self.mirror, piece(first)));
                }
            }
        }
        count
    }

    /// Freezes the row of `rank`: it never changes again here [S5].
    ///
    /// # Panics
    /// If `rank` is this member's.
    pub fn freeze<F: Fabric>(&mut self, fabric: &mut F, rank: usize) {
        assert!(rank != self.rank, "a member does not freeze its own row");
        mutant!(NoFreeze => return);
        fabric.freeze(&self.rows[rank]);
    }
}
