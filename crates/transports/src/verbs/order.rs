//! Barriers between this processor and memory that the device writes.
//!
//! A NIC writes memory over the bus. Where the bus keeps the order of writes and the processor keeps the
//! order of loads (x86-64), it suffices to keep the compiler from moving loads. Other processors need a
//! barrier instruction (rdma-core: `udma_from_device_barrier`); protocols load guards through
//! [`squall_fabric::Region::load`], which has none, so devices on such machines are refused at the start
//! ([`super::Unsuitable::Processor`]).

use squall_fabric::atomics::{Ordering, fence};

/// Orders loads after a report of the device: what it wrote before it reported a completion is visible to
/// later loads.
#[inline]
pub(super) fn from_device() {
    // SYNC: pairs with the order of the device's own writes: data first, then the completion that reports it.
    fence(Ordering::Acquire);
}
