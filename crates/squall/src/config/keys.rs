//! The keys of the configuration file: what the parser knows, what `squall config example` writes, and what
//! docs/configuration.md lists.

mod batching;
mod genuine;
mod retain;
mod subgroup;

pub(super) use batching::BATCHING;
pub(super) use genuine::{GENUINE, GENUINE_SHARD};
pub(super) use retain::RETAIN;
pub(super) use subgroup::SUBGROUP;

/// A key of the configuration file.
///
/// ```
/// use squall::config::keys::TABLES;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let members = TABLES[0].keys.iter().find(|key| key.name == "members").ok_or("it is there")?;
/// println!("members = {}: {}", members.takes, members.meaning);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ConfigKey {
    /// The key.
    pub name: &'static str,
    /// Which values it takes.
    pub takes: &'static str,
    /// What holds if the key is left out.
    pub default: KeyDefault,
    /// A value as the file has it, other than the default.
    pub example: &'static str,
    /// Whether all members need the same value.
    pub scope: KeyScope,
    /// What it does.
    pub meaning: &'static str,
}

/// What holds if a key is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDefault {
    /// It must not be left out.
    Required,
    /// This value, as the file would have it.
    Value(&'static str),
    /// Something that no value says.
    Words(&'static str),
}

/// Whether all members need the same value for a key. Members that differ refuse each other, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// All members have the same value.
    Group,
    /// Each member may have a value of its own.
    Member,
}

/// A table of the configuration file.
///
/// ```
/// use squall::config::keys::TABLES;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// for table in TABLES {
///     println!("[{}]: {}", table.path, table.meaning);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KeyTable {
    /// Its path, as in brackets, with `NAME` for a name of the user's; empty for the keys in front of all tables.
    pub path: &'static str,
    /// What it is about.
    pub meaning: &'static str,
    /// Its keys.
    pub keys: &'static [ConfigKey],
}

/// All tables of the configuration file, each behind the one that it is in.
pub const TABLES: [KeyTable; 10] = [
    KeyTable { path: "", meaning: "The group and this member.", keys: &GROUP },
    KeyTable { path: "timeouts", meaning: "How long this member waits.", keys: &TIMEOUTS },
    KeyTable { path: "verbs", meaning: "The RDMA device of this member.", keys: &VERBS },
    KeyTable { path: "storage", meaning: "The log of this member's durable subgroups.", keys: &STORAGE },
    KeyTable {
        path: "metrics",
        meaning: "Where this member answers those who watch over it, over HTTP: `/metrics` for Prometheus (docs/metrics.md), `/healthz`, \
                  `/readyz`, and `/trace` for what it has noticed lately.",
        keys: &METRICS,
    },
    KeyTable {
        path: "subgroups.NAME",
        meaning: "A subgroup, or the shards of a replicated object. Its name has 1 to 64 letters, digits, `-`, `_` or `.`.",
        keys: &SUBGROUP,
    },
    KeyTable {
        path: "subgroups.NAME.batching",
        meaning: "Which stages take everything that is available at once; off only to measure what that gains.",
        keys: &BATCHING,
    },
    KeyTable {
        path: "subgroups.NAME.retain",
        meaning: "What the log of a durable subgroup keeps in any case: messages for which one of these holds. The log of a replicated object is \
                  shortened behind its checkpoints; other messages are kept until the application discards them \
                  (`DeliveriesFrom::discard_log`), or with `automatic`.",
        keys: &RETAIN,
    },
    KeyTable {
        path: "genuine",
        meaning: "Shards of the group, to any of which members send messages in one order; only the members of the shards that a \
                  message is for take part.",
        keys: &GENUINE,
    },
    KeyTable {
        path: "genuine.shards.NAME",
        meaning: "A shard. Its name has 1 to 64 letters, digits, `-`, `_` or `.`. No rank is in two shards.",
        keys: &GENUINE_SHARD,
    },
];

