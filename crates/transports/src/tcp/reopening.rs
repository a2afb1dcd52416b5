//! Connections that are opened again: which end calls, what comes back, and how a stream continues. `pair` decides.
//!
//! The polling thread never waits: a thread (`calls`) connects and proves, the polling thread states the position in the step in which it
//! drops the connection before, and the thread asks and brings the answer. Requests of others come from the thread that listens.

mod calls;
mod sentinel;

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_fabric::{Duration, NodeId, mutant};

use self::calls::News;
pub(super) use self::calls::PairCalls;
pub(crate) use self::calls::{
    AskedDesk, Asking, PairCallFailure, PeerCaller, ProvedCall, ReopenAnswer, ReopenRequest,
};
use self::sentinel::{SENTINEL_BALLOT, SENTINEL_CALL, Sentinel};
use super::TcpFabric;
use super::mutation;
pub(crate) use super::pair::ReopenBallot;
use super::pair::{Pair, RecordRest, RequestVerdict};
use super::peer::{TcpLoss, TcpPeer};
use super::socket::TcpSocket;
use crate::session::PeerStream;

/// A peer whose connection can be opened again.
#[derive(Debug)]
pub(super) struct Reopening {
    pub(super) pair: Pair,
    /// Gives up the call that is under way.
    given_up: Option<Arc<AtomicBool>>,
    /// Calls that have failed since the connection broke, and those in a row that the host refused.
    failed: u32,
    refused: u32,
    /// Whether the other end's kernel has ended the stream: its process has closed it, or is dead.
    pub(super) is_ended: bool,
    pub(super) sentinel: Sentinel,
    /// The record that is not complete.
    pub(super) rest: RecordRest,
}

/// Nothing that is under way for a pair outlives it.
impl Drop for Reopening {
    fn drop(&mut self) {
        for given_up in [self.given_up.take(), self.sentinel.given_up.take()].into_iter().flatten() {
            given_up.store(true, Ordering::Relaxed);
        }
    }
}

impl Reopening {
    pub(super) fn new(pair: Pair) -> Self {
        Self {
            pair,
            given_up: None,
            failed: 0,
            refused: 0,
            is_ended: false,
            sentinel: Sentinel::default(),
            rest: RecordRest::default(),
        }
    }

    fn give_up_call(&mut self) {
        if let Some(given_up) = self.given_up.take() {
            given_up.store(true, Ordering::Relaxed);
        }
    }

    /// Calls the peer, unless a call is under way.
    fn begin(&mut self, peer: NodeId, calls: &PairCalls) {
        if self.given_up.is_none() {
            (self.failed, self.refused) = (0, 0);
            self.call(peer, calls);
        }
    }

    /// Calls the peer, after a wait that grows with each failure.
    pub(super) fn call(&mut self, peer: NodeId, calls: &PairCalls) {
        self.give_up_call();
        let call = self.pair.begin_call();
        self.given_up = Some(calls.order(peer, call, self.failed));
    }

    fn is_dead(&self) -> bool {
        self.is_ended && self.refused >= 2
    }

    /// Notes that a call has failed; returns whether that proves the death of the peer.
    ///
    /// Its process has ended if its kernel has ended the stream without a farewell, and then refused connections, twice in a row. A refusal
    /// alone proves nothing: a firewall refuses, too. Time is no reason where others watch the peer's silence \[C19\].
    fn on_failure(&mut self, failure: &PairCallFailure) -> bool {
        self.failed = self.failed.saturating_add(1);
        self.refused = if failure.refused { self.refused + 1 } else { 0 };
        self.is_dead()
    }
}

impl TcpPeer {
    /// Returns whether the poller may know something of it.
    pub(super) fn is_watched(&self) -> bool {
        let sentinel =
            || self.reopening.as_ref().is_some_and(|reopening| reopening.sentinel.stream.is_some());
        !self.readable && (self.socket.is_some() || sentinel())
    }

    /// Returns whether a call of it is needed: there is no connection, or the one there is shows no life, or ends.
    fn needs_call(&self, calls: &PairCalls) -> bool {
        let is_ended = self.reopening.as_ref().is_some_and(|reopening| reopening.is_ended);
        is_ended || self.socket.as_ref().is_none_or(|socket| !calls.shows_life(socket))
    }

    /// Drops the connection, and what goes with it \[C8\]. Output and what has been handled stay.
    pub(super) fn drop_connection(&mut self) {
        (self.socket, self.records) = (None, None);
        (self.readable, self.writable, self.held, self.ended) = (false, false, false, false);
        self.failure = None;
        self.reopening.iter_mut().for_each(|reopening| reopening.rest = RecordRest::default());
        self.input.drop_rest();
        mutant!(RewindAtBreak => self.output.resume_at(self.output.kept()));
    }

