//! A small model of a member of a view that runs: messages, suspicion, wedge, proposal, echo and decision as membership has them,
//! with the register, the log and the rules that ship ([`squall_protocols::restart`]).

use std::collections::BTreeMap;

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::membership::RankSet;
use squall_protocols::restart::{
    BaseStep, BaseTransfer, DurablePlacement, FetchAnswer, FetchRequest, FlushedLog, LogStart, Register,
    RegisterWriter, RestartMessage, RestartReport, TransferSettings, ViewEnd, ViewRecord, Vote, deliverable,
    may_forget,
};

/// What the others see of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LiveRow {
    pub(super) order: (u64, u64),
    pub(super) view: u64,
    pub(super) persisted: Vec<u64>,
    pub(super) whole: Vec<bool>,
    /// When it has wedged.
    pub(super) counts: Option<Vec<u64>>,
    /// By rank.
    pub(super) suspected: RankSet,
    pub(super) echo: Option<Vote>,
    pub(super) wishes_to_leave: bool,
}

/// What a member does.
#[derive(Clone, Debug)]
pub(super) enum LiveAction {
    WriteRegister(Box<Register>),
    FlushLog,
    Fetch(NodeId, FetchRequest),
    /// To all members of the view.
    Show(Box<LiveRow>),
    /// To all processes.
    Report(Box<RestartReport>),
    Send(NodeId, RestartMessage),
    Append {
        view: u64,
        shard: usize,
        count: u64,
    },
    AppendCheckpoint {
        shard: usize,
        base: LogStart,
    },
    Deliver {
        view: u64,
        shard: usize,
        count: u64,
    },
    /// The view is decided to end, and what follows.
    Decide(Box<ViewRecord>),
    /// The next view is on the disk.
    Enter,
    /// The process ends, and starts again; it has left if the view after its last one is named.
    Stop(Option<Box<ViewEnd>>),
}

/// What a member reads of the world around it.
pub(super) struct LiveContext<'a> {
    pub(super) now: Instant,
    pub(super) prng: &'a mut Prng,
    /// Whether faults are over.
    pub(super) is_calm: bool,
    /// By shard, how many messages of the present view there are.
    pub(super) sent: Vec<u64>,
    /// How many members may be accused without a reason.
    pub(super) false_accusations: &'a mut u32,
    pub(super) compacts: bool,
}

pub(super) struct LiveMember {
    pub(super) placement: DurablePlacement,
    pub(super) file: RegisterWriter,
    pub(super) log: FlushedLog,
    pub(super) wishes_to_leave: bool,
    /// By rank; that of a suspected member stays as it is.
    pub(super) rows: BTreeMap<usize, LiveRow>,
    /// By rank, when it gave a sign of life.
    heard_at: Vec<Instant>,
    /// Processes that take part in no view.
    pub(super) waiting: BTreeMap<NodeId, (RestartReport, Instant)>,
    pub(super) suspected: RankSet,
    pub(super) counts: Option<Vec<u64>>,
    pub(super) delivered: Vec<u64>,
    is_recording: bool,
    /// A process has been heard that knows a newer view.
    pub(super) ahead_until: Instant,
    base: BaseTransfer,
    /// The view before which everything is to be forgotten, when the checkpoints are on the disk.
    compacting: Option<u64>,
    rows_made: u64,
    shown: Option<LiveRow>,
    show_at: Instant,
    report_at: Instant,
    pub(super) actions: Vec<LiveAction>,
}

impl LiveMember {
    pub(super) fn new(
        placement: DurablePlacement,
        parts: (RegisterWriter, FlushedLog),
        wishes_to_leave: bool,
        now: Instant,
    ) -> Self {
        let (file, log) = parts;
        let mut member = Self {
            placement,
            file,
            log,
            wishes_to_leave,
            rows: BTreeMap::new(),
            heard_at: Vec::new(),
            waiting: BTreeMap::new(),
            suspected: RankSet::EMPTY,
            counts: None,
            delivered: Vec::new(),
            is_recording: false,
            ahead_until: now,
            base: BaseTransfer::new(TRANSFER, REGISTER),
            compacting: None,
            rows_made: 0,
            shown: None,
            show_at: now,
            report_at: now,
            actions: Vec::new(),
        };
        member.open(now);
        member
    }

