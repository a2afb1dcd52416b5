//! Ctrl-C and requests to terminate.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

/// Receives Ctrl-C and requests to terminate.
pub struct Interrupts(Arc<Mutex<Box<dyn FnMut() + Send>>>);

impl Interrupts {
    /// Takes over the signals of this process, once.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn take() -> Result<Self> {
        let end: Box<dyn FnMut() + Send> = Box::new(|| std::process::exit(INTERRUPTED_STATUS.into()));
        let target = Arc::new(Mutex::new(end));
        let shared = Arc::clone(&target);
        ctrlc::set_handler(move || shared.lock().unwrap_or_else(PoisonError::into_inner)())?;
        Ok(Self(target))
    }

    /// Calls `target` from now on, instead of what was set before; until the first call, a signal ends the process.
    pub fn set(&self, target: impl FnMut() + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(target);
    }
}

/// The exit status after Ctrl-C, as shells expect it.
pub const INTERRUPTED_STATUS: u8 = 130;

/// The user pressed Ctrl-C, or asked this process to terminate.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted(&'static str);

impl Interrupted {
    /// The members of this command's own group have ended.
    pub const ENDED: Self = Self("interrupted; all members have ended");
    /// There was nothing but this process.
    pub const ALONE: Self = Self("interrupted");
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Interrupted {}
