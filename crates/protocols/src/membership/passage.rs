//! What a node keeps on its way from view to view, whatever its views consist of (Derecho §2).

use std::collections::BTreeSet;

use squall_fabric::{Fabric, FabricEvent, MirrorId, NodeId};

use super::{Membership, MembershipSettings, Proposal, SenderSegment, View, ViewNotice, ViewNotifier};

/// What a node keeps on its way from view to view.
#[derive(Debug)]
pub struct ViewPassage {
    node: NodeId,
    /// The nodes that the fabric has lost; none of them returns.
    lost: BTreeSet<NodeId>,
    notifiers: Vec<ViewNotifier>,
    /// Mirrors of earlier views, which slow members may still read.
    past: Vec<MirrorId>,
    /// The view before, until all members of the present one have begun that: some may still wait in it \[H16\].
    before: Option<Box<Membership>>,
    /// This node wishes to leave, whatever the view.
    leaving: bool,
    /// It does not take messages yet.
    stands_by: bool,
}

/// The standing of a joiner that waits for its first view.
#[derive(Debug)]
pub enum FirstView {
    /// No member has sent the view yet.
    Awaited,
    /// The view, and how much counts of each durable subgroup in the view before.
    Begins(View, Vec<u64>),
    /// There is a view, and this node is not in it.
    Excluded,
    /// All members that this node had asked to join are gone.
    NobodyLeft,
}

impl ViewPassage {
    /// Returns what `node` keeps before its first view.
    #[must_use]
    pub const fn new(node: NodeId) -> Self {
        Self {
            node,
            lost: BTreeSet::new(),
            notifiers: Vec::new(),
            past: Vec::new(),
            before: None,
            leaving: false,
            stands_by: false,
        }
    }

    /// Returns this node.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Handles an event of the fabric.
    pub fn handle_event(&mut self, event: &FabricEvent) {
        if let FabricEvent::PeerDying { peer } | FabricEvent::PeerLost { peer, .. } = event {
            self.lost.insert(*peer);
        }
        self.notifiers.iter_mut().for_each(|notifier| notifier.handle_event(event));
        self.before.iter_mut().for_each(|before| before.handle_waiting_event(event));
    }

    /// Notifies joiners of their first view; returns the amount of work done.
    pub fn poll<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let reported = self.before.as_mut().map_or(0, |before| {
            let now = fabric.now();
            before.report_end(fabric, now)
        });
        let notified: usize = self.notifiers.iter_mut().map(|notifier| notifier.poll(fabric)).sum();
        reported + notified
    }

    /// Returns whether the fabric has lost `node`, which does not return.
    #[must_use]
    pub fn has_lost(&self, node: NodeId) -> bool {
        self.lost.contains(&node)
    }

    /// Returns the nodes that the fabric has lost, and those that views have removed.
    pub fn lost(&self) -> impl Iterator<Item = NodeId> {
        self.lost.iter().copied()
    }

    /// Sets whether this node stands by: it takes part in views, but not in messages \[J8\].
    pub const fn set_standing_by(&mut self, stands_by: bool) {
        self.stands_by = stands_by;
    }

    /// Returns whether this node stands by.
    #[must_use]
    pub const fn stands_by(&self) -> bool {
        self.stands_by
    }

    /// Sets whether this node leaves its view and all that follow \[V13\].
    pub const fn set_leaving(&mut self, leaving: bool) {
        self.leaving = leaving;
    }

    /// Returns the first view of this node, which waits for it from any of `contacts`. The other members are notified of the view,
    /// too: the member that has notified this node may have died before it notified them.
    pub fn poll_notice<F: Fabric>(
        &mut self,
        fabric: &mut F,
        notice: &ViewNotice,
        contacts: &[NodeId],
    ) -> FirstView {
        let Some((view, trims)) = notice.view() else {
            let is_alone = contacts.iter().all(|contact| self.has_lost(*contact));
            return if is_alone { FirstView::NobodyLeft } else { FirstView::Awaited };
        };
        if view.rank(self.node).is_none() {
            return FirstView::Excluded;
        }
        for node in view.nodes().into_iter().filter(|node| *node != self.node) {
            self.notifiers.push(ViewNotifier::new(fabric, node, view.clone(), trims.clone()));
        }
        FirstView::Begins(view, trims)
    }

    /// Begins a view.
    ///
    /// # Panics
    /// As [`Membership::new`].
    pub fn begin_view<F: Fabric>(
        &self,
        fabric: &mut F,
        view: &View,
        segments: Vec<SenderSegment>,
        settings: MembershipSettings,
    ) -> Membership {
        let mut membership = Membership::new(fabric, view.clone(), segments, settings, self.lost());
        if self.leaving {
            membership.leave();
        }
        membership
    }

    /// Ends the view of `membership`, which `decision` ends, and notifies the joiners of the `next` one; `trims` is how much counts of
    /// each durable subgroup.
    pub fn end_view<F: Fabric>(
        &mut self,
        fabric: &mut F,
        membership: &Membership,
        decision: &Proposal,
        next: &View,
        trims: &[u64],
    ) {
        self.keep(membership.table().mirror());
        self.lost.extend(membership.view().nodes().into_iter().filter(|node| next.rank(*node).is_none()));
        for joiner in &decision.joins {
            if self.notifiers.iter().all(|notifier| notifier.joiner() != joiner.node) {
                self.notifiers.push(ViewNotifier::new(fabric, joiner.node, next.clone(), trims.to_vec()));
            }
        }
    }

    /// Returns the words with which members that still wait in the ended view ask for the logs of their shards, by rank.
    pub fn log_asks(&self) -> Option<Vec<u64>> {
        self.before.as_ref()?.log_asks()
    }

    /// Keeps the ended view until all members have begun the present one.
    pub fn remember(&mut self, ended: Membership) {
        let earlier = self.before.replace(Box::new(ended));
        self.past.extend(earlier.and_then(|earlier| earlier.waiting_mirror()));
    }

    /// Keeps a mirror of an ended view until it is retired.
    pub fn keep(&mut self, mirror: MirrorId) {
        self.past.push(mirror);
    }

    /// Retires the mirrors of earlier views when all members have begun the `present` one, since no member reads them any more.
    /// Returns whether there were some.
    pub fn retire<F: Fabric>(&mut self, fabric: &mut F, present: &Membership) -> bool {
        if !present.is_ready() {
            return false;
        }
        if self.before.is_some() && present.has_all_readers() {
            self.past.extend(self.before.take().and_then(|before| before.waiting_mirror()));
        }
        if self.past.is_empty() && self.notifiers.is_empty() {
            return false;
        }
        let notifiers = self.notifiers.drain(..).map(|notifier| notifier.mirror());
        self.past.drain(..).chain(notifiers).for_each(|mirror| fabric.retire(mirror));
        true
    }
}
