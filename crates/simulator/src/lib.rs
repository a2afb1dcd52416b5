//! The simulator: the production cores, a whole cluster, virtual time, one seed.
//!
//! A *scenario* draws a plan from a seed (members, settings, workload, faults), runs it in a [`squall_fabric::sim`]
//! world under an adversary that does all that the fabric's axioms allow, and has *checkers* watch it. The same seed
//! gives the same run; a plan is data, so a failing one can be shrunk and explained as a timeline.
//!
//! [`figures`] and [`blast`] run the same cores under a cost model instead of an adversary, to predict what hardware would do.
#![forbid(unsafe_code)]

pub mod alive;
pub mod assembly;
pub mod blast;
pub mod checker;
pub mod coverage;
pub mod explain;
pub mod figures;
pub mod group;
pub mod join;
pub mod multicast;
mod payload;
pub mod rdmc;
pub mod replica;
pub mod restart;
mod run;
pub mod shape;
pub mod sst;
pub mod takeover;

pub use run::{PlannedScenario, RunOutcome, Scenario, SweepSummary, Violation, scenarios, sweep};
