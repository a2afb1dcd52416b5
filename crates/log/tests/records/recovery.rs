//! Recovery of every small log: each way to write its frames, each set of bad ones, each way to be bad.

use std::collections::BTreeSet;

use squall_log::{
    Disk as _, FrameHeader, LogAction, LogCore, LogPosition, LogRecord, LogSettings, RecordKind, SimDisk,
    Storage, StorageOwner, TailVerdict,
};

/// How frames are bad.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Badness {
    /// Nothing of them is on the disk.
    Absent,
    /// The header is not as it was written.
    Header,
    /// The body is not as it was written.
    Body,
}

/// A frame as it was written.
struct Written {
    path: String,
    offset: u64,
    known_durable: u64,
    number: u64,
    records: u32,
}

/// Frames of a block each, so that each record fills one.
fn settings(in_flight_max: usize) -> LogSettings {
    LogSettings { block: 128, segment_bytes: 3 * 128, frame_bytes: 100, in_flight_max, queue_frames_max: 9 }
}

fn storage(disk: &SimDisk, in_flight_max: usize) -> Storage<&SimDisk> {
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    Storage::open(disk, &owner, settings(in_flight_max), 7).expect("the disk works")
}

/// Writes the opening and `records` frames. With bit i of `pattern` all is written before frame i is handed to the disk; else only
/// what has to be.
fn write(in_flight_max: usize, records: u64, pattern: u32) -> (SimDisk, Vec<Written>) {
    let disk = SimDisk::new(1, 128);
    let storage = storage(&disk, in_flight_max);
    let recovered = storage.recover(&mut |_, _| ()).expect("the disk works");
    let life = storage.begin_life().expect("the disk works");
    let mut core = LogCore::new(*storage.settings(), 7, life, recovered);
    for sequence in 0..records {
        let (kind, position) = (RecordKind::Message, LogPosition { view: 0, sequence });
        let record = LogRecord { subgroup: 0, kind, position, sender: 0, time: 0, bytes: &[1; 8] };
        core.append(&record).expect("it fits");
    }
    let (mut written, mut under_way) = (Vec::new(), std::collections::VecDeque::new());
    loop {
        match core.poll_action() {
            Some(LogAction::Prepare { segment, recycle }) => {
                storage.prepare(segment, recycle).expect("the disk works");
                core.handle_prepared(segment);
            }
            Some(LogAction::Write(write)) => {
                let header = write.bytes.bytes().first_chunk().expect("a header");
                let header = FrameHeader::from_bytes(header).expect("it is good");
                let (number, known_durable, records) = (header.number, header.known_durable, write.records);
                written.push(Written {
                    path: write.path(),
                    offset: write.offset,
                    known_durable,
                    number,
                    records,
                });
                disk.write(&write.path(), write.offset, &write.bytes).expect("the disk works");
                under_way.push_back(write);
                if pattern >> written.len() & 1 == 1 {
                    under_way.drain(..).for_each(|write| core.handle_written(write));
                }
            }
            None => match under_way.pop_front() {
                Some(write) => core.handle_written(write),
                None => return (disk, written),
            },
        }
    }
}

/// Makes the frames of the set `bad` bad.
fn spoil(disk: &SimDisk, written: &[Written], bad: u32, badness: Badness) {
    for (_, frame) in written.iter().enumerate().filter(|(i, _)| bad >> i & 1 == 1) {
        let mut bytes = disk.contents(&frame.path).expect("it exists");
        let begin = usize::try_from(frame.offset).expect("short");
        match badness {
            Badness::Absent => bytes[begin..begin + 128].fill(0),
            Badness::Header => bytes[begin + 20] ^= 1,
            Badness::Body => bytes[begin + 64] ^= 1,
        }
        disk.replace(&frame.path, bytes);
    }
}

/// What has to be found, by what a crash can do: no good frame knows a bad one to be durable.
fn expected(written: &[Written], bad: u32, badness: Badness) -> (TailVerdict, u32) {
    let is_bad = |i: usize| bad >> i & 1 == 1;
    let end = (0..written.len()).find(|i| is_bad(*i)).unwrap_or(written.len());
    let last = end.checked_sub(1).map_or(0, |last| written[last].number);
    let records = written[..end].iter().map(|frame| frame.records).sum();
    // The header of a frame with a bad body is good, and says what was durable.
    let seen = |i: &usize| !is_bad(*i) || badness == Badness::Body;
    let known = (0..written.len()).filter(seen).map(|i| written[i].known_durable).max().unwrap_or(0);
    let has_trace =
        (end..written.len()).any(|i| seen(&i)) || (end < written.len() && badness == Badness::Header);
    let verdict = match (known > last, has_trace) {
        (true, _) => TailVerdict::Damaged,
        (false, true) => TailVerdict::Torn,
        (false, false) => TailVerdict::Clean,
    };
    (verdict, records)
}

/// [W7] All of them; and a log that can be continued is good afterwards.
#[test]
fn every_small_log_is_recovered() {
    let mut counts = [0; 3];
    for in_flight_max in 1..=4 {
        for records in 0..=5_u64 {
            let mut histories = BTreeSet::new();
            for pattern in 0..1 << (records + 2) {
                let (disk, written) = write(in_flight_max, records, pattern);
                assert_eq!(written.len() as u64, records + 1);
                if !histories.insert(written.iter().map(|frame| frame.known_durable).collect::<Vec<_>>()) {
                    continue;
                }
                for bad in 0..1 << written.len() {
                    for badness in [Badness::Absent, Badness::Header, Badness::Body] {
                        if badness == Badness::Body && bad & 1 == 1 {
                            // The opening has none.
                            continue;
                        }
                        let disk = disk.clone();
                        spoil(&disk, &written, bad, badness);
                        let storage = storage(&disk, in_flight_max);
                        let mut found = 0;
                        let recovered = storage.recover(&mut |_, _| found += 1).expect("the disk works");
                        let context = format!("{in_flight_max} {records} {pattern:b} {bad:b} {badness:?}");
                        assert_eq!((recovered.verdict, found), expected(&written, bad, badness), "{context}");
                        counts[recovered.verdict as usize] += 1;
                    }
                }
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 400), "all verdicts occur: {counts:?}");
}
