//! One member's part of one shard: the core, and the way of its updates into the group. What `squall::object` does with
//! threads is done here in turns (Derecho app. A, §3.4).

use std::collections::VecDeque;

use squall_fabric::NodeId;
use squall_fabric::window::{ReserveError, Writer};
use squall_protocols::group::Succession;
use squall_protocols::membership::View;
use squall_protocols::multicast::Pull;
use squall_protocols::replica::{
    Answer as Reply, Delivery, Gift, HEADER_BYTES, Hold, Holding, Origin, Outcome, Position, Readiness,
    Replica, SessionAnswer, Sessions, SessionsError, Settings, ShardView, TakeOver, Turn, Turns, UnderWay,
};

use super::history::History;
use super::list::{List, place_of, update};
use super::office::Answer;
use crate::run::Violation;

/// Who waits for an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    /// This member itself.
    Own(u64),
    /// A client, for the answer to a question.
    Client { node: u32, call: u64 },
}

/// Whose an update is that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    Own,
    Opening,
    Session { id: u64, number: u64 },
}

/// An update that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Submission {
    pub(super) from: From,
    pub(super) id: u64,
    pub(super) waiter: Waiter,
}

/// What is to be told to somebody.
pub(super) type Told = (Waiter, Answer);

pub(super) struct Part {
    node: NodeId,
    pub(super) shard: u32,
    pub(super) replica: Replica<List>,
    under_way: UnderWay<Waiter>,
    pub(super) succession: Succession,
    /// The latest window, and since which view this member was in the shard when it came.
    writer: Option<(Writer, u64)>,
    /// Since which view this member is in the shard, as the group knows, and as the one who applies updates knows.
    seated: Option<u64>,
    pub(super) since: Option<u64>,
    turns: Turns<Pull>,
    pull: Option<Pull>,
    /// What counts when a view ends.
    pub(super) holding: Holding,
    /// A state that came while the view was changing.
    pub(super) late: Option<Gift<List>>,
    /// What waits for room in the window.
    pub(super) queue: VecDeque<Submission>,
    /// Bytes that a newcomer keeps at most before senders wait.
    waiting_bytes_max: usize,
    has_stopped: bool,
}

impl Part {
    pub(super) fn new(node: NodeId, shard: u32, settings: Settings, waiting_bytes_max: usize) -> Self {
        Self {
            node,
            shard,
            replica: Replica::new(node, settings),
            under_way: UnderWay::default(),
            succession: Succession::default(),
            writer: None,
            seated: None,
            since: None,
            turns: Turns::default(),
            pull: None,
            holding: Holding::default(),
            late: None,
            queue: VecDeque::new(),
            waiting_bytes_max,
            has_stopped: false,
        }
    }

    /// The group installs a view.
    pub(super) fn install(&mut self, view: &View, members: Vec<NodeId>) {
        let stay = members.contains(&self.node).then(|| self.seated.unwrap_or(view.id));
        self.holding.begin_view(view.id, stay, !view.holders(self.shard).is_empty());
        self.turns.begin_view(view, members);
    }

    /// This member has come into the shard with a view.
    pub(super) const fn seat(&mut self, view: u64) {
        self.seated = Some(view);
    }

    pub(super) fn take_pull(&mut self, pull: Pull) {
        self.turns.push(pull);
    }

    /// The group says that this member is no longer in the shard.
    pub(super) const fn unseat(&mut self) {
        self.seated = None;
    }

    /// Whether an update can be sent, or waits for nothing but room.
    pub(super) const fn may_send(&self) -> bool {
        self.under_way.since().is_some() && !self.has_stopped
    }

    /// Sends what there is room for; returns whether anything was sent, and what was refused.
    pub(super) fn send(&mut self) -> (bool, Vec<Told>) {
        let (mut sent, mut refused) = (false, Vec::new());
        while let Some(next) = self.queue.front().copied() {
            match self.submit(next) {
                Ok(()) => sent = true,
                Err(None) => break,
                Err(Some(why)) => refused.push((next.waiter, why)),
            }
            self.queue.pop_front();
        }
        (sent, refused)
    }

    /// Sends an update. If there is no room, `Err(None)`; if it is refused for good, the answer.
    fn submit(&mut self, Submission { from, id, waiter }: Submission) -> Result<(), Option<Answer>> {
        if self.has_stopped {
            return Err(Some(Answer::Failed));
        }
        let Some(since) = self.under_way.since() else { return Err(Some(self.refusal())) };
        if self.writer.as_ref().is_none_or(|(writer, _)| writer.is_closed()) {
            // What was committed in the old one goes ahead when nobody holds it any more.
            self.writer = None;
            self.writer = self.succession.take_writer().zip(self.seated);
        }
        let Some((writer, stay)) = &mut self.writer else { return Err(None) };
        if *stay != since {
            // Who applies updates is behind: this member has left the shard, and come again.
            return Err(Some(Answer::NotYet));
        }
        let update = update(id);
        let mut reservation = match writer.reserve(HEADER_BYTES + update.len()) {
            Ok(reservation) => reservation,
            Err(ReserveError::Full | ReserveError::Closed) => return Err(None),
            Err(ReserveError::TooLong { .. }) => unreachable!("the scenario's updates fit"),
        };
        let origin = match from {
            From::Own => Origin::Member(self.under_way.number()),
            From::Opening => Origin::Open(self.under_way.number()),
            From::Session { id, number } => Origin::Session { id, number },
        };
        origin.encode(&mut reservation);
        reservation[HEADER_BYTES..].copy_from_slice(&update);
        self.under_way.send(origin, waiter);
        reservation.commit();
        Ok(())
    }

