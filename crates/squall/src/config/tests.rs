//! What the configuration accepts, and the errors for what it does not accept.

use squall_protocols::multicast::SubgroupSettings;

use super::*;

mod keys;

/// A configuration that can be used, in parts that a test can replace.
const GOOD: &str = r#"
cluster = "kitchen"
secret = "at least sixteen bytes"
listen = "127.0.0.1:7000"
contacts = ["127.0.0.1:7000"]
members = 3

[subgroups.orders]
mode = "atomic"
"#;

/// `GOOD` with the line that begins with `key` replaced.
fn with(key: &str, line: &str) -> String {
    let is_key = |candidate: &str| candidate.split([' ', '=']).next() == Some(key);
    assert!(GOOD.lines().any(is_key), "{key} is in the good configuration");
    GOOD.lines().map(|old| if is_key(old) { line } else { old }).collect::<Vec<_>>().join("\n")
}

fn error_of(text: &str) -> String {
    Config::parse(text).expect_err(text).to_string()
}

#[test]
fn keys_that_are_left_out_have_default_values() {
    let config = Config::parse(GOOD).unwrap();
    assert_eq!((config.cluster.as_str(), config.members, config.rank), ("kitchen", 3, None));
    assert_eq!(config.transport, Transport::Tcp);
    assert_eq!((config.idle, config.core), (IdlePolicy::Auto, None));
    assert_eq!((config.timeout, config.handshake_timeout), (JOIN_TIMEOUT, PROOF_TIMEOUT));
    assert_eq!(config.subgroups["orders"], SubgroupConfig::default());
    assert_eq!(config.subgroups["orders"].settings(3), SubgroupSettings::new(3, 10 << 10));
}

#[test]
fn auto_depends_on_the_kind_of_address() {
    let auto = "transport = \"auto\"";
    let transport = |text: &str| Config::parse(text).unwrap().transport;
    assert_eq!(transport(&with("members", &format!("members = 3\n{auto}"))), Transport::Auto);
    let unix = GOOD.replace("127.0.0.1:7000", "unix:@kitchen");
    assert_eq!(transport(&unix.replace("members = 3", &format!("members = 3\n{auto}"))), Transport::Shm);
}

#[test]
fn an_rdma_device_can_be_named() {
    let chosen = |verbs: &str| {
        let config = Config::parse(&with("members", &format!("members = 3\ntransport = \"verbs\"\n{verbs}")));
        config.map(|config| (config.transport, config.verbs)).map_err(|error| error.to_string())
    };
    assert_eq!(chosen(""), Ok((Transport::Verbs, VerbsSettings::default())));
    let settings =
        VerbsSettings { device: Some("mlx5_0".into()), port: Some(1), gid_index: Some(3), address: None };
    let table = "verbs = { device = \"mlx5_0\", port = 1, gid_index = 3 }";
    assert_eq!(chosen(table), Ok((Transport::Verbs, settings)));
    let error = chosen("verbs = { port = 0 }").unwrap_err();
    assert_eq!(error, "line 8: `port = 0`: write a number from 1 to 255");
    let error = chosen("verbs = { divice = \"mlx5_0\" }").unwrap_err();
    assert!(error.contains("did you mean `device`"), "{error}");
}

/// Encryption is off only where the configuration says so.
#[test]
fn encryption_is_on_unless_it_is_switched_off() {
    let chosen = |line: &str| {
        let config = Config::parse(&with("members", &format!("members = 3\n{line}")));
        config.map(|config| config.plan().encryption).map_err(|error| error.to_string())
    };
    assert_eq!(chosen(""), Ok(Encryption::On));
    assert_eq!(chosen("encryption = \"on\""), Ok(Encryption::On));
    assert_eq!(chosen("encryption = \"off\""), Ok(Encryption::Off));
    assert_eq!(chosen("encryption = \"always\""), Ok(Encryption::Always));
    assert!(chosen("encryption = \"of\"").unwrap_err().contains("`encryption = \"of\"`"));
}

