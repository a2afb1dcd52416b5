//! The TCP fabric: the axioms, hostile peers, slow peers, large memory, parking and real processes.

#[path = "tcp/cluster.rs"]
mod cluster;
#[path = "tcp/connections.rs"]
mod connections;
#[path = "tcp/files.rs"]
mod files;
#[path = "tcp/hostile.rs"]
mod hostile;
#[path = "tcp/large.rs"]
mod large;
#[path = "tcp/parking.rs"]
mod parking;
#[path = "patience/mod.rs"]
mod patience;
#[path = "tcp/processes.rs"]
mod processes;
#[path = "tcp/raw.rs"]
mod raw;
#[path = "tcp/sealed.rs"]
mod sealed;
#[path = "tcp/slow.rs"]
mod slow;
#[path = "tcp/traffic.rs"]
mod traffic;

/// One test per axiom of the fabric's model.
mod conformance {
    squall_fabric::conformance_suite!(crate::cluster::PlainLoopback);
}

/// The same on encrypted streams.
mod sealed_conformance {
    squall_fabric::conformance_suite!(crate::cluster::SealedLoopback);
}

/// The same where acknowledgements wait for some polls.
mod gathering_conformance {
    squall_fabric::conformance_suite!(crate::cluster::GatheringLoopback);
}

/// And both.
mod sealed_gathering_conformance {
    squall_fabric::conformance_suite!(crate::cluster::SealedGatheringLoopback);
}
