//! What applications see of groups: deliveries, views, metrics, external clients.

#[path = "../common/mod.rs"]
mod common;
mod external;
mod flight;
mod hanging;
mod layout;
mod metrics;
mod owned;
mod packaging;
mod shared_poller;
mod slow;
mod view_change;
