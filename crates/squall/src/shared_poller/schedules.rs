//! Turns in explored schedules. What takes turns is what ships ([`SharedNode`]); the node, its peers and the time are models.
//!
//! Peers ring only if the node is marked as parked, and a ring stays until a thread silences it by [`PolledNode::end_wait`]. No sleep ends by
//! its patience, so whatever is lost is lost for good, and the schedule fails because no thread can continue.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::panic::Location;
use std::sync::{Arc, LockResult};
use std::time::{Duration, Instant};

use squall_fabric::explore::sync::{self, Mutex, MutexGuard};
use squall_fabric::explore::thread::{self, JoinHandle};
use squall_fabric::explore::{draw, explore, finds_failure, point};
use squall_transports::runner::IdleLimits;

use super::attention::GRACE;
use super::turns::SharedNode;
use crate::node::polled_node::{NodeBells, PolledNode};
use crate::status::GroupStatus;

/// What the node, its peers and the clock share.
struct World {
    state: Mutex<WorldState>,
    changed: sync::Condvar,
    origin: Instant,
}

#[derive(Default)]
struct WorldState {
    /// What peers and threads have stored for the node, and what polls have found: 0 <= taken <= posted.
    posted: u64,
    taken: u64,
    /// Peers ring if it is set, once.
    is_parked: bool,
    /// What peers and the waker ring, and what the standby thread is called by.
    doorbell: bool,
    call: bool,
    /// The standby thread sleeps as the node does.
    is_asleep: bool,
    watch: Watch,
    /// How much time has passed, and how many looks of the standby thread since the first message was posted that no poll has found.
    passed: Duration,
    looks: u64,
    has_node_ended: bool,
    is_over: bool,
}

/// A look of the standby thread, which lasts for [`GRACE`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Watch {
    #[default]
    No,
    Begun,
    Over,
}

impl World {
    fn state(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().expect("no panic")
    }

    fn change(&self, change: impl FnOnce(&mut WorldState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    fn wait(&self, is_over: impl Fn(&WorldState) -> bool) -> MutexGuard<'_, WorldState> {
        self.changed.wait_while(self.state(), |state| !is_over(state)).expect("no panic")
    }

    /// Stores something for the node, and rings if it is marked as parked.
    fn post(&self) {
        self.change(|state| state.posted += 1);
        self.change(|state| state.doorbell |= std::mem::take(&mut state.is_parked));
    }

    fn taken(&self) -> u64 {
        self.state().taken
    }

    fn poll(&self) -> usize {
        let mut state = self.state();
        let work = state.posted - state.taken;
        assert!(state.looks <= 2 + TURNS_MAX, "a message has waited for {} looks", state.looks);
        (state.taken, state.looks) = (state.posted, 0);
        drop(state);
        self.changed.notify_all();
        usize::try_from(work).expect("few")
    }

    /// Ends each look of the standby thread some time after it has begun.
    fn run_clock(&self) {
        while !self.wait(|state| state.watch == Watch::Begun || state.is_over).is_over {
            point();
            self.change(|state| {
                if state.watch == Watch::Begun {
                    state.watch = Watch::Over;
                    state.passed += GRACE;
                    state.looks += u64::from(state.posted > state.taken);
                }
            });
        }
    }
}

/// A node whose work is what is posted.
struct ModelNode {
    world: Arc<World>,
    is_marked: bool,
    /// Silences the doorbell although it is not marked, as TCP does.
    silences_always: bool,
}

impl PolledNode for ModelNode {
    type Bells = ModelBells;

    fn bells(&self) -> io::Result<ModelBells> {
        Ok(ModelBells(Arc::clone(&self.world)))
    }

    fn poll(&mut self) -> usize {
        self.world.poll()
    }

    fn flush(&mut self) {}

    fn begin_wait(&mut self) -> usize {
        self.is_marked = true;
        self.world.change(|state| state.is_parked = true);
        if has_fault(Fault::NoLastLook) { 0 } else { self.poll() }
    }

    fn end_wait(&mut self, polls: bool) -> usize {
        let work = if polls { self.poll() } else { 0 };
        if std::mem::take(&mut self.is_marked) || self.silences_always {
            self.world.change(|state| state.is_parked = false);
            self.world.change(|state| state.doorbell = false);
        }
        work
    }

    fn patience(&self) -> Option<Duration> {
        None
    }

    fn idle_limits(&self) -> IdleLimits {
        IdleLimits { spins: 0, yields: 1, adapts: false }
    }

    fn yielded(&mut self, _fruitless: u32) {}

    fn has_failed(&self) -> bool {
        false
    }
}

impl Drop for ModelNode {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.world.change(|state| state.has_node_ended = true);
        }
    }
}

struct ModelBells(Arc<World>);

impl NodeBells for ModelBells {
    /// Time passes between two turns, too, or not.
    fn now(&self) -> Instant {
        let mut state = self.0.state();
        state.passed += GRACE * u32::from(draw(2) == 0);
        self.0.origin + state.passed
    }

