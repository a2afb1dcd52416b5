//! Writes whose outcome is not known yet.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use squall::SharedPoller;
use squall::object::{ObjectError, Pending};

use crate::error::WriteError;
use crate::keeper::{outcome, poll_for_reply, settle};
use crate::outlet::explain;
use crate::qos::DurabilityService;
use crate::registry::StoreReply;

/// A write that is under way ([`crate::DataWriter::write_async`]): wait for its outcome, or await it on any executor. Dropping it does not undo
/// the write.
///
/// ```
/// # use std::time::Duration;
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Qos, WriteError};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-pending-write-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).topic("orders", Qos::KEPT).join()?;
/// # let writer = participant.writer(&participant.topic::<Vec<u8>>("orders")?, Qos::KEPT)?;
/// let pending: Vec<_> = (0..100).map(|number| writer.write_async(&vec![number])).collect::<Result<_, _>>()?;
/// for write in pending {
///     write.wait(Duration::from_secs(10))?; // all members have it
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "whether the sample was written is known only by its outcome"]
pub struct PendingWrite {
    /// `None` if the sample was written already.
    reply: Option<(Pending<StoreReply>, DurabilityService, SharedPoller)>,
}

impl PendingWrite {
    pub(crate) const fn done() -> Self {
        Self { reply: None }
    }

    pub(crate) const fn new(
        pending: Pending<StoreReply>,
        service: DurabilityService,
        poller: SharedPoller,
    ) -> Self {
        Self { reply: Some((pending, service, poller)) }
    }

    /// Waits for the outcome, at most for `timeout`.
    ///
    /// # Errors
    /// [`WriteError::Unknown`] if it is not known by then; [`WriteError::NotDelivered`] if the sample is in no history; other errors of
    /// [`crate::DataWriter::write`].
    pub fn wait(self, timeout: Duration) -> Result<(), WriteError> {
        let Some((pending, service, poller)) = self.reply else { return Ok(()) };
        let reply = match pending.try_wait() {
            Ok(reply) => Some(reply),
            Err(pending) => poll_for_reply(pending, &poller, timeout),
        };
        translate(reply.ok_or(WriteError::Unknown)?, service)
    }

    /// Returns the outcome if it is known.
    ///
    /// # Errors
    /// The write itself, if it is still under way.
    pub fn try_wait(self) -> Result<Result<(), WriteError>, Self> {
        let Some((pending, service, poller)) = self.reply else { return Ok(Ok(())) };
        match pending.try_wait() {
            Ok(reply) => Ok(translate(reply, service)),
            Err(pending) => Err(Self::new(pending, service, poller)),
        }
    }
}

fn translate(reply: Result<StoreReply, ObjectError>, service: DurabilityService) -> Result<(), WriteError> {
    match reply {
        Err(ObjectError::NotDelivered) => Err(WriteError::NotDelivered),
        reply => settle(outcome(reply.map_err(explain)?)?, service),
    }
}

impl Future for PendingWrite {
    type Output = Result<(), WriteError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((pending, service, poller)) = &mut self.reply else { return Poll::Ready(Ok(())) };
        let Poll::Ready(reply) = Pin::new(pending).poll(context) else {
            // The executor waits by other means.
            poller.attend();
            return Poll::Pending;
        };
        Poll::Ready(translate(reply, *service))
    }
}

impl fmt::Debug for PendingWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingWrite").field("is_written", &self.reply.is_none()).finish()
    }
}