#[test]
fn every_key_is_read() {
    let text = r#"
        cluster = "kitchen"
        secret = "at least sixteen bytes"
        listen = "unix:@b"
        contacts = ["unix:@a", "unix:@b"]
        members = 4
        rank = 2
        transport = "shm"
        idle = "park"
        core = 1
        suspicion_after_ms = 700
        partition_safety = "off"
        timeouts = { join = "5s", handshake = "300ms" }

        [subgroups.log]
        members = [0, 2, 3]
        senders = [2, 3]
        mode = "unordered"
        window = 100
        message_max = "10KB"
        window_bytes = "1MiB"
        large_max = "64MiB"
        large_window_bytes = "100MiB"
        large_carrier = "relayed"
        batching = { send = false, delivery = false }
        null_sends = false
        express = true
        slow_consumer = "exclude"
        slow_after_ms = 2500
    "#;
    let config = Config::parse(text).unwrap();
    assert_eq!(config.contacts, ["unix:@a".parse().unwrap(), "unix:@b".parse().unwrap()]);
    assert_eq!((config.rank, config.transport), (Some(2), Transport::Shm));
    assert_eq!((config.idle, config.core), (IdlePolicy::Park, Some(1)));
    assert_eq!(config.suspicion_after, Some(Duration::from_millis(700)));
    assert_eq!(config.partition_safety, PartitionSafety::Off);
    assert_eq!(config.timeout, Duration::from_secs(5));
    assert_eq!(config.handshake_timeout, Duration::from_millis(300));
    let expected = SubgroupConfig {
        members: Ranks::These(vec![0, 2, 3]),
        senders: Ranks::These(vec![2, 3]),
        mode: DeliveryMode::Unordered,
        window: 100,
        message_max: 10_000,
        window_bytes: 1 << 20,
        large_max: Some(64 << 20),
        large_window_bytes: Some(100 << 20),
        large_carrier: Some(Carrier::Relayed),
        batching: Batching { send: false, receive: true, delivery: false },
        null_sends: false,
        express: Some(true),
        slow_consumer: SlowConsumer::Exclude,
        slow_after: Duration::from_millis(2500),
        ..SubgroupConfig::default()
    };
    assert_eq!(config.subgroups["log"], expected);
    assert_eq!(expected.settings(4).senders, [1, 2], "senders are named by their rank in the subgroup");
}

/// One entry stands for all shards; each becomes a subgroup of its own with the same settings.
#[test]
fn shards_become_subgroups() {
    let config = Config::parse(&with("mode", "shards = 3\nreplicas = 2")).unwrap();
    let orders = config.subgroups["orders"].clone();
    assert_eq!((orders.shards, orders.replicas), (3, 2));
    let config = config.with_shards();
    let shard = |shard: u32| SubgroupConfig { shards: 1, shard, ..orders.clone() };
    for number in 0..3 {
        assert_eq!(config.subgroups[&format!("orders/{number}")], shard(number));
    }
    assert!(!config.subgroups.contains_key("orders"));
    let fault = |key: &str| Config::parse(&with("mode", key)).unwrap_err().to_string();
    assert!(fault("replicas = 60").contains("above the number of its members"), "{}", fault("replicas = 60"));
    assert!(fault("shards = 0").contains("1 to 1024"), "{}", fault("shards = 0"));
    assert!(fault("shards = 2\nsenders = [0]").contains("all members of a shard send"));
}

/// A consumer that pauses briefly has not stopped.
#[test]
fn a_consumer_is_not_excluded_for_a_short_pause() {
    let orders =
        |key: &str| Config::parse(&with("mode", key)).map(|config| config.subgroups["orders"].clone());
    let usual = orders("window = 7").unwrap();
    assert_eq!((usual.slow_consumer, usual.settings(2).slow_after), (SlowConsumer::Wait, None));
    let exclude = orders("slow_consumer = \"exclude\"").unwrap();
    assert_eq!(exclude.settings(2).slow_after, Some(Duration::from_secs(5)));
    let fault = |key: &str| orders(key).unwrap_err().to_string();
    assert!(fault("slow_after_ms = 99").contains("write at least 100"), "{}", fault("slow_after_ms = 99"));
    assert!(fault("slow_consumer = \"drop\"").contains("exclude"), "{}", fault("slow_consumer = \"drop\""));
}

#[test]
fn long_messages_enlarge_the_default_window() {
    let config = Config::parse(&with("mode", "message_max = \"16MiB\"")).unwrap();
    assert_eq!(config.subgroups["orders"].window_bytes, 64 << 20);
}

/// Asserts that each text is refused with exactly the given error.
fn assert_errors(cases: &[(String, &str)]) {
    for (text, expected) in cases {
        assert_eq!(error_of(text), *expected);
    }
}

