//! Durable subgroups and objects: what is on disk, and what becomes of it (Derecho §3.4).

#[path = "../common/aborting.rs"]
mod aborting;
#[path = "../common/accounts.rs"]
mod accounts;
mod begin;
#[path = "../common/mod.rs"]
mod common;
mod compaction;
mod durable;
mod merge;
mod replay;
mod restart;
mod restart_object;
#[path = "../common/storage.rs"]
mod storage;
mod subgroups;
mod subgroups_killed;
mod times;
#[path = "../../../../tests/trouble_page.rs"]
mod trouble_page;
mod versions;
