//! Pulled deliveries: an application thread walks stable messages in place, at its own pace (Spindle §3.1, §3.5).
//!
//! The polling thread publishes how far messages are stable; the consumer publishes how far it has released them, and
//! only released messages count as delivered. So a slow consumer fills the senders' windows and holds up nothing
//! else.
//!
//! **What is news.** Nulls become stable, too, and later than the messages for whose sake they were sent. A consumer that waits is not woken
//! for them: the polling thread knows from the announcements in which ranges there are messages, and publishes up to where there may be some
//! below the limit: `newest`. \[O7\] If `released >= newest`, everything from `released` to `limit` is nulls.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};

use super::consumer::TakenMessage;
use super::{Consumer, CorruptMemory, Deliver, Message};
use crate::coverage::{Point, reach};
use crate::mutation;

/// The state that the polling thread and a pulling consumer share, by lane: `released <= limit` and `newest <= limit`.
#[derive(Debug)]
pub(super) struct Handoff {
    limit: Vec<AtomicU64>,
    released: Vec<AtomicU64>,
    /// See \[O7\].
    newest: Vec<AtomicU64>,
    /// Set before the last limits: see [`Consumer::end_view`].
    ends: OnceLock<Box<[u64]>>,
    closed: AtomicBool,
    /// Other members wait for what the consumer has taken: see [`Pull::is_urged`].
    urged: AtomicBool,
}

impl Handoff {
    pub(super) fn new(lanes: usize) -> Self {
        let zeros = || (0..lanes).map(|_| AtomicU64::new(0)).collect();
        Self {
            limit: zeros(),
            released: zeros(),
            newest: zeros(),
            ends: OnceLock::new(),
            closed: AtomicBool::new(false),
            urged: AtomicBool::new(false),
        }
    }

    /// Returns how far the consumer has released messages.
    #[inline]
    pub(super) fn released(&self, lane: usize) -> u64 {
        mutant!(ReleaseUnread => return self.limit[lane].load(Ordering::Relaxed));
        // SYNC: pairs with the release in `Pull::release`: leases below are released.
        self.released[lane].load(Ordering::Acquire)
    }

    /// Ends the view; the limits that follow are the last.
    pub(super) fn end_view(&self, ends: &[u64]) {
        self.ends.get_or_init(|| ends.into());
    }

    /// Returns how much the consumer has released in all lanes together, and whether there may be a message that it could take.
    pub(super) fn standing(&self) -> (u64, bool) {
        (self.released.iter().map(|count| count.load(Ordering::Relaxed)).sum(), self.has_messages())
    }

    /// Returns whether there may be a message that the consumer has not released.
    fn has_messages(&self) -> bool {
        let mut lanes = self.newest.iter().zip(&self.released);
        lanes.any(|(newest, released)| released.load(Ordering::Relaxed) < newest.load(Ordering::Relaxed))
    }

    /// Returns whether a consumer that has released all that it took may find something.
    fn has_news(&self) -> bool {
        self.has_messages() || self.closed.load(Ordering::Relaxed)
    }

    /// Asks the consumer to release what it has taken.
    pub(super) fn urge(&self) {
        self.urged.store(true, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        // SYNC: pairs with the acquire in `Pull::is_closed`: limits stored before are seen.
        self.closed.store(true, Ordering::Release);
    }
}

/// The polling thread's end of a handoff. When it is dropped, the consumer learns that nothing more follows.
#[derive(Debug)]
pub(super) struct HandoffProducer {
    handoff: Arc<Handoff>,
    /// Where there may be messages that have not been offered, by sender: in total order their sequences, else their indexes.
    announced: Vec<Range<u64>>,
}

impl HandoffProducer {
    pub(super) fn new(handoff: Arc<Handoff>, senders: usize) -> Self {
        Self { handoff, announced: vec![0..0; senders] }
    }

    /// Notes that there may be messages of a sender in this range, which follows those before.
    #[inline]
    pub(super) fn note_messages(&mut self, sender: usize, range: Range<u64>) {
        let known = &mut self.announced[sender];
        *known = if known.is_empty() { range } else { known.start..range.end };
    }

    /// Lets the consumer take what is below `limit`; returns whether the limit has changed.
    #[inline]
    pub(super) fn offer(&mut self, lane: usize, limit: u64) -> bool {
        let news = self.handoff.limit[lane].load(Ordering::Relaxed) != limit;
        if news {
            self.raise_newest(lane, limit);
            // SYNC: pairs with the acquire in `Pull::limit`.
            self.handoff.limit[lane].store(limit, Ordering::Release);
        }
        news
    }

