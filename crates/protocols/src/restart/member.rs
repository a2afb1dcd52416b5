//! A process of a group that is down: it boots, meets the others, and takes part in the end of the last view (Derecho §3.4, "Total
//! failures"). Its sides as a leader and as an acceptor have files of their own.

use std::collections::{BTreeMap, VecDeque};

use squall_fabric::{Instant, NodeId};

use super::action::{RestartAction, RestartSettings};
use super::flushed_log::{FetchAnswer, FetchRequest, FlushedLog, LogState};
use super::leader::RestartLead;
use super::message::{RestartMessage, RestartReport};
use super::mutation;
use super::placement::DurablePlacement;
use super::register::{Register, ViewRecord};
use super::register_writer::RegisterWriter;
use super::transfer::{LogTransfer, TransferSettings};
use super::view_end::{DurableView, ViewEnd};
use crate::coverage::{Point, reach};
use crate::ends::Ballot;
use crate::membership::RankSet;

/// A process that restarts, or that waits to join.
///
/// **Law.** The driver takes an action ([`Restarter::poll_action`]), begins it, and takes the next. While there is none it waits
/// until [`Restarter::next_deadline`], and hands in what comes with the `handle_*`. One write of the register, one flush of the log
/// and one fetch are under way at a time, each of which may take its time. After [`RestartAction::Enter`] there is none.
///
/// Bounded: one report of each process; the list of ended views is as long as checkpoints leave it.
#[derive(Debug)]
pub struct Restarter {
    pub(super) settings: RestartSettings,
    pub(super) placement: DurablePlacement,
    pub(super) file: RegisterWriter,
    pub(super) log: FlushedLog,
    phase: RestartPhase,
    /// The latest report of each other process, and when it came.
    peers: BTreeMap<NodeId, (RestartReport, Instant)>,
    /// If this process leads.
    pub(super) lead: Option<RestartLead>,
    /// How often it has led in this view: it waits longer each time.
    pub(super) attempts: u32,
    /// Since when enough members are here, under the ballot that was the highest then.
    pub(super) quorum_since: Option<(Instant, Option<Ballot>)>,
    /// When to lead, or to propose without those that have not answered, if nothing changes before.
    pub(super) lead_at: Option<Instant>,
    /// When to enter the view that is on the disk, whatever the log lacks of earlier ones.
    enter_at: Option<Instant>,
    /// What the own shards need before this process may accept the proposal.
    pub(super) awaited: Option<Vec<u64>>,
    transfer: LogTransfer,
    actions: VecDeque<RestartAction>,
    /// Reports made.
    reports: u64,
    reported: Option<RestartReport>,
    report_at: Instant,
    /// The member that was asked to let this process in.
    asked: Option<NodeId>,
    /// When all was looked at last.
    stepped_at: Instant,
    /// How many other processes are to be heard before a view is ended without waiting.
    pub(super) others: usize,
    /// The process that knows another history of the group \[T21\].
    contradiction: Option<NodeId>,
    /// Shards that are there since the present view has begun: they begin when it has ended \[T22\].
    pub(super) added: Vec<usize>,
}

/// Reports of members of the view that is to end, by rank.
pub(super) type RestartMembers = BTreeMap<usize, RestartReport>;

/// How far a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestartPhase {
    /// It records that it has started.
    Starting,
    /// It meets others, and takes part in the end of the present view.
    Meeting,
    /// It records a view that it has learned of.
    Recording,
    /// It has entered a view.
    Over,
}

/// How far a restart is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartStanding {
    /// The number of the view that is to end.
    pub view: u64,
    /// Its members that are here, this process included if it is one.
    pub present: Vec<NodeId>,
    /// Its members that are not.
    pub absent: Vec<NodeId>,
    /// How many of them have to be here.
    pub needed: usize,
}

impl Restarter {
    /// A process with what is found on its disk; `is_damaged` if the tail of its log is ([`Register::start`]).
    ///
    /// # Panics
    /// If the log has other shards than the view.
    #[must_use]
    pub fn new(
        settings: RestartSettings,
        placement: DurablePlacement,
        register: Register,
        log: LogState,
        is_damaged: bool,
        now: Instant,
    ) -> Self {
        assert_eq!(log.shards.len(), register.view().shards.len(), "the log is of another layout");
        let mut file = RegisterWriter::new(register);
        file.change().start(is_damaged);
        let mut log = FlushedLog::new(log);
        log.cut(&file.wanted().record.chain);
        Self {
            settings,
            placement,
            file,
            log,
            phase: RestartPhase::Starting,
            peers: BTreeMap::new(),
            lead: None,
            attempts: 0,
            quorum_since: None,
            lead_at: None,
            enter_at: None,
            awaited: None,
            transfer: LogTransfer::new(TransferSettings {
                answer: settings.fetch,
                pause: settings.report_every,
                avoid: settings.avoid,
            }),
            actions: VecDeque::new(),
            reports: 0,
            reported: None,
            report_at: now,
            asked: None,
            stepped_at: now,
            others: 0,
            contradiction: None,
            added: Vec::new(),
        }
    }

