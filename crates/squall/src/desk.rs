//! A member's desk, as its polling thread serves it: who is let in, under which number and rank (Derecho §3.3).
//!
//! **Law.** The member of the lowest rank of the view admits, one process at a time, and only while its view is ready;
//! so whoever is admitted next finds the one before among the members. Each step can fail at any process:
//!
//! 1. *Admitted*: the newcomer has a number that no node ever had, since it names the view, in which only one member
//!    admits ([`node_number`]), and a rank that no member has.
//! 2. *Linked*: each member takes the link into its fabric, whether or not the newcomer will ever be a member. If it
//!    dies, the fabric says so, and it is forgotten.
//! 3. *Connected*: the leader lets it in with the next view; and again with the one after that, if a view came between.
//!
//! A leader that dies takes its admission with it: the newcomer sees that, closes its links and asks again.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use squall_fabric::{BreakReason, Core as _, Event, Fabric as _, Instant, NodeId};
use squall_protocols::group::Group;
use squall_protocols::membership::{MEMBERS_MAX, Member, View};
use squall_transports::Transport as _;
use squall_transports::bootstrap::{
    self, Address, Admission, Asker, BootstrapError, Desk, DeskEvent, DeskEvents, JoinInfo,
};

use squall_transports::session::PeerStream;

use crate::application::Handles;
use crate::config::Config;
use crate::entrance::{AnyListener, Token};
use crate::links::{Links, Verdict, node_number};
use crate::status::Status;
use crate::transport::{AnyFabric, AnyStream};

/// The desk, and what is known of those who come.
#[derive(Debug)]
pub(crate) struct FrontDesk {
    // Before the desk, which they would keep waiting.
    events: AnyEvents,
    _desk: Desk,
    /// Has the roster, which application threads read.
    status: Arc<Status>,
    /// Who was admitted here and is no member yet.
    guest: Option<Guest>,
    /// Who has linked and is in no view yet.
    newcomers: Links,
    /// In which view this member has admitted how many.
    admitted: (u64, u32),
}

#[derive(Debug)]
enum AnyEvents {
    Unix(DeskEvents<UnixStream>),
    Tcp(DeskEvents<PeerStream>),
}

/// A process that has been admitted.
#[derive(Clone, Copy, Debug)]
struct Guest {
    node: NodeId,
    rank: u64,
    /// It has linked with all members.
    connected: bool,
}

impl FrontDesk {
    pub(crate) fn open(
        listener: AnyListener,
        config: &Config,
        session: u64,
        status: Arc<Status>,
        fabric: &AnyFabric,
    ) -> Result<Self, BootstrapError> {
        let (plan, waker) = (config.plan(), fabric.waker());
        let (desk, events) = match listener {
            AnyListener::Unix(listener) => {
                let (desk, events) = Desk::open(listener, &plan, session, waker)?;
                (desk, AnyEvents::Unix(events))
            }
            AnyListener::Tcp(listener) => {
                let (desk, events) = Desk::open(listener, &plan, session, waker)?;
                (desk, AnyEvents::Tcp(events))
            }
        };
        let (newcomers, admitted) = (Links::default(), (0, 0));
        Ok(Self { events, _desk: desk, status, guest: None, newcomers, admitted })
    }

