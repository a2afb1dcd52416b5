//! Scenario: groups of more than 64 members, whose sets of ranks take several words, or of more subgroups than an evaluation looks at
//! (Derecho §2, §3.4).
//!
//! A few members send, and meanwhile some die, leaders among them; or the network parts for good; or a process joins. Members take
//! sides by rank, so that dead, parted and healthy ranks are in all words of a set.
//!
//! **Checked.** All healthy members, and no others, are in one last view, and have the same deliveries in the same order; what others
//! have delivered is a beginning of that \[V1\] \[V8\] \[V10\]; each message of a healthy sender is there once, in order, and those of
//! others up to some number \[V7\], also in subgroups that were idle before; members that are parted from a majority have stopped
//! \[V5\]; a joiner is in the last view \[V9\].
//!
//! Runs of [`crate::group`] have more kinds of faults; their checkers hold sets of nodes in one word.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::DerefMut;
use std::rc::Rc;

use squall_fabric::sim::{
    Adversary, CostModel, Prng, Rule, RuleTrigger, SimConfig, SimFabric, SimWorld, Verdict,
};
use squall_fabric::window::{ReserveError, WindowWriter};
use squall_fabric::{Core, Duration, Fabric, FabricEvent, Instant, NodeId};
use squall_protocols::group::{
    GroupApplication, GroupCore, GroupSettings, Placement, SubgroupId, SubgroupOutlet, Succession, Unplaced,
};
use squall_protocols::membership::{Member, MembershipSettings, View};
use squall_protocols::multicast::{Message, Pull, SubgroupSettings};

use crate::coverage;
use crate::explain::Shrink;
use crate::run::{PlannedScenario, RunOutcome, Violation};

/// The scenario.
pub const SCENARIO: PlannedScenario<LargeCase> = PlannedScenario {
    name: "large",
    about: "groups of 65 to 160 members, or of many subgroups: deaths of leaders and others, a partition, a process that joins",
    draw: |seed| {
        let mut prng = Prng::new(seed);
        let members = if prng.chance(300) { 3 + prng.below(5) } else { 65 + prng.below(96) };
        LargeCase::draw(seed, u32::try_from(members).expect("few"))
    },
    run: LargeCase::run,
    faults: LargeCase::faults,
    promises: coverage::LARGE,
};

/// What happens in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeCase {
    /// The seed from which the order of events is drawn.
    pub seed: u64,
    /// Members of the first view.
    pub members: u32,
    /// The ranks that send, ascending.
    pub senders: Vec<u32>,
    /// The number of messages of each sender.
    pub messages: u32,
    /// The number of subgroups, all of all members. The second half of the messages comes late, and goes to the last of them.
    pub subgroups: u32,
    /// The members that die, and when.
    pub deaths: Vec<(u32, Duration)>,
    /// The members that are parted from the others, which are more, and when.
    pub parted: Vec<u32>,
    /// When the network parts.
    pub parts_at: Duration,
    /// Whether a process joins; then no leader dies.
    pub joins: bool,
    /// Whether an adversary delays what it may; otherwise messages take the time of [`CostModel::SPINDLE`].
    pub is_adverse: bool,
}

/// When faults begin and end, while messages are in flight.
const FAULTS: std::ops::Range<u64> = 10_000..400_000;
/// When the second half of the messages is sent.
const LATE: Duration = Duration::from_micros(500);
/// How long a partition lasts before members lose each other.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(3);
/// The virtual time in which all has to be over.
const SETTLE: Duration = Duration::from_secs(2);

