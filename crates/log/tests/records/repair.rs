//! Repairs of a folder from what is in it: nothing that was there is lost, and bits that have flipped are turned back.

use std::collections::BTreeMap;

use squall_fabric::sim::Prng;
use squall_log::{
    Disk, LogAction, LogCore, LogPosition, LogRecord, LogSettings, RecordKind, RepairStep, SimDisk, Storage,
    StorageOwner, TailVerdict, plan_repair, repair,
};

const SETTINGS: LogSettings =
    LogSettings { block: 64, segment_bytes: 2048, frame_bytes: 200, in_flight_max: 2, queue_frames_max: 8 };

/// A folder with a log of some lives.
fn disk(seed: u64) -> SimDisk {
    let mut prng = Prng::new(seed);
    let disk = SimDisk::new(seed, SETTINGS.block);
    let owner = StorageOwner { cluster: "c".into(), member: "m".into() };
    let mut sequence = 0;
    for _ in 0..1 + prng.below(3) {
        let storage = Storage::open(&disk, &owner, SETTINGS, 7).expect("the disk works");
        let recovered = storage.recover(&mut |_, _| ()).expect("the disk works");
        let life = storage.begin_life().expect("the disk works");
        let mut core = LogCore::new(SETTINGS, 7, life, recovered);
        for _ in 0..1 + prng.below(30) {
            let bytes = vec![sequence as u8; prng.index(150)];
            let position = LogPosition { view: 0, sequence };
            let (kind, sender, time) = (RecordKind::Message, 0, sequence);
            core.append(&LogRecord { subgroup: 1, kind, position, sender, time, bytes: &bytes })
                .expect("there is space");
            sequence += 1;
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
        }
    }
    disk
}

fn files(disk: &SimDisk) -> BTreeMap<String, Vec<u8>> {
    let paths = ["", "log", "checkpoints", "aside"].into_iter().flat_map(|folder| {
        let names = disk.list(folder).expect("the disk works");
        names.into_iter().map(move |name| if folder.is_empty() { name } else { format!("{folder}/{name}") })
    });
    paths.map(|path| (path.clone(), disk.contents(&path).expect("it is there"))).collect()
}

/// The records of a log, and whether it is damaged.
fn records(disk: &SimDisk) -> (Vec<(u64, Vec<u8>)>, TailVerdict) {
    let mut records = Vec::new();
    let storage = Storage::inspect(disk, SETTINGS).expect("it has an identity");
    let found =
        storage.recover(&mut |_, record| records.push((record.position.sequence, record.bytes.to_vec())));
    (records, found.expect("the disk works").verdict)
}

/// Flips a bit of a segment.
fn flip(disk: &SimDisk, path: &str, bit: usize) {
    let mut bytes = disk.contents(path).expect("it is there");
    bytes[bit / 8] ^= 1 << (bit % 8);
    disk.replace(path, bytes);
}

/// All that was in the folder is in it still, somewhere.
fn check_nothing_lost(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) {
    for (path, bytes) in before {
        assert!(after.values().any(|other| other == bytes), "{path} is not there any more as it was");
    }
}

