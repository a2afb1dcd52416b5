//! How a node comes to be: it enters its group, with the first members, by a restart, or as a joiner (Derecho §2.2, §3.3, §3.4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use squall_fabric::{Duration, Fabric as _, Instant, NodeId, Shortage};
use squall_protocols::group::{GroupCore, GroupSettings, SubgroupId, first_holders};
use squall_protocols::membership::{self, Member, View};
use squall_transports::TransportFabric as _;
use squall_transports::bootstrap::{BootstrapProgress, MemberLinks};
use squall_transports::log;
use squall_transports::runner::Runner;

use super::figures::FiguresWriter;
use super::flight::FlightCopied;
use super::{CHECK, Node, Stack};
use crate::application::{GroupHandles, LayoutFunctions, layout};
use crate::config::{Config, Transport};
use crate::durable::{self, LogLender, LogMember, ProcessLog, beside, durable_layout};
use crate::entry::admission::{JoinOutcome, MemberAdmission};
use crate::entry::listener::AnyListener;
use crate::entry::restart::{BaseFetcher, RestartRequest};
use crate::entry::{self, EntryRequest, EntryStart, GroupEntry};
use crate::error::JoinError;
use crate::handle::genuine::MulticastOutlet;
use crate::operate::metrics::FiguresBoard;
use crate::slot::FeedPoller;
use crate::status::GroupStatus;

/// How a node enters its group.
pub(crate) struct EntryOptions<'a> {
    pub(crate) config: &'a Config,
    pub(crate) only_join: bool,
    pub(crate) places: Arc<LayoutFunctions>,
    pub(crate) log: Option<Arc<ProcessLog>>,
    pub(crate) board: Option<Arc<FiguresBoard>>,
    /// What the application sends to shards.
    pub(crate) outlet: Option<MulticastOutlet>,
    /// What passes to the object in the shards.
    pub(crate) feed: Option<FeedPoller>,
}

impl Node {
    /// Enters the group that the configuration describes, with its first members or later; returns the node and its
    /// rank.
    pub(crate) fn enter(
        options: EntryOptions<'_>,
        handles: GroupHandles,
        status: Arc<GroupStatus>,
        on_progress: &mut (dyn FnMut(BootstrapProgress) + Send),
    ) -> Result<(Self, usize), JoinError> {
        Shortage::catch(|| Self::come_in(options, handles, status, on_progress))?
    }

