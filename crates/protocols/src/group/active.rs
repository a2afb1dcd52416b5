//! The subgroups of the present view that a node belongs to (Derecho §2.3).

use squall_fabric::{Fabric, NodeId};

use super::SubgroupId;
use crate::membership::{Proposal, Segment, Subgroups};
use crate::multicast::{Deliver, NoUpcall, Subgroup};

/// A subgroup that this node belongs to.
pub(super) struct Active<D> {
    pub(super) id: SubgroupId,
    pub(super) core: AnySubgroup<D>,
    pub(super) segment: Segment,
}

/// Deliveries go to an upcall, or are pulled.
pub(super) enum AnySubgroup<D> {
    Upcall(Subgroup<D>),
    Pulled(Subgroup<NoUpcall>),
}

/// Calls the same method of whichever subgroup it is.
macro_rules! either {
    ($self:expr, $core:ident => $call:expr) => {
        match $self {
            $crate::group::active::AnySubgroup::Upcall($core) => $call,
            $crate::group::active::AnySubgroup::Pulled($core) => $call,
        }
    };
}

pub(super) use either;

impl<D: Deliver> Active<D> {
    /// Whether all of the trim is here.
    pub(super) fn covers(&self, decision: &Proposal) -> bool {
        let Segment { trims, senders, .. } = self.segment;
        either!(&self.core, core => core.covers(&decision.trims[trims..trims + senders]))
    }
}

impl<F: Fabric, D: Deliver> Subgroups<F> for Vec<Active<D>> {
    fn freeze(&mut self, fabric: &mut F, member: NodeId) {
        for active in self {
            either!(&mut active.core, core => core.freeze(fabric, member));
        }
    }

    fn wedge(&mut self, counts: &mut [u64]) {
        for active in self {
            let Segment { counts: first, senders, .. } = active.segment;
            let here = either!(&mut active.core, core => core.wedge());
            counts[first..first + senders].copy_from_slice(here);
        }
    }
}
