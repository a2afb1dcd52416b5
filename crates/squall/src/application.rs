//! Connects the group's core to the application's handles: slots in which each view leaves its windows (Derecho §2).

use std::collections::BTreeMap;
use std::ops::DerefMut;
use std::sync::Arc;

use squall_fabric::NodeId;
use squall_protocols::genuine::{GenuineMessage, ShardPlacement};
use squall_protocols::group::{
    GroupApplication, Placement, SubgroupId, SubgroupLayout, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::View;
use squall_protocols::multicast::{Deliver, MessageLog, Pull};
use squall_protocols::replica;
use squall_protocols::restart::Register;

use crate::config::{Config, GenuineConfig, SubgroupConfig};
use crate::durable::{LogMember, ProcessLog};
use crate::slot::ShardFeed;
use crate::slot::SubgroupSlot;
use crate::status::GroupStatus;

pub(crate) type ViewUpcall = Box<dyn FnMut(&View) + Send>;
/// The functions by which the application chooses the members of a subgroup.
pub(crate) type LayoutFunctions = BTreeMap<String, Box<dyn Fn(&View) -> Vec<NodeId> + Send + Sync>>;
pub(crate) type MulticastUpcall = Box<dyn FnMut(GenuineMessage<'_>) + Send>;
pub(crate) type BoxedUpcall = Box<dyn Deliver + Send>;

/// The polling thread's side.
pub(crate) struct GroupHandles {
    upcalls: BTreeMap<SubgroupId, BoxedUpcall>,
    slots: Vec<Arc<SubgroupSlot>>,
    status: Arc<GroupStatus>,
    on_view: ViewUpcall,
    /// Takes messages to this member's shard; without it they are dropped.
    on_multicast: Option<MulticastUpcall>,
    /// Where messages to this member's part of the object in the shards go, if there is one.
    feed: Option<Arc<ShardFeed>>,
    /// The log of the durable subgroups, if there are any.
    log: Option<Arc<ProcessLog>>,
    /// The view with which the group restarts from its logs.
    restarted: Option<u64>,
    /// This member, as its register names it.
    member: Option<LogMember>,
    /// The current view.
    view: u64,
}

impl GroupHandles {
    /// Returns the handles of subgroups whose ids are their indices among the slots.
    pub(crate) fn new(
        upcalls: BTreeMap<SubgroupId, BoxedUpcall>,
        slots: Vec<Arc<SubgroupSlot>>,
        status: Arc<GroupStatus>,
        on_view: ViewUpcall,
    ) -> Self {
        for id in upcalls.keys() {
            let slot = &slots[id.0 as usize];
            slot.use_for_messages();
            slot.note_taken_before(u64::MAX);
        }
        let on_multicast = None;
        Self {
            upcalls,
            slots,
            status,
            on_view,
            on_multicast,
            feed: None,
            log: None,
            restarted: None,
            member: None,
            view: 0,
        }
    }

    /// Passes messages to this member's shard to `upcall`.
    pub(crate) fn set_multicast_upcall(&mut self, upcall: Option<MulticastUpcall>) {
        self.on_multicast = upcall;
    }

    /// Passes messages to this member's shard to the object in the shards.
    pub(crate) fn set_feed(&mut self, feed: Option<Arc<ShardFeed>>) {
        self.feed = feed;
    }

    /// Has the durable subgroups keep their messages in `log`.
    pub(crate) fn keep_log(&mut self, log: Option<Arc<ProcessLog>>) {
        self.log = log;
    }

    /// Notes that the group restarts from its logs with `view`: each member of a durable subgroup makes the state from its log, and those of
    /// the others begin with the initial state.
    pub(crate) const fn restart(&mut self, view: u64) {
        self.restarted = Some(view);
    }

    /// Sets what this process is in the group, for the first time or after an attempt that has failed.
    pub(crate) fn set_member(&mut self, member: LogMember) {
        self.member = Some(member);
        self.log.iter().for_each(|log| log.forget_entry());
        self.slots.iter().for_each(|slot| slot.forget_views());
        self.feed.iter().for_each(|feed| feed.forget());
    }

    /// Returns how many messages of a subgroup the application has pulled.
    pub(crate) fn pulled(&self, id: SubgroupId) -> u64 {
        self.slot(id).tally().taken().0
    }

    /// Returns the slots of all subgroups, by id.
    pub(crate) fn slots(&self) -> &[Arc<SubgroupSlot>] {
        &self.slots
    }

    fn slot(&self, id: SubgroupId) -> &SubgroupSlot {
        &self.slots[id.0 as usize]
    }
}

impl GroupApplication for GroupHandles {
    type Deliver = BoxedUpcall;

    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<BoxedUpcall> {
        self.slot(id).enter(self.view);
        self.upcalls.remove(&id).map_or(SubgroupOutlet::Pull, SubgroupOutlet::Upcall)
    }

    fn install(&mut self, view: &View, placements: &[Placement], _unplaced: &[Unplaced]) {
        self.status.set_view(view);
        for (id, slot) in (0..).map(SubgroupId).zip(&self.slots) {
            let placement = placements.iter().find(|placement| placement.id == id);
            let members = placement.map_or_else(Vec::new, |placement| placement.members.clone());
            let is_in = self.member.is_some_and(|member| members.contains(&member.node));
            let has_holders = !view.holders(id.0).is_empty();
            let begins_again = is_in && self.restarted == Some(view.id);
            slot.begin_view(view, members, is_in, has_holders, begins_again);
        }
        self.feed.iter().for_each(|feed| feed.begin_view(view.nodes()));
        self.status.set_state_news();
        self.log.iter().for_each(|log| log.note_view(view.id));
        self.view = view.id;
        (self.on_view)(view);
        self.status.messages.notify();
    }

    fn succession(&mut self, id: SubgroupId) -> impl DerefMut<Target = Succession> {
        self.slot(id).succession()
    }

    fn try_succession(&mut self, id: SubgroupId) -> Option<impl DerefMut<Target = Succession>> {
        self.slot(id).try_succession()
    }

    fn take_pull(&mut self, id: SubgroupId, pull: Pull) {
        self.slot(id).add_pull(pull);
        self.status.messages.notify();
    }

    fn deliver_genuine(&mut self, message: GenuineMessage<'_>) {
        self.on_multicast.iter_mut().for_each(|upcall| upcall(message));
        self.feed.iter().for_each(|feed| feed.deliver(&message));
    }

    fn genuine_space(&self) -> usize {
        self.feed.as_ref().map_or(usize::MAX, |feed| feed.space())
    }

    fn log(&mut self, id: SubgroupId, view: u64) -> Box<dyn MessageLog + Send> {
        let log = self.log.as_ref().expect("a member with durable subgroups has opened its log");
        Box::new(log.subgroup(id, view))
    }

    fn register(&mut self) -> Option<Register> {
        let member = self.member?;
        self.log.as_ref().map(|log| log.register(&member))
    }

    fn write_register(&mut self, register: &Register) {
        self.log.iter().for_each(|log| log.write_register(register));
    }

    fn take_register_written(&mut self) -> bool {
        self.log.as_ref().is_some_and(|log| log.take_register_written())
    }

    fn has_whole_log(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_whole())
    }

    fn log_base(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.base_view())
    }

    fn has_state_news(&self) -> bool {
        self.status.has_state_news()
    }

    fn take_state_news(&mut self) -> bool {
        self.status.take_state_news()
    }

    fn holds(&self, id: SubgroupId) -> bool {
        self.slot(id).holds()
    }

    fn seal(&mut self, id: SubgroupId) -> bool {
        self.slot(id).seal(self.status.is_leaving())
    }

    fn leave_subgroup(&mut self, id: SubgroupId, upcall: Option<BoxedUpcall>) {
        // This member may be in the subgroup again later.
        self.upcalls.extend(upcall.map(|upcall| (id, upcall)));
        self.slot(id).leave();
    }
}

