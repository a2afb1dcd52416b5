//! Measures what an idle group costs, and how soon it wakes (Spindle §2.4: the polling thread quiesces).
//!
//! Members are threads of one process on shared memory. First no member sends for some seconds: the process's CPU
//! time in this period, divided by the number of members, is the cost of an idle member. Then one message is sent
//! every 100 ms: the time from before the send to its delivery at another member, whose threads were asleep, is the
//! wake-up.
//!
//! Use: `cargo run --release -p squall --example idle [MEMBERS [SECONDS]]`

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use squall::config::{Config, SubgroupConfig};
use squall::{Group, JoinError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |place, usual: usize| std::env::args().nth(place).map_or(Ok(usual), |text| text.parse());
    let (members, seconds) = (number(1, 3)?, number(2, 10)?);
    let (deliver, delivered) = mpsc::channel();
    let base = Config::local(&format!("idle-{}", std::process::id()), members)
        .subgroup("log", SubgroupConfig::default());
    let joins: Vec<_> = (0..members)
        .map(|rank| {
            let (config, deliver) = (base.clone().for_rank(rank), deliver.clone());
            thread::spawn(move || {
                let upcall = move |_: squall::Message<'_>| {
                    if rank == 1 {
                        let _ = deliver.send(Instant::now());
                    }
                };
                Group::builder(config).on_message("log", upcall).join()
            })
        })
        .collect();
    let groups: Result<Vec<Group>, JoinError> =
        joins.into_iter().map(|join| join.join().expect("no panic")).collect();
    let mut groups = groups?;
    thread::sleep(Duration::from_secs(1));

    let before = cpu_time()?;
    thread::sleep(Duration::from_secs(seconds as u64));
    let used = cpu_time()? - before;
    let per_member = 100.0 * used.as_secs_f64() / seconds as f64 / members as f64;
    println!("idle: {per_member:.3} % of a core per member, over {seconds} s ({members} members)");

    let mut sender = groups[0].subgroup("log")?.sender()?;
    let mut wakes = Vec::new();
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(100));
        let sent = Instant::now();
        sender.send(8, |bytes| bytes.fill(1))?;
        wakes.push(delivered.recv_timeout(Duration::from_secs(5))? - sent);
    }
    wakes.sort_unstable();
    println!(
        "wake-up: {:?} at the median, {:?} at most, from send to delivery at another member",
        wakes[25], wakes[49]
    );
    Ok(())
}

/// Returns the processor time that this process has used, from the kernel's scheduler statistics.
fn cpu_time() -> std::io::Result<Duration> {
    let threads = std::fs::read_dir("/proc/self/task")?;
    let mut nanos = 0;
    for thread in threads {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += stat.split_whitespace().next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanos))
}
