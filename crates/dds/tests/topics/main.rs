//! Topics as applications use them: entities, profiles, samples and readers of every kind (Spindle §4.6).

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod entities;
mod in_place;
mod late_joiner;
mod presentation;
mod profiles;
mod run_time;
mod stream;
mod volatile_clients;
