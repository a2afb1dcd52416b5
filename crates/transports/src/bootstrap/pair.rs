//! Pairs of processes without a group: one listens, others connect, with one connection for each pair.
//!
//! **Contract.** A [`PairListener`] listens at an address; a [`PairCall`] connects to it. Both ends prove the
//! secret to each other as members of a group do, before anything else is read, and the number of connections
//! that wait for their proof is bounded. The result is a [`PairedStream`]: a Unix socket if both are on one
//! host and run as the same user, else a TCP stream, which carries no more bootstrap data. It carries the
//! data of the pair, or is the control stream of two RDMA devices.
//!
//! **RDMA** is used if one end requires it and the other allows it: a listener that leaves the choice open
//! looks for a device when a caller requires it, and a caller that leaves it open follows the listener.
//! Otherwise the caller is refused, with the reason. If both leave it open, RDMA is used if both have a
//! device on the network by which they meet, or both name one, and may lock the memory that a stream needs;
//! else TCP is used, and the log gives the reason.
//!
//! **One host.** A listener at `host:port` also listens at a Unix socket whose name in the abstract namespace
//! contains the same address. A caller tries that first if the address is one of its own host; if no process
//! of the same user listens there, it uses TCP.

mod rdma;

use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use super::caller::{CallError, Caller};
use super::error::system;
use super::link::{LinkSocket, is_this_host};

use super::handshake_queue::{HandshakeQueue, ProvedVisitor};
use super::message::{BootstrapAnswer, BootstrapRequest, PairWish, Refusal};
use super::{Address, BootstrapError, BootstrapListener, BootstrapPlan, BootstrapProgress, Proof, Secret};
use crate::session::{Encryption, PeerStream};
use crate::verbs::VerbsSettings;
use rdma::local_address;

/// The parameters of a pair.
#[derive(Clone, Debug)]
pub struct PairTerms {
    /// The name of what the two processes belong to, the same at both ends.
    pub cluster: String,
    /// The secret, the same at both ends.
    pub secret: Secret,
    /// The transports that this end allows.
    pub choice: StreamTransport,
    /// This end's RDMA device.
    pub verbs: VerbsSettings,
    /// The bytes of memory that this end will lock for an RDMA device: locking them is tried before RDMA is
    /// chosen.
    pub locked_bytes: usize,
    /// How long a caller tries.
    pub timeout: Duration,
    /// The timeout for one connection to prove the secret.
    pub handshake_timeout: Duration,
    /// The most connections that wait for their proof; at least 1.
    pub unauthenticated_max: usize,
    /// Whether a stream over TCP is encrypted.
    pub encryption: Encryption,
}

/// The transport between two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamTransport {
    /// Shared memory if both are on one host and run as the same user; else RDMA if both have it on the
    /// network by which they meet, or the other end requires it; else TCP.
    #[default]
    Auto,
    /// Shared memory only.
    Shm,
    /// TCP only.
    Tcp,
    /// RDMA only; the ends meet by TCP.
    Verbs,
}

impl StreamTransport {
    /// Returns whether this end may use shared memory.
    const fn may_share(self) -> bool {
        matches!(self, Self::Auto | Self::Shm)
    }

    /// Returns the wish of a caller with this choice at a TCP address; calls `would_use_rdma` only if it
    /// matters.
    fn wish(self, would_use_rdma: impl FnOnce() -> bool) -> PairWish {
        match self {
            Self::Auto if would_use_rdma() => PairWish::RdmaIfYouToo,
            Self::Auto => PairWish::Any,
            Self::Shm | Self::Tcp => PairWish::Stream,
            Self::Verbs => PairWish::Rdma,
        }
    }

    /// Returns the answer of a listener with this choice to a wish that arrives by TCP. Only where it
    /// matters, it calls `has_rdma`, or `would_use_rdma` for callers that do not require RDMA.
    fn answer(
        self,
        wish: PairWish,
        has_rdma: impl FnOnce() -> bool,
        would_use_rdma: impl FnOnce() -> bool,
    ) -> BootstrapAnswer {
        match (self, wish) {
            (Self::Verbs, PairWish::Rdma | PairWish::Any | PairWish::RdmaIfYouToo) => {
                BootstrapAnswer::AcceptedByRdma
            }
            (Self::Verbs, PairWish::Stream) => BootstrapAnswer::Refused(Refusal::RdmaOnly),
            (Self::Auto, PairWish::Rdma) if has_rdma() => BootstrapAnswer::AcceptedByRdma,
            (Self::Auto, PairWish::RdmaIfYouToo) if would_use_rdma() => BootstrapAnswer::AcceptedByRdma,
            (_, PairWish::Rdma) => BootstrapAnswer::Refused(Refusal::NoRdma),
            (_, PairWish::Stream | PairWish::Any | PairWish::RdmaIfYouToo) => BootstrapAnswer::Accepted,
        }
    }
}

