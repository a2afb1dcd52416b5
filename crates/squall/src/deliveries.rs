//! Receiving by pull: messages are read in place and released in batches (Spindle §3.1, §3.5).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use squall_protocols::multicast::{Message, Pull};
use squall_transports::Waker;

use crate::application::SubgroupSlot;
use crate::error::{GroupError, ReceiveError};
use crate::external::TapWriter;
use crate::status::GroupStatus;
use crate::wait::block_on;

/// The receiving end of a subgroup whose messages are pulled. A slow consumer fills the senders' windows, but
/// never holds up acknowledgements or other subgroups.
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
}

impl Deliveries {
    pub(crate) fn new(
        slot: Arc<SubgroupSlot>,
        waker: Waker,
        status: Arc<GroupStatus>,
        release_every: usize,
    ) -> Self {
        let outflow = TapWriter::new(Arc::clone(slot.tap()));
        Self { pull: None, slot, waker, status, held: 0, release_every, outflow }
    }

    /// Returns the next message, in place, or `None` if there is none now. The next call releases it.
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; messages that were delivered before it ended are returned first.
    pub fn try_next(&mut self) -> Result<Option<Message<'_>>, ReceiveError> {
        if !self.look()? {
            return Ok(None);
        }
        self.held += 1;
        // `look` has found it, and has reported every error.
        let message = self.pull.as_mut().and_then(|pull| pull.next_message().unwrap_or_default());
        if let Some(message) = message
            && self.outflow.is_watched()
        {
            self.outflow.take(message);
        }
        Ok(message)
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
                Ok(false) => match self.slot.take_pull(|view| self.outflow.begin_view(Some(view))) {
                    Some(next) => self.pull = Some(next),
                    None => return failure.map_or(Ok(false), |failure| Err(failure.into())),
                },
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
        block_on(self.next_async())
    }

    /// Awaits the next message and returns it, in place. It runs on any executor.
    ///
    /// # Errors
    /// [`ReceiveError`] if the group has ended; messages that were delivered before it ended are returned first.
    pub async fn next_async(&mut self) -> Result<Message<'_>, ReceiveError> {
        poll_fn(|context| self.poll_ready(context)).await?;
        match self.try_next() {
            Ok(Some(message)) => Ok(message),
            Ok(None) => unreachable!("poll_ready has found one"),
            Err(error) => Err(error),
        }
    }

    /// Releases everything taken so far, so that its senders can reuse the space.
    pub fn release(&mut self) {
        self.pull.iter_mut().for_each(Pull::release);
        self.held = 0;
        self.waker.wake();
    }

    fn poll_ready(&mut self, context: &Context<'_>) -> Poll<Result<(), ReceiveError>> {
        if !self.look()? {
            self.status.messages.register(context.waker());
            if !self.look()? {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }
}

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
        let mut deliveries = Deliveries::new(slot, Waker::new().expect("a descriptor"), status, 8);

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
