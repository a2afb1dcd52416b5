//! Readers and writers of kept topics that come and go (Spindle §4.6), simulated: what a history forgets of them is missed by no reader, whatever
//! the pace at which it reads. What runs here is what ships, beside a model that forgets nothing.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use squall::object::Replicated as _;

use crate::cache::{ChangeKind, Selection};
use crate::kept::{ANNOUNCEMENTS_MAX, KeptReply};
use crate::presence::GoneProcess;
use crate::qos::{DurabilityService, HistoryKind, Qos};
use crate::reader_core::ReaderCore;
use crate::registry::{StoreQuery, StoreReply, TopicRegistry};
use crate::sample::{EndpointId, InstanceState, Position, StateMask};
use crate::store::{pull_part, pull_reader};
use crate::wire::{ChangeHeader, EndpointAnnouncement, OWN_SUBGROUP, TopicRole, encode_gone, encode_service};

#[derive(Clone, Debug)]
enum Step {
    /// A writer comes.
    Come,
    /// A writer goes.
    Go(usize),
    /// A writer's process dies.
    Die(usize),
    /// A writer writes, to one of three instances.
    Write(usize, u8),
    /// A reader comes, of a participant or of a client, and reads the history from its beginning.
    Read(bool),
    /// A reader reads what has come, and may take this many samples.
    Pull(usize, usize),
    /// A reader goes.
    Leave(usize),
    /// The member gets the state of another one.
    Transfer,
}

fn step() -> impl Strategy<Value = Step> {
    let place = 0usize..64;
    prop_oneof![
        3 => Just(Step::Come),
        2 => place.clone().prop_map(Step::Go),
        2 => place.clone().prop_map(Step::Die),
        6 => (place.clone(), 0u8..3).prop_map(|(writer, key)| Step::Write(writer, key)),
        2 => any::<bool>().prop_map(Step::Read),
        4 => (place.clone(), 0usize..9).prop_map(|(reader, count)| Step::Pull(reader, count)),
        1 => place.prop_map(Step::Leave),
        1 => Just(Step::Transfer),
    ]
}

struct SimulatedReader {
    core: ReaderCore,
    announcement: EndpointAnnouncement,
    /// Of a client: the number of the next sample.
    next: Option<u64>,
    /// The samples that it has taken.
    taken: Vec<u32>,
}

#[derive(Default)]
struct Domain {
    registry: TopicRegistry,
    writers: Vec<EndpointAnnouncement>,
    readers: Vec<SimulatedReader>,
    /// What a member that forgets nothing has: for each instance, the last samples, each with its writer.
    kept: BTreeMap<u8, Vec<(u32, EndpointId)>>,
    endpoints: u32,
    written: u32,
}

const DEPTH: usize = 2;

impl Domain {
    fn new() -> Self {
        let mut domain = Self::default();
        let service = DurabilityService { history: HistoryKind::KeepLast(DEPTH), samples_max: 100 };
        domain.apply(encode_service(service));
        domain
    }

    fn apply(&mut self, bytes: Vec<u8>) -> KeptReply {
        let StoreReply::Update(reply) = self.registry.apply(bytes.into()) else { panic!("it is an update") };
        reply
    }

    fn announce(&mut self, role: TopicRole) -> EndpointAnnouncement {
        let id = EndpointId { node: self.endpoints, number: 0 };
        self.endpoints += 1;
        let announcement = EndpointAnnouncement { id, role, type_name: "T".into(), qos: Qos::KEPT };
        let announced = self.apply(announcement.encode(OWN_SUBGROUP));
        assert!(matches!(announced, KeptReply::Announced(_)), "{announced:?}");
        announcement
    }

    fn end(&mut self, announcement: &EndpointAnnouncement) {
        let ended = self.apply(announcement.end().encode(OWN_SUBGROUP));
        assert!(matches!(ended, KeptReply::Announced(_)), "{ended:?}");
    }

