//! Bulk sessions on real transports: all sizes, all ways to receive, files, and deaths (RDMC §2).

mod rdma;

use std::os::unix::fs::FileExt as _;
use std::thread::{JoinHandle, scope, spawn};

use squall::Config;
use squall::bulk::{BulkError, BulkOptions, FileTarget, HeldBlocks, Session};
use squall::config::Transport;
use squall_transports::reserve_port;

const BLOCK: u64 = 4096;
const SIZES: [usize; 9] = [0, 1, 8, 4095, 4096, 4097, 100_000, 1 << 20, 3];

fn configs(name: &str, transport: Transport, members: usize) -> Vec<Config> {
    let config = Config::local(&format!("bulk-{name}-{}", std::process::id()), members);
    let mut configs: Vec<_> = (0..members).map(|rank| config.clone().for_rank(rank)).collect();
    if transport != Transport::Shm {
        let free = format!("127.0.0.1:{}", reserve_port().unwrap());
        for (rank, config) in configs.iter_mut().enumerate() {
            config.transport = transport;
            config.verbs = rdma::settings(rank);
            config.contacts = vec![free.parse().unwrap()];
            config.listen =
                if rank == 0 { config.contacts[0].clone() } else { "127.0.0.1:0".parse().unwrap() };
        }
    }
    configs
}

/// Returns the transport between hosts: TCP, or RDMA where it is to be tested.
fn network() -> Transport {
    if rdma::is_wanted() { Transport::Verbs } else { Transport::Tcp }
}

fn join(config: &Config) -> Session {
    let options = BulkOptions { block_bytes: Some(BLOCK), ..BulkOptions::default() };
    Session::join_with(config, &options).expect("all members join")
}

fn content(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + number * 7 + i / 251) as u8).collect()
}

fn send_all(config: &Config, sizes: &[usize]) -> Session {
    let mut session = join(config);
    let mut object = session.buffer(sizes.iter().copied().max().unwrap_or(0));
    for (number, bytes) in sizes.iter().enumerate() {
        object.set_len(*bytes);
        object.copy_from_slice(&content(number, *bytes));
        session.send(&mut object).expect("receivers are left");
        object.fill(0xee);
    }
    session
}

/// Receives objects by every method in turn.
fn receive_all(config: &Config, sizes: &[usize]) {
    let mut session = join(config);
    for (number, bytes) in sizes.iter().enumerate() {
        let right = content(number, *bytes);
        let next = session.next_object().expect("the root lives");
        assert_eq!((next.number, next.bytes), (number as u64, *bytes as u64));
        match number % 3 {
            0 => assert_eq!(*session.receive_in_place().expect("received"), *right, "object {number}"),
            1 => assert_eq!(*session.receive().expect("received"), *right, "object {number}"),
            _ => {
                let mut small = vec![0; bytes.saturating_sub(1)];
                assert!(matches!(session.receive_into(&mut small), Err(BulkError::TooSmall { .. })));
                let mut target = vec![0; bytes + 10];
                assert_eq!(session.receive_into(&mut target).expect("received"), *bytes);
                assert_eq!(target[..*bytes], *right, "object {number}");
            }
        }
    }
}

fn all_objects_arrive(name: &str, transport: Transport) {
    for members in [1, 2, 4] {
        let configs = configs(&format!("{name}{members}"), transport, members);
        scope(|scope| {
            configs[1..].iter().for_each(|config| drop(scope.spawn(|| receive_all(config, &SIZES))));
            // Without receivers, a send returns at once.
            assert_eq!(send_all(&configs[0], &SIZES).members(), members);
        });
    }
}

#[test]
fn all_objects_arrive_on_shared_memory() {
    all_objects_arrive("shm", Transport::Shm);
}

#[test]
fn all_objects_arrive_over_a_network() {
    all_objects_arrive("network", network());
}

/// Receives all objects with one buffer, which is offered for each: it has space for some and is replaced for others.
fn receive_all_into_one_buffer(config: &Config, sizes: &[usize]) {
    let mut session = join(config);
    let mut buffer = session.buffer(10);
    for (number, bytes) in sizes.iter().enumerate() {
        session.receive_buffer(&mut buffer).expect("received");
        assert_eq!(*buffer, *content(number, *bytes), "object {number}");
    }
}

#[test]
fn objects_arrive_in_offered_buffers() {
    let sizes = [1 << 20, 3, 100_000, 0, 4097, 4096, 2 << 20, 1, 8];
    for (members, transport) in
        [2, 4].into_iter().flat_map(|members| [(members, Transport::Shm), (members, network())])
    {
        let configs = configs(&format!("buffer{members}-{transport:?}"), transport, members);
        scope(|scope| {
            configs[1..]
                .iter()
                .for_each(|config| drop(scope.spawn(|| receive_all_into_one_buffer(config, &sizes))));
            send_all(&configs[0], &sizes);
        });
    }
}