impl LargeCase {
    /// Draws the case of `seed` with `members` members.
    #[must_use]
    pub fn draw(seed: u64, members: u32) -> Self {
        let mut prng = Prng::new(seed ^ 0x1a26e);
        let mut ranks: Vec<u32> = (0..members).collect();
        prng.shuffle(&mut ranks);
        let senders = 1 + prng.index(5.min(members as usize));
        let mut sending = ranks[..senders].to_vec();
        sending.sort_unstable();
        prng.shuffle(&mut ranks);
        let at = |prng: &mut Prng| Duration::from_nanos(FAULTS.start + prng.below(FAULTS.end - FAULTS.start));
        let dying = prng.index(6.min(members as usize));
        let mut deaths: Vec<(u32, Duration)> = ranks[..dying].iter().map(|i| (*i, at(&mut prng))).collect();
        let joins = prng.chance(300);
        let leaders = if joins { 0 } else { prng.index(3) };
        for leader in 0..u32::try_from(leaders).expect("few") {
            if deaths.iter().all(|(other, _)| *other != leader) {
                deaths.push((leader, at(&mut prng)));
            }
        }
        deaths.retain(|(i, _)| !joins || *i != 0);
        deaths.truncate((members as usize - 1) / 2);
        let most = (members as usize / 2).saturating_sub(8);
        let is_parted = !joins && most > 0 && prng.chance(400);
        let parted = if is_parted { ranks[dying..dying + 1 + prng.index(most)].to_vec() } else { Vec::new() };
        let (messages, parts_at) = (5 + u32::try_from(prng.below(30)).expect("few"), at(&mut prng));
        let many = 17 + u32::try_from(prng.below(30)).expect("few");
        let subgroups = if members < 10 { many } else { 1 };
        let is_adverse = true;
        Self {
            seed,
            members,
            senders: sending,
            messages,
            subgroups,
            deaths,
            parted,
            parts_at,
            joins,
            is_adverse,
        }
    }

    /// Runs the case, and keeps the latest `trace_records_max` events.
    #[must_use]
    pub fn run(&self, trace_records_max: usize) -> RunOutcome {
        let mut cluster = LargeCluster::new(self, trace_records_max);
        cluster.run();
        let violation = cluster.check().err().map(|text| Violation { checker: "large", text });
        let world = &cluster.world;
        RunOutcome {
            violation,
            elapsed: world.now().since(Instant::from_nanos(0)),
            delivered: cluster.nodes.iter().map(LargeNode::count).sum(),
            trace_hash: world.trace_hash(),
            trace: world.trace(),
        }
    }

    fn faults(&self) -> Vec<&'static str> {
        let kinds = [
            (!self.deaths.is_empty(), "death"),
            (self.deaths.iter().any(|(i, _)| *i == 0), "death of the leader"),
            (!self.parted.is_empty(), "partition"),
            (self.joins, "process that joins"),
            (self.subgroups > 1, "many subgroups"),
        ];
        kinds.into_iter().filter_map(|(is_on, kind)| is_on.then_some(kind)).collect()
    }

    /// Whether a member neither dies nor is parted.
    fn is_healthy(&self, i: u32) -> bool {
        self.deaths.iter().all(|(other, _)| *other != i) && !self.parted.contains(&i)
    }

    fn rules(&self) -> Vec<Rule> {
        let at = |span: Duration| RuleTrigger::At(Instant::from_nanos(0) + span);
        let die = |(i, span): &(u32, Duration)| Rule { when: at(*span), what: Verdict::Crash(*i) };
        let others = (0..self.members).filter(|i| !self.parted.contains(i)).collect();
        let part = Verdict::Partition(vec![self.parted.clone(), others]);
        let part = (!self.parted.is_empty()).then(|| Rule { when: at(self.parts_at), what: part });
        self.deaths.iter().map(die).chain(part).collect()
    }
}

impl Shrink for LargeCase {
    fn smaller(&self) -> Vec<Self> {
        let without = |place: usize| {
            let mut case = self.clone();
            case.deaths.remove(place);
            case
        };
        let whole = Self { parted: Vec::new(), ..self.clone() };
        let whole = (!self.parted.is_empty()).then_some(whole);
        let fewer = (self.messages > 1).then(|| Self { messages: self.messages / 2, ..self.clone() });
        (0..self.deaths.len()).map(without).chain(whole).chain(fewer).collect()
    }
}

impl fmt::Display for LargeCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, members, senders, messages, subgroups, .. } = self;
        writeln!(
            f,
            "seed {seed}: {members} members in {subgroups} subgroups, of which {senders:?} send {messages} messages each"
        )?;
        self.rules().iter().try_for_each(|rule| writeln!(f, "  fault {rule}"))?;
        if self.joins { writeln!(f, "  node {members} joins") } else { Ok(()) }
    }
}

