//! What applications see of groups: deliveries, views, metrics, external clients.

mod external;
mod flight;
mod layout;
mod metrics;
mod owned;
mod packaging;
mod shared_poller;
mod slow;
mod view_change;
