//! One type for all transports, so that the public API has no type parameter for them.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use squall_fabric::{
    Capabilities, Channel, ConnId, Duration, Fabric, FabricEvent, Grant, Instant, MirrorId, MirrorKey,
    NodeId, PostError, Region, Shortage, Token, Write,
};
use squall_transports::composite::{CompositeFabric, PeerTransport};
use squall_transports::runner::IdleLimits;
use squall_transports::session::PeerStream;
use squall_transports::shm::ShmFabric;
use squall_transports::tcp::TcpFabric;
use squall_transports::verbs::VerbsFabric;
use squall_transports::{PeerTraffic, TransportFabric, Waker};

/// A stream over which a transport can add a peer.
#[derive(Debug)]
pub(crate) enum AnyStream {
    Unix(UnixStream),
    Tcp(PeerStream),
}

/// A transport, chosen at run time.
#[derive(Debug)]
pub(crate) enum AnyFabric {
    /// Members on one host.
    Shm(ShmFabric),
    /// Members anywhere.
    Tcp(TcpFabric),
    /// Members with RDMA devices.
    Verbs(Box<VerbsFabric>),
    /// Members anywhere, each by the best transport.
    Auto(Box<CompositeFabric>),
}

impl AnyFabric {
    /// Returns how to wait if the configuration leaves that open; `usual` is its default.
    pub(crate) fn idle(&self, usual: IdleLimits) -> IdleLimits {
        match self {
            Self::Verbs(fabric) if fabric.is_software() => IdleLimits::SOFTWARE_DEVICE,
            Self::Auto(fabric) if fabric.is_software() => IdleLimits::SOFTWARE_DEVICE,
            // Now it is known how many members share this host's processors.
            Self::Auto(fabric) => IdleLimits::auto(
                1 + fabric.choices().iter().filter(|choice| choice.transport == PeerTransport::Shm).count(),
            ),
            _ => usual,
        }
    }
}

impl AnyFabric {
    /// Returns how to wait if the user asks for `wanted`: spinning would keep a software device from working.
    pub(crate) fn idle_at_most(&self, wanted: IdleLimits) -> IdleLimits {
        let is_software = match self {
            Self::Verbs(fabric) => fabric.is_software(),
            Self::Auto(fabric) => fabric.is_software(),
            Self::Shm(_) | Self::Tcp(_) => false,
        };
        if !is_software {
            return wanted;
        }
        if wanted.adapts {
            return IdleLimits::SOFTWARE_DEVICE;
        }
        let spins = wanted.spins.min(IdleLimits::SOFTWARE_DEVICE.yields);
        IdleLimits { spins: 0, yields: wanted.yields.saturating_add(spins), adapts: false }
    }

    /// Returns whether nothing that was posted depends on this process any more. A device transfers nothing for a
    /// process that has ended, so it must have completed every post.
    pub(crate) fn is_flushed(&self) -> bool {
        match self {
            Self::Shm(fabric) => !fabric.has_waiting(),
            Self::Tcp(fabric) => !fabric.has_output(),
            Self::Verbs(fabric) => !fabric.has_posts(),
            Self::Auto(fabric) => !fabric.has_output(),
        }
    }
}

squall_fabric::define_either! { $ either: AnyFabric { Shm, Tcp, Verbs, Auto } }

