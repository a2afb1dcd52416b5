//! The work of `squall demo`: every member sends its share of the lines and digests what it delivers.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use squall::Message;
use squall::config::SubgroupConfig;
use squall_fabric::atomics::{AtomicBool, AtomicU64, Ordering};
use squall_fabric::mutex::lock;

use super::parent_watchdog::ParentWatchdog;
use super::{Ended, GroupMember, MemberInbox, MulticastMember, ProgressTicker, await_all, finish, say};
use crate::clock::now_ns;
use crate::control::{DemoJob, GroupJob, LogReport, MemberEvent, MemberReport};
use crate::digest::SequenceDigest;
use crate::latency::Latencies;
use crate::text::DemoText;

/// Lines sent between two polls.
const BURST: usize = 16;

pub(super) fn perform(group: &GroupJob, job: &DemoJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    let text = DemoText::read(job.input.as_deref())?;
    let shared = Arc::new(SharedProgress::new(job.window));
    let log = Log::open(group, job, &text, Arc::clone(&shared))?;
    let mut member = GroupMember::join(group, subgroup(job), log)?;
    await_all(&mut member, group, watchdog)?;
    let caught_up = || watchdog.caught_up();
    let outcome = send_and_log(&mut member, group, job, &text, &shared, &caught_up);
    let outcome = outcome.map(|report| {
        let (counters, timeline) = (member.counters(), member.timeline());
        MemberReport { counters, timeline, ..report }
    });
    Ok(finish(member, outcome, watchdog))
}

fn subgroup(job: &DemoJob) -> SubgroupConfig {
    let usual = SubgroupConfig::default();
    SubgroupConfig {
        window: job.window,
        message_max: job.message_max,
        window_bytes: usual.window_bytes.max(4 * job.message_max),
        ..usual
    }
}

/// What the sending side and the log share, both on one thread.
struct SharedProgress {
    delivered: AtomicU64,
    origin: Instant,
    /// When the own lines under way were sent: line `n` at place `n % sent_at_ns.len()`. There is one place more
    /// than the window has, so that the next line's is free even when the window is full.
    sent_at_ns: Vec<AtomicU64>,
    is_closed: AtomicBool,
    /// A joiner's first view.
    first_view: AtomicU64,
    /// What a joiner was sent: how much each member had yet to deliver when its first view began.
    reported: Mutex<Option<Vec<u64>>>,
    /// What the log holds at the end.
    closed: Mutex<Option<Result<ClosedLog>>>,
}

