//! A pair of processes over all the connections between them: when a connection that is opened again is taken, and where the streams continue.
//!
//! A connection that breaks is opened again within the life of both processes; the cores see a pause. What is decided is decided here, and
//! `reopening` moves the bytes. The rules, which the files of the transport cite by their numbers:
//!
//! - *Streams.* C1: each direction of a pair is one stream of words, whose positions no frame carries. C2: the queue keeps what the other
//!   *process* is not known to have handled; what a kernel has taken counts for nothing. C3: handled is what the parser has used: whole headers,
//!   and words that are stored, discarded, or added to a stalled post. C4: what was handled is acknowledged with other output from 1 KiB on, and
//!   alone from 64 KiB on; an old position is ignored, one that was not sent is a violation. C5: completions come from acknowledgements of posts
//!   alone, and the queue is trimmed before they are reported. C6: what is kept is bounded. C7: only a new connection moves the queue back.
//! - *A break.* C8: an error, an end, a bad record, or one whose rest does not come, breaks the connection, not the peer; incomplete words and
//!   headers go with it, half frames and stalled posts stay.
//! - *Opening.* C10: the pair is named by its first handshake. C11: ballots. C12: calling. C13: being called. C14: the answer; what has no proof
//!   proves nothing. C15: adopting.
//! - *A loss.* C17: it is final, and later calls are answered with it. It takes a farewell, a violation, an overrun, that answer, or the death
//!   of the process. C19: time is no reason where others watch silence. C20: links of members only; a stream is lost when it breaks.
//!
//! `Deviation:` of the explored rules: two refusals by the host are a death only after the end of the pair's sentinel connection or of its stream,
//! since a firewall refuses, too; a caller states its position when the other end has proved itself, in its request; a connection is silent, so
//! that its peer is called beside it, when its kernel has sent something again in vain, not when nothing has come for a while (C19), and a call
//! tries further connections beside the first (`bootstrap/attempts`).
//!
//! **State.** The *pair* is named by the hash of its first handshake \[C10\], which a restarted process does not have. A *ballot*, a number and
//! a node, is the highest with which this end has asked or that it has accepted \[C11\]; it lives as long as the pair. A *call* of this end is
//! under way, or has been proved and has asked.
//!
//! **Order of steps.** An end whose connection is gone calls at once, and one whose connection is silent beside it \[C12\]; if that shows life
//! before the other end has proved itself, the call is given up. When the other end has proved itself, the caller raises its ballot
//! and asks, with the word that it has handled; from then on it handles nothing until it adopts. The called end accepts a ballot above its
//! own \[C13\]: it drops its connection and its call, answers with the word that it has handled, and adopts. The caller adopts at the
//! answer \[C15\]. Positions are stated by the polling thread alone, in the step that drops the connection before.
//!
//! **Why it is right.** An end handles one connection at a time, and none between stating a position and adopting; what is sent on a connection
//! begins at the position that was stated for it. So the receiver gets the word that follows what it has handled, always.

use squall_fabric::{Duration, Instant, NodeId, mutant};

use super::mutation;

/// The name of a pair: the hash of its first handshake.
pub(crate) type PairId = [u8; 32];

/// Which end may open the connection of a pair: the highest is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReopenBallot {
    pub(crate) number: u64,
    pub(crate) node: NodeId,
}

/// One end's state of a pair.
#[derive(Debug)]
pub(super) struct Pair {
    id: PairId,
    own: NodeId,
    ballot: ReopenBallot,
    /// The call of this end, if one is under way.
    call: Option<Call>,
    /// Numbers calls, so that what an earlier one brings is not taken for the present one's.
    calls: u64,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    number: u64,
    /// With which ballot it has asked.
    asked: Option<ReopenBallot>,
}

/// What an end answers to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestVerdict {
    /// It drops its connection, states what it has handled, and adopts the new one.
    Accept,
    /// It has seen a ballot of this number, which is not lower.
    TooLow(u64),
}

impl Pair {
    pub(super) const fn new(id: PairId, own: NodeId) -> Self {
        Self { id, own, ballot: ReopenBallot { number: 0, node: NodeId(0) }, call: None, calls: 0 }
    }

