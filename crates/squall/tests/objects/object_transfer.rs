//! State transfer of replicated objects: large states in parts, and providers that fail, over shared memory and TCP
//! (Derecho §3.3).

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use squall::config::{Address, PartitionSafety, SubgroupConfig, Transport};
use squall::object::{Client, Object, ObjectOptions, Replicated, Snapshot, Transfer};
use squall::{Config, Group};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_transports::reserve_port;

/// Blocks that updates replace and that snapshots share until then, so that a snapshot copies nothing.
struct Blocks {
    blocks: Vec<Arc<Vec<u8>>>,
    /// This member's next snapshot ends in the middle. Not part of the state.
    fails: Arc<AtomicBool>,
}

const BLOCK_BYTES: usize = 1 << 20;

impl Blocks {
    fn new(count: usize) -> Self {
        let block = |number: usize| Arc::new(vec![number as u8; BLOCK_BYTES]);
        Self { blocks: (0..count).map(block).collect(), fails: Arc::new(AtomicBool::new(true)) }
    }
}

impl Replicated for Blocks {
    /// A block, and the byte with which it is filled.
    type Update = (u32, u8);
    type Query = u32;
    type Reply = u8;

    fn apply(&mut self, (block, byte): (u32, u8)) -> u8 {
        let count = self.blocks.len();
        let block = &mut self.blocks[block as usize % count];
        let before = block[0];
        *block = Arc::new(vec![byte; BLOCK_BYTES]);
        before
    }

    fn query(&self, block: u32) -> u8 {
        self.blocks[block as usize % self.blocks.len()][0]
    }

    fn snapshot(&self) -> Snapshot {
        let (blocks, fails) = (self.blocks.clone(), self.fails.swap(false, Ordering::Relaxed));
        let bytes = (blocks.len() * BLOCK_BYTES) as u64;
        let write = move |sink: &mut dyn Write| {
            let half = blocks.len() / 2;
            for (number, block) in blocks.into_iter().enumerate() {
                if fails && number == half {
                    return Err(io::Error::other("the test's provider fails"));
                }
                sink.write_all(&block)?;
            }
            Ok(())
        };
        Snapshot::new(write).with_bytes(bytes)
    }

    fn restore(source: &mut dyn Read) -> io::Result<Self> {
        let mut blocks = Vec::new();
        loop {
            let mut block = Vec::with_capacity(BLOCK_BYTES);
            source.take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
            match block.len() {
                0 => return Ok(Self { blocks, fails: Arc::default() }),
                BLOCK_BYTES => blocks.push(Arc::new(block)),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

fn shm(test: &str) -> impl Fn(usize) -> Config + Clone + Send {
    let base = Config::local(&format!("transfer-{test}-{}", std::process::id()), 2);
    let base = base.subgroup("blocks", SubgroupConfig::default());
    move |rank| Config { partition_safety: PartitionSafety::Off, ..base.clone().for_rank(rank) }
}

fn tcp(test: &str) -> impl Fn(usize) -> Config + Clone + Send {
    let ports = [(); 4].map(|()| reserve_port().unwrap());
    let shm = shm(test);
    move |rank| {
        let address = |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: ports[rank] };
        let mut config = shm(rank);
        (config.transport, config.listen) = (Transport::Tcp, address(rank));
        config.contacts = (0..2).map(address).collect();
        config
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

/// What was reported to a joiner about its transfers.
type Reported = Arc<Mutex<Vec<Transfer>>>;

fn join(config: Config, count: usize) -> (Group, Object<Blocks>, Reported) {
    let reported = Reported::default();
    let report = Arc::clone(&reported);
    let options = ObjectOptions {
        on_transfer: Box::new(move |transfer| report.lock().unwrap().push(transfer)),
        ..ObjectOptions::default()
    };
    let mut group = Group::join(config).expect("the member joins");
    let object = group.object_with("blocks", move || Blocks::new(count), options).unwrap();
    object.wait_ready(PATIENCE).expect("it gets the state");
    (group, object, reported)
}

/// Starts two members with `count` blocks, each of which fails once to send them; a third joins while updates
/// continue.
fn transfer(config: impl Fn(usize) -> Config + Clone + Send, count: usize) {
    thread::scope(|scope| {
        let second = scope.spawn({
            let config = config(1);
            move || join(config, count)
        });
        let (first, old, _) = join(config(0), count);
        let second = second.join().unwrap();
        let joiner = scope.spawn({
            let config = config(2);
            move || join(config, 0)
        });
        let mut updates = 0u32;
        while !joiner.is_finished() || updates < 100 {
            old.update(b"", &(updates, updates as u8)).unwrap().wait().expect("it is delivered");
            updates += 1;
        }
        let (third, object, reported) = joiner.join().unwrap();
        // It may still have to apply what was delivered to it while its state arrived: `query_at` would not wait for that.
        object.query_latest(b"", &0).unwrap().wait().unwrap();
        for block in 0..count as u32 {
            let here = object.query_at(third_node(&third), 0, &block).unwrap().wait().unwrap();
            assert_eq!(here, old.query(b"", &block).unwrap().wait().unwrap(), "block {block}");
        }
        let reported = reported.lock().unwrap();
        let bytes = (count * BLOCK_BYTES) as u64;
        let done: Vec<_> = reported.iter().filter(|transfer| transfer.is_done).collect();
        assert!(
            matches!(done[..], [done] if done.bytes == bytes && done.total == Some(bytes)),
            "{reported:?}"
        );
        assert!(
            reported.iter().filter(|transfer| transfer.bytes == 0).count() > 1,
            "a provider failed: {reported:?}"
        );
        let client = Client::<Blocks>::connect(&config(0), "blocks").unwrap();
        client.update(b"", &(3, 77)).unwrap().wait().unwrap();
        assert_eq!(client.query(b"", &3).unwrap().wait().unwrap(), 77);
        drop((first, second, third));
    });
}

fn third_node(group: &Group) -> squall_fabric::NodeId {
    group.view().members.last().expect("it is in the view").node
}

#[test]
fn states_arrive_over_shared_memory() {
    transfer(shm("shm"), 48);
}

#[test]
fn states_arrive_over_tcp() {
    transfer(tcp("tcp"), 48);
}

/// It is run by hand with `--release --ignored`, since it needs three gigabytes of memory.
#[test]
#[ignore = "needs three gigabytes of memory"]
fn a_gigabyte_arrives() {
    transfer(shm("gigabyte"), 1024);
}
