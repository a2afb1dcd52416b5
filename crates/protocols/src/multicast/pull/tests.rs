//! When a consumer that waits is woken (Spindle §3.1, §3.3), and when it learns that nothing follows.

use squall_fabric::sim::{Prng, SimConfig, SimFabric, SimWorld};
use squall_fabric::window::WindowWriter;
use squall_fabric::{Core as _, Duration, Fabric as _, MirrorKey, NodeId};

use super::{NoUpcall, Pull};
use crate::multicast::{DeliveryMode, Subgroup, SubgroupSettings, ViewStart};
use crate::mutation::{GroupMutation, with};

/// A member with a consumer.
struct Puller {
    fabric: SimFabric,
    subgroup: Subgroup<NoUpcall>,
    writer: Option<WindowWriter>,
    pull: Pull,
    /// Looks of a consumer that was said to have news and found no message.
    vain: u32,
    taken: u32,
}

impl Puller {
    /// Polls; then takes what there is, which has to be news. Returns the work done, and whether that was so.
    fn step(&mut self) -> (bool, bool) {
        let Self { fabric, subgroup, pull, .. } = self;
        let mut events = Vec::new();
        fabric.poll(&mut |event| events.push(event));
        events.iter().for_each(|event| subgroup.handle_event(fabric, event));
        let work = subgroup.poll(fabric);
        let (has_news, taken_before) = (pull.watch().has_news(), self.taken);
        while pull.next_message().expect("nothing is corrupt").is_some() {
            self.taken += 1;
        }
        let any = self.taken > taken_before;
        self.vain += u32::from(has_news && !any);
        // As a consumer that waits and is not woken does not.
        if has_news {
            pull.release();
        }
        (work > 0 || !events.is_empty(), has_news || !any)
    }
}

/// Three members that send at random; returns whether each message was news when its consumer could take it. What is news has to be
/// messages, but for a few nulls.
fn news_are_messages(mode: DeliveryMode, batching: bool, seed: u64) -> bool {
    const MESSAGES: u32 = 200;
    let mut dice = Prng::new(seed);
    let world = SimWorld::new(1, SimConfig::hardware(), 3);
    let nodes = [0, 1, 2].map(NodeId);
    let begin = |node: u32| {
        let mut fabric = world.fabric(node);
        let mut settings = SubgroupSettings { window: 8, mode, ..SubgroupSettings::new(3, 8) };
        settings.batching.receive = batching;
        let (subgroup, writer, pull) =
            Subgroup::pulled(&mut fabric, MirrorKey(1), &nodes, settings, ViewStart::default());
        Puller { fabric, subgroup, writer, pull, vain: 0, taken: 0 }
    };
    let mut pullers = [0, 1, 2].map(begin);
    let (mut sent, mut all_were_news, mut rounds) = (0, true, 0);
    while pullers.iter().any(|puller| puller.taken < MESSAGES) && rounds < 10_000 {
        rounds += 1;
        let node = usize::try_from(dice.below(3)).expect("few");
        let ready = pullers[node].subgroup.is_ready();
        for _ in 0..dice.below(3) * u64::from(ready && dice.below(2) == 0) {
            let writer = pullers[node].writer.as_mut().expect("each sends");
            sent += u32::from(sent < MESSAGES && writer.send(1, |bytes| bytes[0] = 1).is_ok());
        }
        world.wake(u32::try_from(node).expect("few"));
        let end = pullers[0].fabric.now() + Duration::from_micros(dice.below(8));
        while let Some(node) = world.next_poll(end) {
            let (works, were_news) = pullers[node as usize].step();
            all_were_news &= were_news;
            world.rest(node, works, None);
        }
    }
    // Nulls that were announced with a message, as one look sees them, may be messages.
    let vain: u32 = pullers.iter().map(|puller| puller.vain).sum();
    assert!(vain < 3 * MESSAGES / 8, "{mode:?}, seed {seed}: {vain} looks in vain");
    all_were_news && pullers.iter().all(|puller| puller.taken == MESSAGES)
}

/// \[O7\] A consumer that waits is woken for each message, and not for nulls.
#[test]
fn news_are_messages_and_not_nulls() {
    for seed in 0..50 {
        for (mode, batching) in
            [(DeliveryMode::Atomic, true), (DeliveryMode::Atomic, false), (DeliveryMode::Unordered, true)]
        {
            assert!(news_are_messages(mode, batching, seed), "{mode:?}, {batching}, seed {seed}");
        }
    }
    let mutant = || news_are_messages(DeliveryMode::Atomic, true, 1);
    assert!(!with(GroupMutation::OwnAreNoNews, mutant));
}

/// As when its member is excluded: a consumer that waits must not wait forever [V4].
#[test]
fn a_subgroup_that_is_dropped_is_closed() {
    let mut fabric = SimWorld::new(1, SimConfig::hardware(), 1).fabric(0);
    let (settings, start) = (SubgroupSettings::new(1, 8), ViewStart::default());
    let (subgroup, _writer, pull) =
        Subgroup::pulled(&mut fabric, MirrorKey(1), &[NodeId(0)], settings, start);
    assert!(!pull.is_closed());
    drop(subgroup);
    assert!(pull.is_closed());
}