impl SharedProgress {
    fn new(window: usize) -> Self {
        Self {
            delivered: AtomicU64::new(0),
            origin: Instant::now(),
            sent_at_ns: (0..=window).map(|_| AtomicU64::new(0)).collect(),
            is_closed: AtomicBool::new(false),
            first_view: AtomicU64::new(0),
            reported: Mutex::new(None),
            closed: Mutex::new(None),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn sent_at(&self, line: u64) -> &AtomicU64 {
        let place = line % self.sent_at_ns.len() as u64;
        &self.sent_at_ns[usize::try_from(place).expect("below the length")]
    }
}

struct ClosedLog {
    digest: String,
    by_sender: Vec<String>,
    since: Option<String>,
    bytes: u64,
    resumed_ns: Option<u64>,
    latencies: Latencies,
}

/// What this member has delivered.
struct Log {
    rank: usize,
    /// How many lines each member has yet to deliver to us, by rank.
    missing: Vec<u64>,
    /// The rank of the joiner.
    joiner: Option<usize>,
    /// The joiner is in the view.
    has_come: bool,
    /// The present view.
    view: Option<u64>,
    /// The members of the present view. The log is closed when none of them has a line missing.
    members: Vec<usize>,
    delivered: u64,
    own: u64,
    bytes: u64,
    /// A member has gone and nothing has been delivered since.
    is_interrupted: bool,
    resumed_ns: Option<u64>,
    /// `None` once the log is closed.
    digests: Option<Digests>,
    latencies: Latencies,
    file: Option<BufWriter<File>>,
    failure: Option<anyhow::Error>,
    shared: Arc<SharedProgress>,
}

struct Digests {
    whole: SequenceDigest,
    /// Since the joiner is in the view.
    since: Option<SequenceDigest>,
    by_sender: Vec<SequenceDigest>,
}

impl Log {
    fn open(group: &GroupJob, job: &DemoJob, text: &DemoText, shared: Arc<SharedProgress>) -> Result<Self> {
        let file = job.keep.as_deref().map(|folder| create_log(folder, group.rank)).transpose()?;
        let ranks = group.members + usize::from(job.joiner.is_some());
        let by_sender = vec![SequenceDigest::new(); ranks];
        let joins = job.joiner == Some(group.rank);
        Ok(Self {
            rank: group.rank,
            missing: (0..ranks)
                .map(|rank| match joins && rank != group.rank {
                    true => UNKNOWN,
                    false => text.share_lines(rank.min(group.members - 1), group.members, job.rounds),
                })
                .collect(),
            joiner: job.joiner,
            has_come: false,
            view: None,
            members: if joins { Vec::new() } else { (0..group.members).collect() },
            delivered: 0,
            own: 0,
            bytes: 0,
            is_interrupted: false,
            resumed_ns: None,
            digests: Some(Digests { whole: SequenceDigest::new(), since: None, by_sender }),
            latencies: Latencies::default(),
            file,
            failure: None,
            shared,
        })
    }

    fn write(&mut self, sender: usize, bytes: &[u8]) {
        let Some(file) = &mut self.file else { return };
        let outcome = write!(file, "{sender}\t")
            .and_then(|()| file.write_all(bytes))
            .and_then(|()| file.write_all(b"\n"));
        self.keep_failure(outcome);
    }

    fn keep_failure(&mut self, outcome: std::io::Result<()>) {
        if let (Err(error), None) = (outcome, &self.failure) {
            self.failure = Some(anyhow::Error::new(error).context("cannot write the log"));
        }
    }

    fn close(&mut self) {
        let Some(digests) = self.digests.take() else { return };
        if let Some(mut file) = self.file.take() {
            let outcome = file.flush();
            self.keep_failure(outcome);
        }
        let closed = match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(ClosedLog {
                digest: digests.whole.finish(),
                by_sender: digests.by_sender.into_iter().map(SequenceDigest::finish).collect(),
                since: digests.since.map(SequenceDigest::finish),
                bytes: self.bytes,
                resumed_ns: self.resumed_ns,
                latencies: std::mem::take(&mut self.latencies),
            }),
        };
        *lock(&self.shared.closed) = Some(closed);
        self.shared.is_closed.store(true, Ordering::Relaxed);
    }

    /// No member of the view has a line missing, and no joiner is expected.
    fn is_complete(&self) -> bool {
        let all_are_there = self.joiner.is_none() || self.has_come;
        all_are_there && self.members.iter().all(|member| self.missing[*member] == 0)
    }

    /// The joiner learns how much the others had missing when its first view began; it has counted down since.
    fn catch_up(&mut self) {
        if let Some(reported) = lock(&self.shared.reported).take() {
            self.has_come = true;
            for (rank, reported) in reported.into_iter().enumerate().filter(|(rank, _)| *rank != self.rank) {
                self.missing[rank] = reported.saturating_sub(UNKNOWN - self.missing[rank]);
            }
        }
    }
}

/// What a joiner takes for the number of lines missing, until it learns it.
const UNKNOWN: u64 = 1 << 62;

impl MemberInbox for Log {
    fn on_message(&mut self, message: Message<'_>) {
        if self.joiner == Some(self.rank) && !self.has_come {
            self.catch_up();
        }
        let Some(digests) = &mut self.digests else { return };
        let (sender, bytes) = (self.members[message.sender], message.bytes);
        if std::mem::take(&mut self.is_interrupted) {
            self.resumed_ns = Some(now_ns());
        }
        digests.whole.append(sender, bytes);
        digests.by_sender[sender].append(sender, bytes);
        if let Some(since) = &mut digests.since {
            since.append(sender, bytes);
        }
        self.bytes += bytes.len() as u64;
        if sender == self.rank {
            let latency = self.shared.now_ns() - self.shared.sent_at(self.own).load(Ordering::Relaxed);
            self.latencies.record(Duration::from_nanos(latency));
            self.own += 1;
        }
        self.write(sender, bytes);
        self.delivered += 1;
        self.missing[sender] = self.missing[sender].saturating_sub(1);
        if self.missing[sender] == 0 && self.is_complete() {
            self.close();
        }
    }

    fn on_view(&mut self, view: u64, members: &[usize]) {
        // A joiner that the others have removed before it had arrived rejoins, some views later.
        if self.view.replace(view).is_none_or(|before| before + 1 < view) {
            self.shared.first_view.store(view, Ordering::Relaxed);
        }
        let gone = self.members.iter().filter(|member| !members.contains(member));
        for member in gone {
            say(&MemberEvent::Gone { member: *member });
            self.is_interrupted = true;
        }
        let before = std::mem::replace(&mut self.members, members.to_vec());
        let was_there = |member: usize| before.contains(&member);
        // A member that expects nothing more from the others does not wait for them.
        self.is_interrupted &= members.iter().any(|member| self.missing[*member] > 0);
        let comes = self
            .joiner
            .is_some_and(|joiner| joiner != self.rank && members.contains(&joiner) && !was_there(joiner));
        if let Some(digests) = self.digests.as_mut().filter(|_| comes) {
            digests.since = Some(SequenceDigest::new());
            self.has_come = true;
            say(&MemberEvent::Arrived { view, missing: self.missing.clone() });
        }
        if self.is_complete() {
            self.close();
        }
    }

