//! Connects the group's core to the application's handles: slots in which each view leaves its windows (Derecho §2).

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::mutex::{lock, unless_held};
use squall_fabric::window::WindowWriter;
use squall_protocols::genuine::{GenuineMessage, ShardPlacement};
use squall_protocols::group::{
    GroupApplication, Placement, SubgroupId, SubgroupLayout, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::View;
use squall_protocols::multicast::{Deliver, DeliveryTally, MessageLog, Pull};
use squall_protocols::replica::{self, HoldDecision, Holding, ShardEvent, ShardEvents};
use squall_protocols::restart::Register;

use crate::config::{Config, GenuineConfig, SubgroupConfig};
use crate::durable::{LogMember, ProcessLog};
use crate::external::{SubgroupView, Tap};
use crate::genuine::MulticastUpcall;
use crate::object::ShardFeed;
use crate::status::GroupStatus;

pub(crate) type ViewUpcall = Box<dyn FnMut(&View) + Send>;
/// The functions by which the application chooses the members of a subgroup.
pub(crate) type LayoutFunctions = BTreeMap<String, Box<dyn Fn(&View) -> Vec<NodeId> + Send + Sync>>;
pub(crate) type BoxedUpcall = Box<dyn Deliver + Send>;

/// Where the windows of one subgroup wait for their users. It is accessed once in a view, not on the data path.
#[derive(Debug, Default)]
pub(crate) struct SubgroupSlot {
    outgoing: Mutex<OutgoingWindow>,
    events: Mutex<ShardEvents<Pull>>,
    state: Mutex<SlotState>,
    /// Where observers get copies of what is delivered.
    tap: Arc<Tap>,
    /// Counts what the application pulls.
    tally: Arc<DeliveryTally>,
    /// The application has taken all messages of the views before this one; [`u64::MAX`] if it is called with each.
    taken_before: AtomicU64,
}

/// Whether there is a state that belongs to a subgroup, and whether this member holds it.
#[derive(Debug, Default)]
struct SlotState {
    usage: Usage,
    holding: Holding,
    /// The view in which this member makes the state from its log.
    recovers_in: Option<u64>,
}

impl SlotState {
    fn begin_view(&mut self, view: u64, stay: Option<u64>, has_holders: bool, recovers: bool) {
        self.holding.begin_view(view, stay, has_holders);
        if recovers {
            self.holding.recover();
            self.recovers_in = Some(view);
        }
    }
}

/// What the application uses a subgroup for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Usage {
    /// Nothing yet: an object may be opened here, which begins with the first view.
    #[default]
    Open,
    /// Messages.
    Messages,
    /// An object.
    Object,
}

/// What continues from window to window, and the view since which this member has been in the subgroup, while it is
/// in it.
#[derive(Debug, Default)]
pub(crate) struct OutgoingWindow {
    succession: Succession,
    since: Option<u64>,
}

/// The next window of a sender that has given up the previous one.
#[derive(Debug)]
pub(crate) struct NextWindow {
    /// `None`: there is no window now.
    pub(crate) writer: Option<WindowWriter>,
    /// The view since which this member has been in the subgroup; `None`: it is not in it.
    pub(crate) since: Option<u64>,
    /// There is a window, but it has no space for what was committed before.
    pub(crate) is_full: bool,
    /// How many messages are committed and not delivered, if that is known.
    pub(crate) under_way: Option<u64>,
}

impl SubgroupSlot {
    /// Returns a slot whose messages observers see through `tap`.
    pub(crate) fn with_tap(tap: Arc<Tap>) -> Self {
        Self { tap, ..Self::default() }
    }

    pub(crate) const fn tap(&self) -> &Arc<Tap> {
        &self.tap
    }

    pub(crate) const fn tally(&self) -> &Arc<DeliveryTally> {
        &self.tally
    }

    /// Returns the sending end of the latest view, positioned after all that was committed before. The caller drops
    /// the previous one first, and wakes the polling thread afterwards.
    pub(crate) fn next_window(&self) -> NextWindow {
        let mut outgoing = lock(&self.outgoing);
        let OutgoingWindow { succession, since } = &mut *outgoing;
        let writer = succession.take_writer();
        let (is_full, under_way) = (succession.has_window(), succession.under_way());
        NextWindow { writer, since: *since, is_full, under_way }
    }

    /// Returns what [`SubgroupSlot::next_window`] does, with the view since which this member has been in the
    /// subgroup.
    pub(crate) fn take_writer(&self) -> Option<(WindowWriter, u64)> {
        let NextWindow { writer, since, .. } = self.next_window();
        writer.zip(since)
    }

    /// Returns the receiving end of the next view; `on_view` is called with the views before it.
    pub(crate) fn take_pull(&self, mut on_view: impl FnMut(Arc<SubgroupView>)) -> Option<Pull> {
        let mut events = lock(&self.events);
        loop {
            match events.pop()? {
                ShardEvent::Messages(pull) => return Some(pull),
                ShardEvent::View(view, members) => {
                    // The caller has taken all of the views before.
                    self.note_taken_before(view.id);
                    on_view(SubgroupView::new(&view, &members));
                }
            }
        }
    }

    /// Notes that the application has taken all messages of the views before this one.
    pub(crate) fn note_taken_before(&self, view: u64) {
        self.taken_before.fetch_max(view, Ordering::Relaxed);
    }

