//! The core alone: how many frames are written at a time, in which order records are persisted, and what a failure ends.

use squall_log::{
    AppendError, DiskCause, DiskError, FrameWrite, LogAction, LogAnswer, LogCore, LogPosition, LogRecord,
    LogSettings, RecordKind, SimDisk, Storage, StorageOwner,
};

const SETTINGS: LogSettings = LogSettings {
    block: 128,
    segment_bytes: 128 << 10,
    frame_bytes: 1000,
    in_flight_max: 4,
    queue_frames_max: 4,
};

/// The core of a new log whose opening is written and whose next segment is ready.
fn core() -> LogCore {
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    let storage = Storage::open(SimDisk::new(1, 128), &owner, SETTINGS, 7).expect("the disk works");
    let recovered = storage.recover(&mut |_, _| ()).expect("the disk works");
    let mut core = LogCore::new(SETTINGS, 7, 1, recovered);
    while let Some(action) = core.poll_action() {
        match action {
            LogAction::Prepare { segment, .. } => core.handle_prepared(segment),
            LogAction::Write(write) => core.handle_written(write),
        }
    }
    assert!(core.is_settled());
    assert_eq!(core.poll_answer(), Some(LogAnswer::Prepared(2)));
    core
}

fn append(core: &mut LogCore, sequence: u64, length: usize) -> Result<u64, AppendError> {
    let (kind, bytes) = (RecordKind::Message, vec![1; length]);
    let position = LogPosition { view: 0, sequence };
    core.append(&LogRecord { subgroup: 3, kind, position, sender: 0, time: 0, bytes: &bytes })
}

fn append_all(core: &mut LogCore, sequences: std::ops::Range<u64>, length: usize) {
    for sequence in sequences {
        append(core, sequence, length).expect("it fits");
    }
}

fn write(core: &mut LogCore) -> Option<FrameWrite> {
    match core.poll_action()? {
        LogAction::Write(write) => Some(write),
        LogAction::Prepare { segment, .. } => panic!("segment {segment} is not needed yet"),
    }
}

fn error() -> DiskError {
    DiskError { operation: "write", path: "log/1".into(), cause: DiskCause::System(5) }
}

/// A second small write at the same time would take twice as long and gain nothing: the next frame collects.
#[test]
fn small_frames_are_written_one_at_a_time() {
    let mut core = core();
    append(&mut core, 0, 8).expect("it fits");
    let first = write(&mut core).expect("nothing is written, so this is");
    append_all(&mut core, 1..6, 8);
    assert!(write(&mut core).is_none(), "one is being written");
    core.handle_written(first);
    assert_eq!(core.poll_answer(), Some(LogAnswer::Persisted(1)));
    let second = write(&mut core).expect("what has collected");
    assert_eq!(second.records, 5);
    core.handle_written(second);
    assert_eq!(
        (core.poll_answer(), core.frontier(3)),
        (Some(LogAnswer::Persisted(6)), Some(LogPosition { view: 0, sequence: 5 }))
    );
}

/// Full frames are written together, and persisted in their order [W5].
#[test]
fn full_frames_are_written_together() {
    let mut core = core();
    append_all(&mut core, 0..5, 900);
    let mut writes: Vec<FrameWrite> = std::iter::from_fn(|| write(&mut core)).collect();
    assert_eq!(writes.len(), 4);
    core.handle_written(writes.pop().expect("there are four"));
    assert_eq!(core.poll_answer(), None, "frames before it are not written");
    core.handle_written(writes.remove(0));
    assert_eq!(core.poll_answer(), Some(LogAnswer::Persisted(1)));
    writes.into_iter().rev().for_each(|write| core.handle_written(write));
    assert_eq!(core.poll_answer(), Some(LogAnswer::Persisted(4)));
}

/// Full is a value: the log takes more when the disk has caught up.
#[test]
fn a_full_queue_takes_nothing() {
    let mut core = core();
    let taken = (0..100).take_while(|sequence| append(&mut core, *sequence, 900).is_ok()).count();
    assert_eq!(taken, 1 + SETTINGS.queue_frames_max);
    assert_eq!(append(&mut core, 100, 900), Err(AppendError::Full));
    let written = write(&mut core).expect("it is full");
    core.handle_written(written);
    append(&mut core, 100, 900).expect("there is space again");
}

