//! The thread that writes the register (Derecho §3.4, "Total failures").

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_log::{DiskCause, DiskError};
use squall_protocols::restart::Register;

/// Writes one register after the other, so that the polling thread does not wait for the disk. Dropping it waits until the last one
/// is written, or has failed, unless it is abandoned.
pub(super) struct RegisterThread {
    /// None once no more follow.
    registers: Option<Sender<Arc<Register>>>,
    thread: Option<JoinHandle<()>>,
    is_abandoned: AtomicBool,
}

impl RegisterThread {
    /// Starts the thread, which writes by `write`: a register is on the disk when it returns.
    pub(super) fn start(write: impl Fn(&Register) + Send + 'static) -> Result<Self, DiskError> {
        let (registers, received) = channel::<Arc<Register>>();
        let run = move || received.into_iter().for_each(|register| write(&register));
        let thread = std::thread::Builder::new().name("squall register".into()).spawn(run);
        let thread = thread.map_err(|error| DiskError {
            operation: "start a thread for",
            path: "register".into(),
            cause: DiskCause::System(error.raw_os_error().unwrap_or_default()),
        })?;
        Ok(Self { registers: Some(registers), thread: Some(thread), is_abandoned: AtomicBool::new(false) })
    }

    pub(super) fn write(&self, register: Arc<Register>) {
        // A thread that has ended has reported why.
        let _ = self.registers.as_ref().map(|registers| registers.send(register));
    }

    /// Returns whether the thread takes nothing any more, since it has panicked.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Has the drop not wait, since the disk hangs: the thread ends when it answers.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

impl Drop for RegisterThread {
    fn drop(&mut self) {
        self.registers = None;
        if !self.is_abandoned.load(Ordering::Relaxed) {
            // A panic of the thread has been reported by itself.
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}
