//! Tests of the adversary: everything that the axioms allow is shown to happen, and nothing that they forbid.

#[path = "sim_teeth/connections.rs"]
mod connections;
#[path = "sim_teeth/faults.rs"]
mod faults;
#[path = "sim_teeth/mirrors.rs"]
mod mirrors;
mod sim_harness;
