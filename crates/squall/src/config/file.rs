//! The configuration file, key by key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use squall_fabric::window::RECORDS_MAX;
use squall_protocols::membership::{MEMBERS_MAX, PartitionSafety};
use squall_protocols::multicast::{Batching, Carrier, DeliveryMode};
use squall_transports::bootstrap::{Address, Encryption, Secret};
use squall_transports::log;
use squall_transports::verbs::VerbsSettings;

use super::error::ConfigError;
use super::genuine;
use super::keys;
use super::metrics;
use super::storage::{NewGroup, StorageConfig, is_folder_name};
use super::subgroup::{
    Durability, Ranks, Retention, SHARDS_MAX, SlowConsumer, SubgroupConfig, WINDOW_BYTES_MAX,
};
use super::table::{ConfigTable, ConfigText, ConfigValue};
use super::{Config, IdlePolicy, JOIN_TIMEOUT, PROOF_TIMEOUT, SUSPICION_AFTER, Transport};

/// Reads and checks a configuration; the settings in `own`, which are specific to this member, replace those of the
/// file.
pub(super) fn read(source: ConfigText<'_>, own: OwnSettings) -> Result<Config, ConfigError> {
    let parsed = source.parse()?;
    let root = ConfigTable::root(source, parsed.get_ref());
    let values = root.values(&keys::GROUP)?;
    let (listen, rank) = (values.get("listen"), values.get("rank"));

    let cluster =
        values.get("cluster").ok_or_else(|| root.missing("cluster", "write the same name at all members"))?;
    let secret = read_secret(&root, values.get("secret").as_ref(), values.get("secret_file").as_ref())?;
    let place = rank.clone().or_else(|| listen.clone()).unwrap_or_else(|| cluster.clone());
    let listen = match own.listen {
        Some(listen) => listen,
        None if own.is_client && listen.is_none() => {
            read_first_contact(&root, values.get("contacts").as_ref())?
        }
        None => read_listen(&root, listen.as_ref())?,
    };
    let advertise = values.get("advertise").map(|value| read_advertise(&value, &listen)).transpose()?;
    let transport = read_transport(values.get("transport").as_ref(), &listen)?;
    let contacts = values.get("contacts").map_or(Ok(Vec::new()), |list| read_contacts(&list, &listen))?;
    let (members, rank) = read_members(&root, values.get("members").as_ref(), rank.as_ref())?;
    let rank = own.rank.or(rank);
    let (timeout, handshake_timeout) = read_timeouts(values.get("timeouts").as_ref())?;
    let (idle, core) = read_polling(values.get("idle").as_ref(), values.get("core").as_ref())?;
    let (suspicion_after, partition_safety) =
        read_membership(values.get("suspicion_after_ms").as_ref(), values.get("partition_safety").as_ref())?;
    let storage = read_storage(&root, values.get("storage").as_ref())?;
    let durability = Durability::new(storage.is_some(), partition_safety, rank, &listen);
    let metrics = metrics::read(values.get("metrics").as_ref())?;
    let genuine = genuine::read(values.get("genuine").as_ref(), members)?;
    let subgroups = match values.get("subgroups") {
        None if genuine.is_some() || own.is_client || own.is_domain => BTreeMap::new(),
        value => read_subgroups(&root, value.as_ref(), members, &durability)?,
    };
    let config = Config {
        cluster: cluster.name()?,
        secret,
        listen,
        advertise,
        contacts,
        members,
        rank,
        transport,
        encryption: values
            .get("encryption")
            .map_or(Ok(Encryption::On), |value| value.choice(&ENCRYPTIONS))?,
        streams: Transport::Auto,
        verbs: read_verbs(values.get("verbs").as_ref())?,
        subgroups,
        genuine,
        idle,
        core,
        suspicion_after,
        partition_safety,
        timeout,
        handshake_timeout,
        storage,
        metrics,
        flight_record: values.get("flight_record").map(|file| read_path(&root, &file)).transpose()?,
    };
    checked(config, &place)
}

/// The settings that differ from member to member.
#[derive(Default)]
pub(super) struct OwnSettings {
    pub(super) listen: Option<Address>,
    pub(super) rank: Option<usize>,
    /// The process is no member, so it needs no address of its own.
    pub(super) is_client: bool,
    /// The process is a member of a domain, whose subgroups are topics.
    pub(super) is_domain: bool,
}