/// Receivers leave while others have offered buffers; a single receiver is left.
#[test]
fn offered_buffers_outlive_other_receivers() {
    let configs = configs("buffers", network(), 4);
    scope(|scope| {
        scope.spawn(|| receive_all_into_one_buffer(&configs[1], &SIZES));
        scope.spawn(|| receive_all_into_one_buffer(&configs[2], &SIZES[..2]));
        scope.spawn(|| receive_all_into_one_buffer(&configs[3], &SIZES[..5]));
        // The one that has all may have left as well by then.
        let lost = send_all(&configs[0], &SIZES).lost();
        assert!(lost.ends_with(&[2, 3]), "{lost:?}");
    });
}

/// A receiver that leaves in the middle is excluded; the others get everything [B7].
fn a_lost_receiver_is_excluded(name: &str, transport: Transport) {
    let configs = configs(name, transport, 4);
    let threads: Vec<JoinHandle<()>> = (1..4)
        .map(|rank| {
            let config = configs[rank].clone();
            spawn(move || match rank {
                2 => {
                    let mut session = join(&config);
                    session.receive().expect("the first object");
                    session.next_object().expect("the second object is announced");
                }
                _ => receive_all(&config, &SIZES),
            })
        })
        .collect();
    let session = send_all(&configs[0], &SIZES);
    assert!(session.lost().contains(&2), "{:?}", session.lost());
    threads.into_iter().for_each(|thread| thread.join().expect("a receiver has all"));
}

#[test]
fn a_lost_receiver_is_excluded_on_shared_memory() {
    a_lost_receiver_is_excluded("shm-lost", Transport::Shm);
}

#[test]
fn a_lost_receiver_is_excluded_over_a_network() {
    a_lost_receiver_is_excluded("network-lost", network());
}

/// When the last receiver has left, the root gets an error, however often it sends.
#[test]
fn a_root_that_is_left_alone_gets_an_error() {
    for transport in [Transport::Shm, network()] {
        let configs = configs(&format!("alone-{transport:?}"), transport, 2);
        scope(|scope| {
            scope.spawn(|| join(&configs[1]).receive().map(drop).expect("the first object"));
            let mut session = join(&configs[0]);
            let mut object = session.buffer(10_000);
            session.send(&mut object).expect("a receiver is left");
            for _ in 0..2 {
                assert!(matches!(session.send(&mut object), Err(BulkError::Alone)), "{transport:?}");
            }
        });
    }
}

/// Receivers get an error when the root has gone.
#[test]
fn a_lost_root_ends_the_session() {
    for transport in [Transport::Shm, network()] {
        let configs = configs(&format!("root-{transport:?}"), transport, 2);
        scope(|scope| {
            scope.spawn(|| drop(join(&configs[0])));
            let mut session = join(&configs[1]);
            assert!(matches!(session.next_object(), Err(BulkError::RootLost)));
        });
    }
}

/// A file is sent from pages to pages; blocks that the receiver already has are not sent.
#[test]
fn a_file_is_received_and_resumed() {
    let bytes = 10 * BLOCK as usize + 5;
    let right = content(1, bytes);
    let [source, target] = [(); 2].map(|()| scratch_file());
    source.write_all_at(&right, 0).unwrap();
    target.set_len(bytes as u64).unwrap();
    // The first blocks and one more, as an earlier attempt has left them.
    let mut held = HeldBlocks::none(11);
    for block in [0, 1, 2, 7] {
        assert!(held.insert(block));
        let range = (block * BLOCK) as usize..((block + 1) * BLOCK) as usize;
        target.write_all_at(&right[range.clone()], range.start as u64).unwrap();
    }
    let configs = configs("file", network(), 2);
    let (arrived, blocks) = std::sync::mpsc::channel();
    scope(|scope| {
        scope.spawn(|| join(&configs[0]).send_file(&source, bytes as u64, &mut |_, _| ()).expect("sent"));
        let on_block = Box::new(move |block| arrived.send(block).unwrap());
        let target = FileTarget { file: &target, held, on_block };
        join(&configs[1]).receive_file(target).expect("received");
    });
    assert_eq!(blocks.iter().collect::<Vec<_>>(), [3, 4, 5, 6, 8, 9, 10]);
    let mut found = vec![0; bytes];
    target.read_exact_at(&mut found, 0).unwrap();
    assert!(found == right, "the file is right");
    assert_eq!(target.metadata().unwrap().len(), bytes as u64, "nothing is written after its end");
}

fn scratch_file() -> std::fs::File {
    use squall_fabric::atomics::{AtomicU64, Ordering};
    static FILES: AtomicU64 = AtomicU64::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("squall-bulk-{}-{number}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}