/// The messages that a node has delivered in each subgroup: the rank of the sender in the first view, and its number.
type Deliveries = Rc<RefCell<BTreeMap<SubgroupId, Vec<(u32, u32)>>>>;

struct LargeApp {
    delivered: Deliveries,
    successions: Vec<Succession>,
    writers: Vec<Option<WindowWriter>>,
    /// The number of messages that are to be sent and that are sent.
    messages: u32,
    sent: u32,
}

impl LargeApp {
    /// Sends as much as there is space for, and as is due; returns whether it has sent anything.
    fn send(&mut self, now: Instant, own: u32) -> bool {
        let (before, last) = (self.sent, self.writers.len() - 1);
        while self.sent < self.messages {
            let is_late = self.is_late();
            if is_late && now < Instant::from_nanos(0) + LATE {
                break;
            }
            let place = if is_late { last } else { 0 };
            if self.writers[place].is_none() {
                self.writers[place] = self.successions[place].take_writer();
            }
            let Some(writer) = &mut self.writers[place] else { break };
            let bytes = [own.to_le_bytes(), self.sent.to_le_bytes()].concat();
            match writer.send(bytes.len(), |place| place.copy_from_slice(&bytes)) {
                Ok(()) => self.sent += 1,
                Err(ReserveError::Closed) => self.writers[place] = None,
                Err(ReserveError::Full) => break,
                Err(ReserveError::TooLong { .. }) => unreachable!("8 bytes fit"),
            }
        }
        self.sent > before
    }

    /// Whether the next message is of the second half.
    const fn is_late(&self) -> bool {
        self.sent >= self.messages.div_ceil(2)
    }
}

impl GroupApplication for LargeApp {
    type Deliver = Box<dyn FnMut(Message<'_>)>;

    fn outlet(&mut self, id: SubgroupId) -> SubgroupOutlet<Self::Deliver> {
        let delivered = Rc::clone(&self.delivered);
        SubgroupOutlet::Upcall(Box::new(move |message: Message<'_>| {
            let word = |at: usize| {
                let bytes = message.bytes[at..at + 4].try_into().expect("8 bytes");
                u32::from_le_bytes(bytes)
            };
            delivered.borrow_mut().entry(id).or_default().push((word(0), word(4)));
        }))
    }

    fn install(&mut self, _: &View, _: &[Placement], _: &[Unplaced]) {}

    fn succession(&mut self, id: SubgroupId) -> impl DerefMut<Target = Succession> {
        &mut self.successions[id.0 as usize]
    }

    fn take_pull(&mut self, _: SubgroupId, _: Pull) {}

    fn leave_subgroup(&mut self, _: SubgroupId, _: Option<Self::Deliver>) {}
}

struct LargeNode {
    fabric: SimFabric,
    group: GroupCore<LargeApp>,
    delivered: Deliveries,
}

impl LargeNode {
    fn count(&self) -> u64 {
        self.delivered.borrow().values().map(|messages| messages.len() as u64).sum()
    }

    fn step(&mut self) -> bool {
        let own = self.fabric.node().0;
        let mut events: Vec<FabricEvent> = Vec::new();
        let mut work = self.fabric.poll(&mut |event| events.push(event));
        events.iter().for_each(|event| self.group.handle_event(&mut self.fabric, event));
        let now = self.fabric.now();
        let sent = self.group.application().send(now, own);
        work += self.group.poll(&mut self.fabric);
        if work == 0 && Core::<SimFabric>::look_at_all(&mut self.group) {
            work += self.group.poll(&mut self.fabric);
        }
        work > 0 || sent || !events.is_empty()
    }
}

struct LargeCluster<'a> {
    case: &'a LargeCase,
    world: SimWorld,
    nodes: Vec<LargeNode>,
}

