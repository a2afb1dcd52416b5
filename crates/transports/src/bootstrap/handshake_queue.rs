//! The queue of incoming connections: each must prove the secret and send a request before it is passed on.
//!
//! One thread serves all of them. A connection that is silent or slow is closed after `handshake_timeout`,
//! even if single bytes arrive. When `unauthenticated_max` connections are pending, the next replaces the
//! oldest one of the source address that has the most of them, counting the next; connections that have shown
//! a proof are kept in preference to those that have not. So a host that occupies all places loses its own to
//! connections from elsewhere and cannot exclude them; and its own further connections are served in turn
//! with those of others.

use std::cmp::Reverse;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

use super::error::system;
use super::link::LinkSocket;
use super::message::{BootstrapAnswer, BootstrapRequest, Refusal};
use super::wall_clock::compare_clocks;
use super::wire::{FramedSocket, FramingError, poll_for};
use super::{BootstrapError, BootstrapListener, BootstrapPlan, BootstrapProgress, Proof, ProofError};
use crate::session::{AnsweredCaller, CallerKind, HELLO_BYTES, HELLO_HEAD_BYTES, Rejection};

/// A connection that has proved the secret and sent its request.
pub(super) struct ProvedVisitor<S> {
    pub(super) wire: FramedSocket<S>,
    pub(super) peer: String,
    pub(super) request: BootstrapRequest,
}

impl<S: LinkSocket> ProvedVisitor<S> {
    /// Refuses the request, closes the connection, and reports it, unless it was only a status query.
    pub(super) fn reject(mut self, refusal: Refusal, on_progress: &mut dyn FnMut(BootstrapProgress)) {
        let cause = refusal.at_refusing();
        // A process that has closed its connection needs no answer.
        let _ = self.wire.write_frame(&BootstrapAnswer::Refused(refusal), Instant::now());
        if !matches!(self.request, BootstrapRequest::Status { .. }) {
            on_progress(BootstrapProgress::Rejected { peer: self.peer, cause });
        }
    }
}

#[derive(Debug)]
pub(super) struct HandshakeQueue<'p, S: LinkSocket> {
    listener: &'p BootstrapListener<S>,
    proof: &'p Proof,
    /// The kinds of callers that are served here.
    served: &'p [CallerKind],
    handshake_timeout: Duration,
    /// Oldest first; `pending.len() <= pending_max`.
    pending: Vec<Pending<S>>,
    pending_max: usize,
    /// Until when no connection is accepted, after an accept that failed for want of descriptors or memory.
    no_accept_until: Option<Instant>,
}

#[derive(Debug)]
struct Pending<S> {
    wire: FramedSocket<S>,
    peer: String,
    source: Option<IpAddr>,
    since: Instant,
    stage: Stage,
}

/// What must arrive next.
#[derive(Clone, Copy, Debug)]
enum Stage {
    HelloHead,
    Hello([u8; HELLO_HEAD_BYTES]),
    /// The first frame of the session, which shows that the peer has the keys, and asks what callers of its kind ask.
    Request(CallerKind),
}

impl<'p, S: LinkSocket> HandshakeQueue<'p, S> {
    pub(super) fn new(
        plan: &BootstrapPlan,
        listener: &'p BootstrapListener<S>,
        proof: &'p Proof,
        served: &'p [CallerKind],
    ) -> Self {
        Self {
            listener,
            proof,
            served,
            handshake_timeout: plan.handshake_timeout,
            pending: Vec::new(),
            pending_max: plan.unauthenticated_max,
            no_accept_until: None,
        }
    }

    /// Waits until a request has arrived, one of `watched` is readable, or `deadline` has passed. Connections
    /// that fail are closed and reported to `on_progress`.
    ///
    /// # Errors
    /// Returns an error if a connection cannot be accepted for lack of descriptors or memory. For a while the next
    /// calls accept none, and serve those that are accepted already.
    pub(super) fn poll(
        &mut self,
        watched: &[BorrowedFd<'_>],
        deadline: Instant,
        on_progress: &mut dyn FnMut(BootstrapProgress),
    ) -> Result<Vec<ProvedVisitor<S>>, BootstrapError> {
        self.no_accept_until = self.no_accept_until.filter(|until| Instant::now() < *until);
        self.wait(watched, deadline)?;
        if self.no_accept_until.is_none() {
            self.accept(on_progress)?;
        }
        let mut visitors = Vec::new();
        let now = Instant::now();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.advance(self.proof, self.served) {
                Ok(Some((kind, request))) => {
                    let visitor = ProvedVisitor { wire: pending.wire, peer: pending.peer, request };
                    if visitor.request.kind() == kind {
                        compare_clocks(&visitor.request, &visitor.peer);
                        visitors.push(visitor);
                    } else {
                        visitor.reject(Refusal::Unusable, on_progress);
                    }
                }
                Ok(None) if now < pending.since + self.handshake_timeout => self.pending.push(pending),
                Ok(None) => on_progress(pending.rejected(&FramingError::Late.to_string())),
                Err(error) => on_progress(pending.rejected(&error.to_string())),
            }
        }
        Ok(visitors)
    }

