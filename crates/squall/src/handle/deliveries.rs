//! Receiving by pull: messages are read in place and released in batches (Spindle §3.1, §3.5).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use squall_protocols::group::SubgroupId;
use squall_protocols::multicast::{Message, Pull};
use squall_transports::Waker;

use crate::config::Retention;
use crate::durable::LogBorrower;
use crate::error::{GroupError, HandleError, ReceiveError};
use crate::handle::deliveries_from::DeliveriesFrom;
use crate::handle::owned::OwnedDeliveries;
#[cfg(feature = "futures")]
use crate::handle::owned::OwnedMessage;
use crate::slot::Position;
use crate::slot::SubgroupSlot;
use crate::slot::{SubgroupView, TapWriter};
use crate::status::GroupStatus;
use crate::wait::{Awaited, block_on};

/// The receiving end of a subgroup whose messages are pulled. A slow consumer fills the senders' windows, but
/// never holds up acknowledgements or other subgroups.
///
/// [`Deliveries::next`] returns messages; [`Deliveries::next_event`] returns the views between them as well, for
/// applications that act on who is in the subgroup:
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::{Config, DeliveryEvent, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::local(&format!("doc-deliveries-{}", std::process::id()), 1);
/// let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let log = group.subgroup("log")?;
/// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// sender.send_bytes(b"hello")?;
/// let mut members = Vec::new();
/// loop {
///     match deliveries.next_event()? {
///         DeliveryEvent::View(view) => members = view.members.clone(),
///         DeliveryEvent::Message(message) => {
///             assert_eq!(members[message.sender].node, message.node);
///             break;
///         }
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Deliveries {
    /// The receiving end of the view whose messages are being taken; none before the first view.
    pull: Option<Pull>,
    slot: Arc<SubgroupSlot>,
    waker: Waker,
    status: Arc<GroupStatus>,
    /// Messages taken since the last release.
    held: usize,
    /// The number of messages taken after which they are released.
    release_every: usize,
    /// Copies the messages for observers.
    outflow: TapWriter,
    /// The views that have begun after the last message taken, until they are asked for.
    views: VecDeque<Arc<SubgroupView>>,
    /// All messages before this position have been taken.
    taken: Position,
    /// The log, if the subgroup is durable; else the name of the subgroup.
    log: Result<DurablePlace, String>,
}

/// Where the log of a durable subgroup is.
#[derive(Clone, Debug)]
pub(crate) struct DurablePlace {
    pub(crate) log: LogBorrower,
    pub(crate) id: SubgroupId,
    /// Its place among the durable subgroups.
    pub(crate) shard: usize,
    /// What the log keeps in any case.
    pub(crate) retention: Retention,
}

/// What [`Deliveries::next_event`] returns.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// use squall::DeliveryEvent;
///
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-event-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let log = group.subgroup("log")?;
/// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// sender.send_bytes(b"hello")?;
/// let DeliveryEvent::View(view) = deliveries.next_event()? else { panic!("views come first") };
/// let DeliveryEvent::Message(message) = deliveries.next_event()? else { panic!("then their messages") };
/// println!("rank {} sent {:?}", view.members[message.sender].tag, message.bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DeliveryEvent<'a> {
    /// The messages from here on are delivered in this view. All members that are in this view and in the one before have
    /// delivered the same messages between the two. Of consecutive views without this member only the first and the last
    /// appear.
    View(Arc<SubgroupView>),
    /// A message, in place.
    Message(Message<'a>),
}

impl Deliveries {
    pub(crate) fn new(
        slot: Arc<SubgroupSlot>,
        waker: Waker,
        status: Arc<GroupStatus>,
        release_every: usize,
        log: Result<DurablePlace, String>,
    ) -> Self {
        let outflow = TapWriter::new(Arc::clone(slot.tap()));
        let (views, taken) = (VecDeque::new(), Position::default());
        Self { pull: None, slot, waker, status, held: 0, release_every, outflow, views, taken, log }
    }

    /// Returns a reader of this durable subgroup that begins at `position`: the messages from there on, from this member's log as far
    /// as they were delivered before, then, without a gap or a duplicate, those that are delivered. A process that has
    /// noted a position ([`DeliveriesFrom::position`]) continues there after its end, or after the end of all members.
    ///
    /// # Errors
    /// [`HandleError::NoLog`] if the subgroup is not durable.
    pub fn from(self, position: Position) -> Result<DeliveriesFrom, HandleError> {
        let log = self.log.clone().map_err(HandleError::NoLog)?;
        let live = log.log.borrow().and_then(|log| log.entered()).map_or(self.taken, Position::start_of);
        let live = live.max(self.taken);
        Ok(DeliveriesFrom::new(self, log, position, live))
    }

    /// Returns the next message, in place, or `None` if there is none now. The next call releases it.
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; messages that were delivered before it ended are returned first.
    pub fn try_next(&mut self) -> Result<Option<Message<'_>>, ReceiveError> {
        Ok(if self.look_for_message()? { self.take() } else { None })
    }

    /// Returns the next view or message, or `None` if there is none now. The next call releases a message.
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; what came before that is returned first.
    pub fn try_next_event(&mut self) -> Result<Option<DeliveryEvent<'_>>, ReceiveError> {
        if !self.look_for_event()? {
            return Ok(None);
        }
        match self.views.pop_front() {
            Some(view) => Ok(Some(DeliveryEvent::View(view))),
            None => Ok(self.take().map(DeliveryEvent::Message)),
        }
    }

    /// Hands messages that are there now to `upcall`, in place and in one pass, which costs less per message than
    /// [`Deliveries::try_next`], and releases them; returns how many, about an eighth of the window at most. It is 0 if there is no message
    /// now, or if a view comes before the next one: ask [`Deliveries::try_next_event`] for that.
    ///
    /// ```
    /// # use squall::config::SubgroupConfig;
    /// # use squall::{Config, DeliveryEvent, Group};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let config = Config::local(&format!("doc-batch-{}", std::process::id()), 1);
    /// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
    /// let log = group.subgroup("log")?;
    /// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
    /// (0..10u8).try_for_each(|number| sender.send_bytes(&[number]))?;
    /// let mut sum = 0;
    /// while sum < 45 {
    ///     if let DeliveryEvent::Message(message) = deliveries.next_event()? {
    ///         sum += message.bytes[0];
    ///     }
    ///     deliveries.try_batch(|message| sum += message.bytes[0])?; // what else is there already
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; what came before that is handed over first.
    pub fn try_batch(&mut self, mut upcall: impl FnMut(Message<'_>)) -> Result<usize, ReceiveError> {
        if !self.look_for_event()? || !self.views.is_empty() {
            return Ok(0);
        }
        let Some(pull) = &mut self.pull else { return Ok(0) };
        let (outflow, taken, mut count) = (&mut self.outflow, &mut self.taken, 0);
        let handed = pull.consume(self.release_every as u64, &mut |message: Message<'_>| {
            *taken = Position { view: message.view, sequence: message.sequence + 1 };
            if outflow.is_watched() {
                outflow.take(message);
            }
            count += 1;
            upcall(message);
        });
        self.held = 0;
        self.waker.wake();
        match handed {
            Ok(_) => Ok(count),
            Err(_) => Err(self.status.failure().unwrap_or(GroupError::Left).into()),
        }
    }

    /// Hands messages that are there now to `upcall`, in place, until it returns false: then it has not taken the message, which is next again.
    /// Releases what was taken, about an eighth of the window at most. Returns whether there may be more: messages, or a view, for which ask
    /// [`Deliveries::try_next_event`].
    ///
    /// ```
    /// # use squall::config::SubgroupConfig;
    /// # use squall::{Config, Group};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let config = Config::local(&format!("doc-batch-while-{}", std::process::id()), 1);
    /// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
    /// let log = group.subgroup("log")?;
    /// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
    /// sender.send_bytes(b"hello")?;
    /// deliveries.next()?;
    /// sender.send_bytes(b"again")?;
    /// deliveries.try_batch_while(|_| false)?;
    /// assert_eq!(deliveries.next()?.bytes, b"again");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; what came before that is handed over first.
    pub fn try_batch_while(
        &mut self,
        mut upcall: impl FnMut(Message<'_>) -> bool,
    ) -> Result<bool, ReceiveError> {
        if !self.look_for_event()? {
            return Ok(false);
        }
        let Some(pull) = self.pull.as_mut().filter(|_| self.views.is_empty()) else { return Ok(true) };
        let (outflow, last) = (&mut self.outflow, &mut self.taken);
        let handed = pull.consume_while(self.release_every as u64, |message: Message<'_>| {
            if !upcall(message) {
                return false;
            }
            *last = Position { view: message.view, sequence: message.sequence + 1 };
            if outflow.is_watched() {
                outflow.take(message);
            }
            true
        });
        self.held = 0;
        if handed.map_err(|_| self.status.failure().unwrap_or(GroupError::Left))? {
            self.waker.wake();
        }
        Ok(true)
    }

    /// Returns whether there is a view or a message now, or the group has ended.
    pub fn has_event(&mut self) -> bool {
        self.look_for_event().unwrap_or(true)
    }

    /// Takes the message that [`Deliveries::look`] has found; that has reported every error.
    pub(crate) fn take(&mut self) -> Option<Message<'_>> {
        self.held += 1;
        let message = self.pull.as_mut().and_then(|pull| pull.next_message().unwrap_or_default())?;
        self.taken = Position { view: message.view, sequence: message.sequence + 1 };
        if self.outflow.is_watched() {
            self.outflow.take(message);
        }
        Some(message)
    }

    /// Returns the position of the next message, if there is one now.
    pub(crate) fn look_ahead(&mut self) -> Result<Option<Position>, ReceiveError> {
        if !self.look_for_message()? {
            return Ok(None);
        }
        let found = self.pull.as_mut().and_then(|pull| pull.next_position().unwrap_or_default());
        Ok(found.map(|(view, sequence)| Position { view, sequence }))
    }

    pub(crate) fn status(&self) -> &GroupStatus {
        &self.status
    }

    /// Returns whether there is a message. Releases what was taken, if that is enough for a batch or if there is
    /// nothing more.
    fn look(&mut self) -> Result<bool, ReceiveError> {
        loop {
            // Read before the messages, so that none is missed that was delivered before the failure.
            let failure = self.status.failure();
            let (closed, found) = match &mut self.pull {
                Some(pull) => (pull.is_closed(), pull.has_message()),
                None => (true, Ok(false)),
            };
            if self.held >= self.release_every || self.should_release(found == Ok(true)) {
                self.release();
            }
            match found {
                Ok(true) => return Ok(true),
                Ok(false) if !closed => return Ok(false),
                Ok(false) => {
                    let (outflow, views) = (&mut self.outflow, &mut self.views);
                    let next = self.slot.take_pull(|view| {
                        views.push_back(Arc::clone(&view));
                        outflow.begin_view(Some(view));
                    });
                    match next {
                        Some(next) => self.pull = Some(next),
                        None => return failure.map_or(Ok(false), |failure| Err(failure.into())),
                    }
                }
                Err(_) => return Err(failure.unwrap_or(GroupError::Left).into()),
            }
        }
    }

    /// Returns whether it is time to release what was taken or skipped: messages that were delivered in an earlier
    /// view and are sent again also take space in their sender's window.
    fn should_release(&self, has_more: bool) -> bool {
        self.pull.as_ref().is_some_and(|pull| (!has_more || pull.is_urged()) && pull.owes_release())
    }

    /// Returns the next message, in place; blocks until there is one. The next call releases it. It must not be
    /// called on the thread that polls the group.
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; messages that were delivered before it ended are returned first.
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Message<'_>, ReceiveError> {
        self.linger(Self::look_for_message)?;
        block_on(self.next_async())
    }

    /// Awaits the next message and returns it, in place. It runs on any executor.
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; messages that were delivered before it ended are returned first.
    pub async fn next_async(&mut self) -> Result<Message<'_>, ReceiveError> {
        poll_fn(|context| self.poll_ready(context, Self::look_for_message)).await?;
        self.try_next().transpose().expect("poll_ready has found one")
    }

    /// Returns the next view or message; blocks until there is one. The next call releases a message. It must not be
    /// called on the thread that polls the group.
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; what came before that is returned first.
    pub fn next_event(&mut self) -> Result<DeliveryEvent<'_>, ReceiveError> {
        self.linger(Self::look_for_event)?;
        block_on(self.next_event_async())
    }

    /// Awaits the next view or message. It runs on any executor.
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; what came before that is returned first.
    pub async fn next_event_async(&mut self) -> Result<DeliveryEvent<'_>, ReceiveError> {
        poll_fn(|context| self.poll_ready(context, Self::look_for_event)).await?;
        self.try_next_event().transpose().expect("poll_ready has found one")
    }

    /// Returns these deliveries as copies, for an [`Iterator`] or, with the feature `futures`, a `Stream`.
    #[must_use]
    pub const fn owned(self) -> OwnedDeliveries {
        OwnedDeliveries::new(self)
    }

    /// Returns a copy of the next message, or registers the task for when there is one.
    #[cfg(feature = "futures")]
    pub(crate) fn poll_owned(&mut self, context: &Context<'_>) -> Poll<Result<OwnedMessage, ReceiveError>> {
        std::task::ready!(self.poll_ready(context, Self::look_for_message))?;
        Poll::Ready(Ok(self.take().expect("poll_ready has found one").into()))
    }

    /// Releases everything taken so far, so that its senders can reuse the space.
    pub fn release(&mut self) {
        self.pull.iter_mut().for_each(Pull::release);
        self.held = 0;
        self.waker.wake();
    }

    /// Returns whether there is a message. The views before it are forgotten: the caller does not ask for them.
    fn look_for_message(&mut self) -> Result<bool, ReceiveError> {
        let found = self.look();
        self.views.clear();
        found
    }

    /// Returns whether there is a view or a message.
    fn look_for_event(&mut self) -> Result<bool, ReceiveError> {
        let found = self.look();
        if self.views.is_empty() { found } else { Ok(true) }
    }

    /// Lets other threads run a few times while there is nothing: to sleep and to be woken costs more than some messages, and meanwhile
    /// more of them come.
    fn linger(&mut self, look: impl Fn(&mut Self) -> Result<bool, ReceiveError>) -> Result<(), ReceiveError> {
        for _ in 0..YIELDS {
            if look(self)? {
                break;
            }
            thread::yield_now();
        }
        Ok(())
    }

    fn poll_ready(
        &mut self,
        context: &Context<'_>,
        look: impl Fn(&mut Self) -> Result<bool, ReceiveError>,
    ) -> Poll<Result<(), ReceiveError>> {
        if !look(self)? {
            let pull = self.pull.as_ref().map(|pull| Awaited::Pulls(vec![pull.watch()]));
            self.status.messages.register_for(context.waker(), pull.unwrap_or(Awaited::Any));
            if !look(self)? {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// How often a thread lets others run before it sleeps.
const YIELDS: u32 = 32;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use squall_fabric::sim::{SimConfig, SimFabric, SimWorld};
    use squall_fabric::{Core, Duration, Fabric, MirrorKey, NodeId};
    use squall_protocols::group::{GroupApplication, SubgroupId};
    use squall_protocols::multicast::{Deliver, DeliveryMode, Subgroup, SubgroupSettings, ViewStart};

    use super::*;
    use crate::application::GroupHandles;

    const MEMBERS: [NodeId; 2] = [NodeId(0), NodeId(1)];

    fn step(fabric: &mut SimFabric, subgroup: &mut Subgroup<impl Deliver>) {
        let mut events = Vec::new();
        fabric.poll(&mut |event| events.push(event));
        events.iter().for_each(|event| subgroup.handle_event(fabric, event));
        subgroup.poll(fabric);
    }

    /// In mode `Unordered`, a sender that survives a view change sends again what some members have already
    /// delivered. A consumer that never received these messages nevertheless releases their space, or the sender
    /// would wait forever.
    #[test]
    fn messages_that_are_sent_again_are_released() {
        let world = SimWorld::new(1, SimConfig::hardware(), 2);
        let [mut near, mut far] = [0, 1].map(|node| world.fabric(node));
        let settings =
            SubgroupSettings { mode: DeliveryMode::Unordered, window: 2, ..SubgroupSettings::new(2, 8) };
        let start = ViewStart { view: 1, known: vec![(NodeId(1), 2)] };
        let (mut receiver, _, pull) =
            Subgroup::pulled(&mut near, MirrorKey(1), &MEMBERS, settings.clone(), start);
        let (mut sender, writer) = Subgroup::new(
            &mut far,
            MirrorKey(1),
            &MEMBERS,
            settings,
            ViewStart::default(),
            |_: Message<'_>| {},
        );
        let mut settle = || {
            for _ in 0..50 {
                step(&mut near, &mut receiver);
                step(&mut far, &mut sender);
                world.advance_to(world.now() + Duration::from_micros(10));
            }
        };
        let (slot, status) = (Arc::new(SubgroupSlot::default()), Arc::new(GroupStatus::default()));
        let view = Box::new(|_: &squall_protocols::membership::View| {});
        GroupHandles::new(BTreeMap::new(), vec![Arc::clone(&slot)], Arc::clone(&status), view)
            .take_pull(SubgroupId(0), pull);
        let mut deliveries =
            Deliveries::new(slot, Waker::new().expect("a descriptor"), status, 8, Err("log".into()));

        settle();
        let mut writer = writer.expect("all send");
        (1..=2).for_each(|byte| writer.send(1, |bytes| bytes[0] = byte).expect("there is space"));
        settle();
        assert!(deliveries.try_next().expect("the group lives").is_none(), "both were delivered before");
        settle();
        writer.send(1, |bytes| bytes[0] = 3).expect("there is space again");
        settle();
        let message = deliveries.try_next().expect("the group lives").expect("it is new");
        assert_eq!(message.bytes, [3]);
    }
}
