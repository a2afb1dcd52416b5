//! Tests of RDMC under the adversary, case by case, and of mutations that must be caught (RDMC §2, §3; [B1]–[B7]).

mod faults;
mod mutations;
mod sizes;
mod strangers;