    /// Takes what has come; returns questions that are not about joining. Costs one load when nothing has.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        fabric: &mut AnyFabric,
        group: &mut Group<Handles>,
    ) -> Option<(Asker, Vec<u8>)> {
        loop {
            let event = match &mut self.events {
                AnyEvents::Unix(events) => {
                    events.poll_event().map(|event| with_any_stream(event, AnyStream::Unix))
                }
                AnyEvents::Tcp(events) => {
                    events.poll_event().map(|event| with_any_stream(event, AnyStream::Tcp))
                }
            }?;
            if let Some(question) = self.handle(event, fabric, group) {
                return Some(question);
            }
        }
    }

    #[cold]
    fn handle(
        &mut self,
        event: DeskEvent<AnyStream>,
        fabric: &mut AnyFabric,
        group: &mut Group<Handles>,
    ) -> Option<(Asker, Vec<u8>)> {
        match event {
            DeskEvent::JoinAsked { asker, info } => self.on_join_asked(asker, &info, fabric, group),
            DeskEvent::Peer { node, address, stream } => self.on_peer(node, address, stream, fabric, group),
            DeskEvent::Connected { node } => {
                if let Some(guest) = self.guest.as_mut().filter(|guest| guest.node == node) {
                    guest.connected = true;
                    self.look_at_guest(fabric, group);
                }
            }
            DeskEvent::Gone { node } => self.guest = self.guest.filter(|guest| guest.node != node),
            DeskEvent::StatusAsked { asker, question } => return Some((asker, question)),
            // Further kinds are for members that know them.
            _ => {}
        }
        None
    }

    fn on_join_asked(&mut self, asker: Asker, info: &JoinInfo, fabric: &AnyFabric, group: &Group<Handles>) {
        let Some(membership) = group.membership() else { return asker.wait("its group has ended") };
        let view = membership.view();
        let leader = view.members[0].node;
        if leader != fabric.node() {
            return match self.status.roster().get(&leader) {
                Some(address) => asker.redirect(address),
                None => asker.wait("it does not know the leader's address yet"),
            };
        }
        if !group.is_ready() {
            return asker.wait("its view changes just now");
        }
        if self.guest.is_some() {
            return asker.wait("another process joins just now");
        }
        if view.members.len() == MEMBERS_MAX {
            return asker.refuse(&format!("its group has {MEMBERS_MAX} members, and cannot have more"));
        }
        let is_taken = |rank: u64| view.members.iter().find(|member| member.tag == rank);
        let rank = match info.rank.map(u64::from) {
            None => (0..).find(|rank| is_taken(*rank).is_none()).expect("there are more than members"),
            Some(rank) => match is_taken(rank) {
                None => rank,
                Some(member) => {
                    let node = member.node;
                    let text = format!("{node} has rank {rank}: end that process, or ask for another rank");
                    return asker.wait(&text);
                }
            },
        };
        self.admit(asker, rank, view);
    }

    fn admit(&mut self, asker: Asker, rank: u64, view: &View) {
        let leader = view.members[0].node;
        let nodes = view.nodes().into_iter();
        let member =
            |node| Some(bootstrap::Member { node, address: self.status.roster().get(&node)?.clone() });
        let Some(members) = nodes.map(member).collect::<Option<Vec<_>>>() else {
            return asker.wait("it does not know all members' addresses yet");
        };
        if self.admitted.0 != view.id {
            self.admitted = (view.id, 0);
        }
        let Some(node) = node_number(view.id, self.admitted.1) else {
            return asker.refuse("all numbers are spent: start the group anew");
        };
        self.admitted.1 += 1;
        let token = postcard::to_stdvec(&Token { rank }).expect("a number serialises");
        asker.admit(&Admission { node, leader, members, token });
        self.guest = Some(Guest { node, rank, connected: false });
    }

    fn on_peer(
        &mut self,
        node: NodeId,
        address: Address,
        stream: AnyStream,
        fabric: &mut AnyFabric,
        group: &mut Group<Handles>,
    ) {
        self.end_expired(fabric);
        let view = group.membership().map_or(0, |membership| membership.view().id);
        let is_known = self.status.roster().contains_key(&node);
        match self.newcomers.judge(node, is_known, view, fabric.now()) {
            Verdict::Close => {
                tracing::warn!(%node, %address, "a link was closed: no process that joins has this number");
                return;
            }
            Verdict::Report => {
                tracing::warn!(%node, %address, "a link with a process that joins was closed: it has to ask again");
                self.forget(node, fabric);
                return report_unlinked(node, fabric, group);
            }
            Verdict::Take => {}
        }
        match fabric.add_peer(node, stream) {
            Ok(()) => {
                self.status.roster().insert(node, address);
            }
            Err(error) => {
                tracing::warn!(%node, %error, "a link with a newcomer was closed");
                self.newcomers.remove(node);
                report_unlinked(node, fabric, group);
            }
        }
    }

    /// Parts with a process that is in no view.
    fn forget(&mut self, node: NodeId, fabric: &mut AnyFabric) {
        self.guest = self.guest.filter(|guest| guest.node != node);
        if self.newcomers.remove(node) {
            self.status.roster().remove(&node);
            fabric.remove_peer(node);
        }
    }

    /// To be called now and then: ends the links whose processes have not become members.
    pub(crate) fn end_expired(&mut self, fabric: &mut AnyFabric) {
        for node in self.newcomers.take_expired(fabric.now()) {
            tracing::info!(%node, "a link was closed: its process has not become a member");
            self.status.roster().remove(&node);
            fabric.remove_peer(node);
        }
    }

    /// When there is something to do without an event.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.newcomers.next_deadline()
    }

    /// Takes an event of the fabric.
    pub(crate) fn handle_event(&mut self, event: &Event, fabric: &mut AnyFabric) {
        let Event::PeerLost { peer, .. } = event else { return };
        self.forget(*peer, fabric);
    }

    /// To be called in each new view: parts with joiners that were members of a view which ended before all had begun it. They
    /// can ask again as soon as they see that.
    pub(crate) fn part_with_removed(&mut self, fabric: &mut AnyFabric, group: &Group<Handles>) {
        for node in self.newcomers.take_members(|node| group.has_lost(*node)) {
            tracing::info!(%node, "a process that joined was removed before it had begun its first view");
            self.status.roster().remove(&node);
            fabric.remove_peer(node);
        }
        self.guest = self.guest.filter(|guest| !group.has_lost(guest.node));
    }

    /// To be called now and then: the guest goes into the next view, or has come into this one.
    pub(crate) fn look_at_guest(&mut self, fabric: &mut AnyFabric, group: &mut Group<Handles>) {
        let Some((guest, membership)) = self.guest.zip(group.membership()) else { return };
        let view = membership.view();
        if view.rank(guest.node).is_some() {
            self.guest = None;
        } else if view.members[0].node != fabric.node() {
            self.guest = None;
            self.newcomers.remove(guest.node);
            self.status.roster().remove(&guest.node);
            fabric.remove_peer(guest.node);
        } else if guest.connected {
            group.admit(Member { node: guest.node, tag: guest.rank });
        }
    }

    /// A view has been installed: those who have linked before and are in it are newcomers no more; whoever is in no
    /// list is forgotten. Returns the members that were newcomers.
    pub(crate) fn begin_view(&mut self, view: &View) -> Vec<NodeId> {
        let is_member = |node: &NodeId| view.rank(*node).is_some();
        let arrived = self.newcomers.take_members(is_member);
        let newcomers = &self.newcomers;
        self.status.roster().retain(|node, _| is_member(node) || newcomers.contains(*node));
        arrived
    }
}

/// Says that this member has no link with a process that joins: it may come into a view all the same, by what others see of it.
fn report_unlinked(node: NodeId, fabric: &mut AnyFabric, group: &mut Group<Handles>) {
    group.handle_event(fabric, &Event::PeerLost { peer: node, reason: BreakReason::PeerClosed });
}

fn with_any_stream<S>(event: DeskEvent<S>, any: fn(S) -> AnyStream) -> DeskEvent<AnyStream> {
    match event {
        DeskEvent::Peer { node, address, stream } => DeskEvent::Peer { node, address, stream: any(stream) },
        DeskEvent::JoinAsked { asker, info } => DeskEvent::JoinAsked { asker, info },
        DeskEvent::Connected { node } => DeskEvent::Connected { node },
        DeskEvent::Gone { node } => DeskEvent::Gone { node },
        DeskEvent::StatusAsked { asker, question } => DeskEvent::StatusAsked { asker, question },
        _ => unreachable!("these are all"),
    }
}