    /// The view begins.
    fn open(&mut self, now: Instant) {
        let view = self.file.wanted().view();
        self.heard_at = vec![now + OPENING; view.members.len()];
        self.delivered = vec![0; view.shards.len()];
        (self.suspected, self.counts, self.is_recording, self.ahead_until) =
            (RankSet::EMPTY, None, false, now);
        self.rows.clear();
    }

    /// The view in which it is live.
    pub(super) fn record(&self) -> &ViewRecord {
        &self.file.wanted().record
    }

    pub(super) fn own_rank(&self) -> usize {
        self.record().view.rank(self.file.wanted().node).expect("it is a member")
    }

    /// Whether nothing keeps it from running on in its view.
    pub(super) const fn is_running(&self) -> bool {
        !self.is_recording && self.counts.is_none() && self.suspected.is_empty()
    }

    pub(super) fn handle_row(&mut self, now: Instant, from: NodeId, row: LiveRow) {
        let register = self.file.durable();
        if row.view < register.view().number {
            let message = RestartMessage::Views(Box::new(register.record.clone()));
            return self.actions.push(LiveAction::Send(from, message));
        }
        if row.view > self.record().view.number {
            self.ahead_until = now + SUSPICION;
        }
        let Some(rank) = self.record().view.rank(from) else { return };
        let is_frozen = self.suspected.contains(rank);
        if self.is_recording || row.view != self.record().view.number || is_frozen {
            return;
        }
        if self.rows.get(&rank).is_none_or(|earlier| earlier.order < row.order) {
            self.heard_at[rank] = self.heard_at[rank].max(now);
            self.rows.insert(rank, row);
        }
    }

    pub(super) fn handle_message(&mut self, now: Instant, from: NodeId, message: RestartMessage) {
        match message {
            RestartMessage::Report(report) => {
                let is_old = |(earlier, _): &(RestartReport, Instant)| earlier.order >= report.order;
                if self.waiting.get(&from).is_some_and(is_old) {
                    return;
                }
                if let Some(message) = report.missing_views(self.file.durable()) {
                    self.actions.push(LiveAction::Send(from, message));
                }
                if report.view > Some(self.record().view.number) {
                    self.ahead_until = now + SUSPICION;
                }
                self.waiting.insert(from, (*report, now));
            }
            RestartMessage::Views(record) => self.learn(&record),
        }
    }

    /// The own view has ended, and others know how.
    fn learn(&mut self, record: &ViewRecord) {
        if !record.view.is_after(&self.record().view) {
            if self.file.change().extend(&record.chain) {
                self.log.cut(&self.file.wanted().record.chain);
            }
            return;
        }
        if self.is_recording {
            return;
        }
        if record.view.rank(self.file.wanted().node).is_none() {
            // It may have voted for its departure, and learn of the decision before it can decide itself.
            let vote = self.file.wanted().vote.as_ref().filter(|vote| vote.end.next == record.view);
            let left = vote.filter(|_| self.wishes_to_leave).map(|vote| Box::new(vote.end.clone()));
            return self.actions.push(LiveAction::Stop(left));
        }
        let number = self.record().view.number;
        let trims: Option<Vec<u64>> =
            (0..record.view.shards.len()).map(|shard| record.chain.trim_of(number, shard)).collect();
        if let Some(trims) = trims {
            self.deliver_trim(&trims);
        }
        self.file.change().learn(record);
        self.log.cut(&self.file.wanted().record.chain);
        self.is_recording = true;
    }

    /// Delivers what counts of the view, as far as it is here \[T7\].
    pub(super) fn deliver_trim(&mut self, trims: &[u64]) {
        let record = self.record();
        let view = record.view.number;
        let log = self.log.durable();
        let mut shards: Vec<usize> = record.view.shards_of(self.file.wanted().node).collect();
        shards.retain(|shard| {
            let is_here = log.shards[*shard].count(view) >= trims[*shard] && log.is_whole(*shard, record);
            is_here && trims[*shard] > self.delivered[*shard]
        });
        let delivery = |shard| LiveAction::Deliver { view, shard, count: trims[shard] };
        self.actions.extend(shards.into_iter().map(delivery));
    }

    /// The view has ended so, says this member's own decision.
    pub(super) fn end(&mut self, end: ViewEnd) {
        self.actions.push(LiveAction::Decide(Box::new(self.record().next(&end))));
        if end.next.rank(self.file.wanted().node).is_none() {
            let left = self.wishes_to_leave.then(|| Box::new(end));
            return self.actions.push(LiveAction::Stop(left));
        }
        self.deliver_trim(&end.trims);
        self.file.change().end_view(&end);
        self.log.cut(&self.file.wanted().record.chain);
        self.is_recording = true;
    }

