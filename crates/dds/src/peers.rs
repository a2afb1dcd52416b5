//! Which peers an endpoint knows, and which of them match (OMG DDS 1.4 §2.2.4.1). No I/O.

use std::collections::{BTreeMap, BTreeSet};

use crate::qos::Qos;
use crate::sample::EndpointId;
use crate::status::{CountStatus, IncompatibleQosStatus, MatchedPeer, MatchedStatus, StatusKind};
use crate::wire::{EndpointAnnouncement, TopicRole};

/// A peer of the opposite role.
#[derive(Debug)]
struct KnownPeer {
    qos: Qos,
    matches: bool,
    /// Whether it has not gone. What it has written may still arrive from a topic's history.
    is_present: bool,
    /// Whether it has disposed of its instances when it went.
    disposes: bool,
}

/// The peers of one reader or writer.
#[derive(Debug)]
pub(crate) struct PeerTable {
    role: TopicRole,
    type_name: String,
    qos: Qos,
    /// Whether peers that have gone are remembered, since what they have written may still come from a history.
    remembers: bool,
    known: BTreeMap<EndpointId, KnownPeer>,
    pub(crate) matched: MatchedStatus,
    pub(crate) incompatible: IncompatibleQosStatus,
    pub(crate) inconsistent: CountStatus,
}

impl PeerTable {
    pub(crate) fn new(own: &EndpointAnnouncement, remembers: bool) -> Self {
        Self {
            remembers,
            role: own.role,
            type_name: own.type_name.clone(),
            qos: own.qos.clone(),
            known: BTreeMap::new(),
            matched: MatchedStatus::default(),
            incompatible: IncompatibleQosStatus::default(),
            inconsistent: CountStatus::default(),
        }
    }

    /// Takes what an endpoint says of itself. Returns whether a matched peer has gone.
    pub(crate) fn handle_announcement(&mut self, peer: &EndpointAnnouncement) -> bool {
        if peer.role == TopicRole::Gone {
            if let Some(known) = self.known.get_mut(&peer.id) {
                known.disposes = peer.qos.autodispose_unregistered_instances;
            }
            return self.remove(peer.id);
        }
        if self.known.get(&peer.id).is_some_and(|known| !known.is_present || known.qos != peer.qos) {
            // It is another one, that has its number after a restart.
            self.remove(peer.id);
            self.known.remove(&peer.id);
        }
        if peer.role == self.role || self.known.contains_key(&peer.id) {
            return false;
        }
        let (offered, requested) = match self.role {
            TopicRole::Writer => (&self.qos, &peer.qos),
            _ => (&peer.qos, &self.qos),
        };
        let policies = offered.incompatible(requested);
        let has_type = peer.type_name == self.type_name;
        let is_common = offered.shares_partition(requested);
        let matches = has_type && policies.is_empty() && is_common;
        if matches {
            self.matched.begin();
        } else if !has_type {
            self.inconsistent.add(1);
        } else if is_common {
            self.incompatible.add(&policies);
        }
        self.known
            .insert(peer.id, KnownPeer { qos: peer.qos.clone(), matches, is_present: true, disposes: false });
        false
    }

    /// Removes a peer that has gone. Returns whether it was there and matched.
    pub(crate) fn remove(&mut self, id: EndpointId) -> bool {
        let Some(peer) = self.known.get_mut(&id) else { return false };
        let was_matched = std::mem::replace(&mut peer.is_present, false) && peer.matches;
        if !self.remembers {
            self.known.remove(&id);
        }
        if was_matched {
            self.matched.end();
        }
        was_matched
    }

    /// Removes the peers whose members are not in `nodes`; returns those that matched.
    pub(crate) fn retain_nodes(&mut self, nodes: &BTreeSet<u32>) -> Vec<EndpointId> {
        let is_absent = |(id, peer): &(&EndpointId, &KnownPeer)| peer.is_present && !nodes.contains(&id.node);
        let absent: Vec<_> = self.known.iter().filter(is_absent).map(|(id, _)| *id).collect();
        absent.into_iter().filter(|id| self.remove(*id)).collect()
    }

    /// Forgets the peers that `is_announced` does not name; returns those of them that matched and were there, with whether they dispose of their
    /// instances when they go.
    pub(crate) fn retain_announced(
        &mut self,
        is_announced: impl Fn(EndpointId) -> bool,
    ) -> Vec<(EndpointId, bool)> {
        let is_forgotten = |(id, _): &(&EndpointId, &KnownPeer)| !is_announced(**id);
        let forgotten = self.known.iter().filter(is_forgotten);
        let forgotten: Vec<_> =
            forgotten.map(|(id, peer)| (*id, peer.qos.autodispose_unregistered_instances)).collect();
        let had_matched = |(id, _): &(EndpointId, bool)| {
            let has_ended = self.remove(*id);
            self.known.remove(id);
            has_ended
        };
        forgotten.into_iter().filter(had_matched).collect()
    }

    /// Returns the policies of a peer that matches, and whether it is still there.
    pub(crate) fn policies(&self, id: EndpointId) -> Option<(&Qos, bool)> {
        self.known.get(&id).filter(|peer| peer.matches).map(|peer| (&peer.qos, peer.is_present))
    }

    /// Returns the peers that match and have gone, with whether they have disposed of their instances.
    pub(crate) fn departed(&self) -> Vec<(EndpointId, bool)> {
        let has_gone = |(_, peer): &(&EndpointId, &KnownPeer)| peer.matches && !peer.is_present;
        self.known.iter().filter(has_gone).map(|(id, peer)| (*id, peer.disposes)).collect()
    }

    /// Returns the peers that match now.
    pub(crate) fn present(&self) -> Vec<MatchedPeer> {
        let matches = |(_, peer): &(&EndpointId, &KnownPeer)| peer.matches && peer.is_present;
        let present = self.known.iter().filter(matches);
        present.map(|(id, peer)| MatchedPeer { id: *id, qos: peer.qos.clone() }).collect()
    }

    /// Returns whether a status of this kind has changed; those of samples are not here.
    pub(crate) const fn has_changed(&self, kind: StatusKind) -> bool {
        match kind {
            StatusKind::Matched => self.matched.is_new(),
            StatusKind::IncompatibleQos => self.incompatible.total_count_change > 0,
            StatusKind::InconsistentTopic => self.inconsistent.total_count_change > 0,
            StatusKind::SampleLost | StatusKind::SampleRejected => false,
        }
    }
}
