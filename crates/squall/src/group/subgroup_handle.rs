//! A member's ends of a subgroup (Derecho §2).

use std::sync::{Arc, Mutex};

use squall_fabric::mutex::lock;
use squall_protocols::group::SubgroupId;
use squall_protocols::multicast::SubgroupSettings;

use crate::config::Retention;
use crate::durable::ProcessLog;
use crate::error::HandleError;
use crate::external::{SenderLease, ServedSubgroup};
use crate::handle::deliveries::{Deliveries, DurablePlace};
use crate::handle::history::History;
use crate::handle::node_handle::NodeHandle;
use crate::handle::sender::Sender;
use crate::slot::SubgroupSlot;

/// A subgroup of a group: hands out its sender and its deliveries, once each.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-handle-{}", std::process::id()), 1);
/// # let mut group = Group::join(config.subgroup("log", SubgroupConfig::default()))?;
/// let log = group.subgroup("log")?;
/// assert!(log.settings().message_max >= 10 << 10);
/// let (mut sender, mut deliveries) = (log.sender()?, log.deliveries()?);
/// std::thread::spawn(move || sender.send_bytes(b"from another thread").unwrap());
/// assert_eq!(deliveries.next()?.bytes, b"from another thread");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SubgroupHandle {
    pub(crate) name: String,
    pub(crate) settings: SubgroupSettings,
    pub(crate) link: NodeHandle,
    pub(crate) slot: Arc<SubgroupSlot>,
    pub(crate) sends: bool,
    pub(crate) pulls: bool,
    /// The holder of the sending end.
    pub(crate) lease: Arc<Mutex<SenderLease>>,
    pub(crate) deliveries_taken: bool,
    /// The log, with this subgroup's id and its place among the durable ones, if it is one of them.
    pub(crate) log: Option<(Arc<ProcessLog>, SubgroupId, usize)>,
    /// What the log keeps in any case.
    pub(crate) retention: Retention,
}

impl SubgroupHandle {
    /// Returns the settings.
    #[must_use]
    pub const fn settings(&self) -> &SubgroupSettings {
        &self.settings
    }

    /// Takes the sending end. External clients ([`crate::external::Publisher`]) cannot send through this member any
    /// more; the messages that they have sent count in [`Sender::sent`].
    ///
    /// # Errors
    /// If this member is not a sender, or the sender was taken before.
    pub fn sender(&mut self) -> Result<Sender, HandleError> {
        if !self.sends {
            return Err(HandleError::NotASender(self.name.clone()));
        }
        let source = self.source();
        let taken = source.lease().take(|| source.make_sender());
        let sender = taken.ok_or_else(|| self.taken("sender"))?;
        self.slot.use_for_messages();
        Ok(sender)
    }

    /// Returns this subgroup as it is served to external clients.
    pub(crate) fn source(&self) -> ServedSubgroup {
        ServedSubgroup {
            slot: Arc::clone(&self.slot),
            lease: Arc::clone(&self.lease),
            message_max: self.settings.longest(),
            sends: self.sends,
            link: self.link.clone(),
            durable: self.place(),
        }
    }

    /// Returns where its log is, if it is durable.
    fn place(&self) -> Option<DurablePlace> {
        let (_, id, shard) = self.log.as_ref()?;
        Some(DurablePlace { log: self.link.log.clone()?, id: *id, shard: *shard, retention: self.retention })
    }

    /// Takes the receiving end, to pull deliveries; in a durable subgroup from an earlier position on, if wanted
    /// ([`Deliveries::from`]).
    ///
    /// # Errors
    /// If deliveries go to an upcall, or the receiving end was taken before.
    pub fn deliveries(&mut self) -> Result<Deliveries, HandleError> {
        if !self.pulls {
            return Err(HandleError::Upcall(self.name.clone()));
        }
        if std::mem::replace(&mut self.deliveries_taken, true) {
            return Err(self.taken("deliveries"));
        }
        let release_every = (self.settings.window / 8).max(1);
        let (slot, status) = (Arc::clone(&self.slot), Arc::clone(&self.link.status));
        slot.use_for_messages();
        let place = self.place().ok_or_else(|| self.name.clone());
        Ok(Deliveries::new(slot, self.link.waker.clone(), status, release_every, place))
    }

    /// Returns the messages of this durable subgroup that were delivered before this member entered its group: of earlier runs, if the
    /// group has restarted from its logs.
    ///
    /// ```
    /// use squall::config::{StorageConfig, SubgroupConfig};
    /// use squall::{Config, DeliveryMode, Group, MessageOutcome};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let name = format!("doc-history-{}", std::process::id());
    /// let path = std::env::temp_dir().join(&name);
    /// let orders = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    /// let mut config = Config::local(&name, 1).subgroup("orders", orders);
    /// config.storage = Some(StorageConfig::new(&path));
    /// for run in 0..3 {
    ///     let mut group = Group::builder(config.clone()).on_message("orders", |_| ()).join()?;
    ///     let orders = group.subgroup("orders")?;
    ///     assert_eq!(orders.history()?.count(), run); // one of each run before
    ///     let mut sender = orders.sender()?;
    ///     sender.send_bytes(b"two of them")?;
    ///     assert_eq!(sender.wait_for_outcome(0), MessageOutcome::Delivered);
    /// }
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`HandleError::NoLog`] if the subgroup is not durable.
    pub fn history(&self) -> Result<History, HandleError> {
        let (log, id, shard) = self.log.clone().ok_or_else(|| HandleError::NoLog(self.name.clone()))?;
        Ok(History::new(log, id, shard))
    }

    /// Takes both ends, for an object.
    pub(crate) fn take_both(&mut self) -> Result<(), HandleError> {
        if !self.pulls {
            return Err(HandleError::Upcall(self.name.clone()));
        }
        let lease = std::mem::replace(&mut *lock(&self.lease), SenderLease::Application);
        if std::mem::replace(&mut self.deliveries_taken, true) || !matches!(lease, SenderLease::Free) {
            return Err(self.taken("sender or the deliveries"));
        }
        Ok(())
    }

    fn taken(&self, what: &'static str) -> HandleError {
        HandleError::Taken { what, subgroup: self.name.clone() }
    }
}
