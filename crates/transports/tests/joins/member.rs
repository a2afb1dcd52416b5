//! A process of a small group: its members show each other a word through mirrors, and the one with the
//! lowest number leads.
//!
//! It prints one line per event: `node N` at the start, `asked` when it keeps a joiner waiting, and `sees A
//! B` whenever the set of nodes whose words have reached it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use squall_fabric::{FabricEvent, MirrorId, MirrorKey, NodeId, Region};
use squall_transports::TransportFabric;
use squall_transports::bootstrap::{
    Address, Admission, AdmissionEvent, AdmissionEvents, AdmissionListener, Asker, BootstrapListener,
    BootstrapMember, BootstrapPlan, JoinReply, LinkSocket, LinkSource, MeetingEvent, MeetingPoint, Secret,
};
use squall_transports::runner::{Driven, IdleLimits, Runner};

use crate::backend::Backend;
use crate::join::join;

/// The step at which a joiner kills itself, as `kill -9` would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DieAt {
    Never,
    /// Between the leader's reply and the links.
    Admitted,
    /// When all links are established.
    Joined,
    /// In the middle of the first messages of the fabric, after this many polls.
    Attaching(u32),
}

pub(crate) fn plan(contacts: Vec<Address>) -> BootstrapPlan {
    let secret = Secret::new("the secret of the processes").expect("long enough");
    let mut plan = BootstrapPlan::new("processes", &secret, 3);
    plan.contacts = contacts;
    // Long enough that no attempt fails because the machine is busy.
    plan.timeout = crate::backend::PATIENCE;
    plan.handshake_timeout = plan.timeout / 3;
    plan
}

/// Runs one of the first three members.
pub(crate) fn first<F: Backend + TransportFabric>(listen: &Address, contacts: Vec<Address>, holds: bool) {
    let listener = BootstrapListener::<F::Stream>::bind(listen).expect("free");
    let plan = plan(contacts);
    let (node, streams) = link_first(&plan, &listener);
    let mut group = MemberGroup::<F>::new(node, listener, &plan, SESSION);
    group.holds = holds;
    group.addresses.extend((0..).map(NodeId).zip(plan.contacts));
    for (node, stream) in streams {
        group.add(node, stream);
    }
    group.run();
}

