//! Scenario: a shared state table under the adversary (Derecho §3.2).
//!
//! Each member appends to a list of its own row, raises the guard that announces the words, and raises a plain
//! counter; all members watch all rows. The scenario checks that no column decreases [S1], that a reader that sees a
//! guard sees the guarded words [S2], that no store is lost because a reader attached late [S4], that a frozen row
//! does not change [S5], and that all rows arrive.

use std::fmt;

use squall_fabric::layout::Columns;
use squall_fabric::sim::{
    Adversary, CostModel, Prng, Rule, RuleTrigger, SimConfig, SimFabric, SimWorld, Verdict,
};
use squall_fabric::{Column, Duration, Fabric, Instant, MirrorKey, NodeId, RowLayout};
use squall_protocols::sst::StateTable;

use crate::coverage::rule_kinds;
use crate::explain::Shrink;
use crate::run::{PlannedScenario, RunOutcome, Violation};

/// The scenario.
pub const SCENARIO: PlannedScenario<SstPlan> = PlannedScenario {
    name: "sst",
    about: "a shared state table of 2 to 5 members: guarded lists, counters, freezes",
    draw: SstPlan::draw,
    run: |plan, trace_records_max| Cluster::new(plan, trace_records_max).run(),
    faults: |plan| rule_kinds(&plan.rules),
};

/// The virtual time after which everything must have arrived.
const SETTLE: Duration = Duration::from_secs(1);

/// The size of each member's list in words.
const LIST: usize = 64;

/// The plan of one run.
#[derive(Clone, Debug)]
pub struct SstPlan {
    seed: u64,
    members: usize,
    /// The number of words that each member appends.
    appends: usize,
    /// The member that freezes a row, the owner of the row, and the number of its words after which it does so.
    freeze: Option<(usize, usize, usize)>,
    adversary: Adversary,
    early_sight: bool,
    rules: Vec<Rule>,
}

impl SstPlan {
    fn draw(seed: u64) -> Self {
        let mut prng = Prng::new(seed ^ 0x557);
        let members = 2 + prng.index(4);
        let appends = 1 + prng.index(LIST);
        let pause = |prng: &mut Prng| Rule {
            when: RuleTrigger::At(Instant::from_nanos(prng.below(500_000))),
            what: Verdict::Pause {
                node: u32::try_from(prng.index(members)).expect("few members"),
                span: Duration::from_nanos(prng.below(1_000_000)),
            },
        };
        let freezer = prng.index(members);
        let frozen = (freezer + 1 + prng.index(members - 1)) % members;
        Self {
            seed,
            members,
            appends,
            freeze: prng.chance(500).then(|| (freezer, frozen, prng.index(appends))),
            adversary: Adversary::drawn(&mut prng),
            early_sight: prng.chance(300),
            rules: (0..prng.below(3)).map(|_| pause(&mut prng)).collect(),
        }
    }
}

impl Shrink for SstPlan {
    fn smaller(&self) -> Vec<Self> {
        let without = |i: usize| {
            let mut plan = self.clone();
            plan.rules.remove(i);
            plan
        };
        let fewer = Self { appends: self.appends / 2, ..self.clone() };
        let fewer = (self.appends > 1).then_some(fewer);
        (0..self.rules.len()).map(without).chain(fewer).collect()
    }
}

impl fmt::Display for SstPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {} members append {} words each", self.seed, self.members, self.appends)?;
        if let Some((freezer, frozen, words)) = self.freeze {
            writeln!(f, "  member {freezer} freezes the row of member {frozen} after {words} words")?;
        }
        writeln!(f, "  early sight {}, {:?}", self.early_sight, self.adversary)?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "  fault {rule}"))
    }
}

/// The layout of a row.
struct Row {
    count: Column<u64>,
    list: Columns<u64>,
    plain: Column<u64>,
}

struct Node {
    fabric: SimFabric,
    table: StateTable,
    appended: usize,
    /// The latest count and plain value seen in each row.
    seen: Vec<(u64, u64)>,
    /// The rows that this member has frozen, with their contents at that moment.
    frozen: Vec<Option<Vec<u64>>>,
}

struct Cluster<'a> {
    plan: &'a SstPlan,
    world: SimWorld,
    row: Row,
    nodes: Vec<Node>,
    prng: Prng,
    values: u64,
}

