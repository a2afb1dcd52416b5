//! Shared state table: monotone rows that each member stores and all read (Derecho §3.2–3.3, Spindle §2.2, §2.4).
//!
//! Each member owns one row, of which all others have a mirror. A column is a word that only grows, or a list of
//! words that a growing column (its *guard*) announces.
//!
//! **State.** The member's own row (stored here, pushed to all), one read-only mirror per other member, the queue of
//! posts of the current evaluation, and for each reader whether it has attached.
//!
//! **Step order.** An evaluation reads only local memory and stores into the member's own row. What it stored is
//! posted at its end ([`StateTable::flush`]), in the order in which it was stored: lists by reference before the
//! guards that announce them, guards by value [F5].
//!
//! **Invariants.**
//! - \[S1\] A reader never sees a column decrease: [`StateTable::raise`] asserts that the owner raises it, and pushes
//!   arrive in order.
//! - \[S2\] A reader that sees a guard sees what it guards: the list is stored and pushed before the guard.
//! - \[S3\] A push never carries an older value after a newer one: guards are captured at post time, in order.
//! - \[S4\] Nothing is stored before all readers have attached ([`StateTable::is_ready`]).
//! - \[S5\] A frozen row never changes ([`StateTable::freeze`]).
//!
//! `Deviation:` Derecho pushes whole rows and relies on increasing address order inside one write. Here nothing
//! relies on order inside one write [F2]: each column is pushed by itself, by value.
//!
//! `Deviation:` Derecho registers predicates with a table, each with a trigger, and a thread evaluates the list. Here
//! a protocol is a core that reads the rows itself: the order of its steps is part of it, a step uses what the
//! previous one has found, and a step whose inputs have not changed is skipped.

mod table;

pub use table::StateTable;
