//! Processes that die, are cut off and come back (Spindle §4.6), simulated: what they have announced in a history ends, and nothing of those
//! that live does, whenever the updates arrive by which others say so. What runs here is what ships ([`crate::presence`],
//! [`crate::registry`]), beside a model that knows who lives.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use squall::object::Replicated as _;

use crate::cache::{ChangeKind, Selection};
use crate::kept::KeptReply;
use crate::presence::{GoneProcess, LEASE_LOOKS, PresenceWatch};
use crate::qos::{DurabilityService, HistoryKind, Qos, ResourceLimits};
use crate::reader_core::ReaderCore;
use crate::registry::{StoreQuery, StoreReply, TopicRegistry};
use crate::sample::{EndpointId, InstanceState, StateMask};
use crate::store::{pull_part, pull_reader};
use crate::wire::{
    ChangeHeader, EndpointAnnouncement, OWN_SUBGROUP, TopicRole, encode_client, encode_gone, encode_renewal,
    encode_service,
};

#[derive(Clone, Debug)]
enum Step {
    /// A member joins, or a client connects.
    Come(bool),
    /// A process dies.
    Die(usize),
    /// A process opens an endpoint.
    Open(usize),
    /// A process closes an endpoint.
    Close(usize),
    /// A process writes.
    Write(usize),
    /// A client is cut off, or no longer.
    Cut(usize),
    /// This many looks pass. What they propose is applied at once, or later.
    Time(u32, bool),
    /// An update that is under way arrives.
    Arrive(usize),
    /// All members die. Those that these bits name start again, under the numbers that they had.
    Restart(u8),
    /// The members get the state of another one.
    Transfer,
}

fn step() -> impl Strategy<Value = Step> {
    let place = 0usize..64;
    prop_oneof![
        3 => any::<bool>().prop_map(Step::Come),
        2 => place.clone().prop_map(Step::Die),
        6 => place.clone().prop_map(Step::Open),
        2 => place.clone().prop_map(Step::Close),
        3 => place.clone().prop_map(Step::Write),
        2 => place.clone().prop_map(Step::Cut),
        4 => (1..2 * LEASE_LOOKS, any::<bool>()).prop_map(|(looks, arrives)| Step::Time(looks, arrives)),
        3 => place.prop_map(Step::Arrive),
        1 => any::<u8>().prop_map(Step::Restart),
        1 => Just(Step::Transfer),
    ]
}

#[derive(Clone, Debug, Default)]
struct SimulatedProcess {
    is_client: bool,
    /// The endpoints that it has open, by number.
    open: BTreeSet<u16>,
    endpoints: u16,
    is_cut: bool,
    /// For how many looks it has been cut off.
    silent: u32,
}

#[derive(Default)]
struct Domain {
    registry: TopicRegistry,
    /// The members of the view, and the clients that live.
    living: BTreeMap<u32, SimulatedProcess>,
    /// The members that were there.
    dead: BTreeSet<u32>,
    members: u32,
    watch: PresenceWatch,
    /// Updates that were proposed and have not arrived; copies of them may have.
    under_way: Vec<GoneProcess>,
    looks: u32,
}

impl Domain {
    fn new() -> Self {
        let mut domain = Self::default();
        let service = DurabilityService { history: HistoryKind::KeepLast(2), samples_max: 100 };
        domain.apply(encode_service(service));
        domain.come(false);
        domain
    }

    fn apply(&mut self, bytes: Vec<u8>) -> KeptReply {
        let StoreReply::Update(reply) = self.registry.apply(bytes.into()) else { panic!("it is an update") };
        reply
    }

    fn come(&mut self, is_client: bool) {
        let node = if is_client {
            let KeptReply::Client(node) = self.apply(encode_client(0)) else { panic!("there are few") };
            node
        } else {
            self.members += 1;
            self.members
        };
        self.living.insert(node, SimulatedProcess { is_client, ..SimulatedProcess::default() });
    }

    /// Returns the process at this place.
    fn chosen(&self, place: usize) -> Option<u32> {
        self.living.keys().nth(place % self.living.len().max(1)).copied()
    }

    fn view(&self) -> BTreeSet<u32> {
        self.living.iter().filter(|(_, process)| !process.is_client).map(|(node, _)| *node).collect()
    }

    fn announcement(id: EndpointId, role: TopicRole) -> EndpointAnnouncement {
        EndpointAnnouncement { id, role, type_name: "T".into(), qos: Qos::KEPT }
    }

