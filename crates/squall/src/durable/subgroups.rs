//! Which durable subgroups a folder has, and which the configuration wants: both may differ (Derecho §3.4, persistent mode, which does not look
//! at this).
//!
//! Records and checkpoints have the number that the folder has given to the name of their subgroup ([`SubgroupNumbers`]); numbers of different
//! members have nothing to do with each other. All that the register has of shards is in the order of their names. So a subgroup keeps what it
//! has when others are added or removed.
//!
//! **A changed set.** When the configuration has another set than the register, a start makes these steps, each of which is on the disk before
//! the next one:
//! 1. A subgroup that the configuration lacks must be in [`StorageConfig::removed`](crate::config::StorageConfig::removed), else the folder is
//!    refused and nothing is written.
//! 2. The register in terms of the new set ([`Register::with_shards`]) is written *beside* the one before, with new numbers for what is added
//!    ([`FolderPlan::write`]). All changes in the present view (starts, promises, votes) go there. Members with another set are refused.
//! 3. The first register of a later view takes the place of both ([`RegisterFile`](super::register_file::RegisterFile)): the group has that
//!    view with the new set. In the same write the numbers of what was removed are retired.
//! 4. Checkpoints of retired numbers are removed, and their records hold no segments any more.
//!
//! **A crash, or another set at the next start.** Before 3 the next start begins again with 1, from the register before, whatever set it has:
//! nothing of what was removed is lost. Only promises and starts are taken over; and a member that has voted for an end of its view in a
//! restart is bound to the set of that vote, since it may have been decided: with another set it is refused. After 3 the set is the new one.
//! Step 4 is repeated whenever the folder is opened.
//!
//! **What the others know.** A member that was away while the set changed maps its older view in the same way, and learns the later ones. A
//! subgroup that was removed and added again begins again behind the view in which it was added \[T22\]: a member that was away all the time
//! forgets what its log has of before, as soon as it learns that.

use std::collections::BTreeMap;
use std::path::Path;

use squall_log::{Disk, LogSubgroups, RegisterValue, Storage, StorageError, SubgroupChange};
use squall_protocols::group::SubgroupId;
use squall_protocols::multicast::DeliveryMode;
use squall_protocols::restart::{Register, RegisterError, ShardChange};
use squall_transports::bootstrap::digest;

use crate::config::Config;
use crate::error::LogFolderError;

/// The numbers that a log has given to the durable subgroups of the configuration, in the order of the shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SubgroupNumbers(Vec<(SubgroupId, u32)>);

/// What a folder has in terms of the subgroups of the configuration, and what is to be written before it is used.
#[derive(Debug)]
pub(crate) struct FolderPlan {
    /// None if the process has not begun one.
    pub(crate) register: Option<Register>,
    pub(crate) numbers: SubgroupNumbers,
    /// The changed set, if the group has no view with it yet, as far as this process knows.
    pub(crate) pending: Option<PendingChange>,
    value: RegisterValue,
}

/// A set of durable subgroups in which the process has no view yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingChange {
    /// The last view with the set before.
    pub(crate) view: u64,
    /// The shards that are added.
    pub(crate) added: Vec<usize>,
}

impl SubgroupNumbers {
    /// Returns the number of a subgroup.
    ///
    /// # Panics
    /// If it is not durable.
    pub(crate) fn of(&self, id: SubgroupId) -> u32 {
        let entry = self.0.iter().find(|(other, _)| *other == id);
        entry.expect("records are of durable subgroups").1
    }

    /// Returns the subgroup that has a number; none if it is not in the configuration.
    pub(crate) fn subgroup(&self, number: u32) -> Option<SubgroupId> {
        self.0.iter().find(|(_, other)| *other == number).map(|(id, _)| *id)
    }

    /// Returns the numbers, in the order of the shards.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|(_, number)| *number)
    }

    /// The numbers of a log whose subgroups have those of the configuration, as in a new folder.
    #[cfg(test)]
    pub(crate) fn same(ids: impl IntoIterator<Item = u32>) -> Self {
        Self(ids.into_iter().map(|id| (SubgroupId(id), id)).collect())
    }
}

