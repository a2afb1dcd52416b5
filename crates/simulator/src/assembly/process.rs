//! A process of the run, and its connections.

use std::collections::BTreeMap;

use squall_fabric::{Instant, NodeId};
use squall_protocols::assembly::{
    AssembledGroup, Assembler, AssemblyAnswer, AssemblyClaim, AssemblyNotice, VisitorId,
};

/// Identifies a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionId(pub(super) u64);

/// A message or an event of a connection.
#[derive(Clone, Debug)]
pub(super) enum AssemblyBody {
    Claim(AssemblyClaim<u32>),
    Link {
        session: u64,
        node: NodeId,
    },
    Answer(AssemblyAnswer<u32>),
    Linked,
    Notice(AssemblyNotice<u32>),
    Report(u64),
    /// No process listens at the address.
    Unheard,
    /// The connection has ended.
    Closed,
    /// The time limit of a call is over.
    Late,
}

/// How a process has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    Begun { assembled: AssembledGroup<u32>, links: BTreeMap<NodeId, ConnectionId> },
    Joined,
    Failed(String),
}

pub(super) struct AssemblyProcess {
    pub(super) is_up: bool,
    /// The number of its starts.
    pub(super) lives: u32,
    pub(super) started: Instant,
    pub(super) halted_until: Instant,
    /// The messages that have arrived while it is halted, in order.
    pub(super) held: Vec<(ConnectionId, AssemblyBody)>,
    pub(super) assembler: Option<Assembler<u32, String>>,
    pub(super) end: Option<ProcessEnd>,
    pub(super) visitors: BTreeMap<VisitorId, ConnectionId>,
    pub(super) next_visitor: u64,
    /// Links that other processes have made, which are not watched.
    pub(super) links: BTreeMap<VisitorId, ConnectionId>,
    pub(super) coordinator: Option<ConnectionId>,
    /// Whether it has reported that all its links are established, and has not been released since.
    pub(super) has_reported: bool,
    /// The connection of the latest call, and the member to link with, if any.
    pub(super) call: Option<(ConnectionId, Option<NodeId>)>,
    /// Links that this process has made.
    pub(super) called: BTreeMap<NodeId, ConnectionId>,
}

impl AssemblyProcess {
    pub(super) fn new() -> Self {
        Self {
            is_up: false,
            lives: 0,
            started: Instant::from_nanos(0),
            halted_until: Instant::from_nanos(0),
            held: Vec::new(),
            assembler: None,
            end: None,
            visitors: BTreeMap::new(),
            next_visitor: 0,
            links: BTreeMap::new(),
            coordinator: None,
            has_reported: false,
            call: None,
            called: BTreeMap::new(),
        }
    }

    /// Returns whether it is alive and not halted.
    pub(super) fn runs(&self, now: Instant) -> bool {
        self.is_up && now >= self.halted_until
    }

    /// Returns whether it takes part in a group.
    pub(super) const fn has_begun(&self) -> bool {
        matches!(self.end, Some(ProcessEnd::Begun { .. }))
    }

    /// Adds a connection that another process has made.
    pub(super) fn visitor(&mut self, connection: ConnectionId, is_link: bool) -> VisitorId {
        let visitor = VisitorId(self.next_visitor);
        self.next_visitor += 1;
        let visitors = if is_link { &mut self.links } else { &mut self.visitors };
        visitors.insert(visitor, connection);
        visitor
    }

    pub(super) fn visitor_of(&self, connection: ConnectionId) -> Option<VisitorId> {
        self.visitors.iter().find(|(_, own)| **own == connection).map(|(visitor, _)| *visitor)
    }

    /// Returns all its connections.
    pub(super) fn conns(&self) -> Vec<ConnectionId> {
        let call = self.call.map(|(connection, _)| connection);
        let own = self.visitors.values().chain(self.called.values()).chain(self.links.values()).copied();
        own.chain(self.coordinator).chain(call).collect()
    }
}
