//! The times of records, by a clock that the test sets, and how many records there are. Versions by time, `retain.time` and the times of
//! checkpoints are made of these times.

use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::sim::Prng;
use squall_protocols::restart::LogStart;

use super::*;

/// A log of one subgroup.
struct TimedLog {
    disk: TestDisk,
    process: Arc<ProcessLog>,
    log: SubgroupLog,
    clock: Arc<AtomicU64>,
    /// The sequence that comes next.
    next: u64,
    /// Of each message, what the clock was when its batch began and when it was appended, and the latest time that was passed before.
    expected: Vec<[u64; 3]>,
    passed: u64,
}

impl TimedLog {
    fn new() -> Self {
        let (disk, clock) = (disk(), Arc::new(AtomicU64::new(1_000 * SECOND)));
        let reading = Arc::clone(&clock);
        let now = Box::new(move || reading.load(Ordering::Relaxed));
        let process = start_by_clock(&disk, SETTINGS, Duration::from_secs(60), now);
        let log = process.subgroup(ID, 3);
        Self { disk, process, log, clock, next: 0, expected: Vec::new(), passed: 0 }
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn set_clock(&self, now: u64) {
        self.clock.store(now, Ordering::Relaxed);
    }

    /// Appends a batch of messages, with a null before each, `step` apart. Nulls follow, of which a log learns by the next message.
    fn receive(&mut self, messages: u64, step: u64, nulls: u64) {
        let begun = self.now();
        for _ in 0..messages {
            self.expected.push([begun, self.now(), self.passed]);
            self.log.append(message(self.next + 1, b"a"));
            self.next += 2;
            self.set_clock(self.now() + step);
        }
        self.next += nulls;
        self.log.end_batch();
    }

    fn settle(&mut self) {
        wait_until("all is on the disk", || {
            let _ = self.log.persisted();
            self.process.unpersisted(ID) == Some(0)
        });
    }

    /// Checks that each message has one record, with the right time, and that there is nothing else in the log.
    fn check(self) {
        let Self { disk, process, log, expected, .. } = self;
        drop((log, process));
        let mut times = Vec::new();
        let storage = Storage::inspect(disk, SETTINGS).expect("it has an identity");
        let recovered = storage.recover(&mut |_, record| {
            assert_eq!(record.kind, RecordKind::Message, "{:?}", record.position);
            times.push(record.time);
        });
        recovered.expect("it can be read");
        assert_eq!(times.len(), expected.len());
        let mut before = 0;
        for (number, (time, [begun, appended, passed])) in times.into_iter().zip(expected).enumerate() {
            assert!(time > before && time > passed, "message {number}: {time} after {before} and {passed}");
            assert!(time >= begun, "message {number} has the time {time}, and its batch came at {begun}");
            let latest = appended.max(before + 1).max(passed + 1);
            assert!(time <= latest, "message {number} has the time {time}, and was received at {latest}");
            before = time;
        }
    }
}

/// What comes alone, after a pause in which everything before has come to the disk, has the time at which it came.
#[test]
fn a_lone_message_has_its_own_time() {
    let mut log = TimedLog::new();
    for _ in 0..3 {
        log.receive(3, 10, 4);
        log.settle();
        log.set_clock(log.now() + 10 * SECOND);
        log.receive(1, 0, 2);
        log.settle();
        log.set_clock(log.now() + 10 * SECOND);
    }
    log.check();
}

/// Bursts, pauses, clocks that are set back, and versions that were read up to a time.
#[test]
fn each_message_has_the_time_at_which_it_came() {
    let mut prng = Prng::new(7);
    for _ in 0..20 {
        let mut log = TimedLog::new();
        for _ in 0..30 {
            let (messages, step) = (prng.below(4), [0, 1, 1_000, SECOND][prng.index(4)]);
            log.receive(messages, step, prng.below(5));
            if prng.chance(400) {
                log.settle();
            }
            let pause = [0, 1, 1_000, SECOND, 3_600 * SECOND][prng.index(5)];
            log.set_clock(log.now() + pause);
            if prng.chance(100) {
                log.set_clock(log.now() - prng.below(100 * SECOND));
            }
            if prng.chance(200) {
                log.passed = log.passed.max(log.now() + prng.below(1_000));
                let _ = log.process.pass(ID, log.passed);
            }
        }
        log.check();
    }
}

/// `retain.time` keeps what was received that lately, and nothing that was received before; the time of a checkpoint is that of the last
/// message in it.
#[test]
fn a_lone_message_is_kept_for_its_time() {
    let mut log = TimedLog::new();
    log.receive(3, 10, 0);
    log.settle();
    let lone = log.next + 1;
    log.set_clock(2_000 * SECOND);
    log.receive(1, 0, 2);
    log.settle();
    log.set_clock(2_010 * SECOND);
    let end = LogStart { view: 3, sequence: log.next };
    let wanted = |seconds| {
        let retention = Retention { time: Duration::from_secs(seconds), ..Retention::default() };
        log.process.wanted(ID, end, &retention)
    };
    assert_eq!([wanted(9), wanted(11), wanted(1_009)], [at(end.sequence - 1), at(lone - 1), at(lone - 1)]);
    assert_eq!(wanted(1_011), at(0), "of the first batch, which begins with a null");
    let time = |sequence| log.process.time_before(ID, LogStart { view: 3, sequence });
    assert_eq!([time(lone), time(lone + 1)], [1_000 * SECOND + 2, 2_000 * SECOND]);
    log.check();
}

const ID: SubgroupId = SubgroupId(4);
const SECOND: u64 = 1_000_000_000;
