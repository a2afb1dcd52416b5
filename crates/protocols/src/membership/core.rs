//! A member's part in one view: suspicion, wedge, and driving the agreement (Derecho §3.4).

use squall_fabric::{Event, Fabric, Instant, NodeId};

use super::silence::Silence;
use super::{Member, PartitionSafety, Proposal, Row, Segment, Settings, Step, Steps, View};
use crate::mutation::{Mutation, is_on};
use crate::sst::Table;

/// The subgroups of a view, as membership needs them.
pub trait Subgroups<F> {
    /// `member` is suspected: its rows never change again here \[S5\].
    fn freeze(&mut self, fabric: &mut F, member: NodeId);

    /// The view is over: send and acknowledge nothing more, and write how many indexes of each sender are here
    /// ([`Segment::counts`]).
    fn wedge(&mut self, counts: &mut [u64]);
}

/// Why a member has stopped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The others suspect this member, or have gone on without it \[V4\].
    Excluded,
    /// Too many members of the view are gone: what is left is no majority \[V5\].
    Minority {
        /// How many are gone.
        lost: usize,
        /// How many the view has.
        members: usize,
    },
    /// It has left, as it wished.
    Left,
}

impl std::error::Error for Stop {}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Excluded => f.write_str(
                "the other members have gone on without this one, which they took for dead: join again",
            ),
            Self::Minority { lost, members } => write!(
                f,
                "{lost} of {members} members are gone, so what is left is no majority and must not go on alone: \
                 start them again, or set partition_safety = \"off\" if the network cannot part"
            ),
            Self::Left => f.write_str("this member has left the group"),
        }
    }
}

/// How far the present view is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Members are attaching each other's rows.
    Opening,
    /// Messages flow.
    Normal,
    /// The view is ending.
    Wedged,
    /// The next view is decided.
    Decided,
}

/// One member's part in one view. See the module above for the step order and the invariants.
#[derive(Debug)]
pub struct Membership {
    pub(super) view: View,
    settings: Settings,
    pub(super) segments: Vec<Segment>,
    pub(super) row: Row,
    pub(super) table: Table,
    /// The ranks that this member suspects; grows only. `published ⊆ frozen ⊆ suspected`.
    pub(super) suspected: u64,
    frozen: u64,
    published: u64,
    /// A member that is not suspected here suspects this one.
    accused: bool,
    pub(super) wedged: bool,
    leaving: bool,
    /// Who wants to join, as this member knows; it matters if it leads.
    pub(super) joins: Vec<Member>,
    silence: Option<Silence>,
    /// The proposal that was echoed last, and the rank of its leader.
    pub(super) echoed: Option<(usize, Proposal)>,
    pub(super) decision: Option<Proposal>,
    stop: Option<Stop>,
    state: State,
    pub(super) steps: Steps,
    /// The latest heartbeat of each member, by rank, that was there when this member last looked.
    heard: Vec<u64>,
    /// It is time for a sign of life.
    owes_sign: bool,
}

impl Membership {
    /// Begins a view. `lost` are nodes that the fabric has reported as lost so far.
    ///
    /// # Panics
    /// If this node is not a member, or the view has more than [`super::MEMBERS_MAX`] members.
    pub fn new<F: Fabric>(
        fabric: &mut F,
        view: View,
        segments: Vec<Segment>,
        settings: Settings,
        lost: impl IntoIterator<Item = NodeId>,
    ) -> Self {
        assert!(view.members.len() <= super::MEMBERS_MAX, "a group of {}", view.members.len());
        let row = Row::new(view.members.len(), &segments);
        let table = Table::new(fabric, view.key(0), &view.nodes(), row.words);
        let silence = Silence::new(&settings, view.members.len(), fabric.now());
        let heard = vec![0; view.members.len()];
        let mut membership = Self {
            view,
            settings,
            segments,
            row,
            table,
            suspected: 0,
            frozen: 0,
            published: 0,
            accused: false,
            wedged: false,
            leaving: false,
            joins: Vec::new(),
            silence,
            echoed: None,
            decision: None,
            stop: None,
            state: State::Opening,
            steps: Steps::default(),
            heard,
            owes_sign: false,
        };
        lost.into_iter().for_each(|node| membership.suspect(node));
        membership
    }

    /// The view.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// How the view ends, once that is decided.
    #[must_use]
    pub const fn decision(&self) -> Option<&Proposal> {
        self.decision.as_ref()
    }

