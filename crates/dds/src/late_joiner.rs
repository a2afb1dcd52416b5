//! Late joiners of kept topics (Spindle §4.6, "volatile storage"), simulated: members apply one order of updates at their own pace, processes join with the state of any of them, at any
//! moment, readers are created anywhere and take what they have space for, members die, and all of them restart. What runs here is what
//! ships: the history ([`crate::registry`]), the way of its samples to readers ([`crate::store`]), and the readers. That all members apply
//! the same updates, and that a joiner gets a state of one of them, is what replicated objects promise (`squall simulate`, scenarios
//! `replica` and `join`).

use std::cell::RefCell;

use proptest::prelude::*;
use squall::object::Replicated as _;

use crate::cache::{ChangeKind, Selection};
use crate::qos::{DurabilityService, Qos, ResourceLimits};
use crate::reader_core::ReaderCore;
use crate::registry::TopicRegistry;
use crate::sample::{EndpointId, StateMask};
use crate::store::pull_reader;
use crate::wire::{ChangeHeader, EndpointAnnouncement, OWN_SUBGROUP, TopicRole, encode_service};

const WRITER: EndpointId = EndpointId { node: 0, number: 0 };

#[derive(Clone, Debug)]
enum Step {
    Write,
    /// A member applies some updates.
    Apply(usize, usize),
    /// A process joins with the state of a member.
    Join(usize),
    /// A reader comes at a member: whether it wants the history, and its space.
    Read(usize, bool, usize),
    /// A reader gets samples, and takes some.
    Take(usize, usize),
    /// A member dies with its readers, unless it is the last one.
    Kill(usize),
    /// All die. Each member makes its state again from its log.
    RestartAll,
}

fn step() -> impl Strategy<Value = Step> {
    let place = 0usize..64;
    prop_oneof![
        8 => Just(Step::Write),
        8 => (place.clone(), 1usize..9).prop_map(|(member, count)| Step::Apply(member, count)),
        2 => place.clone().prop_map(Step::Join),
        2 => (place.clone(), any::<bool>(), 1usize..6).prop_map(|(member, wants, space)| Step::Read(member, wants, space)),
        8 => (place.clone(), 0usize..6).prop_map(|(reader, count)| Step::Take(reader, count)),
        1 => place.prop_map(Step::Kill),
        1 => Just(Step::RestartAll),
    ]
}

#[derive(Default)]
struct SimulatedMember {
    registry: TopicRegistry,
    applied: usize,
}

struct SimulatedReader {
    /// The name of its member.
    member: usize,
    core: ReaderCore,
    wants_history: bool,
    /// How many samples had been written when it came.
    came_at: u32,
    taken: Vec<u32>,
}

#[derive(Default)]
struct Domain {
    /// The updates of the object, in their order.
    updates: Vec<Vec<u8>>,
    written: u32,
    /// By name; names are not used again.
    members: Vec<(usize, SimulatedMember)>,
    readers: Vec<SimulatedReader>,
    names: usize,
}

impl Domain {
    fn new() -> Self {
        let mut domain = Self::default();
        domain.updates.push(encode_service(DurabilityService::EVERYTHING));
        domain.announce(WRITER, TopicRole::Writer, Qos::KEPT);
        (0..3).for_each(|_| domain.add(SimulatedMember::default()));
        domain
    }

    fn add(&mut self, member: SimulatedMember) {
        self.members.push((self.names, member));
        self.names += 1;
    }

    fn announce(&mut self, id: EndpointId, role: TopicRole, qos: Qos) -> EndpointAnnouncement {
        let announcement = EndpointAnnouncement { id, role, type_name: "T".into(), qos };
        self.updates.push(announcement.encode(OWN_SUBGROUP));
        announcement
    }

    fn write(&mut self) {
        let header = ChangeHeader {
            kind: ChangeKind::Data,
            topic: OWN_SUBGROUP,
            writer: WRITER,
            source_time: 0,
            key: &[u8::try_from(self.written % 3).expect("it is small")],
        };
        let mut bytes = vec![0; header.length_with(4)];
        header.write(&mut bytes).copy_from_slice(&self.written.to_le_bytes());
        self.updates.push(bytes);
        self.written += 1;
    }

    fn apply(&mut self, member: usize, count: usize) {
        let (_, member) = &mut self.members[member];
        for update in self.updates.iter().skip(member.applied).take(count) {
            member.registry.apply(update.clone().into());
            member.applied += 1;
        }
    }

