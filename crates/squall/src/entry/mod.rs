//! How a process enters its group: with the first members, or later (Derecho §3.3).

pub(crate) mod admission;
pub(crate) mod assembly;
mod failure;
pub(crate) mod listener;
pub(crate) mod restart;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use squall_fabric::NodeId;
use squall_protocols::membership::View;
use squall_transports::bootstrap::{
    self, Address, BootstrapListener, BootstrapProgress, Joined, LinkSocket, MemberLinks, Relinking,
};
use squall_transports::composite::{CompositeFabric, CompositeSettings};
use squall_transports::session::PeerStream;
use squall_transports::shm::{self, ShmFabric};
use squall_transports::tcp::TcpFabric;
use squall_transports::verbs::{self, VerbsFabric, VerbsSettings};

use crate::config::{Config, Transport};
use crate::entry::admission::JoinDriver;
use crate::entry::assembly::{ConnectedGroup, MeetOutcome, meet};
use crate::entry::listener::AnyListener;
use crate::entry::restart::{RestartOutcome, RestartRequest};
use crate::error::JoinError;
use crate::transport::AnyFabric;

/// A process that is connected to all members.
#[derive(Debug)]
pub(crate) struct GroupEntry {
    pub(crate) fabric: AnyFabric,
    pub(crate) start: EntryStart,
    /// The number that identifies this start of the group.
    pub(crate) session: u64,
    /// The addresses at which the members listen, this one included.
    pub(crate) roster: BTreeMap<NodeId, Address>,
}

/// How it enters the group.
#[derive(Debug)]
pub(crate) enum EntryStart {
    /// With the members of the first view.
    First(Vec<NodeId>),
    /// With the other members of this view, with which the group restarts from its logs.
    Restarted(View),
    /// It waits for its first view.
    Joining { members: Vec<NodeId>, rank: u64, joining: JoinDriver },
}

impl EntryStart {
    /// Returns the rank in the configuration of this process, whose number is `own`.
    pub(crate) fn rank(&self, own: NodeId) -> u64 {
        match self {
            Self::First(_) => u64::from(own.0),
            Self::Restarted(view) => {
                view.rank(own).map(|rank| view.members[rank].tag).expect("it is a member of its view")
            }
            Self::Joining { rank, .. } => *rank,
        }
    }
}

/// How a process is to enter its group.
pub(crate) enum EntryRequest<'a> {
    /// With the first members, or as a joiner if the group is already running.
    Either,
    /// With the members that restart the group from their logs, or as a joiner if the group runs.
    Restart(RestartRequest<'a>),
    /// As a joiner.
    Join,
    /// As a joiner, after an attempt that has failed.
    JoinAgain(JoinDriver),
}

/// Returns how the links of a member are opened again when they break: if silence is watched, since a broken link proves nothing, and a
/// peer that does not come back has to be noticed.
fn relinking(config: &Config, links: &MemberLinks) -> Option<Relinking> {
    let suspicion = config.suspicion_after?;
    let attempt_every = (suspicion / 16).clamp(ATTEMPT_EVERY_MIN, ATTEMPT_EVERY_MAX);
    let silence = suspicion / 4;
    Some(Relinking { plan: config.plan(), links: links.clone(), attempt_every, silence })
}

/// An answer takes a process that is busy some milliseconds, and few hosts are farther than this.
const ATTEMPT_EVERY_MIN: Duration = Duration::from_millis(50);
const ATTEMPT_EVERY_MAX: Duration = Duration::from_millis(250);

/// Meets the first members or joins the group, and sets the transport up. If `links` are given, broken ones are opened again.
pub(crate) fn enter(
    config: &Config,
    entering: EntryRequest<'_>,
    listener: &AnyListener,
    links: Option<&MemberLinks>,
    on_progress: &mut (dyn FnMut(BootstrapProgress) + Send),
) -> Result<GroupEntry, JoinError> {
    let relinking = links.and_then(|links| relinking(config, links));
    match (config.transport, listener) {
        (Transport::Shm, AnyListener::Unix(listener)) => {
            // This check comes before any member waits for this one.
            shm::check()?;
            enter_by(config, entering, listener, on_progress, |node, streams, _| {
                Ok(AnyFabric::Shm(ShmFabric::new(node, streams)?))
            })
        }
        (Transport::Tcp, AnyListener::Tcp(listener)) => {
            enter_by(config, entering, listener, on_progress, |node, streams, _| match &relinking {
                Some(relinking) => Ok(AnyFabric::Tcp(TcpFabric::with_relinking(node, streams, relinking)?)),
                None => over_streams(config, node, streams),
            })
        }
        (Transport::Auto, AnyListener::Tcp(listener)) => {
            let settings = CompositeSettings { verbs: Some(device(config)), relinking, ..Default::default() };
            enter_by(config, entering, listener, on_progress, |node, streams, joins| {
                let fabric = if joins { CompositeFabric::begin } else { CompositeFabric::new };
                Ok(AnyFabric::Auto(Box::new(fabric(node, streams, &settings)?)))
            })
        }
        (Transport::Verbs, AnyListener::Tcp(listener)) => {
            // This check comes before any member waits for this one.
            verbs::check(&device(config), &[])?;
            enter_by(config, entering, listener, on_progress, |node, streams, _| {
                over_streams(config, node, streams)
            })
        }
        _ => unreachable!("`AnyListener::bind` has checked the transport"),
    }
}