fn read_listen(root: &ConfigTable<'_>, listen: Option<&ConfigValue<'_>>) -> Result<Address, ConfigError> {
    let listen = listen.ok_or_else(|| root.missing("listen", LISTEN_ADVICE))?;
    listen.parse()
}

fn read_advertise(value: &ConfigValue<'_>, listen: &Address) -> Result<Address, ConfigError> {
    let advertise: Address = value.parse()?;
    let fault = match &advertise {
        _ if listen.is_unix() => {
            "`listen` is a Unix socket, which has no other address: leave `advertise` out"
        }
        Address::Tcp { host, .. } if ["0.0.0.0", "::"].contains(&host.as_str()) => {
            "others cannot connect to it: write the name or the address at which they reach this member"
        }
        Address::Tcp { .. } => return Ok(advertise),
        _ => "write `HOST:PORT`",
    };
    Err(value.conflict(format!("`advertise = \"{advertise}\"`: {fault}")))
}

/// Returns the address that stands for `listen` at a client: it shows how members are reached.
fn read_first_contact(
    root: &ConfigTable<'_>,
    contacts: Option<&ConfigValue<'_>>,
) -> Result<Address, ConfigError> {
    let contacts = contacts.map_or(Ok(Vec::new()), |contacts| contacts.list())?;
    let missing = || root.missing("contacts", "write where members listen");
    contacts.first().ok_or_else(missing)?.parse()
}

fn checked(config: Config, place: &ConfigValue<'_>) -> Result<Config, ConfigError> {
    config.fault().map_or(Ok(()), |message| Err(place.conflict(message)))?;
    Ok(config)
}

const LISTEN_ADVICE: &str = "write `host:port` (tcp) or `unix:@name` (shm), or give --listen on the command line (`Config::load_for` in a program)";

const CORE_MAX: usize = 1023;

/// 0 disables suspicion of silent members.
const SUSPICION_MS: std::ops::RangeInclusive<usize> = 0..=3_600_000;
/// Where processors are shared, a member commonly does not run for this long, which is no reason to exclude it.
const SUSPICION_MS_MIN: u64 = 50;

const ENCRYPTIONS: [(&str, Encryption); 3] =
    [("on", Encryption::On), ("off", Encryption::Off), ("always", Encryption::Always)];

const SAFETIES: [(&str, PartitionSafety); 2] =
    [("majority", PartitionSafety::Majority), ("off", PartitionSafety::Off)];

const IDLE_POLICIES: [(&str, IdlePolicy); 4] = [
    ("auto", IdlePolicy::Auto),
    ("spin", IdlePolicy::Spin),
    ("yield", IdlePolicy::Yield),
    ("park", IdlePolicy::Park),
];

fn read_members(
    root: &ConfigTable<'_>,
    members: Option<&ConfigValue<'_>>,
    rank: Option<&ConfigValue<'_>>,
) -> Result<(usize, Option<usize>), ConfigError> {
    let members = members.ok_or_else(|| root.missing("members", "write the number of processes"))?;
    let members = members.count(1..=MEMBERS_MAX)?;
    Ok((members, rank.map(|rank| rank.count(0..=MEMBERS_MAX - 1)).transpose()?))
}

fn read_polling(
    idle: Option<&ConfigValue<'_>>,
    core: Option<&ConfigValue<'_>>,
) -> Result<(IdlePolicy, Option<usize>), ConfigError> {
    let idle = idle.map_or(Ok(IdlePolicy::Auto), |idle| idle.choice(&IDLE_POLICIES))?;
    Ok((idle, core.map(|core| core.count(0..=CORE_MAX)).transpose()?))
}

fn read_membership(
    suspicion_after_ms: Option<&ConfigValue<'_>>,
    partition_safety: Option<&ConfigValue<'_>>,
) -> Result<(Option<Duration>, PartitionSafety), ConfigError> {
    let suspicion_after = match suspicion_after_ms {
        None => Some(SUSPICION_AFTER),
        Some(value) => match value.count(SUSPICION_MS)? as u64 {
            0 => None,
            ms if ms < SUSPICION_MS_MIN => {
                let expected = "write 0 to suspect no silent member, or at least {}: below that, healthy members would be excluded";
                return Err(value.unexpected(expected.replace("{}", &SUSPICION_MS_MIN.to_string())));
            }
            ms => Some(Duration::from_millis(ms)),
        },
    };
    let safety = partition_safety.map_or(Ok(PartitionSafety::Majority), |safety| safety.choice(&SAFETIES))?;
    Ok((suspicion_after, safety))
}