    /// Applies what a process says under its number, which is returned. A client whose lease has ended takes another number, and says it again under
    /// that.
    fn say(&mut self, node: u32, bytes: impl Fn(u32) -> Vec<u8>) -> (u32, KeptReply) {
        match self.apply(bytes(node)) {
            KeptReply::Expired => {
                let node = self.come_back(node);
                (node, self.apply(bytes(node)))
            }
            reply => (node, reply),
        }
    }

    fn come_back(&mut self, node: u32) -> u32 {
        let process = self.living.remove(&node).expect("it lives");
        assert!(process.silent >= LEASE_LOOKS, "{node} was cut off for {} looks", process.silent);
        let KeptReply::Client(node) = self.apply(encode_client(0)) else { panic!("there are few") };
        for number in &process.open {
            let announcement = Self::announcement(EndpointId { node, number: *number }, TopicRole::Writer);
            assert!(matches!(self.apply(announcement.encode(OWN_SUBGROUP)), KeptReply::Announced(_)));
        }
        self.living.insert(node, SimulatedProcess { silent: 0, ..process });
        node
    }

    fn open(&mut self, node: u32) {
        let process = self.living.get_mut(&node).expect("it lives");
        let number = process.endpoints;
        process.endpoints += 1;
        let of =
            |node| Self::announcement(EndpointId { node, number }, TopicRole::Writer).encode(OWN_SUBGROUP);
        let (node, reply) = self.say(node, of);
        assert!(matches!(reply, KeptReply::Announced(_)), "{reply:?}");
        let process = self.living.get_mut(&node).expect("it lives");
        process.open.insert(number);
        process.silent = 0;
    }

    fn close(&mut self, node: u32) {
        let process = self.living.get_mut(&node).expect("it lives");
        if let Some(number) = process.open.pop_first() {
            let id = EndpointId { node, number };
            self.apply(Self::announcement(id, TopicRole::Writer).end().encode(OWN_SUBGROUP));
        }
    }

    fn write(&mut self, node: u32) {
        let Some(number) = self.living[&node].open.first().copied() else { return };
        let of = |node| {
            let (kind, writer) = (ChangeKind::Data, EndpointId { node, number });
            let header = ChangeHeader { kind, topic: OWN_SUBGROUP, writer, source_time: 0, key: &[] };
            let mut bytes = vec![0; header.length_with(0)];
            header.write(&mut bytes);
            bytes
        };
        assert_eq!(self.say(node, of).1, KeptReply::Kept);
    }

    /// A look of the first member, before which clients renew their leases from time to time.
    fn look(&mut self, arrives: bool) {
        self.looks += 1;
        for (node, process) in self.living.clone() {
            let is_due = process.is_client && !process.is_cut && self.looks.is_multiple_of(LEASE_LOOKS / 6);
            if is_due && self.apply(encode_renewal(node)) == KeptReply::Expired {
                self.come_back(node);
            } else if let Some(process) = self.living.get_mut(&node) {
                process.silent = if is_due { 0 } else { process.silent + 1 };
            }
        }
        let presence = self.registry.presence();
        let gone = [presence.absent(&self.view()), self.watch.look(&presence.leases)].concat();
        if arrives {
            gone.iter().for_each(|gone| assert_eq!(self.apply(encode_gone(*gone)), KeptReply::Kept));
        }
        self.under_way.extend(gone.iter().take(2));
    }

    fn restart(&mut self, names: u8) {
        let old: Vec<u32> = self.view().into_iter().chain(self.dead.iter().copied()).collect();
        let again: Vec<u32> =
            (0..8).zip(&old).filter(|(bit, _)| names >> bit & 1 == 1).map(|(_, node)| *node).collect();
        let again = if again.is_empty() { vec![old[0]] } else { again };
        self.living.retain(|_, process| process.is_client);
        self.dead = old.into_iter().filter(|node| !again.contains(node)).collect();
        self.watch = PresenceWatch::default();
        for node in again {
            // As a participant does before it has endpoints.
            let order = self.registry.presence().order;
            self.apply(encode_gone(GoneProcess { node, before: order }));
            // Numbers of which nothing is left are used again.
            let endpoints = self.registry.numbers_of(node).last().map_or(0, |last| last + 1);
            self.living.insert(node, SimulatedProcess { endpoints, ..SimulatedProcess::default() });
        }
    }