    /// Notes up to where there may be messages below `limit`.
    #[inline]
    fn raise_newest(&mut self, lane: usize, limit: u64) {
        let senders = if self.handoff.limit.len() == 1 { 0..self.announced.len() } else { lane..lane + 1 };
        // Only this thread writes it.
        let newest = &self.handoff.newest[lane];
        let mut end = newest.load(Ordering::Relaxed);
        for range in &mut self.announced[senders] {
            if !range.is_empty() && range.start < limit {
                end = end.max(range.end.min(limit));
                range.start = limit;
            }
        }
        newest.store(end, Ordering::Relaxed);
    }
}

impl std::ops::Deref for HandoffProducer {
    type Target = Handoff;

    #[inline]
    fn deref(&self) -> &Handoff {
        &self.handoff
    }
}

impl Drop for HandoffProducer {
    fn drop(&mut self) {
        self.close();
    }
}

/// The upcall type of a subgroup whose deliveries are pulled, which has no upcall.
#[derive(Debug)]
pub enum NoUpcall {}

/// What the application has taken of a subgroup whose deliveries are pulled, in all views together, for operators: it may still take
/// messages of a view that has ended. One thread at a time adds to it, others read it.
#[derive(Debug, Default)]
pub struct DeliveryTally {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl DeliveryTally {
    /// Returns the numbers of messages and bytes.
    #[must_use]
    pub fn taken(&self) -> (u64, u64) {
        (self.messages.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    #[inline]
    fn add(&self, messages: u64, bytes: u64) {
        // Only this thread writes them.
        self.messages.store(self.messages.load(Ordering::Relaxed) + messages, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }
}

impl Deliver for NoUpcall {
    fn deliver(&mut self, _message: Message<'_>) {
        match *self {}
    }
}

/// What another thread sees of a consumer that waits, to wake it: see [`Pull::watch`].
#[derive(Clone, Debug)]
pub struct PullWatch(Arc<Handoff>);

impl PullWatch {
    /// Returns whether both are of one consumer.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether a consumer that has released all that it took may find something: messages, or that the subgroup has ended. For
    /// nulls alone it need not look. The caller and the consumer need a barrier between this look and what it depends on, as for any sleep.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.0.has_news()
    }
}

/// The consuming end of a subgroup whose deliveries are pulled. Messages are read in place; they keep their place
/// in the senders' windows until [`Pull::release`].
#[derive(Debug)]
pub struct Pull {
    consumer: Consumer,
    handoff: Arc<Handoff>,
    /// A message that has been found and not yet handed over, and its lane.
    found: Option<(usize, TakenMessage)>,
    /// Where what was taken is counted, and what is counted there of this view.
    tally: Option<Arc<DeliveryTally>>,
    tallied: (u64, u64),
}

impl Pull {
    pub(super) const fn new(consumer: Consumer, handoff: Arc<Handoff>) -> Self {
        Self { consumer, handoff, found: None, tally: None, tallied: (0, 0) }
    }

    /// Counts in `tally` what is taken from now on, whenever it is released.
    pub fn count_in(&mut self, tally: Arc<DeliveryTally>) {
        self.tally = Some(tally);
    }

    /// Returns whether there is a message now.
    ///
    /// # Errors
    /// [`CorruptMemory`]: nothing more may be delivered [O6].
    pub fn has_message(&mut self) -> Result<bool, CorruptMemory> {
        for lane in 0..self.handoff.limit.len() {
            if self.found.is_some() {
                break;
            }
            let limit = self.limit(lane);
            self.found = self.consumer.take_next(lane, limit)?.map(|taken| (lane, taken));
        }
        Ok(self.found.is_some())
    }

    /// Returns the view and the sequence of the next message, if there is one now.
    ///
    /// # Errors
    /// [`CorruptMemory`]: nothing more may be delivered [O6].
    pub fn next_position(&mut self) -> Result<Option<(u64, u64)>, CorruptMemory> {
        self.has_message()?;
        Ok(self.found.map(|(_, taken)| (self.consumer.view(), taken.sequence())))
    }

    /// Returns the next message, in place, if there is one now. Until [`Pull::release`] its words are not reused.
    ///
    /// # Errors
    /// [`CorruptMemory`]: nothing more may be delivered [O6].
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, CorruptMemory> {
        self.has_message()?;
        Ok(self.found.take().map(|(_, taken)| self.consumer.message(taken)))
    }

    /// Hands over what is stable, but at most `count` sequences of each lane, then releases it; returns the number of messages.
    ///
    /// # Errors
    /// [`CorruptMemory`]: nothing more may be delivered [O6].
    #[inline]
    pub fn consume<D: Deliver>(&mut self, count: u64, deliver: &mut D) -> Result<u64, CorruptMemory> {
        let before = self.consumer.handed_over().0;
        if let Some((_, taken)) = self.found.take() {
            deliver.deliver(self.consumer.message(taken));
        }
        for lane in 0..self.handoff.limit.len() {
            let limit = self.limit(lane);
            if limit > self.consumer.taken()[lane] {
                self.consumer.consume(lane, limit, count, deliver)?;
            }
        }
        self.release();
        Ok(self.consumer.handed_over().0 - before)
    }

    /// Hands over messages as [`Pull::consume`] does, until `deliver` returns false: that message is next again. Releases what was handed over
    /// or skipped, and returns whether there was any: then the polling thread has to look.
    ///
    /// # Errors
    /// [`CorruptMemory`]: nothing more may be delivered [O6].
    #[inline]
    pub fn consume_while(
        &mut self,
        count: u64,
        mut deliver: impl FnMut(Message<'_>) -> bool,
    ) -> Result<bool, CorruptMemory> {
        let mut goes_on = true;
        if let Some((_, taken)) = self.found {
            goes_on = deliver(self.consumer.look_at(taken));
            if goes_on {
                self.found = None;
                self.consumer.message(taken);
            }
        }
        for lane in 0..self.handoff.limit.len() {
            let limit = self.limit(lane);
            if goes_on && limit > self.consumer.taken()[lane] {
                let limit = limit.min(self.consumer.taken()[lane].saturating_add(count));
                let refused = self.consumer.walk(lane, limit, &mut deliver)?;
                self.found = refused.map(|taken| (lane, taken));
                goes_on = refused.is_none();
            }
        }
        let releases = self.owes_release();
        self.release();
        Ok(releases)
    }

    /// Returns whether there is anything to release: messages that were handed over, or nulls and messages of an
    /// earlier view that were skipped. The latter also take space in their senders' windows, so a consumer that finds
    /// no message releases them.
    #[inline]
    #[must_use]
    pub fn owes_release(&self) -> bool {
        let is_behind = |(lane, released): (usize, &AtomicU64)| {
            // Only this thread writes it.
            released.load(Ordering::Relaxed) != self.given_up(lane)
        };
        self.handoff.released.iter().enumerate().any(is_behind)
    }

    /// Releases everything handed over so far to its senders.
    pub fn release(&mut self) {
        for (lane, released) in self.handoff.released.iter().enumerate() {
            reach(Point::PullReleased);
            // SYNC: pairs with the acquire in `Handoff::released`.
            released.store(self.given_up(lane), Ordering::Release);
        }
        if let Some(tally) = &self.tally {
            let taken = self.consumer.handed_over();
            tally.add(taken.0 - self.tallied.0, taken.1 - self.tallied.1);
            self.tallied = taken;
        }
        // The polling thread reads this cache line in each evaluation, and a store each time would make it miss.
        if self.is_urged() {
            self.handoff.urged.store(false, Ordering::Relaxed);
        }
    }

    /// Returns how much of `lane` was handed over or skipped.
    #[inline]
    fn given_up(&self, lane: usize) -> u64 {
        match &self.found {
            Some((found, message)) if *found == lane => message.sequence(),
            _ => self.consumer.taken()[lane],
        }
    }

    /// Returns whether nothing has been released for a while, although there are messages. Then release what was
    /// taken, since the others cannot distinguish a consumer that releases late from one that has stopped.
    #[inline]
    #[must_use]
    pub fn is_urged(&self) -> bool {
        self.handoff.urged.load(Ordering::Relaxed)
    }

    /// Returns a view of this consumer's messages for another thread.
    #[must_use]
    pub fn watch(&self) -> PullWatch {
        PullWatch(Arc::clone(&self.handoff))
    }

    /// Returns whether the subgroup has ended; what is stable can still be taken.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // SYNC: pairs with the release in `Handoff::close`.
        self.handoff.closed.load(Ordering::Acquire)
    }

    /// Lets go of the windows if the subgroup has ended and nothing is left to take: a consumer that takes its messages late, or never,
    /// does not keep the memory of every view until then.
    pub fn shed(&mut self) {
        // Nothing is offered after the end.
        if self.is_closed() && self.has_message() == Ok(false) {
            self.consumer.shed();
        }
    }

    #[inline]
    fn limit(&mut self, lane: usize) -> u64 {
        // SYNC: pairs with the release in `Handoff::offer`.
        let limit = self.handoff.limit[lane].load(Ordering::Acquire);
        if let Some(ends) = self.handoff.ends.get()
            && !self.consumer.has_ended()
        {
            self.consumer.end_view(ends);
        }
        limit
    }
}

#[cfg(test)]
mod tests;
