//! The fabric over RDMA hardware: InfiniBand and RoCE, through the verbs interface that the papers use
//! (Derecho §3.1, Spindle §2.1).
//!
//! Devices write data without the target's processor [F12]; nothing here copies it. What only software can do
//! (connection set-up, mirrors, breaks, doorbells) uses a control stream, a TCP connection to each peer that
//! the bootstrap has authenticated; its end is how a death is detected.
//!
//! # How the axioms are kept
//! - *Order* [F1, F4]: a connection is a reliable queue pair without relaxed ordering. Devices whose messages
//!   may overtake each other are refused at the start, and each device is tested before it is used.
//! - *Source* [F5]: at most eight words travel inside a post, captured when it is made; sends are captured,
//!   too.
//! - *Done* [F6]: posts are passed to the device in chains, with one doorbell each. The last post of a chain
//!   is signalled; its completion covers all before it.
//! - *Arrived* [F7]: a post that finds no receive is retried for half a second; then the connection breaks.
//! - *Grants* [F8]: each is a memory key of its own, over exactly its range, in a protection domain that only
//!   its peer has. So the device refuses writes beyond the range and writes from others.
//! - *Revocation* [F9, F10]: if it was the peer's last grant, its queue pairs first stop accepting writes (a
//!   fast change of access flags); then the key is revoked, and when that returns, the device no longer
//!   accesses the memory. The next write fails at its writer with a status that says so. If a key cannot be
//!   revoked, all queue pairs of the peer are ended instead.
//! - *Broken* [F11]: an ended queue pair is discarded; a new incarnation has another number and packet
//!   sequence.
//! - *Mirrors* [M1–M6]: a push is one write for each reader, all through one queue pair. A freeze revokes the
//!   attachment's key. If that ends the queue pair, because a push to the attachment was in flight, the owner
//!   continues on a new one with exactly the pushes that have not landed.
//!
//! # Bounds
//! A connection holds 256 posts, 1,024 receives and 256 KiB of captured sends; further posts are refused as
//! *full*. Pushes never fail; a reader for which 262,144 of them wait is disconnected as unreachable.

mod attachments;
mod completion;
mod connections;
mod control;
mod device;
mod domain;
mod endpoint;
mod endpoints;
mod error;
mod fabric;
mod ffi;
mod frame;
mod grants;
mod joining;
mod memory;
mod mirrors;
mod moves;
mod notice;
mod order;
mod peer;
mod peers;
mod poller;
mod post;
mod probe;
mod progress;
mod queue_pair;
mod retirement;
mod staging;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use squall_fabric::{BreakReason, FabricEvent, NodeId};

pub use self::device::{DeviceSummary, DeviceSurvey};
pub use self::error::{Unsuitable, VerbsError};

use self::attachments::VerbsAttachments;
use self::connections::VerbsConnections;
use self::control::VerbsLoss;
use self::device::VerbsDevice;
use self::endpoints::VerbsEndpoints;
use self::frame::VerbsFrame;
use self::grants::VerbsGrants;
use self::memory::VerbsRegions;
use self::mirrors::VerbsMirrors;
use self::peers::VerbsPeers;
use self::poller::VerbsPoller;
use crate::Waker;
use crate::clock::Clock;
use crate::session::PeerStream;

/// Which device to use, and how. The default is the device that has the address of one of the streams to the
/// peers, or else the first that can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsSettings {
    /// The device's name, as `rdma link` shows it: `mlx5_0`, `rxe0`.
    pub device: Option<String>,
    /// The port of the device, from 1.
    pub port: Option<u8>,
    /// The index of the address in the port's table (GID index), from 0.
    pub gid_index: Option<u8>,
    /// An address of this node at which peers that are added later will connect to it. It determines the
    /// device if there are no streams yet.
    pub address: Option<IpAddr>,
}

/// Counters of operations since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsCounters {
    /// Posts passed to the device; a push counts once per reader.
    pub posts: u64,
    /// Calls that passed them, each with a chain of posts.
    pub doorbells: u64,
    /// Completions that the device reported: of chains, and of receives.
    pub completions: u64,
    /// Pushed words that replaced the same word among the waiting posts and so needed no post.
    pub words_coalesced: u64,
    /// Rings sent to sleeping peers.
    pub rings: u64,
    /// Queue pairs of pushes that ended because a reader had frozen an attachment, and were replaced.
    pub mirror_restarts: u64,
}

