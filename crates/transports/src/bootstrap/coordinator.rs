//! The coordinator: gathers the members, gives out ranks, and says go when all links stand.

use std::time::Instant;

use rustix::fd::{AsFd, BorrowedFd};
use squall_fabric::NodeId;

use super::error::system;
use super::link::Link;
use super::message::{Answer, Notice, Refusal, Report, Request, Stop};
use super::reception::{Reception, Visitor};
use super::scout::Scout;
use super::secret::random_bytes;
use super::wire::{Wire, WireError};
use super::{ADDRESS_BYTES_MAX, Address, Assembly, BootstrapError, Listener, Member, Plan, Progress};

pub(super) fn coordinate<S: Link>(
    plan: &Plan,
    listener: &Listener<S>,
    scout: &Scout,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Assembly<S::Secured>, BootstrapError> {
    let deadline = Instant::now() + plan.timeout;
    let proof = plan.proof();
    let reception = Reception::new(plan, listener, &proof);
    let mut gathering = Gathering { plan, reception, scout, deadline, on_progress, joined: Vec::new() };
    let outcome = gathering.gather().and_then(|()| gathering.introduce(listener.address()));
    let (session, members) = outcome.inspect_err(|error| gathering.stop(error))?;
    gathering.await_links(&members).inspect_err(|error| gathering.stop(error))?;
    gathering.dismiss(session, members)
}

struct Gathering<'p, 'c, S: Link> {
    plan: &'p Plan,
    reception: Reception<'p, S>,
    scout: &'p Scout,
    deadline: Instant,
    on_progress: &'c mut dyn FnMut(Progress),
    /// In the order of arrival; after `introduce` in the order of ranks, beginning with rank 1.
    joined: Vec<Joined<S>>,
}

struct Joined<S> {
    wire: Wire<S>,
    peer: String,
    rank: Option<u32>,
    listen: Address,
    linked: bool,
}

impl<S: Link> Gathering<'_, '_, S> {
    fn gather(&mut self) -> Result<(), BootstrapError> {
        self.announce();
        while self.count() < self.plan.members {
            if Instant::now() >= self.deadline {
                return Err(BootstrapError::Incomplete { joined: self.count(), members: self.plan.members });
            }
            // Who has been gathered meanwhile finds the group that runs, too.
            if let Some(contact) = self.scout.found() {
                return Err(BootstrapError::Running { contact });
            }
            let visitors = self.receive()?;
            self.forget_lost();
            for visitor in visitors {
                self.on_visitor(visitor);
            }
        }
        Ok(())
    }

    /// The members that have joined, ourselves included.
    fn count(&self) -> u32 {
        u32::try_from(self.joined.len() + 1).expect("at most MEMBERS_MAX")
    }

    fn receive(&mut self) -> Result<Vec<Visitor<S>>, BootstrapError> {
        let watched: Vec<BorrowedFd<'_>> = self.joined.iter().map(|joined| joined.wire.as_fd()).collect();
        let until = self.scout.next_look().map_or(self.deadline, |look| look.min(self.deadline));
        self.reception.poll(&watched, until, self.on_progress)
    }

    /// Those who have joined are silent until they are introduced; so whatever comes means that one is lost.
    fn forget_lost(&mut self) {
        let before = self.joined.len();
        self.joined.retain_mut(|joined| {
            let stays = matches!(joined.wire.poll_frame::<Report>(), Ok(None));
            if !stays {
                (self.on_progress)(Progress::Left { peer: joined.peer.clone() });
            }
            stays
        });
        if self.joined.len() < before {
            self.announce();
        }
    }

    fn on_visitor(&mut self, mut visitor: Visitor<S>) {
        let (rank, listen) = match self.judge(&visitor) {
            Ok(accepted) => accepted,
            Err(refusal) => return visitor.turn_away(refusal, self.on_progress),
        };
        // Who has gone already is found by `forget_lost`.
        let _ = visitor.wire.write_frame(&Answer::Accepted, Instant::now());
        self.joined.push(Joined { wire: visitor.wire, peer: visitor.peer, rank, listen, linked: false });
        self.announce();
    }

    fn judge(&self, visitor: &Visitor<S>) -> Result<(Option<u32>, Address), Refusal> {
        let Request::Join { members, rank, agreement, listen } = &visitor.request else {
            return Err(visitor.request.too_early().unwrap_or(Refusal::OtherSession));
        };
        if *members != self.plan.members {
            return Err(Refusal::MemberCount { coordinator: self.plan.members });
        }
        if *agreement != self.plan.agreement {
            return Err(Refusal::Agreement);
        }
        if self.count() == self.plan.members {
            return Err(Refusal::Complete);
        }
        if let Some(rank) = *rank {
            if rank == 0 || rank >= self.plan.members {
                return Err(Refusal::RankOutOfRange { rank });
            }
            if self.joined.iter().any(|joined| joined.rank == Some(rank)) {
                return Err(Refusal::RankTaken { rank });
            }
        }
        let reachable = || {
            let listen = listen.parse().ok().filter(|_| listen.len() <= ADDRESS_BYTES_MAX)?;
            Some(seen_from_here(listen, visitor.wire.stream()))
        };
        Ok((*rank, reachable().ok_or(Refusal::Unusable)?))
    }

    /// Tells everybody how many have joined.
    fn announce(&mut self) {
        let joined = self.count();
        for member in &mut self.joined {
            // Who has gone is found by `forget_lost`.
            let _ = member.wire.write_frame(&Notice::Joined { joined }, self.deadline);
        }
        (self.on_progress)(Progress::Joined { joined, members: self.plan.members });
    }

    /// Gives out the ranks and sends the roster to all.
    fn introduce(&mut self, own: &Address) -> Result<(u64, Vec<Member>), BootstrapError> {
        let joined = std::mem::take(&mut self.joined);
        self.joined = in_order_of_ranks(joined);
        let addresses = std::iter::once(own).chain(self.joined.iter().map(|joined| &joined.listen)).cloned();
        let members: Vec<_> =
            (0..).map(NodeId).zip(addresses).map(|(node, address)| Member { node, address }).collect();
        let session = u64::from_le_bytes(random_bytes());
        let listen: Vec<_> = members.iter().map(|member| member.address.to_string()).collect();
        for (joined, member) in self.joined.iter_mut().zip(&members[1..]) {
            let roster = Notice::Roster { session, node: member.node.0, listen: listen.clone() };
            joined.wire.write_frame(&roster, self.deadline).map_err(|_| lost(member))?;
        }
        Ok((session, members))
    }

    fn await_links(&mut self, members: &[Member]) -> Result<(), BootstrapError> {
        while !self.joined.iter().all(|joined| joined.linked) {
            if Instant::now() >= self.deadline {
                let unready = self.joined.iter().zip(&members[1..]).filter(|(joined, _)| !joined.linked);
                let unready = unready.map(|(_, member)| (member.node, member.address.clone())).collect();
                return Err(BootstrapError::Unready { unready });
            }
            for visitor in self.receive()? {
                let refusal = visitor.request.too_early().unwrap_or(Refusal::Complete);
                visitor.turn_away(refusal, self.on_progress);
            }
            for (joined, member) in self.joined.iter_mut().zip(&members[1..]) {
                joined.poll_report().map_err(|_| lost(member))?;
            }
        }
        Ok(())
    }

    fn dismiss(mut self, session: u64, members: Vec<Member>) -> Result<Assembly<S::Secured>, BootstrapError> {
        for joined in &mut self.joined {
            // Some have their go already; who dies now dies as a member of the group, and its stream will say so.
            let _ = joined.wire.write_frame(&Notice::Go, self.deadline);
        }
        let streams = self.joined.into_iter().zip(&members[1..]);
        let streams = streams.map(|(joined, member)| Ok((member.node, joined.wire.into_stream()?)));
        let streams = streams.collect::<Result<_, _>>().map_err(system("to make a socket blocking"))?;
        Ok(Assembly { node: NodeId(0), session, members, streams })
    }

    /// Tells everybody why it is over.
    fn stop(&mut self, error: &BootstrapError) {
        let stop = match error {
            BootstrapError::MemberLost { node, address } => {
                Stop::MemberLost { node: node.0, listen: address.to_string() }
            }
            BootstrapError::Incomplete { joined, .. } => Stop::Incomplete { joined: *joined },
            BootstrapError::Unready { unready } => {
                Stop::Unready { nodes: unready.iter().map(|(node, _)| node.0).collect() }
            }
            // They see that we have gone.
            _ => return,
        };
        let notice = Notice::Stopped(stop);
        for joined in &mut self.joined {
            // The deadline may be over, but short messages fit into the socket's buffer.
            let _ = joined.wire.write_frame(&notice, Instant::now());
        }
    }
}

impl<S: Link> Joined<S> {
    fn poll_report(&mut self) -> Result<(), WireError> {
        match self.wire.poll_frame()? {
            Some(Report::Linked) if !self.linked => {
                self.linked = true;
                Ok(())
            }
            Some(_) => Err(WireError::Malformed("a report out of place")),
            None => Ok(()),
        }
    }
}

fn lost(member: &Member) -> BootstrapError {
    BootstrapError::MemberLost { node: member.node, address: member.address.clone() }
}

/// Those who have asked for a rank get it, the others fill the gaps in the order of arrival.
fn in_order_of_ranks<S>(joined: Vec<Joined<S>>) -> Vec<Joined<S>> {
    let (asking, others): (Vec<_>, Vec<_>) = joined.into_iter().partition(|joined| joined.rank.is_some());
    let mut places: Vec<Option<Joined<S>>> = (0..asking.len() + others.len()).map(|_| None).collect();
    for joined in asking {
        let rank = joined.rank.expect("partitioned by it");
        places[rank as usize - 1] = Some(joined);
    }
    let mut others = others.into_iter();
    let filled = places.into_iter().map(|place| place.or_else(|| others.next()));
    filled.map(|place| place.expect("as many as places")).collect()
}

/// Who listens at all addresses of its host is reached at the one that its packets come from.
pub(super) fn seen_from_here<S: Link>(listen: Address, stream: &S) -> Address {
    match (&listen, stream.peer_ip()) {
        (Address::Tcp { host, port }, Some(ip))
            if host.parse::<std::net::IpAddr>().is_ok_and(|host| host.is_unspecified()) =>
        {
            Address::Tcp { host: ip.to_string(), port: *port }
        }
        _ => listen,
    }
}
