//! Deaths: the actions of a group's survivors, and the checks of these (RDMC §2; [B7]).

use std::collections::BTreeMap;

use squall_protocols::rdmc::schedule::{Algorithm, Schedule};
use squall_protocols::rdmc::{GroupId, HeldBlocks, UnfinishedObject};

use super::cluster::RdmcCluster;
use super::plan::{RdmcGroupPlan, RdmcPlan};

/// Runs a plan with deaths; see [`survive`].
#[cfg(test)]
pub(super) fn run_with_death(plan: &RdmcPlan) -> Result<u64, String> {
    survive(&mut RdmcCluster::of(plan, 0), plan)
}

/// Runs a plan with deaths. After each death the survivors resume, as long as there are two of them. Returns how
/// often they did.
pub(super) fn survive(cluster: &mut RdmcCluster, plan: &RdmcPlan) -> Result<u64, String> {
    let mut group = plan.groups[0].clone();
    for rounds in 0.. {
        cluster.run()?;
        if group.members.iter().all(|member| cluster.world.lives(*member)) {
            cluster.check_all_received(&group)?;
            return Ok(rounds);
        }
        cluster.check_all_failed(&group)?;
        if rounds == 0 {
            check_unfinished_are_exact(cluster, &group)?;
        }
        let Some((next, left)) = survivors(cluster, &group) else { return Ok(rounds) };
        let missing: u64 = next.members[1..].iter().map(|member| missing_blocks(&next, &left[member])).sum();
        let before = blocks_received(cluster);
        cluster.create(&next, |member| left[&member].clone());
        cluster.run()?;
        if next.members.iter().all(|member| cluster.world.lives(*member)) {
            let sent = blocks_received(cluster) - before;
            if sent != missing {
                return Err(format!("[B7] {sent} blocks were sent again, {missing} were missing"));
            }
        }
        group = next;
    }
    unreachable!("nodes are few")
}

/// Returns the group of the survivors, with the unfinished objects of each. The new root is the old one, or the
/// member that has the most objects.
pub(super) fn survivors(
    cluster: &RdmcCluster,
    group: &RdmcGroupPlan,
) -> Option<(RdmcGroupPlan, BTreeMap<u32, Vec<UnfinishedObject>>)> {
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
            let held = HeldBlocks::all(group.settings.blocks(object.bytes));
            objects.push(UnfinishedObject { object: *object, memory: Some(memory.clone()), held });
        }
        objects.retain(|unfinished| unfinished.object.number >= first);
        left.insert(*member, objects);
    }
    let range =
        usize::try_from(first - group.first).expect("few")..usize::try_from(end - group.first).expect("few");
    let mut next = RdmcGroupPlan { id: GroupId(group.id.0 + 100), members, first, ..group.clone() };
    next.sizes = group.sizes[range].to_vec();
    if matches!(group.settings.schedule, Schedule::Hybrid(_)) {
        next.settings.schedule = Algorithm::Pipeline.into();
    }
    (next.members.len() > 1).then_some((next, left))
}

/// Checks that the blocks that members report as held are exactly those that have arrived.
fn check_unfinished_are_exact(cluster: &RdmcCluster, group: &RdmcGroupPlan) -> Result<(), String> {
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

/// Returns the number of blocks of the group's objects that a member with these unfinished objects lacks.
fn missing_blocks(group: &RdmcGroupPlan, left: &[UnfinishedObject]) -> u64 {
    let held = |number| {
        let left = left.iter().find(|left| left.object.number == number && left.memory.is_some());
        left.map_or(0, |left| left.held.count())
    };
    (group.first..)
        .zip(&group.sizes)
        .map(|(number, bytes)| group.settings.blocks(*bytes) - held(number))
        .sum()
}

fn blocks_received(cluster: &RdmcCluster) -> u64 {
    cluster.nodes.iter().map(|node| node.core.counters().blocks_received).sum()
}
