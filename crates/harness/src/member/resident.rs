//! A member whose group has a polling thread of its own, with a replicated object.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use squall::config::Config;
use squall::object::{Object, ObjectError};
use squall::{Departure, Group, Payload, SendError, Sender};

use super::object_client::{ClientObjects, ClientSwitch};
use super::store::{self, StoredValues};
use super::{MemberInbox, MulticastMember, PolledMember, SUBGROUP, builder, say};
use crate::control::{MemberEvent, StoreJob};

pub(super) struct ResidentMember {
    group: Group,
    sender: Sender,
    _values: Object<StoredValues>,
    client: ClientSwitch,
}

impl ResidentMember {
    /// Joins, and reports when it has all states that it should have.
    pub(super) fn join(
        config: Config,
        inbox: impl MemberInbox,
        job: &StoreJob,
        process: u32,
    ) -> Result<Self> {
        let mut group = builder(config, vec![inbox]).join()?;
        let sender = group.subgroup(SUBGROUP)?.sender()?;
        let transfer_ms = job.transfer_ms;
        let values = group.object(store::NAME, move || StoredValues::new(transfer_ms))?;
        let sharded =
            job.has_transactions.then(|| group.sharded_object(move || StoredValues::new(transfer_ms)));
        let objects = ClientObjects {
            values: values.clone(),
            sharded: sharded.transpose()?,
            has_all: job.replicas == 0,
            process,
        };
        let client = ClientSwitch::default();
        let (switch, has_clients) = (client.clone(), job.has_clients);
        std::thread::spawn(move || match objects.wait_ready(PATIENCE) {
            Ok(()) => {
                say(&MemberEvent::Held);
                if has_clients {
                    objects.run(&switch);
                }
            }
            // The sending thread reports it.
            Err(ObjectError::Group(_)) => {}
            Err(error) => say(&MemberEvent::Failed { message: format!("it does not get a state: {error}") }),
        });
        Ok(Self { group, sender, _values: values, client })
    }

    /// Ends what this member itself asks of the object.
    pub(super) fn stop_client(&self) {
        self.client.stop();
    }

    /// Leaves in order: what only this member holds is handed over first.
    pub(super) fn leave(self) -> Result<()> {
        match self.group.leave(PATIENCE) {
            Departure::InOrder => Ok(()),
            departure => bail!("it has not left in order: {departure:?}"),
        }
    }
}

impl MulticastMember for ResidentMember {
    fn try_send_to(
        &mut self,
        _subgroup: usize,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<bool> {
        match self.sender.send_written(length, write) {
            Ok(()) => Ok(true),
            // Until there is space again.
            Err(SendError::DiskFull) => Ok(false),
            Err(error) if error.is_passing() => Ok(false),
            Err(error) => Err(error).context("it cannot send"),
        }
    }
}

impl PolledMember for ResidentMember {
    fn step(&mut self) -> Result<()> {
        self.poll()
    }

    /// The group's own thread does the rest.
    fn poll(&mut self) -> Result<()> {
        self.group.failure().map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// No thread waits for this one.
    fn pause(&self) -> Duration {
        Duration::from_millis(5)
    }
}

/// How long a state may take to arrive, or to be handed over.
const PATIENCE: Duration = Duration::from_secs(60);