impl<'a> LargeCluster<'a> {
    fn new(case: &'a LargeCase, trace_records_max: usize) -> Self {
        let config = SimConfig {
            adversary: case.is_adverse.then(|| Adversary::drawn(&mut Prng::new(case.seed ^ 0xad7e))),
            cost: if case.is_adverse { CostModel::FREE } else { CostModel::SPINDLE },
            unreachable_after: UNREACHABLE_AFTER,
            loss_noticed_after: Duration::from_millis(1),
            rules: case.rules(),
            trace_records_max,
            ..SimConfig::hardware()
        };
        let world = SimWorld::new(case.seed, config, case.members + u32::from(case.joins));
        let first: Vec<Member> =
            (0..case.members).map(|i| Member { node: NodeId(i), tag: u64::from(i) }).collect();
        let nodes = (0..world.nodes()).map(|i| node(case, &world, &first, i)).collect();
        let mut cluster = Self { case, world, nodes };
        if case.joins {
            let joiner = Member { node: NodeId(case.members), tag: u64::from(case.members) };
            cluster.nodes[0].group.admit(joiner);
        }
        cluster
    }

    fn run(&mut self) {
        let until = self.world.now() + SETTLE;
        while let Some(i) = self.world.next_poll(until) {
            let node = &mut self.nodes[i as usize];
            let worked = node.step();
            let late = Instant::from_nanos(0) + LATE;
            let waits = node.group.application().is_late() && node.fabric.now() < late;
            self.world.rest(i, worked, waits.then_some(late));
        }
    }

    fn check(&self) -> Result<(), String> {
        let case = self.case;
        let joiner = case.joins.then_some(case.members);
        let healthy: Vec<u32> = (0..case.members).filter(|i| case.is_healthy(*i)).chain(joiner).collect();
        let expected: Vec<NodeId> = healthy.iter().map(|i| NodeId(*i)).collect();
        let changes = usize::from(expected.len() != case.members as usize || case.joins);
        for i in &healthy {
            let node = &self.nodes[*i as usize];
            let Some(membership) = node.group.membership() else {
                return Err(format!("[V8] [V10] node {i} is in no view: {:?}", node.group.ended()));
            };
            let view = membership.view();
            if view.nodes() != expected || (view.id as usize) < changes {
                let count = expected.len();
                return Err(format!(
                    "[V8] [V10] node {i} is in {view}, not in a view of the {count} healthy ones"
                ));
            }
        }
        let alive = |i: &&u32| case.deaths.iter().all(|(other, _)| other != *i);
        if let Some(i) =
            case.parted.iter().filter(alive).find(|i| self.nodes[**i as usize].group.ended().is_none())
        {
            return Err(format!("[V5] node {i} continues without a majority"));
        }
        self.check_deliveries(healthy[0])
    }

    /// Compares all deliveries with those of a healthy member of the first view.
    fn check_deliveries(&self, reference: u32) -> Result<(), String> {
        let case = self.case;
        let all = self.nodes[reference as usize].delivered.borrow();
        let mut next: BTreeMap<u32, u32> = BTreeMap::new();
        // The late messages are in the last subgroup.
        for (sender, number) in all.values().flatten() {
            let expected = next.entry(*sender).or_default();
            let first_late = case.messages.div_ceil(2);
            if number != expected && !(case.subgroups > 1 && *number == first_late) {
                return Err(format!("[V7] message {number} of {sender} comes where {expected} is due"));
            }
            *expected = number + 1;
        }
        for sender in case.senders.iter().filter(|sender| case.is_healthy(**sender)) {
            let here = all.values().flatten().filter(|(other, _)| other == sender).count();
            if here != case.messages as usize {
                return Err(format!("[V7] {here} of {} messages of {sender} are delivered", case.messages));
            }
        }
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| *i < case.members as usize) {
            let here = node.delivered.borrow();
            let nothing = Vec::new();
            let is_beginning = |(id, messages): (&SubgroupId, &Vec<(u32, u32)>)| {
                all.get(id).unwrap_or(&nothing).starts_with(messages)
            };
            let healthy = case.is_healthy(u32::try_from(i).expect("few"));
            if !here.iter().all(is_beginning) || healthy && *here != *all {
                let (here, all) = (node.count(), self.nodes[reference as usize].count());
                return Err(format!(
                    "[V1] node {i} has delivered {here} messages, others {all}, in another order or fewer"
                ));
            }
        }
        Ok(())
    }
}

