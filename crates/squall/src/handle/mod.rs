//! The application's handles: what sends, what receives, and what reads the log (Derecho §2, Spindle §3.1).

pub(crate) mod deliveries;
pub(crate) mod deliveries_from;
pub mod genuine;
pub(crate) mod history;
pub(crate) mod node_handle;
pub(crate) mod owned;
pub(crate) mod sender;