    fn sleep(&self, _patience: Option<Duration>) {
        drop(self.0.wait(|state| state.doorbell));
    }

    #[track_caller]
    fn wake(&self) {
        if is_heard(Location::caller()) {
            self.0.change(|state| state.doorbell = true);
        }
    }

    fn sleep_until_called(&self, _patience: Option<Duration>) {
        self.0.change(|state| state.is_asleep = true);
        let hears_calls = !has_fault(Fault::CallByDoorbell);
        let mut state = self.0.wait(|state| state.doorbell || hears_calls && state.call);
        (state.call, state.is_asleep) = (false, false);
    }

    fn await_call(&self, limit: Option<Duration>) -> bool {
        self.0.change(|state| state.watch = limit.map_or(Watch::No, |_| Watch::Begun));
        let mut state = self.0.wait(|state| state.call || state.watch == Watch::Over || state.is_over);
        state.watch = Watch::No;
        std::mem::take(&mut state.call)
    }

    #[track_caller]
    fn call(&self) {
        if is_heard(Location::caller()) {
            self.0.change(|state| {
                state.call = true;
                state.doorbell |= has_fault(Fault::CallByDoorbell);
            });
        }
    }
}

/// The condition variable of the threads that wait behind another one; no wait ends by its limit.
pub(super) struct Condvar(sync::Condvar);

impl Condvar {
    pub(super) fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(super) fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _limit: Duration,
        is_due: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        Ok((self.0.wait_while(guard, is_due).expect("no panic"), ()))
    }

    #[track_caller]
    pub(super) fn notify_all(&self) {
        if is_heard(Location::caller()) {
            self.0.notify_all();
        }
    }
}

/// Where a wake-up is: file and line.
type WakeSite = (&'static str, u32);

/// A defect of what surrounds the turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The standby thread that sleeps as the node does is called by the node's doorbell, which a thread that has the turn silences.
    CallByDoorbell,
    /// A thread does not look once more after it has marked the node as parked.
    NoLastLook,
}

// All threads of a schedule run on one thread of the system.
thread_local! {
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    /// The wake-up that is left out.
    static LEFT_OUT: Cell<Option<WakeSite>> = const { Cell::new(None) };
    /// The wake-ups that there are.
    static SITES: RefCell<BTreeSet<WakeSite>> = const { RefCell::new(BTreeSet::new()) };
}

fn has_fault(fault: Fault) -> bool {
    FAULT.get() == Some(fault)
}

fn is_heard(caller: &'static Location<'static>) -> bool {
    let site = (caller.file(), caller.line());
    SITES.with_borrow_mut(|sites| sites.insert(site));
    LEFT_OUT.get() != Some(site)
}

/// A node, its standby thread and its clock.
struct Model {
    world: Arc<World>,
    shared: Arc<SharedNode<ModelNode>>,
    status: Arc<GroupStatus>,
    standby: JoinHandle<()>,
    clock: Option<JoinHandle<()>>,
}

impl Model {
    /// `looks_end`: otherwise nothing may depend on a look of the standby thread.
    fn start(looks_end: bool) -> Self {
        let (state, changed) = (Mutex::new(WorldState::default()), sync::Condvar::new());
        let world = Arc::new(World { state, changed, origin: Instant::now() });
        let node = ModelNode { world: Arc::clone(&world), is_marked: false, silences_always: draw(2) == 0 };
        let status = Arc::new(GroupStatus::default());
        let shared = Arc::new(SharedNode::new(node, Arc::clone(&status)).expect("bells"));
        let standby = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.stand_by()
        });
        let clock = looks_end.then(|| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.run_clock())
        });
        Self { world, shared, status, standby, clock }
    }

    fn spawn(&self, act: impl FnOnce(&SharedNode<ModelNode>, &World) + Send + 'static) -> JoinHandle<()> {
        let (shared, world) = (Arc::clone(&self.shared), Arc::clone(&self.world));
        thread::spawn(move || act(&shared, &world))
    }

    /// Ends the group as its handle does; a look of the standby thread ends then in any case.
    fn end(self) {
        self.status.stop();
        self.world.change(|state| state.doorbell = true);
        if self.clock.is_none() {
            self.world.change(|state| state.is_over = true);
        }
        self.standby.join().expect("no panic");
        self.world.change(|state| state.is_over = true);
        self.clock.into_iter().for_each(|clock| clock.join().expect("no panic"));
    }
}

/// Waits until polls have taken `count` messages.
fn await_taken(shared: &SharedNode<ModelNode>, world: &World, count: u64) {
    shared.wait(LIMIT, true, || (world.taken() >= count).then_some(())).expect("there is time");
}

