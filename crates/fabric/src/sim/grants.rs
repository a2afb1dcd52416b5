//! The grants that a world has issued, and their validity [F8].

use super::WorldState;
use super::agenda::SimAction;
use super::prng::mix;
use super::trace::Happening;
use crate::{FabricEvent, Grant, NodeId, RegionId};

/// The index of a grant in the table, which is the lower half of its key.
pub(super) type GrantIndex = u32;

/// All grants ever issued.
#[derive(Debug, Default)]
pub(super) struct SimGrants {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    grant: Grant,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Valid,
    /// `revoke` was called; writes may still land [F9].
    Revoking,
    Revoked,
}

impl SimGrants {
    /// Issues a new grant, with a key that cannot be guessed by counting.
    pub(super) fn issue(
        &mut self,
        owner: u32,
        peer: u32,
        region: RegionId,
        range: std::ops::Range<usize>,
    ) -> Grant {
        let index = self.entries.len() as u64;
        let key = mix(index + 1) << 32 | index;
        let [owner, peer] = [owner, peer].map(NodeId);
        let grant = Grant { owner, peer, region, first: range.start as u64, words: range.len() as u64, key };
        self.entries.push(Entry { grant, state: State::Valid });
        grant
    }

    /// Returns the first word that a write of `words` words at `offset` may store to; `None` if it is refused
    /// [F10].
    pub(super) fn admit(&self, grant: &Grant, from: u32, to: u32, offset: u64, words: u64) -> Option<usize> {
        let entry = self.entries.get(usize::try_from(grant.key & 0xffff_ffff).ok()?)?;
        let valid = entry.state != State::Revoked && entry.grant == *grant;
        let ends = grant.peer.0 == from && grant.owner.0 == to;
        let inside = offset.checked_add(words).is_some_and(|end| end <= grant.words);
        let first = grant.first.checked_add(offset)?;
        (valid && ends && inside).then(|| usize::try_from(first).expect("inside a region"))
    }

    /// Returns whether any peer may, or might, write words of the region.
    pub(super) fn is_granted(&self, region: RegionId) -> bool {
        self.entries.iter().any(|entry| entry.grant.region == region && entry.state != State::Revoked)
    }

    fn index(grant: &Grant) -> GrantIndex {
        u32::try_from(grant.key & 0xffff_ffff).expect("masked")
    }
}

impl WorldState {
    /// Begins a revocation.
    pub(super) fn revoke(&mut self, node: u32, grant: &Grant) {
        let index = SimGrants::index(grant);
        let entry = self.grants.entries.get_mut(index as usize).expect("a grant that this world issued");
        assert!(entry.grant == *grant && grant.owner.0 == node, "{grant:?} is not a grant of node {node}");
        assert!(entry.state == State::Valid, "{grant:?} is revoked already");
        entry.state = State::Revoking;
        let at = self.local_now(node) + self.config.cost.revoke_ns + self.notice_delay();
        self.agenda.enter(at, SimAction::Revoked(index));
    }

    /// Completes a revocation: from now on nothing lands under the grant; everything that landed is visible.
    pub(super) fn on_revoked(&mut self, index: GrantIndex) {
        let entry = &mut self.grants.entries[index as usize];
        entry.state = State::Revoked;
        let grant = entry.grant;
        self.trace.add(self.now, grant.owner.0, Happening::Revoked { peer: grant.peer.0 });
        self.push_event(grant.owner.0, FabricEvent::Revoked { grant });
    }
}