/// Returns a path, which is relative to the folder of the configuration.
fn read_path(root: &ConfigTable<'_>, value: &ConfigValue<'_>) -> Result<PathBuf, ConfigError> {
    let beside = root.source.file.and_then(Path::parent).unwrap_or(Path::new(""));
    Ok(beside.join(value.text()?))
}

fn read_secret(
    root: &ConfigTable<'_>,
    text: Option<&ConfigValue<'_>>,
    file: Option<&ConfigValue<'_>>,
) -> Result<Secret, ConfigError> {
    match (text, file) {
        (Some(_), Some(file)) => Err(file.conflict("`secret` and `secret_file` are both set: remove one")),
        (Some(text), None) => {
            Secret::new(text.text()?).map_err(|error| text.unexpected_secret(error.to_string()))
        }
        (None, Some(file)) => {
            let path = read_path(root, file)?;
            if let Some(warning) = exposed_secret(&path) {
                log::warn!("{warning}");
            }
            let bytes = std::fs::read(&path).map_err(|cause| ConfigError::Read { file: path, cause })?;
            // The line break with which an editor or `base64` ends a file is not part of the secret.
            Secret::new(bytes.trim_ascii_end()).map_err(|error| file.unexpected(error.to_string()))
        }
        (None, None) => {
            Err(root.missing("secret", "write `secret_file = \"FILE\"`, the same content at all members"))
        }
    }
}

/// Returns a warning if other users of this host can read or write the file with the secret: they could become
/// members.
///
/// ```
/// use std::os::unix::fs::PermissionsExt;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = std::env::temp_dir().join(format!("doc-secret-{}", std::process::id()));
/// std::fs::write(&file, "at least sixteen bytes")?;
/// std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
/// assert_eq!(squall::config::exposed_secret(&file), None);
/// # std::fs::remove_file(file)?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn exposed_secret(file: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(file).ok()?.permissions().mode();
    let file = file.display();
    (mode & 0o077 != 0)
        .then(|| format!("other users can read or write the secret in {file}: chmod 600 {file}"))
}

fn read_transport(value: Option<&ConfigValue<'_>>, listen: &Address) -> Result<Transport, ConfigError> {
    let Some(value) = value else {
        return Ok(if listen.is_unix() { Transport::Shm } else { Transport::Tcp });
    };
    let chosen = match value.choice(&TRANSPORTS)? {
        Transport::Auto if listen.is_unix() => Transport::Shm,
        chosen => chosen,
    };
    if chosen.needs_unix_socket() == listen.is_unix() {
        return Ok(chosen);
    }
    let advice = match chosen {
        Transport::Shm => "shared memory needs a Unix socket: write `listen = \"unix:@NAME\"`",
        Transport::Tcp => "tcp needs a host and a port: write `listen = \"HOST:PORT\"`",
        Transport::Verbs => "RDMA connections are set up over TCP: write `listen = \"HOST:PORT\"`",
        Transport::Auto => unreachable!("`auto` accepts all addresses"),
    };
    Err(value.conflict(format!("`transport` and `listen = \"{listen}\"` do not go together: {advice}")))
}

const TRANSPORTS: [(&str, Transport); 4] = [
    ("auto", Transport::Auto),
    ("shm", Transport::Shm),
    ("tcp", Transport::Tcp),
    ("verbs", Transport::Verbs),
];

fn read_verbs(value: Option<&ConfigValue<'_>>) -> Result<VerbsSettings, ConfigError> {
    let Some(value) = value else { return Ok(VerbsSettings::default()) };
    let table = value.table()?;
    let values = table.values(&keys::VERBS)?;
    let small = |value: ConfigValue<'_>, least| {
        let number = value.count(least..=usize::from(u8::MAX))?;
        Ok::<_, ConfigError>(u8::try_from(number).expect("within the range"))
    };
    Ok(VerbsSettings {
        device: values.get("device").map(|device| device.text().map(str::to_owned)).transpose()?,
        port: values.get("port").map(|port| small(port, 1)).transpose()?,
        gid_index: values.get("gid_index").map(|index| small(index, 0)).transpose()?,
        address: None,
    })
}

