//! Bulk multicast: one member, the root, sends large objects to all others (RDMC §2).
//!
//! ```
//! use squall::Config;
//! use squall::bulk::Session;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two members on this host, over shared memory; threads here, processes elsewhere.
//! let config = Config::local(&format!("bulk-{}", std::process::id()), 2);
//! let other = config.clone().for_rank(1);
//! let other = std::thread::spawn(move || -> Vec<u8> {
//!     let mut session = Session::join(&other).unwrap();
//!     session.receive_in_place().unwrap().to_vec()
//! });
//! let mut session = Session::join(&config)?;
//! let mut object = session.buffer(1 << 20);
//! object.fill(7);
//! session.send(&mut object)?; // returns when all members have it
//! assert_eq!(other.join().unwrap(), vec![7; 1 << 20]);
//! # Ok(())
//! # }
//! ```
//!
//! **Polling.** A session has no thread: it makes progress while a thread is inside one of its methods. A member
//! relays blocks to others inside its own [`Session::receive`], which returns when it has nothing more to do with the
//! object.
//!
//! **On one host** (shared memory) receivers copy from the root's pages, or read there without a copy
//! ([`Session::receive_in_place`]). **Between hosts** (TCP, RDMA) blocks are relayed by a schedule.
//!
//! **Failures.** A receiver that dies is excluded, and the others continue with the blocks that they hold \[B7\]:
//! [`Session::send`] succeeds if any receiver is left, and [`Session::lost`] returns the members that are gone. When
//! the root dies, the session ends.

mod control;
mod error;
mod file;
mod host;
mod network;
mod options;
mod stack;

use squall_fabric::bulk::ObjectLease;
use squall_fabric::{Fabric as _, MirrorKey, NodeId, Shortage};
use squall_protocols::rdmc::local::LocalMulticast;
use squall_transports::session::PeerStream;

use crate::config::{Config, Transport};
use crate::entry::{assemble, over_streams};
use crate::transport::AnyFabric;

#[doc(hidden)]
pub use control::read_foreign;
pub use error::BulkError;
pub use file::FileTarget;
pub use options::BulkOptions;
pub use squall_fabric::bulk::BulkBuffer;
pub use squall_protocols::rdmc::schedule;
pub use squall_protocols::rdmc::{BLOCKS_MAX, HeldBlocks};

use host::HostSession;
use network::NetworkSession;

/// A member of a bulk multicast. Rank 0 is the root: it sends, the others receive.
///
/// ```
/// use squall::Config;
/// use squall::bulk::{BulkOptions, Session};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::local(&format!("doc-session-{}", std::process::id()), 2);
/// let other = config.clone().for_rank(1);
/// let other = std::thread::spawn(move || {
///     let mut session = Session::join_with(&other, &BulkOptions::default()).unwrap();
///     session.receive().unwrap().to_vec()
/// });
/// let mut root = Session::join_with(&config, &BulkOptions::default())?;
/// assert_eq!((root.rank(), root.members()), (0, 2));
/// let mut object = root.buffer(1000);
/// root.send(&mut object)?;
/// assert_eq!(other.join().unwrap(), vec![0; 1000]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    rank: usize,
    members: usize,
}

#[derive(Debug)]
enum Engine {
    /// All members on one host.
    Host(HostSession),
    /// Members anywhere.
    Network(Box<NetworkSession>),
}

