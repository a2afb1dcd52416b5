//! The adversary has teeth: each thing that the axioms allow is shown to happen, and what they forbid is not.

#[path = "sim_teeth/connections.rs"]
mod connections;
#[path = "sim_teeth/faults.rs"]
mod faults;
#[path = "sim_teeth/mirrors.rs"]
mod mirrors;
mod sim_harness;
