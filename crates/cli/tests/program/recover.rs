//! `squall recover --from`: both logs of a group are damaged, and one takes from the other what it lacks.

use std::path::Path;
use std::process::Output;

use squall_log::{FileDisk, LogSettings, RecordKind, Storage};

use super::trouble::{Members, PLAN};

/// Changes a frame of a log, of those that have a message each.
fn damage(folder: &Path, frame: usize) {
    let path = folder.join("log/0000000001.segment");
    let mut bytes = std::fs::read(&path).unwrap();
    let begins = |block: &usize| bytes[*block..*block + 4] == bytes[..4];
    let frames: Vec<usize> = (0..bytes.len()).step_by(4096).filter(begins).collect();
    bytes[frames[frame] + 80] ^= 0x42;
    std::fs::write(&path, bytes).unwrap();
}

/// How many messages a log leads to.
fn messages(folder: &Path) -> usize {
    let storage = Storage::inspect(FileDisk::inspect(folder), LogSettings::DEFAULT).unwrap();
    let mut messages = 0;
    storage.recover(&mut |_, record| messages += usize::from(record.kind == RecordKind::Message)).unwrap();
    messages
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_log_takes_what_it_lacks_from_another_folder() {
    let mut members = Members::new("recover");
    let [first, second] = [0, 1].map(|rank| members.start(rank, PLAN));
    members.await_members(1, 2);
    for message in 0..12 {
        members.send(message % 2, PLAN);
    }
    // Each sees of the other one that it is dead when it is dead itself, or continues alone.
    members.kill(first);
    members.kill(second);
    let [own, other] = ["rank-1", "rank-0"].map(|name| members.folder.join("logs").join(name));
    let all = messages(&own);
    assert!(all >= 12, "{all} messages");
    damage(&own, 3);
    damage(&other, 7);
    let (found, from) = (messages(&own), other.display().to_string());
    assert!(found < all, "{found} of {all} messages");

    let recover =
        |arguments: &str| members.squall(&format!("recover {arguments}"), 1, PLAN).output().unwrap();
    let dry = recover(&format!("--from {from}"));
    let shown = text(&dry);
    assert!(
        dry.status.success() && shown.contains("and is damaged") && shown.contains("use --yes"),
        "{shown}"
    );
    assert!(shown.contains(&format!("from {from}, from 0/")) && !shown.contains("missing"), "{shown}");
    assert_eq!(messages(&own), found, "nothing was changed");
    let done = recover(&format!("--from {from} --yes --json"));
    let report: serde_json::Value =
        serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", text(&done)));
    assert_eq!(
        (&report["whole"], &report["done"], &report["damaged"]),
        (&true.into(), &true.into(), &true.into())
    );
    let taken = report["subgroups"]["log"]["taken"].as_array().expect("a list");
    let counts = |folder: &Path| -> u64 {
        let of = taken.iter().filter(|part| part["folder"] == folder.to_str().unwrap());
        of.map(|part| part["messages"].as_u64().unwrap()).sum()
    };
    assert!(counts(&other) >= 1 && counts(&own) >= 1, "{report}");
    assert_eq!(counts(&other) + counts(&own), (all - found) as u64, "{report}");
    assert_eq!(messages(&own), all);

    let refused = recover(&format!("--from {}", own.display()));
    assert!(
        refused.status.code() == Some(1) && text(&refused).contains("is read in any case"),
        "{}",
        text(&refused)
    );
    let both = recover(&format!("--from {from} --accept-loss"));
    assert_eq!(both.status.code(), Some(2), "{}", text(&both));

    for rank in [0, 1] {
        members.start(rank, PLAN);
    }
    members.await_members(1, 2);
    members.send(0, PLAN);
}