fn read_contacts(list: &ConfigValue<'_>, listen: &Address) -> Result<Vec<Address>, ConfigError> {
    let read = |value: &ConfigValue<'_>| {
        let contact = value.parse::<Address>()?;
        if contact.is_unix() == listen.is_unix() {
            return Ok(contact);
        }
        Err(value.conflict(format!("the contact {contact} is of another kind than `listen = \"{listen}\"`")))
    };
    list.list()?.iter().map(read).collect()
}

fn read_timeouts(value: Option<&ConfigValue<'_>>) -> Result<(Duration, Duration), ConfigError> {
    let Some(value) = value else { return Ok((JOIN_TIMEOUT, PROOF_TIMEOUT)) };
    let table = value.table()?;
    let values = table.values(&keys::TIMEOUTS)?;
    let join = values.get("join").map_or(Ok(JOIN_TIMEOUT), |join| join.duration())?;
    let handshake = values.get("handshake").map_or(Ok(PROOF_TIMEOUT), |handshake| handshake.duration())?;
    Ok((join, handshake))
}

fn read_storage(
    root: &ConfigTable<'_>,
    value: Option<&ConfigValue<'_>>,
) -> Result<Option<StorageConfig>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let table = value.table()?;
    let values = table.values(&keys::STORAGE)?;
    let path =
        values.get("path").ok_or_else(|| table.missing("path", "write the path of a folder for the logs"))?;
    if path.text()?.is_empty() {
        return Err(path.unexpected("write the path of a folder for the logs"));
    }
    let beside = root.source.file.and_then(Path::parent).unwrap_or(Path::new(""));
    let mut storage = StorageConfig::new(beside.join(path.text()?));
    if let Some(timeout) = values.get("timeout") {
        storage.timeout = timeout.duration()?;
        if storage.timeout < Duration::from_millis(100) {
            return Err(timeout.unexpected("write a time of at least 100ms"));
        }
    }
    if let Some(direct) = values.get("direct") {
        storage.direct = direct.flag()?;
    }
    if let Some(folder) = values.get("folder") {
        let name = folder.text()?;
        if !is_folder_name(name) {
            return Err(
                folder.unexpected("write a name of letters, digits, `-`, `_` and `.`, without a path")
            );
        }
        storage.folder = Some(name.into());
    }
    if let Some(begin) = values.get("begin") {
        storage.begin = match begin.text()? {
            "auto" => NewGroup::Auto,
            "new" => NewGroup::New,
            "never" => NewGroup::Never,
            _ => return Err(begin.unexpected("write \"auto\", \"new\" or \"never\"")),
        };
    }
    if let Some(removed) = values.get("removed") {
        let names = removed.list()?;
        let names = names.iter().map(|name| name.text().map(str::to_owned));
        storage.removed = names.collect::<Result<_, _>>()?;
    }
    Ok(Some(storage))
}

fn read_subgroups(
    root: &ConfigTable<'_>,
    value: Option<&ConfigValue<'_>>,
    members: usize,
    durability: &Durability,
) -> Result<BTreeMap<String, SubgroupConfig>, ConfigError> {
    let value = value.ok_or_else(|| {
        root.missing(
            "subgroups",
            "add at least one table [subgroups.NAME] (only the domains of `squall dds` need none)",
        )
    })?;
    let tables = value.table()?.tables()?;
    if tables.is_empty() && root.source.lenient.is_none() {
        return Err(value.unexpected("add at least one table [subgroups.NAME]"));
    }
    let read = |(name, table): (String, ConfigTable<'_>)| {
        let subgroup = read_subgroup(&table)?;
        match subgroup.fault(members, durability) {
            Some(fault) => Err(table.conflict(&fault)),
            None => Ok((name, subgroup)),
        }
    };
    tables.into_iter().map(read).collect()
}

