//! What the polling thread reports to the application's threads about the group.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};
use squall_fabric::mutex::lock;

use squall_protocols::membership::View;
use squall_transports::bootstrap::pair::PairServices;
use squall_transports::bootstrap::{Address, Asker, MemberLinks};

use crate::error::GroupError;
use crate::flight_record::{FlightCopy, FlightRecord};
use crate::wait::{Waiters, block_for};

/// Answers external clients that ask a member whether it serves them.
pub(crate) trait ClientDesk: std::fmt::Debug + Send + Sync {
    /// Answers, and begins to serve them if it can.
    fn answer(self: Arc<Self>, asker: Asker);
}

/// Shared by the polling thread and all handles of a group.
#[derive(Debug, Default)]
pub(crate) struct GroupStatus {
    /// All members have attached: messages flow.
    ready: AtomicBool,
    /// Asks the polling thread to end.
    stop: AtomicBool,
    /// Asks the polling thread to leave the group with the next view.
    leave: AtomicBool,
    /// The current view.
    view: Mutex<Option<View>>,
    /// The addresses at which the members and the joiners listen.
    roster: Mutex<BTreeMap<NodeId, Address>>,
    /// Whether this member's objects are served.
    serves_objects: AtomicBool,
    /// What this member serves at its port.
    services: PairServices,
    /// Its links with the other members.
    links: MemberLinks,
    /// Where it listens.
    listen: Mutex<Option<Address>>,
    /// Serves external clients, as long as the member's handle exists.
    hub: Mutex<Option<Arc<dyn ClientDesk>>>,
    /// The number that identifies this start of the group.
    session: AtomicU64,
    /// The subgroups whose state no member holds but this one, while it leaves.
    sole_states: Mutex<Vec<String>>,
    /// This member may hold more states than it has announced to the group.
    state_news: AtomicBool,
    /// What this member has noticed lately.
    flight: Mutex<FlightCopy>,
    /// Why the group has ended.
    failure: Mutex<Option<GroupError>>,
    /// The senders that wait for space in a window.
    pub(crate) window_space: Waiters,
    /// The receivers that wait for messages.
    pub(crate) messages: Waiters,
    /// The polling thread has ended, and all that it had is closed.
    finished: AtomicBool,
    /// The threads that wait until the group is ready, has failed, or its polling thread has ended.
    changes: Waiters,
}

impl GroupStatus {
    pub(crate) fn is_ready(&self) -> bool {
        // SYNC: pairs with the release in `set_ready`.
        self.ready.load(Ordering::Acquire)
    }

    pub(crate) fn set_ready(&self) {
        // SYNC: pairs with the acquire in `is_ready`.
        self.ready.store(true, Ordering::Release);
        self.changes.notify();
    }

    /// Returns whether the polling thread has ended, and all that it had is closed.
    pub(crate) fn is_finished(&self) -> bool {
        // SYNC: pairs with the release in `set_finished`.
        self.finished.load(Ordering::Acquire)
    }

    pub(crate) fn set_finished(&self) {
        // SYNC: pairs with the acquire in `is_finished`.
        self.finished.store(true, Ordering::Release);
        self.changes.notify();
    }

    /// Waits until `found` returns a value, and returns it; `None` after `patience`. `found` is called again whenever the
    /// group becomes ready, fails, or its polling thread ends.
    pub(crate) fn wait_for_change<T>(&self, patience: Duration, found: impl Fn() -> Option<T>) -> Option<T> {
        let change = poll_fn(|context| {
            if let Some(found) = found() {
                return Poll::Ready(found);
            }
            self.changes.register(context.waker());
            found().map_or(Poll::Pending, Poll::Ready)
        });
        block_for(change, patience)
    }

    pub(crate) fn set_view(&self, view: &View) {
        *lock(&self.view) = Some(view.clone());
    }

    pub(crate) fn view(&self) -> Option<View> {
        lock(&self.view).clone()
    }

    /// Returns the number of the view; 0 while there is none.
    pub(crate) fn view_id(&self) -> u64 {
        lock(&self.view).as_ref().map_or(0, |view| view.id)
    }

    /// The addresses at which the members and the joiners listen. For the control plane.
    pub(crate) fn roster(&self) -> MutexGuard<'_, BTreeMap<NodeId, Address>> {
        lock(&self.roster)
    }

    /// Returns the address at which this member's objects are served, if it has any.
    pub(crate) const fn services(&self) -> &PairServices {
        &self.services
    }

    /// Returns this member's links.
    pub(crate) const fn links(&self) -> &MemberLinks {
        &self.links
    }

    /// Replaces the addresses at which the members and the joiners listen.
    pub(crate) fn set_roster(&self, roster: BTreeMap<NodeId, Address>) {
        self.links.learn(&roster);
        *self.roster() = roster;
    }

    pub(crate) fn listen(&self) -> MutexGuard<'_, Option<Address>> {
        lock(&self.listen)
    }

    /// Returns whether this member serves objects.
    pub(crate) fn serves_objects(&self) -> bool {
        self.serves_objects.load(Ordering::Relaxed)
    }

    pub(crate) fn set_serves_objects(&self) {
        self.serves_objects.store(true, Ordering::Relaxed);
    }

    /// Serves external clients, as long as the member's handle exists.
    pub(crate) fn hub(&self) -> MutexGuard<'_, Option<Arc<dyn ClientDesk>>> {
        lock(&self.hub)
    }

    /// The copy of what this member has noticed lately.
    pub(crate) fn flight(&self) -> MutexGuard<'_, FlightCopy> {
        lock(&self.flight)
    }

    /// Returns what this member has noticed lately. The copy is held for a moment only: text is made without it.
    pub(crate) fn flight_record(&self) -> FlightRecord {
        let copy = self.flight().clone();
        copy.record()
    }

    /// Returns the number that identifies this start of the group: another group of the same name has another number.
    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Relaxed)
    }

    pub(crate) fn set_session(&self, session: u64) {
        self.session.store(session, Ordering::Relaxed);
    }

    /// The subgroups whose state no member holds but this one, while it leaves.
    pub(crate) fn sole_states(&self) -> MutexGuard<'_, Vec<String>> {
        lock(&self.sole_states)
    }

    /// Notes that this member may hold more states than the polling thread has seen.
    pub(crate) fn set_state_news(&self) {
        // SYNC: pairs with the acquire in `take_state_news`; the states are behind locks of their own.
        self.state_news.store(true, Ordering::Release);
    }

    pub(crate) fn has_state_news(&self) -> bool {
        self.state_news.load(Ordering::Relaxed)
    }

    pub(crate) fn take_state_news(&self) -> bool {
        // SYNC: pairs with the release in `set_state_news`.
        self.has_state_news() && self.state_news.swap(false, Ordering::Acquire)
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Relaxed)
    }

    pub(crate) fn leave(&self) {
        self.leave.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn failure(&self) -> Option<GroupError> {
        lock(&self.failure).clone()
    }

    /// Notes why the group has ended; the first reason is kept.
    pub(crate) fn fail(&self, error: GroupError) {
        lock(&self.failure).get_or_insert(error);
        self.window_space.notify();
        self.messages.notify();
        self.changes.notify();
    }
}
