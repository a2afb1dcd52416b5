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

mod choice;
mod rdma;
mod services;
mod twins;

use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use squall_fabric::mutex::lock;

use super::caller::{CallError, Caller};
use super::error::system;
use super::link::LinkSocket;

use super::handshake_queue::{HandshakeQueue, ProvedVisitor};
use super::message::{BootstrapAnswer, BootstrapRequest, PairWish, Refusal};
use super::{Address, BootstrapError, BootstrapListener, BootstrapPlan, BootstrapProgress, Proof, Secret};
use crate::Transport;
use crate::session::{CallerKind, Encryption, PeerStream};
use crate::verbs::VerbsSettings;
use rdma::local_address;
pub use services::{PairService, PairServices};
use twins::{twin_prefix, twins};

/// The parameters of a pair.
#[derive(Clone, Debug)]
pub struct PairTerms {
    /// The name of what the two processes belong to, the same at both ends.
    pub cluster: String,
    /// The secret, the same at both ends.
    pub secret: Secret,
    /// The transports that this end allows.
    pub choice: Transport,
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

impl PairTerms {
    /// Creates terms with the limits of [`BootstrapPlan::new`], and ten seconds for a caller.
    #[must_use]
    pub fn new(cluster: &str, secret: &Secret) -> Self {
        let plan = BootstrapPlan::new(cluster, secret, 2);
        Self {
            cluster: cluster.into(),
            secret: secret.clone(),
            choice: Transport::Auto,
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
        (plan.unauthenticated_max, plan.encryption) = (self.unauthenticated_max, self.encryption);
        plan
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
    /// If it is a service of a member.
    service: Option<(PairServices, PairService)>,
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
        let (mut door, reporter) = Self::closed(address)?;
        let mut twin = Some(address.clone()).filter(Address::is_unix);
        if !address.is_unix() {
            if terms.unauthenticated_max == 0 {
                return Err(BootstrapError::Plan("`unauthenticated_max` is 0: set it to at least 1".into()));
            }
            let listener = BootstrapListener::<TcpStream>::bind(address)?;
            door.address = listener.address().clone();
            if terms.choice.shares_memory()? {
                twin = twins(&door.address, STREAM_PREFIX).into_iter().next_back();
            }
            door.spawn(listener, CallerKind::Stream, terms, Arc::clone(&reporter))?;
        } else {
            terms.choice.check_unix(address)?;
        }
        if let Some(twin) = twin {
            door.spawn(BootstrapListener::<UnixStream>::bind(&twin)?, CallerKind::Stream, terms, reporter)?;
        }
        Ok(door)
    }

    /// Serves callers of a member that listens at `address`, whose admission listener has `services` in its plan.
    ///
    /// # Errors
    /// Returns [`BootstrapError`] if the system has no more descriptors or threads.
    pub fn serve(
        address: &Address,
        (services, service): (&PairServices, PairService),
        terms: &PairTerms,
    ) -> Result<Self, BootstrapError> {
        let (mut door, reporter) = Self::closed(address)?;
        if !address.is_unix()
            && terms.choice.shares_memory()?
            && let Some(twin) = twins(address, &twin_prefix(service)).into_iter().next_back()
        {
            let listener = BootstrapListener::<UnixStream>::bind(&twin)?;
            door.spawn(listener, service.kind(), terms, Arc::clone(&reporter))?;
        }
        services.add(service, reporter, terms);
        door.service = Some((services.clone(), service));
        Ok(door)
    }

    /// Returns a listener that no caller reaches yet.
    fn closed(address: &Address) -> Result<(Self, Arc<Reporter>), BootstrapError> {
        let bell = |flags| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | flags);
        let no_bell = |error: rustix::io::Errno| system("to create a file descriptor")(error.into());
        let shared = Arc::new(Bells {
            arrival: bell(EventfdFlags::SEMAPHORE).map_err(no_bell)?,
            closing: bell(EventfdFlags::empty()).map_err(no_bell)?,
        });
        let (sender, arrivals) = sync_channel(BACKLOG);
        let arrivals = Mutex::new(arrivals);
        let reporter = Arc::new(Reporter { sender, bells: Arc::clone(&shared) });
        let door = Self { address: address.clone(), arrivals, shared, threads: Vec::new(), service: None };
        Ok((door, reporter))
    }