/// A node's access to its peers by RDMA.
///
/// Posts wait until the next `poll`, or `prepare_park`, hands them to the device in chains.
pub struct VerbsFabric {
    node: NodeId,
    peers: VerbsPeers,
    connections: VerbsConnections,
    endpoints: VerbsEndpoints,
    mirrors: VerbsMirrors,
    attachments: VerbsAttachments,
    regions: VerbsRegions,
    grants: VerbsGrants,
    /// What the next poll yields.
    events: VecDeque<FabricEvent>,
    counters: VerbsCounters,
    /// The longest write that one post can carry, in words.
    message_words_max: usize,
    poller: VerbsPoller,
    waker: Waker,
    clock: Clock,
    device: Arc<VerbsDevice>,
}

impl fmt::Debug for VerbsFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers: Vec<_> = self.peers.iter().map(|peer| (peer.node, peer.lost)).collect();
        let mut shown = f.debug_struct("VerbsFabric");
        shown.field("node", &self.node).field("device", &self.device.name()).field("peers", &peers);
        shown.field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl VerbsFabric {
    /// Creates a node with one connected stream to each peer; the streams have been authenticated and only
    /// this fabric uses them from now on. Opens the device and tests it, which takes a few milliseconds.
    ///
    /// # Errors
    /// Returns an error if there is no library, no device fits, or not enough memory may be locked; if a peer
    /// is listed twice or is this node itself; or if a system call fails.
    pub fn new(
        node: NodeId,
        streams: Vec<(NodeId, impl Into<PeerStream>)>,
        settings: &VerbsSettings,
    ) -> Result<Self, VerbsError> {
        let streams = streams.into_iter().map(|(peer, stream)| (peer, stream.into())).collect();
        let waker = Waker::new().map_err(VerbsError::system("eventfd"))?;
        Self::with_waker(node, streams, settings, waker)
    }

    /// Same as [`VerbsFabric::new`], with a waker that other fabrics of the node share.
    pub(crate) fn with_waker(
        node: NodeId,
        streams: Vec<(NodeId, PeerStream)>,
        settings: &VerbsSettings,
        waker: Waker,
    ) -> Result<Self, VerbsError> {
        let addresses = streams.iter().filter_map(|(_, stream)| Some(stream.local_addr().ok()?.ip()));
        let device = TriedDevice::choose(settings, &addresses.collect::<Vec<_>>())?;
        let mut fabric = Self::on(&device, node, waker)?;
        for (peer, stream) in streams {
            fabric.take_in(peer, stream)?;
        }
        Ok(fabric)
    }

    /// Creates a node without peers on a device.
    pub(crate) fn on(
        TriedDevice(device): &TriedDevice,
        node: NodeId,
        waker: Waker,
    ) -> Result<Self, VerbsError> {
        let endpoints = VerbsEndpoints::new(device).map_err(VerbsError::system("ibv_create_comp_channel"))?;
        let poller = VerbsPoller::new(device.is_software()).map_err(VerbsError::system("epoll_create"))?;
        poller
            .watch_bells(endpoints.completions.channel().fd(), device.notices(), waker.doorbell())
            .map_err(VerbsError::system("epoll_ctl"))?;
        Ok(Self {
            node,
            peers: VerbsPeers::default(),
            connections: VerbsConnections::default(),
            endpoints,
            mirrors: VerbsMirrors::default(),
            attachments: VerbsAttachments::default(),
            regions: VerbsRegions::new(),
            grants: VerbsGrants::new(),
            events: VecDeque::new(),
            counters: VerbsCounters::default(),
            message_words_max: device.port_used().message_bytes_max / 8,
            poller,
            waker,
            clock: Clock::start(),
            device: device.clone(),
        })
    }

    /// Returns the counters of operations since the start.
    #[must_use]
    pub fn counters(&self) -> VerbsCounters {
        self.counters
    }

    /// Returns the name of the device in use.
    #[must_use]
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// Returns whether the device is a driver that uses this machine's processors, like rxe. A thread that
    /// spins keeps such a driver from working.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.device.is_software()
    }

    /// Returns whether there are posts that wait for the device, or that it has not reported as completed.
    #[must_use]
    pub fn has_posts(&self) -> bool {
        self.endpoints.has_posts()
    }

    /// Returns the place of `node` among the peers.
    ///
    /// # Panics
    /// Panics if it is not a peer.
    fn place_of(&self, node: NodeId) -> usize {
        let place = self.peers.find(node);
        place.unwrap_or_else(|| panic!("{node} is not a peer of {}: add it first", self.node))
    }

    /// Gives up a peer: nothing of it lands any more, its connections break, and this node is notified.
    fn lose(&mut self, place: usize, loss: &VerbsLoss) {
        let peer = &mut self.peers[place];
        if peer.lost.is_some() {
            return;
        }
        let reason = loss.reason();
        crate::log::warn!(node = self.node.0, peer = peer.node.0, "lost a peer: {loss}");
        if let VerbsLoss::Violation(_) = loss {
            // This puts the reason into the peer's log, if the socket still takes the frame.
            peer.control.push(VerbsFrame::Goodbye);
            let _ = peer.control.flush();
        }
        let node = peer.node;
        self.cut_off(place);
        self.peers[place].lost = Some(reason);
        self.stop_attachments(place);
        self.break_all(place, reason);
        self.events.push_back(FabricEvent::PeerLost { peer: node, reason });
    }

    /// Ends the control stream and the queue pairs of pushes, unless the peer is lost already.
    fn cut_off(&mut self, place: usize) {
        let peer = &mut self.peers[place];
        if peer.lost.is_some() {
            return;
        }
        peer.lost = Some(BreakReason::PeerClosed);
        self.poller.forget(peer.control.fd());
        peer.control.shutdown();
        let mirrors = [peer.mirror_in.take(), peer.mirror_out.take()];
        for endpoint in mirrors.into_iter().flatten() {
            self.end_endpoint(endpoint);
        }
    }
}