/// What evaluations cost in a calm group.
#[derive(Clone, Copy, Debug)]
pub struct CalmCost {
    /// Of an evaluation of one member that finds nothing, in units of the clock.
    pub idle: f64,
    /// Of all members and the simulated network, for a message and a member that delivers it.
    pub delivery: f64,
}

/// Returns what evaluations cost in a group in which nothing happens, and then one member sends, by a clock that the caller has.
///
/// # Panics
/// If not all messages are delivered.
pub fn calm_cost(members: u32, subgroups: u32, clock: fn() -> u64) -> CalmCost {
    let case = LargeCase {
        seed: 0,
        members,
        senders: vec![1],
        messages: 0,
        subgroups,
        deaths: Vec::new(),
        parted: Vec::new(),
        parts_at: LATE,
        joins: false,
        is_adverse: false,
    };
    let mut cluster = LargeCluster::new(&case, 0);
    cluster.run();
    let polls = |cluster: &mut LargeCluster<'_>, count: u32| {
        let LargeNode { fabric, group, .. } = &mut cluster.nodes[0];
        (0..count).for_each(|_| {
            group.poll(fabric);
        });
    };
    polls(&mut cluster, POLLS / 10);
    let begun = clock();
    polls(&mut cluster, POLLS);
    let idle = (clock() - begun) as f64 / f64::from(POLLS);
    // The clock may tick no more often than each few milliseconds.
    let messages = (100_000 / members).max(100);
    cluster.nodes[1].group.application().messages = messages;
    cluster.world.wake(1);
    let begun = clock();
    cluster.run();
    let took = (clock() - begun) as f64;
    let delivered: u64 = cluster.nodes.iter().map(LargeNode::count).sum();
    assert_eq!(delivered, u64::from(members * messages), "all are delivered by all");
    CalmCost { idle, delivery: took / delivered as f64 }
}

/// Evaluations over which an idle one is measured.
const POLLS: u32 = 500_000;

fn node(case: &LargeCase, world: &SimWorld, first: &[Member], i: u32) -> LargeNode {
    let mut fabric = world.fabric(i);
    let delivered = Deliveries::default();
    let subgroups = case.subgroups;
    let application = LargeApp {
        delivered: Rc::clone(&delivered),
        successions: (0..subgroups).map(|_| Succession::default()).collect(),
        writers: (0..subgroups).map(|_| None).collect(),
        messages: if case.senders.contains(&i) { case.messages } else { 0 },
        sent: 0,
    };
    let membership = MembershipSettings { suspicion_after: None, states: 0, ..MembershipSettings::default() };
    let settings = GroupSettings { membership, ..GroupSettings::default() };
    let senders: Vec<u64> = case.senders.iter().map(|sender| u64::from(*sender)).collect();
    let layout = Box::new(move |view: &View| place(view, &senders, subgroups));
    let group = if i < case.members {
        GroupCore::begin(&mut fabric, View::first(first.to_vec()), layout, settings, application)
    } else {
        let contacts: Vec<NodeId> = first.iter().map(|member| member.node).collect();
        GroupCore::join(&mut fabric, &contacts, layout, settings, application)
    };
    LargeNode { fabric, group, delivered }
}

/// Subgroups of all members, in which those with these tags send, or the oldest one if none of them is left.
fn place(view: &View, senders: &[u64], subgroups: u32) -> (Vec<Placement>, Vec<Unplaced>) {
    let sends = |(rank, member): (usize, &Member)| senders.contains(&member.tag).then_some(rank);
    let mut senders: Vec<usize> = view.members.iter().enumerate().filter_map(sends).collect();
    if senders.is_empty() {
        senders.push(0);
    }
    let settings = SubgroupSettings { window: 4, senders, ..SubgroupSettings::new(view.members.len(), 8) };
    let place = |i| Placement { id: SubgroupId(i), members: view.nodes(), settings: settings.clone() };
    ((0..subgroups).map(place).collect(), Vec::new())
}