/// A connection whose ends have authenticated each other.
#[derive(Debug)]
pub enum PairedStream {
    /// Both ends are on this host and run as the same user.
    Shm(UnixStream),
    /// The peer may be on any host.
    Tcp(PeerStream),
    /// The peer may be on any host; the data are carried by RDMA.
    Verbs(PeerStream),
}

/// A stream over which two processes have met.
trait Meet: LinkSocket {
    /// Returns what the stream becomes; `None` if it cannot become what the peer wants.
    fn meet(secured: Self::Secured, by_rdma: bool) -> Option<PairedStream>;
}

impl Meet for UnixStream {
    fn meet(secured: Self, by_rdma: bool) -> Option<PairedStream> {
        (!by_rdma).then_some(PairedStream::Shm(secured))
    }
}

impl Meet for TcpStream {
    fn meet(secured: PeerStream, by_rdma: bool) -> Option<PairedStream> {
        Some(if by_rdma { PairedStream::Verbs(secured) } else { PairedStream::Tcp(secured) })
    }
}

impl PairTerms {
    /// Creates terms with the limits of [`BootstrapPlan::new`], and ten seconds for a caller.
    #[must_use]
    pub fn new(cluster: &str, secret: &Secret) -> Self {
        let plan = BootstrapPlan::new(cluster, secret, 2);
        Self {
            cluster: cluster.into(),
            secret: secret.clone(),
            choice: StreamTransport::Auto,
            verbs: VerbsSettings::default(),
            locked_bytes: 0,
            timeout: Duration::from_secs(10),
            handshake_timeout: plan.handshake_timeout,
            unauthenticated_max: plan.unauthenticated_max,
            encryption: plan.encryption,
        }
    }

    fn plan(&self) -> BootstrapPlan {
        let mut plan = BootstrapPlan::new(&self.cluster, &self.secret, 2);
        (plan.timeout, plan.handshake_timeout) = (self.timeout, self.handshake_timeout);
        plan.unauthenticated_max = self.unauthenticated_max;
        plan
    }

    fn proof(&self) -> Proof {
        Proof::new(&self.secret, &self.cluster, PURPOSE).with_encryption(self.encryption)
    }
}

/// Receives callers; a thread for each kind of socket checks their proofs.
#[derive(Debug)]
pub struct PairListener {
    address: Address,
    /// One thread at a time waits here.
    arrivals: Mutex<Receiver<Result<PairedStream, BootstrapError>>>,
    shared: Arc<Bells>,
    threads: Vec<JoinHandle<()>>,
}

/// The descriptors that wake threads.
#[derive(Debug)]
struct Bells {
    /// Counts arrivals that are not yet taken.
    arrival: OwnedFd,
    /// Readable when the listener closes.
    closing: OwnedFd,
}

