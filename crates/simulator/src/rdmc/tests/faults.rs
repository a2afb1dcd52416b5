//! Tests with deaths, broken links and refusals: all members are notified, the reported blocks are exact, and the
//! survivors resume (RDMC §2; [B7]).

use squall_fabric::sim::{SimConfig, Verdict};
use squall_fabric::{Duration, NodeId};
use squall_protocols::rdmc::FailureCause;
use squall_protocols::rdmc::schedule::Algorithm;

use super::super::cluster::RdmcCluster;
use super::super::plan::{RdmcGroupPlan, RdmcPlan};
use super::super::resumption::{run_with_death, survivors};

/// A member dies at any step, and possibly a second one while the survivors resume.
#[test]
fn survivors_learn_of_deaths_and_resume() {
    let mut resumed = 0;
    for seed in 0..300 {
        match run_with_death(&RdmcPlan::with_death(seed)) {
            Ok(rounds) => resumed += rounds,
            Err(text) => panic!("seed {seed}: {text}\n{:#?}", RdmcPlan::with_death(seed)),
        }
    }
    assert!(resumed > 150, "only {resumed} groups were resumed: the plans have lost their teeth");
}

/// Returns a group of five members with a pipeline, and objects that are large enough to be interrupted.
fn example(id: u64) -> RdmcGroupPlan {
    RdmcGroupPlan::new(id, &[0, 1, 2, 3, 4], Algorithm::Pipeline.into(), 64, &[64 * 30, 64 * 9 + 1])
}

fn causes(cluster: &RdmcCluster, group: &RdmcGroupPlan) -> Vec<FailureCause> {
    let living = group.members.iter().filter(|member| cluster.world.lives(**member));
    living
        .map(|member| {
            let stream = cluster.nodes[*member as usize].core.application().stream(group.id);
            stream.failure.as_ref().expect("checked").cause
        })
        .collect()
}

/// Two living members lose their connection: all members are notified, and all five resume over a new one.
#[test]
fn a_broken_link_is_a_failure_and_can_be_opened_again() {
    for seed in 0..40 {
        let mut cluster = RdmcCluster::new(seed, SimConfig::adversarial(seed), 5);
        let group = example(1);
        cluster.create(&group, |_| Vec::new());
        let enough = |cluster: &RdmcCluster| cluster.world.pieces(0, 1) > 20;
        cluster.run_until(Duration::from_secs(1), enough).expect("nothing wrong so far");
        cluster.world.strike(&Verdict::Break { a: 0, b: 1 });
        cluster.run().expect("nothing wrong");
        cluster.check_all_failed(&group).expect("all members are notified");
        let cut = |cause: &FailureCause| {
            [FailureCause::Lost(NodeId(0)), FailureCause::Lost(NodeId(1))].contains(cause)
        };
        assert!(causes(&cluster, &group).iter().all(cut), "{:?}", causes(&cluster, &group));
        let (next, left) = survivors(&cluster, &group).expect("all live");
        cluster.create(&next, |member| left[&member].clone());
        cluster.run().expect("nothing wrong");
        cluster.check_all_received(&next).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
}

/// A receiver that has offered memory stops one of two groups: the other continues, although blocks may follow.
#[test]
fn a_stopped_group_does_not_disturb_others() {
    for seed in 0..40 {
        run_with_wedge(seed).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
}

pub(super) fn run_with_wedge(seed: u64) -> Result<(), String> {
    let mut cluster = RdmcCluster::new(seed, SimConfig::adversarial(seed), 2);
    let group = |id| RdmcGroupPlan::new(id, &[0, 1], Algorithm::Chain.into(), 64, &[64 * 3, 64 * 3, 64 * 3]);
    let groups = [group(1), group(2)];
    cluster.nodes[1].core.application_mut().offers_per_mille = 1000;
    groups.iter().for_each(|group| cluster.create(group, |_| Vec::new()));
    let enough = 3 + seed % 40;
    cluster.run_until(Duration::from_secs(1), |cluster| cluster.world.pieces(0, 1) > enough)?;
    if cluster.nodes[1].core.wedge(groups[0].id).is_ok() {
        cluster.world.wake(1);
    }
    cluster.run()?;
    cluster.check_all_received(&groups[1])
}

/// No member waits for a member without memory.
#[test]
fn a_member_may_refuse_an_object() {
    for seed in 0..20 {
        let mut cluster = RdmcCluster::new(seed, SimConfig::adversarial(seed), 5);
        let group = example(1);
        cluster.nodes[3].core.application_mut().refused = Some((group.id, 1));
        cluster.create(&group, |_| Vec::new());
        cluster.run().expect("nothing wrong");
        cluster.check_all_failed(&group).expect("all members are notified");
        assert_eq!(causes(&cluster, &group), [FailureCause::Refused(NodeId(3)); 5]);
    }
}

/// One member has another block size: all members are notified.
#[test]
fn members_that_disagree_do_not_begin() {
    for seed in 0..20 {
        let mut cluster = RdmcCluster::new(seed, SimConfig::adversarial(seed), 5);
        let group = example(1);
        let mut other = group.clone();
        other.settings.block_bytes = 128;
        for member in 0..5 {
            let plan = if member == 2 { &other } else { &group };
            cluster.create_at(member, plan, Vec::new());
        }
        cluster.run().expect("nothing wrong");
        cluster.check_all_failed(&group).expect("all members are notified");
        let disagree = |cause: &FailureCause| matches!(cause, FailureCause::Disagreed(_));
        assert!(causes(&cluster, &group).iter().all(disagree), "{:?}", causes(&cluster, &group));
    }
}

/// Wedging a group stops it at all members. A member that still sends notices that the group was destroyed.
#[test]
fn applications_may_wedge_and_leave() {
    for seed in 0..20 {
        let mut cluster = RdmcCluster::new(seed, SimConfig::adversarial(seed), 5);
        let (group, other) = (example(1), example(2));
        cluster.create(&group, |_| Vec::new());
        cluster.create(&other, |_| Vec::new());
        cluster.run().expect("nothing wrong");
        cluster.nodes[4].core.wedge(group.id).expect("it runs");
        cluster.world.wake(4);
        cluster.nodes[2].core.destroy(other.id).expect("it is idle");
        let memory = super::super::contents::full(&mut cluster.nodes[0].fabric, other.key, 2, 100);
        cluster.nodes[0].core.send(other.id, memory, 100).expect("it runs");
        cluster.world.wake(0);
        cluster.run().expect("nothing wrong");
        cluster.check_all_failed(&group).expect("all members are notified");
        assert_eq!(causes(&cluster, &group), [FailureCause::Wedged(NodeId(4)); 5]);
        for member in [0, 1, 3, 4] {
            let stream = cluster.nodes[member].core.application().stream(other.id);
            let cause = stream.failure.as_ref().map(|failure| failure.cause);
            assert_eq!(cause, Some(FailureCause::Left(NodeId(2))), "member {member}");
        }
    }
}