#[test]
fn a_wrong_key_is_named_with_its_line_and_the_right_one() {
    assert_errors(&[
        (
            with("cluster", "clustr = \"kitchen\""),
            "line 2: unknown key `clustr` in the configuration; did you mean `cluster`?",
        ),
        (
            with("mode", "windw = 3"),
            "line 9: unknown key `windw` in [subgroups.orders]; did you mean `window`?",
        ),
        (
            with("mode", "batching = { sned = false }"),
            "line 9: unknown key `sned` in [subgroups.orders.batching]; did you mean `send`?",
        ),
        (
            with("mode", "batching = { compression = true }"),
            "line 9: unknown key `compression` in [subgroups.orders.batching]; known keys are send, receive, delivery",
        ),
        (
            with("members", ""),
            "the configuration: `members` is missing in the configuration: write the number of processes",
        ),
        (
            with("secret", ""),
            "the configuration: `secret` is missing in the configuration: write `secret_file = \"FILE\"`, the same content at all members",
        ),
        (
            with("secret", "secret = \"at least sixteen bytes\"\nsecret_file = \"f\""),
            "line 4: `secret` and `secret_file` are both set: remove one",
        ),
        (
            with("[subgroups.orders]", "subgroups = 1").replace("mode = \"atomic\"", ""),
            "line 8: `subgroups = 1`: make it a table: [subgroups]",
        ),
        (
            with("[subgroups.orders]", "[subgroups.\"a b\"]"),
            "line 8: [subgroups.\"a b\"]: choose a name of 1 to 64 letters, digits, `-`, `_` or `.`",
        ),
        (
            with("[subgroups.orders]", "[subgroups]").replace("mode = \"atomic\"", ""),
            "line 8: [subgroups]: add at least one table [subgroups.NAME]",
        ),
    ]);
}

#[test]
fn a_wrong_value_is_named_with_its_line_and_what_to_write() {
    assert_errors(&[
        (
            with("secret", "secret = \"short\""),
            "line 3: `secret = …`: the secret has 5 bytes and needs at least 16: make one with `head -c 32 /dev/urandom | base64`",
        ),
        (
            with("cluster", "cluster = \"two words\""),
            "line 2: `cluster = \"two words\"`: choose a name of 1 to 64 letters, digits, `-`, `_` or `.`",
        ),
        (
            with("listen", "listen = \"7000\""),
            "line 4: `listen = \"7000\"`: `7000` is not an address: write `host:port`, `unix:@name` or `unix:/absolute/path`",
        ),
        (
            with("contacts", "contacts = [\"unix:@a\"]"),
            "line 5: the contact unix:@a is of another kind than `listen = \"127.0.0.1:7000\"`",
        ),
        (
            with("contacts", "contacts = \"127.0.0.1:7000\""),
            "line 5: `contacts = \"127.0.0.1:7000\"`: write a list in brackets",
        ),
        (with("members", "members = 0"), "line 6: `members = 0`: write a number from 1 to 1024"),
        (with("members", "members = -1"), "line 6: `members = -1`: write a number from 1 to 1024"),
        (with("members", "members = \"3\""), "line 6: `members = \"3\"`: write a number from 1 to 1024"),
        (with("members", "members = 3\nrank = 1024"), "line 7: `rank = 1024`: write a number from 0 to 1023"),
        (
            with("members", "members = 3\ntransport = \"shm\""),
            "line 7: `transport` and `listen = \"127.0.0.1:7000\"` do not go together: \
             shared memory needs a Unix socket: write `listen = \"unix:@NAME\"`",
        ),
        (
            with("listen", "listen = \"unix:@a\"\ntransport = \"verbs\""),
            "line 5: `transport` and `listen = \"unix:@a\"` do not go together: \
             RDMA connections are set up over TCP: write `listen = \"HOST:PORT\"`",
        ),
        (
            with("members", "members = 3\ntransport = \"rdma\""),
            "line 7: `transport = \"rdma\"`: write one of \"auto\", \"shm\", \"tcp\", \"verbs\"",
        ),
        (
            with("members", "members = 3\nidle = \"sleep\""),
            "line 7: `idle = \"sleep\"`: write one of \"auto\", \"spin\", \"yield\", \"park\"",
        ),
        (
            with("members", "members = 3\ntimeouts = { join = 10 }"),
            "line 7: `join = 10`: write a time with its unit, like \"10s\" (units: us, ms, s, m, h, d)",
        ),
        (
            with("members", "members = 3\ntimeouts = { join = \"0s\" }"),
            "line 7: `join = \"0s\"`: write a time above zero",
        ),
        (
            with("members", "members = 3\nsuspicion_after_ms = 49"),
            "line 7: `suspicion_after_ms = 49`: write 0 to suspect no silent member, or at least 50: below that, healthy members would be excluded",
        ),
    ]);
}