    fn write(&mut self, writer: EndpointId, key: u8) {
        let (kind, topic) = (ChangeKind::Data, OWN_SUBGROUP);
        let header = ChangeHeader { kind, topic, writer, source_time: 0, key: &[key] };
        let mut bytes = vec![0; header.length_with(4)];
        header.write(&mut bytes).copy_from_slice(&self.written.to_le_bytes());
        assert_eq!(self.apply(bytes), KeptReply::Kept);
        let kept = self.kept.entry(key).or_default();
        kept.push((self.written, writer));
        if kept.len() > DEPTH {
            kept.remove(0);
        }
        self.written += 1;
    }

    /// Returns whether the reader has read all that there is.
    fn pull(&mut self, reader: usize, samples_max: usize) -> bool {
        let history = self.registry.history(OWN_SUBGROUP).expect("it keeps");
        let SimulatedReader { core, taken, next, .. } = &mut self.readers[reader];
        let has_all = if let Some(next) = next {
            let (announcement, first, forgotten) = (core.next_announcement, *next, core.forgotten);
            let query = StoreQuery::Part { topic: OWN_SUBGROUP, announcement, first, forgotten };
            let StoreReply::Part(Some(part)) = self.registry.query(query) else { panic!("it keeps") };
            *next = pull_part(core, *part, first, 0);
            *next == history.next() && core.forgotten == history.forgotten()
        } else {
            let has_all = pull_reader(core, history, 0);
            if has_all {
                let position = Position::default();
                core.retain_announced(history, |id| history.is_announced(id), position, 0);
            }
            has_all
        };
        let selection =
            Selection { samples_max, states: StateMask::ANY, instance: None, takes: true, before: None };
        let numbers = core.cache.select(selection, 0).into_iter().filter_map(|sample| sample.data);
        taken.extend(numbers.map(|data| u32::from_le_bytes(data[..].try_into().expect("it is a number"))));
        has_all
    }

    fn perform(&mut self, step: &Step) {
        let (writers, readers) = (self.writers.len(), self.readers.len());
        match *step {
            Step::Come => {
                let announcement = self.announce(TopicRole::Writer);
                self.writers.push(announcement);
            }
            Step::Go(writer) if writers > 0 => {
                let announcement = self.writers.swap_remove(writer % writers);
                self.end(&announcement);
            }
            Step::Die(writer) if writers > 0 => {
                let EndpointId { node, .. } = self.writers.swap_remove(writer % writers).id;
                let before = self.registry.order();
                assert_eq!(self.apply(encode_gone(GoneProcess { node, before })), KeptReply::Kept);
            }
            Step::Write(writer, key) if writers > 0 => self.write(self.writers[writer % writers].id, key),
            Step::Read(is_client) => {
                let announcement = self.announce(TopicRole::Reader);
                let core = ReaderCore::new(&announcement, true, None);
                self.readers.push(SimulatedReader {
                    core,
                    announcement,
                    next: is_client.then_some(0),
                    taken: Vec::new(),
                });
            }
            Step::Pull(reader, count) if readers > 0 => _ = self.pull(reader % readers, count),
            Step::Leave(reader) if readers > 0 => {
                let reader = self.readers.swap_remove(reader % readers);
                self.end(&reader.announcement);
            }
            Step::Transfer => {
                let mut state = Vec::new();
                self.registry.snapshot().write(&mut state).expect("memory takes it");
                self.registry = TopicRegistry::restore(&mut &*state).expect("it is a state");
            }
            _ => {}
        }
    }

    /// Checks what the history has: announcements of the endpoints that are there, and of the writers of what is kept.
    fn check_history(&self) -> Result<(), TestCaseError> {
        let history = self.registry.history(OWN_SUBGROUP).expect("it keeps");
        let open = self.writers.iter().chain(self.readers.iter().map(|reader| &reader.announcement));
        let open: BTreeSet<_> = open.map(|announcement| announcement.id).collect();
        let of_kept = self.kept.values().flatten().map(|(_, writer)| *writer);
        let needed: BTreeSet<_> = open.iter().copied().chain(of_kept).collect();
        let announced = history.announcements(0).map(|(_, each)| each.endpoint.id);
        prop_assert_eq!(announced.collect::<BTreeSet<_>>(), needed);
        prop_assert_eq!(history.endpoints().map(|(id, _)| id).collect::<BTreeSet<_>>(), open);
        Ok(())
    }

