//! The fabric over RDMA hardware: InfiniBand and RoCE, by the verbs that the papers use (Derecho §3.1, Spindle §2.1).
//!
//! Data is written by the devices without the target's processor [F12]; nothing here copies it. What only software can
//! do (setting connections up, mirrors, breaks, doorbells) goes by a control stream, a TCP connection to each peer
//! that the bootstrap has authenticated; its end is how a death is noticed.
//!
//! # How the axioms are kept
//! - *Order* [F1, F4]: a connection is a reliable queue pair without relaxed ordering. Devices whose messages may
//!   overtake each other are refused at the start, and each is tried out before it is used.
//! - *Source* [F5]: at most eight words travel inside a post, captured when it is made; sends are captured too.
//! - *Done* [F6]: posts are handed to the device in chains, with one doorbell, of which the last is signalled; its
//!   completion covers all before it.
//! - *Arrived* [F7]: a post that finds no receive is tried again for half a second; then the connection breaks.
//! - *Grants* [F8]: each is a memory key of its own, over exactly its range, in a protection domain that its peer alone
//!   has. So the device refuses what lies beyond the range and what comes from others.
//! - *Revocation* [F9, F10]: if it was the peer's last grant, its queue pairs first stop taking writes (a fast change of
//!   access flags); then the key is taken back, and when that returns, the device touches the memory no more. The next
//!   write fails at its writer with a status that tells of it. If a key cannot be taken back, all queue pairs of the
//!   peer are ended instead.
//! - *Broken* [F11]: an ended queue pair is thrown away; a new incarnation has another number and packet sequence.
//! - *Mirrors* [M1–M6]: a push is one write for each reader, all by one queue pair. A freeze takes the attachment's key back.
//!   If that ends the queue pair, because a push to the attachment was under way, the owner goes on by a new one with exactly
//!   the pushes that were not placed.
//!
//! # Bounds
//! A connection holds 256 posts, 1,024 receives and 256 KiB of captured sends; more posts are refused as *full*. Pushes
//! never fail; a reader for which 262,144 of them wait is disconnected as unreachable.

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

/// Which device to use, and how. By default the device that has the address of one of the streams to the peers, or else
/// the first that can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsSettings {
    /// The device's name, as `rdma link` shows it: `mlx5_0`, `rxe0`.
    pub device: Option<String>,
    /// The port of the device, from 1.
    pub port: Option<u8>,
    /// The place of the address in the port's table (GID index), from 0.
    pub gid_index: Option<u8>,
    /// An address of this node, at which peers that come later will meet it: for the choice of the device, if there is no
    /// stream yet.
    pub address: Option<IpAddr>,
}

/// What has been done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsCounters {
    /// Posts handed to the device; a push counts once per reader.
    pub posts: u64,
    /// Calls that did so, each with a chain of posts.
    pub doorbells: u64,
    /// Completions that the device told of: of chains, and of receives.
    pub completions: u64,
    /// Pushed words that replaced the same word among the waiting posts and made no post.
    pub words_coalesced: u64,
    /// Sleeping peers that were rung.
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
    /// The longest write that one post carries.
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
    /// A node with one connected stream to each peer, which has been authenticated and which nothing but this fabric
    /// uses from now on. Opens the device and tries it out, which takes some milliseconds.
    ///
    /// # Errors
    /// If there is no library, no device that fits, or not enough memory may be locked; if a peer is named twice or is
    /// this node itself; or if a system call fails.
    pub fn new(
        node: NodeId,
        streams: Vec<(NodeId, impl Into<PeerStream>)>,
        settings: &VerbsSettings,
    ) -> Result<Self, VerbsError> {
        let streams = streams.into_iter().map(|(peer, stream)| (peer, stream.into())).collect();
        let waker = Waker::new().map_err(VerbsError::system("eventfd"))?;
        Self::with_waker(node, streams, settings, waker)
    }

    /// As [`VerbsFabric::new`], with a waker that other fabrics of the node share.
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

    /// A node without peers on a device.
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

    /// What has been done since the start.
    #[must_use]
    pub fn counters(&self) -> VerbsCounters {
        self.counters
    }

    /// The name of the device in use.
    #[must_use]
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// Whether the device is a driver that uses this machine's processors, like rxe. Who spins keeps it from working.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.device.is_software()
    }

    /// Whether posts wait for the device, or for it to say that they were placed.
    #[must_use]
    pub fn has_posts(&self) -> bool {
        self.endpoints.has_posts()
    }

    /// The place of `node` among the peers.
    ///
    /// # Panics
    /// If it is not a peer.
    fn place_of(&self, node: NodeId) -> usize {
        let place = self.peers.find(node);
        place.unwrap_or_else(|| panic!("{node} is not a peer of {}: add it first", self.node))
    }

    /// Gives a peer up: nothing of it lands any more, its connections break, and this node is told.
    fn lose(&mut self, place: usize, loss: &VerbsLoss) {
        let peer = &mut self.peers[place];
        if peer.lost.is_some() {
            return;
        }
        let reason = loss.reason();
        tracing::warn!(node = self.node.0, peer = peer.node.0, "lost a peer: {loss}");
        if let VerbsLoss::Violation(_) = loss {
            // So that the peer's log says why, if the socket still takes it.
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

/// A device that has been chosen and tried out.
pub(crate) struct TriedDevice(Arc<VerbsDevice>);

impl TriedDevice {
    /// The device that the settings name, or that has one of the addresses, or the first that can be used. The trial takes
    /// some milliseconds.
    ///
    /// # Errors
    /// As [`VerbsFabric::new`]: if there is no library, no device that fits, or not enough memory may be locked.
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

/// Opens the device that [`VerbsFabric::new`] would use, given streams from `addresses`, and tries it out.
///
/// # Errors
/// As [`VerbsFabric::new`]: if there is no library, no device that fits, or not enough memory may be locked.
pub fn check(settings: &VerbsSettings, addresses: &[IpAddr]) -> Result<DeviceSummary, VerbsError> {
    Ok(TriedDevice::choose(settings, addresses)?.summary())
}

/// As [`check`], and locks `bytes` bytes of memory for the device for a moment: so that who will need so much finds out
/// before it begins.
///
/// # Errors
/// As [`check`].
pub fn check_for(
    settings: &VerbsSettings,
    addresses: &[IpAddr],
    bytes: usize,
) -> Result<DeviceSummary, VerbsError> {
    let device = TriedDevice::choose(settings, addresses)?;
    memory::try_lock(&device.0, bytes)?;
    Ok(device.summary())
}

/// All devices of this machine, each with what would be used of it or why it cannot be used. None is tried out.
///
/// # Errors
/// If there is no library.
pub fn devices() -> Result<Vec<DeviceSurvey>, VerbsError> {
    VerbsDevice::all(&ffi::Library::load()?)
}

/// Reads a frame of a control stream, for fuzzing. Fuzzed as `verbs`.
///
/// # Panics
/// If what was read is not read again from what is written of it.
#[doc(hidden)]
pub fn read_foreign(bytes: &[u8]) {
    let Ok(bytes) = <&[u8; frame::FRAME_BYTES]>::try_from(bytes) else { return };
    if let Ok(frame) = VerbsFrame::from_bytes(bytes) {
        assert!(VerbsFrame::from_bytes(&frame.to_bytes()).is_ok_and(|again| again == frame));
    }
}