    fn perform(&mut self, step: &Step) {
        match *step {
            Step::Come(is_client) => self.come(is_client),
            Step::Die(place) => {
                let node = self.chosen(place).expect("a member lives");
                if self.living[&node].is_client {
                    self.living.remove(&node);
                } else if self.view().len() > 1 {
                    self.living.remove(&node);
                    self.dead.insert(node);
                }
            }
            Step::Open(place) => self.chosen(place).into_iter().for_each(|node| self.open(node)),
            Step::Close(place) => self.chosen(place).into_iter().for_each(|node| self.close(node)),
            Step::Write(place) => self.chosen(place).into_iter().for_each(|node| self.write(node)),
            Step::Cut(place) => {
                let process = self.chosen(place).and_then(|node| self.living.get_mut(&node));
                process.into_iter().for_each(|process| process.is_cut = !process.is_cut);
            }
            Step::Time(looks, arrives) => (0..looks).for_each(|_| self.look(arrives)),
            Step::Arrive(place) if !self.under_way.is_empty() => {
                let gone = self.under_way.swap_remove(place % self.under_way.len());
                self.apply(encode_gone(gone));
            }
            Step::Arrive(_) => {}
            Step::Restart(names) => self.restart(names),
            Step::Transfer => {
                let mut state = Vec::new();
                self.registry.snapshot().write(&mut state).expect("memory takes it");
                self.registry = TopicRegistry::restore(&mut &*state).expect("it is a state");
            }
        }
    }

    fn open_of(&self, is_counted: impl Fn(&SimulatedProcess) -> bool) -> BTreeSet<EndpointId> {
        let living = self.living.iter().filter(|(_, process)| is_counted(process));
        let ids = living.flat_map(|(node, process)| {
            process.open.iter().map(|number| EndpointId { node: *node, number: *number })
        });
        ids.collect()
    }

    fn announced(&self) -> BTreeSet<EndpointId> {
        let history = self.registry.history(OWN_SUBGROUP).expect("it keeps");
        history.endpoints().map(|(id, _)| id).collect()
    }

    /// No endpoint of a process that is heard ends.
    fn check_living(&self) -> Result<(), TestCaseError> {
        let heard = self.open_of(|process| !process.is_client || process.silent < LEASE_LOOKS);
        let ended: Vec<_> = heard.difference(&self.announced()).copied().collect();
        prop_assert!(ended.is_empty(), "{ended:?} have ended");
        Ok(())
    }

