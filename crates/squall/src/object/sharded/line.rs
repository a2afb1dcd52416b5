//! Asks the members of one shard for the replies to this member's updates (RamCast §2.2) \[G19\].

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_fabric::atomics::Ordering;
use squall_protocols::genuine::{AskForReplies, PartReplies};
use squall_protocols::replica::{ShardAnswer, ShardRequest};
use squall_transports::log;

use super::ShardedShared;
use crate::object::bell::Bell;
use crate::object::frame_stream::{FrameStream, invalid};
use crate::object::machine::Replicated;
use crate::object::wire::ObjectReply;

/// A thread for one shard of other members, with one connection at a time.
pub(super) struct ShardLineWorker<T: Replicated> {
    pub(super) shared: Arc<ShardedShared<T>>,
    pub(super) shard: usize,
    pub(super) bell: Arc<Bell>,
}

impl<T: Replicated> ShardLineWorker<T> {
    /// Runs until the object has ended here.
    pub(super) fn run(self) {
        let mut line: Option<(NodeId, FrameStream)> = None;
        loop {
            // SYNC: pairs with `Bell::ring`, before the end and what there is to ask are looked at.
            let rung = self.bell.jobs.load(Ordering::Acquire);
            if self.shared.has_ended() {
                return;
            }
            if let Err((node, error)) = self.converse(&mut line) {
                log::debug!(shard = self.shard, %node, %error, "lost a member: asking another one");
                self.hang_up(&mut line);
                self.shared.gathering().handle_failure(self.shard, node);
                thread::sleep(PAUSE);
                continue;
            }
            match &mut line {
                Some((_, line)) => {
                    // SYNC: pairs with `Bell::ring`.
                    let is_new = || self.bell.jobs.load(Ordering::Acquire) != rung;
                    // If it fails, the next round finds out why.
                    drop(line.wait(WAIT_MAX, is_new));
                }
                None => self.bell.wait(rung),
            }
        }
    }

    /// Asks what there is to ask, and takes answers.
    fn converse(&self, line: &mut Option<(NodeId, FrameStream)>) -> Result<(), (NodeId, io::Error)> {
        loop {
            let asked = self.shared.gathering().poll_ask(self.shard);
            let Some(AskForReplies { node, number, .. }) = asked else { break };
            if line.as_ref().is_some_and(|(other, _)| *other != node) {
                self.hang_up(line);
            }
            self.ask(line, node, number).map_err(|error| (node, error))?;
        }
        let Some((node, line)) = line else { return Ok(()) };
        self.take_answers(line).map_err(|error| (*node, error))
    }

    fn ask(&self, line: &mut Option<(NodeId, FrameStream)>, node: NodeId, number: u64) -> io::Result<()> {
        if line.is_none() {
            let mut new = FrameStream::new(self.shared.directory.connect(node)?);
            self.bell.set_waker(Some(new.waker()));
            *line = Some((node, new));
        }
        let (_, line) = line.as_mut().expect("it is connected");
        let request = ShardRequest::Replies { caller: self.shared.link.node, number };
        let asked = self.shared.directory.asked(self.shard, number, request);
        line.put(|frame| asked.write(frame))
    }

    fn take_answers(&self, line: &mut FrameStream) -> io::Result<()> {
        line.pump()?;
        while let Some(frame) = line.next()? {
            let ObjectReply { call, answer, .. } = ObjectReply::read(frame)?;
            let mut gathering = self.shared.gathering();
            let outcome = match answer {
                ShardAnswer::Reply(bytes) => {
                    let replies =
                        PartReplies::decode(&bytes).ok_or_else(|| invalid("replies that cannot be read"))?;
                    gathering.handle_replies(self.shard, call, replies)
                }
                ShardAnswer::Forgotten => gathering.handle_forgotten(self.shard, call),
                other => return Err(io::Error::other(format!("{other:?}"))),
            };
            drop(gathering);
            self.shared.complete(outcome);
        }
        if line.has_ended() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn hang_up(&self, line: &mut Option<(NodeId, FrameStream)>) {
        self.bell.set_waker(None);
        if let Some((_, line)) = line.take() {
            line.abort();
        }
    }
}

/// The pause before another member is asked.
const PAUSE: Duration = Duration::from_millis(2);
/// How long it waits in any case; what there is to ask, and the end, wake it.
const WAIT_MAX: Duration = Duration::from_millis(200);
