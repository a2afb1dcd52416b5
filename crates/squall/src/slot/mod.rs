//! The slot of a subgroup, in which each view leaves its windows for the application's handles (Derecho §2).

mod feed;
mod outcome;
mod snapshot;
mod tap;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::mutex::{lock, unless_held};
use squall_fabric::window::WindowWriter;
use squall_protocols::group::Succession;
use squall_protocols::membership::View;
use squall_protocols::multicast::{DeliveryTally, Pull};
use squall_protocols::replica::{HoldDecision, Holding, ShardEvent, ShardEvents};

pub(crate) use feed::{FeedEvent, FeedPoller, ProvidedState, ShardFeed};
pub use outcome::MessageOutcome;
pub use snapshot::{Snapshot, restored};
pub use squall_protocols::replica::ShardPosition as Position;
pub use tap::SubgroupView;
pub(crate) use tap::{Tap, TapItem, TapWriter, TappedUpcall};

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
    /// The object has its state here, so that it can be read.
    is_here: bool,
    /// The view with which the group begins again from its logs: this member makes the state from its log, or begins with the initial one.
    begins_again_in: Option<u64>,
}

impl SlotState {
    fn begin_view(&mut self, view: u64, stay: Option<u64>, has_holders: bool, begins_again: bool) {
        self.holding.begin_view(view, stay, has_holders);
        if begins_again {
            self.holding.recover();
            self.begins_again_in = Some(view);
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
    pub(crate) fn forget_views(&self) {
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

    /// Notes whether the object has its state here.
    pub(crate) fn note_state(&self, is_here: bool) {
        lock(&self.state).is_here = is_here;
    }

    /// Returns whether this member is in the subgroup, and its object there does not have its state yet.
    pub(crate) fn lacks_state(&self) -> bool {
        let is_in = lock(&self.outgoing).since.is_some();
        let state = lock(&self.state);
        is_in && state.usage == Usage::Object && !state.is_here
    }

    /// Returns what may be done with a state that this member has received, which has been in the subgroup since view
    /// `since`.
    pub(crate) fn hold(&self, since: u64) -> HoldDecision {
        lock(&self.state).holding.hold(since)
    }

    /// Returns whether the group begins again with `view`, so that this member does not get the state from others: it makes it from its log, or
    /// begins with the initial one.
    pub(crate) fn begins_again_in(&self, view: u64) -> bool {
        lock(&self.state).begins_again_in == Some(view)
    }

    /// Returns whether this member holds the state.
    pub(crate) fn holds(&self) -> bool {
        let state = lock(&self.state);
        state.usage == Usage::Object && state.holding.holds()
    }

    /// Ends the view; returns whether this member holds the state, or may yet find out that it does. A member that
    /// leaves does not find out.
    pub(crate) fn seal(&self, leaves: bool) -> bool {
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

    /// Notes that this member has been in the subgroup since this view.
    pub(crate) fn enter(&self, view: u64) {
        lock(&self.outgoing).since = Some(view);
    }

    /// Notes that this member is not in the subgroup any more.
    pub(crate) fn leave(&self) {
        lock(&self.outgoing).since = None;
    }

    /// Begins a view in which the subgroup has these members, this one among them if `is_in`. With one that `begins_again` the group comes back
    /// from its logs.
    pub(crate) fn begin_view(
        &self,
        view: &View,
        members: Vec<NodeId>,
        is_in: bool,
        has_holders: bool,
        begins_again: bool,
    ) {
        let stay = is_in.then(|| lock(&self.outgoing).since.unwrap_or(view.id));
        lock(&self.state).begin_view(view.id, stay, has_holders, begins_again);
        self.tap.install(SubgroupView::new(view, &members));
        let mut events = lock(&self.events);
        events.sources().for_each(Pull::shed);
        events.begin_view(view, members);
    }

    /// Adds the receiving end of the next view, whose messages count for this slot.
    pub(crate) fn add_pull(&self, mut pull: Pull) {
        pull.count_in(Arc::clone(&self.tally));
        lock(&self.events).push(pull);
    }

    /// Returns what continues from window to window.
    pub(crate) fn succession(&self) -> impl DerefMut<Target = Succession> {
        Locked(lock(&self.outgoing))
    }

    /// Returns what continues from window to window, unless another thread has it.
    pub(crate) fn try_succession(&self) -> Option<impl DerefMut<Target = Succession>> {
        unless_held(self.outgoing.try_lock()).map(Locked)
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