pub(super) const GROUP: [ConfigKey; 21] = [
    ConfigKey {
        name: "cluster",
        takes: "a name of 1 to 64 letters, digits, `-`, `_` or `.`",
        default: KeyDefault::Required,
        example: "\"example\"",
        scope: KeyScope::Group,
        meaning: "The name of the cluster. Processes of different clusters refuse each other.",
    },
    ConfigKey {
        name: "secret",
        takes: "a text of at least 16 bytes",
        default: KeyDefault::Words("`secret_file` is needed"),
        example: "\"change me, at least 16 bytes\"",
        scope: KeyScope::Group,
        meaning: "What members prove to each other before anything else. `openssl rand -base64 32` makes one.",
    },
    ConfigKey {
        name: "secret_file",
        takes: "the path of a file, relative to the folder of the configuration",
        default: KeyDefault::Words("`secret` is needed"),
        example: "\"secret\"",
        scope: KeyScope::Member,
        meaning: "The file with the secret, instead of `secret`; no other user should be able to read it. The path may differ, \
                  the content must not.",
    },
    ConfigKey {
        name: "listen",
        takes: "`host:port`, `unix:@name` or `unix:/path`",
        default: KeyDefault::Words("required at members, except where a command has `--listen`"),
        example: "\"127.0.0.1:7400\"",
        scope: KeyScope::Member,
        meaning: "The address of this member. A Unix socket means that all members share memory on one host.",
    },
    ConfigKey {
        name: "advertise",
        takes: "`host:port`; port 0 is that of `listen`",
        default: KeyDefault::Words("`listen`, or the address that others see if that is `0.0.0.0` or `[::]`"),
        example: "\"node-1.example:7400\"",
        scope: KeyScope::Member,
        meaning: "Where others reach this member, if that is not where it listens (port maps, NAT). A name is resolved at each attempt.",
    },
    ConfigKey {
        name: "contacts",
        takes: "a list of addresses",
        default: KeyDefault::Words("none: this member brings the others together"),
        example: "[\"127.0.0.1:7400\", \"127.0.0.1:7401\", \"127.0.0.1:7402\"]",
        scope: KeyScope::Group,
        meaning: "Where some members listen; three or more are best. At the first start a majority of them must run, or half of \
                  them with the first one; a process that comes later joins through any of them.",
    },
    ConfigKey {
        name: "members",
        takes: "1 to 1024",
        default: KeyDefault::Required,
        example: "3",
        scope: KeyScope::Group,
        meaning: "The number of processes with which the group starts. A group of two members does not survive the loss of \
                  one, since one of two is no majority.",
    },
    ConfigKey {
        name: "rank",
        takes: "0 to 1023",
        default: KeyDefault::Words("the lowest that is free"),
        example: "1",
        scope: KeyScope::Member,
        meaning: "The rank that this member asks for. `members` and `senders` of subgroups name ranks.",
    },
    ConfigKey {
        name: "transport",
        takes: "`\"auto\"`, `\"shm\"`, `\"tcp\"` or `\"verbs\"`",
        default: KeyDefault::Words("`\"shm\"` if `listen` is a Unix socket, else `\"tcp\"`"),
        example: "\"auto\"",
        scope: KeyScope::Group,
        meaning: "How members reach each other: shared memory, TCP or RDMA (`verbs`); with `auto`, each pair takes the fastest \
                  of them that both have.",
    },
    ConfigKey {
        name: "encryption",
        takes: "`\"on\"`, `\"off\"` or `\"always\"`",
        default: KeyDefault::Value("\"on\""),
        example: "\"off\"",
        scope: KeyScope::Member,
        meaning: "Whether TCP between hosts is encrypted; `always` also encrypts within a host. Of two members that differ, the \
                  stricter one decides. Shared memory and RDMA are never encrypted.",
    },
    ConfigKey {
        name: "verbs",
        takes: "a table",
        default: KeyDefault::Words("the device, port and address that fit"),
        example: "{ device = \"mlx5_0\" }",
        scope: KeyScope::Member,
        meaning: "Which RDMA device this member uses.",
    },
    ConfigKey {
        name: "subgroups",
        takes: "a table of tables",
        default: KeyDefault::Words("one is needed, unless there is [genuine]"),
        example: "{ other = {} }",
        scope: KeyScope::Group,
        meaning: "The subgroups by name, at least one.",
    },
    ConfigKey {
        name: "genuine",
        takes: "a table",
        default: KeyDefault::Words("no shards"),
        example: "{ shards = { accounts = { members = [0, 1] } } }",
        scope: KeyScope::Group,
        meaning: "The shards to which messages are sent in one order.",
    },
    ConfigKey {
        name: "idle",
        takes: "`\"auto\"`, `\"spin\"`, `\"yield\"` or `\"park\"`",
        default: KeyDefault::Value("\"auto\""),
        example: "\"park\"",
        scope: KeyScope::Member,
        meaning: "What the polling thread does without work: it polls on and keeps its core busy (`spin`), lets others run in \
                  between (`yield`), or soon sleeps (`park`). `auto` follows what happens: it \
                  spins only where messages follow each other closely and no other program needs the processors.",
    },
    ConfigKey {
        name: "core",
        takes: "0 to 1023",
        default: KeyDefault::Words("any core"),
        example: "0",
        scope: KeyScope::Member,
        meaning: "The processor core to which the polling thread is bound.",
    },
    ConfigKey {
        name: "suspicion_after_ms",
        takes: "milliseconds: 0, or 50 to 3600000",
        default: KeyDefault::Value("5000"),
        example: "2000",
        scope: KeyScope::Group,
        meaning: "A member that is silent for this long is excluded; one whose connections break, at once. With 0 only the \
                  latter is.",
    },
    ConfigKey {
        name: "partition_safety",
        takes: "`\"majority\"` or `\"off\"`",
        default: KeyDefault::Value("\"majority\""),
        example: "\"off\"",
        scope: KeyScope::Group,
        meaning: "Which part of a view may continue: a majority, or any. With `off`, both parts of a partitioned network \
                  continue, each without the other.",
    },
    ConfigKey {
        name: "timeouts",
        takes: "a table",
        default: KeyDefault::Words("see [timeouts]"),
        example: "{ join = \"10s\" }",
        scope: KeyScope::Member,
        meaning: "How long this member waits.",
    },
    ConfigKey {
        name: "storage",
        takes: "a table",
        default: KeyDefault::Words("none; durable subgroups need one"),
        example: "{ path = \"/var/lib/squall\" }",
        scope: KeyScope::Member,
        meaning: "Where this member keeps the log of its durable subgroups.",
    },
    ConfigKey {
        name: "metrics",
        takes: "a table",
        default: KeyDefault::Words("none"),
        example: "{ listen = \"127.0.0.1:9464\" }",
        scope: KeyScope::Member,
        meaning: "Where this member's metrics can be read.",
    },
    ConfigKey {
        name: "flight_record",
        takes: "the path of a file, relative to the folder of the configuration",
        default: KeyDefault::Words("none"),
        example: "\"/var/lib/squall/flight.json\"",
        scope: KeyScope::Member,
        meaning: "Where this member writes what it has noticed lately (views, suspicions, stalls, and what has led to them) when its \
                  group ends here, also if its polling thread panics. It is a trace for ui.perfetto.dev; the one before it becomes \
                  `FILE.old`. Several members on one host need different files: see `squall node --trace`.",
    },
];