impl Fabric for AnyFabric {
    fn node(&self) -> NodeId {
        either!(self, fabric => fabric.node())
    }
    fn now(&self) -> Instant {
        either!(self, fabric => fabric.now())
    }
    fn capabilities(&self) -> Capabilities {
        either!(self, fabric => fabric.capabilities())
    }
    fn try_register(&mut self, words: usize) -> Result<Region, Shortage> {
        either!(self, fabric => fabric.try_register(words))
    }
    fn adopt(&mut self, memory: &Region) -> Region {
        either!(self, fabric => fabric.adopt(memory))
    }
    fn release(&mut self, region: &Region) {
        either!(self, fabric => fabric.release(region));
    }
    fn open(&mut self, peer: NodeId, channel: Channel) -> ConnId {
        either!(self, fabric => fabric.open(peer, channel))
    }
    fn close(&mut self, conn: ConnId) {
        either!(self, fabric => fabric.close(conn));
    }
    fn grant(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        either!(self, fabric => fabric.grant(region, range, peer))
    }
    fn revoke(&mut self, grant: &Grant) {
        either!(self, fabric => fabric.revoke(grant));
    }
    fn write(&mut self, conn: ConnId, write: Write<'_>) -> Result<(), PostError> {
        either!(self, fabric => fabric.write(conn, write))
    }
    fn send(&mut self, conn: ConnId, bytes: &[u8], signal: Option<Token>) -> Result<(), PostError> {
        either!(self, fabric => fabric.send(conn, bytes, signal))
    }
    fn post_receive(
        &mut self,
        conn: ConnId,
        region: &Region,
        range: Range<usize>,
        token: Token,
    ) -> Result<(), PostError> {
        either!(self, fabric => fabric.post_receive(conn, region, range, token))
    }
    fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        either!(self, fabric => fabric.publish(key, region, readers))
    }
    fn attach(&mut self, owner: NodeId, key: MirrorKey, words: usize) -> Region {
        either!(self, fabric => fabric.attach(owner, key, words))
    }
    #[inline]
    fn push(&mut self, mirror: MirrorId, range: Range<usize>) {
        either!(self, fabric => fabric.push(mirror, range));
    }
    #[inline]
    fn push_word(&mut self, mirror: MirrorId, word: usize) {
        either!(self, fabric => fabric.push_word(mirror, word));
    }
    #[inline]
    fn push_values(&mut self, mirror: MirrorId, words: Range<usize>) {
        either!(self, fabric => fabric.push_values(mirror, words));
    }
    fn freeze(&mut self, view: &Region) {
        either!(self, fabric => fabric.freeze(view));
    }
    fn retire(&mut self, mirror: MirrorId) {
        either!(self, fabric => fabric.retire(mirror));
    }
    #[inline]
    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent)) -> usize {
        either!(self, fabric => fabric.poll(sink))
    }
}

impl TransportFabric for AnyFabric {
    fn prepare_park(&mut self) {
        either!(self, fabric => fabric.prepare_park());
    }
    fn park(&mut self, timeout: Option<Duration>) {
        either!(self, fabric => fabric.park(timeout));
    }
    fn unpark(&mut self) {
        either!(self, fabric => fabric.unpark());
    }
    fn yielded(&mut self) {
        either!(self, fabric => fabric.yielded());
    }
    fn flush(&mut self) {
        either!(self, fabric => fabric.flush());
    }
    fn readiness(&self) -> (BorrowedFd<'_>, Option<Duration>) {
        either!(self, fabric => fabric.readiness())
    }
    fn waker(&self) -> Waker {
        either!(self, fabric => fabric.waker())
    }
    fn traffic(&self, each: &mut dyn FnMut(PeerTraffic)) {
        either!(self, fabric => fabric.traffic(each));
    }
}

impl AnyFabric {
    /// Adds a peer.
    pub(crate) fn add_peer(&mut self, peer: NodeId, stream: AnyStream) -> std::io::Result<()> {
        match (self, stream) {
            (Self::Shm(fabric), AnyStream::Unix(stream)) => fabric.add_peer(peer, stream),
            (Self::Tcp(fabric), AnyStream::Tcp(stream)) => fabric.add_peer(peer, stream),
            (Self::Verbs(fabric), AnyStream::Tcp(stream)) => fabric.add_peer(peer, stream),
            (Self::Auto(fabric), AnyStream::Tcp(stream)) => fabric.add_peer(peer, stream),
            _ => unreachable!("the listener is of the transport's kind"),
        }
    }

    /// Removes a peer that is no longer a member.
    pub(crate) fn remove_peer(&mut self, peer: NodeId) {
        match self {
            Self::Shm(fabric) => fabric.remove_peer(peer),
            Self::Tcp(fabric) => fabric.remove_peer(peer),
            Self::Verbs(fabric) => fabric.remove_peer(peer),
            Self::Auto(fabric) => fabric.remove_peer(peer),
        }
    }
}
