//! Groups of more than 64 members (Derecho §2, §3.4).

use squall_fabric::Duration;
use squall_fabric::sim::Prng;
use squall_protocols::mutation::{self, GroupMutation};
use squall_simulator::large::{LargeCase, LossNotice, MEDIUM};
use squall_simulator::sweep;

/// The sizes around which sets take another word, and one in between.
#[test]
fn large_groups_survive_deaths_and_partitions() {
    for (seed, members) in [(0, 64), (1, 65), (2, 100), (3, 128), (4, 129), (5, 5), (6, 7)] {
        let case = LargeCase::draw(seed, members);
        assert_eq!(case.run(0).violation, None, "{case}");
    }
}

#[test]
fn groups_survive_losses_that_are_noticed_late() {
    let summary = sweep(&MEDIUM, 0..25, 1, |_, _| true);
    if let Some((seed, violation)) = summary.failures.first() {
        panic!("seed {seed}: {violation}\n{}", LargeCase::draw_medium(*seed));
    }
    assert!(summary.delivered > 5_000, "the scenario does too little: {}", summary.delivered);
}

/// Nearly half of a group are parted from the rest, and each member notices that at another time. If the leader took the first cover that
/// it finds for a least one, it would remove members of the greater part as well \[V11\].
#[test]
fn the_greater_part_stays_whole() {
    for (members, parted) in [(80, 39), (96, 47)] {
        let mut ranks: Vec<u32> = (0..members).collect();
        Prng::new(1).shuffle(&mut ranks);
        let case = LargeCase {
            parted: ranks[..parted].to_vec(),
            deaths: Vec::new(),
            messages: 2,
            joins: false,
            ..LargeCase::draw(1, members)
        };
        assert_eq!(case.run(0).violation, None, "{case}");
        let caught = || members == 96 || case.run(0).violation.is_some();
        assert!(mutation::with(GroupMutation::SearchCutShort, caught));
    }
}

/// The leader and another member die, and four in ten are parted from the rest, whatever the size.
fn case(members: u32) -> LargeCase {
    LargeCase {
        seed: 0,
        members,
        senders: vec![1, members / 2, members - 3],
        messages: 4,
        subgroups: 1,
        deaths: [0, members - 1].map(|i| (i, Duration::from_micros(300))).to_vec(),
        parted: (members / 2 + members / 25..members - 5).collect(),
        parts_at: Duration::from_micros(350),
        joins: false,
        is_adverse: false,
        notice: LossNotice::SOON,
    }
}

fn survives(members: u32) {
    let (case, begun) = (case(members), processor_time());
    let outcome = case.run(0);
    assert_eq!(outcome.violation, None, "{case}");
    let seconds = (processor_time() - begun) / 1_000_000_000;
    println!(
        "{members} members: {} parted, {} deliveries, {seconds} s",
        case.parted.len(),
        outcome.delivered
    );
}

#[test]
#[ignore = "512 members take minutes and 4 GiB: .ci/long large"]
fn groups_of_hundreds_survive_deaths_and_a_partition() {
    [64, 128, 256, 512].into_iter().for_each(survives);
}

#[test]
#[ignore = "1,024 members take many minutes and more than 12 GiB: .ci/long large"]
fn the_largest_group_survives_deaths_and_a_partition() {
    survives(1024);
}

/// Processor time of this thread in nanoseconds.
fn processor_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}
