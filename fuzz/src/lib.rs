//! Everything that takes bytes from outside (a socket, a file), as functions that must never panic, whatever they get.
//! What accepts bytes must also write the same bytes again, where it has a writer.
//!
//! Two drivers share these functions: `src/bin/smoke.rs`, a random generator on the stable toolchain, and
//! `fuzz_targets/`, which cargo-fuzz guides by coverage.

#![forbid(unsafe_code)]

pub mod address;
pub mod config;
pub mod copy;
pub mod desk;
pub mod external;
pub mod grant;
pub mod objects;
pub mod offer;
pub mod proof;
pub mod rdmc;
pub mod records;
pub mod sessions;
pub mod shm;
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
    Parser { name: "config", feed: config::feed, seeds: config::seeds },
    Parser { name: "copy", feed: copy::feed, seeds: copy::seeds },
    Parser { name: "desk", feed: desk::feed, seeds: desk::seeds },
    Parser { name: "external", feed: external::feed, seeds: external::seeds },
    Parser { name: "grant", feed: grant::feed, seeds: grant::seeds },
    Parser { name: "objects", feed: objects::feed, seeds: objects::seeds },
    Parser { name: "offer", feed: offer::feed, seeds: offer::seeds },
    Parser { name: "proof", feed: proof::feed, seeds: proof::seeds },
    Parser { name: "rdmc", feed: rdmc::feed, seeds: rdmc::seeds },
    Parser { name: "records", feed: records::feed, seeds: records::seeds },
    Parser { name: "sessions", feed: sessions::feed, seeds: sessions::seeds },
    Parser { name: "shm", feed: shm::feed, seeds: shm::seeds },
    Parser { name: "tcp", feed: tcp::feed, seeds: tcp::seeds },
    Parser { name: "verbs", feed: verbs::feed, seeds: verbs::seeds },
];