#[test]
fn a_wrong_subgroup_is_named_with_its_line_and_what_to_write() {
    assert_errors(&[
        (
            with("mode", "message_max = \"10 kilos\""),
            "line 9: `message_max = \"10 kilos\"`: write a number of bytes, like 512, \"10KB\" or \"4MiB\" (units: B, KB, MB, GB, KiB, MiB, GiB)",
        ),
        (
            with("mode", "message_max = 100\nlarge_max = 100"),
            "line 9: [subgroups.orders]: large_max of 100 bytes: choose more than message_max (100), and less than 4 GiB",
        ),
        (
            with("mode", "message_max = 100\nwindow_bytes = 99"),
            "line 9: [subgroups.orders]: `window_bytes` = 99 is below `message_max` = 100: raise the one or lower the other",
        ),
        (
            with("mode", "senders = \"half\""),
            "line 9: `senders = \"half\"`: write \"all\" or a list of ranks, like [0, 2]",
        ),
        (
            with("mode", "senders = []"),
            "line 9: [subgroups.orders]: `senders`: name at least one rank, in ascending order, each once",
        ),
        (
            with("mode", "senders = [1, 1]"),
            "line 9: [subgroups.orders]: `senders`: name at least one rank, in ascending order, each once",
        ),
        (
            with("mode", "senders = [3]"),
            "line 9: [subgroups.orders]: `senders`: rank 3 is not below `members` = 3 (ranks begin at 0)",
        ),
        (
            with("mode", "members = [0, 1]\nsenders = [2]"),
            "line 9: [subgroups.orders]: sender 2 is not among its `members`: add it there, or remove it here",
        ),
        (with("mode", "mode = \"atmic\""), "line 9: `mode = \"atmic\"`: did you mean \"atomic\"?"),
        (
            with("mode", "window_bytes = \"17GiB\""),
            "line 9: `window_bytes = \"17GiB\"`: write 1 to 17179869184 bytes",
        ),
        (with("mode", "window = 0"), "line 9: `window = 0`: write a number from 1 to 32768"),
        (
            with("mode", "message_max = \"4GiB\""),
            "line 9: `message_max = \"4GiB\"`: write 1 to 4294967295 bytes",
        ),
        (with("mode", "null_sends = 1"), "line 9: `null_sends = 1`: write true or false"),
    ]);
}

#[test]
fn a_syntax_error_has_a_line() {
    let error = error_of(&with("members", "members = three"));
    assert!(error.starts_with("line 6: "), "{error}");
    let error = error_of(&with("members", "members = 3\nmembers = 3"));
    assert!(error.starts_with("line 7: ") && error.contains("duplicate"), "{error}");
}