    /// Returns whether what has come counts.
    pub(super) fn handle_fetched(
        &mut self,
        now: Instant,
        from: NodeId,
        request: FetchRequest,
        answer: FetchAnswer,
    ) -> bool {
        let taken = self.base.handle_answer(now, from, request, answer);
        if let Some((request, answer)) = taken {
            self.log.append_fetched(request, answer);
            self.log.cut(&self.file.wanted().record.chain);
        }
        taken.is_some()
    }

    /// A process that was asked for records answers how views have ended.
    pub(super) fn handle_trims(
        &mut self,
        now: Instant,
        from: NodeId,
        request: FetchRequest,
        message: RestartMessage,
    ) {
        self.base.handle_trims(now, from, request, self.file.durable());
        self.handle_message(now, from, message);
    }

    /// One evaluation; what is to be done is in `actions`.
    pub(super) fn step(&mut self, context: &mut LiveContext<'_>) {
        let now = context.now;
        self.waiting.retain(|_, (_, heard_at)| now < *heard_at + SUSPICION);
        if self.is_recording && self.file.has_recorded_view() {
            self.open(now);
            self.actions.push(LiveAction::Enter);
        }
        if !self.is_recording {
            self.receive(context);
            self.deliver();
            self.compact(context);
            self.suspect(context);
            self.change(context);
        }
        if self.actions.iter().any(|action| matches!(action, LiveAction::Stop(_))) {
            return;
        }
        self.fetch(now);
        if self.log.poll_flush() {
            self.actions.push(LiveAction::FlushLog);
        }
        if let Some(register) = self.file.poll_write() {
            self.actions.push(LiveAction::WriteRegister(Box::new(register)));
        }
        self.show(now);
    }

    /// Receives some of the messages that there are \[T1\].
    fn receive(&mut self, context: &mut LiveContext<'_>) {
        if self.counts.is_some() {
            return;
        }
        let (node, view) = (self.file.wanted().node, self.record().view.number);
        let shards: Vec<usize> = self.record().view.shards_of(node).collect();
        for shard in shards {
            let held = self.log.appended().shards[shard].count(view);
            if held < context.sent[shard] && context.prng.chance(600) {
                self.log.append(shard, view, held + 1);
                self.actions.push(LiveAction::Append { view, shard, count: held + 1 });
            }
        }
    }

    fn deliver(&mut self) {
        let record = self.record();
        let (view, own) = (&record.view, self.own_rank());
        let log = self.log.durable();
        let mut delivered = Vec::new();
        for shard in view.shards_of(self.file.wanted().node) {
            let ranks = (0..view.members.len()).filter(|rank| view.shards[shard].contains(*rank));
            let shown = |rank: usize| match self.rows.get(&rank) {
                _ if rank == own => (log.shards[shard].count(view.number), !log.is_whole(shard, record)),
                Some(row) => (row.persisted[shard], !row.whole[shard]),
                None => (0, false),
            };
            let (persisted, joiners): (Vec<u64>, Vec<bool>) = ranks.map(shown).unzip();
            let count = deliverable(&persisted, &joiners, log.is_whole(shard, record));
            if count > self.delivered[shard] {
                delivered.push((view.number, shard, count));
            }
        }
        for (view, shard, count) in delivered {
            self.delivered[shard] = count;
            self.actions.push(LiveAction::Deliver { view, shard, count });
        }
    }

    /// Makes checkpoints of what is delivered, and forgets the trims that they cover when they are on the disk.
    fn compact(&mut self, context: &mut LiveContext<'_>) {
        let (register, log) = (self.file.wanted(), self.log.appended());
        let view = register.view().number;
        let own: Vec<usize> = register.view().shards_of(register.node).collect();
        if let Some(base) = self.compacting {
            if self.log.is_flushed() {
                self.compacting = None;
                self.file.change().forget_before(base);
            }
            return;
        }
        let start = |shard: usize| LogStart { view, sequence: self.delivered[shard] };
        let is_news = own.iter().any(|shard| log.shards[*shard].base < start(*shard));
        if !context.compacts || !is_news || !self.log.is_flushed() || !context.prng.chance(20) {
            return;
        }
        let has_others = (0..log.shards.len())
            .any(|shard| !own.contains(&shard) && log.shards[shard] != Default::default());
        let is_whole = own.iter().all(|shard| log.is_whole(*shard, &register.record));
        if has_others || !is_whole {
            return;
        }
        let shown = |rank: usize| match self.rows.get(&rank) {
            _ if rank == self.own_rank() => Some(self.own_whole()),
            row => row.map(|row| row.whole.clone()),
        };
        let shown: Vec<_> = (0..register.view().members.len()).map(shown).collect();
        self.compacting = may_forget(register.view(), &shown).then_some(view);
        for (shard, base) in own.into_iter().map(|shard| (shard, start(shard))).collect::<Vec<_>>() {
            self.log.append_checkpoint(shard, base);
            self.actions.push(LiveAction::AppendCheckpoint { shard, base });
        }
    }

