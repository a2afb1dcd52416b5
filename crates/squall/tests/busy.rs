//! A machine with more busy threads than processors, and windows of hundreds of megabytes: a member that opens a view
//! there continues to give signs of life (Derecho §2; \[V10\]).

mod common;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{SubgroupConfig, Transport};
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

fn configs(transport: Transport) -> Vec<Config> {
    let subgroup = SubgroupConfig { message_max: MESSAGE_MAX, window: 8, ..SubgroupConfig::default() };
    common::configs(transport, "busy", SUSPICION_AFTER, ("bulk", subgroup))
}

/// Joins, and stays until `end`; returns the number of members of the last view.
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
fn no_member_is_removed_when_another_joins_on_a_busy_machine() {
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
