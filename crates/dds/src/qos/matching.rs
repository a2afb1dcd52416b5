//! Requested and offered policies: which pairs of a reader and a writer do not match (OMG DDS 1.4 §2.2.3, "RxO").

use std::time::Duration;

use super::{PolicyId, Qos};

impl Qos {
    /// Returns the policies of which a writer with these offers less than a reader requests. They match if there is none.
    #[must_use]
    pub fn incompatible(&self, requested: &Self) -> Vec<PolicyId> {
        let offered = self;
        let (presents, wants) = (offered.presentation, requested.presentation);
        // A time that is left out is infinite.
        let within = |offer: Option<Duration>, request: Option<Duration>| match (offer, request) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(offer), Some(request)) => offer <= request,
        };
        let satisfied = [
            (PolicyId::Durability, offered.durability >= requested.durability),
            (
                PolicyId::Presentation,
                presents.scope >= wants.scope
                    && presents.coherent_access >= wants.coherent_access
                    && presents.ordered_access >= wants.ordered_access,
            ),
            (PolicyId::Deadline, within(offered.deadline, requested.deadline)),
            (PolicyId::LatencyBudget, offered.latency_budget <= requested.latency_budget),
            (PolicyId::Ownership, offered.ownership == requested.ownership),
            (
                PolicyId::Liveliness,
                offered.liveliness >= requested.liveliness
                    && within(offered.liveliness_lease, requested.liveliness_lease),
            ),
            (PolicyId::Reliability, offered.reliability >= requested.reliability),
            (PolicyId::DestinationOrder, offered.destination_order >= requested.destination_order),
        ];
        satisfied.into_iter().filter(|(_, is_satisfied)| !is_satisfied).map(|(policy, _)| policy).collect()
    }
}
