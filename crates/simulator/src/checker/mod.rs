//! Checkers: what must hold in every run, each in its own file. They see what the whole cluster sees, which no
//! member can.

mod contents;
pub mod linearizable;
mod order;
mod stability;
mod views;

pub use contents::DeliveryCounts;
pub use order::DeliveryOrder;
pub use stability::Stability;
pub use views::ViewHistory;

/// A delivery, as checkers see it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// Who delivers, by rank.
    pub member: usize,
    /// Who sent, by rank.
    pub sender: usize,
    /// The place among the sender's messages and nulls.
    pub index: u64,
    /// The place in the total order; the same as `index` without one.
    pub sequence: u64,
    /// The payload.
    pub bytes: &'a [u8],
}