/// Returns the layout that a configuration and the application's own functions describe; a subgroup's id is its index
/// among the names.
pub(crate) fn layout(config: &Config, places: Arc<LayoutFunctions>) -> Box<dyn SubgroupLayout + Send> {
    let subgroups = config.subgroups.iter().map(|(name, config)| (name.clone(), config.clone())).collect();
    Box::new(ConfiguredLayout { subgroups, genuine: config.genuine.clone(), places })
}

struct ConfiguredLayout {
    subgroups: Vec<(String, SubgroupConfig)>,
    genuine: Option<GenuineConfig>,
    places: Arc<LayoutFunctions>,
}

impl SubgroupLayout for ConfiguredLayout {
    fn place(&self, view: &View) -> (Vec<Placement>, Vec<Unplaced>) {
        let (mut placements, mut unplaced) = (Vec::new(), Vec::new());
        for (id, (name, config)) in (0..).map(SubgroupId).zip(&self.subgroups) {
            let placed = match self.places.get(name) {
                Some(place) => {
                    let nodes = place(view);
                    let stay =
                        |stay: &[NodeId]| stay.iter().copied().filter(|node| nodes.contains(node)).collect();
                    config.place_among(view, &replica::place(view, id.0, &view.nodes(), stay))
                }
                None => config.place(view, id),
            };
            match placed {
                Some((members, settings)) => placements.push(Placement { id, members, settings }),
                None => {
                    let reason = format!("none of the members or senders of `{name}` is in the view");
                    unplaced.push(Unplaced { id, reason });
                }
            }
        }
        (placements, unplaced)
    }

    fn shards(&self, view: &View) -> ShardPlacement {
        self.genuine.as_ref().map_or_else(ShardPlacement::default, |genuine| genuine.place(view))
    }
}

#[cfg(test)]
mod tests {
    use squall_protocols::membership::Member;
    use squall_protocols::replica::ShardEvent;

    use super::*;

    /// \[J8\] A gap would follow the messages that were delivered at the end of a view that a failed attempt was in.
    #[test]
    fn a_failed_attempt_to_join_leaves_nothing_to_the_next() {
        let (slot, status) = (Arc::new(SubgroupSlot::default()), Arc::new(GroupStatus::default()));
        let mut handles =
            GroupHandles::new(BTreeMap::new(), vec![Arc::clone(&slot)], status, Box::new(|_: &View| {}));
        for (id, node) in [(3, 64), (5, 65)] {
            let (group, node, tag, shards, layout) = (1, NodeId(node), 0, 0, 0);
            handles.set_member(LogMember { group, node, tag, shards, layout });
            let members = vec![Member { node, tag: 0 }];
            handles.install(&View { id, ..View::first(members) }, &[], &[]);
        }
        let first = slot.take_event();
        assert!(matches!(&first, Some(ShardEvent::View(view, _)) if view.id == 5), "{first:?}");
    }
}
