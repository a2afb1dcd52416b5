//! iceoryx2 as a peer: one publisher and some subscribers on shared memory, each a process that polls. The publisher
//! waits for slow subscribers instead of dropping; the rate is that of the slowest.
//!
//! use: `iceoryx2-peer throughput SIZE MESSAGES SUBSCRIBERS` or `iceoryx2-peer latency SIZE MESSAGES 1`

#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;

type Bytes = PortFactory<ipc::Service, [u8], ()>;
type Outcome<T> = Result<T, Box<dyn Error>>;

/// What a process is told on its command line.
#[derive(Clone)]
struct Plan {
    size: usize,
    messages: u64,
    subscribers: usize,
    /// The service that all processes of this run use.
    name: String,
}

fn main() -> Outcome<()> {
    set_log_level(LogLevel::Error);
    let arguments: Vec<String> = env::args().collect();
    let [_, role, size, messages, subscribers, rest @ ..] = &arguments[..] else {
        return Err("use: iceoryx2-peer throughput|latency SIZE MESSAGES SUBSCRIBERS".into());
    };
    let name = rest.first().cloned().unwrap_or_else(|| format!("peer{}", std::process::id()));
    let plan =
        Plan { size: size.parse()?, messages: messages.parse()?, subscribers: subscribers.parse()?, name };
    match role.as_str() {
        "throughput" => throughput(&plan),
        "latency" => latency(&plan),
        "subscriber" => subscriber(&plan),
        "echo" => echo(&plan),
        _ => Err(format!("no role `{role}`").into()),
    }
}

fn throughput(plan: &Plan) -> Outcome<()> {
    let (_node, service) = open(&plan.name, plan.subscribers)?;
    let publisher = service
        .publisher_builder()
        .initial_max_slice_len(plan.size)
        .max_loaned_samples(4)
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()?;
    let mut children =
        (0..plan.subscribers).map(|_| Subprocess::start("subscriber", plan)).collect::<Outcome<Vec<_>>>()?;
    for child in &mut children {
        child.line()?;
    }
    std::thread::sleep(Duration::from_millis(50));
    if plan.subscribers == 1 {
        pin(0);
    }
    let source = vec![1_u8; plan.size];
    for _ in 0..plan.messages {
        publisher.loan_slice_uninit(plan.size)?.write_from_slice(&source).send()?;
    }
    let mut slowest = 0_f64;
    for child in &mut children {
        slowest = slowest.max(child.line()?.parse()?);
    }
    let rate = plan.messages as f64 / slowest;
    println!("{{\"size\":{},\"messages\":{},\"messages_per_second\":{rate:.0}}}", plan.size, plan.messages);
    Ok(())
}

fn subscriber(plan: &Plan) -> Outcome<()> {
    let (_node, service) = open(&plan.name, plan.subscribers)?;
    let subscriber = service.subscriber_builder().buffer_size(BUFFER_SAMPLES).create()?;
    if plan.subscribers == 1 {
        pin(1);
    }
    say("ready")?;
    let (mut begun, mut received, mut sum, mut idle) = (None, 0, 0_u64, 0_u32);
    while received < plan.messages {
        if let Some(sample) = subscriber.receive()? {
            begun.get_or_insert_with(Instant::now);
            sum += ones(sample.payload());
            (received, idle) = (received + 1, 0);
        } else {
            idle += 1;
            wait(plan, idle);
        }
    }
    assert_eq!(
        sum,
        plan.messages * plan.size.div_ceil(LINE_BYTES) as u64,
        "the payload is what was published"
    );
    say(&begun.expect("at least one message").elapsed().as_secs_f64().to_string())?;
    wait_for_end()
}

fn latency(plan: &Plan) -> Outcome<()> {
    let (_there, to) = open(&format!("{}there", plan.name), 1)?;
    let (_back, from) = open(&format!("{}back", plan.name), 1)?;
    let publisher = to.publisher_builder().initial_max_slice_len(plan.size).create()?;
    let subscriber = from.subscriber_builder().create()?;
    let mut child = Subprocess::start("echo", plan)?;
    child.line()?;
    std::thread::sleep(Duration::from_millis(50));
    pin(0);
    let source = vec![1_u8; plan.size];
    let mut times = Vec::new();
    for _ in 0..plan.messages {
        let start = Instant::now();
        publisher.loan_slice_uninit(plan.size)?.write_from_slice(&source).send()?;
        while subscriber.receive()?.is_none() {}
        times.push(start.elapsed().as_nanos());
    }
    times.drain(..times.len() / 10);
    times.sort_unstable();
    let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("{{\"size\":{},\"round_trip_ns\":{{\"p50\":{p50},\"p99\":{p99}}}}}", plan.size);
    Ok(())
}

fn echo(plan: &Plan) -> Outcome<()> {
    let (_there, from) = open(&format!("{}there", plan.name), 1)?;
    let (_back, to) = open(&format!("{}back", plan.name), 1)?;
    let subscriber = from.subscriber_builder().create()?;
    let publisher = to.publisher_builder().initial_max_slice_len(plan.size).create()?;
    pin(1);
    say("ready")?;
    let source = vec![1_u8; plan.size];
    for _ in 0..plan.messages {
        while subscriber.receive()?.is_none() {}
        publisher.loan_slice_uninit(plan.size)?.write_from_slice(&source).send()?;
    }
    wait_for_end()
}

fn open(name: &str, subscribers: usize) -> Outcome<(Node<ipc::Service>, Bytes)> {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = node
        .service_builder(&name.try_into()?)
        .publish_subscribe::<[u8]>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(BUFFER_SAMPLES)
        .subscriber_max_borrowed_samples(4)
        .max_subscribers(subscribers)
        .max_publishers(1)
        .max_nodes(16)
        .history_size(0)
        .open_or_create()?;
    Ok((node, service))
}

/// Another process of this run: the same program in another role.
struct Subprocess {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Subprocess {
    fn start(role: &str, plan: &Plan) -> Outcome<Self> {
        let numbers = [plan.size.to_string(), plan.messages.to_string(), plan.subscribers.to_string()];
        let mut command = Command::new(env::current_exe()?);
        command.arg(role).args(numbers).arg(&plan.name).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self { child, output })
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Subprocess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A subprocess stays until its parent has all figures, so that no port goes away early.
fn wait_for_end() -> Outcome<()> {
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn wait(plan: &Plan, idle: u32) {
    if plan.subscribers > 1 && idle > 20 { std::thread::yield_now() } else { std::hint::spin_loop() }
}

fn say(line: &str) -> Outcome<()> {
    let mut output = std::io::stdout();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

fn pin(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &cores);
}

/// Reads one byte of each cache line, as all receivers do; returns the sum, the number of lines if all bytes are 1.
fn ones(payload: &[u8]) -> u64 {
    payload.iter().step_by(LINE_BYTES).map(|byte| u64::from(*byte)).sum()
}

const BUFFER_SAMPLES: usize = 1024;
/// The bytes that a core's cache takes at a time.
const LINE_BYTES: usize = 64;
