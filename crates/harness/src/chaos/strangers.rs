//! Processes that are not members and connect to them: with garbage, silence, floods and a wrong secret.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use squall::Config;
use squall::config::{Address, Secret};
use squall_fabric::atomics::{AtomicU64, Ordering};
use squall_fabric::sim::Prng;

use super::load::ProcessorLoad;

/// What strangers have reached.
#[derive(Debug, Default)]
pub(crate) struct StrangerCounters {
    connections: AtomicU64,
    /// A member has answered a process with another secret.
    answers: AtomicU64,
}

impl StrangerCounters {
    /// How many connections there were.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// How many of them got an answer that only members may have.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

/// Connects in four ways for a while to the members, which listen at the contacts of `config`.
pub(crate) fn start(
    lasts: Duration,
    config: &Config,
    seed: u64,
    reached: &Arc<StrangerCounters>,
) -> ProcessorLoad {
    let addresses = &config.contacts[..];
    let mut strangers: Vec<Box<dyn FnMut() + Send>> = Vec::new();
    if !addresses.is_empty() {
        strangers.push(garbage(Caller::new(addresses, seed, reached)));
        strangers.push(half_open(Caller::new(addresses, seed + 1, reached)));
        strangers.push(flood(Caller::new(addresses, seed + 2, reached)));
        strangers.push(wrong_secret(Caller::new(addresses, seed + 3, reached), config.clone()));
    }
    ProcessorLoad::start(lasts, strangers)
}

trait Link: Read + Write + Send {}
impl<T: Read + Write + Send> Link for T {}

/// Connects to one member after another.
struct Caller {
    addresses: Vec<Address>,
    dice: Prng,
    reached: Arc<StrangerCounters>,
}

impl Caller {
    fn new(addresses: &[Address], seed: u64, reached: &Arc<StrangerCounters>) -> Self {
        Self { addresses: addresses.to_vec(), dice: Prng::new(seed), reached: Arc::clone(reached) }
    }

    fn target(&mut self) -> Address {
        let place = self.dice.below(self.addresses.len() as u64);
        self.addresses[usize::try_from(place).unwrap_or(0)].clone()
    }

    /// A connection with the next member; `None` if that one has gone or accepts no more.
    fn call(&mut self) -> Option<Box<dyn Link>> {
        let link = connected(&self.target()).ok()?;
        self.reached.connections.fetch_add(1, Ordering::Relaxed);
        Some(link)
    }
}

fn connected(address: &Address) -> std::io::Result<Box<dyn Link>> {
    match address {
        Address::Tcp { host, port } => {
            let found = (host.as_str(), *port).to_socket_addrs()?.next();
            let stream = TcpStream::connect_timeout(&found.ok_or(std::io::ErrorKind::NotFound)?, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(Box::new(stream))
        }
        Address::Abstract(name) => unix(&SocketAddr::from_abstract_name(name)?),
        Address::Path(path) => unix(&SocketAddr::from_pathname(path)?),
    }
}

fn unix(address: &SocketAddr) -> std::io::Result<Box<dyn Link>> {
    let stream = UnixStream::connect_addr(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(Box::new(stream))
}

/// Sends bytes that mean nothing, reads what comes back, and closes.
fn garbage(mut caller: Caller) -> Box<dyn FnMut() + Send> {
    Box::new(move || {
        if let Some(mut link) = caller.call() {
            let length = 1 + caller.dice.below(600);
            let bytes: Vec<u8> = (0..length).map(|_| caller.dice.below(256) as u8).collect();
            // A member closes as soon as it recognises this.
            let _ = link.write_all(&bytes).and_then(|()| link.read(&mut [0; 256]));
        }
        std::thread::sleep(Duration::from_millis(10));
    })
}

/// Keeps some connections open, sends a byte occasionally, and never enough.
fn half_open(mut caller: Caller) -> Box<dyn FnMut() + Send> {
    let mut links: Vec<Box<dyn Link>> = Vec::new();
    Box::new(move || {
        if links.len() < HALF_OPEN {
            links.extend(caller.call());
        }
        // Members close them in time.
        links.retain_mut(|link| link.write_all(&[0]).is_ok());
        std::thread::sleep(Duration::from_millis(50));
    })
}

/// Connects and closes, again and again.
fn flood(mut caller: Caller) -> Box<dyn FnMut() + Send> {
    Box::new(move || {
        drop(caller.call());
        std::thread::sleep(Duration::from_millis(1));
    })
}

/// Speaks the protocol of a status request, but with another secret.
fn wrong_secret(mut caller: Caller, mut config: Config) -> Box<dyn FnMut() + Send> {
    config.secret = Secret::new("a secret that no member has").expect("it is long enough");
    Box::new(move || {
        let is_answered = squall::ask_status(&config, &caller.target()).is_ok();
        caller.reached.answers.fetch_add(u64::from(is_answered), Ordering::Relaxed);
        caller.reached.connections.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    })
}

/// How long a stranger waits for a member.
const PATIENCE: Duration = Duration::from_millis(200);
/// Half-open connections at a time.
const HALF_OPEN: usize = 24;
