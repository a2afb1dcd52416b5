//! The work of `squall bench genuine`: all members send to some of the shards, and deliver what is for their own.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use squall::config::{GenuineConfig, QuorumRule, SubgroupConfig};
use squall::genuine::{GenuineMessage, MulticastSender};
use squall::{Group, Message, Node, SendError, Sender};
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::mutex::lock;

mod outlive;

use super::parent_watchdog::ParentWatchdog;
use super::{
    Ended, PolledMember, ProgressTicker, SUBGROUP, await_all, await_ready, config, finish, report_progress,
};
use crate::control::{GenuineJob, GroupJob, MemberReport};
use crate::latency::Latencies;

/// Bytes before each message: its destinations, as a set of bits, and the rank of its sender.
pub(crate) const HEADER_BYTES: usize = 16;

pub(super) fn perform(group: &GroupJob, job: &GenuineJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    let own = group.rank / job.replicas;
    let (rank, latency) = (group.rank as u64, job.latency);
    let tally = Arc::new(Tally { rank, own, latency, origin: Instant::now(), ..Tally::default() });
    let mut member = BenchMember::join(group, job, &tally)?;
    await_all(&mut member, group, watchdog)?;
    let outcome = if job.outlives {
        outlive::send_and_outlive(&mut member, job, &tally)
    } else {
        send_and_deliver(&mut member, job, &tally)
    };
    Ok(finish(member, outcome, watchdog))
}

/// What has been delivered; the polling thread, which also sends, is the only one that uses it.
#[derive(Debug)]
struct Tally {
    rank: u64,
    own: usize,
    /// Whether the times of own messages are measured.
    latency: bool,
    delivered: AtomicU64,
    bytes: AtomicU64,
    /// One message at a time: when the one under way was sent, and how many of the own have come back.
    origin: Instant,
    sent_at_ns: AtomicU64,
    returned: AtomicU64,
    latencies: Mutex<Latencies>,
    /// When messages were delivered around the death of a member.
    resumption: Mutex<outlive::Resumption>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            rank: 0,
            own: 0,
            latency: false,
            delivered: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            origin: Instant::now(),
            sent_at_ns: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            latencies: Mutex::default(),
            resumption: Mutex::default(),
        }
    }
}