    fn read(&mut self, member: usize, wants_history: bool, samples_max: usize) {
        let space =
            ResourceLimits { samples_max, samples_per_instance_max: samples_max, ..ResourceLimits::DEFAULT };
        let qos = Qos { resource_limits: space, ..if wants_history { Qos::KEPT } else { Qos::ATOMIC } };
        let id = EndpointId { node: 1 + u32::try_from(self.updates.len()).expect("few"), number: 0 };
        let core = ReaderCore::new(&self.announce(id, TopicRole::Reader, qos), true, None);
        let (member, came_at) = (self.members[member].0, self.written);
        self.readers.push(SimulatedReader { member, core, wants_history, came_at, taken: Vec::new() });
    }

    /// Returns whether anything has happened.
    fn take(&mut self, reader: usize, samples_max: usize) -> bool {
        let reader = &mut self.readers[reader];
        let member = self.members.iter().find(|(name, _)| *name == reader.member);
        let (_, member) = member.expect("readers end with their members");
        let before = (reader.core.next_announcement, reader.core.next_kept, reader.taken.len());
        if let Some(history) = member.registry.history(OWN_SUBGROUP) {
            pull_reader(&mut reader.core, history, 0);
        }
        let selection =
            Selection { samples_max, states: StateMask::ANY, instance: None, takes: true, before: None };
        for sample in reader.core.cache.select(selection, 0) {
            let bytes = sample.data.expect("no instance ends");
            reader.taken.push(u32::from_le_bytes(bytes[..].try_into().expect("it is a number")));
        }
        before != (reader.core.next_announcement, reader.core.next_kept, reader.taken.len())
    }

    fn kill(&mut self, member: usize) {
        if self.members.len() > 1 {
            let (name, _) = self.members.remove(member);
            self.readers.retain(|reader| reader.member != name);
        }
    }

    fn restart_all(&mut self) {
        let members = std::mem::take(&mut self.members);
        self.readers.clear();
        for (_, member) in members {
            self.add(SimulatedMember::default());
            self.apply(self.members.len() - 1, member.applied);
        }
    }

    fn perform(&mut self, step: &Step) {
        let (members, readers) = (self.members.len(), self.readers.len());
        match *step {
            Step::Write => self.write(),
            Step::Apply(member, count) => self.apply(member % members, count),
            Step::Join(from) => {
                let (_, from) = &self.members[from % members];
                let mut state = Vec::new();
                from.registry.snapshot().write(&mut state).expect("memory takes it");
                let registry = TopicRegistry::restore(&mut &*state).expect("it is a state");
                let applied = from.applied;
                self.add(SimulatedMember { registry, applied });
            }
            Step::Read(member, wants_history, space) => self.read(member % members, wants_history, space),
            Step::Take(reader, count) if readers > 0 => {
                self.take(reader % readers, count);
            }
            Step::Take(..) => {}
            Step::Kill(member) => self.kill(member % members),
            Step::RestartAll => self.restart_all(),
        }
    }

    /// Lets everything come to everyone that is left; returns how many readers there are.
    fn finish(&mut self) -> usize {
        (0..self.members.len()).for_each(|member| self.apply(member, usize::MAX));
        for reader in 0..self.readers.len() {
            while self.take(reader, usize::MAX) {}
        }
        self.readers.len()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for reader in &self.readers {
            let first = if reader.wants_history { 0 } else { reader.came_at };
            prop_assert_eq!(&reader.taken, &(first..self.written).collect::<Vec<_>>());
            prop_assert!(reader.core.has_history);
            prop_assert_eq!(reader.core.lost.total_count, 0);
        }
        Ok(())
    }
}

/// Each reader gets each sample once and in order: all that were ever written if it wants the history, else those after it came.
#[test]
fn each_reader_gets_each_sample_once() {
    let readers = RefCell::new((0, 0));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) };
    proptest!(config, |(steps in proptest::collection::vec(step(), 0..120))| {
        let mut domain = Domain::new();
        steps.iter().for_each(|step| domain.perform(step));
        let left = domain.finish();
        let late = domain.readers.iter().filter(|reader| reader.came_at > 0).count();
        let (all, came_late) = &mut *readers.borrow_mut();
        (*all, *came_late) = (*all + left, *came_late + late);
        domain.check()?;
    });
    let (all, late) = readers.into_inner();
    assert!(all > 1000 && late > 500, "of {all} readers {late} came late: too few to see anything");
}
