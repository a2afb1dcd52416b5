//! The work of `squall bench rdmc`: the root sends objects, the others receive and check them (RDMC §4).

use std::time::Instant;

use anyhow::{Result, ensure};
use squall::bulk::schedule::{Algorithm, Schedule};
use squall::bulk::{BulkBuffer, BulkOptions, Session};

use super::parent_watchdog::ParentWatchdog;
use super::{Ended, ProgressTicker, config, report_progress, say};
use crate::clock::now_ns;
use crate::control::{GroupJob, MemberEvent, MemberReport, RdmcJob, ScheduleName, TransportName};
use crate::terminal::error_text;

pub(super) fn perform(group: &GroupJob, job: &RdmcJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    let schedule = job.schedule.map(Schedule::from);
    let object_bytes = job.choose.then_some(job.size as u64);
    let options = BulkOptions { block_bytes: job.block_bytes, schedule, object_bytes };
    let mut session = Session::join_observed(&config(group)?, &options, &mut report_progress)?;
    say(&MemberEvent::Ready);
    let outcome = if group.rank == 0 {
        send(&mut session, job, watchdog)
    } else {
        receive(&mut session, job, group.transport)
    };
    let ended = match outcome {
        Ok(report) => {
            say(&MemberEvent::Done(Box::new(report)));
            Ended::Well
        }
        Err(error) => {
            say(&MemberEvent::Failed { message: error_text(&error) });
            Ended::Badly
        }
    };
    // No member leaves before all are done.
    while !watchdog.is_stopped() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(ended)
}

fn send(session: &mut Session, job: &RdmcJob, watchdog: &ParentWatchdog) -> Result<MemberReport> {
    let mut object = session.buffer(job.size);
    object.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i));
    watchdog.await_go()?;
    let (begun, mut ticker) = (Instant::now(), ProgressTicker::new());
    let mut stamps_ns = Vec::new();
    for number in 0..job.warm_up + job.objects {
        stamp(&mut object, number);
        stamps_ns.push(now_ns());
        session.send(&mut object)?;
        ticker.tick(number.saturating_sub(job.warm_up));
    }
    ensure!(session.lost().is_empty(), "receivers were lost: {:?}", session.lost());
    Ok(report(job, begun, stamps_ns))
}

fn receive(session: &mut Session, job: &RdmcJob, transport: TransportName) -> Result<MemberReport> {
    let (mut target, mut registered) = (vec![0; job.size], session.buffer(job.size));
    let (begun, mut ticker) = (Instant::now(), ProgressTicker::new());
    let mut stamps_ns = Vec::new();
    for number in 0..job.warm_up + job.objects {
        let is_last = number + 1 == job.warm_up + job.objects;
        if job.in_place {
            let object = session.receive_in_place()?;
            stamps_ns.push(now_ns());
            check(&object, number, is_last)?;
        } else if transport == TransportName::Shm {
            session.receive_into(&mut target)?;
            stamps_ns.push(now_ns());
            check(&target, number, is_last)?;
        } else {
            session.receive_buffer(&mut registered)?;
            let waited_ns = u64::try_from(session.waited_for_others().as_nanos())?;
            stamps_ns.push(now_ns() - waited_ns);
            check(&registered, number, is_last)?;
        }
        ticker.tick(number.saturating_sub(job.warm_up));
    }
    Ok(report(job, begun, stamps_ns))
}

/// The number of the object in its first bytes.
fn stamp(object: &mut BulkBuffer, number: u64) {
    let length = object.len().min(8);
    object[..length].copy_from_slice(&number.to_le_bytes()[..length]);
}

/// The right object, to its end; the last one byte by byte.
fn check(object: &[u8], number: u64, is_last: bool) -> Result<()> {
    let length = object.len().min(8);
    ensure!(object[..length] == number.to_le_bytes()[..length], "another object than number {number} came");
    let from = if is_last { length } else { object.len().saturating_sub(64).max(length) };
    let wrong = (from..object.len()).find(|i| object[*i] != pattern(*i));
    ensure!(wrong.is_none(), "object {number} is wrong from byte {wrong:?} on");
    Ok(())
}

const fn pattern(i: usize) -> u8 {
    (i ^ i >> 8 ^ i >> 17) as u8
}

fn report(job: &RdmcJob, begun: Instant, mut stamps_ns: Vec<u64>) -> MemberReport {
    stamps_ns.drain(..usize::try_from(job.warm_up).expect("few"));
    let (seconds, bytes) = (begun.elapsed().as_secs_f64(), job.objects * job.size as u64);
    MemberReport { delivered: job.objects, bytes, seconds, stamps_ns, ..MemberReport::default() }
}

impl ScheduleName {
    pub(crate) const fn algorithm(self) -> Algorithm {
        match self {
            Self::Sequential => Algorithm::Sequential,
            Self::Chain => Algorithm::Chain,
            Self::Tree => Algorithm::Tree,
            Self::Pipeline => Algorithm::Pipeline,
        }
    }
}

impl From<ScheduleName> for Schedule {
    fn from(name: ScheduleName) -> Self {
        name.algorithm().into()
    }
}