/// An object that the root has sent and that this member has not received yet.
///
/// ```
/// use squall::Config;
/// use squall::bulk::Session;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::local(&format!("doc-incoming-{}", std::process::id()), 2);
/// let other = config.clone().for_rank(1);
/// let other = std::thread::spawn(move || {
///     let mut session = Session::join(&other).unwrap();
///     let next = session.next_object().unwrap();
///     let mut memory = vec![0; next.bytes as usize];
///     session.receive_into(&mut memory).unwrap();
///     (next.number, memory)
/// });
/// let mut root = Session::join(&config)?;
/// let mut object = root.buffer(3);
/// object.fill(5);
/// root.send(&mut object)?;
/// assert_eq!(other.join().unwrap(), (0, vec![5; 3]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Its number: objects of a session are numbered from 0 and received in order.
    pub number: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Session {
    /// Joins a session with the options that suit the transport; returns when all members have joined. The
    /// configuration is that of a group; its subgroups are not used.
    ///
    /// # Errors
    /// [`BulkError`], with what to do next.
    pub fn join(config: &Config) -> Result<Self, BulkError> {
        Self::join_with(config, &BulkOptions::default())
    }

    /// Joins a session with options, which must be the same at all members.
    ///
    /// # Errors
    /// The errors of [`Session::join`].
    pub fn join_with(config: &Config, options: &BulkOptions) -> Result<Self, BulkError> {
        Self::join_observed(config, options, &mut |_| ())
    }

    /// Joins a session and reports how the members find each other.
    ///
    /// ```
    /// use squall::Config;
    /// use squall::bulk::{BulkOptions, Session};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::local(&format!("doc-observed-{}", std::process::id()), 1);
    /// let session = Session::join_observed(&config, &BulkOptions::default(), &mut |progress| println!("{progress:?}"))?;
    /// # drop(session);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Session::join`].
    pub fn join_observed(
        config: &Config,
        options: &BulkOptions,
        on_progress: &mut (dyn FnMut(squall_transports::bootstrap::BootstrapProgress) + Send),
    ) -> Result<Self, BulkError> {
        let mut config = config.clone();
        config.subgroups.clear();
        config.check().map_err(crate::error::JoinError::from)?;
        options.check(config.members, config.transport)?;
        let (fabric, nodes) = assemble(&config, on_progress)?;
        Self::begin(&config, options, fabric, nodes)
    }

    /// Begins a session of members that have linked by other means, each with each: `links` are those of this one, whose rank is
    /// `rank`, with the rank at the other end. All members must have all their links before one of them begins.
    ///
    /// # Errors
    /// The errors of [`Session::join`].
    ///
    /// # Panics
    /// If a link is missing, or the transport is neither TCP nor RDMA.
    #[doc(hidden)]
    pub fn over(
        config: &Config,
        options: &BulkOptions,
        rank: usize,
        links: Vec<(usize, PeerStream)>,
    ) -> Result<Self, BulkError> {
        config.check().map_err(crate::error::JoinError::from)?;
        options.check(config.members, config.transport)?;
        assert!(
            links.iter().map(|(other, _)| *other).eq((0..config.members).filter(|other| *other != rank)),
            "a link with each other member, in order"
        );
        let node = |rank: usize| NodeId(u32::try_from(rank).expect("few members"));
        let streams = links.into_iter().map(|(rank, stream)| (node(rank), stream)).collect();
        let fabric = over_streams(config, node(rank), streams)?;
        Self::begin(config, options, fabric, (0..config.members).map(node).collect())
    }

    fn begin(
        config: &Config,
        options: &BulkOptions,
        mut fabric: AnyFabric,
        nodes: Vec<NodeId>,
    ) -> Result<Self, BulkError> {
        let (rank, members) = (fabric.node().0 as usize, nodes.len());
        let idle = fabric.idle_at_most(config.idle_for(members));
        let engine = Shortage::catch(|| {
            if config.transport == Transport::Shm {
                let core = LocalMulticast::new(&mut fabric, MirrorKey(1), &nodes, options.host_block_bytes());
                Engine::Host(HostSession::new(fabric, core, idle))
            } else {
                let settings = options.settings(members, config.transport);
                Engine::Network(Box::new(NetworkSession::new(fabric, nodes, settings, idle)))
            }
        })?;
        Ok(Self { engine, rank, members })
    }

    /// Returns this member's rank; 0 is the root.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of members that have joined, including the root.
    #[must_use]
    pub const fn members(&self) -> usize {
        self.members
    }

    /// Returns the ranks of the members that are gone, as far as this one knows.
    #[must_use]
    pub fn lost(&self) -> Vec<usize> {
        match &self.engine {
            Engine::Host(host) => host.lost(),
            Engine::Network(network) => network.lost(),
        }
    }

    /// Allocates zeroed memory for an object of `bytes` bytes that can be sent. Reuse buffers: receivers on this host
    /// keep each buffer mapped for as long as the session lasts.
    ///
    /// # Panics
    /// If the allocation fails; see [`Session::try_buffer`].
    pub fn buffer(&mut self, bytes: usize) -> BulkBuffer {
        BulkBuffer::register(self.fabric(), bytes)
    }

    /// Allocates memory like [`Session::buffer`], for sizes that may be too large.
    ///
    /// # Errors
    /// [`BulkError::Shortage`], with the limit that was reached.
    pub fn try_buffer(&mut self, bytes: usize) -> Result<BulkBuffer, BulkError> {
        Ok(BulkBuffer::try_register(self.fabric(), bytes)?)
    }

    /// Sends an object; returns when all remaining receivers have it and the memory is no longer accessed.
    ///
    /// # Errors
    /// [`BulkError`]; then, too, the memory is no longer accessed.
    pub fn send(&mut self, object: &mut BulkBuffer) -> Result<(), BulkError> {
        self.require_root(true)?;
        match &mut self.engine {
            Engine::Host(host) => host.send(object),
            Engine::Network(network) => network.send_buffer(object),
        }
    }

    /// Waits for the next object; it stays the next one until it is received.
    ///
    /// # Errors
    /// [`BulkError`], for example if the root has left.
    pub fn next_object(&mut self) -> Result<Incoming, BulkError> {
        self.require_root(false)?;
        match &mut self.engine {
            Engine::Host(host) => host.next(),
            Engine::Network(network) => network.next(),
        }
    }

    /// Receives the next object into new memory.
    ///
    /// # Errors
    /// The errors of [`Session::next_object`].
    pub fn receive(&mut self) -> Result<BulkBuffer, BulkError> {
        let mut buffer = self.buffer(0);
        self.receive_buffer(&mut buffer)?;
        Ok(buffer)
    }

    /// Receives the next object into a buffer, which is replaced by a larger one if it is too small. Between hosts, a
    /// single receiver that waits with a large enough buffer gets the object a round trip sooner.
    ///
    /// # Errors
    /// The errors of [`Session::next_object`].
    pub fn receive_buffer(&mut self, buffer: &mut BulkBuffer) -> Result<(), BulkError> {
        self.require_root(false)?;
        match &mut self.engine {
            Engine::Host(host) => {
                let bytes = host.next()?.len()?;
                if buffer.capacity() < bytes {
                    *buffer = BulkBuffer::try_register(host.fabric(), bytes)?;
                }
                buffer.set_len(bytes);
                host.receive_into(buffer)
            }
            Engine::Network(network) => Shortage::catch(|| network.receive_buffer(buffer))?,
        }
    }

    /// Returns how long this member's latest receive continued after its object had arrived completely: between hosts
    /// a receive ends when all members have the object, since others may need this copy if a member dies.
    #[must_use]
    pub fn waited_for_others(&self) -> std::time::Duration {
        match &self.engine {
            Engine::Host(_) => std::time::Duration::ZERO,
            Engine::Network(network) => network.lag(),
        }
    }

    /// Receives the next object into the caller's memory and returns its size. On one host that is the only copy;
    /// between hosts the object is received elsewhere and copied, so [`Session::receive_buffer`] is faster there.
    ///
    /// # Errors
    /// [`BulkError::TooSmall`], after which the object is still the next one; otherwise as [`Session::next_object`].
    pub fn receive_into(&mut self, target: &mut [u8]) -> Result<usize, BulkError> {
        let bytes = self.next_object()?.len()?;
        let capacity = target.len();
        let target = target.get_mut(..bytes).ok_or(BulkError::TooSmall { bytes, capacity })?;
        match &mut self.engine {
            Engine::Host(host) => host.receive_into(target)?,
            Engine::Network(network) => {
                let mut buffer = BulkBuffer::try_register(network.fabric(), bytes)?;
                network.receive_buffer(&mut buffer)?;
                target.copy_from_slice(&buffer);
            }
        }
        Ok(bytes)
    }

    /// Receives the next object without a copy: on one host it is read where the root wrote it, and the root waits
    /// until the value is dropped. Between hosts it is received into new memory.
    ///
    /// # Errors
    /// The errors of [`Session::next_object`].
    pub fn receive_in_place(&mut self) -> Result<InPlace<'_>, BulkError> {
        let bytes = self.next_object()?.len()?;
        let object = match &mut self.engine {
            Engine::Host(host) => Place::Source(host.lease(bytes)),
            Engine::Network(network) => {
                let mut buffer = BulkBuffer::try_register(network.fabric(), bytes)?;
                network.receive_buffer(&mut buffer)?;
                Place::Own(buffer)
            }
        };
        Ok(InPlace { session: self, object })
    }

    fn fabric(&mut self) -> &mut AnyFabric {
        match &mut self.engine {
            Engine::Host(host) => host.fabric(),
            Engine::Network(network) => network.fabric(),
        }
    }

    fn require_root(&self, root: bool) -> Result<(), BulkError> {
        match (root, self.rank == 0) {
            (true, false) => Err(BulkError::NotRoot),
            (false, true) => Err(BulkError::Root),
            _ => Ok(()),
        }
    }
}

impl Incoming {
    fn len(self) -> Result<usize, BulkError> {
        usize::try_from(self.bytes).map_err(|_| BulkError::TooSmall { bytes: usize::MAX, capacity: 0 })
    }
}

/// An object that is read in place. Dropping it releases it to the root.
#[derive(Debug)]
pub struct InPlace<'s> {
    session: &'s mut Session,
    object: Place,
}

#[derive(Debug)]
enum Place {
    Source(ObjectLease),
    Own(BulkBuffer),
}

impl std::ops::Deref for InPlace<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.object {
            Place::Source(lease) => lease,
            Place::Own(buffer) => buffer,
        }
    }
}

impl Drop for InPlace<'_> {
    fn drop(&mut self) {
        if let Engine::Host(host) = &mut self.session.engine {
            host.give_back();
        }
    }
}