pub(super) const TIMEOUTS: [ConfigKey; 2] = [
    ConfigKey {
        name: "join",
        takes: "a time with its unit, like `\"500ms\"`, `\"10s\"`, `\"2m\"` or `\"1h\"`",
        default: KeyDefault::Value("\"60s\""),
        example: "\"10s\"",
        scope: KeyScope::Member,
        meaning: "For the first members to come together, or for this process to join the running group.",
    },
    ConfigKey {
        name: "handshake",
        takes: "a time with its unit",
        default: KeyDefault::Value("\"2s\""),
        example: "\"5s\"",
        scope: KeyScope::Member,
        meaning: "For the other end of a connection to prove the secret.",
    },
];

pub(super) const VERBS: [ConfigKey; 3] = [
    ConfigKey {
        name: "device",
        takes: "a name, as `squall doctor` prints it",
        default: KeyDefault::Words(
            "one whose network has the `listen` address, else the first that can be used",
        ),
        example: "\"mlx5_0\"",
        scope: KeyScope::Member,
        meaning: "The device.",
    },
    ConfigKey {
        name: "port",
        takes: "1 to 255",
        default: KeyDefault::Words("the first active one"),
        example: "1",
        scope: KeyScope::Member,
        meaning: "The port of the device.",
    },
    ConfigKey {
        name: "gid_index",
        takes: "0 to 255",
        default: KeyDefault::Words("one of RoCE v2, if there is any"),
        example: "3",
        scope: KeyScope::Member,
        meaning: "Which of the port's addresses is used.",
    },
];

