//! The simulator: runs the production cores of a whole cluster in virtual time, from one seed.
//!
//! A *scenario* draws a plan from a seed (members, settings, workload, faults) and runs it in a
//! [`squall_fabric::sim`] world, under an adversary that does everything that the fabric's axioms allow, while
//! *checkers* watch. The same seed gives the same run. A plan is data, so a failing plan can be shrunk and explained
//! as a timeline.
//!
//! [`figures`] and [`blast`] run the same cores under a cost model instead of an adversary, to predict their
//! performance on hardware; [`tables`] has the figures of the papers.
#![forbid(unsafe_code)]

pub mod admission;
pub mod alive;
pub mod assembly;
pub mod blast;
pub mod checker;
pub mod coverage;
pub mod ends;
pub mod explain;
pub mod figures;
pub mod genuine;
pub mod group;
pub mod join;
pub mod large;
pub mod log;
mod message_disk;
pub mod multicast;
pub mod outage;
mod payload;
mod plan_words;
pub mod rdmc;
pub mod replica;
mod report;
pub mod restart;
pub mod revival;
mod run;
pub mod salvage;
pub mod shape;
pub mod sst;
pub mod tables;
pub mod takeover;

pub use report::SweepFault;
pub use run::{PlannedScenario, RunOutcome, Scenario, SweepSummary, Violation, scenario, scenarios, sweep};
