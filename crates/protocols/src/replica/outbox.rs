//! Updates that are to be sent to the group, this member's own and those of its clients (Derecho app. A; Spindle §3.2
//! on opportunistic batching).
//!
//! Updates are sent in messages of the shard's subgroup. An update that finds space in the window is sent at once;
//! those that find none are gathered in one message, which is sent when there is space: so under load many updates
//! cost one message, and without load none waits for others.
//!
//! **State** of an [`Outbox`]: [`UnderWay`], the updates that have been taken and not answered; the *batch*, the
//! latest of them, which are not in a window yet; and the window, with the view since which this member had been in
//! the shard when it got the window; and how many requests of this member are *elsewhere*: they came before it held the state, so other
//! members of the shard are asked, and an update that came later must not overtake them \[A17\].
//!
//! **Step order.** [`Outbox::begin`] when the replica holds the state. [`Outbox::submit_own`] for each update of this member, and
//! [`Outbox::note_elsewhere`] if another member is asked since that is refused, then [`Outbox::note_returned`] when there is an
//! outcome; [`Outbox::submit`] for each update of a client; and [`Outbox::flush`] after the last of a burst and whenever there may be space. [`Outbox::deliver`] for each update
//! of this member that is applied. [`Outbox::drop_closed`] when a view begins, then [`Outbox::leave`] if this member
//! is no longer in the shard. [`Outbox::stop`] when it has left the group.

use squall_fabric::window::{Payload, ReserveError, WindowWriter};

use super::message::{HEADER_BYTES, UpdateOrigin};
use super::mutation;
use super::under_way::{UnderWay, UpdateOutcome};
use crate::coverage::{Point, reach};

/// The source of an update that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateSource {
    /// This member's own.
    Own,
    /// It opens a session.
    Opening,
    /// A query whose answer is to include all updates acknowledged before.
    Query,
    /// A client's update: see [`UpdateOrigin::Session`].
    Session {
        /// The session's number.
        id: u64,
        /// The update's number in the session.
        number: u64,
        /// The number of updates before it that are open.
        open: u32,
    },
}

/// Why an update is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// There is no space now.
    Full,
    /// This member is not in the shard, or does not hold the state, or has left the shard and entered it again.
    NotHere,
    /// It is longer than the longest message allows.
    TooLong {
        /// The longest update in bytes.
        bytes_max: usize,
    },
    /// This member has left the group.
    Ended,
}

/// The updates that are to be sent, see the module's documentation; `T` waits for an update.
#[derive(Debug)]
pub struct Outbox<T> {
    under_way: UnderWay<T>,
    batch: Vec<u8>,
    /// The number of updates in the batch.
    batched: usize,
    writer: Option<(WindowWriter, u64)>,
    message_max: usize,
    /// The number of this member's requests that other members are asked for.
    elsewhere: usize,
    has_ended: bool,
}

impl<T> Outbox<T> {
    /// Returns the outbox of a subgroup whose messages have at most `message_max` bytes.
    #[must_use]
    pub fn new(message_max: usize) -> Self {
        let under_way = UnderWay::default();
        Self {
            under_way,
            batch: Vec::new(),
            batched: 0,
            writer: None,
            message_max,
            elsewhere: 0,
            has_ended: false,
        }
    }

    /// The longest update in bytes.
    #[must_use]
    pub const fn update_bytes_max(&self) -> usize {
        self.message_max.saturating_sub(HEADER_BYTES)
    }

    /// Notes that this member holds the state, and has been in the shard since view `since`.
    pub const fn begin(&mut self, since: u64) {
        self.under_way.begin(since);
    }

