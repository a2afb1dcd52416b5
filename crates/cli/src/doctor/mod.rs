//! What `squall doctor` looks at.

pub(crate) mod devices;
pub(crate) mod disk;
pub(crate) mod litmus;
pub(crate) mod peers;