    pub(super) const fn id(&self) -> &PairId {
        &self.id
    }

    /// Begins a call; returns its number.
    pub(super) fn begin_call(&mut self) -> u64 {
        mutant!(ForgetBallot => self.ballot = ReopenBallot { number: 0, node: NodeId(0) });
        self.calls += 1;
        self.call = Some(Call { number: self.calls, asked: None });
        self.calls
    }

    /// Returns whether this call is under way.
    pub(super) fn is_current(&self, call: u64) -> bool {
        self.call.is_some_and(|current| current.number == call)
    }

    /// The other end has proved itself to this call: returns the ballot with which to ask, or `None` if the call was given up. The caller
    /// drops its connection in the same step \[C12\].
    pub(super) fn on_proved(&mut self, call: u64) -> Option<ReopenBallot> {
        let current =
            self.call.as_mut().filter(|current| current.number == call && current.asked.is_none())?;
        // The own request counts, too: without it, a late request of the other end would be accepted, and move the output back below what
        // was handled.
        let ballot = ReopenBallot { number: self.ballot.number + 1, node: self.own };
        if !mutant!(OwnDoesNotCount) {
            self.ballot = ballot;
        }
        current.asked = Some(ballot);
        Some(ballot)
    }

    /// The other end asks to open the connection again \[C13\].
    pub(super) fn on_request(&mut self, ballot: ReopenBallot) -> RequestVerdict {
        let is_same = ballot.number == self.ballot.number && mutant!(NumbersAlone);
        if ballot <= self.ballot && !is_same && !mutant!(NoBallots) {
            return RequestVerdict::TooLow(self.ballot.number);
        }
        self.ballot = ballot;
        if !mutant!(KeepCall) {
            self.call = None;
        }
        RequestVerdict::Accept
    }

    /// The other end accepts this call's request: returns whether to adopt its connection.
    pub(super) fn on_accepted(&mut self, call: u64) -> bool {
        self.call.take_if(|current| current.number == call && current.asked.is_some()).is_some()
    }

    /// This call has failed, or the other end has seen a ballot of this number \[C14\]; returns whether it was the present one. The next one
    /// asks with a higher ballot.
    pub(super) fn on_failed(&mut self, call: u64, seen: Option<u64>) -> bool {
        let is_current = self.call.take_if(|current| current.number == call).is_some();
        if let Some(seen) = seen
            && is_current
            && seen > self.ballot.number
        {
            // Of no node: a request of this number that is accepted later is above it.
            self.ballot = ReopenBallot { number: seen, node: NodeId(0) };
        }
        is_current
    }
}

/// Whether the rest of a record comes \[C8\].
///
/// A record whose length was altered in transit waits for what its sender never sends, and its end sends little meanwhile: signs of life,
/// while its windows are full. What it holds is not verified, so all of it is silence.
#[derive(Debug, Default)]
pub(super) struct RecordRest {
    /// How many bytes were missing, and when.
    before: Option<(usize, Instant)>,
}

