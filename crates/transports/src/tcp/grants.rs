//! Grants that this node has issued: every incoming write is checked against them [F8], so a revocation takes
//! effect with the call [F9].

use std::collections::BTreeMap;
use std::ops::Range;

use squall_fabric::{Grant, NodeId, Region};

use super::frame::WriteFrame;

/// The grants of one node, by key.
#[derive(Debug)]
pub(super) struct TcpGrants {
    owner: NodeId,
    issued: BTreeMap<u64, Issued>,
    /// Keys are never reused. They begin with the owner's number, so that a grant which is presented to
    /// another owner in error is refused there.
    next_key: u64,
}

#[derive(Debug)]
struct Issued {
    region: Region,
    range: Range<usize>,
    peer: NodeId,
}

impl TcpGrants {
    pub(super) fn new(owner: NodeId) -> Self {
        Self { owner, issued: BTreeMap::new(), next_key: u64::from(owner.0) << 32 | 1 }
    }

    /// Returns the node that issues the grants.
    pub(super) fn owner(&self) -> NodeId {
        self.owner
    }

    /// Issues a grant for `peer` to write `range` of `region`.
    ///
    /// # Panics
    /// Panics if the range is outside the region, or this process may not store there.
    pub(super) fn issue(&mut self, region: &Region, range: Range<usize>, peer: NodeId) -> Grant {
        region.check(&range);
        assert!(
            region.access() == squall_fabric::region::Access::ReadWrite,
            "an attachment of another node's mirror cannot be granted"
        );
        let key = self.next_key;
        self.next_key += 1;
        self.issued.insert(key, Issued { region: region.clone(), range: range.clone(), peer });
        let (first, words) = (range.start as u64, range.len() as u64);
        Grant { owner: self.owner, peer, region: region.id(), first, words, key }
    }

    /// Revokes a grant; returns whether it was valid.
    pub(super) fn revoke(&mut self, grant: &Grant) -> bool {
        self.issued.remove(&grant.key).is_some()
    }

    /// Revokes all grants of a peer.
    pub(super) fn revoke_all(&mut self, peer: NodeId) {
        self.issued.retain(|_, issued| issued.peer != peer);
    }

    /// Returns the region that `peer` may write with this frame, and the first word; `None` if it may not
    /// [F10].
    pub(super) fn target(&self, frame: &WriteFrame, peer: NodeId) -> Option<(&Region, usize)> {
        let issued = self.issued.get(&frame.key)?;
        let first = usize::try_from(frame.first).ok()?;
        let end = first.checked_add(frame.words as usize)?;
        let valid = issued.peer == peer
            && issued.region.id().0 == frame.region
            && issued.range.start <= first
            && end <= issued.range.end;
        valid.then_some((&issued.region, first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::RegionId;

    #[test]
    fn a_frame_must_name_the_grant_and_stay_inside() {
        let mut grants = TcpGrants::new(NodeId(7));
        let region = Region::heap(RegionId(5), 64);
        let grant = grants.issue(&region, 8..16, NodeId(1));
        let frame = WriteFrame {
            connection: 0,
            key: grant.key,
            region: 5,
            first: 8,
            words: 8,
            immediate: None,
            signal: false,
        };
        assert!(grants.target(&frame, NodeId(1)).is_some());
        assert!(grants.target(&frame, NodeId(2)).is_none(), "another peer");
        for forged in [
            WriteFrame { key: grant.key + 1, ..frame },
            WriteFrame { region: 6, ..frame },
            WriteFrame { first: 7, ..frame },
            WriteFrame { first: 9, ..frame },
            WriteFrame { first: u64::MAX, ..frame },
            WriteFrame { words: u32::MAX, ..frame },
        ] {
            assert!(grants.target(&forged, NodeId(1)).is_none(), "{forged:?}");
        }
        assert!(grants.revoke(&grant));
        assert!(grants.target(&frame, NodeId(1)).is_none(), "revoked");
        assert!(!grants.revoke(&grant), "revoked already");
    }
}
