//! A member's links are opened again when they break ([`crate::tcp`]): by the address at which the other member listens, with a proof of both
//! ends, as each link was opened first. A request is the first message of the caller, and the polling thread of the called member answers.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::mutex::lock;

use super::attempts::connect_soon;
use super::handshake_queue::ProvedVisitor;
use super::link::LinkSocket;
use super::message::{BootstrapAnswer, BootstrapRequest};
use super::wire::{FramedSocket, FramingError};
use super::{Address, BootstrapPlan, Proof, ProofError, Refusal};
use crate::session::{CallerKind, PeerStream};
use crate::tcp::reopening::{
    AskedDesk, Asking, PairCallFailure, PeerCaller, ProvedCall, ReopenAnswer, ReopenBallot, ReopenRequest,
};

/// What a member knows of its links: where the others listen, and its fabric, which opens links again. Clones are the same.
#[derive(Clone, Default)]
pub struct MemberLinks(Arc<LinkState>);

#[derive(Default)]
struct LinkState {
    addresses: Mutex<BTreeMap<NodeId, Address>>,
    /// Where those that ask are handed over.
    desk: Mutex<Option<AskedDesk>>,
}

/// How the links of a fabric are opened again.
#[derive(Clone, Debug)]
pub struct Relinking {
    /// The cluster, its secret and the encryption.
    pub plan: BootstrapPlan,
    /// Where the others listen.
    pub links: MemberLinks,
    /// After at most this time another connection is tried beside those that are not made yet, for eight times as long together; each answer
    /// may take four times as long.
    pub attempt_every: Duration,
    /// How long what was sent may stay without acknowledgement until the connection counts as broken.
    pub silence: Duration,
}

impl MemberLinks {
    /// Replaces the addresses at which the members listen.
    pub fn learn(&self, roster: &BTreeMap<NodeId, Address>) {
        self.addresses().clone_from(roster);
    }

    fn addresses(&self) -> MutexGuard<'_, BTreeMap<NodeId, Address>> {
        lock(&self.0.addresses)
    }

    fn desk(&self) -> MutexGuard<'_, Option<AskedDesk>> {
        lock(&self.0.desk)
    }

    pub(crate) fn set_desk(&self, desk: AskedDesk) {
        *self.desk() = Some(desk);
    }

    /// Hands a visitor that asks to open a link again to the fabric; if there is none, the pair is gone.
    pub(super) fn receive<S: LinkSocket>(&self, visitor: ProvedVisitor<S>) {
        let BootstrapRequest::Reopen { pair, number, node, handled } = visitor.request else { return };
        let ballot = ReopenBallot { number, node: NodeId(node) };
        let asking = Visitor { wire: visitor.wire, request: ReopenRequest { pair, ballot, handled } };
        let desk = self.desk().clone();
        match (desk, S::asking(asking)) {
            (Some(desk), Some(asking)) => desk.hand_over(Box::new(asking)),
            // A process that has closed its connection needs no answer.
            (None, Some(asking)) => drop(Box::new(asking).answer(ReopenAnswer::Gone)),
            (_, None) => {}
        }
    }
}

impl fmt::Debug for MemberLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberLinks").finish_non_exhaustive()
    }
}

impl Relinking {
    pub(crate) fn caller(&self) -> Arc<dyn PeerCaller> {
        Arc::new(LinkCaller { relinking: self.clone(), proof: self.plan.proof() })
    }
}

#[derive(Debug)]
struct LinkCaller {
    relinking: Relinking,
    proof: Proof,
}

struct ProvedLink {
    wire: FramedSocket<TcpStream>,
    answer_within: Duration,
}

/// How much longer than the time between two attempts the connections of a call may take, and then each answer: a lost packet of a connection
/// that is made is repeated soon, and a host may be busy.
const CONNECT_TIMES: u32 = 8;
const ANSWER_TIMES: u32 = 4;

/// A connection whose caller asks to open a link again.
#[derive(Debug)]
pub struct Visitor<S> {
    wire: FramedSocket<S>,
    request: ReopenRequest,
}

fn failed(cause: impl fmt::Display) -> PairCallFailure {
    PairCallFailure { refused: false, cause: cause.to_string() }
}

impl PeerCaller for LinkCaller {
    fn call(&self, peer: NodeId) -> Result<Box<dyn ProvedCall>, PairCallFailure> {
        let Self { relinking: Relinking { links, attempt_every, .. }, proof } = self;
        let answer_within = *attempt_every * ANSWER_TIMES;
        let address = links.addresses().get(&peer).cloned();
        let address = address.ok_or_else(|| failed("the address at which it listens is not known yet"))?;
        let deadline = Instant::now() + *attempt_every * CONNECT_TIMES;
        let stream = connect_soon(&address, *attempt_every, deadline).map_err(|error| PairCallFailure {
            refused: error.kind() == io::ErrorKind::ConnectionRefused,
            cause: format!("{address}: {error}"),
        })?;
        let mut wire = FramedSocket::new(stream).map_err(failed)?;
        let proved = wire.prove(proof, CallerKind::Member, (Instant::now() + answer_within).into());
        proved.map_err(|error: ProofError| failed(format!("{address}: {error}")))?;
        Ok(Box::new(ProvedLink { wire, answer_within }))
    }
}

impl ProvedCall for ProvedLink {
    fn ask(self: Box<Self>, request: &ReopenRequest) -> Result<(ReopenAnswer, PeerStream), PairCallFailure> {
        let Self { mut wire, answer_within } = *self;
        let &ReopenRequest { pair, ballot: ReopenBallot { number, node }, handled } = request;
        let request = BootstrapRequest::Reopen { pair, number, node: node.0, handled };
        let until = Instant::now() + answer_within;
        wire.write_frame(&request, until).map_err(failed)?;
        let answer = match wire.read_frame(until).map_err(failed)? {
            BootstrapAnswer::Reopened { handled } => ReopenAnswer::Yes(handled),
            BootstrapAnswer::BallotTooLow { number } => ReopenAnswer::No(number),
            BootstrapAnswer::Gone => ReopenAnswer::Gone,
            // A process that begins listens where the peer did: it has no pair yet, and was another one.
            BootstrapAnswer::Refused(refusal @ Refusal::Assembling) => {
                return Err(PairCallFailure { refused: true, cause: refusal.to_string() });
            }
            other => return Err(failed(format!("it answered {other:?}"))),
        };
        Ok((answer, wire.into_stream().map_err(failed)?))
    }
}

impl Asking for Visitor<TcpStream> {
    fn request(&self) -> ReopenRequest {
        self.request
    }

    fn answer(mut self: Box<Self>, answer: ReopenAnswer) -> io::Result<PeerStream> {
        let answer = match answer {
            ReopenAnswer::Yes(handled) => BootstrapAnswer::Reopened { handled },
            ReopenAnswer::No(number) => BootstrapAnswer::BallotTooLow { number },
            ReopenAnswer::Gone => BootstrapAnswer::Gone,
        };
        // The socket's buffer is empty, so there is space.
        self.wire
            .write_frame(&answer, Instant::now())
            .map_err(|error: FramingError| io::Error::from(error))?;
        self.wire.into_stream()
    }
}