pub(super) const STORAGE: [ConfigKey; 6] = [
    ConfigKey {
        name: "path",
        takes: "the path of a folder, relative to the folder of the configuration",
        default: KeyDefault::Required,
        example: "\"/var/lib/squall\"",
        scope: KeyScope::Member,
        meaning: "The folder for the logs of the members on this host. Each has a folder of its own in it, named by its `rank`, or \
                  by its `listen` address if it has none.",
    },
    ConfigKey {
        name: "folder",
        takes: "a name of letters, digits, `-`, `_` and `.`",
        default: KeyDefault::Words("`rank-N`, or the `listen` address, such as `192.0.2.1_7400`"),
        example: "\"192.0.2.1_7400\"",
        scope: KeyScope::Member,
        meaning: "The name of this member's folder in `path`. A folder belongs to the name with which it was made: if the `rank` or the address \
                  of a member changes, write the name that its folder has.",
    },
    ConfigKey {
        name: "timeout",
        takes: "a time with its unit, at least 100ms",
        default: KeyDefault::Value("\"10s\""),
        example: "\"30s\"",
        scope: KeyScope::Member,
        meaning: "How long the disk may take for one operation, and a second more for each MiB of it. Then this member leaves the \
                  group, so that the others need not wait for it.",
    },
    ConfigKey {
        name: "direct",
        takes: "`true` or `false`",
        default: KeyDefault::Value("true"),
        example: "false",
        scope: KeyScope::Member,
        meaning: "Whether writes go past the page cache (`O_DIRECT`) where the file system allows that. Otherwise each one is \
                  flushed by `fdatasync`, which takes about twice as long and is as safe.",
    },
    ConfigKey {
        name: "begin",
        takes: "`\"auto\"`, `\"new\"` or `\"never\"`",
        default: KeyDefault::Value("\"auto\""),
        example: "\"never\"",
        scope: KeyScope::Member,
        meaning: "Whether this member may begin a new group with the others if its folder has no log: `auto`, unless `path` has folders of \
                  this cluster that no running process uses, since then addresses or ranks have changed; `new`, also then; `never`, for members \
                  whose logs must be there, such as on a volume that may not be mounted. A member that may not joins the group if that runs or \
                  comes back from its logs, and is refused otherwise.",
    },
    ConfigKey {
        name: "removed",
        takes: "a list of names of subgroups",
        default: KeyDefault::Value("[]"),
        example: "[\"orders\"]",
        scope: KeyScope::Member,
        meaning: "Durable subgroups that are given up, with all that was sent in them. A member whose log has a durable subgroup that the \
                  configuration does not have is refused unless it is named here. A subgroup of that name that is added again later begins with \
                  nothing. When the group runs without them, the list can be emptied.",
    },
];

pub(super) const METRICS: [ConfigKey; 1] = [ConfigKey {
    name: "listen",
    takes: "`host:port`",
    default: KeyDefault::Words("none: there are no metrics"),
    example: "\"127.0.0.1:9464\"",
    scope: KeyScope::Member,
    meaning: "The address. Anyone who can reach it can read the metrics, so it should be a loopback address or one in a private \
              network. Several members on one host need different ports: see `squall node --metrics`.",
}];