    /// Returns whether the application has taken all messages of the views before this one.
    pub(crate) fn has_taken_before(&self, view: u64) -> bool {
        self.taken_before.load(Ordering::Relaxed) >= view
    }

    /// Notes that the application sends or takes messages here, so that there is no state.
    pub(crate) fn use_for_messages(&self) {
        lock(&self.state).usage = Usage::Messages;
    }

    /// Forgets the views of an attempt to join that has failed: nothing of them reaches the application \[J8\].
    fn forget_views(&self) {
        *lock(&self.events) = ShardEvents::default();
        lock(&self.state).holding = Holding::default();
        *lock(&self.outgoing) = OutgoingWindow::default();
    }

    /// Returns whether the application sends or takes messages here.
    pub(crate) fn is_for_messages(&self) -> bool {
        lock(&self.state).usage == Usage::Messages
    }

    /// Notes that an object is kept here.
    pub(crate) fn use_for_object(&self) {
        lock(&self.state).usage = Usage::Object;
    }

    /// Returns what may be done with a state that this member has received, which has been in the subgroup since view
    /// `since`.
    pub(crate) fn hold(&self, since: u64) -> HoldDecision {
        lock(&self.state).holding.hold(since)
    }

    /// Returns whether this member makes the state of `view` from its log, instead of getting it from others.
    pub(crate) fn recovers_in(&self, view: u64) -> bool {
        lock(&self.state).recovers_in == Some(view)
    }

    /// Returns whether this member holds the state.
    fn holds(&self) -> bool {
        let state = lock(&self.state);
        state.usage == Usage::Object && state.holding.holds()
    }

    /// Ends the view; returns whether this member holds the state, or may yet find out that it does. A member that
    /// leaves does not find out.
    fn seal(&self, leaves: bool) -> bool {
        let mut state = lock(&self.state);
        let may = match state.usage {
            Usage::Open => !leaves,
            Usage::Messages => false,
            Usage::Object => true,
        };
        state.holding.seal() && may
    }

    /// Returns the next view or receiving end, for a consumer that follows the views, too.
    pub(crate) fn take_event(&self) -> Option<ShardEvent<Pull>> {
        lock(&self.events).pop()
    }
}

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
    /// The view with which the group restarts from its logs, and its durable subgroups.
    restarted: Option<(u64, Vec<SubgroupId>)>,
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

    /// Notes that the group restarts from its logs with `view`: each member of a `durable` subgroup makes the state from its log.
    pub(crate) fn restart(&mut self, view: u64, durable: Vec<SubgroupId>) {
        self.restarted = Some((view, durable));
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

    fn slot(&self, id: SubgroupId) -> &SubgroupSlot {
        &self.slots[id.0 as usize]
    }
}

impl GroupApplication for GroupHandles {
    type Deliver = BoxedUpcall;

    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<BoxedUpcall> {
        lock(&self.slot(id).outgoing).since = Some(self.view);
        self.upcalls.remove(&id).map_or(SubgroupOutlet::Pull, SubgroupOutlet::Upcall)
    }

    fn install(&mut self, view: &View, placements: &[Placement], _unplaced: &[Unplaced]) {
        self.status.set_view(view);
        for (id, slot) in (0..).map(SubgroupId).zip(&self.slots) {
            let placement = placements.iter().find(|placement| placement.id == id);
            let members = placement.map_or_else(Vec::new, |placement| placement.members.clone());
            let is_in = self.member.is_some_and(|member| members.contains(&member.node));
            let stay = is_in.then(|| lock(&slot.outgoing).since.unwrap_or(view.id));
            let has_holders = !view.holders(id.0).is_empty();
            let restarted = self.restarted.as_ref();
            let recovers =
                is_in && restarted.is_some_and(|(of, durable)| *of == view.id && durable.contains(&id));
            lock(&slot.state).begin_view(view.id, stay, has_holders, recovers);
            slot.tap.install(SubgroupView::new(view, &members));
            let mut events = lock(&slot.events);
            events.sources().for_each(Pull::shed);
            events.begin_view(view, members);
        }
        self.feed.iter().for_each(|feed| feed.begin_view(view.nodes()));
        self.status.set_state_news();
        self.log.iter().for_each(|log| log.note_view(view.id));
        self.view = view.id;
        (self.on_view)(view);
        self.status.messages.notify();
    }

    fn succession(&mut self, id: SubgroupId) -> impl DerefMut<Target = Succession> {
        Locked(lock(&self.slot(id).outgoing))
    }

    fn try_succession(&mut self, id: SubgroupId) -> Option<impl DerefMut<Target = Succession>> {
        unless_held(self.slot(id).outgoing.try_lock()).map(Locked)
    }

    fn take_pull(&mut self, id: SubgroupId, mut pull: Pull) {
        pull.count_in(Arc::clone(self.slot(id).tally()));
        lock(&self.slot(id).events).push(pull);
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
        lock(&self.slot(id).outgoing).since = None;
    }
}

/// The succession, while its slot is locked.
struct Locked<'a>(MutexGuard<'a, OutgoingWindow>);

impl Deref for Locked<'_> {
    type Target = Succession;

    fn deref(&self) -> &Succession {
        &self.0.succession
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Succession {
        &mut self.0.succession
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
