//! Barriers between this processor and memory that the device writes.
//!
//! A NIC writes memory over the bus. Where that keeps the order of writes and the processor keeps the order of loads
//! (x86-64), nothing is to be done but to keep the compiler from moving loads. Other processors need a barrier
//! instruction (rdma-core: `udma_from_device_barrier`); protocols load guards by [`squall_fabric::Region::load`],
//! which has none, so devices on such machines are refused at the start ([`super::Unsuitable::Processor`]).

use squall_fabric::atomics::{Ordering, fence};

/// After the device has said that something is done: what it wrote before is visible to loads that follow.
#[inline]
pub(super) fn from_device() {
    // SYNC: pairs with the order of the device's own writes: data first, then the completion that tells of it.
    fence(Ordering::Acquire);
}