    /// Lets each reader read everything, and checks what it has.
    fn finish(mut self) -> Result<(), TestCaseError> {
        self.perform(&Step::Read(true));
        self.perform(&Step::Read(false));
        let kept: BTreeSet<u32> = self.kept.values().flatten().map(|(number, _)| *number).collect();
        for reader in 0..self.readers.len() {
            while !self.pull(reader, usize::MAX) {}
            self.pull(reader, usize::MAX);
            let SimulatedReader { core, taken, .. } = &self.readers[reader];
            prop_assert!(taken.is_sorted_by(|a, b| a < b), "once and in order: {taken:?}");
            prop_assert!(
                kept.iter().all(|number| taken.contains(number)),
                "{kept:?} are kept, and {taken:?} taken"
            );
            let present: BTreeSet<_> = core.peers.present().into_iter().map(|peer| peer.id).collect();
            prop_assert_eq!(present, self.writers.iter().map(|writer| writer.id).collect::<BTreeSet<_>>());
            let history = self.registry.history(OWN_SUBGROUP).expect("it keeps");
            let is_known = |(id, _): &(EndpointId, bool)| history.is_announced(*id);
            prop_assert!(core.peers.departed().iter().all(is_known), "nothing is remembered in vain");
        }
        for late in &self.readers[self.readers.len() - 2..] {
            prop_assert_eq!(late.taken.iter().copied().collect::<BTreeSet<_>>(), kept.clone());
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Each reader gets what is kept, once and in order, and knows the writers that are there; the history has no more announcements than it needs.
    #[test]
    fn what_is_forgotten_is_missed_by_no_reader(steps in proptest::collection::vec(step(), 0..100)) {
        let mut domain = Domain::new();
        for step in &steps {
            domain.perform(step);
            domain.check_history()?;
        }
        domain.finish()?;
    }
}

/// More writers than there may be announcements, one after the other; each leaves what it has written, until the next ones have replaced it.
#[test]
fn writers_come_and_go_for_as_long_as_the_topic_is_there() {
    let mut domain = Domain::new();
    domain.perform(&Step::Read(false));
    for number in 0..2 * ANNOUNCEMENTS_MAX {
        let writer = domain.announce(TopicRole::Writer);
        domain.write(writer.id, u8::try_from(number % 3).expect("it is small"));
        domain.end(&writer);
        if number % 1000 == 0 {
            domain.pull(0, usize::MAX);
        }
    }
    let history = domain.registry.history(OWN_SUBGROUP).expect("it keeps");
    assert_eq!(history.announcements(0).count(), 1 + 2 * 3 * DEPTH);
    domain.check_history().expect("it has what it needs");
    domain.finish().expect("its reader has what there is");
}

/// A reader between two announcements of a writer, which are forgotten meanwhile, knows that the writer has gone; its instances end as they would have.
#[test]
fn a_reader_that_was_slow_knows_that_a_writer_has_gone() {
    for is_client in [false, true] {
        check_slow_reader(is_client);
    }
}

fn check_slow_reader(is_client: bool) {
    let mut domain = Domain::new();
    domain.perform(&Step::Read(is_client));
    let writer = domain.announce(TopicRole::Writer);
    domain.write(writer.id, 0);
    while !domain.pull(0, 0) {}
    let other = domain.announce(TopicRole::Writer);
    for _ in 0..DEPTH {
        domain.write(other.id, 0);
    }
    domain.write(writer.id, 1);
    for _ in 0..DEPTH {
        domain.write(other.id, 1);
    }
    domain.end(&writer);
    domain.end(&other);
    assert_eq!(domain.registry.history(OWN_SUBGROUP).expect("it keeps").forgotten(), 1);
    while !domain.pull(0, 0) {}
    let reader = &mut domain.readers[0].core;
    assert_eq!((reader.peers.matched.current_count, reader.peers.matched.total_count), (0, 2));
    let selection =
        Selection { samples_max: 9, states: StateMask::ANY, instance: None, takes: true, before: None };
    let states: Vec<_> =
        reader.cache.select(selection, 0).iter().map(|sample| sample.info.instance_state).collect();
    assert!(
        !states.is_empty() && states.iter().all(|state| *state == InstanceState::NotAliveDisposed),
        "{states:?}"
    );
}
