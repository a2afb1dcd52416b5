//! The application of the scenario, and what its group is (Derecho §3.3).

use std::cell::Cell;
use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::{Duration, NodeId};
use squall_protocols::admission::AdmissionSettings;
use squall_protocols::group::{
    GroupApplication, GroupSettings, Placement, SubgroupId, SubgroupLayout, SubgroupOutlet, Succession,
    Unplaced,
};
use squall_protocols::membership::{self, PartitionSafety, View};
use squall_protocols::multicast::{self, Message, Pull};

use super::plan::JoinPlan;
use crate::admission::JoinHost;

/// The processes of a plan.
pub(super) struct Recorders(pub(super) JoinPlan);

impl JoinHost for Recorders {
    type Application = ViewRecorder;

    fn group_settings(&self) -> (Box<dyn SubgroupLayout + Send>, GroupSettings) {
        let layout = |view: &View| {
            let members = view.nodes();
            let all = multicast::SubgroupSettings::new(members.len(), 8);
            let settings = multicast::SubgroupSettings { window: 4, ..all };
            (vec![Placement { id: SubgroupId(0), members, settings }], Vec::new())
        };
        let (suspicion_after, partition_safety) = (Some(self.0.suspicion_after), PartitionSafety::Majority);
        let membership = membership::MembershipSettings {
            suspicion_after,
            partition_safety,
            ..membership::MembershipSettings::default()
        };
        (Box::new(layout), GroupSettings { membership, ..GroupSettings::default() })
    }

    fn admission_settings(&self) -> AdmissionSettings {
        AdmissionSettings {
            candidate_life: Duration::from_millis(12),
            link_life: self.0.link_life,
            admissions_max: self.0.admissions_max,
            ..AdmissionSettings::default()
        }
    }

    fn rank(&self, place: u32) -> Option<u64> {
        self.0.asks_for_rank.then_some(u64::from(place))
    }

    fn application(&mut self, _place: u32, _node: NodeId, left: Option<ViewRecorder>) -> ViewRecorder {
        left.unwrap_or_default()
    }
}

/// An application that sends a message in each view, and notes the views that it has not shown yet.
#[derive(Default)]
pub(super) struct ViewRecorder {
    pub(super) views: Vec<View>,
    succession: Succession,
    /// It has yet to send in the present view.
    has_message: bool,
    /// Messages that it was given.
    pub(super) delivered: Rc<Cell<u64>>,
}

impl ViewRecorder {
    /// Sends what it has; whether that worked.
    pub(super) fn send(&mut self) -> bool {
        let writer = if self.has_message { self.succession.take_writer() } else { None };
        let Some(mut writer) = writer else { return false };
        self.has_message = false;
        writer.send(8, |bytes| bytes.fill(1)).is_ok()
    }
}

type Upcall = Box<dyn FnMut(Message<'_>)>;

impl GroupApplication for ViewRecorder {
    type Deliver = Upcall;

    fn outlet(&mut self, _: SubgroupId) -> SubgroupOutlet<Upcall> {
        let delivered = Rc::clone(&self.delivered);
        SubgroupOutlet::Upcall(Box::new(move |_: Message<'_>| delivered.set(delivered.get() + 1)))
    }

    fn install(&mut self, view: &View, _: &[Placement], _: &[Unplaced]) {
        self.views.push(view.clone());
        self.has_message = true;
    }

    fn succession(&mut self, _: SubgroupId) -> impl DerefMut<Target = Succession> {
        &mut self.succession
    }

    fn take_pull(&mut self, _: SubgroupId, _: Pull) {}

    fn leave_subgroup(&mut self, _: SubgroupId, _: Option<Upcall>) {}
}
