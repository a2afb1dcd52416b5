//! Layouts of subgroups: members without a subgroup, and functions of the application (Derecho §2.3).

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use squall::config::{PartitionSafety, Ranks, SubgroupConfig};
use squall::{Config, Group, HandleError, View};
use squall_fabric::NodeId;

fn config(test: &str, members: usize) -> Config {
    let mut config = Config::local(&format!("layout-{test}-{}", std::process::id()), members);
    config.timeout = Duration::from_secs(30);
    config
}

/// A member that is in no subgroup is a witness: it counts for the majority, and gets no messages. Of two members and
/// a witness, one may die.
#[test]
fn a_witness_makes_a_majority() {
    let log = SubgroupConfig { members: Ranks::These(vec![0, 1]), ..SubgroupConfig::default() };
    let config = config("witness", 3).subgroup("log", log);
    assert_eq!(config.partition_safety, PartitionSafety::Majority);
    let threads: Vec<_> = (0..3)
        .map(|rank| {
            let config = config.clone().for_rank(rank);
            thread::spawn(move || Group::join(config).unwrap())
        })
        .collect();
    let mut members: Vec<Group> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut witness = members.pop().unwrap();
    assert!(matches!(witness.subgroup("log"), Err(HandleError::UnknownSubgroup(_))));
    drop(members.pop());
    let log = members[0].subgroup("log").unwrap();
    log.sender().unwrap().send_blocking(2, |bytes| bytes.copy_from_slice(b"on")).unwrap();
    assert_eq!(log.deliveries().unwrap().next().unwrap().bytes, b"on");
    assert!(witness.failure().is_none() && members[0].failure().is_none());
}

/// The subgroup has the two lowest ranks of a view: its members change as members leave, and a member that returns to
/// the subgroup has its upcall again.
#[test]
fn a_function_of_the_view_places_a_subgroup() {
    let mut base = config("place", 3).subgroup("pair", SubgroupConfig::default());
    base.partition_safety = PartitionSafety::Off;
    // The lowest ranks, regardless of their age.
    let lowest = |view: &View| -> Vec<NodeId> {
        let mut members = view.members.clone();
        members.sort_by_key(|member| member.tag);
        members.iter().take(2).map(|member| member.node).collect()
    };
    let (sender, delivered) = channel();
    let join = |rank: usize| {
        let (config, sender) = (base.clone().for_rank(rank), sender.clone());
        let deliver = move |message: squall::Message<'_>| {
            // The test may have ended.
            let _ = sender.send((rank, message.bytes.to_vec()));
        };
        thread::spawn(move || {
            Group::builder(config).place("pair", lowest).on_message("pair", deliver).join().unwrap()
        })
    };
    let threads: Vec<_> = (0..3).map(join).collect();
    let mut members: Vec<Option<Group>> =
        threads.into_iter().map(|thread| Some(thread.join().unwrap())).collect();
    let send = |group: &mut Group, text: &[u8]| {
        let pair = group.subgroup("pair").unwrap();
        pair.sender().unwrap().send_blocking(text.len(), |bytes| bytes.copy_from_slice(text)).unwrap();
    };
    let assert_delivered = |expected: [usize; 2], text: &[u8]| {
        let mut ranks: Vec<usize> = (0..2)
            .map(|_| delivered.recv_timeout(Duration::from_secs(30)).expect("a member delivers"))
            .map(|(rank, bytes)| {
                assert_eq!(bytes, text);
                rank
            })
            .collect();
        ranks.sort_unstable();
        assert_eq!(ranks, expected);
    };
    send(members[0].as_mut().unwrap(), b"zero and one");
    assert_delivered([0, 1], b"zero and one");
    drop(members[0].take());
    send(members[1].as_mut().unwrap(), b"one and two");
    assert_delivered([1, 2], b"one and two");
    members[0] = Some(join(0).join().unwrap());
    send(members[0].as_mut().unwrap(), b"zero again");
    assert_delivered([0, 1], b"zero again");
    drop(members[1].take());
    send(members[2].as_mut().unwrap(), b"two again");
    assert_delivered([0, 2], b"two again");
}