    /// When a lease's time has passed, what is announced is what the living have announced, and the writers of what is kept.
    fn finish(mut self) -> Result<(), TestCaseError> {
        self.living.values_mut().for_each(|process| process.is_cut = false);
        for gone in std::mem::take(&mut self.under_way) {
            self.apply(encode_gone(gone));
        }
        (0..=LEASE_LOOKS + 1).for_each(|_| self.look(true));
        self.check_living()?;
        let open = self.open_of(|_| true);
        prop_assert_eq!(self.announced(), open.clone());
        let clients = self.living.iter().filter(|(_, process)| process.is_client).map(|(node, _)| *node);
        let presence = self.registry.presence();
        prop_assert_eq!(presence.leases.keys().copied().collect::<BTreeSet<_>>(), clients.collect());
        // Joiners get the same.
        self.perform(&Step::Transfer);
        prop_assert_eq!(self.announced(), open.clone());
        let history = self.registry.history(OWN_SUBGROUP).expect("it keeps");
        prop_assert!(history.announcements(0).count() <= open.len() + 2 * history.samples(0).count());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// No endpoint that lives is ended for good, and each one that has died is.
    #[test]
    fn what_has_died_ends_and_nothing_else(steps in proptest::collection::vec(step(), 0..60)) {
        let mut domain = Domain::new();
        for step in &steps {
            domain.perform(step);
            domain.check_living()?;
        }
        domain.finish()?;
    }
}

/// A member that starts again under the number that it had keeps its endpoints, although it is said late that those of its earlier run have gone.
#[test]
fn a_late_update_ends_nothing_of_a_later_run() {
    let mut domain = Domain::new();
    domain.come(false);
    domain.open(2);
    let late = GoneProcess { node: 2, before: domain.registry.presence().order };
    domain.restart(0b11);
    domain.open(2);
    domain.apply(encode_gone(late));
    assert_eq!(domain.announced(), BTreeSet::from([EndpointId { node: 2, number: 0 }]));
}

/// More clients than there may be endpoints come, write and die; of each, what is kept is what others have not replaced.
#[test]
fn clients_may_die_for_as_long_as_the_topic_is_there() {
    const AT_A_TIME: u32 = 100;
    let mut domain = Domain::new();
    domain.open(1);
    for _ in 0..2 * crate::kept::ANNOUNCEMENTS_MAX as u32 / AT_A_TIME {
        for _ in 0..AT_A_TIME {
            domain.come(true);
            let client = domain.chosen(1).expect("it came");
            domain.open(client);
            domain.write(client);
            domain.living.remove(&client);
        }
        (0..=LEASE_LOOKS).for_each(|_| domain.look(true));
        domain.under_way.clear();
    }
    let history = domain.registry.history(OWN_SUBGROUP).expect("it keeps");
    assert_eq!(history.announcements(0).count(), 1 + 2 * 2);
    assert!(domain.registry.presence().leases.is_empty());
}

fn write_of(writer: EndpointId, key: u8) -> Vec<u8> {
    let header =
        ChangeHeader { kind: ChangeKind::Data, topic: OWN_SUBGROUP, writer, source_time: 0, key: &[key] };
    let mut bytes = vec![0; header.length_with(0)];
    header.write(&mut bytes);
    bytes
}

/// The writers of a member that has died go after their last samples, whenever a reader comes to these; their instances are not disposed of, also
/// if the history has forgotten the writers.
#[test]
fn a_writer_that_has_died_goes_after_its_samples() {
    for (samples, depth) in [(5_u8, 9), (1, 1)] {
        let mut domain = Domain::new();
        let service = DurabilityService { history: HistoryKind::KeepLast(depth), samples_max: 100 };
        domain.registry = TopicRegistry::default();
        domain.apply(encode_service(service));
        let reader = EndpointId { node: 1, number: 0 };
        let space = ResourceLimits { samples_max: 2, ..ResourceLimits::DEFAULT };
        let announcement = EndpointAnnouncement {
            qos: Qos { resource_limits: space, ..Qos::KEPT },
            ..Domain::announcement(reader, TopicRole::Reader)
        };
        domain.apply(announcement.encode(OWN_SUBGROUP));
        let mut core = ReaderCore::new(&announcement, true, None);
        let writers = [2, 3].map(|node| EndpointId { node, number: 0 });
        for id in writers {
            domain.apply(Domain::announcement(id, TopicRole::Writer).encode(OWN_SUBGROUP));
        }
        (0..samples).for_each(|key| assert_eq!(domain.apply(write_of(writers[0], key)), KeptReply::Kept));
        let has_all = pull_reader(&mut core, domain.registry.history(OWN_SUBGROUP).expect("it keeps"), 0);
        assert_eq!(has_all, samples < 2, "it is full");
        if samples < 2 {
            domain.apply(write_of(writers[1], 0));
        }
        let order = domain.registry.presence().order;
        domain.apply(encode_gone(GoneProcess { node: 2, before: order }));
        let history = domain.registry.history(OWN_SUBGROUP).expect("it keeps");
        assert_eq!(history.is_announced(writers[0]), samples > 1);
        let mut states = Vec::new();
        loop {
            let has_all = pull_reader(&mut core, history, 0);
            let is_there = core.peers.present().iter().any(|peer| peer.id == writers[0]);
            assert!(is_there || has_all, "it goes after its samples");
            if has_all {
                core.retain_announced(history, |id| history.is_announced(id), Default::default(), 0);
            }
            let selection = Selection {
                samples_max: 9,
                states: StateMask::ANY,
                instance: None,
                takes: true,
                before: None,
            };
            let taken = core.cache.select(selection, 0);
            states.extend(taken.iter().map(|sample| (sample.info.is_valid, sample.info.instance_state)));
            if has_all && taken.is_empty() {
                break;
            }
        }
        assert_eq!(core.peers.matched.current_count, 1);
        assert!(!states.iter().any(|(_, state)| *state == InstanceState::NotAliveDisposed), "{states:?}");
        let ends = states.iter().filter(|(_, state)| *state == InstanceState::NotAliveNoWriters).count();
        assert_eq!(ends > 0, samples > 1, "the other writer writes the same instance: {states:?}");
    }
}

/// What another member writes late for one that has died leaves no instance alive, at a client that reads it.
#[test]
fn a_late_sample_of_the_dead_leaves_its_instance_dead() {
    let mut domain = Domain::new();
    let announcement = Domain::announcement(EndpointId { node: 1, number: 0 }, TopicRole::Reader);
    let mut core = ReaderCore::new(&announcement, true, None);
    let writer = EndpointId { node: 2, number: 0 };
    domain.apply(Domain::announcement(writer, TopicRole::Writer).encode(OWN_SUBGROUP));
    domain.apply(write_of(writer, 0));
    let order = domain.registry.presence().order;
    domain.apply(encode_gone(GoneProcess { node: 2, before: order }));
    assert_eq!(domain.apply(write_of(writer, 0)), KeptReply::Kept);
    let query = StoreQuery::Part { topic: OWN_SUBGROUP, announcement: 0, first: 0, forgotten: 0 };
    let StoreReply::Part(Some(part)) = domain.registry.query(query) else { panic!("it keeps") };
    pull_part(&mut core, *part, 0, 0);
    assert!(core.cache.has(StateMask::NOT_ALIVE_NO_WRITERS) && !core.cache.has(StateMask::ALIVE));
}
