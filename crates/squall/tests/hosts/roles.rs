//! What the processes of the tests do: each reads lines and prints lines.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::time::Duration;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter_all_threads};
use squall::config::{Address, PartitionSafety, SubgroupConfig, Transport};
use squall::external::{Observed, Observer, Publisher};
use squall::object::{Client, Object, Replicated, Snapshot, restored};
use squall::stream::{Listener, Stream, StreamOptions};
use squall::{Config, Group};

use super::lab::{PATIENCE, run, say};

pub(crate) const ROLE: &str = "SQUALL_TEST_ROLE";

/// A sum.
pub(crate) struct Sum(u64);

impl Replicated for Sum {
    type Update = u64;
    type Query = ();
    type Reply = u64;

    fn apply(&mut self, more: u64) -> u64 {
        self.0 += more;
        self.0
    }

    fn query(&self, (): ()) -> u64 {
        self.0
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0)
    }

    fn restore(source: &mut dyn std::io::Read) -> std::io::Result<Self> {
        restored(source).map(Self)
    }
}

/// Plays the role of the environment: words, of which the first is its name, and the others `key=value`.
pub(crate) fn play() {
    let role = std::env::var(ROLE).expect("started by another test");
    let mut words = role.split(' ');
    let name = words.next().unwrap();
    let words: Vec<(&str, &str)> = words.map(|word| word.split_once('=').unwrap()).collect();
    let words = Words(words);
    say("here");
    let mut input = std::io::stdin().lines().map_while(Result::ok);
    while let Some(line) = input.next().filter(|line| line != "begin") {
        connect(line.strip_prefix("net ").unwrap());
    }
    if let Some(setting) = words.find("sysctl") {
        std::fs::write(format!("/proc/sys/{setting}"), "1").unwrap();
    }
    if words.find("sandbox") == Some("no-memfd") {
        refuse_memfd();
    }
    match name {
        "member" => member(&words, &mut input),
        "client" => client(&words),
        "talker" => talker(&words),
        "listener" => listener(&words),
        "caller" => caller(&words),
        other => panic!("there is no role {other}"),
    }
    // The test ends this process.
    while input.next().is_some() {}
}

struct Words<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Words<'a> {
    fn find(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    /// Returns the configuration that all members and clients have.
    fn config(&self) -> Config {
        let mut config = Config::local("hosts", 2);
        config.transport = match self.find("transport").unwrap() {
            "tcp" => Transport::Tcp,
            "shm" => Transport::Shm,
            _ => Transport::Auto,
        };
        let addresses = self.find("contacts").unwrap().split(',');
        config.contacts = addresses.map(|address| address.parse().unwrap()).collect();
        config.listen =
            self.find("listen").map_or_else(|| config.contacts[0].clone(), |listen| listen.parse().unwrap());
        config.advertise = self.find("advertise").map(|advertise| advertise.parse().unwrap());
        config.rank = self.find("rank").map(|rank| rank.parse().unwrap());
        config.partition_safety = PartitionSafety::Off;
        let settings = SubgroupConfig { window: 16, message_max: 1000, ..SubgroupConfig::default() };
        config.subgroup("sum", settings.clone()).subgroup("log", settings)
    }
}

/// Gives this process's network namespace its addresses.
fn connect(number: &str) {
    run("ip", "link set lo up");
    run("ip", "link set eth0 addrgenmode none");
    run("ip", &format!("addr add fe80::{number}/64 dev eth0 nodad"));
    run("ip", &format!("addr add 10.77.0.{number}/24 dev eth0"));
    run("ip", &format!("addr add fd77::{number}/64 dev eth0 nodad"));
    run("ip", "link set eth0 up");
    // The names of all hosts, in this process's mount namespace.
    run("mount", "-t tmpfs none /mnt");
    let lines: String = (1..=5).map(|number| format!("10.77.0.{number} member-{number}\n")).collect();
    std::fs::write("/mnt/hosts", lines).unwrap();
    run("mount", "--bind /mnt/hosts /etc/hosts");
}

/// Has the kernel refuse this process's calls of memfd_create from now on.
fn refuse_memfd() {
    let number = if cfg!(target_arch = "x86_64") { 319 } else { 279 };
    let refusal = SeccompAction::Errno(1);
    let target = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let filter =
        SeccompFilter::new([(number, Vec::new())].into(), SeccompAction::Allow, refusal, target).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    apply_filter_all_threads(&program).unwrap();
}