    /// The connection is gone, and the peer may not be: it is called \[C12\].
    fn break_connection(&mut self, loss: &TcpLoss, own: NodeId, calls: &PairCalls) {
        crate::log::info!(
            node = own.0,
            peer = self.node.0,
            "the connection to a peer broke ({loss}); it is opened again"
        );
        self.drop_connection();
        let reopening = self.reopening.as_mut().expect("only pairs break");
        reopening.is_ended |= matches!(loss, TcpLoss::End);
        reopening.begin(self.node, calls);
    }
}

impl TcpFabric {
    /// From now on, connections to peers whose pair is known are opened again when they break; returns where the listening thread hands over
    /// those that ask. Peers that were added before are not. A connection over which nothing that was sent is acknowledged for `silence` is
    /// broken; `None`: as the kernel decides.
    ///
    /// # Errors
    /// Returns an error if the system has no more threads.
    pub(crate) fn reopen_by(
        &mut self,
        caller: Arc<dyn PeerCaller>,
        silence: Option<Duration>,
    ) -> io::Result<AskedDesk> {
        let calls = PairCalls::open(caller, silence, self.waker.clone())?;
        self.local.silence = silence;
        Ok(self.calls.insert(calls).desk())
    }

    fn prepare(&self, stream: TcpStream, place: usize) -> io::Result<TcpSocket> {
        let socket = TcpSocket::new(stream)?;
        self.limit_silence(self.peers[place].node, &socket)?;
        self.poller.add(&socket, place)?;
        Ok(socket)
    }

    /// Bounds how long the connection of a link may be silent, and has it watched, if that is set.
    pub(super) fn limit_silence(&self, peer: NodeId, socket: &TcpSocket) -> io::Result<()> {
        let Some(calls) = &self.calls else { return Ok(()) };
        calls.silence.map_or(Ok(()), |silence| socket.limit_silence(silence))?;
        calls.watch(peer, socket);
        Ok(())
    }

    /// The peer at `place` has failed: it is lost, or its connection is opened again.
    pub(super) fn on_failure(&mut self, place: usize, loss: &TcpLoss) {
        let peer = &mut self.peers[place];
        match &self.calls {
            Some(calls) if peer.reopening.is_some() && peer.lost.is_none() && loss.is_break() => {
                peer.break_connection(loss, self.local.grants.owner(), calls);
            }
            _ => peer.lose(loss, &mut self.local),
        }
    }

    /// Handles what came from the threads that call and listen; returns how much.
    #[inline]
    pub(super) fn poll_news(&mut self) -> usize {
        let Some(calls) = &self.calls else { return 0 };
        if !calls.has_news() || !calls.take_flag() {
            return 0;
        }
        let mut handled = 0;
        while let Some(news) = self.calls.as_ref().and_then(PairCalls::next_news) {
            handled += 1;
            match news {
                News::Proved { peer, call, reply } => {
                    if let Some(request) = self.request(peer, call) {
                        // A thread waits for it.
                        let _ = reply.try_send(request);
                    }
                }
                News::Answered { peer, call, answer } => self.on_answer(peer, call, answer),
                News::Asked(asking) => self.on_asked(asking),
                News::Silent { peer } => self.call_beside(peer),
            }
        }
        handled
    }

    /// Returns the place of a peer whose connection can be opened again.
    fn reopenable(&self, node: NodeId) -> Option<usize> {
        let place = *self.places.get(&node)?;
        let peer = &self.peers[place];
        (peer.lost.is_none() && peer.reopening.is_some()).then_some(place)
    }

    /// Calls a peer beside a connection that is silent \[C12\].
    fn call_beside(&mut self, node: NodeId) {
        let (Some(place), Some(calls)) = (self.reopenable(node), &self.calls) else { return };
        let peer = &mut self.peers[place];
        if peer.needs_call(calls) {
            peer.reopening.as_mut().expect("it can be opened again").begin(node, calls);
        }
    }

    /// Returns the request of a call whose other end has proved itself; from now on nothing of the peer is handled until the answer. If the
    /// connection shows life again, the call is given up.
    fn request(&mut self, node: NodeId, call: u64) -> Option<ReopenRequest> {
        let (place, calls) = (self.reopenable(node)?, self.calls.as_ref()?);
        let peer = &mut self.peers[place];
        let needs_call = peer.needs_call(calls);
        let reopening = peer.reopening.as_mut().expect("it can be opened again");
        if !needs_call {
            if reopening.pair.on_failed(call, None) {
                reopening.give_up_call();
            }
            return None;
        }
        let ballot = reopening.pair.on_proved(call)?;
        let pair = *reopening.pair.id();
        if !mutant!(ReadOn) {
            peer.drop_connection();
        }
        Some(ReopenRequest { pair, ballot, handled: peer.input.state_handled() })
    }

