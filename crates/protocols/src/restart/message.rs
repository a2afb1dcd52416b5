//! What processes report to each other while a group is down or comes back (Derecho §3.4, "Total failures").

use super::register::{Register, ViewRecord};
use super::view_end::{ViewEnd, Vote};
use crate::ends::Ballot;

/// What processes send each other. Any message may be lost, late or twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartMessage {
    /// The state of the sender.
    Report(Box<RestartReport>),
    /// A view that the sender knows and the receiver does not, and how the views before it have ended \[T10\].
    Views(Box<ViewRecord>),
}

/// All that others need to know of a process. A later report takes the place of an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartReport {
    /// The start of the sender ([`Register::starts`]), and the number of the report within it: by this order no report takes the
    /// place of a later one.
    pub order: (u64, u64),
    /// Whether the sender takes part in a view that runs.
    pub is_live: bool,
    /// The number of its present view; none if it knows no view.
    pub view: Option<u64>,
    /// Differs between two views of one number ([`DurableView::mark`](super::DurableView::mark)); 0 if it knows no view.
    pub mark: u64,
    /// Whether it asks a group that runs to let it in.
    pub wants_to_join: bool,
    /// The promise, and the vote, that are on its disk.
    pub promise: Option<Ballot>,
    /// See there.
    pub vote: Option<Vote>,
    /// By shard, how many sequences of the present view are on its disk.
    pub counts: Vec<u64>,
    /// By shard, whether everything before the present view is on its disk.
    pub whole: Vec<bool>,
    /// Whether there may have been more of the present view on its disk \[T9\].
    pub is_damaged: bool,
    /// The ballot with which it leads a restart.
    pub lead: Option<Ballot>,
    /// What it proposes under that ballot.
    pub proposal: Option<ViewEnd>,
}

impl RestartReport {
    /// The report of a process that takes part in a view.
    #[must_use]
    pub fn live(order: u64, register: &Register) -> Self {
        Self { is_live: true, ..Self::of(order, register) }
    }

    /// The report of a process that only waits.
    pub(super) fn of(order: u64, register: &Register) -> Self {
        let view = register.view();
        Self {
            order: (register.starts, order),
            is_live: false,
            view: (!view.members.is_empty()).then_some(view.number),
            mark: if view.members.is_empty() { 0 } else { view.mark() },
            wants_to_join: false,
            promise: None,
            vote: None,
            counts: Vec::new(),
            whole: Vec::new(),
            is_damaged: false,
            lead: None,
            proposal: None,
        }
    }

    /// What to send to the sender of this report, which is behind \[T10\].
    #[must_use]
    pub fn missing_views(&self, own: &Register) -> Option<RestartMessage> {
        let is_behind = !own.view().members.is_empty() && self.view < Some(own.view().number);
        is_behind.then(|| RestartMessage::Views(Box::new(own.record.clone())))
    }
}