/// [W6] Nothing is written or answered after a failure, also not what was already written.
#[test]
fn a_failure_ends_the_log() {
    let mut core = core();
    append_all(&mut core, 0..3, 900);
    let mut writes: Vec<FrameWrite> = std::iter::from_fn(|| write(&mut core)).collect();
    core.handle_failed(writes.pop(), error());
    assert_eq!(core.poll_answer(), Some(LogAnswer::Failed(error())));
    writes.into_iter().for_each(|write| core.handle_written(write));
    assert!(core.poll_action().is_none() && core.poll_answer().is_none());
    assert_eq!(append(&mut core, 3, 8), Err(AppendError::Failed(error())));
}

#[test]
fn a_record_longer_than_a_segment_is_refused() {
    let mut core = core();
    let max = SETTINGS.record_bytes_max();
    assert_eq!(append(&mut core, 0, max), Err(AppendError::TooLong { length: max, max }));
    append(&mut core, 0, max - 40).expect("it fits a segment of its own");
}

/// [W15] Of frames that are written out of their order, those are noted that a reader finds.
#[test]
fn frames_are_noted_when_all_before_are_written() {
    let mut core = core();
    assert_eq!(core.take_notes().map(|notes| notes.len()), Some(1), "the opening");
    append_all(&mut core, 0..4, 900);
    let mut writes: Vec<FrameWrite> = std::iter::from_fn(|| write(&mut core)).collect();
    core.handle_written(writes.remove(1));
    assert_eq!(core.take_notes().map(|notes| notes.len()), Some(0), "the first one is not written");
    core.handle_written(writes.remove(0));
    let notes = core.take_notes().expect("they are few");
    let covered: Vec<_> =
        notes.iter().flat_map(|note| note.spans.iter().map(|(_, span)| span.first)).collect();
    assert_eq!(covered, [0, 1]);
}

/// Without space for another segment the log continues in those that it has, says once when little is left, and fails when that is used.
#[test]
fn a_log_without_space_uses_what_it_has() {
    let full =
        || DiskError { operation: "write zeros to", path: "log/3".into(), cause: DiskCause::System(28) };
    let mut core = core();
    let (mut sequence, mut refused, mut reported) = (0, 0, 0);
    assert_eq!(core.space_left(), None, "the next one is ready");
    let failure = loop {
        append(&mut core, sequence, 900).expect("there is space");
        sequence += 1;
        while let Some(action) = core.poll_action() {
            match action {
                LogAction::Prepare { segment, .. } => {
                    assert_eq!(segment, 3);
                    refused += 1;
                    core.handle_no_space(full());
                }
                LogAction::Write(write) => core.handle_written(write),
            }
        }
        let answers: Vec<LogAnswer> = std::iter::from_fn(|| core.poll_answer()).collect();
        for answer in &answers {
            if let LogAnswer::NoSpace(error) = answer {
                assert_eq!(*error, full());
                reported += 1;
                let left = core.space_left().expect("there is no third one");
                assert!((1..=u64::from(SETTINGS.segment_bytes) / 2).contains(&left), "{left}");
            }
        }
        if let Some(LogAnswer::Failed(error)) = answers.last() {
            break error.clone();
        }
        assert!(sequence < 1000, "it never fails");
    };
    assert_eq!((failure, refused, reported), (full(), 1, 1), "it is not asked for again and again");
    assert!(sequence > 2 * 100, "both segments were used: {sequence} records");
}

/// What there was no space for is asked for again later, and all is well when it is there.
#[test]
fn a_segment_is_asked_for_again() {
    let full = DiskError { operation: "write zeros to", path: "log/3".into(), cause: DiskCause::System(28) };
    let mut core = core();
    let mut sequence = 0;
    let segment = loop {
        append(&mut core, sequence, 900).expect("there is space");
        sequence += 1;
        match core.poll_action() {
            Some(LogAction::Prepare { segment, .. }) => break segment,
            Some(LogAction::Write(write)) => core.handle_written(write),
            None => {}
        }
    };
    core.handle_no_space(full);
    while let Some(write) = write(&mut core) {
        core.handle_written(write);
    }
    assert!(core.space_left().is_some());
    core.try_again();
    assert!(
        matches!(core.poll_action(), Some(LogAction::Prepare { segment: again, .. }) if again == segment)
    );
    core.handle_prepared(segment);
    assert_eq!(core.space_left(), None);
}