#[test]
fn a_file_is_named_in_its_errors_and_finds_its_secret() {
    let folder = std::env::temp_dir().join(format!("squall-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("squall.toml");
    std::fs::write(&path, with("secret", "secret_file = \"secret\"")).unwrap();
    let missing = Config::load(&path).unwrap_err().to_string();
    std::fs::write(folder.join("secret"), "at least sixteen bytes\n").unwrap();
    let found = Config::load(&path);
    std::fs::write(&path, with("members", "members = 0")).unwrap();
    let wrong = Config::load(&path).unwrap_err().to_string();
    std::fs::remove_dir_all(&folder).unwrap();

    assert!(missing.starts_with(&format!("cannot read {}/secret: ", folder.display())), "{missing}");
    assert_eq!(found.unwrap().cluster, "kitchen");
    assert!(wrong.starts_with(&format!("{}/squall.toml:6: ", folder.display())), "{wrong}");
    assert!(Config::load(&path).unwrap_err().to_string().starts_with("cannot read "));
}

/// A client needs no address of its own, but contacts, which show the transport.
#[test]
fn a_client_needs_no_listen() {
    let path = std::env::temp_dir().join(format!("squall-client-{}.toml", std::process::id()));
    let text = "cluster = \"c\"\nsecret = \"sixteen bytes or more\"\nmembers = 1\ncontacts = [\"unix:@a\"]\n[subgroups.s]\n";
    std::fs::write(&path, text).unwrap();
    let config = Config::load_for_client(&path).unwrap();
    assert_eq!((config.listen.to_string().as_str(), config.transport), ("unix:@a", Transport::Shm));
    std::fs::write(&path, text.replace("contacts = [\"unix:@a\"]\n", "")).unwrap();
    let error = Config::load_for_client(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains("`contacts` is missing in the configuration: write where"), "{error}");
}

/// The topics of a domain are its subgroups, and clients use none of the file.
#[test]
fn a_domain_and_a_client_need_no_subgroups() {
    let path = std::env::temp_dir().join(format!("squall-domain-{}.toml", std::process::id()));
    let text = "cluster = \"c\"\nsecret = \"sixteen bytes or more\"\nmembers = 1\ncontacts = [\"unix:@a\"]\n";
    std::fs::write(&path, text).unwrap();
    let listen = || Some("unix:@b".parse().unwrap());
    let config = Config::load_for_domain(&path, listen(), Some(0)).unwrap();
    assert_eq!((config.listen.to_string().as_str(), config.rank), ("unix:@b", Some(0)));
    assert!(config.subgroups.is_empty() && Config::load_for_client(&path).is_ok());
    let error = Config::load_for(&path, listen(), None).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains("`subgroups` is missing") && error.contains("squall dds"), "{error}");
}

/// A process that can read the secret can become a member.
#[test]
fn a_secret_that_others_can_read_is_named() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = std::env::temp_dir().join(format!("squall-exposed-{}", std::process::id()));
    std::fs::write(&file, "at least sixteen bytes").unwrap();
    let exposed = [0o600, 0o400, 0o640, 0o602, 0o644].map(|mode| {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        super::exposed_secret(&file)
    });
    std::fs::remove_file(&file).unwrap();
    assert!(exposed[..2].iter().all(Option::is_none), "{exposed:?}");
    let right = format!("chmod 600 {}", file.display());
    assert!(exposed[2..].iter().all(|text| text.as_ref().is_some_and(|text| text.ends_with(&right))));
}

#[test]
fn a_secret_is_never_shown() {
    let text = with("secret", "secret = \"fifteen bytes..\"");
    assert!(!error_of(&text).contains("fifteen"));
    let config = Config::parse(GOOD).unwrap();
    assert!(!format!("{config:?}").contains("at least sixteen bytes"));
}

/// Members with different subgroups refuse each other; settings that each member may choose for itself do not matter.
#[test]
fn members_agree_on_what_must_be_the_same() {
    let agreement = |text: &str| Config::parse(text).unwrap().plan().agreement;
    let good = agreement(GOOD);
    assert_eq!(good, agreement(&with("members", "members = 3\nidle = \"park\"\ncore = 1")));
    assert_ne!(good, agreement(&with("mode", "window = 7")));
    assert_ne!(good, agreement(&with("[subgroups.orders]", "[subgroups.other]")));
}

#[test]
fn a_local_group_is_checked_too() {
    let group = Config::local("check", 3).subgroup("log", SubgroupConfig::default());
    for rank in 0..3 {
        let member = group.clone().for_rank(rank);
        member.check().unwrap();
        assert_eq!(member.listen == member.contacts[0], rank == 0);
    }
    let senders = SubgroupConfig { senders: Ranks::These(vec![3]), ..SubgroupConfig::default() };
    let error = group.clone().subgroup("log", senders).check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the configuration: [subgroups.log]: `senders`: rank 3 is not below `members` = 3 (ranks begin at 0)"
    );
    let durable = SubgroupConfig { mode: DeliveryMode::Durable, ..SubgroupConfig::default() };
    let error = group.clone().subgroup("log", durable).check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the configuration: [subgroups.log]: `mode = \"durable\"` needs a folder for the log of this member: write `path = \"FOLDER\"` in [storage]"
    );
    group.clone().for_rank(3).check().expect("a joiner may have a rank beyond those of the first members");
    assert!(group.for_rank(1024).check().is_err());
}
