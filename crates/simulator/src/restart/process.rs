//! A process of the run: its disk, and what it is doing.

use squall_fabric::{Instant, NodeId};
use squall_protocols::restart::{FetchAnswer, FetchRequest, LogState, Register, RestartMessage, Restarter};

use super::disk::{CheckpointContent, ProcessDisk};
use super::live::{LiveMember, LiveRow};

pub(super) struct SimProcess {
    /// Its number; another one after it has lost its register.
    pub(super) node: NodeId,
    pub(super) disk: ProcessDisk,
    pub(super) activity: ProcessActivity,
    /// How often it has started.
    pub(super) lives: u32,
    /// When it starts again, if it is down.
    pub(super) wakes_at: Option<Instant>,
    /// When it is to be looked at.
    pub(super) timer: Option<Instant>,
    /// It has left, and its disk with it.
    pub(super) is_gone: bool,
    pub(super) wishes_to_leave: bool,
    /// The first view without it, once it has left in order.
    pub(super) left_for: Option<u64>,
}

pub(super) enum ProcessActivity {
    Down,
    Restarting(Box<Restarter>),
    Live(Box<LiveMember>),
}

/// What processes send each other.
#[derive(Clone, Debug)]
pub(super) enum SimParcel {
    Restart(RestartMessage),
    Row(Box<LiveRow>),
    Ask(FetchRequest),
    Answer(FetchRequest, FetchAnswer, CheckpointContent),
    /// How views have ended that the asker has to know first.
    Trims(FetchRequest, RestartMessage),
}

impl SimProcess {
    /// A process that does nothing.
    pub(super) const fn down(node: NodeId, disk: ProcessDisk) -> Self {
        Self {
            node,
            disk,
            activity: ProcessActivity::Down,
            lives: 0,
            wakes_at: None,
            timer: None,
            is_gone: false,
            wishes_to_leave: false,
            left_for: None,
        }
    }

    pub(super) const fn is_up(&self) -> bool {
        !matches!(self.activity, ProcessActivity::Down)
    }

    /// The member that it is of a running view.
    pub(super) fn live(&self) -> Option<&LiveMember> {
        match &self.activity {
            ProcessActivity::Live(member) => Some(member),
            ProcessActivity::Down | ProcessActivity::Restarting(_) => None,
        }
    }

    /// The register that it would find if it started now.
    pub(super) const fn stored(&self) -> &Register {
        self.disk.register()
    }

    /// What it answers to others that ask for a part of its log.
    pub(super) fn answer(&self, request: FetchRequest) -> FetchAnswer {
        let answer = |log: &LogState, register: &Register| log.answer(&register.record, request);
        match &self.activity {
            ProcessActivity::Down => FetchAnswer::Nothing,
            ProcessActivity::Restarting(restarter) => {
                answer(restarter.log().appended(), restarter.register())
            }
            ProcessActivity::Live(member) => answer(member.log.appended(), member.file.durable()),
        }
    }
}
