//! What `squall doctor` looks at.

pub(crate) mod litmus;
pub(crate) mod means;
pub(crate) mod peers;
