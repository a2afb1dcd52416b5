//! What admission needs of a group, whatever its views consist of (Derecho §3.3).

use std::fmt::Display;

use squall_fabric::sim::SimFabric;
use squall_fabric::{Core, NodeId};
use squall_protocols::admission::JoinStanding;
use squall_protocols::genuine::{GenuineApplication, GenuineEnd, GenuineGroup, GenuineGroupSettings};
use squall_protocols::group::{GroupApplication, GroupCore, GroupEnd, GroupSettings, SubgroupLayout};
use squall_protocols::membership::{Member, Membership, View};

/// A group that processes join.
pub(crate) trait JoinGroup: Core<SimFabric> + Sized {
    type Application;
    type Settings;
    type End: Display;

    fn begin(
        fabric: &mut SimFabric,
        view: View,
        settings: Self::Settings,
        application: Self::Application,
    ) -> Self;

    fn join(
        fabric: &mut SimFabric,
        contacts: &[NodeId],
        settings: Self::Settings,
        application: Self::Application,
    ) -> Self;

    fn stand_by(&mut self);
    fn take_part(&mut self);
    fn membership(&self) -> Option<&Membership>;
    fn is_ready(&self) -> bool;
    fn has_lost(&self, node: NodeId) -> bool;

    /// Whether a process may join as a member with this tag.
    fn takes(&self, tag: u64) -> bool;

    fn admit(&mut self, joiner: Member);
    fn renew(&mut self);
    fn application_ref(&self) -> &Self::Application;
    fn into_application(self) -> Self::Application;
    fn ended(&self) -> Option<Self::End>;

    /// What its end is for a joiner.
    fn standing(ended: Self::End) -> JoinStanding;
}

/// Hands the calls on to the methods of the same names.
macro_rules! hand_on {
    () => {
        fn stand_by(&mut self) {
            Self::stand_by(self);
        }

        fn take_part(&mut self) {
            Self::take_part(self);
        }

        fn membership(&self) -> Option<&Membership> {
            Self::membership(self)
        }

        fn is_ready(&self) -> bool {
            Self::is_ready(self)
        }

        fn has_lost(&self, node: NodeId) -> bool {
            Self::has_lost(self, node)
        }

        fn admit(&mut self, joiner: Member) {
            Self::admit(self, joiner);
        }

        fn renew(&mut self) {
            Self::renew(self);
        }

        fn application_ref(&self) -> &A {
            Self::application_ref(self)
        }

        fn into_application(self) -> A {
            Self::into_application(self)
        }

        fn ended(&self) -> Option<Self::End> {
            Self::ended(self)
        }
    };
}

impl<A: GroupApplication> JoinGroup for GroupCore<A> {
    type Application = A;
    type Settings = (Box<dyn SubgroupLayout + Send>, GroupSettings);
    type End = GroupEnd;

    hand_on!();

    fn begin(fabric: &mut SimFabric, view: View, (layout, settings): Self::Settings, application: A) -> Self {
        Self::begin(fabric, view, layout, settings, application)
    }

    fn join(
        fabric: &mut SimFabric,
        contacts: &[NodeId],
        (layout, settings): Self::Settings,
        application: A,
    ) -> Self {
        Self::join(fabric, contacts, layout, settings, application)
    }

    fn takes(&self, _tag: u64) -> bool {
        true
    }

    fn standing(ended: GroupEnd) -> JoinStanding {
        match ended {
            GroupEnd::Stopped(stop) => JoinStanding::Removed(stop),
            GroupEnd::NobodyLeft => JoinStanding::Alone,
            GroupEnd::Failed(..) => JoinStanding::Failed,
        }
    }
}

impl<A: GenuineApplication> JoinGroup for GenuineGroup<A> {
    type Application = A;
    type Settings = GenuineGroupSettings;
    type End = GenuineEnd;

    hand_on!();

    fn begin(fabric: &mut SimFabric, view: View, settings: Self::Settings, application: A) -> Self {
        Self::begin(fabric, &view, settings, application)
    }

    fn join(fabric: &mut SimFabric, contacts: &[NodeId], settings: Self::Settings, application: A) -> Self {
        Self::join(fabric, contacts, settings, application)
    }

    fn takes(&self, tag: u64) -> bool {
        Self::takes(self, tag)
    }

    fn standing(ended: GenuineEnd) -> JoinStanding {
        match ended {
            GenuineEnd::Stopped(stop) => JoinStanding::Removed(stop),
            GenuineEnd::Deserted => JoinStanding::Alone,
            GenuineEnd::Failed(_) | GenuineEnd::Unfollowed => JoinStanding::Failed,
        }
    }
}