impl FolderPlan {
    /// The plan for a folder whose register is `found`. Nothing is written.
    ///
    /// # Errors
    /// [`LogFolderError`], with what to do next, if the set of subgroups must not be changed so.
    pub(crate) fn new(config: &Config, folder: &Path, found: RegisterValue) -> Result<Self, LogFolderError> {
        let failed = |cause| LogFolderError::Register { folder: folder.into(), cause };
        let decode = |bytes: &[u8]| (!bytes.is_empty()).then(|| Register::decode(bytes)).transpose();
        let base = decode(&found.protocol).map_err(failed)?;
        let change = found.subgroups.change.as_ref();
        let changed = change.map(|change| Register::decode(&change.protocol)).transpose().map_err(failed)?;
        let has_view = base.as_ref().is_some_and(|base| !base.view().members.is_empty());
        let base = match base {
            Some(base) if has_view && found.subgroups.numbers.is_empty() => {
                return Self::of_earlier_release(config, folder, found, base);
            }
            Some(base) if has_view => base,
            base => return Ok(Self::as_configured(config, found, base)),
        };
        let is_of = |register: &Register, numbers: &BTreeMap<String, u32>| {
            register.view().shards.len() == numbers.len()
        };
        let is_valid = is_of(&base, &found.subgroups.numbers)
            && changed.as_ref().is_none_or(|changed| is_of(changed, found.subgroups.present()));
        if !is_valid {
            return Err(failed(RegisterError::Word(SHARDS_WORD)));
        }
        Self::of_view(config, folder, found, base, changed)
    }

    /// A folder whose register is in terms of the set of the configuration, or knows no view, so that what is in it belongs to no group.
    fn as_configured(config: &Config, mut value: RegisterValue, register: Option<Register>) -> Self {
        let LogSubgroups { numbers: mut known, mut next, .. } = std::mem::take(&mut value.subgroups);
        if known.is_empty() {
            // As places in the configuration, which earlier releases have used.
            known = shards(config).into_iter().map(|(name, (id, _))| (name, id.0)).collect();
            next = u32::try_from(config.subgroups.len()).expect("few subgroups");
        }
        value.subgroups = LogSubgroups { numbers: known, next, change: None };
        let numbers = numbered(config, &mut value.subgroups);
        let register = register.filter(|_| numbers == value.subgroups.numbers);
        if register.is_none() {
            value.protocol = Vec::new();
        }
        value.subgroups.numbers = numbers;
        let numbers = SubgroupNumbers::new(config, &value.subgroups.numbers);
        Self { register, numbers, pending: None, value }
    }

    /// A folder without names, in which subgroups have their places among all names as numbers.
    fn of_earlier_release(
        config: &Config,
        folder: &Path,
        mut value: RegisterValue,
        register: Register,
    ) -> Result<Self, LogFolderError> {
        if register.layout != layout_by_places(config) {
            return Err(LogFolderError::OtherSubgroups { folder: folder.into() });
        }
        let register = Register { layout: durable_layout(config), ..register };
        value.protocol = register.encode();
        Ok(Self::as_configured(config, value, Some(register)))
    }