/// A device that has been chosen and tested.
pub(crate) struct TriedDevice(Arc<VerbsDevice>);

impl TriedDevice {
    /// Chooses the device that the settings name, or one that has one of the addresses, or the first that can
    /// be used. The test takes a few milliseconds.
    ///
    /// # Errors
    /// Returns an error in the cases of [`VerbsFabric::new`]: if there is no library, no device fits, or not
    /// enough memory may be locked.
    pub(crate) fn choose(settings: &VerbsSettings, addresses: &[IpAddr]) -> Result<Self, VerbsError> {
        let addresses: Vec<_> = addresses.iter().copied().chain(settings.address).collect();
        let library = ffi::Library::load()?;
        let device = VerbsDevice::choose(&library, settings, &addresses)?;
        probe::try_out(&device)?;
        Ok(Self(device))
    }

    pub(crate) fn summary(&self) -> DeviceSummary {
        self.0.summary()
    }
}

/// Opens the device that [`VerbsFabric::new`] would use, given streams from `addresses`, and tests it.
///
/// # Errors
/// Returns an error in the cases of [`VerbsFabric::new`]: if there is no library, no device fits, or not
/// enough memory may be locked.
pub fn check(settings: &VerbsSettings, addresses: &[IpAddr]) -> Result<DeviceSummary, VerbsError> {
    Ok(TriedDevice::choose(settings, addresses)?.summary())
}

/// Does what [`check`] does, and also locks `bytes` bytes of memory for the device for a moment, so that a
/// program which will need this much can find out before it begins.
///
/// # Errors
/// Returns the errors of [`check`], and one if the memory cannot be locked.
pub fn check_for(
    settings: &VerbsSettings,
    addresses: &[IpAddr],
    bytes: usize,
) -> Result<DeviceSummary, VerbsError> {
    let device = TriedDevice::choose(settings, addresses)?;
    memory::try_lock(&device.0, bytes)?;
    Ok(device.summary())
}

/// Lists all devices of this machine, each with how it would be used or why it cannot be used. None is
/// tested.
///
/// # Errors
/// Returns an error if there is no library.
pub fn devices() -> Result<Vec<DeviceSurvey>, VerbsError> {
    VerbsDevice::all(&ffi::Library::load()?)
}

/// Decodes a frame of a control stream, for fuzzing. Fuzzed as `verbs`.
///
/// # Panics
/// Panics if a decoded frame does not survive encoding and decoding unchanged.
#[doc(hidden)]
pub fn read_foreign(bytes: &[u8]) {
    let Ok(bytes) = <&[u8; frame::FRAME_BYTES]>::try_from(bytes) else { return };
    if let Ok(frame) = VerbsFrame::from_bytes(bytes) {
        assert!(VerbsFrame::from_bytes(&frame.to_bytes()).is_ok_and(|again| again == frame));
    }
}
