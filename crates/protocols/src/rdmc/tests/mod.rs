//! RDMC under the adversary of the simulated fabric: every byte at every receiver, in order; failures reported to
//! all; resumption; mistakes that must be caught (RDMC §2, §3; [B1]–[B7]).

mod application;
mod cluster;
mod contents;
mod faults;
mod mutations;
mod plan;
mod sizes;
mod strangers;
mod times;
