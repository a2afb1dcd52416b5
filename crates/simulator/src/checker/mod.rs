//! Checkers of the invariants that must hold in every run, each in its own file. They see the whole cluster, which no
//! member can.

mod contents;
mod durability;
pub mod linearizable;
mod order;
mod stability;
mod views;

pub use contents::DeliveryCounts;
pub(crate) use durability::DurableDeliveries;
pub use order::DeliveryOrder;
pub use stability::Stability;
pub use views::ViewHistory;

/// A delivery, as the checkers see it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The rank of the member that delivers.
    pub member: usize,
    /// The rank of the sender.
    pub sender: usize,
    /// The position among the sender's messages and nulls.
    pub index: u64,
    /// The position in the total order; the same as `index` if there is none.
    pub sequence: u64,
    /// The payload.
    pub bytes: &'a [u8],
}