    /// Returns whether updates are accepted.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.under_way.since().is_some() && !self.has_ended
    }

    /// Returns whether no update waits for its outcome.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns whether everything that was taken is in a window.
    #[must_use]
    pub const fn has_sent_all(&self) -> bool {
        self.batch.is_empty()
    }

    /// Takes an update or query of this member and `waiting`, as [`Outbox::submit`] does, unless earlier ones are elsewhere. It is sent at
    /// once if there is space.
    ///
    /// # Errors
    /// [`Hindrance`], [`Hindrance::Full`] also until the earlier ones have their outcomes; then `waiting` is not taken.
    pub fn submit_own(
        &mut self,
        source: UpdateSource,
        update: &[u8],
        waiting: &mut Option<T>,
        take_writer: impl FnMut() -> Option<(WindowWriter, u64)>,
    ) -> Result<(), Hindrance> {
        let write = |message: &mut Payload<'_>| message.put(update);
        self.submit_own_written(source, update.len(), &mut Some(write), waiting, take_writer)
    }

    /// Takes an update or query of this member as [`Outbox::submit_own`] does; `write` writes its `length` bytes, in the window if there is space.
    ///
    /// # Errors
    /// Those of [`Outbox::submit_own`]; then neither `waiting` nor `write` is taken.
    ///
    /// # Panics
    /// If one of them has been taken.
    pub fn submit_own_written<W: FnOnce(&mut Payload<'_>)>(
        &mut self,
        source: UpdateSource,
        length: usize,
        write: &mut Option<W>,
        waiting: &mut Option<T>,
        mut take_writer: impl FnMut() -> Option<(WindowWriter, u64)>,
    ) -> Result<(), Hindrance> {
        let waits = self.elsewhere > 0 && !mutant!(OvertakeElsewhere);
        if waits && self.is_open() {
            return Err(Hindrance::Full);
        }
        self.check(length)?;
        let has_gathered = !self.batch.is_empty() && !mutant!(OvertakeBatch);
        if !has_gathered && self.send(source, length, write, waiting, &mut take_writer).is_ok() {
            return Ok(());
        }
        self.make_space(length, take_writer)?;
        // If this panics, nothing has been added.
        let mut update = vec![0; length];
        taken(write)(&mut Payload::over(&mut update));
        self.gather(source, &update, waiting);
        Ok(())
    }

    /// Sends an update in a message of its own, if there is space: then it is taken.
    fn send<W: FnOnce(&mut Payload<'_>)>(
        &mut self,
        source: UpdateSource,
        length: usize,
        write: &mut Option<W>,
        waiting: &mut Option<T>,
        take_writer: &mut impl FnMut() -> Option<(WindowWriter, u64)>,
    ) -> Result<(), Hindrance> {
        let writer = window(&mut self.writer, self.under_way.since(), take_writer)?;
        let sent = writer.send_written(HEADER_BYTES + length, |message| {
            let origin = source.origin(&mut self.under_way);
            message.put(&origin.header(length));
            taken(write)(message);
            // Before others can see it.
            self.under_way.send(origin, taken(waiting));
        });
        sent.map_err(hindrance)
    }

    /// Adds an update to the batch.
    fn gather(&mut self, source: UpdateSource, update: &[u8], waiting: &mut Option<T>) {
        let origin = source.origin(&mut self.under_way);
        origin.append(update, &mut self.batch);
        self.batched += 1;
        self.under_way.send(origin, taken(waiting));
    }

    /// Sends the batch, if an update of this length would make it too long.
    fn make_space(
        &mut self,
        length: usize,
        take_writer: impl FnMut() -> Option<(WindowWriter, u64)>,
    ) -> Result<(), Hindrance> {
        let is_too_long = self.batch.len() + HEADER_BYTES + length > self.message_max;
        if is_too_long { self.flush(take_writer) } else { Ok(()) }
    }

    /// Notes that another member is asked for an update or query of this one, which was refused as [`Hindrance::NotHere`].
    pub const fn note_elsewhere(&mut self) {
        self.elsewhere += 1;
    }

    /// Notes the outcome of a request that was elsewhere; returns whether it was the last one, so there may be space.
    ///
    /// # Panics
    /// If there was none.
    pub const fn note_returned(&mut self) -> bool {
        self.elsewhere = self.elsewhere.checked_sub(1).expect("a request was elsewhere");
        self.elsewhere == 0
    }

    /// Takes an update and `waiting`; [`Outbox::flush`] sends it.
    ///
    /// # Errors
    /// [`Hindrance`]; then `waiting` is not taken.
    pub fn submit(
        &mut self,
        source: UpdateSource,
        update: &[u8],
        waiting: &mut Option<T>,
        take_writer: impl FnMut() -> Option<(WindowWriter, u64)>,
    ) -> Result<(), Hindrance> {
        self.check(update.len())?;
        self.make_space(update.len(), take_writer)?;
        self.gather(source, update, waiting);
        Ok(())
    }

    /// Returns why an update would not be accepted, if it would not.
    const fn check(&self, length: usize) -> Result<(), Hindrance> {
        let bytes_max = self.update_bytes_max();
        match () {
            () if length > bytes_max => Err(Hindrance::TooLong { bytes_max }),
            () if self.has_ended => Err(Hindrance::Ended),
            () if self.under_way.since().is_none() => Err(Hindrance::NotHere),
            () => Ok(()),
        }
    }

    /// Sends the batch as one message, if there is any. `take_writer` returns the window of the current view, once.
    ///
    /// # Errors
    /// [`Hindrance::Full`]: it is to be sent later; [`Hindrance::NotHere`]: this member has left the shard, and the
    /// thread that applies updates, which has not learned that yet, will report that they are not delivered.
    pub fn flush(
        &mut self,
        mut take_writer: impl FnMut() -> Option<(WindowWriter, u64)>,
    ) -> Result<(), Hindrance> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let writer = window(&mut self.writer, self.under_way.since(), &mut take_writer)?;
        writer.send_written(self.batch.len(), |message| message.put(&self.batch)).map_err(hindrance)?;
        if self.batched > 1 {
            reach(Point::UpdatesTogether);
        }
        self.batch.clear();
        self.batched = 0;
        Ok(())
    }

    /// Notes that an update of this member is delivered; returns its waiter.
    ///
    /// # Panics
    /// If it is not the oldest: the group guarantees order.
    pub fn deliver(&mut self, origin: UpdateOrigin) -> T {
        self.under_way.deliver(origin)
    }

    /// Gives up the window if its view has ended; returns whether it has.
    pub fn drop_closed(&mut self) -> bool {
        let is_closed = self.writer.as_ref().is_some_and(|(writer, _)| writer.is_closed());
        if is_closed {
            self.writer = None;
        }
        is_closed
    }

    /// Notes that this member has left the shard: updates that were not delivered are in no state. Returns the
    /// waiters.
    pub fn leave(&mut self) -> Vec<T> {
        self.batch.clear();
        self.batched = 0;
        self.under_way.leave::<()>().into_iter().map(|(waiting, _)| waiting).collect()
    }

    /// Notes that this member has left the group, or was removed. Returns the waiters and the outcomes; no update is
    /// accepted any more.
    pub fn stop(&mut self) -> Vec<(T, UpdateOutcome<()>)> {
        (self.has_ended, self.writer) = (true, None);
        self.batch.clear();
        let mut outcomes = self.under_way.stop::<()>();
        // These were in no message.
        let unsent = outcomes.len() - std::mem::take(&mut self.batched);
        outcomes[unsent..].iter_mut().for_each(|(_, outcome)| *outcome = UpdateOutcome::NotDelivered);
        outcomes
    }
}

