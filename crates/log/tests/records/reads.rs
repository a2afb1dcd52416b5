//! What recovery reads, and a read that fails once (Derecho §3.4).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use squall_log::{
    AlignedBuffer, Disk, DiskCause, DiskError, LogAction, LogCore, LogPosition, LogRecord, LogSettings,
    RecordKind, Recovered, SimDisk, Storage, StorageOwner, TailVerdict, opening_number,
};

const BLOCK: usize = 128;
const SEGMENT_BYTES: usize = 3 * BLOCK;
/// Frames of a block each, so that each record fills one.
const SETTINGS: LogSettings = LogSettings {
    block: BLOCK,
    segment_bytes: SEGMENT_BYTES as u32,
    frame_bytes: 100,
    in_flight_max: 1,
    queue_frames_max: 40,
};

/// A read that goes wrong once.
#[derive(Clone, Copy)]
enum BadRead {
    Error,
    Bit,
}

/// A disk that counts reads by path and length.
struct CountingDisk<'a> {
    disk: &'a SimDisk,
    reads: RefCell<BTreeMap<(String, usize), u32>>,
    /// The segment, the offset of the byte that is read, and what happens.
    bad: Cell<Option<(u32, usize, BadRead)>>,
}

impl<'a> CountingDisk<'a> {
    fn new(disk: &'a SimDisk) -> Self {
        Self { disk, reads: RefCell::new(BTreeMap::new()), bad: Cell::new(None) }
    }

    fn reads(&self, segment: u32, length: usize) -> u32 {
        self.reads.borrow().get(&(path(segment), length)).copied().unwrap_or(0)
    }
}

impl Disk for CountingDisk<'_> {
    fn list(&self, folder: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(folder)
    }

    fn length(&self, path: &str) -> Result<u64, DiskError> {
        self.disk.length(path)
    }

    fn read(&self, path: &str, offset: u64, buffer: &mut AlignedBuffer) -> Result<usize, DiskError> {
        *self.reads.borrow_mut().entry((path.into(), buffer.len())).or_default() += 1;
        let length = self.disk.read(path, offset, buffer)?;
        let bad = self.bad.get().filter(|(segment, at, _)| {
            path == self::path(*segment) && (offset as usize..offset as usize + length).contains(at)
        });
        let Some((_, at, bad)) = bad else { return Ok(length) };
        self.bad.set(None);
        match bad {
            BadRead::Error => {
                Err(DiskError { operation: "read", path: path.into(), cause: DiskCause::System(5) })
            }
            BadRead::Bit => {
                buffer.bytes_mut()[at - offset as usize] ^= 1;
                Ok(length)
            }
        }
    }

    fn create_in_steps(
        &self,
        path: &str,
        length: u64,
        begin_step: &mut dyn FnMut(u64),
    ) -> Result<(), DiskError> {
        self.disk.create_in_steps(path, length, begin_step)
    }

    fn write(&self, path: &str, offset: u64, bytes: &AlignedBuffer) -> Result<(), DiskError> {
        self.disk.write(path, offset, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.disk.remove(path)
    }

    fn flush_folder(&self, folder: &str) -> Result<(), DiskError> {
        self.disk.flush_folder(folder)
    }
}

fn path(segment: u32) -> String {
    format!("log/{segment:010}.segment")
}

fn storage<D: Disk>(disk: D) -> Storage<D> {
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    Storage::open(disk, &owner, SETTINGS, 7).expect("the disk works")
}

fn recover(disk: &CountingDisk<'_>) -> Recovered {
    disk.reads.borrow_mut().clear();
    storage(disk).recover(&mut |_, _| ()).expect("it can be listed")
}

/// A life of an opening and `records` other frames.
fn live(disk: &SimDisk, recovered: Recovered, records: u64) {
    let storage = storage(disk);
    let life = storage.begin_life().expect("the disk works");
    let recovered = if recovered.is_usable() { recovered } else { recovered.into_repaired(&SETTINGS) };
    let mut core = LogCore::new(SETTINGS, 7, life, recovered);
    for sequence in 0..records {
        let (kind, position) = (RecordKind::Message, LogPosition { view: life, sequence });
        let record = LogRecord { subgroup: 0, kind, position, sender: 0, time: 0, bytes: &[1; 8] };
        core.append(&record).expect("it fits");
    }
    while let Some(action) = core.poll_action() {
        match action {
            LogAction::Prepare { segment, recycle } => {
                storage.prepare(segment, recycle).expect("the disk works");
                core.handle_prepared(segment);
            }
            LogAction::Write(write) => {
                disk.write(&write.path(), write.offset, &write.bytes).expect("the disk works");
                core.handle_written(write);
            }
        }
    }
    assert!(core.is_settled());
}

/// However many frames there are.
#[test]
fn each_segment_is_read_once_and_its_first_header_before() {
    let disk = SimDisk::new(1, BLOCK);
    let counting = CountingDisk::new(&disk);
    live(&disk, recover(&counting), 16);
    let recovered = recover(&counting);
    assert_eq!((recovered.frames, recovered.verdict), (17, TailVerdict::Clean));
    for segment in 1..=6 {
        let reads = (counting.reads(segment, BLOCK), counting.reads(segment, SEGMENT_BYTES));
        assert_eq!(reads, (1, 1), "segment {segment}");
    }
    // It is empty, which may be a read that has failed.
    assert_eq!((counting.reads(7, BLOCK), counting.reads(7, SEGMENT_BYTES)), (2, 1));
}

/// A life behind a repair begins in a later segment than the next one. Its first header was read once: a read that failed made the
/// recovery follow the frames before the repair.
#[test]
fn a_first_header_that_cannot_be_read_once_hides_no_life() {
    for bad in [BadRead::Error, BadRead::Bit] {
        let disk = SimDisk::new(1, BLOCK);
        let counting = CountingDisk::new(&disk);
        live(&disk, recover(&counting), 6);
        // The body of the third frame is misread once, so that the next life follows the second one.
        counting.bad.set(Some((1, 2 * BLOCK + 70, BadRead::Bit)));
        let recovered = recover(&counting);
        assert_eq!((recovered.frames, recovered.verdict), (2, TailVerdict::Damaged));
        live(&disk, recovered, 2);

        let expected = recover(&counting);
        assert_eq!((expected.last, expected.frames), (opening_number(2) + 2, 5));
        let segment = expected.segment;
        assert!(segment > 3, "the life behind the repair is not in the next segment");
        counting.bad.set(Some((segment, 20, bad)));
        assert_eq!(recover(&counting), expected);
        assert!(counting.bad.get().is_none(), "the read has gone wrong");
        assert_eq!(counting.reads(segment, BLOCK), 2);
    }
}