    /// Whether all others that live know the decision, too. Who leaves waits for that, since nobody hears of it later.
    #[must_use]
    pub fn is_known_to_all(&self) -> bool {
        self.unsuspected().all(|rank| self.row.decided.load(self.table.row(rank)) > 0)
    }

    /// Why this member has stopped, if it has.
    #[must_use]
    pub const fn stopped(&self) -> Option<Stop> {
        self.stop
    }

    /// Where each subgroup's words are.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// How far the view is.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// When this member took which step towards the end of the view.
    #[must_use]
    pub const fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Whether all members that live have attached.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.table.is_ready()
    }

    /// The lowest rank that this member does not suspect.
    #[must_use]
    pub fn leader(&self) -> usize {
        (0..self.view.members.len()).find(|rank| !self.suspects(*rank)).expect("it does not suspect itself")
    }

    /// Whether this member leads the view.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leader() == self.table.rank()
    }

    /// Whether this member suspects the member with this rank.
    #[must_use]
    pub const fn suspects(&self, rank: usize) -> bool {
        self.suspected >> rank & 1 == 1
    }

    /// Takes an event of the fabric.
    pub fn handle_event(&mut self, event: &Event) {
        self.table.handle_event(event);
        if let Event::PeerLost { peer, .. } = event {
            self.suspect(*peer);
        }
    }

    /// Suspects a node: it will not be in the next view. Nodes that are not members are ignored, and so is this one.
    pub fn suspect(&mut self, node: NodeId) {
        match self.view.rank(node) {
            Some(rank) if rank != self.table.rank() => self.suspected |= 1 << rank,
            _ => {}
        }
        self.joins.retain(|member| member.node != node);
    }

    /// Lets `member` in with the next view, if this member leads.
    pub fn admit(&mut self, member: Member) {
        let is_known =
            self.view.rank(member.node).is_some() || self.joins.iter().any(|other| other.node == member.node);
        if !is_known {
            self.joins.push(member);
        }
    }

    /// Leaves the group with the next view.
    pub const fn leave(&mut self) {
        self.leaving = true;
    }

    /// Whether another member has said something since the last evaluation. One load for each member; time is not
    /// looked at, so an evaluation is due now and then all the same.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        let heartbeat = self.row.heartbeat;
        self.table.rows().iter().zip(&self.heard).any(|(row, heard)| heartbeat.load(row) != *heard)
    }

    /// Evaluates once; returns the amount of work done.
    pub fn poll<F: Fabric>(&mut self, fabric: &mut F, subgroups: &mut impl Subgroups<F>) -> usize {
        if self.stop.is_some() {
            return 0;
        }
        let now = fabric.now();
        self.hear();
        self.suspect_silent(now);
        if self.decision.is_some() {
            // Who stays to see that all know of it hears and gives signs of life.
            self.flush(fabric);
            return 0;
        }
        self.suspect_accused();
        if self.suspected != 0 {
            self.steps.note_first(Step::Suspected, now);
        }
        let mut work = self.freeze_suspected(fabric, subgroups);
        // A decision counts, whatever has become of those who made it.
        if self.table.is_ready() && self.take_over_decision() {
            self.enter_decided(now);
            return work + 1 + self.flush(fabric);
        }
        if self.must_stop() {
            return work + 1;
        }
        if !self.table.is_ready() {
            return work;
        }
        self.state = self.state.max(State::Normal);
        self.publish();
        if !self.wedged && self.must_wedge() {
            self.wedge(subgroups);
            self.state = State::Wedged;
            self.steps.note_first(Step::Wedged, now);
            work += 1;
        }
        if self.wedged {
            work += self.agree(now);
        }
        if self.decision.is_some() {
            self.enter_decided(now);
        }
        work + self.flush(fabric)
    }

    /// Whether this member wished to leave.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// When to poll even if nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.silence.as_ref().filter(|_| self.stop.is_none()).map(Silence::deadline)
    }

    /// The table of rows, for checkers and tools.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// Ranks that this member does not suspect.
    pub(super) fn unsuspected(&self) -> impl Iterator<Item = usize> + use<> {
        let suspected = self.suspected;
        (0..self.view.members.len()).filter(move |rank| suspected >> rank & 1 == 0)
    }

    fn enter_decided(&mut self, now: Instant) {
        self.state = State::Decided;
        self.steps.note_first(Step::Decided, now);
    }

    /// Notes what the others have said by now: all of it is looked at in this evaluation.
    fn hear(&mut self) {
        for (row, heard) in self.table.rows().iter().zip(&mut self.heard) {
            *heard = self.row.heartbeat.load(row);
        }
    }

    /// Posts what was stored, in order, and last of all the heartbeat, which is all that idle members look at.
    fn flush<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let says = self.table.has_posts() && !is_on(Mutation::SilentNews);
        if says || self.owes_sign {
            self.owes_sign = false;
            let (heartbeat, own) = (self.row.heartbeat, self.table.rank());
            self.heard[own] += 1;
            self.table.raise(heartbeat, self.heard[own]);
        }
        self.table.flush(fabric)
    }

    /// Gives a sign of life and looks at those of the others, if it is time.
    fn suspect_silent(&mut self, now: Instant) {
        let Some(silence) = &mut self.silence else { return };
        if !silence.is_due(now) {
            return;
        }
        let (own, heartbeat) = (self.table.rank(), self.row.heartbeat);
        let signs = self.table.rows().iter().map(|row| heartbeat.load(row));
        let suspected = &mut self.suspected;
        silence.look(now, signs, |rank| *suspected |= u64::from(rank != own) << rank);
        self.owes_sign = self.table.is_ready();
    }

    /// Takes over the suspicions of those that are not suspected themselves, the oldest first: of two members that
    /// suspect each other the younger one goes.
    fn suspect_accused(&mut self) {
        let mut rank = 0;
        while rank < self.view.members.len() {
            let accused = self.row.suspected.load(self.table.row(rank));
            let hears = !self.suspects(rank) && rank != self.table.rank();
            if hears && accused >> self.table.rank() & 1 == 1 {
                self.accused = true;
            }
            let news = accused & !self.suspected & self.everybody() & !(1 << self.table.rank());
            if hears && news != 0 {
                self.suspected |= news;
                rank = 0;
            } else {
                rank += 1;
            }
        }
    }

    fn everybody(&self) -> u64 {
        u64::MAX >> (super::MEMBERS_MAX - self.view.members.len())
    }

    fn freeze_suspected<F: Fabric>(&mut self, fabric: &mut F, subgroups: &mut impl Subgroups<F>) -> usize {
        let news = self.suspected & !self.frozen;
        for rank in (0..self.view.members.len()).filter(|rank| news >> rank & 1 == 1) {
            self.table.freeze(fabric, rank);
            self.table.excuse(rank);
            subgroups.freeze(fabric, self.view.members[rank].node);
        }
        self.frozen = self.suspected;
        usize::from(news != 0)
    }

    fn must_stop(&mut self) -> bool {
        let (lost, members) = (self.suspected.count_ones() as usize, self.view.members.len());
        let is_minority =
            self.settings.partition_safety == PartitionSafety::Majority && lost > (members - 1) / 2;
        if self.accused && !is_on(Mutation::GoOnAccused) {
            self.stop = Some(Stop::Excluded);
        } else if is_minority && !is_on(Mutation::NoPartitionRule) {
            self.stop = Some(Stop::Minority { lost, members });
        }
        if self.stop.is_some() && self.leaving {
            self.stop = Some(Stop::Left);
        }
        self.stop.is_some()
    }

    /// Suspicions and the wish to leave go into the row, before anything that rests on them.
    fn publish(&mut self) {
        if self.published != self.suspected {
            self.published = self.suspected;
            self.table.raise(self.row.suspected, self.suspected);
        }
        if self.leaving && !self.row.leaving.load(self.table.own()) {
            self.table.raise(self.row.leaving, true);
        }
    }

    fn must_wedge(&self) -> bool {
        let has_reason = |rank: usize| {
            let row = self.table.row(rank);
            self.row.wedged.load(row) || self.row.leaving.load(row)
        };
        self.suspected != 0 || (self.leads() && !self.joins.is_empty()) || self.unsuspected().any(has_reason)
    }

    fn wedge<F>(&mut self, subgroups: &mut impl Subgroups<F>) {
        let mut counts = vec![0; self.row.counts.count()];
        subgroups.wedge(&mut counts);
        for (i, count) in counts.iter().enumerate() {
            self.row.counts.column(i).store(self.table.own(), *count);
        }
        if !counts.is_empty() {
            self.table.append(self.row.counts.words(0..counts.len()));
        }
        self.table.raise(self.row.wedged, true);
        self.wedged = true;
    }
}
