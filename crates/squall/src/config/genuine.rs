//! `[genuine]`: the shards to which messages are sent in one order (RamCast §2.2).

use std::collections::BTreeMap;

use squall_fabric::window::RECORDS_MAX;
use squall_protocols::genuine::{GenuineSettings, QuorumRule, SHARDS_MAX, ShardPlacement};
use squall_protocols::membership::{MEMBERS_MAX, View};

use super::error::ConfigError;
use super::keys;
use super::subgroup::WINDOW_BYTES_MAX;
use super::table::ConfigValue;

/// The shards of a group to which messages are sent in one order ([`crate::Group::multicast`]), the same at all members.
///
/// ```
/// let config = squall::Config::parse(
///     r#"
///     cluster = "bank"
///     secret = "at least sixteen bytes"
///     listen = "unix:@bank-0"
///     members = 4
///
///     [genuine.shards.accounts]
///     members = [0, 1]
///     [genuine.shards.orders]
///     members = [2, 3]
///     "#,
/// )?;
/// assert_eq!(config.genuine.expect("it is there").shards["orders"], [2, 3]);
/// # Ok::<(), squall::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenuineConfig {
    /// The members of each shard by rank in the group, ascending. A process that joins under one of these ranks is in the shard. No
    /// rank is in two shards.
    pub shards: BTreeMap<String, Vec<usize>>,
    /// The largest number of messages that a sender may have in flight.
    pub window: usize,
    /// The length of the longest message in bytes.
    pub message_max: usize,
    /// The largest number of bytes that a sender may have in flight to one shard.
    pub window_bytes: usize,
    /// The shards hold one replicated object ([`crate::Group::sharded_object`]), whose state joiners take over.
    pub object: bool,
    /// Whose acknowledgements a delivery waits for. With [`QuorumRule::Majority`] a follower that stalls delays no delivery, until
    /// `window` messages of a sender wait for it; a group in which a shard of three or more loses more than half of its members
    /// between two views stops. With [`QuorumRule::All`] all but one member of a shard may die, and each one that stalls delays all.
    pub quorum: QuorumRule,
}

impl Default for GenuineConfig {
    /// No shard; messages of up to 10 KiB.
    fn default() -> Self {
        Self {
            shards: BTreeMap::new(),
            window: 64,
            message_max: 10 << 10,
            window_bytes: 1 << 20,
            object: false,
            quorum: QuorumRule::All,
        }
    }
}

impl GenuineConfig {
    /// Adds a shard with these members, by rank in the group.
    #[must_use]
    pub fn shard(mut self, name: &str, members: &[usize]) -> Self {
        self.shards.insert(name.into(), members.to_vec());
        self
    }

