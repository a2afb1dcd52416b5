//! Copies what this member has noticed to where others read it, and writes it to a file when the group ends here.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use squall_fabric::{Duration, Fabric as _, Instant, NodeId};
use squall_protocols::group::{FlightEvent, SlowCause};
use squall_protocols::membership::Membership;
use squall_transports::log;

use super::Stack;
use crate::error::GroupError;
use crate::flight_record::FlightRecord;
use crate::operate::flight;

/// What others can read of the flight record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlightCopied {
    /// How many events there were.
    events: u64,
    /// How many messages were measured.
    messages: u64,
    at: Instant,
}

/// Between copies that have nothing new but messages.
const MESSAGES_PERIOD: Duration = Duration::from_millis(50);

/// What was logged of the members that hold this one up in a subgroup.
#[derive(Debug, Default)]
pub(super) struct HoldUpsLogged {
    /// When each member and cause was logged last.
    lines: Vec<((NodeId, SlowCause), Instant)>,
    /// Whether the last line says that a member holds this one up.
    is_open: bool,
}

impl HoldUpsLogged {
    /// Returns whether to log that a member holds this one up.
    fn begin(&mut self, now: Instant, what: (NodeId, SlowCause)) -> bool {
        let is_old = |at: Instant| now.since(at) >= HOLD_UPS_EVERY;
        self.lines.retain(|(_, at)| !is_old(*at));
        let is_new = self.lines.iter().all(|(other, _)| *other != what);
        if is_new {
            self.lines.push((what, now));
            self.is_open = true;
        }
        is_new
    }

    /// Returns whether to log that none does: the end of what was logged is logged, too.
    const fn end(&mut self) -> bool {
        std::mem::replace(&mut self.is_open, false)
    }
}

impl Stack {
    /// Copies the flight recorder. A reader holds the copy for as long as it takes to clone some hundred events.
    #[cold]
    pub(super) fn copy_flight(&mut self) {
        self.log_hold_ups();
        let recorder = self.group.flight();
        let (now, node) = (self.fabric.now(), self.fabric.node());
        let view = self.group.membership().map(Membership::view);
        let rank = view.and_then(|view| Some(view.members[view.rank(node)?].tag));
        let tracks = self.group.tracks();
        let own = (recorder, tracks);
        self.status.flight().copy((node, rank), now, own, &self.names, self.group.timeline());
        self.flight_copied =
            FlightCopied { events: recorder.recorded(), messages: tracks.recorded(), at: now };
    }

    /// Copies what is new: events at once, and messages, of which there may be many, [`MESSAGES_PERIOD`] apart.
    pub(super) fn copy_flight_news(&mut self) {
        let FlightCopied { events, messages, at } = self.flight_copied;
        let has_messages = || self.group.tracks().recorded() != messages;
        if self.group.flight().recorded() != events
            || (has_messages() && self.fabric.now().since(at) >= MESSAGES_PERIOD)
        {
            self.copy_flight();
        }
    }

    /// Logs which member begins or ceases to hold this one up and why, the same of a subgroup only once in a while.
    fn log_hold_ups(&mut self) {
        let (recorder, now) = (self.group.flight(), self.fabric.now());
        let new = usize::try_from(recorder.recorded() - self.flight_copied.events).unwrap_or(usize::MAX);
        let events = recorder.events();
        let known = events.len().saturating_sub(new);
        for (_, event) in events.skip(known) {
            let is_logged = match *event {
                FlightEvent::HeldUp(id, member, cause) => {
                    self.hold_ups_logged.entry(id).or_default().begin(now, (member, cause))
                }
                FlightEvent::Released(id) => self.hold_ups_logged.entry(id).or_default().end(),
                _ => false,
            };
            if is_logged {
                log::warn!("{}", self.status.flight().words(event));
            }
        }
    }

    /// Notes why the group ends here, and writes the flight record where the configuration says.
    #[cold]
    pub(super) fn end_flight(&mut self, error: &GroupError) {
        self.copy_flight();
        let why = if std::thread::panicking() {
            "its polling thread has panicked".into()
        } else {
            error.to_string()
        };
        let mut copy = self.status.flight();
        copy.end(self.fabric.now(), why);
    }

    /// Writes the record to its file, if it has one. A file that hangs delays the end of the member for a short time only.
    pub(super) fn write_flight(&self) {
        let Some(file) = self.flight_file.clone() else { return };
        let record = self.status.flight().record();
        let (done, is_done) = mpsc::channel();
        let write = move || {
            write_record(&file, &record);
            // The polling thread may have stopped waiting.
            let _ = done.send(());
        };
        match thread::Builder::new().name("squall flight".into()).spawn(write) {
            Ok(_) if is_done.recv_timeout(WRITE_PATIENCE) == Err(RecvTimeoutError::Timeout) => {
                log::warn!("the flight record is still being written");
            }
            Ok(_) => {}
            Err(error) => log::error!(%error, "failed to start the thread that writes the flight record"),
        }
    }
}

fn write_record(file: &Path, record: &FlightRecord) {
    match flight::write(file, record) {
        Ok(()) => log::info!("what this member has noticed lately is in {}", file.display()),
        Err(error) => log::error!(%error, "failed to write the flight record to {}", file.display()),
    }
}

/// The least time between two lines that a member holds this one up in a subgroup for the same cause.
const HOLD_UPS_EVERY: Duration = Duration::from_secs(10);

/// How long the end of a member waits for its flight record.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_again_only_after_a_while() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let (link, processor) = ((NodeId(1), SlowCause::Link), (NodeId(1), SlowCause::Processor));
        let mut logged = HoldUpsLogged::default();
        assert!(!logged.end());
        assert!(logged.begin(at(100), link));
        // What it says of itself comes later, and does not wait.
        assert!(logged.begin(at(101), processor));
        assert!(!logged.begin(at(102), link));
        assert_eq!([logged.end(), logged.end()], [true, false]);
        assert!(!logged.begin(at(109), link));
        // The end of a line that was left out is left out.
        assert!(!logged.end());
        assert!(logged.begin(at(110), link));
        assert!(!logged.begin(at(110), processor));
        assert!(logged.begin(at(111), processor));
    }
}
