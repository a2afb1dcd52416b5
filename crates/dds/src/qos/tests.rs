//! Every policy of the specification: kept, refused with its error, or reported as a mismatch.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// What becomes of a value that differs from the default.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// It is kept, and every reader matches.
    Kept,
    /// It is kept; a writer with the policies of [`offer`] does not match a reader that requests it.
    Mismatch,
    /// Creation fails.
    Refused,
}

use Outcome::{Kept, Mismatch, Refused};

/// A value other than the default for each policy, and its outcome.
fn table() -> Vec<(PolicyId, Qos, Outcome)> {
    let second = Some(Duration::from_secs(1));
    let qos = Qos::ATOMIC;
    let keeps_one = DurabilityService { history: HistoryKind::KeepLast(1), samples_max: 10 };
    let keeps_none = DurabilityService { samples_max: 0, ..keeps_one };
    let instance = Presentation { scope: PresentationScope::Instance, ..Presentation::TOPIC_ORDERED };
    let group = Presentation { scope: PresentationScope::Group, ..Presentation::TOPIC_ORDERED };
    let coherent = Presentation { coherent_access: true, ..Presentation::TOPIC_ORDERED };
    let limits = ResourceLimits { samples_max: 5, ..ResourceLimits::DEFAULT };
    let none = ResourceLimits { samples_max: 0, ..ResourceLimits::DEFAULT };
    vec![
        (PolicyId::UserData, Qos { user_data: vec![1], ..qos.clone() }, Kept),
        (PolicyId::TopicData, Qos { topic_data: vec![1], ..qos.clone() }, Kept),
        (PolicyId::GroupData, Qos { group_data: vec![1], ..qos.clone() }, Kept),
        (PolicyId::Durability, Qos { durability: DurabilityKind::TransientLocal, ..qos.clone() }, Mismatch),
        (PolicyId::Durability, Qos::KEPT, Mismatch),
        (PolicyId::Durability, Qos::LOGGED, Mismatch),
        (PolicyId::DurabilityService, Qos { durability_service: Some(keeps_one), ..qos.clone() }, Refused),
        (PolicyId::DurabilityService, Qos { durability_service: Some(keeps_one), ..Qos::KEPT }, Kept),
        (PolicyId::DurabilityService, Qos { durability_service: Some(keeps_one), ..Qos::LOGGED }, Kept),
        (PolicyId::DurabilityService, Qos { durability_service: Some(keeps_none), ..Qos::KEPT }, Refused),
        (PolicyId::Presentation, Qos { presentation: instance, ..qos.clone() }, Kept),
        (PolicyId::Presentation, Qos { presentation: group, ..qos.clone() }, Mismatch),
        (PolicyId::Presentation, Qos { presentation: group, ..Qos::KEPT }, Mismatch),
        (PolicyId::Presentation, Qos { presentation: group, ..Qos::UNORDERED }, Refused),
        (PolicyId::Presentation, Qos { presentation: coherent, ..qos.clone() }, Mismatch),
        (PolicyId::Deadline, Qos { deadline: second, ..qos.clone() }, Refused),
        (PolicyId::LatencyBudget, Qos { latency_budget: Duration::from_secs(1), ..qos.clone() }, Kept),
        (PolicyId::Ownership, Qos { ownership: OwnershipKind::Exclusive, ..qos.clone() }, Refused),
        (PolicyId::OwnershipStrength, Qos { ownership_strength: 1, ..qos.clone() }, Refused),
        (
            PolicyId::Liveliness,
            Qos { liveliness: LivelinessKind::ManualByParticipant, ..qos.clone() },
            Refused,
        ),
        (PolicyId::Liveliness, Qos { liveliness: LivelinessKind::ManualByTopic, ..qos.clone() }, Refused),
        (PolicyId::Liveliness, Qos { liveliness_lease: second, ..qos.clone() }, Refused),
        (PolicyId::TimeBasedFilter, Qos { time_based_filter: Duration::from_secs(1), ..qos.clone() }, Kept),
        (PolicyId::Partition, Qos { partition: vec!["*".into()], ..qos.clone() }, Kept),
        (PolicyId::Reliability, Qos::UNORDERED, Kept),
        (PolicyId::Reliability, Qos { reliability: ReliabilityKind::BestEffort, ..Qos::KEPT }, Refused),
        (PolicyId::TransportPriority, Qos { transport_priority: 1, ..qos.clone() }, Kept),
        (PolicyId::Lifespan, Qos { lifespan: second, ..qos.clone() }, Kept),
        (
            PolicyId::DestinationOrder,
            Qos { destination_order: DestinationOrderKind::BySource, ..qos.clone() },
            Refused,
        ),
        (PolicyId::History, Qos { history: HistoryKind::KeepLast(2), ..qos.clone() }, Kept),
        (PolicyId::History, Qos { history: HistoryKind::KeepLast(0), ..qos.clone() }, Refused),
        (PolicyId::ResourceLimits, Qos { resource_limits: limits, ..qos.clone() }, Kept),
        (PolicyId::ResourceLimits, Qos { resource_limits: none, ..qos.clone() }, Refused),
        (PolicyId::EntityFactory, Qos { autoenable_created_entities: false, ..qos.clone() }, Refused),
        (
            PolicyId::WriterDataLifecycle,
            Qos { autodispose_unregistered_instances: false, ..qos.clone() },
            Kept,
        ),
        (
            PolicyId::ReaderDataLifecycle,
            Qos { autopurge_nowriter_samples_delay: second, ..qos.clone() },
            Refused,
        ),
        (
            PolicyId::ReaderDataLifecycle,
            Qos { autopurge_disposed_samples_delay: second, ..qos.clone() },
            Refused,
        ),
    ]
}

