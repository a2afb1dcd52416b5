//! How a process comes to its group: with the first members, or later (Derecho §3.3).

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream};
use std::os::unix::net::UnixStream;

use squall_fabric::NodeId;
use squall_transports::barrier;
use squall_transports::bootstrap::{self, Address, Joined, Link, Listener, Progress};
use squall_transports::composite::{CompositeFabric, CompositeSettings};
use squall_transports::shm::ShmFabric;
use squall_transports::tcp::TcpFabric;
use squall_transports::verbs::{self, VerbsFabric, VerbsSettings};

use crate::admission::Joining;
use crate::assembly::{Assembly, Met, meet};
use crate::config::{Config, Transport};
use crate::error::JoinError;
use crate::transport::AnyFabric;

/// The socket at which this process can be reached, before its desk takes it over.
#[derive(Debug)]
pub(crate) enum AnyListener {
    Unix(Listener<UnixStream>),
    Tcp(Listener<TcpStream>),
}

/// A process that has links with all members.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) fabric: AnyFabric,
    pub(crate) start: Start,
    /// Names this start of the group.
    pub(crate) session: u64,
    /// Where the members listen, this one included.
    pub(crate) roster: BTreeMap<NodeId, Address>,
}

/// How it has come.
#[derive(Debug)]
pub(crate) enum Start {
    /// With the members of the first view.
    First(Vec<NodeId>),
    /// It waits for its first view.
    Joining { members: Vec<NodeId>, rank: u64, joining: Joining },
}

impl AnyListener {
    /// Listens where the configuration says.
    pub(crate) fn bind(config: &Config) -> Result<Self, JoinError> {
        Ok(if config.transport.needs_unix_socket() {
            Self::Unix(Listener::bind(&config.listen)?)
        } else {
            Self::Tcp(Listener::bind(&config.listen)?)
        })
    }
}

/// How a process is to come to its group.
#[derive(Debug)]
pub(crate) enum Entering {
    /// With the first members, or, if the group runs already, later.
    Either,
    /// Later.
    Join,
    /// Later, after an attempt that has failed.
    JoinAgain(Joining),
}

/// Meets the first members or joins the group; sets the transport up.
pub(crate) fn enter(
    config: &Config,
    entering: Entering,
    listener: &AnyListener,
    on_progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Entry, JoinError> {
    // Where there are threads this takes the kernel milliseconds, for which no group is to wait.
    barrier::expedited();
    match (config.transport, listener) {
        (Transport::Shm, AnyListener::Unix(listener)) => {
            enter_by(config, entering, listener, on_progress, |node, streams, _| {
                Ok(AnyFabric::Shm(ShmFabric::new(node, streams)?))
            })
        }
        (Transport::Tcp, AnyListener::Tcp(listener)) => {
            enter_by(config, entering, listener, on_progress, |node, streams, _| {
                Ok(AnyFabric::Tcp(TcpFabric::new(node, streams)?))
            })
        }
        (Transport::Auto, AnyListener::Tcp(listener)) => {
            let settings = CompositeSettings { verbs: Some(device(config)), ..Default::default() };
            enter_by(config, entering, listener, on_progress, |node, streams, joins| {
                let fabric = if joins { CompositeFabric::begin } else { CompositeFabric::new };
                Ok(AnyFabric::Auto(Box::new(fabric(node, streams, &settings)?)))
            })
        }
        (Transport::Verbs, AnyListener::Tcp(listener)) => {
            // Before anybody waits for this member.
            let settings = device(config);
            verbs::check(&settings, &[])?;
            enter_by(config, entering, listener, on_progress, |node, streams, _| {
                Ok(AnyFabric::Verbs(Box::new(VerbsFabric::new(node, streams, &settings)?)))
            })
        }
        _ => unreachable!("`AnyListener::bind` has looked at the transport"),
    }
}

/// Which RDMA device to use: a member that is alone has no stream to choose it by, but will be met where it listens.
fn device(config: &Config) -> VerbsSettings {
    let address = match &config.listen {
        Address::Tcp { host, .. } => host.parse().ok().filter(|address: &IpAddr| !address.is_unspecified()),
        _ => None,
    };
    VerbsSettings { address, ..config.verbs.clone() }
}

fn enter_by<S: Link>(
    config: &Config,
    entering: Entering,
    listener: &Listener<S>,
    on_progress: &mut (dyn FnMut(Progress) + Send),
    build: impl FnOnce(NodeId, Vec<(NodeId, S::Secured)>, bool) -> Result<AnyFabric, JoinError>,
) -> Result<Entry, JoinError> {
    let name = format!("process {}", std::process::id());
    let plan = config.plan();
    let mut joining = match entering {
        Entering::JoinAgain(joining) => joining,
        Entering::Join => Joining::new(&plan, listener, None)?,
        Entering::Either => match meet(&plan, listener, on_progress)? {
            Met::Running(contact) => Joining::new(&plan, listener, Some(&contact))?,
            Met::Assembled(Assembly { node, session, members, streams }) => {
                let start = Start::First(members.iter().map(|member| member.node).collect());
                let roster = members.into_iter().map(|member| (member.node, member.address)).collect();
                return Ok(Entry { fabric: build(node, streams, false)?, start, session, roster });
            }
        },
    };
    let (Joined { node, session, members, streams }, rank) = joining.link(&name, listener, on_progress)?;
    let nodes = members.iter().map(|member| member.node).collect();
    let own = (node, listener.address().clone());
    let roster = members.into_iter().map(|member| (member.node, member.address)).chain([own]).collect();
    let start = Start::Joining { members: nodes, rank, joining };
    Ok(Entry { fabric: build(node, streams, true)?, start, session, roster })
}

/// Meets the members of a group that nobody joins later, such as that of a bulk transfer.
pub(crate) fn assemble(
    config: &Config,
    on_progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(AnyFabric, Vec<NodeId>), JoinError> {
    let listener = AnyListener::bind(config)?;
    let entry = enter(config, Entering::Either, &listener, on_progress)?;
    match entry.start {
        Start::First(members) => Ok((entry.fabric, members)),
        Start::Joining { .. } => {
            let contact = config.contacts.first().unwrap_or(&config.listen).clone();
            Err(bootstrap::BootstrapError::Running { contact }.into())
        }
    }
}
