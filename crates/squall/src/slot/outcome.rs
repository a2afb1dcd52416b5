//! What is known of a message that was sent (Derecho §2).

/// What has become of a message.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// use squall::MessageOutcome;
///
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-outcome-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let log = group.subgroup("log")?;
/// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// sender.send_bytes(b"hello")?;
/// deliveries.next()?;
/// assert_eq!(sender.outcome(0), MessageOutcome::Pending); // this member has not released it
/// deliveries.release();
/// match sender.wait_for_outcome(0) {
///     MessageOutcome::Delivered => println!("all members have it"),
///     other => println!("the group ended before: {other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOutcome {
    /// It is in flight. If its view ends, it is delivered in the next one, in its place and once.
    Pending,
    /// All members of its view have delivered it; in a durable subgroup, it is on the disks of all of them. A member that
    /// pulls messages has delivered those that it has released ([`crate::Deliveries::release`]).
    Delivered,
    /// The group ended here, or this member was out of the subgroup for a while, before the outcome was known: the
    /// others may or may not have delivered it.
    Unknown,
}
