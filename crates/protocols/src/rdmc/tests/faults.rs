//! Deaths, broken links and unwilling members: all are told, remains are exact, survivors resume (RDMC §2; [B7]).

use std::collections::BTreeMap;

use squall_fabric::sim::{SimConfig, Verdict};
use squall_fabric::{Duration, NodeId};

use super::cluster::Cluster;
use super::plan::{GroupPlan, Plan};
use crate::rdmc::schedule::{Algorithm, Schedule};
use crate::rdmc::{Cause, GroupId, Held, Unfinished};

/// A member dies at any step, perhaps a second one while the survivors resume.
#[test]
fn survivors_are_told_and_resume() {
    let mut resumed = 0;
    for seed in 0..300 {
        match run_with_death(seed) {
            Ok(rounds) => resumed += rounds,
            Err(text) => panic!("seed {seed}: {text}\n{:#?}", Plan::with_death(seed)),
        }
    }
    assert!(resumed > 150, "only {resumed} groups were resumed: the plans have lost their teeth");
}

/// Runs a plan with deaths; after each the survivors resume, as long as there are two of them. Returns how often.
pub(super) fn run_with_death(seed: u64) -> Result<u64, String> {
    let plan = Plan::with_death(seed);
    let mut cluster = Cluster::of(&plan);
    let mut group = plan.groups[0].clone();
    for rounds in 0.. {
        cluster.run()?;
        if group.members.iter().all(|member| cluster.world.lives(*member)) {
            cluster.check_all_received(&group)?;
            return Ok(rounds);
        }
        cluster.check_all_failed(&group)?;
        if rounds == 0 {
            check_remains_are_exact(&cluster, &group)?;
        }
        let Some((next, left)) = survivors(&cluster, &group) else { return Ok(rounds) };
        let missing: u64 = next.members[1..].iter().map(|member| missing_blocks(&next, &left[member])).sum();
        let before = blocks_received(&cluster);
        cluster.create(&next, |member| left[&member].clone());
        cluster.run()?;
        if next.members.iter().all(|member| cluster.world.lives(*member)) {
            let sent = blocks_received(&cluster) - before;
            if sent != missing {
                return Err(format!("[B7] {sent} blocks were sent again, {missing} were missing"));
            }
        }
        group = next;
    }
    unreachable!("nodes are few")
}

/// The group of the survivors, with what each has left. The new root is the old one, or who has most objects.
fn survivors(cluster: &Cluster, group: &GroupPlan) -> Option<(GroupPlan, BTreeMap<u32, Vec<Unfinished>>)> {
    let stream = |node: u32| cluster.nodes[node as usize].core.application().stream(group.id);
    let old_root = group.members[0];
    let end = |node: u32| if node == old_root { group.end() } else { stream(node).next_received };
    let mut members: Vec<u32> =
        group.members.iter().copied().filter(|member| cluster.world.lives(*member)).collect();
    members.sort_by_key(|member| (u64::MAX - end(*member), *member));
    let (first, end) = (end(*members.last()?), end(members[0]));
    let mut left = BTreeMap::new();
    for member in &members {
        let stream = stream(*member);
        let mut objects = stream.failure.as_ref().expect("all have failed").unfinished.clone();
        for (object, memory) in stream.kept.as_ref().expect("kept").values() {
            let held = Held::all(group.settings.blocks(object.bytes));
            objects.push(Unfinished { object: *object, memory: Some(memory.clone()), held });
        }
        objects.retain(|unfinished| unfinished.object.number >= first);
        left.insert(*member, objects);
    }
    let range =
        usize::try_from(first - group.first).expect("few")..usize::try_from(end - group.first).expect("few");
    let mut next = GroupPlan { id: GroupId(group.id.0 + 100), members, first, ..group.clone() };
    next.sizes = group.sizes[range].to_vec();
    if matches!(group.settings.schedule, Schedule::Hybrid(_)) {
        next.settings.schedule = Algorithm::Pipeline.into();
    }
    (next.members.len() > 1).then_some((next, left))
}

/// What members report as held is what has arrived, neither more nor less.
fn check_remains_are_exact(cluster: &Cluster, group: &GroupPlan) -> Result<(), String> {
    for member in group.members[1..].iter().filter(|member| cluster.world.lives(**member)) {
        let core = &cluster.nodes[*member as usize].core;
        let stream = core.application().stream(group.id);
        let released = stream.kept.as_ref().expect("kept").values();
        let whole: u64 = released.map(|(object, _)| group.settings.blocks(object.bytes)).sum();
        let unfinished = &stream.failure.as_ref().expect("checked").unfinished;
        let held = whole + unfinished.iter().map(|left| left.held.count()).sum::<u64>();
        let arrived = core.counters().blocks_received;
        if held != arrived {
            return Err(format!("[B7] node {member} reports {held} blocks as held, {arrived} have arrived"));
        }
    }
    Ok(())
}

