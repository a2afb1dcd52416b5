//! The multicast and whole groups with their threads, in explored schedules (Derecho §3, Spindle §3): the words of
//! other members change between any two loads of one evaluation, and applications send and receive between any two
//! steps.

mod fabric;
mod groups;

mod subgroups;

use fabric::{MemoryFabric, MemoryWorld, StoreVisibility};
