//! Replicas of one shard under random views, crashes, transfers and clients; mutations put back (Derecho app. A).

mod mutations;
mod random;
mod world;
