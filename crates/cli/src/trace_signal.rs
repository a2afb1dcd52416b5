//! The signal that asks a member for a trace: SIGUSR1 writes what it has noticed lately into a file.

use std::fs::{OpenOptions, remove_file, rename};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::{Handle, Signals};
use squall::{Config, FlightRecord, trace};

/// Calls a function at each signal, until it is dropped.
pub(crate) struct TraceSignal {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl TraceSignal {
    /// Takes over SIGUSR1, which would end the process otherwise.
    pub(crate) fn take(mut wanted: impl FnMut() + Send + 'static) -> Result<Self> {
        let mut signals = Signals::new([SIGUSR1]).context("failed to take over SIGUSR1")?;
        let handle = signals.handle();
        let run = move || signals.forever().for_each(|_| wanted());
        let thread = std::thread::Builder::new().name("squall signals".into()).spawn(run)?;
        Ok(Self { handle, thread: Some(thread) })
    }
}

impl Drop for TraceSignal {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has already reported that.
            let _ = thread.join();
        }
    }
}

/// Returns where a member writes its trace: where its record goes when it ends, else beside its log. `None`: it has neither.
pub(crate) fn file(config: &Config) -> Option<PathBuf> {
    let beside_log = || {
        let mut name = config.log_folder()?.into_os_string();
        name.push(".trace.json");
        Some(name.into())
    };
    config.flight_record.clone().or_else(beside_log)
}

/// Writes a trace for ui.perfetto.dev, whole or not at all, for the user of this process alone.
pub(crate) fn write(file: &Path, record: &FlightRecord) -> Result<()> {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let write_part = || {
        // What an earlier attempt has left behind may be readable by others.
        remove_file(&part)
            .or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        let mut made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        made.write_all(trace::of_records(std::slice::from_ref(record)).as_bytes())
    };
    write_part()
        .and_then(|()| rename(&part, file))
        .with_context(|| format!("failed to write the trace to {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use squall::config::StorageConfig;

    use super::*;

    /// The process lives, and each signal counts, until it is given back.
    #[test]
    fn a_signal_asks_for_a_trace() {
        let (sender, asked) = channel();
        let signal = TraceSignal::take(move || sender.send(()).expect("the test waits")).expect("it is free");
        for _ in 0..3 {
            signal_hook::low_level::raise(SIGUSR1).expect("to this process");
            asked.recv_timeout(Duration::from_secs(30)).expect("it is asked for");
        }
        drop(signal);
        assert!(asked.recv_timeout(Duration::from_secs(30)).is_err(), "the thread has ended");
    }

    #[test]
    fn a_trace_goes_where_the_record_goes_or_beside_the_log() {
        let mut config = Config::local("trace-signal", 1);
        assert_eq!(file(&config), None);
        config.storage = Some(StorageConfig::new("/srv/squall"));
        config.rank = Some(2);
        assert_eq!(file(&config), Some("/srv/squall/rank-2.trace.json".into()));
        config.flight_record = Some("member.json".into());
        assert_eq!(file(&config), Some("member.json".into()));
    }

    #[test]
    fn a_trace_replaces_the_one_before() {
        let folder = std::env::temp_dir().join(format!("squall-trace-signal-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("trace.json");
        for _ in 0..2 {
            write(&file, &FlightRecord::default()).unwrap();
            assert!(std::fs::read_to_string(&file).unwrap().starts_with("[\n"));
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left over");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "it is for its user alone");
        std::fs::remove_dir_all(&folder).unwrap();
        let error = write(&file, &FlightRecord::default()).unwrap_err().to_string();
        assert!(error.contains("trace.json"), "{error}");
    }
}
