//! Ctrl-C and requests to terminate.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use squall_fabric::mutex::lock;

use super::output;

/// Receives Ctrl-C and requests to terminate.
#[derive(Clone)]
pub struct Interrupts(Arc<Mutex<Target>>);

type Target = Box<dyn FnMut() + Send>;

impl Interrupts {
    /// Takes over the signals of this process, once, except those that its parent has had it ignore, as `nohup` does. A
    /// process with a handler obeys them even if it is the first one of a container.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn take() -> Result<Self> {
        if let Some(taken) = TAKEN.get() {
            return Ok(taken.clone());
        }
        let end: Target = Box::new(|| output::exit(INTERRUPTED_STATUS.into()));
        let interrupts = Self(Arc::new(Mutex::new(end)));
        let ignored = ignored_signals();
        let ours = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let mut signals =
            Signals::new(ours).context("failed to take over the signals that end this process")?;
        let target = Arc::clone(&interrupts.0);
        let run = move || {
            let call = |_| lock(&target)();
            signals.forever().for_each(call);
        };
        std::thread::Builder::new().name("interrupts".into()).spawn(run)?;
        Ok(TAKEN.get_or_init(|| interrupts).clone())
    }

    /// Calls `target` from now on, instead of what was set before; until the first call, a signal ends the process.
    pub fn set(&self, target: impl FnMut() + Send + 'static) {
        *lock(&self.0) = Box::new(target);
    }
}

/// Returns the signals that this process ignores, the lowest bit for signal 1.
fn ignored_signals() -> u64 {
    // Where there is no such file, none is known to be ignored.
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored_by(&status))
}

fn ignored_by(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

static TAKEN: OnceLock<Interrupts> = OnceLock::new();

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        let status = "Name:\tsquall\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored_by(status), 1 << (SIGHUP - 1) | 1 << 12);
        assert_eq!((ignored_by(""), ignored_by("SigIgn:\tx")), (0, 0));
    }
}