    /// Has shards begin when the present view ends, since they were added to the register in that view \[T22\].
    pub fn add_shards(&mut self, added: &[usize]) {
        self.added = added.to_vec();
    }

    /// Has this process wait for `count` others, as long as for absent members, before it ends a view although all members of that are here:
    /// if the register is an older copy, they know a later view \[T21\].
    pub const fn expect_others(&mut self, count: usize) {
        self.others = count;
    }

    /// Returns the process that knows another history of the group, if there is one: then this process goes no further \[T21\].
    #[must_use]
    pub const fn contradiction(&self) -> Option<NodeId> {
        self.contradiction
    }

    /// How many other processes are heard.
    pub(super) fn heard(&self) -> usize {
        self.peers.len()
    }

    /// What to do next; `None`: to wait until [`Restarter::next_deadline`], or for something to hand in.
    pub fn poll_action(&mut self, now: Instant) -> Option<RestartAction> {
        if self.actions.is_empty() && self.phase != RestartPhase::Over {
            self.step(now);
        }
        self.actions.pop_front()
    }

    /// When to poll again, whatever comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.phase == RestartPhase::Over {
            return None;
        }
        let silent = self.peers.values().map(|(_, heard_at)| *heard_at + self.settings.silence).min();
        let fetch = self.wanted_fetch().map(|_| self.transfer.next_deadline());
        let deadlines = [Some(self.report_at), silent, fetch, self.lead_at, self.enter_at];
        // What is over has been seen, and waits for something else.
        deadlines.into_iter().flatten().filter(|at| *at > self.stepped_at).min()
    }

    /// The register as it is on the disk.
    #[must_use]
    pub const fn register(&self) -> &Register {
        self.file.durable()
    }

    /// How far the restart is.
    #[must_use]
    pub fn standing(&self) -> RestartStanding {
        let (view, own) = (self.view(), self.node());
        let is_here = |node: &NodeId| *node == own || self.peers.contains_key(node);
        let (present, absent) = view.members.iter().copied().partition(is_here);
        RestartStanding { view: view.number, present, absent, needed: view.majority() }
    }

    /// The log, for others that ask for a part of it.
    #[must_use]
    pub const fn log(&self) -> &FlushedLog {
        &self.log
    }

    /// The register and the log, for the view that begins.
    #[must_use]
    pub fn into_parts(self) -> (RegisterWriter, FlushedLog) {
        (self.file, self.log)
    }

    /// A message has come.
    pub fn handle_message(&mut self, now: Instant, from: NodeId, message: RestartMessage) {
        if from == self.node() || self.phase == RestartPhase::Over {
            return;
        }
        let own = self.file.durable();
        let contradicts = match &message {
            RestartMessage::Report(report) => {
                report.view == Some(own.view().number)
                    && report.mark != own.view().mark()
                    && !own.view().members.is_empty()
            }
            RestartMessage::Views(record) => own.record.chain.contradicts(&record.chain),
        };
        if contradicts {
            self.contradiction.get_or_insert(from);
        }
        if self.contradiction.is_some() {
            return;
        }
        match message {
            RestartMessage::Report(report) => self.on_report(now, from, *report),
            RestartMessage::Views(record) => self.on_views(&record),
        }
    }

    /// The register is on the disk.
    pub fn handle_register_written(&mut self) {
        self.file.handle_written();
        if self.phase == RestartPhase::Starting {
            self.phase = RestartPhase::Meeting;
        }
    }

    /// The log is on the disk, up to what had been appended when the flush began.
    pub fn handle_log_flushed(&mut self) {
        self.log.handle_flushed();
    }

    /// What was asked for has come, or has not. Returns whether it counts: then the driver appends it to the log before it takes the next
    /// action, and else it does not.
    pub fn handle_fetched(
        &mut self,
        now: Instant,
        from: NodeId,
        request: FetchRequest,
        answer: FetchAnswer,
    ) -> bool {
        let answer = request.checked(answer, self.view().number);
        let taken = self.transfer.handle_answer(now, from, request, answer);
        if let Some((request, answer)) = taken {
            let is_checkpoint = matches!(answer, FetchAnswer::Checkpoint(_));
            reach(if is_checkpoint { Point::CheckpointFetched } else { Point::LogFetched });
            self.log.append_fetched(request, answer);
            self.log.cut(&self.file.wanted().record.chain);
        }
        taken.is_some()
    }

    /// A part of what was asked for has come, and more is to come.
    pub fn handle_part(&mut self, now: Instant, from: NodeId, request: FetchRequest) {
        self.transfer.handle_part(now, from, request);
    }

    pub(super) fn node(&self) -> NodeId {
        self.file.durable().node
    }

    /// The view that is to end.
    pub(super) fn view(&self) -> &DurableView {
        self.file.durable().view()
    }

    fn on_report(&mut self, now: Instant, from: NodeId, report: RestartReport) {
        if self.peers.get(&from).is_some_and(|(earlier, _)| earlier.order >= report.order) {
            return;
        }
        if let Some(message) = report.missing_views(self.file.durable()) {
            self.actions.push_back(RestartAction::Send(from, message));
        }
        self.peers.insert(from, (report, now));
    }

    /// Another process knows a newer view \[T10\], or more of earlier ones \[T19\].
    fn on_views(&mut self, record: &ViewRecord) {
        let is_ignored = mutant!(IgnoreNewerViews) && !self.view().members.is_empty();
        if is_ignored || self.phase == RestartPhase::Starting {
            return;
        }
        if self.file.change().learn(record) {
            reach(Point::ViewLearned);
            self.begin_recording();
        } else if self.file.change().extend(&record.chain) {
            reach(Point::ListExtended);
            self.log.cut(&self.file.wanted().record.chain);
        }
    }

    /// The present view is decided to end so \[T8\].
    pub(super) fn record(&mut self, end: &ViewEnd) {
        self.file.change().end_view(end);
        self.begin_recording();
    }

    fn begin_recording(&mut self) {
        self.log.cut(&self.file.wanted().record.chain);
        self.phase = RestartPhase::Recording;
        (self.lead, self.attempts, self.quorum_since, self.awaited) = (None, 0, None, None);
        (self.enter_at, self.added) = (None, Vec::new());
    }

    fn step(&mut self, now: Instant) {
        let silence = self.settings.silence;
        (self.stepped_at, self.lead_at) = (now, None);
        self.peers.retain(|_, (_, heard_at)| now < *heard_at + silence);
        match self.phase {
            RestartPhase::Recording if self.file.has_recorded_view() => self.on_recorded(now),
            RestartPhase::Meeting if self.contradiction.is_none() => {
                self.join();
                let members = self.members();
                self.step_down(&members);
                self.accept(&members);
                self.start_to_lead(now, &members);
                self.propose(now, &members);
                self.decide(&members);
            }
            _ => {}
        }
        if self.phase == RestartPhase::Over {
            return;
        }
        self.fetch(now);
        if self.log.poll_flush() {
            self.actions.push_back(RestartAction::FlushLog);
        }
        if let Some(register) = self.file.poll_write() {
            self.actions.push_back(RestartAction::WriteRegister(Box::new(register)));
        }
        self.report(now);
    }

    /// The next view is on the disk: a member acts in it \[T8\], any other process waits to join. A member that has not accepted how
    /// the view before ended may lack a part of it, and fetches that first if others are here that may have it. A group that has let this
    /// process in does not wait for that \[T3\].
    fn on_recorded(&mut self, now: Instant) {
        let record = &self.file.wanted().record;
        if self.file.wanted().is_member() && !self.has_not_begun(&record.view) {
            let mut shards = record.view.shards_of(self.node());
            let is_whole = shards.all(|shard| self.log.durable().is_whole(shard, record));
            let enter_at = *self.enter_at.get_or_insert(now + self.settings.base);
            if !is_whole && self.asked.is_none() && !self.peers.is_empty() && now < enter_at {
                return;
            }
            self.phase = RestartPhase::Over;
            let record = Box::new(self.file.wanted().record.clone());
            self.actions.push_back(RestartAction::Enter(record));
        } else {
            self.phase = RestartPhase::Meeting;
        }
    }

    /// Whether a shard has no members in a view that has not begun, although the layout wants some \[T22\]. Such a view is not entered, but
    /// ended, so that they are members of the next one. A group that has let this process in has begun it.
    fn has_not_begun(&self, view: &DurableView) -> bool {
        let wanted = || self.placement.view(view.number, view.members.clone());
        let lacks_one = view.shards.iter().any(RankSet::is_empty);
        let is_to_have = |(has, wants): (&RankSet, &RankSet)| has.is_empty() && !wants.is_empty();
        self.asked.is_none() && lacks_one && view.shards.iter().zip(&wanted().shards).any(is_to_have)
    }

    /// A process that is no member asks a group that runs, once for each member that it hears \[T10\].
    fn join(&mut self) {
        let own = self.file.durable();
        let runs = self.peers.iter().find(|(_, (report, _))| report.is_live);
        let via = runs.filter(|_| !own.is_member()).map(|(node, _)| *node);
        if via != self.asked {
            self.asked = via;
            self.actions.extend(via.map(RestartAction::Join));
        }
    }

    /// What the log needs first: what the proposal counts on, then what was before the present view.
    fn wanted_fetch(&self) -> Option<FetchRequest> {
        let (register, log) = (self.file.wanted(), self.log.appended());
        let own = register.node;
        if self.phase == RestartPhase::Starting {
            return None;
        }
        let view = register.view();
        let lacks = |(shard, trims): (usize, &Vec<u64>)| {
            let is_short = log.shards[shard].count(view.number) < trims[shard];
            is_short.then(|| log.missing(shard, view.number, trims[shard]))
        };
        let mut awaited = view.shards_of(own).filter_map(|shard| Some((shard, self.awaited.as_ref()?)));
        let mut bases = view.shards_of(own).filter_map(|shard| log.missing_base(shard, &register.record));
        awaited.find_map(lacks).or_else(|| bases.next())
    }

    fn fetch(&mut self, now: Instant) {
        let Some(wanted) = self.wanted_fetch() else { return };
        let providers: Vec<NodeId> = self.peers.keys().copied().collect();
        if let Some((from, request)) = self.transfer.poll(now, wanted, &providers) {
            self.actions.push_back(RestartAction::Fetch { from, request });
        }
    }

    /// Reports what has changed, and that this process is alive.
    fn report(&mut self, now: Instant) {
        if self.phase == RestartPhase::Starting {
            return;
        }
        let mut report = self.own_report();
        let is_same = self.reported.as_ref().is_some_and(|reported| {
            report.order = reported.order;
            *reported == report
        });
        if is_same && now < self.report_at {
            return;
        }
        self.reports += 1;
        report.order = (self.file.durable().starts, self.reports);
        self.report_at = now + self.settings.report_every;
        self.reported = Some(report.clone());
        self.actions.push_back(RestartAction::Broadcast(Box::new(report)));
    }

    /// What is on the disk \[T12\] \[T15\], and what this process proposes.
    pub(super) fn own_report(&self) -> RestartReport {
        let register = self.file.durable();
        let (view, log) = (register.view(), self.log.durable());
        let is_settled = self.phase == RestartPhase::Meeting;
        let lead = self.lead.as_ref().filter(|lead| self.file.visible_promise() >= Some(lead.ballot));
        RestartReport {
            wants_to_join: self.asked.is_some(),
            promise: self.file.visible_promise().filter(|_| is_settled),
            vote: self.file.visible_vote().filter(|_| is_settled).cloned(),
            counts: log.shards.iter().map(|shard| shard.count(view.number)).collect(),
            whole: (0..log.shards.len()).map(|shard| log.is_whole(shard, &register.record)).collect(),
            is_damaged: register.is_damaged(),
            lead: lead.map(|lead| lead.ballot),
            proposal: lead.and_then(|lead| lead.proposal.clone()),
            ..RestartReport::of(self.reports, register)
        }
    }

    /// The reports of members of the view that is to end, by rank, this one's included.
    fn members(&self) -> RestartMembers {
        let view = self.view();
        let takes_part = |report: &RestartReport| !report.is_live && report.view == Some(view.number);
        let others = self.peers.iter().filter(|(_, (report, _))| takes_part(report));
        let others = others.filter_map(|(node, (report, _))| Some((view.rank(*node)?, report.clone())));
        let own = view.rank(self.node()).map(|rank| (rank, self.own_report()));
        others.chain(own).collect()
    }

    /// Processes that take part without being members: they count for nothing \[T13\].
    pub(super) fn outsiders(&self) -> usize {
        let view = self.view();
        let is_one = |(node, (report, _)): &(&NodeId, &(RestartReport, Instant))| {
            !report.is_live && view.rank(**node).is_none()
        };
        self.peers.iter().filter(is_one).count()
    }

    /// Whether a group runs that has this view or a later one: it is joined, and nothing is restarted beside it \[T10\].
    pub(super) fn hears_a_group(&self) -> bool {
        self.peers.values().any(|(report, _)| report.is_live && report.view >= Some(self.view().number))
    }
}