    fn wait(&mut self, watched: &[BorrowedFd<'_>], deadline: Instant) -> Result<(), BootstrapError> {
        let oldest = self.pending.first().map(|pending| pending.since);
        let expiry = oldest.map(|since| since + self.handshake_timeout);
        let wake = [expiry, self.no_accept_until].into_iter().flatten().fold(deadline, Instant::min);
        let now = Instant::now();
        let mut fds: Vec<_> = self.pending.iter().map(|pending| pending.wire.as_fd()).collect();
        fds.extend_from_slice(watched);
        if self.no_accept_until.is_none() {
            fds.push(self.listener.as_fd());
        }
        let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll_for(&mut fds, wake.saturating_duration_since(now)).map_err(system("to wait for connections"))
    }

    fn accept(&mut self, on_progress: &mut dyn FnMut(BootstrapProgress)) -> Result<(), BootstrapError> {
        // Pending connections are read before more are accepted than there are places.
        for _ in 0..self.pending_max {
            let now = Instant::now();
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if is_shortage(&error) => {
                    self.no_accept_until = Some(now + SHORTAGE_PAUSE);
                    return Err(system("to accept a connection")(error));
                }
                // No connection is waiting, or it failed before it was accepted.
                Err(_) => return Ok(()),
            };
            let peer = stream.peer();
            let source = stream.peer_ip().map(network);
            let stranger = match stream.foreign_user() {
                Ok(None) => None,
                Ok(Some(user)) => Some(format!("it runs as another user ({user})")),
                Err(error) => Some(format!("the system does not report its user: {error}")),
            };
            if let Some(cause) = stranger {
                on_progress(BootstrapProgress::Rejected { peer, cause });
                continue;
            }
            let wire = FramedSocket::new(stream).map_err(system("to set a socket non-blocking"))?;
            if self.pending.len() >= self.pending_max {
                let leaving = self.pending.remove(self.leaving(source));
                on_progress(leaving.rejected("too many connections wait for their proof"));
            }
            self.pending.push(Pending { wire, peer, source, since: now, stage: Stage::HelloHead });
        }
        Ok(())
    }

    /// Returns the index of the connection that must make place for one from `source`.
    fn leaving(&self, source: Option<IpAddr>) -> usize {
        let count = |wanted| {
            let pending = self.pending.iter().filter(|pending| pending.source == wanted).count();
            pending + usize::from(wanted == source)
        };
        let worth = |pending: &Pending<S>| {
            let is_proved = matches!(pending.stage, Stage::Request(_));
            (Reverse(count(pending.source)), pending.source != source, is_proved)
        };
        // The first minimum, which is the oldest.
        let places = 0..self.pending.len();
        places.min_by_key(|place| worth(&self.pending[*place])).expect("`pending_max` is at least 1")
    }
}

impl<S: LinkSocket> Pending<S> {
    /// Processes the bytes that have arrived; returns what the caller is, and its request once that is complete.
    fn advance(
        &mut self,
        proof: &Proof,
        served: &[CallerKind],
    ) -> Result<Option<(CallerKind, BootstrapRequest)>, ProofError> {
        loop {
            match self.stage {
                Stage::HelloHead => {
                    let Some(head) = self.wire.poll_exact().map_err(proof_io)? else { return Ok(None) };
                    if let Err(rejection) = proof.check_head(&head) {
                        self.wire.discard();
                        return self.reject(rejection);
                    }
                    self.stage = Stage::Hello(head);
                }
                Stage::Hello(head) => {
                    let Some(rest) = self.wire.poll_exact().map_err(proof_io)? else { return Ok(None) };
                    let rest: [u8; HELLO_BYTES - HELLO_HEAD_BYTES] = rest;
                    let hello = [&head[..], &rest].concat().try_into().expect("the sizes add up");
                    let ends = self.wire.stream().ends()?;
                    match proof.respond(ends, &hello, served) {
                        Ok((AnsweredCaller { session, kind }, answer)) => {
                            self.answer(&answer)?;
                            self.wire.begin(session);
                            self.stage = Stage::Request(kind);
                        }
                        Err(rejection) => return self.reject(rejection),
                    }
                }
                Stage::Request(kind) => {
                    let request = self.wire.poll_frame().map_err(proof_io)?;
                    return Ok(request.map(|request| (kind, request)));
                }
            }
        }
    }

    fn reject<T>(&mut self, rejection: Rejection) -> Result<T, ProofError> {
        self.answer(rejection.answer_bytes())?;
        Err(rejection.error)
    }

    /// Writes a short answer, which fits into the socket's buffer, since that was empty.
    fn answer(&mut self, bytes: &[u8]) -> Result<(), ProofError> {
        use std::io::Write;
        Ok(self.wire.waiting(Instant::now().into()).write_all(bytes)?)
    }

    fn rejected(self, cause: &str) -> BootstrapProgress {
        BootstrapProgress::Rejected { peer: self.peer, cause: cause.into() }
    }
}

/// Returns the address range of one host: an IPv4 address, or a network of IPv6.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & HOST_NETWORK).into(),
        ip => ip,
    }
}

const HOST_NETWORK: u128 = !0 << 64;

fn proof_io(error: FramingError) -> ProofError {
    ProofError::Io(error.into())
}

/// The pause after a connection could not be accepted. It keeps the listener readable, so waiting for the listener
/// would be busy waiting.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Returns whether the error is a lack of descriptors or memory.
fn is_shortage(error: &std::io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|error| shortages.contains(&error))
}
