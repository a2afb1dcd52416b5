//! What members keep in memory while views come and go (Derecho §3.4).

mod common;

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use squall::Group;
use squall::config::{SubgroupConfig, Transport};
use squall_fabric::atomics::{AtomicBool, Ordering};

/// Joins of the fourth member, each of which makes two views of about 100 MB.
const JOINS: usize = 12;

/// Members that take nothing, and processes that join and end again: the windows of views in which nothing was sent are freed, although
/// no member has looked for messages there.
fn windows_of_ended_views_are_freed(transport: Transport, test: &str) {
    let subgroup =
        ("orders", SubgroupConfig { window: 1000, message_max: 10_000, ..SubgroupConfig::default() });
    let configs = common::configs(transport, test, Duration::from_secs(20), subgroup);
    let (begun, is_over) = (Barrier::new(4), AtomicBool::new(false));
    thread::scope(|scope| {
        for config in &configs[..3] {
            let (begun, is_over) = (&begun, &is_over);
            scope.spawn(move || {
                let group = Group::join(config.clone()).expect("the group starts");
                begun.wait();
                while !is_over.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(5));
                }
                begun.wait();
                drop(group);
            });
        }
        begun.wait();
        let join = || drop(Group::join(configs[3].clone()).expect("it joins"));
        (0..2).for_each(|_| join());
        let before = resident_mib();
        (0..JOINS).for_each(|_| join());
        let grown = resident_mib().saturating_sub(before);
        is_over.store(true, Ordering::SeqCst);
        begun.wait();
        assert!(grown < 100 * JOINS, "{JOINS} joins have left {grown} MiB");
    });
}

/// The memory of this process that is in use now.
fn resident_mib() -> usize {
    let figures = std::fs::read_to_string("/proc/self/status").expect("there is one");
    let line = figures.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has this figure");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") / 1024
}

/// One test, so that no other uses memory meanwhile.
#[test]
fn memory_does_not_grow_with_the_number_of_views() {
    windows_of_ended_views_are_freed(Transport::Tcp, "memory-tcp");
    windows_of_ended_views_are_freed(Transport::Shm, "memory-shm");
}
