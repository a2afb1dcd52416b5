//! All logs of a group are damaged, each at another place: one takes from the others what it lacks, and the group restarts.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use squall::config::Transport;
use squall::recovery::{LogMerge, MergeError, expected_merge, merge_logs};
use squall::{Config, Group, JoinError};
use squall_log::{FileDisk, LogSettings, Storage, TailVerdict};

use crate::restart::{assert_holds, configs, run};
use crate::storage::TestFolder;

fn folder(config: &Config) -> PathBuf {
    config.log_folder().expect("it has one")
}

/// Flips bits in a frame of a log, at a place that is a part of all of its frames.
fn damage(folder: &Path, part: usize, parts: usize) {
    let path = folder.join("log/0000000001.segment");
    let mut bytes = std::fs::read(&path).expect("there is a log");
    let begins = |block: &usize| bytes[*block..*block + 4] == bytes[..4];
    let frames: Vec<usize> = (0..bytes.len()).step_by(4096).filter(begins).collect();
    // Of the last ones a crash could have left a part.
    assert!(frames.len() >= 8, "{} frames", frames.len());
    let damaged = frames[1 + part * (frames.len() - 4) / parts];
    bytes[damaged + 100] ^= 0x5a;
    std::fs::write(&path, bytes).expect("it can be written");
    let storage = Storage::inspect(FileDisk::inspect(folder), LogSettings::DEFAULT).expect("there is a log");
    assert_eq!(storage.recover(&mut |_, _| ()).expect("it can be read").verdict, TailVerdict::Damaged);
}

/// The member that knows the latest view, and what its log would take from the others.
fn latest(configs: &[Config]) -> (usize, Vec<PathBuf>, LogMerge) {
    let of = |own: usize| {
        let others = configs.iter().enumerate().filter(|(place, _)| *place != own);
        let others: Vec<PathBuf> = others.map(|(_, config)| folder(config)).collect();
        match expected_merge(&configs[own], &others) {
            Ok(merge) => Some((own, others, merge)),
            // The members of a run end one after the other.
            Err(MergeError::LaterView { .. } | MergeError::Recovery(_)) => None,
            Err(error) => panic!("{error}"),
        }
    };
    (0..configs.len()).find_map(of).expect("one has the latest view")
}

/// All members start, and the group does not restart: returns why.
fn refused(configs: &[Config]) -> Vec<String> {
    thread::scope(|scope| {
        let join = |config: &Config| {
            let config = Config { timeout: Duration::from_secs(2), ..config.clone() };
            scope.spawn(move || match Group::join(config) {
                Err(error @ JoinError::Restart { .. }) => error.to_string(),
                Err(error) => panic!("{error}"),
                Ok(_) => panic!("no log is whole"),
            })
        };
        let members: Vec<_> = configs.iter().map(join).collect();
        members.into_iter().map(|member| member.join().expect("it does not panic")).collect()
    })
}

#[test]
fn logs_that_are_damaged_at_different_places_are_merged() {
    let place = TestFolder::new("merge");
    let configs = &configs(Transport::Shm, "merge", &place)[..3];
    let first = run(configs, 0, 60);
    for (part, config) in configs.iter().enumerate() {
        damage(&folder(config), part, 3);
    }
    let texts = refused(configs);
    assert!(texts.iter().any(|text| text.contains("squall recover --from")), "{texts:?}");

    let before: Vec<_> = configs.iter().map(|config| segment(&folder(config))).collect();
    let (own, others, expected) = latest(configs);
    assert!(expected.is_whole && expected.was_damaged && expected.is_end_known, "{expected:?}");
    assert!(expected.others.iter().all(|other| other.is_damaged), "{expected:?}");
    let taken = &expected.subgroups["orders"].taken;
    assert!(
        taken.iter().any(|part| part.folder == folder(&configs[own])),
        "what is behind its damage: {taken:?}"
    );
    assert!(taken.iter().any(|part| others.contains(&part.folder)), "what is damaged there: {taken:?}");
    assert!(expected.subgroups["orders"].missing.is_empty(), "{expected:?}");
    assert_eq!(merge_logs(&configs[own], &others).expect("it can be written"), expected);
    for (config, before) in configs.iter().zip(&before) {
        assert!(segment(&folder(config)) == *before, "what was there is there as it was");
    }
    assert!(folder(&configs[own]).join("aside/register").is_file(), "the register as it was");
    let again = merge_logs(&configs[own], &others).expect("it can be read");
    assert!(again.is_whole && !again.was_damaged && again.subgroups["orders"].taken.is_empty(), "{again:?}");

    let second = run(configs, 1, 5);
    for (found, _) in &second {
        assert!(*found == second[0].0, "the histories differ");
        assert_holds(found, &first[0].1);
    }
}