    fn refusal(&self) -> Answer {
        match self.replica.readiness(0) {
            Readiness::Lost => Answer::Lost,
            Readiness::Elsewhere => Answer::Elsewhere,
            Readiness::Ready | Readiness::NotYet => Answer::NotYet,
        }
    }

    /// Takes up to `batch` messages, or begins the next view; whether there was anything.
    pub(super) fn turn(
        &mut self,
        batch: u64,
        history: &mut History,
        told: &mut Vec<Told>,
    ) -> Result<bool, Violation> {
        if self.writer.as_ref().is_some_and(|(writer, _)| writer.is_closed()) {
            self.writer = None;
        }
        // Asked before looking, so that what was delivered until then is not missed.
        let closed = self.pull.as_ref().is_none_or(Pull::is_closed);
        if self.take_messages(batch, closed, history, told)? {
            return Ok(true);
        }
        if !closed {
            return Ok(false);
        }
        match self.turns.pop() {
            Some(Turn::Messages(pull)) => self.pull = Some(pull),
            Some(Turn::View(view, members)) => {
                self.pull = None;
                told.extend(self.begin_view(&view, members));
            }
            None => return Ok(false),
        }
        Ok(true)
    }

    fn take_messages(
        &mut self,
        batch: u64,
        closed: bool,
        history: &mut History,
        told: &mut Vec<Told>,
    ) -> Result<bool, Violation> {
        let Some(pull) = &mut self.pull else { return Ok(false) };
        let mut taken = 0;
        // Of an ended view all is taken: see the same place in `squall::object`.
        while taken < batch && (closed || self.replica.bytes_waiting() <= self.waiting_bytes_max) {
            // What is corrupt ends the group, which the cluster sees.
            let Ok(Some(message)) = pull.next_message() else { break };
            let (view, sender, sequence, bytes) =
                (message.view, message.sender, message.sequence, message.bytes);
            history.on_delivery(self.shard, Position { view, sequence: sequence + 1 }, bytes)?;
            let own = self.replica.deliver(Delivery { view, sender, sequence, bytes });
            if let Some((origin, reply)) = own {
                let at = self.replica.position().expect("who answers holds the state");
                told.push((self.under_way.deliver(origin), answer(reply, at)));
            }
            taken += 1;
        }
        pull.release();
        Ok(taken > 0)
    }

    fn begin_view(&mut self, view: &View, members: Vec<NodeId>) -> Vec<Told> {
        let is_in = members.contains(&self.node);
        self.since = if is_in { self.since.or(Some(view.id)) } else { None };
        let holders = view.holders(self.shard);
        let view = ShardView { id: view.id, group: view.nodes(), members, holders };
        self.replica.begin_view(view, List::default);
        let stays = self.replica.may_send_since().is_some();
        let left = if stays { Vec::new() } else { self.under_way.leave::<()>() };
        self.permit();
        left.into_iter().map(|(waiter, _)| (waiter, Answer::NotYet)).collect()
    }

    fn permit(&mut self) {
        if let Some(since) = self.replica.may_send_since() {
            self.under_way.begin(since);
        }
    }

    /// Takes a state that was given; keeps it for later if the view is changing, and says `None`.
    pub(super) fn take_over(&mut self, gift: Gift<List>) -> Result<Option<TakeOver>, SessionsError> {
        let sessions = Sessions::decode(&gift.sessions)?;
        let Some(since) = self.replica.wants(gift.position) else { return Ok(Some(TakeOver::NotWanted)) };
        match self.holding.hold(since) {
            Hold::Counted => {}
            Hold::NotWanted => return Ok(Some(TakeOver::NotWanted)),
            Hold::Later => {
                self.late = Some(gift);
                return Ok(None);
            }
        }
        let taken = self.replica.take_over(gift.position, sessions, gift.snapshot);
        self.permit();
        Ok(Some(taken))
    }

    /// The group has ended here, and all that came is taken.
    pub(super) fn stop(&mut self) -> Vec<Told> {
        if std::mem::replace(&mut self.has_stopped, true) {
            return Vec::new();
        }
        self.writer = None;
        let under_way = self.under_way.stop::<()>();
        let (under_way, queued) = (under_way.into_iter(), self.queue.drain(..));
        let told = under_way.map(|(waiter, outcome)| match outcome {
            Outcome::NotDelivered => (waiter, Answer::NotYet),
            _ => (waiter, Answer::Failed),
        });
        told.chain(queued.map(|next| (next.waiter, Answer::Failed))).collect()
    }

    /// What it waits for, in words.
    pub(super) fn is_waiting_for(&self) -> Option<&'static str> {
        match () {
            () if self.replica.is_waiting() => Some("for the state"),
            () if !self.turns.is_empty() => Some("for the end of a view"),
            () if !self.queue.is_empty() => Some("for room in the window"),
            () if !self.under_way.is_empty() => Some("for the outcome of its updates"),
            () => None,
        }
    }
}

fn answer(reply: Reply<u64>, at: Position) -> Answer {
    match reply {
        Reply::Reply(place) => Answer::Applied(place, at),
        Reply::Session(SessionAnswer::Opened(id)) => Answer::Opened(id),
        Reply::Session(SessionAnswer::Reply(bytes)) => Answer::Applied(place_of(&bytes), at),
        Reply::Session(SessionAnswer::ReplyTooLong(_)) => unreachable!("replies are words"),
        Reply::Session(SessionAnswer::Overtaken) => Answer::Overtaken,
        Reply::Session(SessionAnswer::Forgotten) => Answer::Forgotten,
    }
}
