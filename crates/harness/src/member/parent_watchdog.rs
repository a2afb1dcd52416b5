//! A member never outlives its parent.
//!
//! The kernel kills the member when the parent dies, for whatever reason; and the pipe of commands closes. Either is enough.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use anyhow::{Result, anyhow};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use squall_fabric::atomics::{AtomicBool, Ordering};

use crate::control::ParentCommand;
use crate::lines::read_line;

/// The exit status of a member whose parent has gone.
const PARENT_GONE: i32 = 3;

/// Asks the kernel to kill this process when the parent dies, which has no number (0) if it is on another host of the lab.
pub(crate) fn die_with(parent: u32) {
    // Where the system does not know the call, the pipe remains.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if Pid::as_raw(getppid()).unsigned_abs() != parent {
        // It died before this request.
        std::process::exit(PARENT_GONE);
    }
}

/// The parent's commands.
pub(crate) struct ParentWatchdog {
    go: Receiver<()>,
    stopped: Arc<AtomicBool>,
    draining: Arc<AtomicBool>,
    leaving: Arc<AtomicBool>,
    catch_up: Receiver<(u64, Vec<u64>)>,
}

impl ParentWatchdog {
    /// Reads commands on a thread of its own from now on.
    pub(crate) fn watch() -> Self {
        let (sender, go) = channel();
        let (news, catch_up) = channel();
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let draining = Arc::new(AtomicBool::new(false));
        let drain = Arc::clone(&draining);
        let leaving = Arc::new(AtomicBool::new(false));
        let leave = Arc::clone(&leaving);
        std::thread::spawn(move || {
            let mut pipe = std::io::stdin().lock();
            loop {
                match read_line(&mut pipe) {
                    // The receiver has gone if the work has failed meanwhile.
                    Ok(Some(ParentCommand::Go)) => drop(sender.send(())),
                    Ok(Some(ParentCommand::CatchUp { view, missing })) => drop(news.send((view, missing))),
                    Ok(Some(ParentCommand::Drain)) => drain.store(true, Ordering::Relaxed),
                    Ok(Some(ParentCommand::Leave)) => leave.store(true, Ordering::Relaxed),
                    Ok(Some(ParentCommand::Stop)) => stop.store(true, Ordering::Relaxed),
                    Ok(None) | Err(_) => std::process::exit(PARENT_GONE),
                }
            }
        });
        Self { go, stopped, draining, leaving, catch_up }
    }

    /// Waits until all members are ready.
    ///
    /// # Errors
    /// If the parent goes instead.
    pub(crate) fn await_go(&self) -> Result<()> {
        self.go.recv().map_err(|_| anyhow!("the parent has gone"))
    }

    /// Returns whether all members are ready.
    ///
    /// # Errors
    /// If the parent goes instead.
    pub(crate) fn may_go(&self) -> Result<bool> {
        match self.go.try_recv() {
            Ok(()) => Ok(true),
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(anyhow!("the parent has gone")),
        }
    }

    /// What a joiner was sent next, and for which view.
    pub(crate) fn caught_up(&self) -> Option<(u64, Vec<u64>)> {
        self.catch_up.try_recv().ok()
    }

    /// Whether nothing more is to be sent.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether this member is to leave the group.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Whether all members are done.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