    /// Returns the set of these shards, one bit for each; fails with the first name that is none.
    pub(crate) fn destinations<'n>(&self, names: &[&'n str]) -> Result<u64, &'n str> {
        let bit = |name: &&'n str| {
            let shard = self.shards.keys().position(|other| other == name).ok_or(*name)?;
            Ok(1 << shard)
        };
        names.iter().map(bit).try_fold(0, |set, bit| Ok(set | bit?))
    }

    /// Returns the settings of a group whose members share memory or not.
    pub(crate) const fn settings(&self, is_shared: bool) -> GenuineSettings {
        GenuineSettings {
            express: !is_shared,
            window_bytes: self.window_bytes,
            has_states: self.object,
            quorum: self.quorum,
            ..GenuineSettings::new(self.window, self.message_max)
        }
    }

    /// Returns the shards of a view, whose members have their ranks as tags.
    pub(crate) fn place(&self, view: &View) -> ShardPlacement {
        let of = |ranks: &Vec<usize>| {
            let is_in = |tag: u64| usize::try_from(tag).is_ok_and(|tag| ranks.contains(&tag));
            let members = view.members.iter().enumerate().filter(|(_, member)| is_in(member.tag));
            members.map(|(rank, _)| rank).collect()
        };
        ShardPlacement::new(self.shards.values().map(of).collect())
    }

    /// Returns what is wrong with it in a group that starts with `members`, and what to change.
    pub(super) fn fault(&self, members: usize) -> Option<String> {
        let count = self.shards.len();
        if !(1..=SHARDS_MAX).contains(&count) {
            return Some(format!("{count} shards: write 1 to {SHARDS_MAX} tables [genuine.shards.NAME]"));
        }
        for (name, ranks) in &self.shards {
            if ranks.is_empty() || !ranks.is_sorted_by(|a, b| a < b) {
                return Some(format!(
                    "shard `{name}`: `members`: name at least one rank, in ascending order, each once"
                ));
            }
            if let Some(rank) = ranks.iter().find(|rank| **rank >= MEMBERS_MAX) {
                return Some(format!(
                    "shard `{name}`: rank {rank}: a group has at most {MEMBERS_MAX} members (ranks begin at 0)"
                ));
            }
            if ranks[0] >= members {
                return Some(format!(
                    "shard `{name}`: none of its ranks is below `members` = {members}, so the group would start without it: add one"
                ));
            }
            let others = self.shards.iter().filter(|(other, _)| *other != name);
            let shared = |(_, other): &(&String, &Vec<usize>)| ranks.iter().any(|rank| other.contains(rank));
            if let Some((other, _)) = others.into_iter().find(shared) {
                return Some(format!(
                    "a rank is in the shards `{name}` and `{other}`: a member is in one at most"
                ));
            }
        }
        if !(1..=RECORDS_MAX).contains(&self.window) {
            return Some(format!("`window` = {}: write 1 to {RECORDS_MAX}", self.window));
        }
        (self.window_bytes < self.message_max).then(|| {
            let Self { window_bytes, message_max, .. } = self;
            format!("`window_bytes` = {window_bytes} is below `message_max` = {message_max}: raise the one or lower the other")
        })
    }
}

/// The names of the rules.
const QUORUMS: [(&str, QuorumRule); 2] = [("all", QuorumRule::All), ("majority", QuorumRule::Majority)];

/// Reads the table, if there is one.
pub(super) fn read(
    value: Option<&ConfigValue<'_>>,
    members: usize,
) -> Result<Option<GenuineConfig>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let table = value.table()?;
    let values = table.values(&keys::GENUINE)?;
    let usual = GenuineConfig::default();
    let message_max = values
        .get("message_max")
        .map_or(Ok(usual.message_max), |value| value.bytes(1..=u32::MAX as usize))?;
    let shards =
        values.get("shards").ok_or_else(|| table.missing("shards", "add tables [genuine.shards.NAME]"))?;
    let mut config = GenuineConfig {
        window: values.get("window").map_or(Ok(usual.window), |value| value.count(1..=RECORDS_MAX))?,
        message_max,
        window_bytes: values
            .get("window_bytes")
            .map_or(Ok(usual.window_bytes.max(4 * message_max)), |value| value.bytes(1..=WINDOW_BYTES_MAX))?,
        object: values.get("object").map_or(Ok(usual.object), |value| value.flag())?,
        quorum: values.get("quorum").map_or(Ok(usual.quorum), |value| value.choice(&QUORUMS))?,
        shards: BTreeMap::new(),
    };
    for (name, table) in shards.table()?.tables()? {
        let ranks = table.values(&keys::GENUINE_SHARD)?.get("members");
        let ranks =
            ranks.ok_or_else(|| table.missing("members", "write the ranks of its members"))?.list()?;
        let ranks: Result<Vec<usize>, _> = ranks.iter().map(|rank| rank.count(0..=MEMBERS_MAX - 1)).collect();
        config.shards.insert(name, ranks?);
    }
    config.fault(members).map_or(Ok(Some(config)), |fault| Err(table.conflict(&fault)))
}

#[cfg(test)]
mod tests {
    use super::{GenuineConfig, MEMBERS_MAX, QuorumRule, SHARDS_MAX};
    use crate::config::{StorageConfig, SubgroupConfig};
    use crate::{Config, DeliveryMode};

    fn read(lines: &str) -> Result<Option<GenuineConfig>, String> {
        let text = format!(
            "cluster = \"bank\"\nsecret = \"at least sixteen bytes\"\nlisten = \"unix:@a\"\nmembers = 3\n{lines}\n"
        );
        Config::parse(&text).map(|config| config.genuine).map_err(|error| error.to_string())
    }

    fn refusal(lines: &str) -> String {
        read(lines).expect_err("it is wrong")
    }

