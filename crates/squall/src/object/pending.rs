//! The future reply to an update or a query (Derecho app. A: futures).

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use squall_fabric::mutex::lock;

use super::ObjectError;
use super::remote_worker::WorkerLease;
use crate::wait::block_on;

/// A reply that has not arrived yet: wait for it, or await it on any executor. Dropping it does not undo the request.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::object::{Replicated, Snapshot, restored};
/// # use squall::{Config, Group};
/// # #[derive(Default)]
/// # struct Count(u64);
/// # impl Replicated for Count {
/// #     type Update = u64;
/// #     type Query = ();
/// #     type Reply = u64;
/// #     fn apply(&mut self, more: u64) -> u64 { self.0 += more; self.0 }
/// #     fn query(&self, (): ()) -> u64 { self.0 }
/// #     fn snapshot(&self) -> Snapshot { Snapshot::of(self.0) }
/// #     fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> { restored(source).map(Self) }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-pending-{}", std::process::id()), 1).subgroup("count", SubgroupConfig::default());
/// # let mut group = Group::join(config.clone())?;
/// let count = group.object("count", Count::default)?;
/// let pending: Vec<_> = (0..10).map(|_| count.update(b"key", &1)).collect::<Result<_, _>>()?; // all under way
/// let replies: Vec<u64> = pending.into_iter().map(|reply| reply.wait()).collect::<Result<_, _>>()?;
/// assert_eq!(replies, (1..=10).collect::<Vec<_>>());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the outcome of an update is known only by its reply"]
pub struct Pending<R> {
    slot: Arc<Slot<R>>,
    /// Whether the shard is in a durable subgroup, so that what is delivered there is on the disks \[T2\].
    is_durable: bool,
    /// The worker that gets the reply from another process, which a caller that waits may run.
    lease: Option<Arc<WorkerLease>>,
}

/// The other end, which completes the reply. If it is dropped unused, the reply is [`ObjectError::Stopped`].
#[derive(Debug)]
pub(super) struct ReplySender<R> {
    slot: Option<Arc<Slot<R>>>,
}

#[derive(Debug)]
struct Slot<R> {
    state: Mutex<State<R>>,
}

#[derive(Debug)]
struct State<R> {
    result: Option<Result<R, ObjectError>>,
    waker: Option<Waker>,
}

impl<R> Slot<R> {
    fn new(result: Option<Result<R, ObjectError>>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { result, waker: None }) })
    }

    fn state(&self) -> MutexGuard<'_, State<R>> {
        lock(&self.state)
    }
}

/// Returns both ends of a reply of a shard, which is in a durable subgroup or not.
pub(super) fn pair<R>(is_durable: bool) -> (Pending<R>, ReplySender<R>) {
    let slot = Slot::new(None);
    (Pending { slot: Arc::clone(&slot), is_durable, lease: None }, ReplySender { slot: Some(slot) })
}

impl<R> ReplySender<R> {
    pub(super) fn complete(mut self, result: Result<R, ObjectError>) {
        self.set(result);
    }

    fn set(&mut self, result: Result<R, ObjectError>) {
        let Some(slot) = self.slot.take() else { return };
        let mut state = slot.state();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<R> Drop for ReplySender<R> {
    fn drop(&mut self) {
        self.set(Err(ObjectError::Stopped));
    }
}

impl<R> Pending<R> {
    pub(super) fn ready(result: Result<R, ObjectError>, is_durable: bool) -> Self {
        Self { slot: Slot::new(Some(result)), is_durable, lease: None }
    }

    /// Returns the same reply, which this worker gets.
    pub(super) fn got_by(self, lease: Arc<WorkerLease>) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Asks that the reply also say that the update is on disks: when it arrives, the update is on the disks of all
    /// members of the shard's view, and the end of all members does not undo it. The reply to a query arrives when that holds for
    /// every update that the answer reflects.
    ///
    /// In a subgroup with `mode = "durable"` a message is delivered, and so applied, only when all members of its view have it on
    /// their disks. So every reply of such an object means that, and this method takes no time: it is for callers that have to
    /// know it, whatever the configuration says.
    ///
    /// ```no_run
    /// # use squall::object::{Object, ObjectError, Replicated};
    /// # fn append<T: Replicated<Update = u64>>(object: &Object<T>) -> Result<(), ObjectError> {
    /// object.update(b"list", &7)?.durable()?.wait()?; // it is on the disks of all members
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ObjectError::NotDurable`] if the subgroup keeps no log. The update is under way, and only its reply is dropped.
    pub fn durable(self) -> Result<Self, ObjectError> {
        if self.is_durable { Ok(self) } else { Err(ObjectError::NotDurable) }
    }

    /// Blocks until the reply arrives. It must not be called on the thread that polls the group.
    ///
    /// # Errors
    /// [`ObjectError`], with what to do next.
    pub fn wait(self) -> Result<R, ObjectError> {
        if let Some(lease) = &self.lease {
            lease.drive(|| self.slot.state().result.is_some());
        }
        block_on(self)
    }

    /// Takes the reply if it has arrived.
    ///
    /// # Errors
    /// `self`, if the reply has not arrived yet.
    pub fn try_wait(self) -> Result<Result<R, ObjectError>, Self> {
        let result = self.slot.state().result.take();
        if let (None, Some(lease)) = (&result, &self.lease) {
            lease.leave();
        }
        result.ok_or(self)
    }
}

impl<R> Future for Pending<R> {
    type Output = Result<R, ObjectError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.state();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        state.waker = Some(context.waker().clone());
        drop(state);
        if let Some(lease) = &self.lease {
            lease.leave();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_taken_when_it_is_there() {
        let (pending, sender) = pair::<u64>(true);
        let pending = pending.try_wait().expect_err("it is not there");
        sender.complete(Ok(7));
        let pending = pending.durable().expect("it was of a durable subgroup");
        assert_eq!(pending.try_wait().expect("it is there").expect("it is no error"), 7);
    }

    #[test]
    fn a_request_that_is_dropped_has_an_outcome() {
        let (pending, sender) = pair::<u64>(false);
        drop(sender);
        let outcome = pending.try_wait().expect("it is there");
        assert!(matches!(outcome, Err(ObjectError::Stopped)), "{outcome:?}");
    }

    #[test]
    fn a_reply_that_was_awaited_before_is_taken() {
        let (mut pending, sender) = pair::<u64>(false);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut pending).poll(&mut context).is_pending());
        sender.complete(Ok(7));
        assert_eq!(pending.try_wait().expect("it is there").expect("it is no error"), 7);
    }
}
