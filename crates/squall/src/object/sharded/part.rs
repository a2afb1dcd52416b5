//! This member's part of the object in the shards: its state, and the thread that applies updates to it (RamCast §2.2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_protocols::genuine::{
    DeliveredMarks, GenuinePosition, PartKind, ReplyState, ShardedUpdate, UpdateReplies,
};
use squall_protocols::replica::{Machine as _, ShardAnswer};
use squall_transports::log;

use super::ShardedShared;
use crate::object::ObjectError;
use crate::object::machine::{Replicated, TypedMachine};
use crate::object::service::RemoteCall;
use crate::slot::Snapshot;
use crate::slot::{FeedEvent, ProvidedState};

/// The state of this member's shard, and what belongs to it.
pub(super) struct PartState<T: Replicated> {
    /// `None`: it is in no shard, or waits for the state.
    pub(super) machine: Option<TypedMachine<T>>,
    pub(super) replies: UpdateReplies,
    /// The position of the last update that is applied.
    pub(super) position: Option<GenuinePosition>,
    /// Callers at other members that wait for an update, by caller and number.
    waiting: BTreeMap<(NodeId, u64), RemoteCall>,
    /// A state that has arrived, until it holds.
    pub(super) arrived: Option<ArrivedPart<T>>,
}

/// A state of another member.
pub(super) struct ArrivedPart<T> {
    pub(super) machine: T,
    pub(super) replies: UpdateReplies,
    /// The position of the last update in it.
    pub(super) position: Option<GenuinePosition>,
}

impl<T: Replicated> PartState<T> {
    pub(super) const fn new(machine: Option<TypedMachine<T>>, replies: UpdateReplies) -> Self {
        Self { machine, replies, position: None, waiting: BTreeMap::new(), arrived: None }
    }

    /// Answers a caller, or keeps it until the update is applied.
    pub(super) fn ask(&mut self, caller: NodeId, number: u64, call: RemoteCall) {
        if self.machine.is_none() {
            return call.answer(ShardAnswer::NotYet);
        }
        match answer(&self.replies, caller, number) {
            Some(answer) => call.answer(answer),
            // A caller that asks again has given up the connection on which it asked before.
            None => {
                let before = self.waiting.insert((caller, number), call);
                before.into_iter().for_each(|call| call.answer(ShardAnswer::NotYet));
            }
        }
    }

    /// Answers those that wait for an update.
    fn answer(&mut self, caller: NodeId, number: u64) {
        let Some(call) = self.waiting.remove(&(caller, number)) else { return };
        call.answer(answer(&self.replies, caller, number).unwrap_or(ShardAnswer::NotYet));
    }

    /// A view begins: forgets callers that are gone.
    fn begin_view(&mut self, members: &[NodeId]) {
        self.replies.retain(members);
        let gone = self.waiting.extract_if(.., |(caller, _), _| !members.contains(caller));
        gone.for_each(|(_, call)| call.answer(ShardAnswer::NotYet));
    }

    /// Answers all that wait: this member has ended.
    fn stop(&mut self) {
        for call in std::mem::take(&mut self.waiting).into_values() {
            call.answer(ShardAnswer::NotYet);
        }
    }
}

/// Returns what there is for a caller; `None` while the update is not applied.
fn answer(replies: &UpdateReplies, caller: NodeId, number: u64) -> Option<ShardAnswer> {
    match replies.reply(caller, number) {
        ReplyState::NotYet => None,
        ReplyState::Forgotten => Some(ShardAnswer::Forgotten),
        ReplyState::Replies(replies) => {
            let mut bytes = Vec::new();
            replies.encode(&mut bytes);
            Some(ShardAnswer::Reply(bytes))
        }
    }
}

/// Applies what the feed has, until the group ends here.
pub(super) struct PartDriver<T: Replicated> {
    pub(super) shared: Arc<ShardedShared<T>>,
}

impl<T: Replicated> Drop for PartDriver<T> {
    /// However the thread ends, no caller waits for good; and a member whose code has panicked leaves its group, which would
    /// count on it.
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.fail(PANICKED);
        }
        let failure = self.shared.link.status.failure();
        self.shared.end(&failure.map_or(ObjectError::Stopped, ObjectError::Group));
        self.shared.part().stop();
    }
}

