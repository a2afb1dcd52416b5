//! What the processes of the scenario are (Derecho §2, §3.3).

use squall_fabric::{Duration, NodeId};
use squall_protocols::admission::AdmissionSettings;
use squall_protocols::group::{GroupSettings, SubgroupLayout};
use squall_protocols::membership::MembershipSettings;

use super::cluster::{MEMBERS_MAX, STATES};
use super::plan::GroupPlan;
use super::program::{GroupScene, NodeProgram};
use crate::admission::JoinHost;

/// The processes of a plan, which run the programs of a scene.
pub(super) struct GroupHost<S> {
    pub(super) plan: GroupPlan,
    pub(super) scene: S,
}

impl<S: GroupScene> JoinHost for GroupHost<S> {
    type Application = S::Program;

    fn group_settings(&self) -> (Box<dyn SubgroupLayout + Send>, GroupSettings) {
        let (suspicion_after, partition_safety) = (self.plan.suspicion_after, self.plan.partition_safety);
        let settings = GroupSettings {
            membership: MembershipSettings {
                suspicion_after,
                partition_safety,
                states: STATES,
                members_max: MEMBERS_MAX,
                ..MembershipSettings::default()
            },
            relays: Some(self.plan.relays.clone()),
            durable: self.plan.durable(),
            genuine: None,
            view_indexes_max: self.plan.limits.view_indexes_max,
        };
        (self.scene.layout(), settings)
    }

    fn admission_settings(&self) -> AdmissionSettings {
        let (candidate_life, link_life) = (Duration::from_millis(12), Duration::from_millis(40));
        AdmissionSettings {
            candidate_life,
            link_life,
            members_max: MEMBERS_MAX,
            ..AdmissionSettings::default()
        }
    }

    fn application(&mut self, place: u32, node: NodeId, left: Option<S::Program>) -> S::Program {
        match left {
            Some(mut program) => {
                program.come_as(node);
                program
            }
            None => self.scene.program(place, node),
        }
    }
}
