//! What the writer of a log notes of its frames, beside what a reader of the disk finds.

use squall_log::Recovered;

use super::cluster::{LogRun, OpenLog};

/// A log as its notes have it, and as it was read.
pub(super) struct NotedLog {
    noted: Recovered,
    read: Recovered,
    /// Whether the disk works: else a reader may find less.
    is_checked: bool,
}

impl NotedLog {
    pub(super) fn new(recovered: &Recovered, is_checked: bool) -> Self {
        Self { noted: recovered.clone(), read: recovered.clone(), is_checked }
    }
}

impl LogRun<'_> {
    /// \[W15\] What is noted is what a reader finds.
    pub(super) fn check_notes(&mut self, open: &mut OpenLog) {
        if !open.notes.is_checked || open.core.failure().is_some() || self.disk.is_stopped() {
            return;
        }
        let NotedLog { noted, read, .. } = &mut open.notes;
        let notes = open.core.take_notes().expect("they are few");
        if let Some(note) = notes.iter().find(|note| !noted.note(note)) {
            return self.fail("notes", format!("[W15] a note does not follow: {note:?}"));
        }
        if noted.last < open.opening {
            // A frame that recovery has misread is there until the opening takes its place.
            return;
        }
        self.take_struck();
        if let Err(error) = open.storage.follow(read, &mut |_| ()) {
            return self.fail("notes", format!("[W15] {error}"));
        }
        if !self.disk.take_struck().is_empty() {
            // This reader has misread a bit, as the recovery before was to; it looks again later.
            return;
        }
        if facts(noted) != facts(read) {
            let (noted, read) = (format!("{:?}", facts(noted)), format!("{:?}", facts(read)));
            self.fail("notes", format!("[W15] noted {noted}, and a reader finds {read}"));
        }
    }
}

/// What both know: not what the reader has learned of the tail.
fn facts(log: &Recovered) -> impl PartialEq + std::fmt::Debug + '_ {
    let Recovered { last, segment, offset, chain, segments, frontiers, frames, records, .. } = log;
    ((last, segment, offset, chain), (frames, records), (segments, frontiers))
}