fn read_subgroup(table: &ConfigTable<'_>) -> Result<SubgroupConfig, ConfigError> {
    let values = table.values(&keys::SUBGROUP)?;
    let usual = SubgroupConfig::default();
    let message_max = values
        .get("message_max")
        .map_or(Ok(usual.message_max), |value| value.bytes(1..=u32::MAX as usize))?;
    Ok(SubgroupConfig {
        members: values.get("members").map_or(Ok(usual.members), |value| read_ranks(&value))?,
        senders: values.get("senders").map_or(Ok(usual.senders), |value| read_ranks(&value))?,
        mode: values.get("mode").map_or(Ok(usual.mode), |value| value.choice(&MODES))?,
        window: values.get("window").map_or(Ok(usual.window), |value| value.count(1..=RECORDS_MAX))?,
        message_max,
        // The default window has space for a few of the longest messages, however long they are.
        window_bytes: values
            .get("window_bytes")
            .map_or(Ok(usual.window_bytes.max(4 * message_max)), |value| value.bytes(1..=WINDOW_BYTES_MAX))?,
        large_max: values.get("large_max").map(|value| value.bytes(1..=u32::MAX as usize)).transpose()?,
        large_window_bytes: values
            .get("large_window_bytes")
            .map(|value| value.bytes(1..=WINDOW_BYTES_MAX))
            .transpose()?,
        large_carrier: values.get("large_carrier").map(|value| value.choice(&CARRIERS)).transpose()?,
        batching: values.get("batching").map_or(Ok(usual.batching), |value| read_batching(&value))?,
        null_sends: values.get("null_sends").map_or(Ok(usual.null_sends), |value| value.flag())?,
        express: values.get("express").map(|value| value.flag()).transpose()?,
        slow_consumer: values
            .get("slow_consumer")
            .map_or(Ok(usual.slow_consumer), |value| value.choice(&SLOW_CONSUMERS))?,
        slow_after: values.get("slow_after_ms").map_or(Ok(usual.slow_after), |value| read_millis(&value))?,
        shards: values.get("shards").map_or(Ok(usual.shards), |value| value.count(1..=SHARDS_MAX))?,
        replicas: values.get("replicas").map_or(Ok(usual.replicas), |value| value.count(0..=MEMBERS_MAX))?,
        checkpoint_bytes: values
            .get("checkpoint_bytes")
            .map_or(Ok(usual.checkpoint_bytes), |value| value.bytes(1 << 10..=1 << 40))?,
        retain: values.get("retain").map(|value| read_retention(&value)).transpose()?.flatten(),
        shard: 0,
    })
}

const CARRIERS: [(&str, Carrier); 2] = [("pushed", Carrier::Pushed), ("relayed", Carrier::Relayed)];

const SLOW_CONSUMERS: [(&str, SlowConsumer); 2] =
    [("wait", SlowConsumer::Wait), ("exclude", SlowConsumer::Exclude)];

fn read_millis(value: &ConfigValue<'_>) -> Result<Duration, ConfigError> {
    Ok(Duration::from_millis(value.count(1..=MILLIS_MAX)? as u64))
}

/// An hour.
const MILLIS_MAX: usize = 3_600_000;

const MODES: [(&str, DeliveryMode); 4] = [
    ("atomic", DeliveryMode::Atomic),
    ("durable", DeliveryMode::Durable),
    ("unordered", DeliveryMode::Unordered),
    ("raw", DeliveryMode::Raw),
];

fn read_batching(value: &ConfigValue<'_>) -> Result<Batching, ConfigError> {
    let table = value.table()?;
    let values = table.values(&keys::BATCHING)?;
    let flag = |key| values.get(key).map_or(Ok(true), |value| value.flag());
    Ok(Batching { send: flag("send")?, receive: flag("receive")?, delivery: flag("delivery")? })
}

/// None if it says nothing else than the default.
fn read_retention(value: &ConfigValue<'_>) -> Result<Option<Retention>, ConfigError> {
    let table = value.table()?;
    let values = table.values(&keys::RETAIN)?;
    let count = |value: ConfigValue<'_>| value.count(0..=usize::MAX >> 1).map(|count| count as u64);
    let retention = Retention {
        time: values.get("time").map_or(Ok(Duration::ZERO), |value| value.duration())?,
        bytes: values
            .get("bytes")
            .map_or(Ok(0), |value| value.bytes(0..=usize::MAX >> 1).map(|bytes| bytes as u64))?,
        versions: values.get("versions").map_or(Ok(0), count)?,
        automatic: values.get("automatic").map_or(Ok(false), |value| value.flag())?,
    };
    Ok((retention != Retention::default()).then_some(retention))
}

/// `"all"` or a list of ranks.
fn read_ranks(value: &ConfigValue<'_>) -> Result<Ranks, ConfigError> {
    let expected = || value.unexpected("write \"all\" or a list of ranks, like [0, 2]");
    if let Ok(text) = value.text() {
        return if text == "all" { Ok(Ranks::All) } else { Err(expected()) };
    }
    let ranks = value.list().map_err(|_| expected())?;
    let ranks: Result<Vec<_>, _> = ranks.iter().map(|rank| rank.count(0..=MEMBERS_MAX - 1)).collect();
    Ok(Ranks::These(ranks?))
}
