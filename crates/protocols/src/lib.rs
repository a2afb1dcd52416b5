//! The protocols of the papers as pure cores (Derecho §3, Spindle §3, RDMC §3, EXS §III): they own no clock, thread,
//! random source or socket, depend only on [`squall_fabric`], and run unchanged in the simulator and on real
//! machines.
//!
//! docs/invariants.md states their numbered invariants: [`sst`] [S1]–[S5], [`multicast`] [O1]–[O7] and [N1]–[N7], [`group`]
//! [L1]–[L2], [`membership`] [V1]–[V17] and [D1]–[D8], [`replica`] [A1]–[A18], [`admission`] [J1]–[J11], [`assembly`]
//! [Q1]–[Q6], [`restart`] [T1]–[T22] and [P1]–[P3], [`ends`] [H1]–[H22], [`stream`] [E1]–[E10], [`rdmc`] [B1]–[B9],
//! [`genuine`] [G1]–[G19].
#![forbid(unsafe_code)]

#[macro_use(mutant, mutations, points)]
extern crate squall_fabric;

pub mod admission;
pub mod assembly;
pub mod coverage;
pub mod ends;
mod express;
pub mod genuine;
pub mod group;
pub mod members;
pub mod membership;
pub mod multicast;
pub mod mutation;
pub mod rdmc;
pub mod replica;
pub mod restart;
#[cfg(all(test, shuttle))]
mod schedules;
pub mod sst;
pub mod stream;
mod words;
