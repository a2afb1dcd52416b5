//! Joining as a future: on a thread of its own, since the members that meet wait for sockets and for each other.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

use squall_fabric::mutex::lock;

use super::{Builder, Group};
use crate::config::Config;
use crate::error::JoinError;

/// What the thread has to say, and who waits for it.
#[derive(Default)]
struct JoinSlot {
    /// A panic is the caller's, as if it had joined itself: the future would stay pending without it.
    joined: Option<thread::Result<Result<Group, JoinError>>>,
    waker: Option<Waker>,
    /// The future is gone, so no caller takes the group.
    is_forgotten: bool,
}

/// Notes that the future is gone. A group that has been joined is dropped then, which leaves it.
struct JoinWatch(Arc<Mutex<JoinSlot>>);

impl Drop for JoinWatch {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.is_forgotten = true;
        let joined = slot.joined.take();
        // Leaving takes a moment, and the thread may want the lock meanwhile.
        drop(slot);
        drop(joined);
    }
}

impl Builder {
    /// Joins the group as [`Builder::join`] does, without blocking the task that awaits it, on any executor: a thread of its own does
    /// the work. If the future is dropped, the thread ends after the join, and leaves the group.
    ///
    /// # Errors
    /// [`JoinError`], with what to do next.
    ///
    /// # Panics
    /// If a closure that the builder was given panics while the group is joined: the panic passes to the task that awaits the future.
    pub async fn join_async(self) -> Result<Group, JoinError> {
        let slot: Arc<Mutex<JoinSlot>> = Arc::default();
        let watch = JoinWatch(Arc::clone(&slot));
        let join = move || {
            // Nothing of the builder is used afterwards.
            let joined = catch_unwind(AssertUnwindSafe(|| self.join()));
            let mut slot = lock(&slot);
            if slot.is_forgotten {
                drop(slot);
                return;
            }
            slot.joined = Some(joined);
            slot.waker.take().into_iter().for_each(Waker::wake);
        };
        thread::Builder::new().name("squall join".into()).spawn(join)?;
        let joined = poll_fn(|context| {
            let mut slot = lock(&watch.0);
            slot.waker = Some(context.waker().clone());
            slot.joined.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        joined.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Group {
    /// Joins the group that `config` describes as [`Group::join`] does, without blocking the task that awaits it, on any executor.
    ///
    /// ```
    /// use squall::config::SubgroupConfig;
    /// use squall::{Config, Group};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let name = format!("doc-join-async-{}", std::process::id());
    /// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
    /// let group = futures_executor::block_on(Group::join_async(config))?; // or `.await`
    /// assert_eq!(group.members(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`JoinError`], with what to do next.
    pub async fn join_async(config: Config) -> Result<Self, JoinError> {
        Self::builder(config).join_async().await
    }
}