impl<T: Replicated> PartDriver<T> {
    pub(super) fn run(self) {
        loop {
            // Read before the events, so that nothing is missed that was delivered before the failure.
            let has_ended = self.shared.link.status.failure().is_some();
            let events = self.shared.feed.take(PATIENCE);
            if events.is_empty() && has_ended {
                return;
            }
            if events.len() >= WAKE_FROM {
                self.shared.link.waker.wake();
            }
            events.into_iter().for_each(|event| self.handle(event));
        }
    }

    fn handle(&self, event: FeedEvent) {
        let shared = &*self.shared;
        match event {
            FeedEvent::Message { sender, position, bytes } => self.apply(sender, position, &bytes),
            FeedEvent::View(nodes) => shared.part().begin_view(&nodes),
            FeedEvent::Shards(members) => self.shared.begin_view(members),
            FeedEvent::TakeOver => {
                let mut part = shared.part();
                if let Some(ArrivedPart { machine, replies, position }) = part.arrived.take() {
                    (part.machine, part.replies) = (Some(TypedMachine(machine)), replies);
                    part.position = position;
                }
                drop(part);
                log::info!("took over the state of the shard");
                shared.ask_own_again();
            }
            FeedEvent::Provide(marks, to) => {
                let part = shared.part();
                if let Some(machine) = &part.machine {
                    let header = header(&marks, &part.replies);
                    // A joiner that has given up takes nothing.
                    let _ = to.send(ProvidedState { header, snapshot: machine.snapshot() });
                }
            }
        }
    }

    fn apply(&self, sender: NodeId, position: GenuinePosition, bytes: &[u8]) {
        let shared = &*self.shared;
        let Some(own) = shared.own else { return };
        let mut part = shared.part();
        let PartState { machine: Some(machine), replies, position: last, .. } = &mut *part else { return };
        // What is no update is none at all members.
        let Some(update) = ShardedUpdate::decode(bytes) else { return };
        replies.apply(sender, position, &update, || {
            let parts = update.parts(own).map(|part| match part.kind {
                PartKind::Update => TypedMachine::<T>::encode(&machine.apply(part.bytes)),
                PartKind::Query => machine.query(part.bytes),
            });
            parts.collect()
        });
        *last = Some(position);
        if sender == shared.link.node {
            shared.take_own(&part.replies, own, update.number);
        }
        part.answer(sender, update.number);
    }
}

/// What precedes a state on its way to a joiner.
fn header(marks: &DeliveredMarks, replies: &UpdateReplies) -> Vec<u8> {
    let mut bytes = Vec::new();
    marks.encode(&mut bytes);
    replies.encode(&mut bytes);
    bytes
}

/// Reads what precedes a state. Fuzzed as `sharded_object`.
pub(super) fn read_header(mut bytes: &[u8]) -> Option<(DeliveredMarks, UpdateReplies)> {
    let header = (DeliveredMarks::decode(&mut bytes)?, UpdateReplies::decode(&mut bytes)?);
    bytes.is_empty().then_some(header)
}

impl ProvidedState {
    /// Returns the state with its header, as bytes that [`super::joining`] reads.
    pub(super) fn into_snapshot(self) -> Snapshot {
        let Self { header, snapshot } = self;
        let bytes = snapshot.bytes();
        let length = header.len() as u64;
        let whole = Snapshot::new(move |sink| {
            sink.write_all(&length.to_le_bytes())?;
            sink.write_all(&header)?;
            snapshot.write(sink)
        });
        match bytes {
            Some(bytes) => whole.with_bytes(bytes + length + 8),
            None => whole,
        }
    }
}

/// Why a member leaves its group when code of the object has panicked there.
pub(super) const PANICKED: &str = "its code has panicked: see the log";
/// How long the thread sleeps before it looks whether the group has ended.
const PATIENCE: Duration = Duration::from_millis(200);
/// From this number of messages at once on, the polling thread may have waited for space.
const WAKE_FROM: usize = 256;
