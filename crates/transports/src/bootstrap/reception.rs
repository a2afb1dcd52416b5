//! Where connections are received: each must prove the secret and say what it wants before anybody hears of it.
//!
//! One thread serves all of them. A connection that is silent or slow is closed after `handshake_timeout`,
//! however its bytes trickle. When `unauthenticated_max` are waiting, the oldest makes room for the next as
//! soon as it has had [`GRACE`], so that silent clients cannot shut the others out.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

use super::error::system;
use super::link::Link;
use super::message::{Answer, Refusal, Request};
use super::wire::{Wire, WireError, poll_for};
use super::{BootstrapError, Listener, Plan, Progress, Proof, ProofError};
use crate::session::{HELLO_BYTES, HELLO_HEAD_BYTES, Rejection};

/// The time in which an honest peer proves the secret, unless the network is very slow.
const GRACE: Duration = Duration::from_millis(250);

/// Who has proved the secret and said what it wants.
pub(super) struct Visitor<S> {
    pub(super) wire: Wire<S>,
    pub(super) peer: String,
    pub(super) request: Request,
}

impl<S: Link> Visitor<S> {
    /// Refuses the request, closes the connection, and tells of it, unless somebody has only looked around.
    pub(super) fn turn_away(mut self, refusal: Refusal, on_progress: &mut dyn FnMut(Progress)) {
        let cause = refusal.to_string();
        // Whoever does not wait for the answer needs none.
        let _ = self.wire.write_frame(&Answer::Refused(refusal), Instant::now());
        if !matches!(self.request, Request::Status { .. }) {
            on_progress(Progress::Rejected { peer: self.peer, cause });
        }
    }
}

pub(super) struct Reception<'p, S: Link> {
    listener: &'p Listener<S>,
    proof: &'p Proof,
    handshake_timeout: Duration,
    /// Oldest first; `pending.len() <= pending_max`.
    pending: Vec<Pending<S>>,
    pending_max: usize,
}

struct Pending<S> {
    wire: Wire<S>,
    peer: String,
    since: Instant,
    stage: Stage,
}

/// What is to come next.
#[derive(Clone, Copy)]
enum Stage {
    HelloHead,
    Hello([u8; HELLO_HEAD_BYTES]),
    /// The first frame of the session, which shows that the peer has the keys.
    Request,
}

impl<'p, S: Link> Reception<'p, S> {
    pub(super) fn new(plan: &Plan, listener: &'p Listener<S>, proof: &'p Proof) -> Self {
        Self {
            listener,
            proof,
            handshake_timeout: plan.handshake_timeout,
            pending: Vec::new(),
            pending_max: plan.unauthenticated_max,
        }
    }

    /// Waits until somebody has said what it wants, one of `watched` can be read, or `deadline`. Those who fail
    /// are closed and told to `on_progress`.
    pub(super) fn poll(
        &mut self,
        watched: &[BorrowedFd<'_>],
        deadline: Instant,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Visitor<S>>, BootstrapError> {
        self.wait(watched, deadline)?;
        self.accept(on_progress)?;
        let mut visitors = Vec::new();
        let now = Instant::now();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.advance(self.proof) {
                Ok(Some(request)) => {
                    visitors.push(Visitor { wire: pending.wire, peer: pending.peer, request });
                }
                Ok(None) if now < pending.since + self.handshake_timeout => self.pending.push(pending),
                Ok(None) => on_progress(pending.rejected(&WireError::Late.to_string())),
                Err(error) => on_progress(pending.rejected(&error.to_string())),
            }
        }
        Ok(visitors)
    }

    fn wait(&mut self, watched: &[BorrowedFd<'_>], deadline: Instant) -> Result<(), BootstrapError> {
        let oldest = self.pending.first().map(|pending| pending.since);
        let expiry = oldest.map(|since| since + self.handshake_timeout);
        let full = self.pending.len() >= self.pending_max;
        let room = oldest.filter(|_| full).map(|since| since + GRACE);
        let wake = [Some(deadline), expiry, room].into_iter().flatten().min().unwrap_or(deadline);

        let now = Instant::now();
        let deaf = room.is_some_and(|room| now < room);
        let mut fds: Vec<_> = self.pending.iter().map(|pending| pending.wire.as_fd()).collect();
        fds.extend_from_slice(watched);
        if !deaf {
            fds.push(self.listener.as_fd());
        }
        let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll_for(&mut fds, wake.saturating_duration_since(now)).map_err(system("to wait for connections"))
    }

    fn accept(&mut self, on_progress: &mut dyn FnMut(Progress)) -> Result<(), BootstrapError> {
        loop {
            let now = Instant::now();
            let full = self.pending.len() >= self.pending_max;
            if full && self.pending.first().is_some_and(|oldest| now < oldest.since + GRACE) {
                return Ok(());
            }
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if is_shortage(&error) => return Err(system("to accept a connection")(error)),
                // Nobody waits, or the connection failed before we took it.
                Err(_) => return Ok(()),
            };
            if full {
                on_progress(self.pending.remove(0).rejected("too many connections wait for their proof"));
            }
            let peer = stream.peer();
            if let Ok(Some(user)) = stream.foreign_user() {
                on_progress(Progress::Rejected { peer, cause: format!("user {user} is not ours") });
                continue;
            }
            let wire = Wire::new(stream).map_err(system("to make a socket non-blocking"))?;
            self.pending.push(Pending { wire, peer, since: now, stage: Stage::HelloHead });
        }
    }
}

impl<S: Link> Pending<S> {
    /// Takes what has come; the request, once all of it is there.
    fn advance(&mut self, proof: &Proof) -> Result<Option<Request>, ProofError> {
        loop {
            match self.stage {
                Stage::HelloHead => {
                    let Some(head) = self.wire.poll_exact().map_err(proof_io)? else { return Ok(None) };
                    if let Err(rejection) = Proof::check_head(&head) {
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
                    match proof.respond(ends, &hello) {
                        Ok((session, answer)) => {
                            self.answer(&answer)?;
                            self.wire.begin(session);
                            self.stage = Stage::Request;
                        }
                        Err(rejection) => return self.reject(rejection),
                    }
                }
                Stage::Request => return self.wire.poll_frame().map_err(proof_io),
            }
        }
    }

    fn reject<T>(&mut self, rejection: Rejection) -> Result<T, ProofError> {
        self.answer(rejection.answer_bytes())?;
        Err(rejection.error)
    }

    /// Writes a short answer, for which the socket's buffer has room: it was empty.
    fn answer(&mut self, bytes: &[u8]) -> Result<(), ProofError> {
        use std::io::Write;
        Ok(self.wire.waiting(Instant::now().into()).write_all(bytes)?)
    }

    fn rejected(self, cause: &str) -> Progress {
        Progress::Rejected { peer: self.peer, cause: cause.into() }
    }
}

fn proof_io(error: WireError) -> ProofError {
    ProofError::Io(error.into())
}

/// Without descriptors or memory, to wait for the next connection would be to spin.
fn is_shortage(error: &std::io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|error| shortages.contains(&error))
}