    fn come_in(
        EntryOptions { config, only_join, places, log, board, outlet, feed }: EntryOptions<'_>,
        mut handles: GroupHandles,
        status: Arc<GroupStatus>,
        on_progress: &mut (dyn FnMut(BootstrapProgress) + Send),
    ) -> Result<(Self, usize), JoinError> {
        let durable: Vec<SubgroupId> = durable::shards(config).into_values().map(|(id, _)| id).collect();
        handles.keep_log(log.clone());
        let listener = AnyListener::bind(config)?;
        let new_layout = || layout(config, Arc::clone(&places));
        let links = Some(status.links());
        let restart = log.as_deref().map(|log| RestartRequest { log, shards: &durable, layout: &new_layout });
        let mut entry = enter_first(config, only_join, restart, (&listener, links), on_progress)?;
        loop {
            let GroupEntry { mut fabric, start, session, roster } = entry;
            let settings = group_settings(config, &durable);
            let tag = start.rank(fabric.node());
            let (group, node, shards, layout) =
                (session, fabric.node(), durable.len(), durable_layout(config));
            handles.set_member(LogMember { group, node, tag, shards, layout });
            if let Some(log) = &log {
                log.check_group(session, matches!(start, EntryStart::First(_)))?;
                log.set_waker(fabric.waker());
            }
            let rank = usize::try_from(tag).map_err(|_| JoinError::Token)?;
            let (mut group, members) = match start {
                EntryStart::First(members) => {
                    let member = |node: &NodeId| Member { node: *node, tag: u64::from(node.0) };
                    let view = View::first(members.iter().map(member).collect());
                    (GroupCore::begin(&mut fabric, view, new_layout(), settings, handles), members)
                }
                EntryStart::Restarted(mut view) => {
                    let members = view.nodes();
                    view.holders = first_holders(&view, &*new_layout(), config.subgroups.len());
                    handles.restart(view.id);
                    (GroupCore::begin(&mut fabric, view, new_layout(), settings, handles), members)
                }
                EntryStart::Joining { members, mut joining, .. } => {
                    let mut group = GroupCore::join(&mut fabric, &members, new_layout(), settings, handles);
                    let idle = config.idle_for(members.len() + 1);
                    if joining.arrive(&mut fabric, &mut group, idle)? == JoinOutcome::Again {
                        handles = group.into_application();
                        drop(fabric);
                        let again = EntryRequest::JoinAgain(joining);
                        entry = entry::enter(config, again, &listener, links, on_progress)?;
                        continue;
                    }
                    (group, members)
                }
            };
            group.set_time_base(time_base(fabric.now()));
            status.set_roster(roster);
            status.set_session(session);
            let admission = MemberAdmission::open(listener, config, session, Arc::clone(&status), &fabric)?;
            let peers: Vec<NodeId> = members.into_iter().filter(|node| *node != fabric.node()).collect();
            let names = config.subgroups.keys().cloned().collect();
            let shards = config.genuine.iter().flat_map(|genuine| genuine.shards.keys().cloned()).collect();
            let (events, seen, distrusted, lacked_majority, ended, skipped) =
                (Vec::new(), None, None, false, false, 0);
            let figures = board.clone().map(FiguresWriter::new);
            #[rustfmt::skip]
            let stack = Stack {
                fabric, group, outlet, feed, names, shards, status, events, admission, peers, seen, skipped, unchecked: CHECK, distrusted, lacked_majority, ended,
                idle: config.idle_rule(), log: log.clone(), lender: log.clone().map(LogLender::new), durable, figures, is_short: false,
                looks: 0, flight_copied: FlightCopied::default(), hold_ups_logged: BTreeMap::new(), flight_file: config.flight_record.clone(),
            };
            if let Some(lender) = &stack.lender {
                BaseFetcher::start(lender, &stack.status, config.plan(), stack.durable.clone())?;
            }
            let runner = Runner::new(stack.idle_limits());
            return Ok((Self { stack, runner }, rank));
        }
    }
}

/// Enters the group for the first time: a member whose folder has a log by a restart, one whose folder has none with the first members, unless
/// other folders speak against that.
fn enter_first(
    config: &Config,
    only_join: bool,
    restart: Option<RestartRequest<'_>>,
    (listener, links): (&AnyListener, Option<&MemberLinks>),
    on_progress: &mut (dyn FnMut(BootstrapProgress) + Send),
) -> Result<GroupEntry, JoinError> {
    let is_durable = restart.is_some();
    let restart = restart.filter(|restart| restart.log.found_register().is_some());
    let is_empty = is_durable && restart.is_none();
    let hindrance = if is_empty && !only_join { beside::hindrance(config) } else { None };
    let first = match (restart, &hindrance) {
        _ if only_join => EntryRequest::Join,
        (Some(restart), _) => EntryRequest::Restart(restart),
        (None, None) => EntryRequest::Either,
        (None, Some(why)) => {
            log::warn!(%why, "this member waits for its group to run");
            EntryRequest::Join
        }
    };
    match (entry::enter(config, first, listener, links, on_progress), hindrance) {
        (Err(JoinError::Bootstrap(cause)), Some(why)) => {
            log::warn!(%cause, "this member has found no group that runs");
            Err(why.into())
        }
        (entered, _) => entered,
    }
}

/// What is added to the fabric's time, which is `now`, to get the time of the machine: read once, so that it never goes back.
fn time_base(now: Instant) -> Duration {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    time.saturating_sub(Duration::from_nanos(now.as_nanos()))
}

fn group_settings(config: &Config, durable: &[SubgroupId]) -> GroupSettings {
    let membership = membership::MembershipSettings {
        suspicion_after: config.suspicion_after,
        partition_safety: config.partition_safety,
        states: config.subgroups.len() + config.shard_states(),
        ..membership::MembershipSettings::default()
    };
    let is_shared = config.transport == Transport::Shm;
    let genuine = config.genuine.as_ref().map(|genuine| genuine.settings(is_shared));
    GroupSettings { membership, durable: durable.to_vec(), genuine, ..GroupSettings::default() }
}