    fn on_batch_end(&mut self) {
        self.shared.delivered.store(self.delivered, Ordering::Relaxed);
    }
}

/// Sends this member's lines and logs those of all.
fn send_and_log(
    member: &mut impl MulticastMember,
    group: &GroupJob,
    job: &DemoJob,
    text: &DemoText,
    shared: &SharedProgress,
    caught_up: &dyn Fn() -> Option<(u64, Vec<u64>)>,
) -> Result<MemberReport> {
    // A joiner sends the last member's share once more.
    let share = group.rank.min(group.members - 1);
    let mut lines = text.share(share, group.members, job.rounds).peekable();
    let mut may_send = job.joiner != Some(group.rank);
    let mut sent = 0;
    let mut sent_digest = SequenceDigest::new();
    let mut ticker = ProgressTicker::new();
    let begun = Instant::now();
    while !shared.is_closed.load(Ordering::Relaxed) {
        if !may_send
            && let Some((view, reported)) = caught_up()
            && view == shared.first_view.load(Ordering::Relaxed)
        {
            *lock(&shared.reported) = Some(reported);
            may_send = true;
        }
        for _ in 0..BURST {
            let Some(line) = lines.peek().filter(|_| may_send) else { break };
            shared.sent_at(sent).store(shared.now_ns(), Ordering::Relaxed);
            if !member.try_send(line.len(), |payload| payload.put(line))? {
                break;
            }
            sent_digest.append(group.rank, line);
            sent += 1;
            lines.next();
        }
        member.step()?;
        ticker.tick(shared.delivered.load(Ordering::Relaxed));
    }
    let seconds = begun.elapsed().as_secs_f64();
    let closed = lock(&shared.closed).take();
    let closed = closed.context("the log was not closed")??;
    Ok(MemberReport {
        sent,
        delivered: shared.delivered.load(Ordering::Relaxed),
        bytes: closed.bytes,
        resumed_ns: closed.resumed_ns,
        seconds,
        latencies: closed.latencies,
        log: Some(LogReport {
            digest: closed.digest,
            by_sender: closed.by_sender,
            sent: sent_digest.finish(),
            since: closed.since,
        }),
        ..MemberReport::default()
    })
}

fn create_log(folder: &Path, rank: usize) -> Result<BufWriter<File>> {
    let path = folder.join(format!("member-{rank}.log"));
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(BufWriter::with_capacity(1 << 16, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::member::loopback::Loopback;

    fn run(rounds: u64, keep: Option<&Path>) -> MemberReport {
        let text = DemoText::read(None).unwrap();
        let group = GroupJob::alone();
        let job = DemoJob {
            input: None,
            rounds,
            messages: rounds * text.lines() as u64,
            message_max: text.longest(),
            window: 5,
            keep: keep.map(Into::into),
            joiner: None,
        };
        let shared = Arc::new(SharedProgress::new(job.window));
        let log = Log::open(&group, &job, &text, Arc::clone(&shared)).unwrap();
        send_and_log(&mut Loopback::new(job.window, log), &group, &job, &text, &shared, &|| None).unwrap()
    }

    #[test]
    fn the_log_holds_what_was_sent() {
        let report = run(3, None);
        assert_eq!((report.sent, report.delivered), (3 * 272, 3 * 272));
        let log = report.log.unwrap();
        assert_eq!(log.by_sender, std::slice::from_ref(&log.sent));
        assert_eq!(log.digest, log.sent, "one member alone sends the whole log");
        assert!(report.latencies.percentiles().is_some());
        assert_ne!(run(2, None).log.unwrap().digest, log.digest);
    }

    #[test]
    fn a_log_that_is_kept_holds_every_line() {
        let folder = std::env::temp_dir().join(format!("squall-keep-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        run(1, Some(&folder));
        let kept = std::fs::read_to_string(folder.join("member-0.log"));
        std::fs::remove_dir_all(&folder).unwrap();
        let lines: String =
            include_str!("../../assets/sea.txt").lines().map(|line| format!("0\t{line}\n")).collect();
        assert_eq!(kept.unwrap(), lines);
    }
}
