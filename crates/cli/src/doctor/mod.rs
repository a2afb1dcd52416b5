//! What `squall doctor` looks at.

pub(crate) mod devices;
pub(crate) mod litmus;
pub(crate) mod peers;