/// A member with an object: "add N" adds, and every member prints the sum.
fn member(words: &Words<'_>, input: &mut dyn Iterator<Item = String>) {
    let joined = Group::builder(words.config()).on_message("log", |message| {
        say(&format!("log {}", String::from_utf8_lossy(message.bytes)));
    });
    let mut group: Group = match joined.join() {
        Ok(group) => group,
        Err(error) => return say(&format!("refused: {error}")),
    };
    let object: Object<Sum> = group.object("sum", || Sum(0)).expect("it is configured");
    if let Err(error) = object.wait_ready(PATIENCE) {
        return say(&format!("no state: {error}"));
    }
    say("ready");
    for line in input {
        if line == "ports" {
            say(&format!("ports {:?}", listening_ports()));
            continue;
        }
        let sum = match line.strip_prefix("add ") {
            Some(more) => object.update(b"", &more.parse::<u64>().unwrap()).unwrap().wait().unwrap(),
            None => object.query(b"", &()).unwrap().wait().unwrap(),
        };
        say(&format!("sum {sum}"));
    }
}

/// The TCP ports at which this process's network namespace listens.
fn listening_ports() -> BTreeSet<u16> {
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/net/{table}")).unwrap());
    let port = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (state == "0A").then_some(port)
    };
    tables.iter().flat_map(|table| table.lines().filter_map(port)).collect()
}

/// A client of the object at all members in turn.
fn client(words: &Words<'_>) {
    for contact in words.config().contacts {
        let config = Config { contacts: vec![contact.clone()], ..words.config() };
        let added = || -> Result<u64, Box<dyn std::error::Error>> {
            let client = Client::<Sum>::connect_with(&config, "sum", SHORT)?;
            Ok(client.update(b"", &100)?.wait()?)
        };
        match added() {
            Ok(sum) => say(&format!("sum {sum}")),
            Err(error) => say(&format!("{contact}: {error}")),
        }
    }
}

/// `send` and `recv` at each member in turn.
fn talker(words: &Words<'_>) {
    for contact in words.config().contacts {
        let config = Config { contacts: vec![contact.clone()], ..words.config() };
        let talked = || -> Result<String, Box<dyn std::error::Error>> {
            let mut observer = Observer::connect(&config, "log")?;
            let Observed::View { .. } = observer.next()? else { return Err("no view".into()) };
            Publisher::connect_with(&config, "log", SHORT)?.publish(&["hello"])?;
            loop {
                if let Observed::Message { bytes, .. } = observer.next()? {
                    return Ok(String::from_utf8_lossy(&bytes).into());
                }
            }
        };
        match talked() {
            Ok(message) => say(&message),
            Err(error) => say(&format!("{contact}: {error}")),
        }
    }
}

fn options(words: &Words<'_>) -> StreamOptions {
    let mut options = StreamOptions::local("hosts");
    options.timeout = SHORT;
    if words.find("transport") == Some("shm") {
        options.transport = Transport::Shm;
    }
    options
}

/// Accepts one stream and sends back what comes.
fn listener(words: &Words<'_>) {
    let address: Address = words.find("at").unwrap().parse().unwrap();
    let listener = match Listener::bind(&address, &options(words)) {
        Ok(listener) => listener,
        Err(error) => return say(&error.to_string()),
    };
    say("listening");
    let mut stream = Stream::new(listener.accept().unwrap()).unwrap();
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
    stream.flush().unwrap();
    let _ = stream.read(&mut bytes);
}

/// Calls a listener.
fn caller(words: &Words<'_>) {
    let address: Address = words.find("at").unwrap().parse().unwrap();
    let talked = || -> Result<String, Box<dyn std::error::Error>> {
        let mut stream = Stream::connect(&address, &options(words))?;
        stream.set_read_timeout(Some(PATIENCE));
        stream.write_all(b"hello")?;
        stream.flush()?;
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes)?;
        let shared = if stream.socket().is_shared() { "shared memory" } else { "TCP" };
        Ok(format!("{} by {shared}", String::from_utf8_lossy(&bytes)))
    };
    say(&talked().unwrap_or_else(|error| error.to_string()));
}

/// A call that fails must not take the whole time of a test.
const SHORT: Duration = Duration::from_secs(15);
