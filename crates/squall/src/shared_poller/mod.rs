//! Polling by the threads that wait: an application's thread that waits for something polls the node meanwhile, so that what comes wakes
//! no other thread first, and a thread that sends one message passes it on itself. A thread of the group's own, the *standby* thread,
//! polls while no thread waits ([`attention`] decides when).

mod attention;
#[cfg(all(test, shuttle))]
mod schedules;
mod turns;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use self::turns::SharedNode;
use crate::node::Node;
use crate::status::GroupStatus;

/// A node that the application's threads poll while they wait: see [`crate::Builder::join_shared`]. Clones are the same.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
/// use squall::config::SubgroupConfig;
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-shared-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let (mut group, poller) = Group::builder(config).join_shared()?;
/// let log = group.subgroup("log")?;
/// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// poller.assist(|| sender.send_bytes(b"hello"))?;
/// let found = poller.wait_until(Duration::from_secs(10), || {
///     deliveries.try_next().transpose().map(|message| message.map(|message| message.bytes.to_vec()))
/// });
/// assert_eq!(found.transpose()?.as_deref(), Some(&b"hello"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedPoller {
    shared: Arc<SharedNode<Node>>,
}

/// A poller that does not keep the node: the node's upcalls may have it.
#[derive(Clone, Debug)]
pub(crate) struct WeakPoller(Weak<SharedNode<Node>>);

impl WeakPoller {
    pub(crate) fn upgrade(&self) -> Option<SharedPoller> {
        self.0.upgrade().map(|shared| SharedPoller { shared })
    }
}

/// Which thread has polled when there is news ([`SharedPoller::on_news`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolledBy {
    /// A thread that waits, or sends: it has time for what has come.
    Waiting,
    /// The standby thread, which should not be held up.
    Standby,
    /// No thread any more: the group has ended.
    NoThread,
}

impl SharedPoller {
    pub(crate) fn new(node: Node, status: Arc<GroupStatus>) -> std::io::Result<Self> {
        Ok(Self { shared: Arc::new(SharedNode::new(node, status)?) })
    }

    pub(crate) fn downgrade(&self) -> WeakPoller {
        WeakPoller(Arc::downgrade(&self.shared))
    }

    /// Calls `on_news` after each poll in which something moved, on the thread that has polled, and when the group has ended. Only the first
    /// call counts. It must not block, nor wait by means of this poller, since the node is not polled meanwhile.
    pub fn on_news(&self, on_news: impl Fn(PolledBy) + Send + Sync + 'static) {
        self.shared.set_news(Box::new(on_news));
    }

    /// Waits until `look` returns something, at most for `limit`, and polls meanwhile. `look` is called after polls in which something
    /// moved, and after each [`SharedPoller::notify`]; it must not wait by means of this poller.
    pub fn wait_until<R>(&self, limit: Duration, look: impl FnMut() -> Option<R>) -> Option<R> {
        self.shared.wait(limit, true, look)
    }

    /// Waits as [`SharedPoller::wait_until`], for something of which [`SharedPoller::notify`] is called: while another thread polls, what
    /// polls move does not wake this one.
    pub fn wait_until_notified<R>(&self, limit: Duration, look: impl FnMut() -> Option<R>) -> Option<R> {
        self.shared.wait(limit, false, look)
    }

    /// Lets those that wait look again: something has changed that no poll shows.
    pub fn notify(&self) {
        self.shared.notify();
    }

    /// Runs `act`, which sends something, and passes that on at once if no other thread is about to.
    pub fn assist<R>(&self, act: impl FnOnce() -> R) -> R {
        // It may take long, and the node is polled meanwhile as usual.
        let result = act();
        self.shared.pass_on();
        result
    }

    /// Returns whether a thread that waits polls at this moment.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.shared.is_led()
    }

    /// Polls once, if no thread does or is about to. A thread that sends or takes much calls it every so often: that costs less than
    /// another thread that polls meanwhile. What is sent before the next call is passed on after 400 µs in any case,
    /// apart from the scheduler.
    pub fn visit(&self) {
        self.shared.visit();
    }

    /// Polls once, unless a thread that waits does, and lets the standby thread rest that would do so otherwise: for a thread that sends much, and
    /// seldom waits, while other processes want its cores. It should be called as often as [`SharedPoller::visit`].
    pub fn relieve(&self) {
        self.shared.relieve();
    }

    /// Has the node polled by another thread, if none does: this one waits for something by other means.
    pub fn attend(&self) {
        self.shared.attend();
    }

    /// What the standby thread does, until the group ends or its handle leaves.
    pub(crate) fn stand_by(&self) {
        self.shared.stand_by();
    }
}

impl fmt::Debug for SharedPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPoller").field("shared", &self.shared).finish_non_exhaustive()
    }
}
