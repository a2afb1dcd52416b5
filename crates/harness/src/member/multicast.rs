//! The work of `squall bench multicast`: senders send, all members deliver and read.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use squall::config::{Config, Retention, StorageConfig, SubgroupConfig};
use squall::{Message, Payload};
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::mutex::lock;

use super::parent_watchdog::ParentWatchdog;
use super::{
    Ended, GroupMember, MemberInbox, MulticastMember, ProgressTicker, await_all, batching, config, finish,
    subgroup_name,
};
use crate::control::{GroupJob, MemberReport, ModeName, MulticastJob};
use crate::latency::Latencies;

/// The name of the durable subgroup without messages, and the first part of the names of others.
const IDLE: &str = "without-messages";

/// Bytes that enter a core's cache together; one of each is read.
const LINE_BYTES: usize = 64;

pub(super) fn perform(group: &GroupJob, job: &MulticastJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    let tally = Arc::new(Tally::new(job.subgroups));
    let inboxes =
        (0..job.subgroups).map(|number| Reader::new(group, job, number, Arc::clone(&tally))).collect();
    let storage = job.storage.clone().map(StorageConfig::new);
    let config = Config { storage, ..config(group)? };
    let config = (0..job.subgroups)
        .fold(config, |config, number| config.subgroup(&subgroup_name(number), subgroup(job)));
    let beside = (job.storage.is_some() && job.mode != ModeName::Durable).then(|| subgroup(&idle(job)));
    let config = beside.into_iter().fold(config, |config, idle| config.subgroup(IDLE, idle));
    let config = (0..job.idle_subgroups)
        .fold(config, |config, number| config.subgroup(&format!("{IDLE}-{number}"), small(job)));
    let mut member = GroupMember::join_all(config, inboxes)?;
    await_all(&mut member, group, watchdog)?;
    let outcome = send_and_deliver(&mut member, group.rank, job, &tally);
    let outcome = outcome.map(|report| MemberReport { counters: member.counters(), ..report });
    Ok(finish(member, outcome, watchdog))
}

/// A durable subgroup without messages.
fn idle(job: &MulticastJob) -> MulticastJob {
    MulticastJob { mode: ModeName::Durable, ..job.clone() }
}

/// A subgroup without messages that takes little memory.
fn small(job: &MulticastJob) -> SubgroupConfig {
    let mode = if job.mode == ModeName::Durable { ModeName::Atomic } else { job.mode };
    subgroup(&MulticastJob {
        mode,
        size: 64,
        window: 16,
        window_bytes: Some(4096),
        message_max: None,
        ..job.clone()
    })
}

/// The configuration of the subgroup that is measured.
pub(crate) fn subgroup(job: &MulticastJob) -> SubgroupConfig {
    let usual = SubgroupConfig::default();
    let message_max = job.message_max.unwrap_or(job.size).max(1);
    let is_large = job.size > message_max;
    let window_bytes = job.window_bytes.unwrap_or_else(|| usual.window_bytes.max(4 * job.size));
    SubgroupConfig {
        senders: squall::config::Ranks::These((0..job.senders).collect()),
        mode: job.mode.into(),
        window: job.window,
        message_max,
        window_bytes: if is_large { usual.window_bytes.max(4 * message_max) } else { window_bytes },
        large_max: is_large.then_some(job.size),
        large_window_bytes: is_large.then_some(window_bytes),
        batching: batching(job.send_batching, job.receive_batching, job.delivery_batching),
        null_sends: job.null_sends,
        retain: (!job.keeps_log).then(|| Retention { automatic: true, ..Retention::default() }),
        ..usual
    }
}

/// What the inbox of a subgroup has seen; the same thread reads it, so no order is needed.
#[derive(Default)]
struct SubgroupTally {
    delivered: AtomicU64,
    bytes: AtomicU64,
    /// Messages whose content was not what their sender had written.
    faults: AtomicU64,
}

/// What all inboxes have seen.
struct Tally {
    subgroups: Vec<SubgroupTally>,
    /// One message at a time: when the one under way was sent, and how many of the own have come back.
    origin: Instant,
    sent_at_ns: AtomicU64,
    returned: AtomicU64,
    latencies: Mutex<Latencies>,
}

