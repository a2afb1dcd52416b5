//! The wall clock of a host. The kernel has only one, so programs there get another one from `libfaketime`, which stands between them and the
//! C library. What reads the clock without that (a static program, or one that calls the kernel itself) does not see it.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// How the wall clock of a host differs from this machine's. The monotonic clock is the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostClock {
    /// Milliseconds ahead; below 0: behind.
    pub offset_ms: i64,
    /// Seconds that it advances in a second, from the start of each program on.
    pub rate: f64,
}

impl HostClock {
    /// What programs need in their environment.
    ///
    /// # Errors
    /// If the library is missing.
    pub(super) fn environment(self) -> Result<Vec<String>> {
        let folders = FOLDERS.iter().map(|folder| format!("{folder}/faketime"));
        let triple = [format!("/usr/lib/{}-linux-gnu/faketime", std::env::consts::ARCH)];
        let mut files = triple.into_iter().chain(folders).map(|folder| PathBuf::from(folder).join(LIBRARY));
        let library = files
            .find(|file| file.exists())
            .context("a wall clock of a host's own needs libfaketime (package libfaketime)")?;
        // A negative number is a time behind; a sign has to be there.
        #[expect(clippy::cast_precision_loss, reason = "at most ten years")]
        let seconds = self.offset_ms as f64 / 1000.0;
        Ok(vec![
            format!("LD_PRELOAD={}", library.display()),
            format!("FAKETIME={seconds:+} x{}", self.rate),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
            "DONT_FAKE_MONOTONIC=1".into(),
        ])
    }
}

/// An offset, and a rate that is not 1: `+2h`, `-1.5s`, `+0s,rate=1.001`.
impl FromStr for HostClock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("`{text}` is not a clock: write +2h, -1.5s or +0s,rate=1.001");
        let (offset, rate) = match text.split_once(",rate=") {
            Some((offset, rate)) => (offset, rate.parse::<f64>().map_err(|_| expected())?),
            None => (text, 1.0),
        };
        let units = [("ms", 1.0), ("s", 1e3), ("m", 60e3), ("h", 3600e3), ("d", 86_400e3)];
        let split = units.iter().find_map(|(unit, scale)| Some((offset.strip_suffix(unit)?, *scale)));
        let offset_ms = split.and_then(|(number, scale)| Some(number.parse::<f64>().ok()? * scale));
        let offset_ms = offset_ms.filter(|offset| offset.abs() <= OFFSET_MAX_MS).ok_or_else(expected)?;
        if !offset.starts_with(['+', '-']) || !(0.1..=10.0).contains(&rate) {
            return Err(expected());
        }
        #[expect(clippy::cast_possible_truncation, reason = "within OFFSET_MAX_MS")]
        Ok(Self { offset_ms: offset_ms as i64, rate })
    }
}

/// Ten years.
const OFFSET_MAX_MS: f64 = 3650.0 * 86_400e3;
/// The library for programs with several threads, and where it may be.
const LIBRARY: &str = "libfaketimeMT.so.1";
const FOLDERS: [&str; 4] = ["/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_read() {
        let clock = |offset_ms, rate| Ok(HostClock { offset_ms, rate });
        assert_eq!("+2h".parse(), clock(7_200_000, 1.0));
        assert_eq!("-1.5s".parse(), clock(-1500, 1.0));
        assert_eq!("+0s,rate=1.001".parse(), clock(0, 1.001));
        for text in ["", "2h", "+h", "+2", "+NaNs", "+9999d", "+1s,rate=0", "+1s,rate=", "+1s,speed=2"] {
            assert!(text.parse::<HostClock>().is_err(), "{text}");
        }
    }
}