/// Establishes the links of one of the first members, which are the contacts, in the order of their ranks:
/// each calls those before it.
fn link_first<S: LinkSocket>(
    plan: &BootstrapPlan,
    listener: &BootstrapListener<S>,
) -> (NodeId, Vec<(NodeId, S::Secured)>) {
    let own = plan.contacts.iter().position(|contact| listener.is_at(contact)).expect("a contact");
    let own = NodeId(u32::try_from(own).expect("three"));
    let deadline = Instant::now() + plan.timeout;
    let linked = MeetingPoint::with(plan, listener, |point| {
        let mut links = BTreeMap::new();
        let mut lower = (0..own.0).map(NodeId).peekable();
        let mut is_idle = true;
        while links.len() + 1 < plan.contacts.len() {
            if let Some(node) = lower.peek().filter(|_| is_idle) {
                point.link(SESSION, own, *node, &plan.contacts[node.0 as usize], deadline);
                is_idle = false;
            }
            for event in point.poll(deadline, &mut |_| ()).expect("descriptors") {
                match event {
                    MeetingEvent::LinkAsked { visitor, node, .. } => {
                        point.take_link(visitor);
                        links.insert(node, LinkSource::Visitor(visitor));
                    }
                    MeetingEvent::Linked => {
                        point.keep();
                        links.insert(lower.next().expect("called"), LinkSource::Called);
                        is_idle = true;
                    }
                    // The other member has not started yet.
                    MeetingEvent::Failed(_) => {
                        std::thread::sleep(Duration::from_millis(10));
                        is_idle = true;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(Instant::now() < deadline, "the three members do not find each other");
        }
        point.finish(links)
    });
    (own, linked.expect("a plan to follow").expect("links"))
}

/// Runs a member that joins later.
pub(crate) fn joiner<F: Backend + TransportFabric>(listen: &Address, contacts: Vec<Address>, die_at: DieAt) {
    let listener = BootstrapListener::<F::Stream>::bind(listen).expect("free");
    let plan = plan(contacts);
    let mut on_reply = |reply: &JoinReply| {
        if matches!(reply, JoinReply::Admit { .. }) && die_at == DieAt::Admitted {
            die();
        }
    };
    let joined = join(&plan, &listener, &mut on_reply).expect("admitted");
    assert_eq!(joined.token, b"welcome");
    assert!(joined.links.members.iter().any(|member| member.node == joined.leader), "{joined:?}");
    let joined = joined.links;
    if die_at == DieAt::Joined {
        die();
    }
    let mut group = MemberGroup::<F>::new(joined.node, listener, &plan, joined.session);
    for member in joined.members {
        group.addresses.insert(member.node, member.address);
    }
    for (node, stream) in joined.streams {
        group.add(node, stream);
    }
    if let DieAt::Attaching(polls) = die_at {
        for _ in 0..polls {
            group.fabric.poll(&mut |_| ());
        }
        die();
    }
    group.run();
}

fn die() -> ! {
    kill_process(rustix::process::getpid(), Signal::KILL).expect("our own");
    unreachable!("dead")
}

struct MemberGroup<F: Backend> {
    node: NodeId,
    fabric: F,
    _listener: AdmissionListener,
    admission_events: AdmissionEvents<<F::Stream as LinkSocket>::Secured>,
    peers: BTreeMap<NodeId, Row>,
    /// The addresses of the members, this node included.
    addresses: BTreeMap<NodeId, Address>,
    /// The largest number that is used, as far as this node knows.
    spent: NodeId,
    /// The joiner that this node has admitted and that is not connected yet.
    admitted: Option<(NodeId, Address)>,
    /// Lost nodes; the admission listener may report later that such a node has connected.
    lost: BTreeSet<NodeId>,
    /// Whether it keeps joiners waiting forever.
    holds: bool,
    held: Vec<Asker>,
    answered: BTreeSet<NodeId>,
}

/// The word that this node shows one peer, and the one that it sees of it.
struct Row {
    mirror: MirrorId,
    own: Region,
    view: Region,
}

impl<F: Backend + TransportFabric> MemberGroup<F> {
    fn new(node: NodeId, listener: BootstrapListener<F::Stream>, plan: &BootstrapPlan, session: u64) -> Self {
        let fabric = F::alone(node);
        let own = listener.address().clone();
        let (admission, admission_events) =
            AdmissionListener::open(std::sync::Arc::new(listener), plan, session, fabric.waker())
                .expect("a thread");
        say(&format!("node {}", node.0));
        Self {
            node,
            fabric,
            _listener: admission,
            admission_events,
            peers: BTreeMap::new(),
            addresses: BTreeMap::from([(node, own)]),
            spent: node,
            admitted: None,
            lost: BTreeSet::new(),
            holds: false,
            held: Vec::new(),
            answered: BTreeSet::new(),
        }
    }

    fn run(&mut self) {
        let mut runner = Runner::new(IdleLimits::PARK);
        loop {
            runner.step(self);
        }
    }

    fn add(&mut self, peer: NodeId, stream: <F::Stream as LinkSocket>::Secured) {
        self.spent = self.spent.max(peer);
        let key = |owner: NodeId, reader: NodeId| MirrorKey(u64::from(owner.0) << 32 | u64::from(reader.0));
        // This precedes the peer: mirror and attachment wait for it.
        let own = self.fabric.register(64);
        let mirror = self.fabric.publish(key(self.node, peer), &own, &[peer]);
        let view = self.fabric.attach(peer, key(peer, self.node), 64);
        self.fabric.add(peer, stream).expect("a new number");
        self.peers.insert(peer, Row { mirror, own, view });
    }

    fn leads(&self) -> bool {
        self.peers.keys().all(|peer| *peer > self.node)
    }

    fn on_event(&mut self, event: &FabricEvent) {
        match event {
            FabricEvent::Attached { reader, .. } => {
                let row = &self.peers[reader];
                row.own.store(5, word_of(self.node));
                self.fabric.push_word(row.mirror, 5);
            }
            FabricEvent::PeerLost { peer, .. } => {
                let row = self.peers.remove(peer).expect("a peer is lost once");
                self.fabric.remove(*peer);
                self.fabric.retire(row.mirror);
                self.addresses.remove(peer);
                self.lost.insert(*peer);
            }
            _ => {}
        }
    }

    fn on_admission(&mut self, event: AdmissionEvent<<F::Stream as LinkSocket>::Secured>) {
        match event {
            AdmissionEvent::JoinAsked { asker, .. } if self.holds && self.leads() => {
                say("asked");
                self.held.push(asker);
            }
            AdmissionEvent::JoinAsked { asker, info } if self.leads() => match &self.admitted {
                Some(_) => asker.wait("another is joining"),
                None => {
                    self.spent = NodeId(self.spent.0 + 1);
                    self.admitted = Some((self.spent, info.addresses[0].clone()));
                    asker.admit(&self.admission());
                }
            },
            AdmissionEvent::JoinAsked { asker, .. } => {
                let leader = self.peers.keys().next().expect("it does not lead");
                asker.redirect(&self.addresses[leader]);
            }
            AdmissionEvent::LinkAsked { asker, node, .. } => asker.take_link(node),
            AdmissionEvent::Peer { node, stream, .. } if !self.peers.contains_key(&node) => {
                self.add(node, stream)
            }
            AdmissionEvent::Connected { node } => {
                let (admitted, address) = self.admitted.take().expect("admitted here");
                assert_eq!(admitted, node);
                if !self.lost.contains(&node) {
                    self.addresses.insert(node, address);
                }
            }
            AdmissionEvent::Gone { .. } => self.admitted = None,
            AdmissionEvent::StatusAsked { asker, .. } => {
                asker.answer(format!("node {} with {} peers", self.node.0, self.peers.len()).into_bytes());
            }
            _ => {}
        }
    }

    fn admission(&self) -> Admission {
        let member =
            |(node, address): (&NodeId, &Address)| BootstrapMember { node: *node, address: address.clone() };
        let members = self.addresses.iter().map(member).collect();
        Admission { node: self.spent, leader: self.node, members, token: b"welcome".to_vec() }
    }

    /// Prints the peers whose words have arrived, if they have changed.
    fn look(&mut self) {
        let seen = self.peers.iter().filter(|(peer, row)| row.view.load(5) == word_of(**peer));
        let seen: BTreeSet<_> = seen.map(|(peer, _)| *peer).collect();
        if seen != self.answered {
            let text: Vec<_> = seen.iter().map(|peer| peer.0.to_string()).collect();
            say(&format!("sees {}", text.join(" ")));
            self.answered = seen;
        }
    }
}

impl<F: Backend + TransportFabric> Driven for MemberGroup<F> {
    type Transport = F;

    fn transport(&mut self) -> &mut F {
        &mut self.fabric
    }

    fn poll(&mut self) -> usize {
        let mut events = Vec::new();
        let mut work = self.fabric.poll(&mut |event| events.push(event));
        events.iter().for_each(|event| self.on_event(event));
        while let Some(event) = self.admission_events.poll_event() {
            work += 1;
            self.on_admission(event);
        }
        self.look();
        work
    }
}

/// The session of the group of each test.
const SESSION: u64 = 7;

fn word_of(node: NodeId) -> u64 {
    0x5eed_0000 + u64::from(node.0)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the parent reads");
}