/// Turns of all kinds while messages come, of which some come after all turns: no message waits forever, nor for more looks than promised.
fn turns_of_all_kinds() {
    let model = Model::start(true);
    let waiting = model.spawn(|shared, world| (1..=2).for_each(|count| await_taken(shared, world, count)));
    let visiting = model.spawn(|shared, _| {
        (0..2).for_each(|_| match draw(4) {
            0 => shared.visit(),
            1 => shared.relieve(),
            2 => shared.pass_on(),
            _ => shared.attend(),
        });
    });
    let posting = model.spawn(|_, world| (0..MESSAGES).for_each(|_| world.post()));
    drop(model.world.wait(|state| state.taken == MESSAGES));
    [waiting, visiting, posting].into_iter().for_each(|thread| thread.join().expect("no panic"));
    model.end();
}

/// Turns that follow each other before the standby thread, which sleeps, has continued after its call; then a message comes.
fn turns_in_quick_succession() {
    let model = Model::start(true);
    drop(model.world.wait(|state| state.is_asleep));
    for count in 1..=2 {
        model.world.post();
        await_taken(&model.shared, &model.world, count);
    }
    model.world.post();
    drop(model.world.wait(|state| state.taken == 3));
    model.end();
}

/// While a thread waits, nothing that it waits for depends on a look: neither what polls move nor what [`SharedNode::notify`] is called for.
fn waits_without_looks() {
    let model = Model::start(false);
    let level = Arc::new(Mutex::new(false));
    let waits_for_level = model.spawn({
        let level = Arc::clone(&level);
        move |shared, _| {
            let is_there = || level.lock().expect("no panic").then_some(());
            shared.wait(LIMIT, false, is_there).expect("there is time");
        }
    });
    let one = model.spawn(|shared, world| await_taken(shared, world, 1));
    let two = model.spawn(|shared, world| await_taken(shared, world, 2));
    let (mut waiting, notice_at) = (vec![Some(one), Some(two)], draw(3));
    let mut waits_for_level = Some(waits_for_level);
    for step in 0..=2 {
        if step == notice_at {
            *level.lock().expect("no panic") = true;
            model.shared.notify();
            waits_for_level.take().into_iter().for_each(|thread| thread.join().expect("no panic"));
        }
        if let Some(thread) = waiting.get_mut(step).and_then(Option::take) {
            model.world.post();
            thread.join().expect("no panic");
        }
    }
    model.end();
}

/// What a thread sends after its turn is passed on without a look.
fn sends_without_looks() {
    let model = Model::start(false);
    let sending = model.spawn(|shared, world| {
        await_taken(shared, world, 1);
        world.post();
        if draw(2) == 0 {
            shared.pass_on();
        } else {
            shared.attend();
        }
    });
    model.world.post();
    drop(model.world.wait(|state| state.taken == 2));
    sending.join().expect("no panic");
    model.end();
}

/// The group ends while threads wait, which then see that.
fn ends_while_threads_wait() {
    let model = Model::start(true);
    let waiting = [true, false].map(|watches| {
        model.spawn(move |shared, world| {
            let has_ended = || world.state().has_node_ended.then_some(());
            shared.wait(LIMIT, watches, has_ended).expect("there is time");
        })
    });
    model.end();
    waiting.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn no_message_waits_forever() {
    explore(SCHEDULES, turns_of_all_kinds);
    explore(SCHEDULES, turns_in_quick_succession);
}

#[test]
fn a_thread_that_waits_needs_no_look() {
    explore(SCHEDULES, waits_without_looks);
}

#[test]
fn what_is_sent_needs_no_look() {
    explore(SCHEDULES, sends_without_looks);
}

#[test]
fn the_end_is_seen_by_threads_that_wait() {
    explore(SCHEDULES, ends_while_threads_wait);
}

/// Each wake-up of the turns, if it is left out, leaves something lying.
#[test]
fn no_wake_up_is_superfluous() {
    SCENARIOS.iter().for_each(|scenario| explore(500, scenario));
    let sites = SITES.with_borrow(Clone::clone);
    assert!(sites.len() >= 6, "{sites:?}");
    for site in sites {
        LEFT_OUT.set(Some(site));
        let is_found = SCENARIOS.iter().any(|scenario| finds_failure(FEW_SCHEDULES, scenario));
        assert!(is_found, "{site:?} is not needed");
    }
}

#[test]
fn faults_around_the_turns_are_found() {
    for fault in [Fault::CallByDoorbell, Fault::NoLastLook] {
        FAULT.set(Some(fault));
        let is_found = SCENARIOS.iter().any(|scenario| finds_failure(FEW_SCHEDULES, scenario));
        assert!(is_found, "{fault:?}");
    }
}

const SCENARIOS: [fn(); 5] = [
    turns_of_all_kinds,
    turns_in_quick_succession,
    waits_without_looks,
    sends_without_looks,
    ends_while_threads_wait,
];
const SCHEDULES: usize = 2000;
/// As many as find each defect.
const FEW_SCHEDULES: usize = 400;
const MESSAGES: u64 = 3;
/// The turns that the threads of a schedule take, each of which may begin a look anew.
const TURNS_MAX: u64 = 4;
/// Longer than a schedule lasts.
const LIMIT: Duration = Duration::from_secs(1000);
