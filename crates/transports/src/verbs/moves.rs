//! Memory that moves to other pages: regions of the shared-memory fabric of the same node, adopted here.
//!
//! Shared memory fences off a stopped writer by moving a region to other pages at the same addresses. The
//! device does not follow such a move, because it knows pages by their physical addresses. So before the move
//! everything through which it would *write* the old pages is ended, and after the move everything that it
//! *reads* is registered again. Grants do not follow the move: their writers are refused [F10], like writers
//! on shared memory that are stopped in a write, and ask for new grants.

use std::ptr::NonNull;

use squall_fabric::atomics::AtomicU64;

use super::VerbsFabric;
use super::frame::VerbsCloseReason;
use super::order;

impl VerbsFabric {
    /// Lets posts, receives, grants and mirrors of this fabric use regions that another fabric of the node
    /// has created.
    pub(crate) fn adopt_others(&mut self) {
        self.regions.adopt_others();
    }

    /// Prepares for a move of the adopted region that begins at `base`: when this returns, the device no
    /// longer writes it.
    pub(crate) fn leave_pages(&mut self, base: NonNull<AtomicU64>) {
        let Some(place) = self.regions.adopted_at(base.cast()) else { return };
        for peer in self.grants.withdraw_over(base) {
            crate::log::error!("failed to revoke a key: {} is fenced off", self.peers[peer].node);
            self.fence_off(peer);
        }
        self.break_receivers(base);
        self.regions.leave_pages(place);
        order::from_device();
    }

    /// Handles the completed move of the adopted region that begins at `base`.
    pub(crate) fn enter_pages(&mut self, base: NonNull<AtomicU64>) {
        if let Some(place) = self.regions.adopted_at(base.cast()) {
            self.renew_mirror_keys(place);
        }
    }

    /// Ends the connections that would receive into a region.
    fn break_receivers(&mut self, base: NonNull<AtomicU64>) {
        for (number, endpoint) in self.connections.all_live() {
            let endpoint = self.endpoints.live(endpoint);
            if endpoint.is_some_and(|endpoint| endpoint.receives_into(base)) {
                self.break_connection(number, VerbsCloseReason::Closed);
            }
        }
    }
}
