//! Where copies arrive: each connection proves the secret in a thread of its own and in limited time, and then waits for
//! its turn.
//!
//! The number of connections that have not proved the secret is bounded. When there are too many, the source address with the
//! most of them loses one at random; so a host that fills all places takes them from itself, and from others only those above
//! its fair share. At random, since an honest caller beside strangers of its own address, however fast they come, keeps its
//! place long enough sooner or later; the oldest one would be lost each time if they come faster than a proof.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Result, anyhow};
use rustix::process::{Resource, getrlimit};
use squall::bulk::BulkError;
use squall::config::VerbsSettings;
use squall_fabric::mutex::lock;
use squall_harness::terminal::error_text;

use super::CopyTrust;
use super::connection::ProvedConnection;
use super::folder::Folder;
use super::links::{self, CopyLink, LinkDesk};
use super::message::CopyCall;
use super::queue::{CopiesAhead, CopyQueue};
use super::{CopyConnection, HostId, QueuePosition, random_number, receive};

/// A host that receives copies.
pub(crate) struct CopyHost {
    pub(crate) trust: CopyTrust,
    pub(crate) verbs: VerbsSettings,
    pub(crate) folder: Folder,
    /// After which a source or another host is given up.
    pub(crate) silence: Duration,
    /// By which sources recognise the host, whatever name they use for it.
    id: HostId,
    queue: CopyQueue,
    pub(crate) links: LinkDesk<CopyLink>,
    unproved: Mutex<Unproved>,
}

/// How a copy has ended: its source, and the number of files received.
pub(crate) type CopyEnd = (String, Result<usize>);

impl CopyHost {
    pub(crate) fn new(
        trust: CopyTrust,
        verbs: VerbsSettings,
        folder: Folder,
        silence: Duration,
    ) -> Result<Self> {
        let unproved = Mutex::new(Unproved { max: unproved_max(), ..Unproved::default() });
        let (id, queue) = (HostId(random_number()?), CopyQueue::default());
        Ok(Self { trust, verbs, folder, silence, id, queue, links: LinkDesk::default(), unproved })
    }

