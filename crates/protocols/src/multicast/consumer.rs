//! Delivery: walking stable messages in place, in order (Derecho §3.4, Spindle §3.1, §3.5).
//!
//! A [`Consumer`] holds one reader per sender. The polling thread owns it for upcalls; an application thread may own
//! it instead and pull, so that a slow consumer fills the window but never holds up acknowledgements.
//!
//! **Lanes.** In total order there is one lane, which counts sequences; in the other modes each sender has a lane,
//! which counts its indexes. `taken[lane]` is the position of the walk.

use std::fmt;
use std::sync::Arc;

use squall_fabric::NodeId;
use squall_fabric::window::{Announcement, WindowReader, WindowRecord};

use super::bodies::Bodies;
use super::walk::{SenderWindow, Walk};
use super::{CorruptMemory, MulticastRow, SubgroupSettings, ViewStart};
use crate::mutation;
use crate::sst::StateTable;

/// A message as it is delivered, in place.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The view in which it is delivered.
    pub view: u64,
    /// The sender's rank among the *members* of the subgroup in this view; it may differ from view to view.
    pub sender: usize,
    /// The sender, which is the same in all views.
    pub node: NodeId,
    /// The position among the sender's messages and nulls.
    pub index: u64,
    /// The position in the total order, counting nulls; in the other modes the same as `index`.
    pub sequence: u64,
    /// The payload, valid until it is reported as delivered.
    pub bytes: &'a [u8],
}

/// Takes messages by upcall from the polling thread. It should be brief, because the whole node waits for it (Spindle
/// §3.5).
pub trait Deliver {
    /// Takes the next message.
    fn deliver(&mut self, message: Message<'_>);

    /// Begins a view, in which messages are delivered from now on. `members` are the subgroup's, by rank.
    fn begin_view(&mut self, _view: u64, _members: &[NodeId]) {}

    /// Takes all messages that are deliverable now, without nulls. Messages that are not taken are offered again. For small messages
    /// an implementation that calls [`MessageBatch::for_each`] costs less than one that calls a function for each: the closure is inlined
    /// into the loop.
    fn deliver_batch(&mut self, batch: MessageBatch<'_>) {
        batch.for_each(|message| self.deliver(message));
    }
}

impl<T: FnMut(Message<'_>)> Deliver for T {
    #[inline]
    fn deliver(&mut self, message: Message<'_>) {
        self(message);
    }
}

impl Deliver for Box<dyn Deliver + Send> {
    fn deliver(&mut self, message: Message<'_>) {
        (**self).deliver(message);
    }

    fn begin_view(&mut self, view: u64, members: &[NodeId]) {
        (**self).begin_view(view, members);
    }

    /// Makes one indirect call for the whole batch.
    fn deliver_batch(&mut self, batch: MessageBatch<'_>) {
        (**self).deliver_batch(batch);
    }
}

/// Messages that are deliverable now, in order.
pub struct MessageBatch<'a> {
    consumer: &'a mut Consumer,
    lane: usize,
    limit: u64,
    corrupt: &'a mut Option<CorruptMemory>,
    /// Sees each message before it is handed over.
    tap: Option<&'a mut dyn FnMut(Message<'_>)>,
}