impl Tally {
    fn new(subgroups: usize) -> Self {
        Self {
            subgroups: std::iter::repeat_with(SubgroupTally::default).take(subgroups).collect(),
            origin: Instant::now(),
            sent_at_ns: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            latencies: Mutex::default(),
        }
    }

    fn sum(&self, of: impl Fn(&SubgroupTally) -> &AtomicU64) -> u64 {
        self.subgroups.iter().map(|subgroup| of(subgroup).load(Ordering::Relaxed)).sum()
    }

    fn delivered(&self) -> u64 {
        self.sum(|subgroup| &subgroup.delivered)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Counts messages and reads each, so that their bytes enter this core's cache.
struct Reader {
    rank: usize,
    subgroup: usize,
    latency: bool,
    delivered: u64,
    bytes: u64,
    faults: u64,
    /// The content that the next message of each sender has.
    next: Vec<u8>,
    tally: Arc<Tally>,
}

impl Reader {
    fn new(group: &GroupJob, job: &MulticastJob, subgroup: usize, tally: Arc<Tally>) -> Self {
        let next = vec![0; job.senders];
        let (rank, latency) = (group.rank, job.latency);
        Self { rank, subgroup, latency, delivered: 0, bytes: 0, faults: 0, next, tally }
    }
}

impl MemberInbox for Reader {
    #[inline]
    fn on_message(&mut self, message: Message<'_>) {
        let expected = self.next[message.sender];
        self.next[message.sender] = expected.wrapping_add(1);
        let mut differing = 0;
        let mut place = 0;
        // A plain loop: `step_by` costs more than a small message.
        while let Some(byte) = message.bytes.get(place) {
            differing |= byte ^ expected;
            place += LINE_BYTES;
        }
        self.faults += u64::from(differing != 0);
        self.delivered += 1;
        self.bytes += message.bytes.len() as u64;
        if self.latency && message.sender == self.rank {
            let latency = self.tally.now_ns() - self.tally.sent_at_ns.load(Ordering::Relaxed);
            let mut latencies = lock(&self.tally.latencies);
            latencies.record(Duration::from_nanos(latency));
            self.tally.returned.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn on_batch_end(&mut self) {
        let tally = &self.tally.subgroups[self.subgroup];
        tally.delivered.store(self.delivered, Ordering::Relaxed);
        tally.bytes.store(self.bytes, Ordering::Relaxed);
        tally.faults.store(self.faults, Ordering::Relaxed);
    }
}

/// Sends this member's messages and delivers those of all.
fn send_and_deliver(
    member: &mut impl MulticastMember,
    rank: usize,
    job: &MulticastJob,
    tally: &Tally,
) -> Result<MemberReport> {
    let total = job.messages * job.senders as u64;
    let to_send = if rank < job.senders { job.messages } else { 0 };
    // Between two polls: enough to spread the cost of a poll, and a quarter of the window, so that deliveries are not held back.
    let burst = if job.latency { 1 } else { (job.window as u64 / 4).max(1) };
    let mut sent = 0;
    let mut ticker = ProgressTicker::new();
    let begun = Instant::now();
    while tally.delivered() < total {
        let is_due = !job.latency || tally.returned.load(Ordering::Relaxed) == sent;
        if is_due && sent < to_send {
            if job.latency {
                tally.sent_at_ns.store(tally.now_ns(), Ordering::Relaxed);
            }
            sent += send_some(member, job, sent, burst.min(to_send - sent))?;
        }
        member.step()?;
        ticker.tick(tally.delivered());
    }
    let seconds = begun.elapsed().as_secs_f64();
    let faults = tally.sum(|subgroup| &subgroup.faults);
    ensure!(faults == 0, "{faults} messages did not hold what their senders had written");
    Ok(MemberReport {
        sent,
        delivered: tally.delivered(),
        bytes: tally.sum(|subgroup| &subgroup.bytes),
        seconds,
        latencies: std::mem::take(&mut lock(&tally.latencies)),
        ..MemberReport::default()
    })
}

/// Sends up to `count` messages after the first `sent` ones, in turn to the subgroups; to a single one, as a burst. Returns how
/// many found space. The content of a message is the low byte of its number in its subgroup.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low byte is wanted, and there are few subgroups")]
fn send_some(member: &mut impl MulticastMember, job: &MulticastJob, sent: u64, count: u64) -> Result<u64> {
    if job.subgroups == 1 {
        let write = |number: u64, payload: &mut Payload<'_>| {
            payload.put_repeated((sent + number) as u8, payload.remaining());
        };
        return match job.shortest {
            None => member.try_send_burst(count, |_| job.size, write),
            Some(shortest) => {
                let length = |number: u64| length(sent + number, shortest, job.size);
                member.try_send_burst(count, length, write)
            }
        };
    }
    let subgroups = job.subgroups as u64;
    for number in sent..sent + count {
        let (content, subgroup) = ((number / subgroups) as u8, (number % subgroups) as usize);
        let length = job.shortest.map_or(job.size, |shortest| length(number, shortest, job.size));
        if !member.try_send_to(subgroup, length, |payload| payload.put_repeated(content, length))? {
            return Ok(number - sent);
        }
    }
    Ok(count)
}

/// The length of a message: any between the two, as `bench/limits/multicast.c` computes it.
#[inline]
const fn length(number: u64, shortest: usize, longest: usize) -> usize {
    let drawn = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    shortest + ((drawn * (longest - shortest + 1) as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ModeName;
    use crate::member::loopback::Loopback;

    fn jobs(latency: bool) -> (GroupJob, MulticastJob) {
        let group = GroupJob::alone();
        let job = MulticastJob {
            senders: 1,
            subgroups: 1,
            idle_subgroups: 0,
            size: 100,
            shortest: None,
            messages: 1000,
            mode: ModeName::Atomic,
            window: 10,
            window_bytes: None,
            message_max: None,
            send_batching: true,
            receive_batching: true,
            delivery_batching: true,
            null_sends: true,
            latency,
            storage: None,
            keeps_log: false,
        };
        (group, job)
    }

    fn run(latency: bool, spoil: Option<u64>) -> Result<MemberReport> {
        let (group, job) = jobs(latency);
        let tally = Arc::new(Tally::new(1));
        let inbox = Reader::new(&group, &job, 0, Arc::clone(&tally));
        let mut member = Loopback::new(job.window, inbox);
        member.spoil = spoil;
        send_and_deliver(&mut member, 0, &job, &tally)
    }

    #[test]
    fn everything_sent_is_delivered_and_counted() {
        let report = run(false, None).unwrap();
        assert_eq!((report.sent, report.delivered, report.bytes), (1000, 1000, 100_000));
        assert_eq!(report.latencies.percentiles(), None);
    }

    /// All lengths occur, about as often.
    #[test]
    fn lengths_are_drawn_from_the_shortest_to_the_longest() {
        let mut counts = [0; 5];
        (0..5000).for_each(|number| counts[length(number, 8, 12) - 8] += 1);
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    }

    #[test]
    fn one_at_a_time_has_a_latency_each() {
        let report = run(true, None).unwrap();
        assert_eq!(report.delivered, 1000);
        assert!(report.latencies.percentiles().is_some_and(|percentiles| percentiles.p50 > 0));
    }

    #[test]
    fn a_spoilt_message_is_noticed() {
        let error = run(false, Some(500)).unwrap_err();
        assert_eq!(error.to_string(), "1 messages did not hold what their senders had written");
    }

    #[test]
    fn messages_that_are_too_long_for_the_window_travel_beside_it() {
        let (_, job) = jobs(false);
        let of = |message_max| subgroup(&MulticastJob { message_max, ..job.clone() });
        assert_eq!((of(None).message_max, of(None).large_max), (100, None));
        assert_eq!((of(Some(10)).message_max, of(Some(10)).large_max), (10, Some(100)));
        assert_eq!((of(Some(100)).message_max, of(Some(100)).large_max), (100, None));
    }
}
