//! Logs: what is appended, read, cut, repaired, and found again after a crash.

mod checkpoints;
mod core;
mod reads;
mod recovery;
mod register;
mod repair;
mod subgroups;
mod survey;
