//! A member of shards of which another member dies: when it has delivered before and after.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result};
use squall_fabric::atomics::Ordering;
use squall_fabric::mutex::lock;

use super::{BURST, BenchMember, HEADER_BYTES, Tally, shard_name};
use crate::clock::now_ns;
use crate::control::{GenuineJob, MemberReport};
use crate::member::{PolledMember as _, ProgressTicker};

/// When messages were delivered around the end of the first view, in nanoseconds of the clock that the processes of a host share.
#[derive(Debug, Default)]
pub(super) struct Resumption {
    view: Option<u64>,
    /// The latest [`STAMPS`] deliveries up to the first one in another view.
    stamps_ns: VecDeque<u64>,
    resumed_ns: Option<u64>,
}

/// Enough for the milliseconds before a death.
const STAMPS: usize = 1024;

/// A member sends for this time after it has delivered in another view, so that the others do, too.
const LINGER: Duration = Duration::from_millis(100);

impl Resumption {
    /// A message is delivered.
    pub(super) fn note(&mut self, view: u64) {
        if self.resumed_ns.is_some() {
            return;
        }
        let now = now_ns();
        if self.stamps_ns.len() == STAMPS {
            self.stamps_ns.pop_front();
        }
        self.stamps_ns.push_back(now);
        if view > *self.view.get_or_insert(view) {
            self.resumed_ns = Some(now);
        }
    }
}

/// Sends to all shards but the last, or to the last if this member is in it, until messages have been delivered in another view.
pub(super) fn send_and_outlive(
    member: &mut BenchMember,
    job: &GenuineJob,
    tally: &Tally,
) -> Result<MemberReport> {
    let last = job.shards - 1;
    let shards: Vec<usize> = if tally.own == last { vec![last] } else { (0..last).collect() };
    let names: Vec<String> = shards.iter().map(|shard| shard_name(*shard)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let set: u64 = shards.iter().map(|shard| 1_u64 << shard).sum();
    let mut message = vec![0; HEADER_BYTES + job.size];
    message[..8].copy_from_slice(&set.to_le_bytes());
    message[8..HEADER_BYTES].copy_from_slice(&tally.rank.to_le_bytes());
    let mut sent = 0;
    let mut ticker = ProgressTicker::new();
    let resumed_ns = || lock(&tally.resumption).resumed_ns;
    let linger = u64::try_from(LINGER.as_nanos()).expect("short");
    while resumed_ns().is_none_or(|resumed| now_ns() < resumed + linger) {
        for _ in 0..BURST {
            if !member.try_send(&names, &message)? {
                break;
            }
            sent += 1;
        }
        member.step().context("the group has ended")?;
        ticker.tick(tally.delivered.load(Ordering::Relaxed));
    }
    let resumption = std::mem::take(&mut *lock(&tally.resumption));
    Ok(MemberReport {
        sent,
        delivered: tally.delivered.load(Ordering::Relaxed),
        stamps_ns: resumption.stamps_ns.into(),
        resumed_ns: resumption.resumed_ns,
        ..MemberReport::default()
    })
}