/// What the writer offers that a reader with a value of `policy` meets.
const fn offer(policy: PolicyId) -> Qos {
    match policy {
        // Their values need a topic that keeps something.
        PolicyId::DurabilityService | PolicyId::Presentation => Qos::LOGGED,
        _ => Qos::ATOMIC,
    }
}

#[test]
fn every_policy_is_kept_refused_or_reported() {
    let mut seen = BTreeSet::new();
    for (policy, qos, outcome) in table() {
        seen.insert(policy);
        let found = match qos.check() {
            Err(error) => {
                assert_eq!(error.policy(), policy, "{error}");
                assert!(error.to_string().starts_with(&policy.to_string()), "{error}");
                Refused
            }
            Ok(()) => match &*offer(policy).incompatible(&qos) {
                [] => Kept,
                [found] => {
                    assert_eq!(*found, policy);
                    Mismatch
                }
                several => panic!("{several:?}"),
            },
        };
        assert_eq!(found, outcome, "{policy}: {qos:?}");
    }
    assert_eq!(seen, BTreeSet::from(PolicyId::ALL), "each policy has a line");
}

/// A request for more than is offered, for each policy that is compared: those whose other values are refused at creation
/// included, since the peer may run a later release.
#[test]
fn every_compared_policy_is_reported() {
    let second = Some(Duration::from_secs(1));
    let group = Presentation { scope: PresentationScope::Group, ..Presentation::TOPIC_ORDERED };
    let qos = Qos::ATOMIC;
    let late = Qos { latency_budget: Duration::from_secs(1), ..qos.clone() };
    let pairs = [
        (PolicyId::Durability, qos.clone(), Qos::KEPT),
        (PolicyId::Durability, Qos::KEPT, Qos::LOGGED),
        (PolicyId::Presentation, qos.clone(), Qos { presentation: group, ..qos.clone() }),
        (PolicyId::Deadline, qos.clone(), Qos { deadline: second, ..qos.clone() }),
        (PolicyId::LatencyBudget, late, qos.clone()),
        (PolicyId::Ownership, qos.clone(), Qos { ownership: OwnershipKind::Exclusive, ..qos.clone() }),
        (PolicyId::Liveliness, qos.clone(), Qos { liveliness: LivelinessKind::ManualByTopic, ..qos.clone() }),
        (PolicyId::Liveliness, qos.clone(), Qos { liveliness_lease: second, ..qos.clone() }),
        (PolicyId::Reliability, Qos::UNORDERED, qos.clone()),
        (
            PolicyId::DestinationOrder,
            qos.clone(),
            Qos { destination_order: DestinationOrderKind::BySource, ..qos.clone() },
        ),
    ];
    for (policy, offered, requested) in pairs {
        assert_eq!(offered.incompatible(&requested), [policy]);
        assert_eq!(requested.incompatible(&requested), [], "what is offered is enough for an equal request");
    }
}

#[test]
fn policies_have_the_names_of_the_specification() {
    let names = [PolicyId::UserData, PolicyId::DurabilityService, PolicyId::ReaderDataLifecycle];
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["USER_DATA", "DURABILITY_SERVICE", "READER_DATA_LIFECYCLE"]);
}

#[test]
fn profiles_keep_what_they_are_named_for() {
    let profiles = [Qos::UNORDERED, Qos::ATOMIC, Qos::KEPT, Qos::LOGGED];
    for (qos, profile) in
        profiles.iter().zip([Profile::Unordered, Profile::Atomic, Profile::Kept, Profile::Logged])
    {
        assert_eq!(qos.profile(), profile);
        qos.check().expect("the profiles are kept");
    }
    // Each offers what the ones before it request.
    for (at, offered) in profiles.iter().enumerate() {
        for requested in &profiles[..=at] {
            assert_eq!(offered.incompatible(requested), []);
        }
    }
}

fn any_durability() -> impl Strategy<Value = DurabilityKind> {
    prop_oneof![
        Just(DurabilityKind::Volatile),
        Just(DurabilityKind::TransientLocal),
        Just(DurabilityKind::Transient),
        Just(DurabilityKind::Persistent)
    ]
}

fn any_qos() -> impl Strategy<Value = Qos> {
    let time = || proptest::option::of((0u64..3).prop_map(Duration::from_secs));
    (any_durability(), any::<bool>(), time(), time(), 0u64..3).prop_map(
        |(durability, is_reliable, deadline, liveliness_lease, budget)| Qos {
            durability,
            deadline,
            liveliness_lease,
            latency_budget: Duration::from_secs(budget),
            reliability: if is_reliable { ReliabilityKind::Reliable } else { ReliabilityKind::BestEffort },
            ..Qos::ATOMIC
        },
    )
}

proptest! {
    /// Offers form an order: what satisfies a request that satisfies another one satisfies that one, too.
    #[test]
    fn matching_is_reflexive_and_transitive(a in any_qos(), b in any_qos(), c in any_qos()) {
        prop_assert!(a.incompatible(&a).is_empty());
        if a.incompatible(&b).is_empty() && b.incompatible(&c).is_empty() {
            prop_assert!(a.incompatible(&c).is_empty());
        }
    }
}

#[test]
fn a_topic_is_in_no_partition() {
    let qos = Qos { partition: vec!["north".into()], ..Qos::ATOMIC };
    qos.check().expect("endpoints have it");
    let refused = qos.check_topic().unwrap_err();
    assert!(matches!(refused, QosError::Inconsistent { policy: PolicyId::Partition, .. }), "{refused}");
    Qos::KEPT.check_topic().expect("it has none");
}
