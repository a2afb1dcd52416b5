//! The links of a copy's session, each with each. All of them lead to the port of a `serve`: the source calls every host, and each
//! host those before it in the order of the ranks; so nothing has to reach the source, and a host needs one open port.
//!
//! The source names the copy before it names the hosts to each other, so a link never arrives before it is expected: one of an
//! unknown copy is refused at once. A host reports when its own calls are answered, and the source lets all begin when all have
//! reported: each link is with both its ends then.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use squall::config::{Address, Config, IdlePolicy, Secret, VerbsSettings};
use squall_fabric::mutex::lock;
use squall_harness::terminal::error_text;
use squall_transports::session::PeerStream;

use super::CopyTrust;
use super::connection::{ProvedConnection, is_cut_off, reach};
use super::host::CopyHost;
use super::message::{CopyCall, CopyLinkAnswer, CopyLinks, CopyToken};
use super::{CopyBegin, CopyConnection, CopyTransport};

/// A link, and what cuts it.
pub(crate) type CopyLink = (PeerStream, TcpStream);

/// Where links wait for the copy to which they belong; one copy at a time is expected.
#[derive(Debug)]
pub(crate) struct LinkDesk<L>(Mutex<Option<ExpectedLinks<L>>>);

#[derive(Debug)]
struct ExpectedLinks<L> {
    copy: CopyToken,
    /// By the rank of the caller, below [`MEMBERS_MAX`].
    links: BTreeMap<usize, L>,
}

/// The place of a link that is about to arrive; the copy continues when it is filled or given up.
#[derive(Debug)]
pub(crate) struct LinkPlace<'d, L> {
    expected: MutexGuard<'d, Option<ExpectedLinks<L>>>,
    rank: usize,
}

/// A copy that expects links, until this is dropped.
#[derive(Debug)]
pub(crate) struct LinkTicket<'d, L>(&'d LinkDesk<L>);

impl<L> Default for LinkDesk<L> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<L> LinkDesk<L> {
    /// Expects the links of this copy from now on.
    pub(crate) fn expect(&self, copy: CopyToken) -> LinkTicket<'_, L> {
        *self.lock() = Some(ExpectedLinks { copy, links: BTreeMap::new() });
        LinkTicket(self)
    }

    /// Returns the place of a link of this copy from its member of this rank, or why there is none.
    pub(crate) fn place(&self, copy: CopyToken, rank: usize) -> Result<LinkPlace<'_, L>, String> {
        let expected = self.lock();
        match &*expected {
            Some(known) if known.copy == copy => {
                if rank >= MEMBERS_MAX {
                    return Err(format!("this copy expects no link from rank {rank}"));
                }
            }
            _ => {
                return Err("no copy of that name is under way here: it has ended, or was never begun".into());
            }
        }
        Ok(LinkPlace { expected, rank })
    }

    fn lock(&self) -> MutexGuard<'_, Option<ExpectedLinks<L>>> {
        lock(&self.0)
    }
}

impl<L> LinkPlace<'_, L> {
    /// Puts a link there; one that was there its caller has given up.
    pub(crate) fn fill(mut self, link: L) {
        if let Some(expected) = &mut *self.expected {
            expected.links.insert(self.rank, link);
        }
    }
}

impl<L> LinkTicket<'_, L> {
    /// Takes the links of these ranks.
    fn take(&self, ranks: impl IntoIterator<Item = usize>) -> Result<Vec<(usize, L)>> {
        let mut expected = self.0.lock();
        let mut take = |rank| Some((rank, expected.as_mut()?.links.remove(&rank)?));
        let taken =
            ranks.into_iter().map(|rank| take(rank).with_context(|| format!("rank {rank} has no link here")));
        taken.collect()
    }
}

