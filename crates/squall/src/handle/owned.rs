//! Messages that outlive their place in the window: iterators, streams of futures, and values (Derecho §2: typed messages).
//!
//! [`Deliveries`] lends messages, which neither [`Iterator`] nor `Stream` can express: [`OwnedDeliveries`] copies each once. A value
//! is sent as postcard, a compact format of serde.

use serde::Serialize;
use serde::de::DeserializeOwned;
use squall_fabric::NodeId;
use squall_protocols::multicast::Message;

use crate::error::{ReceiveError, SendError, ValueError};
use crate::handle::deliveries::Deliveries;
use crate::handle::sender::Sender;

/// A copy of a message.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-owned-message-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// # let log = group.subgroup("log")?;
/// # let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// sender.send_bytes(b"hello")?;
/// let message = squall::OwnedMessage::from(deliveries.next()?);
/// assert_eq!(message.bytes, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedMessage {
    /// The sender's rank among the subgroup's members in the view.
    pub sender: usize,
    /// The sender's number as a node, which is never used for another process.
    pub node: NodeId,
    /// The view in which it is delivered.
    pub view: u64,
    /// Its place in the total order of the view.
    pub sequence: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl From<Message<'_>> for OwnedMessage {
    fn from(message: Message<'_>) -> Self {
        let Message { sender, node, view, sequence, bytes, .. } = message;
        Self { sender, node, view, sequence, bytes: bytes.to_vec() }
    }
}

/// The deliveries of a subgroup as copies: an [`Iterator`], which blocks, and with the feature `futures` a `Stream`. It ends when this
/// member has left the group in order; any other end is its last item.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::local(&format!("doc-owned-{}", std::process::id()), 1);
/// let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let log = group.subgroup("log")?;
/// let (mut sender, deliveries) = (log.sender()?, log.deliveries()?);
/// sender.send_bytes(b"hello")?;
/// sender.send_bytes(b"world")?;
/// let words: Result<Vec<_>, _> = deliveries.owned().take(2).map(|message| Ok(message?.bytes)).collect();
/// assert_eq!(words.map_err(|error: squall::ReceiveError| error)?, [b"hello", b"world"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OwnedDeliveries {
    deliveries: Deliveries,
    has_ended: bool,
}

impl OwnedDeliveries {
    pub(crate) const fn new(deliveries: Deliveries) -> Self {
        Self { deliveries, has_ended: false }
    }

    /// Returns the deliveries, from the next message on.
    #[must_use]
    pub fn into_inner(self) -> Deliveries {
        self.deliveries
    }

    /// Returns the item for what was received: the end of a group that was left in order is no error.
    fn item(
        &mut self,
        received: Result<OwnedMessage, ReceiveError>,
    ) -> Option<Result<OwnedMessage, ReceiveError>> {
        self.has_ended = received.is_err();
        Some(received).filter(|received| !matches!(received, Err(error) if error.is_left()))
    }
}

impl Iterator for OwnedDeliveries {
    type Item = Result<OwnedMessage, ReceiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let received = self.deliveries.next().map(OwnedMessage::from);
        self.item(received)
    }
}

#[cfg(feature = "futures")]
impl futures_core::Stream for OwnedDeliveries {
    type Item = Result<OwnedMessage, ReceiveError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        if self.has_ended {
            return std::task::Poll::Ready(None);
        }
        self.deliveries.poll_owned(context).map(|received| self.item(received))
    }
}

/// Reads a value from the bytes of a message that [`Sender::send_value`] has sent. Not fuzzed: the value's type is the application's.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-values-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// # let log = group.subgroup("log")?;
/// # let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// enum Order {
///     Buy { pieces: u32 },
///     Cancel(u64),
/// }
///
/// sender.send_value(&Order::Buy { pieces: 5 })?;
/// let order: Order = squall::read_value(deliveries.next()?.bytes)?;
/// assert_eq!(order, Order::Buy { pieces: 5 });
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ValueError`] if the bytes are no value of this type, or if there are more of them.
pub fn read_value<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ValueError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(ValueError::Rest { bytes: rest.len() }),
        Err(error) => Err(ValueError::Form(error.to_string())),
    }
}

impl Sender {
    /// Sends a value as postcard, a compact format of serde: [`read_value`] reads it at the receivers.
    ///
    /// # Errors
    /// [`SendError::Value`] if it cannot be serialised, and the errors of [`Sender::send`].
    pub fn send_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), SendError> {
        let bytes = postcard::to_stdvec(value).map_err(|error| SendError::Value(error.to_string()))?;
        self.send_bytes(&bytes)
    }
}
