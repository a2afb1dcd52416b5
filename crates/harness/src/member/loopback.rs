//! A group of one without a network: what is sent is delivered at the next step.

use std::collections::VecDeque;

use anyhow::Result;
use squall::{Message, NodeId, Payload};

use super::{MemberInbox, MulticastMember, PolledMember};

pub(crate) struct Loopback<I> {
    inbox: I,
    window: usize,
    under_way: VecDeque<Vec<u8>>,
    index: u64,
    /// The message whose content is changed on the way.
    pub(crate) spoil: Option<u64>,
}

impl<I: MemberInbox> Loopback<I> {
    pub(crate) fn new(window: usize, inbox: I) -> Self {
        Self { inbox, window, under_way: VecDeque::new(), index: 0, spoil: None }
    }
}

impl<I: MemberInbox> MulticastMember for Loopback<I> {
    fn try_send_to(
        &mut self,
        _subgroup: usize,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<bool> {
        if self.under_way.len() == self.window {
            return Ok(false);
        }
        let mut slot = vec![0; length];
        write(&mut Payload::over(&mut slot));
        self.under_way.push_back(slot);
        Ok(true)
    }
}

impl<I: MemberInbox> PolledMember for Loopback<I> {
    fn step(&mut self) -> Result<()> {
        while let Some(mut bytes) = self.under_way.pop_front() {
            if self.spoil == Some(self.index) {
                bytes[0] ^= 1;
            }
            let (index, node) = (self.index, NodeId(0));
            let message = Message { view: 0, sender: 0, node, index, sequence: index, bytes: &bytes };
            self.inbox.on_message(message);
            self.index += 1;
        }
        self.inbox.on_batch_end();
        Ok(())
    }

    fn poll(&mut self) -> Result<()> {
        self.step()
    }
}