    fn spawn<S: LinkSocket>(
        &mut self,
        listener: BootstrapListener<S>,
        callers: CallerKind,
        terms: &PairTerms,
        reporter: Arc<Reporter>,
    ) -> Result<(), BootstrapError> {
        let terms = terms.clone();
        let thread = std::thread::Builder::new().name("squall-accept".into());
        let thread = thread.spawn(move || reporter.receive(&listener, callers, &terms));
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
            _ => lock(&self.arrivals),
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
        if let Some((services, service)) = self.service.take() {
            services.remove(service);
        }
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
    fn receive<S: LinkSocket>(
        &self,
        listener: &BootstrapListener<S>,
        callers: CallerKind,
        terms: &PairTerms,
    ) {
        let (plan, served) = (terms.plan(), [callers]);
        let proof = plan.proof();
        let mut queue = HandshakeQueue::new(&plan, listener, &proof, &served);
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

    fn answer_visitor<S: LinkSocket>(
        &self,
        visitor: ProvedVisitor<S>,
        terms: &PairTerms,
        log: &mut dyn FnMut(BootstrapProgress),
    ) {
        match visitor.request {
            BootstrapRequest::Pair { wish } | BootstrapRequest::Serve { wish, .. } => {
                self.accept(visitor, wish, terms, log)
            }
            _ => visitor.reject(Refusal::Unusable, log),
        }
    }

    /// Accepts a caller, if the two ends have a transport in common.
    fn accept<S: LinkSocket>(
        &self,
        mut visitor: ProvedVisitor<S>,
        wish: PairWish,
        terms: &PairTerms,
        log: &mut dyn FnMut(BootstrapProgress),
    ) {
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
    /// At a member.
    service: Option<PairService>,
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
        let twins = if address.is_unix() {
            terms.choice.check_unix(address)?;
            vec![address.clone()]
        } else if terms.choice.shares_memory()? {
            twins(address, STREAM_PREFIX)
        } else {
            Vec::new()
        };
        Ok(Self::at(address, None, twins, terms))
    }

    /// A call of a service of the member that listens at `address`.
    ///
    /// # Errors
    /// [`BootstrapError::Plan`] as for [`PairCall::new`].
    pub fn of_service(
        address: &'a Address,
        service: PairService,
        terms: &'a PairTerms,
    ) -> Result<Self, BootstrapError> {
        let twins = match terms.choice.shares_memory()? {
            _ if address.is_unix() => vec![address.clone()],
            true => twins(address, &twin_prefix(service)),
            false => Vec::new(),
        };
        Ok(Self::at(address, Some(service), twins, terms))
    }

    fn at(
        address: &'a Address,
        service: Option<PairService>,
        twins: Vec<Address>,
        terms: &'a PairTerms,
    ) -> Self {
        let plan = terms.plan();
        let proof = plan.proof();
        Self { address, terms, plan, proof, service, twins, would_use_rdma: None }
    }

    /// Tries once.
    ///
    /// # Errors
    /// [`PairCallError`], whose [`BootstrapError`] says what to do next.
    pub fn attempt(&mut self) -> Result<PairedStream, PairCallError> {
        let Self { address, terms, plan, proof, service, twins, would_use_rdma } = self;
        let caller = Caller { plan, proof, patience: plan.timeout };
        let mut wish = || {
            let answer =
                || *would_use_rdma.get_or_insert_with(|| terms.would_use_rdma(local_address(address)));
            terms.choice.wish(answer)
        };
        caller.try_doors(address, *service, twins, terms.choice, &mut wish).map_err(|error| match error {
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
        service: Option<PairService>,
        twins: &[Address],
        choice: Transport,
        wish: &mut dyn FnMut() -> PairWish,
    ) -> Result<PairedStream, CallError> {
        let request = |wish| match service {
            None => BootstrapRequest::Pair { wish },
            Some(service) => BootstrapRequest::Serve { service, wish },
        };
        let by_tcp = choice != Transport::Shm && !address.is_unix();
        let mut cause = format!("{address} is not on this host, but shared memory is required");
        for twin in twins {
            match self.try_door::<UnixStream>(twin, request(PairWish::Stream)) {
                Ok(meeting) => return Ok(meeting),
                Err(CallError::Unheard(text) | CallError::Again(text)) => cause = text,
                // Whatever happens at the Unix socket, the process at the TCP port may be the right one: this
                // one may belong to another user.
                Err(error) if by_tcp => crate::log::debug!(%twin, %error, "TCP is tried instead"),
                Err(error) => return Err(error),
            }
        }
        if !by_tcp {
            return Err(CallError::Again(cause));
        }
        self.try_door::<TcpStream>(address, request(wish()))
    }

    fn try_door<S: LinkSocket>(
        &self,
        address: &Address,
        request: BootstrapRequest,
    ) -> Result<PairedStream, CallError> {
        let wait = (self.plan.handshake_timeout * PATIENCE_FACTOR).min(self.plan.timeout);
        let (wire, answer) = self.ask::<S>(address, &request, (Instant::now() + wait).into())?;
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

/// The beginning of the names of the Unix sockets of listeners that are no service.
const STREAM_PREFIX: &str = "pair";
/// Others may be served first, so a caller waits longer than the listener waits for one caller.
const PATIENCE_FACTOR: u32 = 5;
/// The wait of a listener's thread; it has no timeouts of its own.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The most callers that have proved the secret and are not yet accepted.
const BACKLOG: usize = 128;

#[cfg(test)]
mod tests;
