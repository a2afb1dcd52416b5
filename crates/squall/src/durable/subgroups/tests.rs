//! Folders whose set of durable subgroups changes.

use std::collections::BTreeSet;

use squall_fabric::NodeId;
use squall_protocols::membership::RankSet;
use squall_protocols::restart::{Ballot, DurableView, EndOrigin, ViewEnd, Vote};

use super::*;
use crate::config::{StorageConfig, SubgroupConfig};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn config(names: &[&str], removed: &[&str]) -> Config {
    let durable = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    // One that is not durable is in front of, between or behind the others.
    let memory = Config::local("subgroups", 1).subgroup("b-memory", SubgroupConfig::default());
    let config = names.iter().fold(memory, |config, name| config.subgroup(name, durable.clone()));
    let removed = removed.iter().map(|name| (*name).into()).collect();
    Config { storage: Some(StorageConfig { removed, ..StorageConfig::new("logs") }), ..config }
}

fn plan(config: &Config, found: &RegisterValue) -> Result<FolderPlan, LogFolderError> {
    FolderPlan::new(config, Path::new("logs/rank-0"), found.clone())
}

/// The register of the only member of a view.
fn register(config: &Config, view: u64) -> Register {
    let shards = vec![RankSet::of(0); shards(config).len()];
    let view = DurableView { number: view, members: vec![NodeId(4)], shards };
    Register { layout: durable_layout(config), ..Register::new(9, NodeId(4), view) }
}

fn end(register: &Register) -> ViewEnd {
    let view = register.view();
    let next = DurableView { number: view.number + 1, ..view.clone() };
    ViewEnd { trims: vec![1; view.shards.len()], next, origin: EndOrigin::Restart }
}

/// The folder of a member of a group with these subgroups.
fn folder(names: &[&str]) -> RegisterValue {
    let config = config(names, &[]);
    let mut value = plan(&config, &RegisterValue::new(7, 1)).expect("it is empty").value;
    value.set_protocol(register(&config, 3).encode());
    value
}

/// In a new folder, and one of an earlier release, the numbers are places in the configuration.
#[test]
fn a_folder_without_names_has_places() {
    let config = config(&["a", "d"], &[]);
    let new = plan(&config, &RegisterValue::new(7, 1)).expect("it is empty");
    assert_eq!(new.value.subgroups.numbers, [("a".into(), 0), ("d".into(), 2)].into());
    assert_eq!((new.value.subgroups.next, new.register, new.pending), (3, None, None));
    let earlier = Register { layout: layout_by_places(&config), ..register(&config, 3) };
    let value = RegisterValue { protocol: earlier.encode(), ..RegisterValue::new(7, 1) };
    let of_earlier = plan(&config, &value).expect("it has the same subgroups");
    assert_eq!(of_earlier.value.subgroups, new.value.subgroups);
    assert_eq!(of_earlier.register, Some(register(&config, 3)));
    assert_eq!(of_earlier.value.protocol, register(&config, 3).encode());
    let other = plan(&self::config(&["a", "c", "d"], &[]), &value).expect_err("it has other ones");
    assert!(matches!(other, LogFolderError::OtherSubgroups { .. }), "{other}");
    assert!(other.to_string().contains("start the group once with the same subgroups as before"), "{other}");
}

/// A process that has been in no view has nothing that belongs to a subgroup.
#[test]
fn a_folder_without_a_view_takes_any_set() {
    let new = plan(&config(&["a", "d"], &[]), &RegisterValue::new(7, 1)).expect("it is empty").value;
    let waits = Register::new(
        9,
        NodeId(4),
        DurableView { shards: vec![RankSet::EMPTY; 2], ..DurableView::default() },
    );
    let mut value = new.clone();
    value.set_protocol(waits.encode());
    let same = plan(&config(&["a", "d"], &[]), &value).expect("it is the same");
    assert_eq!((same.register, same.value.subgroups), (Some(waits), new.subgroups));
    let other = plan(&config(&["c", "d"], &[]), &value).expect("it has nothing");
    assert_eq!((other.register, other.value.protocol.len(), other.pending), (None, 0, None));
    assert_eq!(other.value.subgroups.numbers, [("c".into(), 3), ("d".into(), 2)].into());
}

#[test]
fn what_is_removed_has_to_be_named() {
    let value = folder(&["a", "b", "c"]);
    let refused = plan(&config(&["b", "d"], &["a"]), &value).expect_err("one is not named");
    let LogFolderError::RemovedSubgroups { names, .. } = &refused else { panic!("{refused}") };
    assert_eq!(names, &["c"]);
    let changed = plan(&config(&["b", "d"], &["a", "c", "e"]), &value).expect("all are named");
    assert_eq!(changed.pending, Some(PendingChange { view: 3, added: vec![1] }));
    let again =
        plan(&config(&["b", "d"], &["a"]), &changed.value).expect_err("the group has not made the change");
    assert!(matches!(again, LogFolderError::RemovedSubgroups { .. }), "{again}");
}

