//! Sentinels: how the death of a process is noticed.
//!
//! A host that closes the connections of a dead process resets those on which something has arrived that was not read, and a
//! reset proves nothing. So each pair has a second connection, which carries nothing: the higher node asks for it, by a request with ballot 0.
//! Its end, without a farewell on the other one, and then two refusals, are the death of the process. If it breaks otherwise, it is opened
//! again; a pair that cannot have one learns of a death by silence only.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::sync::Arc;

use squall_fabric::atomics::AtomicBool;
use squall_fabric::{Duration, NodeId};

use super::Reopening;
use super::calls::{PairCallFailure, PairCalls, ReopenAnswer, ReopenRequest};
use crate::session::PeerStream;
use crate::tcp::TcpFabric;
use crate::tcp::pair::ReopenBallot;
use crate::tcp::peer::TcpLoss;

/// The connection of a pair that carries nothing.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Sentinel {
    pub(in crate::tcp) stream: Option<TcpStream>,
    /// Something has happened to it.
    pub(in crate::tcp) has_news: bool,
    /// Gives up the call for it that is under way.
    pub(super) given_up: Option<Arc<AtomicBool>>,
    pub(super) failed: u32,
}

impl Reopening {
    /// Asks for a sentinel, if this end does.
    pub(in crate::tcp) fn ask_for_sentinel(&mut self, peer: NodeId, own: NodeId, calls: &PairCalls) {
        let Self { pair, sentinel, .. } = self;
        if own > peer && sentinel.stream.is_none() && sentinel.given_up.is_none() {
            let ballot = ReopenBallot { number: SENTINEL_BALLOT, node: own };
            let request = ReopenRequest { pair: *pair.id(), ballot, handled: 0 };
            sentinel.given_up = Some(calls.order_sentinel(peer, request, sentinel.failed));
        }
    }
}

impl TcpFabric {
    pub(super) fn on_sentinel_answer(
        &mut self,
        place: usize,
        answer: Result<(ReopenAnswer, PeerStream), PairCallFailure>,
    ) {
        let (own, peer) = (self.local.grants.owner(), &mut self.peers[place]);
        let (Some(reopening), Some(calls)) = (&mut peer.reopening, &self.calls) else { return };
        reopening.sentinel.given_up = None;
        match answer {
            Ok((ReopenAnswer::Yes(_), stream)) => self.take_sentinel(place, stream),
            // The peer has lost this node: the other connection brings that.
            Ok(_) => {}
            Err(failure) => {
                crate::log::debug!(peer = peer.node.0, cause = failure.cause, "there is no sentinel yet");
                reopening.sentinel.failed += 1;
                reopening.ask_for_sentinel(peer.node, own, calls);
            }
        }
    }

    pub(super) fn take_sentinel(&mut self, place: usize, stream: PeerStream) {
        let (stream, _) = stream.into_parts();
        // If it cannot be watched, there is none.
        let is_watched =
            stream.set_nonblocking(true).is_ok() && self.poller.add_sentinel(&stream, place).is_ok();
        let Some(reopening) = self.peers[place].reopening.as_mut().filter(|_| is_watched) else { return };
        // What has happened to it meanwhile is noticed at once.
        self.has_sentinel_news = true;
        reopening.sentinel = Sentinel { stream: Some(stream), has_news: true, given_up: None, failed: 0 };
    }

    /// Looks at the sentinels to which something has happened; returns how many.
    pub(in crate::tcp) fn poll_sentinels(&mut self) -> usize {
        if !std::mem::take(&mut self.has_sentinel_news) {
            return 0;
        }
        let mut work = 0;
        for place in 0..self.peers.len() {
            let peer = &mut self.peers[place];
            let Some(reopening) = peer.reopening.as_mut().filter(|reopening| reopening.sentinel.has_news)
            else {
                continue;
            };
            reopening.sentinel.has_news = false;
            let read = reopening.sentinel.stream.as_mut().map(|stream| stream.read(&mut [0; 8]));
            let is_ended = match read {
                None => continue,
                Some(Err(error))
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
                {
                    continue;
                }
                Some(Ok(0)) => true,
                // It is broken; nothing should have arrived.
                Some(_) => false,
            };
            work += 1;
            reopening.sentinel.stream = None;
            reopening.is_ended |= is_ended;
            let (own, Some(calls)) = (self.local.grants.owner(), &self.calls) else { continue };
            if reopening.is_dead() {
                peer.lose(&TcpLoss::Dead, &mut self.local);
            } else if is_ended {
                reopening.begin(peer.node, calls);
            } else {
                reopening.ask_for_sentinel(peer.node, own, calls);
            }
        }
        work
    }
}

/// What names a sentinel: no connection that is opened again has this ballot, and no call this number.
pub(super) const SENTINEL_BALLOT: u64 = 0;
pub(super) const SENTINEL_CALL: u64 = 0;
/// The longest wait between two calls for a sentinel.
pub(super) const SENTINEL_WAIT_MAX: Duration = Duration::from_secs(5);