/// Sets the transport up between members that have linked, for a group that no process joins later.
///
/// # Panics
/// If the transport is neither TCP nor RDMA.
pub(crate) fn over_streams(
    config: &Config,
    node: NodeId,
    streams: Vec<(NodeId, PeerStream)>,
) -> Result<AnyFabric, JoinError> {
    Ok(match config.transport {
        Transport::Tcp => AnyFabric::Tcp(TcpFabric::new(node, streams)?),
        Transport::Verbs => AnyFabric::Verbs(Box::new(VerbsFabric::new(node, streams, &device(config))?)),
        Transport::Shm | Transport::Auto => unreachable!("these have other links"),
    })
}

/// Returns the RDMA device to use. A member that is alone has no stream by which to choose the device, so the address
/// at which it listens decides: other members will connect there.
fn device(config: &Config) -> VerbsSettings {
    let address = match &config.listen {
        Address::Tcp { host, .. } => host.parse().ok().filter(|address: &IpAddr| !address.is_unspecified()),
        _ => None,
    };
    VerbsSettings { address, ..config.verbs.clone() }
}

fn enter_by<S: LinkSocket>(
    config: &Config,
    entering: EntryRequest<'_>,
    listener: &Arc<BootstrapListener<S>>,
    on_progress: &mut (dyn FnMut(BootstrapProgress) + Send),
    build: impl FnOnce(NodeId, Vec<(NodeId, S::Secured)>, bool) -> Result<AnyFabric, JoinError>,
) -> Result<GroupEntry, JoinError> {
    let name = format!("process {}", std::process::id());
    let plan = config.plan();
    let mut joining = match entering {
        EntryRequest::JoinAgain(joining) => joining,
        EntryRequest::Join => JoinDriver::new(&plan, listener, None)?,
        EntryRequest::Restart(restart) => match restart.run(&plan, listener, on_progress)? {
            RestartOutcome::Join => JoinDriver::new(&plan, listener, None)?,
            RestartOutcome::Begun(view, ConnectedGroup { node, session, members, streams }) => {
                let roster = members.into_iter().map(|member| (member.node, member.address)).collect();
                let start = EntryStart::Restarted(view);
                return Ok(GroupEntry { fabric: build(node, streams, false)?, start, session, roster });
            }
        },
        EntryRequest::Either => match meet(&plan, listener, on_progress)? {
            MeetOutcome::Running(contact) => JoinDriver::new(&plan, listener, Some(&contact))?,
            MeetOutcome::Assembled(ConnectedGroup { node, session, members, streams }) => {
                let start = EntryStart::First(members.iter().map(|member| member.node).collect());
                let roster = members.into_iter().map(|member| (member.node, member.address)).collect();
                return Ok(GroupEntry { fabric: build(node, streams, false)?, start, session, roster });
            }
        },
    };
    let (Joined { node, session, members, streams }, rank) = joining.link(&name, listener, on_progress)?;
    let nodes = members.iter().map(|member| member.node).collect();
    let own = (node, listener.announced().clone());
    let roster = members.into_iter().map(|member| (member.node, member.address)).chain([own]).collect();
    let start = EntryStart::Joining { members: nodes, rank, joining };
    Ok(GroupEntry { fabric: build(node, streams, true)?, start, session, roster })
}

/// Connects the members of a group that no process joins later, such as that of a bulk transfer.
pub(crate) fn assemble(
    config: &Config,
    on_progress: &mut (dyn FnMut(BootstrapProgress) + Send),
) -> Result<(AnyFabric, Vec<NodeId>), JoinError> {
    let listener = AnyListener::bind(config)?;
    let entry = enter(config, EntryRequest::Either, &listener, None, on_progress)?;
    match entry.start {
        EntryStart::First(members) => Ok((entry.fabric, members)),
        EntryStart::Restarted(_) | EntryStart::Joining { .. } => {
            let contact = config.contacts.first().unwrap_or(&config.listen).clone();
            Err(bootstrap::BootstrapError::Running { contact }.into())
        }
    }
}
