//! What the driver of a restart does (Derecho §3.4, "Total failures").

use squall_fabric::{Duration, NodeId};

use super::flushed_log::FetchRequest;
use super::message::{RestartMessage, RestartReport};
use super::register::{Register, ViewRecord};

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartSettings {
    /// Between two reports, when nothing changes.
    pub report_every: Duration,
    /// For a process to be silent, after which it counts as absent.
    pub silence: Duration,
    /// For members that are absent, before the others begin without them.
    pub gather: Duration,
    /// For a leader to end the view, before another member leads; and for those that are here to answer, before the leader
    /// proposes without them.
    pub patience: Duration,
    /// For an answer of a process that is asked for a part of its log.
    pub fetch: Duration,
    /// To leave a process alone that was asked for a part of its log in vain, as long as there are others.
    pub avoid: Duration,
    /// For a member to fetch what its log lacks of earlier views, before it enters a view without.
    pub base: Duration,
}

impl RestartSettings {
    /// The settings for real machines, where a disk or a connection may take a second. Absent members are waited for as long as a
    /// process takes to start.
    pub const DEFAULT: Self = Self {
        report_every: Duration::from_millis(100),
        silence: Duration::from_secs(2),
        gather: Duration::from_secs(3),
        patience: Duration::from_secs(1),
        fetch: Duration::from_secs(5),
        avoid: Duration::from_secs(30),
        base: Duration::from_secs(3),
    };
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartAction {
    /// To replace the register, to flush it, and then to call [`super::Restarter::handle_register_written`].
    WriteRegister(Box<Register>),
    /// To flush all that has been appended to the log so far, and then to call [`super::Restarter::handle_log_flushed`].
    FlushLog,
    /// To ask `from` for a part of its log ([`super::LogState::answer`]), to call [`super::Restarter::handle_fetched`] with what comes, and
    /// to append that if it counts.
    Fetch {
        /// The process to ask.
        from: NodeId,
        /// What is missing.
        request: FetchRequest,
    },
    /// To send the report to all processes of the cluster that the driver knows of.
    Broadcast(Box<RestartReport>),
    /// To send a message to one process.
    Send(NodeId, RestartMessage),
    /// To ask this member, whose group runs, to let the process in.
    Join(NodeId),
    /// To begin the view, which is on the disk. The restart is over.
    Enter(Box<ViewRecord>),
}