    /// Suspects members that it does not hear, and sometimes one that it hears.
    fn suspect(&mut self, context: &mut LiveContext<'_>) {
        let view = &self.record().view;
        let (own, count) = (self.own_rank(), view.members.len());
        let mut suspected = RankSet::EMPTY;
        for rank in (0..count).filter(|rank| *rank != own) {
            let is_silent = context.now >= self.heard_at[rank] + SUSPICION;
            let is_out = self.waiting.get(&view.members[rank]).is_some_and(|(report, _)| {
                !report.is_live
                    && report.view >= Some(view.number)
                    && self.rows.get(&rank).is_none_or(|row| row.order.0 < report.order.0)
            });
            if is_silent || is_out {
                suspected.insert(rank);
            }
        }
        self.suspected |= suspected;
        if !context.is_calm && *context.false_accusations > 0 && count > 1 && context.prng.chance(4) {
            let rank = context.prng.index(count);
            if rank != own {
                *context.false_accusations -= 1;
                self.suspected.insert(rank);
            }
        }
    }

    fn fetch(&mut self, now: Instant) {
        let (register, log) = (self.file.wanted(), self.log.appended());
        let members = register.view().members.iter().copied().filter(|node| *node != register.node);
        let mut providers: Vec<NodeId> = members.chain(self.waiting.keys().copied()).collect();
        providers.sort_unstable();
        providers.dedup();
        if let BaseStep::Fetch { from, request } = self.base.poll(now, register, log, &providers) {
            self.actions.push(LiveAction::Fetch(from, request));
        }
    }

    /// Shows the row when it has changed, and that this member is alive.
    fn show(&mut self, now: Instant) {
        let register = self.file.durable();
        if self.is_recording {
            return;
        }
        let (record, log) = (&register.record, self.log.durable());
        // [T6] An echo that is under way is seen before the suspicion of its leader is.
        let shown = self.shown.as_ref().filter(|row| row.view == self.record().view.number);
        let suspected = match self.file.shows_vote() {
            true => self.suspected,
            false => shown.map_or(RankSet::EMPTY, |row| row.suspected),
        };
        let row = LiveRow {
            order: (0, 0),
            view: self.record().view.number,
            persisted: log.shards.iter().map(|shard| shard.count(self.record().view.number)).collect(),
            whole: (0..log.shards.len()).map(|shard| log.is_whole(shard, record)).collect(),
            counts: self.counts.clone(),
            suspected,
            echo: self.file.visible_vote().cloned(),
            wishes_to_leave: self.wishes_to_leave,
        };
        if self.shown.as_ref() == Some(&row) && now < self.show_at {
            return;
        }
        self.rows_made += 1;
        self.show_at = now + SIGN_OF_LIFE;
        self.shown = Some(row.clone());
        let order = (register.starts, self.rows_made);
        let report = RestartReport::live(self.rows_made, register);
        self.actions.push(LiveAction::Show(Box::new(LiveRow { order, ..row })));
        if now >= self.report_at {
            self.report_at = now + SIGN_OF_LIFE;
            self.actions.push(LiveAction::Report(Box::new(report)));
        }
    }
}

/// Between two signs of life of a member that has nothing else to show.
const SIGN_OF_LIFE: Duration = Duration::from_micros(700);
/// A member that is silent for that long is suspected.
pub(super) const SUSPICION: Duration = Duration::from_millis(4);
/// Members may begin a view so much later than others.
const OPENING: Duration = Duration::from_millis(5);
/// For those that are asked for a part of a log.
pub(super) const TRANSFER: TransferSettings = TransferSettings {
    answer: Duration::from_millis(1),
    pause: Duration::from_millis(1),
    avoid: Duration::from_millis(6),
};
/// For a register to come to the disk.
const REGISTER: Duration = Duration::from_millis(5);
