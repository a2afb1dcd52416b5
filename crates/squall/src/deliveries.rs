//! Receiving by pull: messages are read in place and given back in batches (Spindle §3.1, §3.5).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use squall_protocols::multicast::{Message, Pull};
use squall_transports::Waker;

use crate::application::Seat;
use crate::error::{GroupError, ReceiveError};
use crate::external::Outflow;
use crate::status::Status;
use crate::wait::block_on;

/// The receiving end of a subgroup whose messages are pulled. A slow consumer fills the senders' windows, but
/// never holds up acknowledgements or other subgroups.
#[derive(Debug)]
pub struct Deliveries {
    /// The receiving end of the view that is being taken; none before the first.
    pull: Option<Pull>,
    seat: Arc<Seat>,
    waker: Waker,
    status: Arc<Status>,
    /// Messages taken since the last release.
    held: usize,
    /// Release after so many.
    release_every: usize,
    /// What observers see.
    outflow: Outflow,
}

impl Deliveries {
    pub(crate) fn new(seat: Arc<Seat>, waker: Waker, status: Arc<Status>, release_every: usize) -> Self {
        let outflow = Outflow::new(Arc::clone(seat.tap()));
        Self { pull: None, seat, waker, status, held: 0, release_every, outflow }
    }

    /// The next message, in place, or `None` if none is there now. It is given back by the next call.
    ///
    /// # Errors
    /// That the group has ended; messages that were delivered before come first.
    pub fn try_next(&mut self) -> Result<Option<Message<'_>>, ReceiveError> {
        if !self.look()? {
            return Ok(None);
        }
        self.held += 1;
        // `look` has found it, and has told of every error.
        let message = self.pull.as_mut().and_then(|pull| pull.next_message().unwrap_or_default());
        if let Some(message) = message
            && self.outflow.is_watched()
        {
            self.outflow.take(message);
        }
        Ok(message)
    }

    /// Whether there is a message; gives back what was taken, if it is much or there is nothing more.
    fn look(&mut self) -> Result<bool, ReceiveError> {
        loop {
            // Asked before looking, so that what was delivered until then is not missed.
            let failure = self.status.failure();
            let (closed, found, urged) = match &mut self.pull {
                Some(pull) => (pull.is_closed(), pull.has_message(), pull.is_urged()),
                None => (true, Ok(false), false),
            };
            if self.held >= self.release_every || (self.held > 0 && (urged || found != Ok(true))) {
                self.release();
            }
            match found {
                Ok(true) => return Ok(true),
                Ok(false) if !closed => return Ok(false),
                Ok(false) => match self.seat.take_pull(|view| self.outflow.begin_view(Some(view))) {
                    Some(next) => self.pull = Some(next),
                    None => return failure.map_or(Ok(false), |failure| Err(failure.into())),
                },
                Err(_) => return Err(failure.unwrap_or(GroupError::Left).into()),
            }
        }
    }

    /// The next message, in place; blocks until there is one. It is given back by the next call. Not for the
    /// thread that polls the group.
    ///
    /// # Errors
    /// That the group has ended; messages that were delivered before come first.
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Message<'_>, ReceiveError> {
        block_on(self.next_async())
    }

    /// The next message, in place; awaits it. Runs on any executor.
    ///
    /// # Errors
    /// That the group has ended; messages that were delivered before come first.
    pub async fn next_async(&mut self) -> Result<Message<'_>, ReceiveError> {
        poll_fn(|context| self.poll_ready(context)).await?;
        match self.try_next() {
            Ok(Some(message)) => Ok(message),
            Ok(None) => unreachable!("poll_ready has found one"),
            Err(error) => Err(error),
        }
    }

    /// Gives everything taken so far back to its senders.
    pub fn release(&mut self) {
        self.pull.iter_mut().for_each(Pull::release);
        self.held = 0;
        self.waker.wake();
    }

    fn poll_ready(&mut self, context: &Context<'_>) -> Poll<Result<(), ReceiveError>> {
        if !self.look()? {
            self.status.messages.register(context.waker());
            if !self.look()? {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }
}
