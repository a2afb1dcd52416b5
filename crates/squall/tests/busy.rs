//! A machine with more busy threads than processors, and windows of hundreds of megabytes: a member that opens a view there
//! gives signs of life all the time (Derecho §2; \[V10\]).

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{Address, SubgroupConfig, Transport};
use squall::{Config, Group};
use squall_fabric::atomics::{AtomicBool, Ordering};

const SUSPICION_AFTER: Duration = Duration::from_secs(5);
const MESSAGE_MAX: usize = 16 << 20;

/// Two busy threads for each processor, until it is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn new() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..2 * thread::available_parallelism().unwrap().get() {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || while !is_over.load(Ordering::Relaxed) {});
        }
        Self(is_over)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The configurations of three members and, the last, of a joiner.
fn configs(transport: Transport) -> Vec<Config> {
    let ports: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = ports.iter().map(|port| port.local_addr().unwrap().port()).collect();
    let base = Config::local(&format!("busy-{}", std::process::id()), 3);
    let config = |rank: usize| {
        let address = |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: ports[rank] };
        let mut config = base.clone().for_rank(rank);
        if transport == Transport::Tcp {
            config.transport = transport;
            config.listen = address(rank);
            config.contacts = (0..3).map(address).collect();
        }
        config.rank = (rank < 3).then_some(rank);
        config.suspicion_after = Some(SUSPICION_AFTER);
        config.subgroup(
            "bulk",
            SubgroupConfig { message_max: MESSAGE_MAX, window: 8, ..SubgroupConfig::default() },
        )
    };
    (0..4).map(config).collect()
}

/// Joins, and stays until `end`; the members of the last view.
fn member(config: Config, end: Instant) -> thread::JoinHandle<Result<usize, String>> {
    thread::spawn(move || {
        let joined = Group::builder(config).on_message("bulk", |_| ()).join();
        let group = joined.map_err(|error| error.to_string())?;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
            if let Some(error) = group.failure() {
                return Err(error.to_string());
            }
        }
        let members = group.view().members.len();
        thread::sleep(SUSPICION_AFTER / 5);
        Ok(members)
    })
}

#[test]
fn nobody_is_removed_when_a_member_joins_on_a_busy_machine() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let _load = Load::new();
        let configs = configs(transport);
        let end = Instant::now() + 3 * SUSPICION_AFTER;
        let mut members: Vec<_> = configs[..3].iter().map(|config| member(config.clone(), end)).collect();
        thread::sleep(SUSPICION_AFTER / 2);
        members.push(member(configs[3].clone(), end));
        let ends: Vec<_> = members.into_iter().map(|member| member.join().unwrap()).collect();
        assert!(ends.iter().all(|end| *end == Ok(4)), "{transport:?}: {ends:?}");
    }
}
