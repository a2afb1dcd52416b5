//! What joins the group's core to the application's handles: places at which each view leaves its windows
//! (Derecho §2).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use squall_fabric::window::Writer;
use squall_protocols::group::{Application, Layout, Outlet, Placement, SubgroupId, Unplaced};
use squall_protocols::membership::View;
use squall_protocols::multicast::{Deliver, Pull};

use crate::config::SubgroupConfig;
use crate::status::Status;

pub(crate) type ViewUpcall = Box<dyn FnMut(&View) + Send>;
pub(crate) type BoxedUpcall = Box<dyn Deliver + Send>;

/// Where the windows of one subgroup wait for their users. Looked at once in a view, not on the data path.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    writer: Mutex<Option<Writer>>,
    pulls: Mutex<VecDeque<Pull>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    /// The sending end of the latest view, once all that was committed before has gone ahead.
    pub(crate) fn take_writer(&self) -> Option<Writer> {
        lock(&self.writer).take()
    }

    /// The receiving end of the next view.
    pub(crate) fn take_pull(&self) -> Option<Pull> {
        lock(&self.pulls).pop_front()
    }
}

/// The polling thread's side.
pub(crate) struct Handles {
    upcalls: BTreeMap<SubgroupId, BoxedUpcall>,
    seats: Vec<Arc<Seat>>,
    status: Arc<Status>,
    on_view: ViewUpcall,
}

impl Handles {
    /// For subgroups whose ids are their places among the seats.
    pub(crate) const fn new(
        upcalls: BTreeMap<SubgroupId, BoxedUpcall>,
        seats: Vec<Arc<Seat>>,
        status: Arc<Status>,
        on_view: ViewUpcall,
    ) -> Self {
        Self { upcalls, seats, status, on_view }
    }

    fn seat(&self, id: SubgroupId) -> &Seat {
        &self.seats[id.0 as usize]
    }
}

impl Application for Handles {
    type Deliver = BoxedUpcall;

    fn outlet(&mut self, id: SubgroupId) -> Outlet<BoxedUpcall> {
        self.upcalls.remove(&id).map_or(Outlet::Pull, Outlet::Upcall)
    }

    fn install(&mut self, view: &View, _placements: &[Placement], _unplaced: &[Unplaced]) {
        self.status.set_view(view);
        (self.on_view)(view);
    }

    fn take_writer(&mut self, id: SubgroupId, writer: Writer) {
        *lock(&self.seat(id).writer) = Some(writer);
        self.status.room.notify();
    }

    fn take_pull(&mut self, id: SubgroupId, pull: Pull) {
        lock(&self.seat(id).pulls).push_back(pull);
        self.status.messages.notify();
    }

    fn leave_subgroup(&mut self, id: SubgroupId) {
        *lock(&self.seat(id).writer) = None;
    }
}

/// The layout that a configuration describes; subgroups have their places among its names as ids.
pub(crate) fn layout(subgroups: &BTreeMap<String, SubgroupConfig>) -> Box<dyn Layout + Send> {
    let subgroups: Vec<(String, SubgroupConfig)> =
        subgroups.iter().map(|(name, config)| (name.clone(), config.clone())).collect();
    Box::new(move |view: &View| {
        let (mut placements, mut unplaced) = (Vec::new(), Vec::new());
        for (id, (name, config)) in (0..).map(SubgroupId).zip(&subgroups) {
            match config.place(view) {
                Some((members, settings)) => placements.push(Placement { id, members, settings }),
                None => {
                    let reason = format!("none of the members or senders of `{name}` is there");
                    unplaced.push(Unplaced { id, reason });
                }
            }
        }
        (placements, unplaced)
    })
}
