//! Queue pairs: one end of a reliable connection, as the device implements it (verbs: RC QP).
//!
//! The states follow in one order: created (receives can be posted), connected, failed. A failed queue pair
//! is discarded, never reset: a new incarnation is a new queue pair with its own number and packet sequence,
//! so nothing of the old one can land in it.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::completion::CompletionQueue;
use super::device::{PortAddress, status};
use super::domain::ProtectionDomain;
use super::ffi;

/// One end of a reliable connection.
pub(super) struct QueuePair {
    pair: NonNull<ffi::ibv_qp>,
    name: PairName,
    domain: Arc<ProtectionDomain>,
    /// Keeps the queue alive.
    _completions: Arc<CompletionQueue>,
}

/// What a peer must know to connect to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairName {
    pub(super) number: u32,
    /// The sequence number of its first packet: 24 bits, random.
    pub(super) first_packet: u32,
}

/// The numbers of posts and receives that a queue pair can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueDepth {
    pub(super) posts: usize,
    pub(super) receives: usize,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates a queue pair that takes receives but is not connected.
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        depth: QueueDepth,
    ) -> io::Result<Self> {
        let pair = Self::create(domain, completions, depth)?;
        // SAFETY: the call returned it; its number never changes.
        let number = unsafe { pair.as_ref() }.qp_num;
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let first_packet = u32::from_le_bytes(random) & PACKET_MASK;
        let made = Self {
            pair,
            name: PairName { number, first_packet },
            domain: domain.clone(),
            _completions: completions.clone(),
        };
        made.prepare()?;
        Ok(made)
    }

    fn create(
        domain: &ProtectionDomain,
        completions: &CompletionQueue,
        depth: QueueDepth,
    ) -> io::Result<NonNull<ffi::ibv_qp>> {
        let count = |count: usize| u32::try_from(count).expect("a short queue");
        let mut wanted = ffi::ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.as_ptr(),
            recv_cq: completions.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: count(depth.posts),
                max_recv_wr: count(depth.receives),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: count(INLINE_BYTES),
            },
            qp_type: ffi::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the completion queue are alive.
        let pair = unsafe { domain.device().library().ibv_create_qp(domain.as_ptr(), &raw mut wanted) };
        NonNull::new(pair).ok_or_else(io::Error::last_os_error)
    }

    /// Enables receives (verbs: INIT).
    fn prepare(&self) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ffi::IBV_QPS_INIT;
        attributes.port_num = self.domain.device().port_used().number;
        let mask = ffi::IBV_QP_STATE | ffi::IBV_QP_PKEY_INDEX | ffi::IBV_QP_PORT | ffi::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask)
    }

    pub(super) fn name(&self) -> PairName {
        self.name
    }

    /// Connects to the peer's queue pair (verbs: RTR, then RTS). The peer must have done the same before
    /// anything is posted.
    pub(super) fn connect(&self, address: &PortAddress, peer: PairName, writable: bool) -> io::Result<()> {
        let port = self.domain.device().port_used();
        let mut attributes = no_attributes();
        attributes.qp_state = ffi::IBV_QPS_RTR;
        attributes.path_mtu = u32::from(port.address.mtu.min(address.mtu).max(1));
        attributes.dest_qp_num = peer.number;
        attributes.rq_psn = peer.first_packet;
        attributes.max_dest_rd_atomic = 1;
        attributes.min_rnr_timer = RECEIVER_DELAY;
        attributes.ah_attr.port_num = port.number;
        attributes.ah_attr.dlid = address.lid;
        // Ethernet always routes by GID; InfiniBand only between subnets.
        if port.address.ethernet || port.address.gid[..8] != address.gid[..8] {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh.dgid.raw = address.gid;
            attributes.ah_attr.grh.sgid_index = port.gid_index;
            attributes.ah_attr.grh.hop_limit = HOPS_MAX;
        }
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_AV
            | ffi::IBV_QP_PATH_MTU
            | ffi::IBV_QP_DEST_QPN
            | ffi::IBV_QP_RQ_PSN
            | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
            | ffi::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, mask)?;
        attributes.qp_state = ffi::IBV_QPS_RTS;
        attributes.timeout = ANSWER_TIMEOUT;
        attributes.retry_cnt = ANSWER_RETRIES;
        attributes.rnr_retry = RECEIVER_RETRIES;
        attributes.sq_psn = self.name.first_packet;
        attributes.max_rd_atomic = 1;
        attributes.qp_access_flags = access_flags(writable);
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_TIMEOUT
            | ffi::IBV_QP_RETRY_CNT
            | ffi::IBV_QP_RNR_RETRY
            | ffi::IBV_QP_SQ_PSN
            | ffi::IBV_QP_MAX_QP_RD_ATOMIC
            | ffi::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask)
    }

    /// Allows the peer to write, or forbids it, while it is connected.
    pub(super) fn set_writable(&self, writable: bool) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ffi::IBV_QPS_RTS;
        attributes.qp_access_flags = access_flags(writable);
        self.modify(&mut attributes, ffi::IBV_QP_STATE | ffi::IBV_QP_ACCESS_FLAGS)
    }

    /// Ends it: nothing of the peer lands any more, and posts in flight fail (verbs: ERR).
    pub(super) fn fail(&self) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ffi::IBV_QPS_ERR;
        self.modify(&mut attributes, ffi::IBV_QP_STATE)
    }

    fn modify(&self, attributes: &mut ffi::ibv_qp_attr, mask: u32) -> io::Result<()> {
        let mask = i32::try_from(mask).expect("small flags");
        // SAFETY: the queue pair is alive, and the attributes are of the type that the call reads.
        status(unsafe { self.library().ibv_modify_qp(self.pair.as_ptr(), attributes, mask) })
    }

    /// Passes a list of posts to the device, with one doorbell.
    ///
    /// # Safety
    /// `first` begins a list of valid requests whose memory is registered in this queue pair's domain and
    /// stays so until they complete.
    pub(super) unsafe fn post(&self, first: &mut ffi::ibv_send_wr) -> io::Result<()> {
        let post = self.operations().post_send.expect("every device has this operation");
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; the caller promises the rest.
        status(unsafe { post(self.pair.as_ptr(), first, &raw mut refused) })
    }

    /// Passes memory for one receive to the device, or none if the receive is for a write with immediate.
    ///
    /// # Safety
    /// `memory` is registered in this queue pair's domain and stays so until the receive completes.
    pub(super) unsafe fn post_receive(&self, request: u64, memory: Option<ffi::ibv_sge>) -> io::Result<()> {
        let post = self.operations().post_recv.expect("every device has this operation");
        let mut memory = memory;
        let count = i32::from(memory.is_some());
        let list = memory.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        let mut receive =
            ffi::ibv_recv_wr { wr_id: request, next: std::ptr::null_mut(), sg_list: list, num_sge: count };
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; the caller promises the rest.
        status(unsafe { post(self.pair.as_ptr(), &raw mut receive, &raw mut refused) })
    }

    fn library(&self) -> &ffi::Library {
        self.domain.device().library()
    }

    fn operations(&self) -> &ffi::ibv_context_ops {
        // SAFETY: the device is open as long as the domain holds it, and its table never changes.
        &unsafe { self.domain.device().context().as_ref() }.ops
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created by `create`, and destroyed once.
        let code = unsafe { self.library().ibv_destroy_qp(self.pair.as_ptr()) };
        if let Err(error) = status(code) {
            crate::log::error!(%error, "failed to destroy a queue pair of {}", self.domain.device().name());
        }
    }
}

fn access_flags(writable: bool) -> u32 {
    if writable { ffi::IBV_ACCESS_REMOTE_WRITE } else { 0 }
}

fn no_attributes() -> ffi::ibv_qp_attr {
    // SAFETY: integers only, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

/// Words by value travel inside the post. All common devices support this many bytes there; others are
/// refused.
const INLINE_BYTES: usize = 8 * squall_fabric::WriteSource::VALUE_WORDS_MAX;

const PACKET_MASK: u32 = 0xff_ffff;

/// The device waits this long for an acknowledgement: 2^16 × 4.096 µs = 0.27 s, and retries 6 times. With
/// rxe, 7 would mean forever.
const ANSWER_TIMEOUT: u8 = 16;
const ANSWER_RETRIES: u8 = 6;

/// A post that finds no receive is retried after 82 ms (number 26 in verbs), 6 times: half a second [F7].
const RECEIVER_DELAY: u8 = 26;
const RECEIVER_RETRIES: u8 = 6;

const HOPS_MAX: u8 = 64;