    #[test]
    fn shards_are_read_with_their_settings() {
        let lines = "[genuine]\nmessage_max = \"1MiB\"\nobject = true\nquorum = \"majority\"\nwindow = 8\nshards.b.members = [0]\nshards.a.members = [1, 2, 9]";
        let config = read(lines).unwrap().unwrap();
        assert_eq!((config.window, config.message_max, config.window_bytes), (8, 1 << 20, 4 << 20));
        assert!(config.object && config.settings(true).has_states);
        assert_eq!(config.settings(true).quorum, QuorumRule::Majority);
        assert_eq!(config.destinations(&["b", "a"]), Ok(0b11));
        assert_eq!(config.destinations(&["b", "c"]), Err("c"));
        assert_eq!(read("[subgroups.log]"), Ok(None));
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_change() {
        for (lines, text) in [
            ("[genuine]", "add tables [genuine.shards.NAME]"),
            ("[genuine.shards]", "0 shards"),
            ("[genuine.shards.a]", "write the ranks of its members"),
            ("[genuine.shards.a]\nmembers = [1, 0]", "ascending"),
            ("[genuine.shards.a]\nmembers = [3]", "below `members` = 3"),
            ("[genuine.shards]\na.members = [0, 1]\nb.members = [1]", "`a` and `b`"),
            ("[genuine]\nwindow_bytes = 10\nshards.a.members = [0]", "raise the one"),
            ("[genuine]\nquorum = \"half\"\nshards.a.members = [0]", "majority"),
            ("", "subgroups"),
        ] {
            assert!(refusal(lines).contains(text), "{lines}: {}", refusal(lines));
        }
    }

    /// All members that a group may have may be in one shard, and there are as many shards as a set of them has bits.
    #[test]
    fn shards_may_be_as_large_as_the_group() {
        let check = |genuine| {
            let config = Config { genuine: Some(genuine), ..Config::local("genuine", MEMBERS_MAX) };
            config.check().map_err(|error| error.to_string())
        };
        let all = |ranks: usize| GenuineConfig::default().shard("a", &(0..ranks).collect::<Vec<_>>());
        assert_eq!(check(all(MEMBERS_MAX)), Ok(()));
        let refused = check(all(MEMBERS_MAX + 1)).unwrap_err();
        assert!(refused.contains("rank 1024: a group has at most 1024 members"), "{refused}");
        let many = |count: usize| {
            let shards = (0..count).map(|rank| (format!("s{rank}"), vec![rank])).collect();
            GenuineConfig { shards, ..GenuineConfig::default() }
        };
        assert_eq!(check(many(SHARDS_MAX)), Ok(()));
        let refused = check(many(SHARDS_MAX + 1)).unwrap_err();
        assert!(refused.contains("65 shards: write 1 to 64"), "{refused}");
    }

    /// A group that restarts from its logs would begin without the object.
    #[test]
    fn an_object_in_memory_and_durable_subgroups_are_refused() {
        let durable = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
        let mut config = Config::local("genuine", 1).subgroup("log", durable);
        config.storage = Some(StorageConfig::new("log"));
        let shards = GenuineConfig::default().shard("a", &[0]);
        config.genuine = Some(shards.clone());
        assert_eq!(config.check().map_err(|error| error.to_string()), Ok(()));
        config.genuine = Some(GenuineConfig { object: true, ..shards });
        let refused = config.check().unwrap_err().to_string();
        assert!(refused.contains("is in memory"), "{refused}");
    }

    /// Members that place shards differently would disagree about who leads them.
    #[test]
    fn members_have_to_agree_on_shards() {
        let config = Config::local("genuine", 2);
        let with =
            |ranks| Config { genuine: Some(GenuineConfig::default().shard("a", ranks)), ..config.clone() };
        assert_ne!(with(&[0]).plan().agreement, with(&[1]).plan().agreement);
        let mut other = with(&[0]);
        other.genuine.as_mut().expect("it is there").quorum = QuorumRule::Majority;
        assert_ne!(
            with(&[0]).plan().agreement,
            other.plan().agreement,
            "[G10] they would disagree about trims"
        );
        assert!(with(&[2]).check().unwrap_err().to_string().contains("[genuine]"));
    }
}
