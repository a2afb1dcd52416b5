//! Replicas of one shard under random views, crashes, transfers and clients, and with mutations (Derecho app. A).

mod mutations;
mod random;
mod readers;
mod versions;
mod world;