    fn on_answer(
        &mut self,
        node: NodeId,
        call: u64,
        answer: Result<(ReopenAnswer, PeerStream), PairCallFailure>,
    ) {
        let (Some(place), Some(calls)) = (self.reopenable(node), &self.calls) else { return };
        if call == SENTINEL_CALL {
            return self.on_sentinel_answer(place, answer);
        }
        let peer = &mut self.peers[place];
        let reopening = peer.reopening.as_mut().expect("it can be opened again");
        if !reopening.pair.is_current(call) {
            return;
        }
        reopening.given_up = None;
        match answer {
            Ok((ReopenAnswer::Yes(handled), stream)) => {
                if reopening.pair.on_accepted(call) {
                    self.adopt(node, stream, handled);
                }
            }
            Ok((ReopenAnswer::No(seen), _)) => {
                reopening.pair.on_failed(call, Some(seen));
                (reopening.failed, reopening.refused) = (reopening.failed + 1, 0);
                reopening.call(node, calls);
            }
            Ok((ReopenAnswer::Gone, _)) => {
                peer.lose(&TcpLoss::Gone, &mut self.local);
            }
            Err(failure) => {
                reopening.pair.on_failed(call, None);
                crate::log::debug!(peer = node.0, cause = failure.cause, "a call has failed");
                if reopening.on_failure(&failure) {
                    peer.lose(&TcpLoss::Dead, &mut self.local);
                } else if peer.needs_call(calls) {
                    peer.reopening.as_mut().expect("it can be opened again").call(node, calls);
                }
            }
        }
    }

    /// A proved process asks to open the connection of a pair again \[C13\].
    fn on_asked(&mut self, asking: Box<dyn Asking>) {
        let request = asking.request();
        let has_pair = |peer: &&mut TcpPeer| {
            let reopening = peer.reopening.as_ref().filter(|_| peer.lost.is_none());
            reopening.is_some_and(|reopening| *reopening.pair.id() == request.pair)
        };
        let peer = self.peers.iter_mut().find(has_pair).filter(|peer| peer.node == request.ballot.node);
        let Some(peer) = peer else {
            let _ = asking.answer(ReopenAnswer::Gone);
            return;
        };
        let node = peer.node;
        let reopening = peer.reopening.as_mut().expect("it has the pair");
        if request.ballot.number == SENTINEL_BALLOT {
            if let Ok(stream) = asking.answer(ReopenAnswer::Yes(0)) {
                self.take_sentinel(self.place(node), stream);
            }
            return;
        }
        match reopening.pair.on_request(request.ballot) {
            RequestVerdict::TooLow(seen) => {
                let _ = asking.answer(ReopenAnswer::No(seen));
            }
            RequestVerdict::Accept => {
                if !mutant!(KeepCall) {
                    reopening.give_up_call();
                }
                peer.drop_connection();
                match asking.answer(ReopenAnswer::Yes(peer.input.state_handled())) {
                    Ok(stream) => self.adopt(node, stream, request.handled),
                    // The caller has gone: it calls again, and so does this end.
                    Err(error) => self.on_failure(self.place(node), &TcpLoss::Io(error)),
                }
            }
        }
    }

    /// Continues with a new connection, at the word after those that the peer has handled \[C15\].
    fn adopt(&mut self, node: NodeId, stream: PeerStream, handled: u64) {
        let place = self.place(node);
        let peer = &mut self.peers[place];
        if !(peer.output.kept()..=peer.output.next()).contains(&handled) {
            return peer.lose(&TcpLoss::Violation(WRONG_POSITION), &mut self.local);
        }
        peer.output.resume_at(handled);
        let (stream, records) = stream.into_parts();
        let socket = self.prepare(stream, place);
        let peer = &mut self.peers[place];
        match socket {
            Ok(socket) => {
                (peer.socket, peer.records) = (Some(socket), records);
                (peer.readable, peer.writable) = (true, true);
                let reopening = peer.reopening.as_mut().expect("it can be opened again");
                (reopening.is_ended, reopening.sentinel.failed) = (false, 0);
                self.local.counters.reopened += 1;
                if let Some(calls) = &self.calls {
                    reopening.ask_for_sentinel(peer.node, self.local.grants.owner(), calls);
                }
                let own = self.local.grants.owner();
                crate::log::info!(node = own.0, peer = peer.node.0, "the connection to a peer is open again");
            }
            Err(error) => self.on_failure(place, &TcpLoss::Io(error)),
        }
    }
}

const WRONG_POSITION: super::frame::TcpViolation =
    super::frame::TcpViolation("a position of its input that is not one of what was sent and is kept");

#[cfg(test)]
mod tests;