impl UpdateSource {
    /// Returns the origin of the next update, which has a new number if it is this member's.
    const fn origin<T>(self, under_way: &mut UnderWay<T>) -> UpdateOrigin {
        match self {
            Self::Own => UpdateOrigin::Member(under_way.number()),
            Self::Opening => UpdateOrigin::Open(under_way.number()),
            Self::Query => UpdateOrigin::Query(under_way.number()),
            Self::Session { id, number, open } => UpdateOrigin::Session { id, number, open },
        }
    }
}

/// Returns the window to send in: `present`, or the next one if its view has ended. It must belong to the stay in the shard that has lasted `since`.
fn window<'w>(
    present: &'w mut Option<(WindowWriter, u64)>,
    since: Option<u64>,
    take_writer: &mut impl FnMut() -> Option<(WindowWriter, u64)>,
) -> Result<&'w mut WindowWriter, Hindrance> {
    if present.as_ref().is_none_or(|(writer, _)| writer.is_closed()) {
        // Messages committed in the old window are sent first, when no thread holds it any more.
        *present = None;
        *present = take_writer();
    }
    let (writer, stay) = present.as_mut().ok_or(Hindrance::Full)?;
    if Some(*stay) == since { Ok(writer) } else { Err(Hindrance::NotHere) }
}

