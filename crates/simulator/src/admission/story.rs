//! What the timeline of a run says of each process, in words of the protocol (Derecho §3.3, §3.4).

use squall_fabric::Fabric as _;
use squall_fabric::sim::{NodeRemark, RemarkKind};
use squall_protocols::membership::{Membership, MembershipState};

use super::{JoinHost, JoinProcess, SimAdmission};

/// What the timeline has said of a process last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToldProcess {
    view: Option<(u64, MembershipState)>,
    /// The places of the members that it suspects.
    suspects: Vec<u32>,
    ended: Option<String>,
}

impl<H: JoinHost> SimAdmission<H> {
    /// Adds what has changed at a process to the timeline, if there is one; `delivered`: how many messages a process has
    /// delivered.
    pub(crate) fn tell(&mut self, place: u32, delivered: impl Fn(&JoinProcess<H::Application>) -> usize) {
        if !self.world.is_traced() {
            return;
        }
        let process = &self.processes[place as usize];
        let Some(group) = &process.group else { return };
        let membership = group.membership();
        let told = ToldProcess {
            view: membership.map(|membership| (membership.view().id, membership.state())),
            suspects: membership.map_or_else(Vec::new, |membership| self.suspects(membership)),
            ended: group.ended().map(|ended| ended.to_string()),
        };
        if told == process.told {
            return;
        }
        let (mut remarks, delivered) = (Vec::new(), delivered(process));
        let is_new_view = told.view.map(|(view, _)| view) != process.told.view.map(|(view, _)| view);
        let known = if is_new_view { &[][..] } else { &process.told.suspects };
        let suspects = told.suspects.iter().filter(|node| !known.contains(node));
        remarks.extend(
            suspects
                .map(|node| NodeRemark { kind: RemarkKind::Suspects, text: format!("suspects node {node}") }),
        );
        if told.view != process.told.view {
            remarks.extend(membership.map(|membership| NodeRemark {
                kind: step_of_view(membership),
                text: self.tell_view(membership, is_new_view, delivered),
            }));
        }
        if told.ended != process.told.ended {
            let text = told.ended.as_ref().map(|ended| format!("ends after {delivered} messages: {ended}"));
            remarks.extend(text.map(|text| NodeRemark { kind: RemarkKind::Ends, text }));
        }
        let home = process.home.node().0;
        remarks.into_iter().for_each(|remark| self.world.remark(home, remark));
        self.processes[place as usize].told = told;
    }

    fn suspects(&self, membership: &Membership) -> Vec<u32> {
        let nodes = membership.view().nodes();
        let ranks = (0..nodes.len()).filter(|rank| membership.accuses(*rank));
        ranks.map(|rank| self.numbers.owner(nodes[rank].0)).collect()
    }

    fn tell_view(&self, membership: &Membership, is_new: bool, delivered: usize) -> String {
        let view = self.numbers.places(membership.view());
        let id = view.id;
        match membership.state() {
            MembershipState::Opening => format!("opens {view}"),
            MembershipState::Normal if is_new => format!("opens {view}, in which messages flow"),
            MembershipState::Normal => format!("view {id}: messages flow"),
            MembershipState::Wedged => format!("view {id}: wedged, {delivered} messages delivered so far"),
            MembershipState::Waiting => {
                format!("view {id}: waits for a majority, {delivered} messages delivered so far")
            }
            MembershipState::Decided => {
                let nodes = view.nodes();
                let is_removed = |rank: &usize| membership.decision().is_some_and(|next| next.removes(*rank));
                let removed: Vec<String> =
                    (0..nodes.len()).filter(is_removed).map(|rank| nodes[rank].0.to_string()).collect();
                let without = if removed.is_empty() {
                    String::new()
                } else {
                    format!(" without node {}", removed.join(", "))
                };
                format!("view {id}: the next view is decided{without}, {delivered} messages delivered so far")
            }
        }
    }
}

/// The view that a member is in, and how far it is there.
fn step_of_view(membership: &Membership) -> RemarkKind {
    let step = match membership.state() {
        MembershipState::Opening => "opening",
        MembershipState::Normal => "messages flow",
        MembershipState::Wedged => "wedged",
        MembershipState::Waiting => "waits for a majority",
        MembershipState::Decided => "next view decided",
    };
    RemarkKind::Enters { period: format!("view {}", membership.view().id), step }
}

impl ToldProcess {
    /// A process that joins again is another node.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}