/// The blocks of the group's objects that a member with these remains lacks.
fn missing_blocks(group: &GroupPlan, left: &[Unfinished]) -> u64 {
    let held = |number| {
        let left = left.iter().find(|left| left.object.number == number && left.memory.is_some());
        left.map_or(0, |left| left.held.count())
    };
    (group.first..)
        .zip(&group.sizes)
        .map(|(number, bytes)| group.settings.blocks(*bytes) - held(number))
        .sum()
}

fn blocks_received(cluster: &Cluster) -> u64 {
    cluster.nodes.iter().map(|node| node.core.counters().blocks_received).sum()
}

/// Five members, a pipeline, objects large enough to be interrupted.
fn example(id: u64) -> GroupPlan {
    GroupPlan::new(id, &[0, 1, 2, 3, 4], Algorithm::Pipeline.into(), 64, &[64 * 30, 64 * 9 + 1])
}

fn causes(cluster: &Cluster, group: &GroupPlan) -> Vec<Cause> {
    let living = group.members.iter().filter(|member| cluster.world.lives(**member));
    living
        .map(|member| {
            let stream = cluster.nodes[*member as usize].core.application().stream(group.id);
            stream.failure.as_ref().expect("checked").cause
        })
        .collect()
}

/// Two living members lose their connection: all are told, and all five resume over a new one.
#[test]
fn a_broken_link_is_a_failure_and_can_be_opened_again() {
    for seed in 0..40 {
        let mut cluster = Cluster::new(seed, SimConfig::adversarial(seed), 5);
        let group = example(1);
        cluster.create(&group, |_| Vec::new());
        let enough = |cluster: &Cluster| cluster.world.pieces(0, 1) > 20;
        cluster.run_until(Duration::from_secs(1), enough).expect("nothing wrong so far");
        cluster.world.strike(&Verdict::Break { a: 0, b: 1 });
        cluster.run().expect("nothing wrong");
        cluster.check_all_failed(&group).expect("all are told");
        let cut = |cause: &Cause| [Cause::Lost(NodeId(0)), Cause::Lost(NodeId(1))].contains(cause);
        assert!(causes(&cluster, &group).iter().all(cut), "{:?}", causes(&cluster, &group));
        let (next, left) = survivors(&cluster, &group).expect("all live");
        cluster.create(&next, |member| left[&member].clone());
        cluster.run().expect("nothing wrong");
        cluster.check_all_received(&next).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
}

/// A member without memory: nobody waits for it.
#[test]
fn a_member_may_refuse_an_object() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, SimConfig::adversarial(seed), 5);
        let group = example(1);
        cluster.nodes[3].core.application_mut().refused = Some((group.id, 1));
        cluster.create(&group, |_| Vec::new());
        cluster.run().expect("nothing wrong");
        cluster.check_all_failed(&group).expect("all are told");
        assert_eq!(causes(&cluster, &group), [Cause::Refused(NodeId(3)); 5]);
    }
}

/// A member that was given another block size: all are told.
#[test]
fn members_that_disagree_do_not_begin() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, SimConfig::adversarial(seed), 5);
        let group = example(1);
        let mut other = group.clone();
        other.settings.block_bytes = 128;
        for member in 0..5 {
            let plan = if member == 2 { &other } else { &group };
            cluster.create_at(member, plan, Vec::new());
        }
        cluster.run().expect("nothing wrong");
        cluster.check_all_failed(&group).expect("all are told");
        let disagree = |cause: &Cause| matches!(cause, Cause::Disagreed(_));
        assert!(causes(&cluster, &group).iter().all(disagree), "{:?}", causes(&cluster, &group));
    }
}

/// Who wedges a group stops it everywhere; a destroyed group is missed by who still sends.
#[test]
fn applications_may_wedge_and_leave() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, SimConfig::adversarial(seed), 5);
        let (group, other) = (example(1), example(2));
        cluster.create(&group, |_| Vec::new());
        cluster.create(&other, |_| Vec::new());
        cluster.run().expect("nothing wrong");
        cluster.nodes[4].core.wedge(group.id).expect("it runs");
        cluster.world.wake(4);
        cluster.nodes[2].core.destroy(other.id).expect("it is idle");
        let memory = super::contents::full(&mut cluster.nodes[0].fabric, other.key, 2, 100);
        cluster.nodes[0].core.send(other.id, memory, 100).expect("it runs");
        cluster.world.wake(0);
        cluster.run().expect("nothing wrong");
        cluster.check_all_failed(&group).expect("all are told");
        assert_eq!(causes(&cluster, &group), [Cause::Wedged(NodeId(4)); 5]);
        for member in [0, 1, 3, 4] {
            let stream = cluster.nodes[member].core.application().stream(other.id);
            let cause = stream.failure.as_ref().map(|failure| failure.cause);
            assert_eq!(cause, Some(Cause::Left(NodeId(2))), "member {member}");
        }
    }
}