    /// A folder of a member of a group.
    fn of_view(
        config: &Config,
        folder: &Path,
        mut value: RegisterValue,
        base: Register,
        changed: Option<Register>,
    ) -> Result<Self, LogFolderError> {
        let (wanted, known) = (shards(config), value.subgroups.numbers.clone());
        let before: Vec<&str> = known.keys().map(String::as_str).collect();
        let after: Vec<&str> = wanted.keys().map(String::as_str).collect();
        let removed = config.storage.iter().flat_map(|storage| &storage.removed);
        let is_removed = |name: &&str| removed.clone().any(|removed| removed == name);
        let lacks: Vec<&str> = before.iter().copied().filter(|name| !after.contains(name)).collect();
        if !lacks.iter().all(is_removed) {
            let names = lacks.iter().copied().filter(|name| !is_removed(name)).map(String::from).collect();
            return Err(LogFolderError::RemovedSubgroups { folder: folder.into(), names });
        }
        let map = ShardChange::new(&before, &after);
        let pending = (before != after)
            .then(|| PendingChange { view: base.view().number, added: map.added().collect() });
        let change = value.subgroups.change.take();
        let is_same = |change: &SubgroupChange| change.numbers.keys().eq(wanted.keys());
        let register = match (&change, changed) {
            // The same set as at the last start.
            (Some(change), Some(changed)) if is_same(change) => {
                let numbers = SubgroupNumbers::new(config, &change.numbers);
                value.subgroups.change = Some(change.clone());
                return Ok(Self { register: Some(changed), numbers, pending, value });
            }
            (change, Some(changed)) => {
                let names = change.iter().flat_map(|change| change.numbers.keys().cloned()).collect();
                let bound = LogFolderError::ChangingSubgroups { folder: folder.into(), names };
                base.continued(&changed).ok_or(bound)?
            }
            (_, None) => base,
        };
        let numbers = numbered(config, &mut value.subgroups);
        let of_config = SubgroupNumbers::new(config, &numbers);
        let register = if pending.is_some() {
            let register = register.with_shards(&map, durable_layout(config));
            value.subgroups.change = Some(SubgroupChange { numbers, protocol: register.encode() });
            register
        } else {
            value.protocol = register.encode();
            register
        };
        Ok(Self { register: Some(register), numbers: of_config, pending, value })
    }

    /// The plan for a folder without a register, whose subgroups have these numbers.
    #[cfg(test)]
    pub(crate) fn without_register<D: Disk>(numbers: SubgroupNumbers, storage: &Storage<D>) -> Self {
        let value = storage.register().expect("it is good");
        Self { register: None, numbers, pending: None, value }
    }

    /// Writes what is to be on the disk before anything else, and removes the checkpoints of subgroups that the log has no more.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn write<D: Disk>(&self, storage: &Storage<D>) -> Result<(), StorageError> {
        if storage.register().as_ref() != Some(&self.value) {
            let value = self.value.clone();
            storage.change_register(|register| *register = value)?;
        }
        storage.drop_retired()?;
        Ok(())
    }
}

impl SubgroupNumbers {
    fn new(config: &Config, numbers: &BTreeMap<String, u32>) -> Self {
        Self(shards(config).into_iter().map(|(name, (id, _))| (id, numbers[&name])).collect())
    }
}

/// The numbers of the subgroups of the configuration: those that they have, and new ones.
fn numbered(config: &Config, subgroups: &mut LogSubgroups) -> BTreeMap<String, u32> {
    let number = |(name, _): (String, (SubgroupId, usize))| {
        let number = subgroups.numbers.get(&name).copied().unwrap_or_else(|| subgroups.give());
        (name, number)
    };
    shards(config).into_iter().map(number).collect()
}

/// Returns the durable subgroups by name: the id, which is the place of the name among all names, and the place among the durable ones.
pub(crate) fn shards(config: &Config) -> BTreeMap<String, (SubgroupId, usize)> {
    let all = config.subgroups.iter().zip((0..).map(SubgroupId));
    let durable = all.filter(|((_, subgroup), _)| subgroup.mode == DeliveryMode::Durable);
    durable.zip(0..).map(|(((name, _), id), shard)| (name.clone(), (id, shard))).collect()
}

/// Returns a digest of which subgroups are durable, by which members know that they mean the same shards. Not fuzzed: a digest is a
/// number.
pub(crate) fn durable_layout(config: &Config) -> u64 {
    digest_of(shards(config).into_keys().map(|name| format!("{name}\n")).collect())
}

/// Returns the digest that earlier releases have made.
fn layout_by_places(config: &Config) -> u64 {
    let line = |(name, (id, _)): (String, (SubgroupId, usize))| format!("{} {name}\n", id.0);
    digest_of(shards(config).into_iter().map(line).collect())
}

/// Where a register has the number of shards, in words.
const SHARDS_WORD: usize = 7;

fn digest_of(text: String) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = digest(text.as_bytes());
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests;