impl<'a> Cluster<'a> {
    fn new(plan: &'a SstPlan, trace_records_max: usize) -> Self {
        let config = SimConfig {
            adversary: Some(plan.adversary.clone()),
            cost: CostModel::FREE,
            early_sight: plan.early_sight,
            rules: plan.rules.clone(),
            trace_records_max,
            ..SimConfig::hardware()
        };
        let number = |i: usize| u32::try_from(i).expect("few members");
        let world = SimWorld::new(plan.seed, config, number(plan.members));
        let mut layout = RowLayout::new();
        let row = Row { count: layout.column(), list: layout.list(LIST), plain: layout.column() };
        let members: Vec<NodeId> = (0..plan.members).map(|i| NodeId(number(i))).collect();
        let node = |i: usize| {
            let mut fabric = world.fabric(number(i));
            let table = StateTable::new(&mut fabric, MirrorKey(3), &members, layout.words());
            Node {
                fabric,
                table,
                appended: 0,
                seen: vec![(0, 0); plan.members],
                frozen: vec![None; plan.members],
            }
        };
        let nodes = (0..plan.members).map(node).collect();
        Self { plan, world: world.clone(), row, nodes, prng: Prng::new(plan.seed ^ 0x70e), values: 0 }
    }

    fn run(mut self) -> RunOutcome {
        let mut violation = None;
        let until = Instant::from_nanos(0) + SETTLE;
        while let Some(i) = self.world.next_poll(until) {
            match self.step(i as usize) {
                Ok(worked) => self.world.rest(i, worked, None),
                Err(found) => {
                    violation = Some(found);
                    break;
                }
            }
        }
        RunOutcome {
            violation: violation.or_else(|| self.check_end()),
            elapsed: self.world.now().since(Instant::from_nanos(0)),
            delivered: self.values,
            trace_hash: self.world.trace_hash(),
            trace: self.world.trace(),
        }
    }

    fn step(&mut self, i: usize) -> Result<bool, Violation> {
        let node = &mut self.nodes[i];
        let mut events = Vec::new();
        let mut worked = node.fabric.poll(&mut |event| events.push(event)) > 0;
        events.iter().for_each(|event| node.table.handle_event(event));
        if node.table.is_ready() && node.appended < self.plan.appends {
            self.append(i);
            worked = true;
        }
        self.watch(i)?;
        self.freeze(i);
        Ok(worked)
    }

    /// Appends a few words, announces them, and raises the plain counter.
    fn append(&mut self, i: usize) {
        let Node { fabric, table, appended, .. } = &mut self.nodes[i];
        let end = (*appended + 1 + self.prng.index(5)).min(self.plan.appends);
        for word in *appended..end {
            self.row.list.column(word).store(table.own(), value(i, word));
        }
        table.append(self.row.list.words(*appended..end));
        table.raise(self.row.count, end as u64);
        table.raise(self.row.plain, 3 * end as u64);
        table.flush(fabric);
        *appended = end;
    }

    /// Checks all rows as member `i` sees them.
    fn watch(&mut self, i: usize) -> Result<(), Violation> {
        let node = &mut self.nodes[i];
        for owner in 0..self.plan.members {
            let row = node.table.row(owner);
            let (count, plain) = (self.row.count.load(row), self.row.plain.load(row));
            let (count_before, plain_before) = node.seen[owner];
            if count < count_before || plain < plain_before {
                return violation(
                    "monotone",
                    format!("[S1] member {i} sees the row of member {owner} decrease"),
                );
            }
            for word in 0..usize::try_from(count).unwrap_or(usize::MAX).min(LIST) {
                if self.row.list.column(word).load(row) != value(owner, word) {
                    let text =
                        format!("[S2] member {i} sees guard {count} of member {owner}, but not word {word}");
                    return violation("guard", text);
                }
            }
            if let Some(frozen) = &node.frozen[owner]
                && *frozen != words(row)
            {
                return violation(
                    "freeze",
                    format!("[S5] the frozen row of member {owner} changes at member {i}"),
                );
            }
            self.values += count - count_before;
            node.seen[owner] = (count, plain);
        }
        Ok(())
    }

    fn freeze(&mut self, i: usize) {
        let Some((freezer, frozen, after)) = self.plan.freeze else { return };
        let node = &mut self.nodes[i];
        if freezer == i && node.frozen[frozen].is_none() && node.seen[frozen].0 > after as u64 {
            node.table.freeze(&mut node.fabric, frozen);
            node.frozen[frozen] = Some(words(node.table.row(frozen)));
        }
    }

    fn check_end(&self) -> Option<Violation> {
        for (i, node) in self.nodes.iter().enumerate() {
            for owner in 0..self.plan.members {
                let (count, plain) = node.seen[owner];
                let all = self.plan.appends as u64;
                if node.frozen[owner].is_none() && (count, plain) != (all, 3 * all) {
                    let text = format!("[S4] member {i} ends with {count} of {all} words of member {owner}");
                    return Some(Violation { checker: "arrival", text });
                }
            }
        }
        None
    }
}

fn violation<T>(checker: &'static str, text: String) -> Result<T, Violation> {
    Err(Violation { checker, text })
}

fn words(row: &squall_fabric::Region) -> Vec<u64> {
    (0..row.words()).map(|word| row.load(word)).collect()
}

/// Returns the value of word `word` of the list of member `owner`.
const fn value(owner: usize, word: usize) -> u64 {
    ((owner as u64 + 1) << 32) + word as u64 + 1
}
