//! Sockets on the simulated fabric: every byte under the adversary, ends at any moment, long pipes (EXS §III, §IV.B).

mod adversary;
mod faults;
mod net;
mod user;
