//! Parsers of foreign bytes (of a socket, a file, a peer), as functions that must not panic on any input. What they accept,
//! they must also write again, where there is a writer.
//!
//! A parser names its entry here in its comment: ``Fuzzed as `address`.`` `tests/tidy` compares both.
//!
//! Two drivers share these functions: `src/bin/smoke.rs`, a random generator on the stable toolchain, and
//! `fuzz_targets/`, which cargo-fuzz guides by coverage.

#![forbid(unsafe_code)]

pub mod address;
pub mod bootstrap;
pub mod bulk;
pub mod checkpoint;
pub mod config;
pub mod copy;
pub mod encryption;
pub mod external;
pub mod frame;
pub mod grant;
pub mod identity;
pub mod inquiry;
pub mod metrics;
pub mod objects;
pub mod offer;
pub mod proof;
pub mod rdmc;
pub mod record;
pub mod records;
pub mod register;
pub mod restart_message;
pub mod restart_register;
pub mod sessions;
pub mod sharded_object;
pub mod shm;
pub mod stream;
pub mod tcp;
pub mod verbs;

/// Something that takes foreign bytes.
pub struct Parser {
    /// The name by which `cargo fuzz run` and the smoke run know it.
    pub name: &'static str,
    /// Gives it bytes; panics if it is wrong.
    pub feed: fn(&[u8]),
    /// Good input to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const PARSERS: &[Parser] = &[
    Parser { name: "address", feed: address::feed, seeds: address::seeds },
    Parser { name: "bootstrap", feed: bootstrap::feed, seeds: bootstrap::seeds },
    Parser { name: "bulk", feed: bulk::feed, seeds: bulk::seeds },
    Parser { name: "checkpoint", feed: checkpoint::feed, seeds: checkpoint::seeds },
    Parser { name: "config", feed: config::feed, seeds: config::seeds },
    Parser { name: "copy", feed: copy::feed, seeds: copy::seeds },
    Parser { name: "encryption", feed: encryption::feed, seeds: encryption::seeds },
    Parser { name: "external", feed: external::feed, seeds: external::seeds },
    Parser { name: "frame", feed: frame::feed, seeds: frame::seeds },
    Parser { name: "grant", feed: grant::feed, seeds: grant::seeds },
    Parser { name: "identity", feed: identity::feed, seeds: identity::seeds },
    Parser { name: "inquiry", feed: inquiry::feed, seeds: inquiry::seeds },
    Parser { name: "metrics", feed: metrics::feed, seeds: metrics::seeds },
    Parser { name: "objects", feed: objects::feed, seeds: objects::seeds },
    Parser { name: "offer", feed: offer::feed, seeds: offer::seeds },
    Parser { name: "proof", feed: proof::feed, seeds: proof::seeds },
    Parser { name: "rdmc", feed: rdmc::feed, seeds: rdmc::seeds },
    Parser { name: "record", feed: record::feed, seeds: record::seeds },
    Parser { name: "records", feed: records::feed, seeds: records::seeds },
    Parser { name: "register", feed: register::feed, seeds: register::seeds },
    Parser { name: "restart_message", feed: restart_message::feed, seeds: restart_message::seeds },
    Parser { name: "restart_register", feed: restart_register::feed, seeds: restart_register::seeds },
    Parser { name: "sessions", feed: sessions::feed, seeds: sessions::seeds },
    Parser { name: "sharded_object", feed: sharded_object::feed, seeds: sharded_object::seeds },
    Parser { name: "shm", feed: shm::feed, seeds: shm::seeds },
    Parser { name: "stream", feed: stream::feed, seeds: stream::seeds },
    Parser { name: "tcp", feed: tcp::feed, seeds: tcp::seeds },
    Parser { name: "verbs", feed: verbs::feed, seeds: verbs::seeds },
];