impl PairListener {
    /// Listens at `address`: `host:port`, or `unix:…` for this host only.
    ///
    /// # Errors
    /// Returns [`BootstrapError`] if the address is not available or does not suit the terms.
    pub fn open(address: &Address, terms: &PairTerms) -> Result<Self, BootstrapError> {
        let bell = |flags| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | flags);
        let no_bell = |error: rustix::io::Errno| system("to create a file descriptor")(error.into());
        let shared = Arc::new(Bells {
            arrival: bell(EventfdFlags::SEMAPHORE).map_err(no_bell)?,
            closing: bell(EventfdFlags::empty()).map_err(no_bell)?,
        });
        let (sender, arrivals) = sync_channel(BACKLOG);
        let arrivals = Mutex::new(arrivals);
        let mut door = Self { address: address.clone(), arrivals, shared, threads: Vec::new() };
        let serve = |door: &Self| Reporter { sender: sender.clone(), bells: door.shared.clone() };
        let mut twin = Some(address.clone()).filter(Address::is_unix);
        if !address.is_unix() {
            if terms.unauthenticated_max == 0 {
                return Err(BootstrapError::Plan("`unauthenticated_max` is 0: set it to at least 1".into()));
            }
            let listener = BootstrapListener::<TcpStream>::bind(address)?;
            door.address = listener.address().clone();
            if terms.choice.may_share() {
                twin = twins(&door.address).into_iter().next_back();
            }
            door.spawn(listener, terms, serve(&door))?;
        } else if !terms.choice.may_share() {
            return Err(BootstrapError::Plan(format!("{address} is not a TCP address: write `host:port`")));
        }
        if let Some(twin) = twin {
            let listener = BootstrapListener::<UnixStream>::bind(&twin)?;
            door.spawn(listener, terms, serve(&door))?;
        }
        Ok(door)
    }

    fn spawn<S: Meet>(
        &mut self,
        listener: BootstrapListener<S>,
        terms: &PairTerms,
        reporter: Reporter,
    ) -> Result<(), BootstrapError> {
        let terms = terms.clone();
        let thread = std::thread::Builder::new().name("squall-accept".into());
        let thread = thread.spawn(move || reporter.receive(&listener, &terms));
        self.threads.push(thread.map_err(system("to start a thread for callers"))?);
        Ok(())
    }

    /// Returns the address at which it listens, with the port that the kernel has chosen.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the next caller, waiting for up to `timeout` (`None`: without limit); `None` if none came.
    ///
    /// # Errors
    /// Returns an error if the system does not let the listener accept callers any more.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Option<PairedStream>, BootstrapError> {
        let arrivals = match (timeout, self.arrivals.try_lock()) {
            (_, Ok(arrivals)) => arrivals,
            // A thread that waits already takes the next caller.
            (Some(Duration::ZERO), Err(TryLockError::WouldBlock)) => return Ok(None),
            _ => self.arrivals.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let arrival = match timeout {
            None => arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(Duration::ZERO) => arrivals.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
            Some(timeout) => arrivals.recv_timeout(timeout),
        };
        match arrival {
            Ok(arrival) => {
                let _ = rustix::io::read(&self.shared.arrival, &mut [0; 8]);
                arrival.map(Some)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(system("to accept callers")(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }
}

/// Readable while callers wait to be accepted.
impl AsFd for PairListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.arrival.as_fd()
    }
}

impl Drop for PairListener {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.shared.closing, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What a listener's thread needs.
struct Reporter {
    sender: SyncSender<Result<PairedStream, BootstrapError>>,
    bells: Arc<Bells>,
}

impl Reporter {
    /// Receives callers until the listener closes.
    fn receive<S: Meet>(&self, listener: &BootstrapListener<S>, terms: &PairTerms) {
        let (plan, proof) = (terms.plan(), terms.proof());
        let mut queue = HandshakeQueue::new(&plan, listener, &proof);
        let mut log = |progress: BootstrapProgress| crate::log::debug!(?progress, "a caller");
        loop {
            let closing = [self.bells.closing.as_fd()];
            let visitors = queue.poll(&closing, Instant::now() + PATIENCE, &mut log);
            if rustix::io::read(&self.bells.closing, &mut [0; 8]).is_ok() {
                // For the other thread.
                let _ = rustix::io::write(&self.bells.closing, &1u64.to_ne_bytes());
                return;
            }
            match visitors {
                Ok(visitors) => {
                    visitors.into_iter().for_each(|visitor| self.answer_visitor(visitor, terms, &mut log))
                }
                // Descriptors or memory may be available again later.
                Err(error) => self.report(Err(error)),
            }
        }
    }

    fn answer_visitor<S: Meet>(
        &self,
        mut visitor: ProvedVisitor<S>,
        terms: &PairTerms,
        log: &mut dyn FnMut(BootstrapProgress),
    ) {
        let BootstrapRequest::Pair { wish } = visitor.request else {
            visitor.reject(Refusal::Unusable, log);
            return;
        };
        let local = visitor.wire.stream().local_ip();
        let answer = terms.choice.answer(wish, || terms.has_rdma(), || terms.would_use_rdma(local));
        if let BootstrapAnswer::Refused(refusal) = answer {
            visitor.reject(refusal, log);
            return;
        }
        if visitor.wire.write_frame(&answer, Instant::now()).is_ok()
            && let Ok(stream) = visitor.wire.into_stream()
            && let Some(meeting) = S::meet(stream, answer == BootstrapAnswer::AcceptedByRdma)
        {
            self.report(Ok(meeting));
        }
    }

    fn report(&self, arrival: Result<PairedStream, BootstrapError>) {
        // A caller that finds the queue full is disconnected, and may call again.
        if self.sender.try_send(arrival).is_ok() {
            let _ = rustix::io::write(&self.bells.arrival, &1u64.to_ne_bytes());
        }
    }
}

/// A call of a pair's listener: each attempt tries its sockets once. When to try again is up to the caller.
#[derive(Debug)]
pub struct PairCall<'a> {
    address: &'a Address,
    terms: &'a PairTerms,
    plan: BootstrapPlan,
    proof: Proof,
    twins: Vec<Address>,
    /// Whether to ask for RDMA: searched once, and only by a caller that cannot use shared memory.
    would_use_rdma: Option<bool>,
}

/// Why an attempt of a [`PairCall`] failed.
#[derive(Debug)]
pub enum PairCallError {
    /// Another attempt may succeed.
    Again(BootstrapError),
    /// No other attempt can succeed.
    Final(BootstrapError),
}

impl<'a> PairCall<'a> {
    /// A call of the listener at `address`.
    ///
    /// # Errors
    /// [`BootstrapError::Plan`] if `terms` ask for a transport that this kind of address does not have.
    pub fn new(address: &'a Address, terms: &'a PairTerms) -> Result<Self, BootstrapError> {
        if address.is_unix() && !terms.choice.may_share() {
            return Err(BootstrapError::Plan(format!("{address} is not a TCP address: write `host:port`")));
        }
        let twins = match terms.choice {
            StreamTransport::Tcp | StreamTransport::Verbs => Vec::new(),
            _ if address.is_unix() => vec![address.clone()],
            _ => twins(address),
        };
        Ok(Self { address, terms, plan: terms.plan(), proof: terms.proof(), twins, would_use_rdma: None })
    }

    /// Tries once.
    ///
    /// # Errors
    /// [`PairCallError`], whose [`BootstrapError`] says what to do next.
    pub fn attempt(&mut self) -> Result<PairedStream, PairCallError> {
        let Self { address, terms, plan, proof, twins, would_use_rdma } = self;
        let caller = Caller { plan, proof, patience: plan.timeout };
        let mut wish = || {
            let answer =
                || *would_use_rdma.get_or_insert_with(|| terms.would_use_rdma(local_address(address)));
            terms.choice.wish(answer)
        };
        caller.try_doors(address, twins, terms.choice, &mut wish).map_err(|error| match error {
            CallError::Never(error) => PairCallError::Final(error),
            CallError::Unproved(error) => PairCallError::Again(error),
            CallError::Unheard(cause) | CallError::Again(cause) => {
                let contacts = vec![address.clone()];
                PairCallError::Again(BootstrapError::Unreachable { contacts, waited: plan.timeout, cause })
            }
        })
    }
}

impl Caller<'_> {
    fn try_doors(
        &self,
        address: &Address,
        twins: &[Address],
        choice: StreamTransport,
        wish: &mut dyn FnMut() -> PairWish,
    ) -> Result<PairedStream, CallError> {
        let by_tcp = choice != StreamTransport::Shm && !address.is_unix();
        let mut cause = format!("{address} is not on this host, but shared memory is required");
        for twin in twins {
            match self.try_door::<UnixStream>(twin, PairWish::Stream) {
                Ok(meeting) => return Ok(meeting),
                // The socket belongs to another user, or no process listens there: the process at the TCP
                // port may nevertheless be the right one.
                Err(CallError::Unproved(_)) if by_tcp => {}
                Err(CallError::Unheard(text) | CallError::Again(text)) => cause = text,
                Err(error) => return Err(error),
            }
        }
        if !by_tcp {
            return Err(CallError::Again(cause));
        }
        self.try_door::<TcpStream>(address, wish())
    }

    fn try_door<S: Meet>(&self, address: &Address, wish: PairWish) -> Result<PairedStream, CallError> {
        let wait = (self.plan.handshake_timeout * PATIENCE_FACTOR).min(self.plan.timeout);
        let (wire, answer) =
            self.ask::<S>(address, &BootstrapRequest::Pair { wish }, (Instant::now() + wait).into())?;
        let by_rdma = match answer {
            BootstrapAnswer::AcceptedByRdma => true,
            answer => Self::accepted(address, answer).map(|()| false)?,
        };
        let stream = wire.into_stream();
        let stream = stream.map_err(|error| CallError::Never(system("to set a socket blocking")(error)))?;
        S::meet(stream, by_rdma)
            .ok_or_else(|| CallError::Again("it sent an answer to a different request".into()))
    }
}

/// Returns the Unix sockets of listeners at a TCP address of this host: of one that listens at all addresses,
/// and of one at this address. The last is the one at which a listener with exactly this address listens.
fn twins(address: &Address) -> Vec<Address> {
    let Address::Tcp { host, port } = address else { return Vec::new() };
    if !is_this_host(host) {
        return Vec::new();
    }
    let name = |ip: IpAddr| {
        let ip = if ip.is_unspecified() { "*".into() } else { ip.to_string() };
        Address::Abstract(format!("squall-pair/{ip}:{port}"))
    };
    let mut names = vec![Address::Abstract(format!("squall-pair/*:{port}"))];
    let found = (host.as_str(), *port).to_socket_addrs().into_iter().flatten();
    names.extend(found.map(|address| name(address.ip())));
    names.dedup();
    names
}

/// The purpose of the proofs of this sub-protocol.
const PURPOSE: &str = "pair";
/// Others may be served first, so a caller waits longer than the listener waits for one caller.
const PATIENCE_FACTOR: u32 = 5;
/// The wait of a listener's thread; it has no timeouts of its own.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The most callers that have proved the secret and are not yet accepted.
const BACKLOG: usize = 128;

#[cfg(test)]
mod tests;