/// A register that is not as the names say is not used.
#[test]
fn a_register_of_another_size_is_refused() {
    let mut value = folder(&["a", "b"]);
    value.protocol = register(&config(&["a"], &[]), 3).encode();
    let refused = plan(&config(&["a", "b"], &[]), &value).expect_err("it has one shard");
    assert!(matches!(refused, LogFolderError::Register { .. }), "{refused}");
}

/// A member that has voted in a restart is bound to its set, until it knows how that has ended.
#[test]
fn a_vote_binds_to_its_set() {
    let (before, after) = (config(&["a", "b"], &[]), config(&["b", "c"], &["a"]));
    let mut value = plan(&after, &folder(&["a", "b"])).expect("what is removed is named").value;
    let mut register = Register::decode(value.present_protocol()).expect("it is one");
    register.start(false);
    let ballot = Ballot::above(None, NodeId(4));
    assert!(register.promise(ballot));
    value.set_protocol(register.encode());
    let back = plan(&before, &value).expect("a promise is no vote");
    assert_eq!((back.pending, &back.value.subgroups.change), (None, &None));
    let back = back.register.expect("it has one");
    assert_eq!((back.promise, back.starts, back.layout), (Some(ballot), 1, durable_layout(&before)));

    assert!(register.vote(Vote { ballot, end: end(&register) }));
    value.set_protocol(register.encode());
    for other in [&before, &config(&["b"], &["a"]), &config(&["a", "b", "c"], &[])] {
        let refused = plan(other, &value).expect_err("it has voted");
        let LogFolderError::ChangingSubgroups { names, .. } = &refused else { panic!("{refused}") };
        assert_eq!(names, &["b", "c"]);
    }
    assert_eq!(plan(&after, &value).expect("it is the same set").register.as_ref(), Some(&register));
    register.end_view(&end(&register));
    value.settle(register.encode());
    assert!(matches!(plan(&before, &value), Err(LogFolderError::RemovedSubgroups { .. })));
    assert!(plan(&config(&["a", "b"], &["c"]), &value).expect("the vote is over").pending.is_some());
}

/// [W17] Whatever sets follow each other, made or not: a name keeps its number as long as it stays, and no number is given twice.
#[test]
fn numbers_are_never_given_twice() {
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut changes = [0; 3];
    for _ in 0..200 {
        let mut value = folder(&["a", "c"]);
        let mut used: BTreeSet<u32> = (0..value.subgroups.next).collect();
        for _ in 0..20 {
            let bits = 1 + next(31);
            let names: Vec<&str> = (0..5).filter(|bit| bits >> bit & 1 == 1).map(|bit| NAMES[bit]).collect();
            let removed: Vec<&str> = NAMES.into_iter().filter(|name| !names.contains(name)).collect();
            let before = value.subgroups.clone();
            let plan = plan(&config(&names, &removed), &value).expect("what is removed is named");
            let register = plan.register.expect("it has one");
            value = RegisterValue::from_bytes(&plan.value.to_bytes()).expect("it is one");
            let present = value.subgroups.present();
            assert!(present.keys().eq(&names) && register.view().shards.len() == names.len());
            assert_eq!(value.subgroups.numbers, before.numbers, "nothing is lost yet");
            for (name, number) in present {
                let known = before.numbers.get(name).or_else(|| {
                    let change = before.change.as_ref().filter(|change| change.numbers.keys().eq(&names));
                    change.and_then(|change| change.numbers.get(name))
                });
                assert!(
                    known.map_or_else(|| used.insert(*number), |known| known == number),
                    "{name} {number}"
                );
                assert!(*number < value.subgroups.next && !value.subgroups.is_retired(*number));
            }
            let is_change = value.subgroups.change.is_some();
            assert_eq!(is_change, plan.pending.is_some());
            assert_eq!(is_change, !before.numbers.keys().eq(&names));
            let is_made = next(2) == 0;
            if is_made {
                let mut register = register;
                register.end_view(&end(&register));
                value.settle(register.encode());
                let kept: BTreeSet<u32> = value.subgroups.numbers.values().copied().collect();
                let retired: BTreeSet<u32> =
                    (0..value.subgroups.next).filter(|number| !kept.contains(number)).collect();
                assert_eq!(value.subgroups.retired(), retired);
            }
            changes[usize::from(is_change) + usize::from(is_change && is_made)] += 1;
        }
    }
    assert!(changes.iter().all(|count| *count > 100), "{changes:?}");
}