    /// Accepts connections forever, each in a thread; copies that have ended are reported to `ended`.
    pub(crate) fn run(self: Arc<Self>, listener: &TcpListener, ended: &Sender<CopyEnd>) {
        loop {
            let taken = listener.accept().and_then(|(stream, peer)| {
                let (entrance, ended) = (Arc::clone(&self), ended.clone());
                let Some(number) = self.unproved().admit(peer.ip(), stream) else { return Ok(()) };
                let thread = std::thread::Builder::new().name("copy".into());
                let started = thread.spawn(move || entrance.attend(number, &peer.to_string(), &ended));
                if started.is_err() {
                    self.unproved().remove(number);
                }
                started.map(drop)
            });
            if let Err(error) = taken {
                // It may be closed already, or file descriptors, threads or memory may be short for a while.
                tracing::warn!("a connection could not be accepted: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    /// From the proof to the end of the copy.
    fn attend(&self, number: u64, peer: &str, ended: &Sender<CopyEnd>) {
        let Some(stream) = self.unproved().stream(number) else { return };
        let proved = ProvedConnection::demand(stream, &self.trust);
        // What has proved the secret needs no place; without one, the connection is closed already.
        if !self.unproved().remove(number) {
            return tracing::debug!("{peer} was refused: too many connections wait for their proof");
        }
        let called = proved.and_then(|mut connection| Ok((connection.hear()?, connection)));
        let (call, connection) = match called {
            Ok(called) => called,
            Err(error) => return tracing::warn!("{peer} was refused: {}", error_text(&error)),
        };
        let line = match call {
            CopyCall::Control => connection.into_line(self.silence),
            CopyCall::Link { copy, rank } => {
                if let Err(error) = links::receive(connection, self, (copy, rank)) {
                    tracing::warn!("a link from {peer} was refused: {}", error_text(&error));
                }
                return;
            }
        };
        let line = match line {
            Ok(line) => line,
            Err(error) => return tracing::warn!("{peer}: {}", error_text(&error)),
        };
        let Some(outcome) = self.receive(&line, peer) else { return };
        // Fails when the command is about to end.
        let _ = ended.send((peer.to_owned(), outcome));
    }

    /// Receives one copy when its turn has come; `None` if the source closed before.
    fn receive(&self, line: &CopyConnection, peer: &str) -> Option<Result<usize>> {
        let hello = line.write(&self.id).and_then(|()| line.read::<()>());
        if let Err(error) = hello {
            tracing::warn!("{peer}: {}", error_text(&error));
            return None;
        }
        let Some(ticket) = self.queue.queue(peer) else {
            let message = "too many copies wait here already: try again later".to_owned();
            let _ = line.write(&QueuePosition::Refused { message });
            return None;
        };
        let mut is_new = true;
        while let Some(CopiesAhead { copies, source }) =
            ticket.wait(if is_new { Duration::ZERO } else { WORD_PERIOD })
        {
            if is_new {
                tracing::info!("{peer} waits for the copy from {source}");
            }
            is_new = false;
            if line.is_lost() {
                return None;
            }
            line.write(&QueuePosition::Waiting { copies, source }).ok()?;
        }
        line.write(&QueuePosition::First).ok()?;
        let outcome = receive::serve(line, self);
        Some(outcome.map_err(|error| match error.downcast_ref() {
            Some(BulkError::RootLost) => {
                anyhow!(
                    "the source has gone: what has arrived is kept, and the next copy continues from there"
                )
            }
            _ => error,
        }))
    }

    fn unproved(&self) -> MutexGuard<'_, Unproved> {
        lock(&self.unproved)
    }
}

/// Connections that have not proved the secret.
#[derive(Debug, Default)]
struct Unproved {
    /// `connections.len() <= max`.
    max: usize,
    connections: Vec<Connection>,
    numbers: u64,
    random: RandomState,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    source: IpAddr,
    stream: Arc<TcpStream>,
}

impl Unproved {
    /// Takes a connection and returns its number; `None` if it was closed, as others of its source have all places.
    fn admit(&mut self, source: IpAddr, stream: TcpStream) -> Option<u64> {
        let source = network(source);
        if self.connections.len() >= self.max {
            let count = |of: IpAddr| self.connections.iter().filter(|other| other.source == of).count();
            let greatest = self.connections.iter().map(|other| other.source).max_by_key(|of| count(*of))?;
            let mut of_it = (0..self.connections.len()).filter(|at| self.connections[*at].source == greatest);
            let random = self.random.hash_one(self.numbers) % count(greatest) as u64;
            let leaving = of_it.nth(usize::try_from(random).expect("below a count"))?;
            // Its thread notices at once.
            let _ = self.connections.remove(leaving).stream.shutdown(Shutdown::Both);
        }
        self.numbers += 1;
        self.connections.push(Connection { number: self.numbers, source, stream: Arc::new(stream) });
        Some(self.numbers)
    }

    fn stream(&self, number: u64) -> Option<Arc<TcpStream>> {
        self.connections.iter().find(|other| other.number == number).map(|found| Arc::clone(&found.stream))
    }

    /// Removes a connection; returns whether it was still there.
    fn remove(&mut self, number: u64) -> bool {
        let before = self.connections.len();
        self.connections.retain(|other| other.number != number);
        self.connections.len() < before
    }
}

/// What one user usually has: an IPv4 address, or the first half of an IPv6 address.
fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

/// A bound that leaves enough descriptors for copies under way.
fn unproved_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / 8).map_or(UNPROVED_MAX, |share| share.clamp(UNPROVED_MIN, UNPROVED_MAX))
}

/// Until the next attempt, if a connection could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time between two reports to a copy that waits.
const WORD_PERIOD: Duration = Duration::from_secs(2);
const UNPROVED_MIN: usize = 4;
const UNPROVED_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpStream::connect(listener.local_addr().unwrap()).unwrap()
    }

    /// A source that fills all places loses its own connections, not always the oldest; another one is admitted and stays.
    #[test]
    fn a_source_takes_places_from_itself() {
        let mut unproved = Unproved { max: 4, ..Unproved::default() };
        let [flood, honest] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let first: Vec<u64> = (0..4).map(|_| unproved.admit(flood, stream()).unwrap()).collect();
        let caller = unproved.admit(honest, stream()).unwrap();
        assert_eq!(first.iter().filter(|number| unproved.stream(**number).is_some()).count(), 3);
        let mut has_outlived_later_ones = false;
        for _ in 0..40 {
            let newest = unproved.admit(flood, stream()).unwrap();
            assert!(unproved.stream(caller).is_some() && unproved.stream(newest).is_some());
            assert_eq!(unproved.connections.len(), 4);
            let is_there = |number: u64| unproved.stream(number).is_some();
            has_outlived_later_ones |= !is_there(newest - 1) && is_there(newest - 2);
        }
        assert!(has_outlived_later_ones, "the oldest one left each time");
        assert!(unproved.remove(caller) && !unproved.remove(caller));
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let network = |text: &str| network(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:0:2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
    }
}