fn taken<V>(value: &mut Option<V>) -> V {
    value.take().expect("an update is taken once")
}

fn hindrance(error: ReserveError) -> Hindrance {
    match error {
        ReserveError::Full | ReserveError::Closed => Hindrance::Full,
        ReserveError::TooLong { .. } => {
            unreachable!("neither an update nor a batch is longer than a message")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE_MAX: usize = 3 * (HEADER_BYTES + 4);

    fn submit(outbox: &mut Outbox<u32>, who: u32) -> Result<(), Hindrance> {
        outbox.submit(UpdateSource::Own, &[0; 4], &mut Some(who), || None)
    }

    /// Without space, updates are gathered in one message, and an update that does not fit into it is refused.
    #[test]
    fn updates_gather_while_there_is_no_space() {
        let mut outbox = Outbox::new(MESSAGE_MAX);
        assert_eq!(submit(&mut outbox, 0), Err(Hindrance::NotHere));
        outbox.begin(3);
        let long = vec![0; MESSAGE_MAX];
        let bytes_max = MESSAGE_MAX - HEADER_BYTES;
        let refused = outbox.submit(UpdateSource::Own, &long, &mut Some(9), || None);
        assert_eq!(refused, Err(Hindrance::TooLong { bytes_max }));
        (0..3).for_each(|who| assert_eq!(submit(&mut outbox, who), Ok(())));
        assert_eq!(submit(&mut outbox, 3), Err(Hindrance::Full));
        assert_eq!(outbox.flush(|| None), Err(Hindrance::Full));
        assert_eq!(outbox.stop(), (0..3).map(|who| (who, UpdateOutcome::NotDelivered)).collect::<Vec<_>>());
        assert_eq!(submit(&mut outbox, 4), Err(Hindrance::Ended));
    }

    /// What an application writes in place may panic: then nothing has been taken, and others are not concerned.
    #[test]
    fn an_update_whose_writing_panics_is_not_taken() {
        let mut outbox = Outbox::new(MESSAGE_MAX);
        outbox.begin(3);
        assert_eq!(submit(&mut outbox, 0), Ok(()));
        let mut panics = Some(|_: &mut Payload<'_>| panic!("it cannot be written"));
        let mut waiting = Some(1);
        let submission = std::panic::AssertUnwindSafe(|| {
            outbox.submit_own_written(UpdateSource::Own, 4, &mut panics, &mut waiting, || None)
        });
        assert!(std::panic::catch_unwind(submission).is_err());
        assert_eq!(waiting, Some(1));
        assert_eq!(submit(&mut outbox, 2), Ok(()));
        assert_eq!(super::super::items(&outbox.batch).count(), 2);
        assert_eq!(outbox.stop(), [0, 2].map(|who| (who, UpdateOutcome::NotDelivered)));
    }

    /// \[A17\] What is submitted when this member holds the state is behind what other members were asked for before.
    #[test]
    fn an_update_does_not_overtake_one_that_is_elsewhere() {
        let overtakes = |mutation| {
            mutation::with(mutation, || {
                let mut outbox = Outbox::new(2 * MESSAGE_MAX);
                let own = |outbox: &mut Outbox<u32>| {
                    outbox.submit_own(UpdateSource::Own, &[0; 4], &mut Some(0), || None)
                };
                assert_eq!(own(&mut outbox), Err(Hindrance::NotHere));
                outbox.note_elsewhere();
                assert_eq!(own(&mut outbox), Err(Hindrance::NotHere), "it goes the same way");
                outbox.note_elsewhere();
                outbox.begin(3);
                assert_eq!(submit(&mut outbox, 7), Ok(()), "a client's update is not concerned");
                let first = own(&mut outbox).is_ok();
                assert!(!outbox.note_returned());
                let second = own(&mut outbox).is_ok();
                assert!(outbox.note_returned());
                assert_eq!(own(&mut outbox), Ok(()));
                first || second
            })
        };
        assert!(!overtakes(None));
        assert!(overtakes(Some(mutation::ReplicaMutation::OvertakeElsewhere)));
    }
}