impl<L> Drop for LinkTicket<'_, L> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Makes the links of the host that has received `begin`, and waits until all hosts have theirs. They are in the order of the ranks.
///
/// # Errors
/// If a host before this one cannot be reached, of which the source is informed, or the source does not begin.
pub(crate) fn join(
    line: &CopyConnection,
    begin: &CopyBegin,
    (copy, ticket): (CopyToken, &LinkTicket<'_, CopyLink>),
    CopyHost { trust, silence, .. }: &CopyHost,
) -> Result<Vec<(usize, PeerStream)>> {
    let (rank, members, source) = (begin.rank, begin.hosts.len() + 1, Address::of_socket(&line.peer()?));
    let mut called = Vec::new();
    for (other, host) in (1..rank).zip(&begin.hosts) {
        let address = host.parse::<Address>().with_context(|| format!("{host} is no address"))?;
        match call(&address.as_reached_by(&source), (copy, rank), (trust, *silence)) {
            Ok((link, _)) => called.push((other, link)),
            Err(error) => {
                let message = error_text(&error);
                line.write(&CopyLinks::Failed { rank: other, message: message.clone() })?;
                bail!("another host of this copy cannot be reached from here: {message}");
            }
        }
    }
    line.write(&CopyLinks::Made)?;
    let begun: Result<()> = line.read();
    begun
        .context("the copy does not begin: not all of its hosts reach each other (the source knows which)")?;
    let mut links = Vec::with_capacity(members - 1);
    for (other, (link, cut)) in ticket.take([0])? {
        line.cut_with_line(cut);
        links.push((other, link));
    }
    links.append(&mut called);
    links.extend(ticket.take(rank + 1..members)?.into_iter().map(|(other, (link, _))| (other, link)));
    Ok(links)
}

/// Calls the host at `address` and makes a link of the member of this rank. A call that is cut off is repeated.
///
/// # Errors
/// If the host cannot be reached, or refuses it.
pub(crate) fn call(
    address: &Address,
    (copy, rank): (CopyToken, usize),
    (trust, silence): (&CopyTrust, Duration),
) -> Result<CopyLink> {
    let Address::Tcp { host, port } = address else { bail!("{address} is no address between hosts") };
    let begun = Instant::now();
    loop {
        let answered = reach(host, *port, trust, &CopyCall::Link { copy, rank })
            .and_then(|mut connection| Ok((connection.hear()?, connection)));
        match answered {
            Ok((CopyLinkAnswer::Accepted, connection)) => return connection.into_link(silence),
            Ok((CopyLinkAnswer::Refused { message }, _)) => bail!("{address} refuses it: {message}"),
            Err(error) if is_cut_off(&error) && begun.elapsed() < CALL_PATIENCE => {
                std::thread::sleep(CALL_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Answers a caller that is a link.
pub(crate) fn receive(
    mut connection: ProvedConnection,
    CopyHost { links, silence, .. }: &CopyHost,
    (copy, rank): (CopyToken, usize),
) -> Result<()> {
    match links.place(copy, rank) {
        Ok(place) => {
            // The place is taken meanwhile, so the copy finds the link when its caller reports it.
            connection.say(&CopyLinkAnswer::Accepted)?;
            place.fill(connection.into_link(*silence)?);
            Ok(())
        }
        Err(message) => {
            connection.say(&CopyLinkAnswer::Refused { message: message.clone() })?;
            bail!(message)
        }
    }
}

/// The configuration of a session over links.
pub(crate) fn session_config(
    members: usize,
    transport: CopyTransport,
    verbs: &VerbsSettings,
    secret: &Secret,
) -> Config {
    let mut config = Config::local("copy", members);
    config.secret = secret.clone();
    config.transport = transport.named();
    config.verbs = verbs.clone();
    config.listen = Address::Tcp { host: "0.0.0.0".into(), port: 0 };
    config.contacts.clear();
    // Blocks are long, and the digests need the cores as well.
    config.idle = IdlePolicy::Park;
    config
}

/// Checks what a source says about the hosts of its copy.
pub(crate) fn check(begin: &CopyBegin) -> Result<()> {
    let (rank, members) = (begin.rank, begin.hosts.len() + 1);
    ensure!(
        members <= MEMBERS_MAX && (1..members).contains(&rank),
        "there is no rank {rank} among {members} members"
    );
    Ok(())
}

/// A source and the hosts of one copy.
pub(crate) const MEMBERS_MAX: usize = 1 << 12;
/// For a call that is cut off, as when one end was stopped for a while.
const CALL_PATIENCE: Duration = Duration::from_secs(20);
const CALL_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: CopyToken = CopyToken(7);

    #[test]
    fn links_wait_for_their_copy_alone() {
        let desk = LinkDesk::default();
        assert!(desk.place(COPY, 0).unwrap_err().contains("no copy of that name"));
        let ticket = desk.expect(COPY);
        assert!(desk.place(CopyToken(8), 0).unwrap_err().contains("no copy of that name"));
        for rank in [2, 0, 2] {
            desk.place(COPY, rank).unwrap().fill(format!("link {rank}"));
        }
        assert!(desk.place(COPY, MEMBERS_MAX).is_err());
        // A caller that has gone gives its place up.
        drop(desk.place(COPY, 3).unwrap());
        let taken = ticket.take([0, 2]).unwrap();
        assert_eq!(taken, [(0, "link 0".to_owned()), (2, "link 2".to_owned())]);
        assert!(ticket.take([3]).is_err());
        drop(ticket);
        assert!(desk.place(COPY, 1).is_err(), "the copy has ended");
    }

    #[test]
    fn a_rank_must_be_among_the_hosts() {
        let begin = |hosts: usize, rank| CopyBegin {
            hosts: vec!["192.0.2.1:7401".into(); hosts],
            rank,
            transport: CopyTransport::Tcp,
        };
        assert!(check(&begin(2, 1)).is_ok() && check(&begin(2, 2)).is_ok());
        for (hosts, rank) in [(0, 0), (0, 1), (2, 0), (2, 3), (MEMBERS_MAX, 1), (1, usize::MAX)] {
            assert!(check(&begin(hosts, rank)).is_err(), "rank {rank} of {hosts}");
        }
    }
}
