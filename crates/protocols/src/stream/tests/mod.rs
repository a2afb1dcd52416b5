//! Tests of the algorithm without a network: two ends, two lanes, and every order of events (EXS fig. 2–8).

mod exhaustive;
mod figures;
mod misuse;
mod mutations;
mod pair;
mod random;