fn segment(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("log/0000000001.segment")).expect("there is a log")
}

/// What no folder has is named; and nothing is taken from a folder that is not known to be of the group, or that is none.
#[test]
fn what_cannot_be_merged_is_said() {
    let place = TestFolder::new("merge-not");
    let configs = &configs(Transport::Shm, "merge-not", &place)[..3];
    run(configs, 0, 60);
    let (own, others, expected) = latest(configs);
    assert!(expected.is_whole && !expected.was_damaged, "{expected:?}");
    let config = &configs[own];
    // A copy is damaged where the log is: its frames are the same.
    let copy = place.0.join("copy");
    damage(&folder(config), 1, 3);
    let copied = std::process::Command::new("cp").arg("-r").args([&folder(config), &copy]).status();
    assert!(copied.expect("it can be started").success());
    let merge = expected_merge(config, std::slice::from_ref(&copy)).expect("it is of the same history");
    assert!(
        !merge.is_whole && merge.was_damaged && !merge.subgroups["orders"].missing.is_empty(),
        "{merge:?}"
    );
    merge_logs(config, std::slice::from_ref(&copy)).expect("it is of the same history");
    let text = refused(std::slice::from_ref(config)).remove(0);
    assert!(text.contains("Start the missing members"), "{text}");

    // One copy of the register is as good as two.
    let mut register = std::fs::read(copy.join("register")).expect("it has one");
    register[..64].fill(0x5a);
    std::fs::write(copy.join("register"), &register).expect("it can be written");
    expected_merge(config, std::slice::from_ref(&copy)).expect("the other copy is good");
    register.fill(0x5a);
    std::fs::write(copy.join("register"), &register).expect("it can be written");
    let error = expected_merge(config, std::slice::from_ref(&copy)).expect_err("it may be of any group");
    assert!(matches!(&error, MergeError::NoRegister { folder } if *folder == copy), "{error}");
    let error = expected_merge(config, &[folder(config)]).expect_err("it is the same");
    assert!(matches!(&error, MergeError::OwnFolder { .. }), "{error}");
    let error = expected_merge(config, &[place.0.join("none")]).expect_err("there is none");
    assert!(matches!(&error, MergeError::NoSource { .. }), "{error}");

    // Nor can a log take anything whose member has forgotten for what it has voted.
    let kept = std::fs::read(folder(config).join("register")).expect("it has one");
    std::fs::write(folder(config).join("register"), &register).expect("it can be written");
    let error = merge_logs(config, &others).expect_err("it has no vote");
    assert!(matches!(&error, MergeError::NoRegister { folder: bad } if *bad == folder(config)), "{error}");
    std::fs::write(folder(config).join("register"), kept).expect("it can be written");
    let mark = folder(config).join(squall_log::BACKUP_FILE);
    std::fs::write(&mark, b"").expect("it can be written");
    let error = merge_logs(config, &others).expect_err("it is a copy");
    assert!(error.to_string().contains("`squall log backup`"), "{error}");
    std::fs::remove_file(&mark).expect("it is there");

    // With the others it is whole.
    let merge = merge_logs(config, &others).expect("it can be written");
    assert!(merge.is_whole, "{merge:?}");
}
