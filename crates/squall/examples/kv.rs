//! A sharded, replicated key-value store: three members, a client outside the group, a member that dies and one that
//! joins. Members are threads here; as processes they would use the same code.
//!
//! ```text
//! cargo run --release -p squall --example kv
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use squall::config::SubgroupConfig;
use squall::object::{Client, Object, ObjectError, ObjectOptions, Replicated, Snapshot, restored};
use squall::{Config, Group};

#[derive(Default)]
struct Kv(BTreeMap<String, String>);

#[derive(Serialize, Deserialize)]
enum Change {
    Put(String, String),
    Remove(String),
}

impl Replicated for Kv {
    type Update = Change;
    type Query = String;
    /// The value; for a change, the previous value.
    type Reply = Option<String>;

    fn apply(&mut self, change: Change) -> Option<String> {
        match change {
            Change::Put(key, value) => self.0.insert(key, value),
            Change::Remove(key) => self.0.remove(&key),
        }
    }

    fn query(&self, key: String) -> Option<String> {
        self.0.get(&key).cloned()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.0.clone())
    }

    fn restore(source: &mut dyn Read) -> io::Result<Self> {
        restored(source).map(Self)
    }
}

/// Returns the configuration, the same at all members and at the client: four shards, each at two of the members.
fn config() -> Config {
    let kv = SubgroupConfig { shards: 4, replicas: 2, message_max: 4096, ..SubgroupConfig::default() };
    Config::local(&format!("kv-example-{}", std::process::id()), 3).subgroup("kv", kv)
}

struct Member {
    group: Group,
    kv: Object<Kv>,
}

fn join(rank: usize) -> Result<Member, Box<dyn Error + Send + Sync>> {
    let mut group = Group::join(config().for_rank(rank))?;
    let options = ObjectOptions {
        on_transfer: Box::new(move |transfer| {
            if transfer.is_done {
                let (shard, bytes, from) = (transfer.shard, transfer.bytes, transfer.from);
                println!("  member {rank} has shard {shard} now: {bytes} bytes, from {from}");
            }
        }),
        ..ObjectOptions::default()
    };
    let kv = group.object_with("kv", Kv::default, options)?;
    kv.wait_ready(Duration::from_secs(10))?;
    Ok(Member { group, kv })
}

fn show(members: &[Member]) {
    for Member { group, kv } in members {
        let held = (0..kv.shards())
            .filter_map(|shard| kv.inspect(shard, |_, state| format!("{shard} ({} keys)", state.0.len())));
        println!(
            "  member {} of {}: shards {}",
            group.rank(),
            group.view(),
            held.collect::<Vec<_>>().join(", ")
        );
    }
}

/// Puts a value, and tries again if the member that took it has left the shard meanwhile.
fn put(kv: &Object<Kv>, key: &str, value: &str) -> Result<Option<String>, ObjectError> {
    loop {
        match kv.update(key.as_bytes(), &Change::Put(key.into(), value.into()))?.wait() {
            Err(ObjectError::NotDelivered) => {}
            outcome => return outcome,
        }
    }
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("three members start the group");
    let threads: Vec<_> = (0..3).map(|rank| thread::spawn(move || join(rank))).collect();
    let mut members = Vec::new();
    for thread in threads {
        members.push(thread.join().expect("a member does not panic")?);
    }
    for number in 0..100 {
        put(&members[number % 3].kv, &format!("key {number}"), &format!("value {number}"))?;
    }
    show(&members);

    println!("a client outside the group writes and reads");
    let client = Client::<Kv>::connect(&config(), "kv")?;
    client.update(b"key 7", &Change::Put("key 7".into(), "from outside".into()))?.wait()?;
    client.update(b"key 8", &Change::Remove("key 8".into()))?.wait()?;

    println!("member 0 leaves, and a fourth joins");
    drop(members.remove(0));
    members.push(join(3)?);
    members.iter().try_for_each(|member| member.kv.wait_ready(Duration::from_secs(10)))?;
    show(&members);

    let get = |key: &str| client.query(key.as_bytes(), &key.to_owned())?.wait();
    println!("key 7: {:?}, key 8: {:?}, key 99: {:?}", get("key 7")?, get("key 8")?, get("key 99")?);
    Ok(())
}