/// Bits of any frames flip, at most one in each: the folder is afterwards what it was before they did.
#[test]
fn a_bit_of_each_frame_is_turned_back() {
    let mut repaired = 0;
    for seed in 0..300 {
        let disk = disk(seed);
        let mut prng = Prng::new(seed ^ 0xb17);
        let (good, wanted) = (files(&disk), records(&disk));
        let mut places = Vec::new();
        let storage = Storage::inspect(&disk, SETTINGS).expect("it has an identity");
        let each = &mut |place: squall_log::FramePlace, record: LogRecord<'_>| {
            places.push((place.segment, place.offset, record.bytes_in_frame()));
        };
        storage.recover(each).expect("the disk works");
        places.dedup_by_key(|(segment, offset, _)| (*segment, *offset));
        for _ in 0..1 + prng.below(3) {
            let (segment, offset, length) = places.swap_remove(prng.index(places.len()));
            let bit = offset as usize * 8 + prng.index(8 * (64 + length));
            flip(&disk, &format!("log/{segment:010}.segment"), bit);
            if places.is_empty() {
                break;
            }
        }
        let rotten = files(&disk);
        assert!(records(&disk).0.len() < wanted.0.len(), "seed {seed}: it shows");
        let plan = plan_repair(&disk, SETTINGS).expect("the folder can be read");
        assert_eq!(files(&disk), rotten, "seed {seed}: a plan changes nothing");
        assert_eq!(repair(&disk, SETTINGS).expect("the disk works"), plan, "seed {seed}");
        assert_eq!(records(&disk), wanted, "seed {seed}");
        let mut after = files(&disk);
        check_nothing_lost(&rotten, &after);
        after.retain(|path, _| !path.starts_with("aside/"));
        assert_eq!(after, good, "seed {seed}: to the bit");
        repaired += plan.steps.len();
        assert!(plan_repair(&disk, SETTINGS).expect("the folder can be read").steps.is_empty());
    }
    assert!(repaired > 400, "{repaired} bits");
}

/// More than a bit of a frame is not guessed at: the log stays as it was found.
#[test]
fn more_than_a_bit_is_left_as_it_is() {
    let mut damaged = 0;
    for seed in 0..300 {
        let disk = disk(seed);
        let mut prng = Prng::new(seed ^ 0xb172);
        let segments = disk.list("log").expect("the disk works");
        let path = format!("log/{}", segments[prng.index(segments.len())]);
        let begin = prng.index(2048 - 200) * 8;
        for _ in 0..2 + prng.below(40) {
            flip(&disk, &path, begin + prng.index(8 * 200));
        }
        let (rotten, found) = (files(&disk), records(&disk));
        repair(&disk, SETTINGS).expect("the disk works");
        let now = records(&disk);
        assert_eq!(now.0[..found.0.len()], found.0, "seed {seed}: what was found is found");
        check_nothing_lost(&rotten, &files(&disk));
        damaged += u32::from(now.1 == TailVerdict::Damaged);
    }
    assert!(damaged > 50, "{damaged} are damaged still");
}

/// Files that count for nothing go aside, copies are written again, and what is done is said before.
#[test]
fn files_go_aside_and_copies_are_written_again() {
    let disk = disk(1);
    disk.create("log/0000000099.new", 64).expect("there is space");
    disk.create("checkpoints/3-1-5", 128).expect("there is space");
    let before = files(&disk);
    let distance = before["register"].len() / 2;
    flip(&disk, "register", 8 * distance + 100);
    let plan = repair(&disk, SETTINGS).expect("the disk works");
    assert_eq!(plan.steps.len(), 3, "{plan:?}");
    assert!(plan.steps.contains(&RepairStep::Copies { path: "register" }));
    let after = files(&disk);
    let aside: Vec<&str> = after.keys().filter_map(|path| path.strip_prefix("aside/")).collect();
    assert_eq!(aside, ["checkpoints-3-1-5", "log-0000000099.new", "register"]);
    assert!(plan_repair(&disk, SETTINGS).expect("the folder can be read").steps.is_empty());
    assert_eq!(records(&disk).1, TailVerdict::Clean);

    // A name in `aside` is used once.
    disk.create("log/0000000099.new", 64).expect("there is space");
    repair(&disk, SETTINGS).expect("the disk works");
    assert!(files(&disk).contains_key("aside/log-0000000099.new.2"));

    // Without a good copy there is nothing to write again.
    flip(&disk, "register", 100);
    flip(&disk, "register", 8 * distance + 100);
    let plan = plan_repair(&disk, SETTINGS).expect("the identity is good");
    assert!(!plan.has_register && plan.steps.is_empty());
}