impl fmt::Debug for MessageBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("lane", &self.lane).field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<'a> MessageBatch<'a> {
    /// Returns the same batch; `tap` sees each message before it is handed over, and none that is not handed over.
    /// There is one tap: it replaces a previous one.
    #[doc(hidden)]
    #[must_use]
    pub fn tapped<'b>(self, tap: &'b mut dyn FnMut(Message<'_>)) -> MessageBatch<'b>
    where
        'a: 'b,
    {
        let Self { consumer, lane, limit, corrupt, tap: _ } = self;
        MessageBatch { consumer, lane, limit, corrupt, tap: Some(tap) }
    }

    /// Takes all messages.
    #[inline]
    pub fn for_each(self, mut deliver: impl FnMut(Message<'_>)) {
        let Self { consumer, lane, limit, corrupt, tap } = self;
        let walked = match tap {
            None if consumer.ends.is_none() => consumer.walk_view(lane, limit, &mut |message| {
                deliver(message);
                true
            }),
            tap => consumer.walk_rarely(lane, limit, tap, &mut deliver),
        };
        *corrupt = walked.err();
    }

    /// Takes the next message; its bytes stay valid while the upcall lasts.
    pub fn next_message(&mut self) -> Option<Message<'_>> {
        match self.consumer.take_next(self.lane, self.limit) {
            Ok(taken) => {
                let message = self.consumer.message(taken?);
                if let Some(tap) = &mut self.tap {
                    tap(message);
                }
                Some(message)
            }
            Err(corrupt) => {
                *self.corrupt = Some(corrupt);
                None
            }
        }
    }
}

/// The position of each lane; there is one lane in total order, and one per sender otherwise.
pub type Lanes = Box<[u64]>;

/// A walk over all senders' windows.
#[derive(Debug)]
pub struct Consumer {
    view: u64,
    senders: Vec<SenderWindow>,
    /// Whether there is one lane for all senders.
    ordered: bool,
    /// The number of sequences or indexes taken, by lane.
    taken: Lanes,
    /// In total order: the next sequence is index `round` of sender `next_sender`.
    round: u64,
    next_sender: usize,
    /// Messages and bytes handed over, nulls not counted.
    messages: u64,
    bytes: u64,
    /// When the view has ended: how many indexes of each sender are delivered in it; the rest are skipped.
    ends: Option<Box<[u64]>>,
}

/// A message that has been taken and not yet read.
#[derive(Clone, Copy, Debug)]
pub struct TakenMessage {
    pub(super) sender: usize,
    pub(super) index: u64,
    pub(super) sequence: u64,
    pub(super) record: WindowRecord,
}

impl TakenMessage {
    /// Returns how many sequences or indexes of its lane precede it.
    pub(crate) const fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl Consumer {
    /// Returns a walk from the beginning of a view.
    #[must_use]
    pub(super) fn new(
        table: &StateTable,
        row: &MulticastRow,
        settings: &SubgroupSettings,
        start: &ViewStart,
        bodies: Option<&Bodies>,
    ) -> Self {
        let reader = |(sender, member): (usize, &usize)| {
            let reader = WindowReader::new(table.row(*member), row.window);
            match bodies {
                Some(bodies) => {
                    let (ring, geometry) = bodies.ring(sender);
                    reader.with_bodies(ring, geometry)
                }
                None => reader,
            }
        };
        let columns = Arc::new(row.clone());
        let senders = settings.senders.iter().enumerate().map(|(sender, member)| SenderWindow {
            member: *member,
            node: table.members()[*member],
            row: table.row(*member).clone(),
            columns: Arc::clone(&columns),
            announced: Announcement::default(),
            reader: reader((sender, member)),
            known: start.known(table.members()[*member]),
        });
        let mut senders: Vec<SenderWindow> = senders.collect();
        mutant!(OrderOfOneMember if table.rank() == 1 => senders.reverse());
        Self {
            view: start.view,
            senders,
            ordered: settings.mode.is_ordered(),
            taken: vec![0; settings.lanes()].into_boxed_slice(),
            round: 0,
            next_sender: 0,
            messages: 0,
            bytes: 0,
            ends: None,
        }
    }

    /// Ends the view: `ends` are the numbers of indexes of each sender that are delivered in it.
    pub(super) fn end_view(&mut self, ends: &[u64]) {
        self.ends = Some(ends.into());
    }

    /// Lets go of all windows. Everything has been taken.
    pub(super) fn shed(&mut self) {
        self.senders = Vec::new();
    }

    /// Returns whether the view has ended.
    pub(super) const fn has_ended(&self) -> bool {
        self.ends.is_some()
    }

    /// Returns the position of each lane.
    #[inline]
    #[must_use]
    pub fn taken(&self) -> &[u64] {
        &self.taken
    }

    /// Messages and bytes handed over, nulls not counted.
    #[must_use]
    pub const fn handed_over(&self) -> (u64, u64) {
        (self.messages, self.bytes)
    }

    /// Hands over the messages of `lane` below `limit`, but at most `count` sequences or indexes. Returns how many
    /// were taken.
    ///
    /// # Errors
    /// [`CorruptMemory`]: nothing more may be delivered [O6].
    #[inline]
    pub fn consume<D: Deliver>(
        &mut self,
        lane: usize,
        limit: u64,
        count: u64,
        deliver: &mut D,
    ) -> Result<u64, CorruptMemory> {
        let before = self.taken[lane];
        let limit = limit.min(before.saturating_add(count));
        let mut corrupt = None;
        deliver.deliver_batch(MessageBatch { consumer: self, lane, limit, corrupt: &mut corrupt, tap: None });
        corrupt.map_or(Ok(self.taken[lane] - before), Err)
    }

    /// Notes what a sender has announced, which is not less than before, and lets its next messages enter this core's cache.
    #[inline]
    pub(super) fn foresee(&mut self, sender: usize, announced: Announcement) {
        self.senders[sender].foresee(announced);
    }

    /// Hands over the messages of `lane` below `limit`, until `deliver` returns false: that message is taken, but not handed over, and
    /// returned.
    #[inline]
    pub(super) fn walk(
        &mut self,
        lane: usize,
        limit: u64,
        deliver: &mut impl FnMut(Message<'_>) -> bool,
    ) -> Result<Option<TakenMessage>, CorruptMemory> {
        if self.ends.is_some() {
            return self.walk_ended(lane, limit, deliver);
        }
        self.walk_view(lane, limit, deliver)
    }

    /// The walk of a view that has ended, in which a part of what is announced is skipped.
    #[cold]
    #[inline(never)]
    fn walk_ended(
        &mut self,
        lane: usize,
        limit: u64,
        deliver: &mut dyn FnMut(Message<'_>) -> bool,
    ) -> Result<Option<TakenMessage>, CorruptMemory> {
        while let Some(taken) = self.take_next(lane, limit)? {
            if !deliver(self.look_at(taken)) {
                return Ok(Some(taken));
            }
            self.message(taken);
        }
        Ok(None)
    }

    /// The walk with a tap, or of a view that has ended. Not inlined, so that an upcall has one place, where it can be.
    #[cold]
    #[inline(never)]
    fn walk_rarely(
        &mut self,
        lane: usize,
        limit: u64,
        mut tap: Option<&mut dyn FnMut(Message<'_>)>,
        deliver: &mut dyn FnMut(Message<'_>),
    ) -> Result<Option<TakenMessage>, CorruptMemory> {
        self.walk(lane, limit, &mut |message| {
            if let Some(tap) = &mut tap {
                tap(message);
            }
            deliver(message);
            true
        })
    }

    /// The walk while the view lasts.
    #[inline(always)]
    fn walk_view(
        &mut self,
        lane: usize,
        limit: u64,
        deliver: &mut impl FnMut(Message<'_>) -> bool,
    ) -> Result<Option<TakenMessage>, CorruptMemory> {
        let before = self.taken[lane];
        let mut walk = Walk { next_sender: lane, round: before, messages: 0, bytes: 0, taken: before };
        if self.ordered {
            (walk.next_sender, walk.round) = (self.next_sender, self.round);
        }
        let result = walk.run(&mut self.senders, self.view, self.ordered, limit, deliver);
        if self.ordered {
            (self.next_sender, self.round) = (walk.next_sender, walk.round);
        }
        self.taken[lane] = walk.taken;
        self.messages += walk.messages;
        self.bytes += walk.bytes;
        result
    }

    /// Takes the next message of `lane` below `limit`, if there is one; nulls are skipped.
    ///
    /// # Errors
    /// [`CorruptMemory`]: nothing more may be delivered [O6].
    pub fn take_next(&mut self, lane: usize, limit: u64) -> Result<Option<TakenMessage>, CorruptMemory> {
        while self.taken[lane] < limit {
            let sequence = self.taken[lane];
            let (sender, index) = self.step(lane, sequence);
            let is_beyond = self.ends.as_ref().is_some_and(|ends| index >= ends[sender]);
            if is_beyond && !mutant!(DeliverBeyondTrim) {
                continue;
            }
            if let Some(record) = self.senders[sender].take(index)? {
                return Ok(Some(TakenMessage { sender, index, sequence, record }));
            }
        }
        Ok(None)
    }

    /// Returns the view.
    pub(super) const fn view(&self) -> u64 {
        self.view
    }

    /// Returns a message that [`Consumer::take_next`] has taken, in place.
    pub fn message(&mut self, taken: TakenMessage) -> Message<'_> {
        let length = self.look_at(taken).bytes.len();
        self.messages += 1;
        self.bytes += length as u64;
        self.look_at(taken)
    }

    /// Returns a message that is not handed over yet.
    #[inline]
    pub fn look_at(&self, taken: TakenMessage) -> Message<'_> {
        let source = &self.senders[taken.sender];
        let bytes = source.payload(taken.record);
        Message {
            view: self.view,
            sender: source.member,
            node: source.node,
            index: taken.index,
            sequence: taken.sequence,
            bytes,
        }
    }

    /// Counts one sequence of `lane` as taken; returns its sender and index.
    #[inline]
    fn step(&mut self, lane: usize, sequence: u64) -> (usize, u64) {
        self.taken[lane] = sequence + 1;
        if !self.ordered {
            return (lane, sequence);
        }
        let step = (self.next_sender, self.round);
        self.next_sender += 1;
        if self.next_sender == self.senders.len() {
            self.next_sender = 0;
            self.round += 1;
        }
        step
    }
}