impl RecordRest {
    /// Notes how many bytes a record lacks, in a read that has completed none; returns whether the rest is overdue: in a `silence`, which is a
    /// quarter of the suspicion time, less than a quarter of it has come.
    pub(super) fn is_overdue(&mut self, missing: usize, silence: Duration, now: Instant) -> bool {
        let (before, since) = *self.before.get_or_insert((missing, now));
        if now.since(since) <= silence {
            return false;
        }
        self.before = Some((missing, now));
        // More is missing than before once the length of the record is known.
        missing <= before && (before - missing) * 4 < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(own: u32) -> Pair {
        Pair::new([7; 32], NodeId(own))
    }

    /// Of two requests that cross, one is accepted, whichever arrives first \[C11\].
    #[test]
    fn one_of_two_requests_that_cross_is_accepted() {
        let (mut low, mut high) = (pair(1), pair(2));
        let (call_low, call_high) = (low.begin_call(), high.begin_call());
        let (of_low, of_high) = (low.on_proved(call_low).unwrap(), high.on_proved(call_high).unwrap());
        assert_eq!(high.on_request(of_low), RequestVerdict::TooLow(1));
        assert_eq!(low.on_request(of_high), RequestVerdict::Accept);
        assert!(!low.on_failed(call_low, Some(1)), "its call was given up for the other");
        assert!(high.on_accepted(call_high));
        // The next one of either is above both.
        let call = low.begin_call();
        assert_eq!(low.on_proved(call), Some(ReopenBallot { number: 2, node: NodeId(1) }));
        assert_eq!(high.on_request(ReopenBallot { number: 2, node: NodeId(1) }), RequestVerdict::Accept);
    }

    /// A request that comes late loses by its ballot, though the call that made it was given up.
    #[test]
    fn late_requests_are_refused() {
        let (mut caller, mut called) = (pair(1), pair(2));
        let first = caller.begin_call();
        let late = caller.on_proved(first).unwrap();
        assert!(caller.on_failed(first, None));
        let second = caller.begin_call();
        let ballot = caller.on_proved(second).unwrap();
        assert_eq!(called.on_request(ballot), RequestVerdict::Accept);
        assert!(caller.on_accepted(second));
        assert_eq!(called.on_request(late), RequestVerdict::TooLow(2));
        assert_eq!(called.on_request(ballot), RequestVerdict::TooLow(2), "a request counts once");
    }

    /// What belongs to a call that was given up is not taken for the present one's.
    #[test]
    fn answers_of_earlier_calls_are_not_taken() {
        let mut pair = pair(1);
        let first = pair.begin_call();
        pair.on_proved(first).unwrap();
        let second = pair.begin_call();
        assert!(!pair.on_accepted(first) && !pair.on_failed(first, Some(9)));
        assert_eq!(pair.on_proved(first), None);
        assert!(!pair.on_accepted(second), "it has not asked yet");
        assert_eq!(pair.on_proved(second), Some(ReopenBallot { number: 2, node: NodeId(1) }));
        assert_eq!(pair.on_proved(second), None, "a call asks once");
        assert!(pair.on_accepted(second) && !pair.on_accepted(second));
        // A call of its own is given up for one that is accepted.
        let third = pair.begin_call();
        assert_eq!(pair.on_request(ReopenBallot { number: 3, node: NodeId(0) }), RequestVerdict::Accept);
        assert!(!pair.is_current(third));
        assert_eq!(pair.on_proved(third), None);
    }

    /// A refused caller's next ballot is above what refused it.
    #[test]
    fn a_refused_caller_asks_higher() {
        let (mut caller, mut called) = (pair(1), pair(2));
        for _ in 0..4 {
            let call = called.begin_call();
            called.on_proved(call).unwrap();
        }
        let call = caller.begin_call();
        let RequestVerdict::TooLow(seen) = called.on_request(caller.on_proved(call).unwrap()) else {
            panic!()
        };
        assert!(caller.on_failed(call, Some(seen)));
        let call = caller.begin_call();
        assert_eq!(called.on_request(caller.on_proved(call).unwrap()), RequestVerdict::Accept);
    }

    /// An altered length waits for more than signs of life bring; a slow link brings a record within the suspicion time.
    #[test]
    fn the_rest_of_a_record_is_overdue_by_its_share() {
        let silence = Duration::from_secs(1);
        let at = |millis| Instant::from_nanos(millis * 1_000_000);
        let (mut altered, mut slow) = (RecordRest::default(), RecordRest::default());
        let mut overdue = Vec::new();
        for step in 0..12_usize {
            let now = at(100 * step as u64);
            overdue.push(altered.is_overdue(28_000 - 80 * step, silence, now));
            assert!(!slow.is_overdue(3_000 - 90 * step, silence, now), "step {step}");
        }
        assert_eq!(overdue.iter().position(|overdue| *overdue), Some(11));
        // The first byte of a length says nothing about what follows.
        let mut begun = RecordRest::default();
        assert!(!begun.is_overdue(1, silence, at(0)) && !begun.is_overdue(3_000, silence, at(1_500)));
        assert!(!begun.is_overdue(2_900, silence, at(2_000)) && begun.is_overdue(2_800, silence, at(3_000)));
    }
}