impl Tally {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Counts a message, unless it is for other shards.
    fn on_message(&self, message: &[u8]) {
        let word = |at: usize| message[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        if word(0) >> self.own & 1 == 0 {
            return;
        }
        let add = |count: &AtomicU64, more: usize| {
            count.store(count.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
        };
        add(&self.delivered, 1);
        add(&self.bytes, message.len() - HEADER_BYTES);
        if word(8) == self.rank {
            add(&self.returned, 1);
            if !self.latency {
                return;
            }
            let latency = self.now_ns() - self.sent_at_ns.load(Ordering::Relaxed);
            let mut latencies = lock(&self.latencies);
            latencies.record(Duration::from_nanos(latency));
        }
    }
}

/// A member of a real group, polled by the thread that sends.
struct BenchMember {
    node: Node,
    sending: Sending,
    /// Leaves the group when dropped.
    _group: Group,
}

/// How messages are sent.
enum Sending {
    ToShards(MulticastSender),
    /// To all members of the group, each of which drops what is not for its shard.
    ToAll(Sender),
}

impl BenchMember {
    fn join(group: &GroupJob, job: &GenuineJob, tally: &Arc<Tally>) -> Result<Self> {
        let (mut config, tally) = (config(group)?, Arc::clone(tally));
        let message_max = HEADER_BYTES + job.size;
        let window_bytes = 4 * message_max * job.window;
        let (mut group, node) = if job.is_filtered {
            let window = job.window;
            let subgroup = SubgroupConfig { message_max, window_bytes, window, ..SubgroupConfig::default() };
            let upcall = move |message: Message<'_>| tally.on_message(message.bytes);
            let builder = Group::builder(config.subgroup(SUBGROUP, subgroup)).on_progress(report_progress);
            builder.on_message(SUBGROUP, upcall).join_polled()?
        } else {
            let quorum = if job.by_majority { QuorumRule::Majority } else { QuorumRule::All };
            let window = job.window;
            let usual = GenuineConfig::default();
            let mut genuine = GenuineConfig { message_max, window_bytes, window, quorum, ..usual };
            for shard in 0..job.shards {
                let first = shard * job.replicas;
                let ranks: Vec<_> = (first..first + job.replicas).collect();
                genuine = genuine.shard(&shard_name(shard), &ranks);
            }
            config.genuine = Some(genuine);
            let builder = Group::builder(config).on_progress(report_progress);
            let outlives = job.outlives;
            let upcall = move |message: GenuineMessage<'_>| {
                tally.on_message(message.bytes);
                if outlives {
                    let mut resumption = lock(&tally.resumption);
                    resumption.note(message.position.view);
                }
            };
            builder.on_multicast(upcall).join_polled()?
        };
        let sending = if job.is_filtered {
            Sending::ToAll(group.subgroup(SUBGROUP)?.sender()?)
        } else {
            Sending::ToShards(group.multicast_sender()?)
        };
        let mut member = Self { node, sending, _group: group };
        await_ready(&mut member, |member| member.node.is_ready())?;
        Ok(member)
    }

    /// Sends to these shards; false if the window is full now.
    fn try_send(&mut self, shards: &[&str], message: &[u8]) -> Result<bool> {
        let sent = match &mut self.sending {
            Sending::ToAll(sender) => sender.send_bytes(message),
            Sending::ToShards(sender) => sender.send(shards, message),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(SendError::Full | SendError::ViewChanging) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl PolledMember for BenchMember {
    fn step(&mut self) -> Result<()> {
        self.node.step();
        self.node.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }

    fn poll(&mut self) -> Result<()> {
        self.node.poll();
        self.node.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// Sends this member's messages to its own shard and the next ones, and delivers those for its shard.
fn send_and_deliver(member: &mut BenchMember, job: &GenuineJob, tally: &Tally) -> Result<MemberReport> {
    let shards: Vec<usize> = (0..job.destinations).map(|next| (tally.own + next) % job.shards).collect();
    let names: Vec<String> = shards.iter().map(|shard| shard_name(*shard)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let set: u64 = shards.iter().map(|shard| 1_u64 << shard).sum();
    let mut message = vec![0; HEADER_BYTES + job.size];
    message[..8].copy_from_slice(&set.to_le_bytes());
    message[8..HEADER_BYTES].copy_from_slice(&tally.rank.to_le_bytes());
    // The members of as many shards as a message is for send to each shard.
    let total = (job.destinations * job.replicas) as u64 * job.messages;
    let mut sent = 0;
    let mut ticker = ProgressTicker::new();
    let begun = Instant::now();
    while tally.delivered.load(Ordering::Relaxed) < total {
        for _ in 0..BURST {
            let waits = job.latency && tally.returned.load(Ordering::Relaxed) < sent;
            if sent == job.messages || waits {
                break;
            }
            if job.latency {
                tally.sent_at_ns.store(tally.now_ns(), Ordering::Relaxed);
            }
            if !member.try_send(&names, &message)? {
                break;
            }
            sent += 1;
        }
        member.step().context("the group has ended")?;
        ticker.tick(tally.delivered.load(Ordering::Relaxed));
    }
    let seconds = begun.elapsed().as_secs_f64();
    let latencies = std::mem::take(&mut *lock(&tally.latencies));
    Ok(MemberReport {
        sent,
        delivered: total,
        bytes: tally.bytes.load(Ordering::Relaxed),
        seconds,
        latencies,
        ..MemberReport::default()
    })
}

/// The name of a shard in the configuration; names are in the order of the shards.
fn shard_name(shard: usize) -> String {
    format!("shard-{shard:02}")
}

/// Messages sent between two polls.
const BURST: u32 = 16;
