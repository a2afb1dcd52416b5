//! The work of `squall bench sst`: each member raises its column and waits until all have, round by round
//! (Derecho §3.2: the shared state table as a barrier).

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use squall::assemble;
use squall::config::Config;
use squall_fabric::{Column, FabricEvent, MirrorKey, NodeId, RowLayout};
use squall_protocols::sst::StateTable;
use squall_transports::TransportFabric;
use squall_transports::bootstrap::{BootstrapListener, LinkSocket};
use squall_transports::composite::{CompositeFabric, CompositeSettings};
use squall_transports::runner::{Driven, Runner};
use squall_transports::shm::ShmFabric;
use squall_transports::tcp::TcpFabric;
use squall_transports::verbs::VerbsFabric;

use super::parent_watchdog::ParentWatchdog;
use super::{
    Ended, JOIN_TIMEOUT, PolledMember, ProgressTicker, await_go, config, finish, report_progress, say,
};
use crate::control::{GroupJob, MemberEvent, MemberReport, SstJob, TransportName};
use crate::latency::Latencies;

pub(super) fn perform(group: &GroupJob, job: &SstJob, watchdog: &ParentWatchdog) -> Result<Ended> {
    let config = config(group)?;
    match group.transport {
        TransportName::Shm => {
            let (node, members, streams) = meet::<UnixStream>(&config)?;
            perform_on(ShmFabric::new(node, streams)?, &members, &config, job, watchdog)
        }
        TransportName::Tcp => {
            let (node, members, streams) = meet::<TcpStream>(&config)?;
            perform_on(TcpFabric::new(node, streams)?, &members, &config, job, watchdog)
        }
        TransportName::Auto => {
            let (node, members, streams) = meet::<TcpStream>(&config)?;
            let settings = CompositeSettings { verbs: Some(config.verbs.clone()), ..Default::default() };
            let fabric = CompositeFabric::new(node, streams, &settings)?;
            perform_on(fabric, &members, &config, job, watchdog)
        }
        TransportName::Verbs => {
            let (node, members, streams) = meet::<TcpStream>(&config)?;
            let fabric = VerbsFabric::new(node, streams, &config.verbs)?;
            perform_on(fabric, &members, &config, job, watchdog)
        }
    }
}

type Met<S> = (NodeId, Vec<NodeId>, Vec<(NodeId, S)>);

fn meet<S: LinkSocket>(config: &Config) -> Result<Met<S::Secured>> {
    let listener = BootstrapListener::<S>::bind(&config.listen)?;
    let assembly = assemble(&config.plan(), &listener, &mut report_progress)?;
    let members = assembly.members.iter().map(|member| member.node).collect();
    Ok((assembly.node, members, assembly.streams))
}

fn perform_on<T: TransportFabric>(
    mut fabric: T,
    members: &[NodeId],
    config: &Config,
    job: &SstJob,
    watchdog: &ParentWatchdog,
) -> Result<Ended> {
    let mut layout = RowLayout::new();
    let round = layout.column();
    let table = StateTable::new(&mut fabric, MirrorKey(1), members, layout.words());
    let runner = Runner::new(config.idle_for(members.len()));
    let rows = Rows { fabric, table, round, seen: 0, lost: None };
    let mut bench = Bench { rows, runner };
    bench.await_ready()?;
    say(&MemberEvent::Ready);
    await_go(&mut bench, watchdog)?;
    let outcome = bench.raise_and_wait(job);
    Ok(finish(bench, outcome, watchdog))
}

struct Bench<T> {
    rows: Rows<T>,
    runner: Runner,
}

struct Rows<T> {
    fabric: T,
    table: StateTable,
    round: Column<u64>,
    /// The sum of all members' rounds at the last look: while it grows there is work, so the runner does not park.
    seen: u64,
    lost: Option<NodeId>,
}

impl<T: TransportFabric> Driven for Rows<T> {
    type Transport = T;

    fn transport(&mut self) -> &mut T {
        &mut self.fabric
    }

    fn poll(&mut self) -> usize {
        let (table, lost) = (&mut self.table, &mut self.lost);
        let work = self.fabric.poll(&mut |event| {
            table.handle_event(&event);
            if let FabricEvent::PeerLost { peer, .. } = event {
                lost.get_or_insert(peer);
            }
        });
        let seen = self.table.rows().iter().map(|row| self.round.load(row)).sum();
        let grown = std::mem::replace(&mut self.seen, seen) != seen;
        work + usize::from(grown)
    }
}

impl<T: TransportFabric> Bench<T> {
    fn await_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + JOIN_TIMEOUT;
        while !self.rows.table.is_ready() {
            self.poll()?;
            ensure!(Instant::now() < deadline, "not all members have begun within {JOIN_TIMEOUT:?}");
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        Ok(())
    }

    fn raise_and_wait(&mut self, job: &SstJob) -> Result<MemberReport> {
        let mut latencies = Latencies::default();
        let mut ticker = ProgressTicker::new();
        let begun = Instant::now();
        for round in 1..=job.rounds {
            let raised = Instant::now();
            self.rows.table.raise(self.rows.round, round);
            self.rows.table.flush(&mut self.rows.fabric);
            while !self.all_have(round) {
                self.step()?;
            }
            latencies.record(raised.elapsed());
            ticker.tick(round);
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(MemberReport { delivered: job.rounds, seconds, latencies, ..MemberReport::default() })
    }

    #[inline]
    fn all_have(&self, round: u64) -> bool {
        self.rows.table.rows().iter().all(|row| self.rows.round.load(row) >= round)
    }

    fn check(&self) -> Result<()> {
        match self.rows.lost {
            Some(peer) => bail!("member {} is gone", peer.0),
            None => Ok(()),
        }
    }
}

impl<T: TransportFabric> PolledMember for Bench<T> {
    fn step(&mut self) -> Result<()> {
        self.runner.step(&mut self.rows);
        self.check()
    }

    fn poll(&mut self) -> Result<()> {
        self.rows.poll();
        self.check()
    }
}
