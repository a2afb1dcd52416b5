//! A process of the run, and its connections.

use std::collections::BTreeMap;

use squall_fabric::{Instant, NodeId};
use squall_protocols::assembly::{Assembled, Assembler, AssemblyAnswer, AssemblyNotice, Claim, VisitorId};

/// A connection, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Conn(pub(super) u64);

/// What goes over a connection.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Claim(Claim<u32>),
    Link {
        session: u64,
        node: NodeId,
    },
    Answer(AssemblyAnswer<u32>),
    Linked,
    Notice(AssemblyNotice<u32>),
    Report(u64),
    /// No process listens there.
    Unheard,
    /// The connection has ended.
    Closed,
    /// The time of a call is over.
    Late,
}

/// How a process has ended, if it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Begun { assembled: Assembled<u32>, links: BTreeMap<NodeId, Conn> },
    Joined,
    Failed(String),
}

pub(super) struct Process {
    pub(super) is_up: bool,
    /// How often it has started.
    pub(super) lives: u32,
    pub(super) started: Instant,
    pub(super) halted_until: Instant,
    /// What has come while it is halted, in order.
    pub(super) held: Vec<(Conn, Body)>,
    pub(super) assembler: Option<Assembler<u32, String>>,
    pub(super) end: Option<End>,
    pub(super) visitors: BTreeMap<VisitorId, Conn>,
    pub(super) next_visitor: u64,
    /// Links made by others, which are not watched.
    pub(super) links: BTreeMap<VisitorId, Conn>,
    pub(super) coordinator: Option<Conn>,
    /// It has reported that all its links stand, and was not released since.
    pub(super) has_reported: bool,
    /// The connection of the latest call, and the member with which it is to link.
    pub(super) call: Option<(Conn, Option<NodeId>)>,
    /// Links made by this process.
    pub(super) called: BTreeMap<NodeId, Conn>,
}

impl Process {
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

    /// Whether it is alive and is not halted.
    pub(super) fn runs(&self, now: Instant) -> bool {
        self.is_up && now >= self.halted_until
    }

    /// Whether it takes part in a group.
    pub(super) const fn has_begun(&self) -> bool {
        matches!(self.end, Some(End::Begun { .. }))
    }

    /// A connection that another process has made.
    pub(super) fn visitor(&mut self, conn: Conn, is_link: bool) -> VisitorId {
        let visitor = VisitorId(self.next_visitor);
        self.next_visitor += 1;
        let visitors = if is_link { &mut self.links } else { &mut self.visitors };
        visitors.insert(visitor, conn);
        visitor
    }

    pub(super) fn visitor_of(&self, conn: Conn) -> Option<VisitorId> {
        self.visitors.iter().find(|(_, own)| **own == conn).map(|(visitor, _)| *visitor)
    }

    /// All its connections.
    pub(super) fn conns(&self) -> Vec<Conn> {
        let call = self.call.map(|(conn, _)| conn);
        let own = self.visitors.values().chain(self.called.values()).chain(self.links.values()).copied();
        own.chain(self.coordinator).chain(call).collect()
    }
}
