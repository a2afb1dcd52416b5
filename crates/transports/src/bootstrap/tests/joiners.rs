//! Joiners at the admission listeners of a running group.

use super::message::AdmissionFrame;
use super::*;
use crate::Waker;

/// A member of a running group: its admission listener, and the events that it has reported.
struct TestMember<S: LinkSocket> {
    admission: Option<AdmissionListener>,
    address: Address,
    events: AdmissionEvents<S::Secured>,
}

const SESSION: u64 = 77;

impl<S: LinkSocket> TestMember<S> {
    fn open(change: impl FnOnce(&mut BootstrapPlan)) -> Self {
        let listen = if S::takes(&any_port()) { any_port() } else { unix_address() };
        Self::serve(BootstrapListener::bind(&listen).unwrap(), change)
    }

    fn serve(listener: BootstrapListener<S>, change: impl FnOnce(&mut BootstrapPlan)) -> Self {
        let address = listener.address().clone();
        let mut plan = plan(3, &address);
        change(&mut plan);
        let (admission, events) =
            AdmissionListener::open(Arc::new(listener), &plan, SESSION, Waker::new().unwrap()).unwrap();
        Self { admission: Some(admission), address, events }
    }

    fn event(&mut self) -> AdmissionEvent<S::Secured> {
        let deadline = soon();
        loop {
            if let Some(event) = self.events.poll_event() {
                return event;
            }
            assert!(Instant::now() < deadline, "no event at {}", self.address);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn asked(&mut self) -> (Asker, JoinInfo) {
        match self.event() {
            AdmissionEvent::JoinAsked { asker, info } => (asker, info),
            other => panic!("{other:?}"),
        }
    }

    fn peer(&mut self) -> (NodeId, S::Secured) {
        match self.event() {
            AdmissionEvent::Peer { node, stream, .. } => (node, stream),
            AdmissionEvent::LinkAsked { asker, node, .. } => {
                asker.take_link(node);
                self.peer()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn admission<S: LinkSocket>(node: u32, leader: u32, test_members: &[(u32, &TestMember<S>)]) -> Admission {
    let member = |(node, test_member): &(u32, &TestMember<S>)| BootstrapMember {
        node: NodeId(*node),
        address: test_member.address.clone(),
    };
    let members = test_members.iter().map(member).collect();
    Admission { node: NodeId(node), leader: NodeId(leader), members, token: b"token".to_vec() }
}

/// A process that joins, run by a thread.
struct Joiner<S: LinkSocket> {
    thread: JoinHandle<Result<TestJoined<S::Secured>, BootstrapError>>,
}

impl<S: LinkSocket> Joiner<S> {
    fn start(contacts: &[&Address], change: impl FnOnce(&mut BootstrapPlan)) -> Self {
        let mut plan = plan(3, contacts[0]);
        plan.contacts = contacts.iter().copied().cloned().collect();
        change(&mut plan);
        let thread = std::thread::spawn(move || {
            let listen = if plan.contacts[0].is_unix() { unix_address() } else { any_port() };
            let listener = BootstrapListener::<S>::bind(&listen).unwrap();
            join(&plan, &listener, &mut |_| ())
        });
        Self { thread }
    }

    fn joined(self) -> TestJoined<S::Secured> {
        self.thread.join().unwrap().unwrap()
    }

    fn error(self) -> BootstrapError {
        self.thread.join().unwrap().unwrap_err()
    }
}

/// Sends a join request as a joiner that follows the protocol only as far as the test wants.
fn ask_as_puppet(contact: &Address) -> FramedSocket<UnixStream> {
    let plan = plan(3, contact);
    let stream = <UnixStream as LinkSocket>::connect(contact, soon(), None).unwrap();
    let mut wire = FramedSocket::new(stream).unwrap();
    wire.prove(&plan.proof(), CallerKind::Joiner, soon().into()).unwrap();
    let (agreement, listen) = (plan.agreement.clone(), vec!["unix:@nowhere".into()]);
    wire.write_frame(
        &BootstrapRequest::Enter { agreement, listen, name: "puppet".into(), rank: None },
        soon(),
    )
    .unwrap();
    wire
}

fn says<S: Read + Write>(from: &mut S, to: &mut S, words: &[u8; 4]) {
    from.write_all(words).unwrap();
    let mut heard = [0; 4];
    to.read_exact(&mut heard).unwrap();
    assert_eq!(heard, *words);
}

/// Also asserts that a stream carries nothing but what its ends send.
fn assert_linked<S: Read + Write>(joined: &mut TestJoined<S>, member: u32, theirs: &mut S) {
    let (_, ours) = joined.links.streams.iter_mut().find(|(node, _)| node.0 == member).unwrap();
    says(ours, theirs, b"here");
    says(theirs, ours, b"and ");
}

/// Otherwise other members could begin a view with the joiner before this member has its link.
fn a_link_is_established_when_its_member_has_agreed<S: LinkSocket>() {
    let mut test_members: Vec<_> = (0..2).map(|_| TestMember::<S>::open(|_| {})).collect();
    let joiner = Joiner::<S>::start(&[&test_members[0].address], |_| {});
    let (asker, _) = test_members[0].asked();
    asker.admit(&admission(7, 0, &[(0, &test_members[0]), (2, &test_members[1])]));
    let AdmissionEvent::LinkAsked { asker, node, .. } = test_members[1].event() else {
        panic!("no link is asked for")
    };
    std::thread::sleep(Duration::from_millis(100));
    assert!(
        test_members.iter_mut().all(|test_member| test_member.events.poll_event().is_none()),
        "no member has agreed yet"
    );
    asker.take_link(node);
    let (_, mut stream) = test_members[1].peer();
    assert_eq!(test_members[0].peer().0, NodeId(7));
    assert!(matches!(test_members[0].event(), AdmissionEvent::Connected { node: NodeId(7) }));
    assert_linked(&mut joiner.joined(), 2, &mut stream);
}

/// Asks a member for a link as node 7.
fn ask_for_link(contact: &Address, session: u64) -> FramedSocket<UnixStream> {
    let plan = plan(3, contact);
    let stream = <UnixStream as LinkSocket>::connect(contact, soon(), None).unwrap();
    let mut wire = FramedSocket::new(stream).unwrap();
    wire.prove(&plan.proof(), CallerKind::Member, soon().into()).unwrap();
    wire.write_frame(
        &BootstrapRequest::Hello { session, node: 7, listen: "unix:@nowhere".into(), clock: 0 },
        soon(),
    )
    .unwrap();
    wire
}

/// The joiner is lost before a member decides.
#[test]
fn a_link_to_a_lost_joiner_fails() {
    let mut test_member = TestMember::<UnixStream>::open(|_| {});
    let wire = ask_for_link(&test_member.address, SESSION);
    let AdmissionEvent::LinkAsked { asker, node, .. } = test_member.event() else {
        panic!("no link is asked for")
    };
    drop(wire);
    std::thread::sleep(Duration::from_millis(100));
    asker.take_link(node);
    assert!(matches!(test_member.event(), AdmissionEvent::LinkFailed { node: NodeId(7) }));
}

fn a_joiner_links_with_all<S: LinkSocket>() {
    let mut test_members: Vec<_> = (0..3).map(|_| TestMember::<S>::open(|_| {})).collect();
    let joiner = Joiner::<S>::start(&[&test_members[2].address], |_| {});
    let (asker, info) = test_members[2].asked();
    assert_eq!((info.name.as_str(), info.addresses.len()), ("joiner", 1));
    asker.redirect(&test_members[0].address);
    let (asker, _) = test_members[0].asked();
    asker.admit(&admission(7, 0, &[(4, &test_members[2]), (0, &test_members[0]), (2, &test_members[1])]));
    let mut streams = Vec::new();
    for (test_member, member) in [(1, 2), (2, 4), (0, 0)] {
        let (node, stream) = test_members[test_member].peer();
        assert_eq!(node, NodeId(7));
        streams.push((member, stream));
    }
    assert!(matches!(test_members[0].event(), AdmissionEvent::Connected { node: NodeId(7) }));
    let mut joined = joiner.joined();
    let links = &joined.links;
    assert_eq!((links.node, joined.leader, links.session), (NodeId(7), NodeId(0), SESSION));
    assert_eq!(joined.token, b"token");
    let nodes: Vec<_> = links.members.iter().map(|member| member.node.0).collect();
    assert_eq!(nodes, [0, 2, 4]);
    assert_eq!(links.streams.iter().map(|(node, _)| node.0).collect::<Vec<_>>(), nodes);
    for (member, mut stream) in streams {
        assert_linked(&mut joined, member, &mut stream);
    }
}

#[test]
fn a_link_is_established_when_its_member_has_agreed_over_unix_sockets() {
    a_link_is_established_when_its_member_has_agreed::<UnixStream>();
}

#[test]
fn a_link_is_established_when_its_member_has_agreed_over_tcp() {
    a_link_is_established_when_its_member_has_agreed::<TcpStream>();
}

#[test]
fn a_joiner_links_with_all_over_unix_sockets() {
    a_joiner_links_with_all::<UnixStream>();
}

#[test]
fn a_joiner_links_with_all_over_tcp() {
    a_joiner_links_with_all::<TcpStream>();
}

#[test]
fn a_joiner_that_must_wait_asks_again() {
    let mut leader = TestMember::<UnixStream>::open(|_| {});
    let joiner = Joiner::<UnixStream>::start(&[&leader.address], |_| {});
    leader.asked().0.wait("a view is being changed");
    // A joiner without an answer is asked to wait as well.
    drop(leader.asked());
    leader.asked().0.admit(&admission(1, 0, &[(0, &leader)]));
    assert_eq!(leader.peer().0, NodeId(1));
    assert_eq!(joiner.joined().links.streams.len(), 1);
}

/// The leader is stopped while the joiner waits for its answer, then while it links; another member then
/// leads.
#[test]
fn a_leader_that_dies_is_left_for_another_contact() {
    for admitted in [false, true] {
        let mut leader = TestMember::<UnixStream>::open(|_| {});
        let mut other = TestMember::<UnixStream>::open(|_| {});
        let silent = BootstrapListener::<UnixStream>::bind(&unix_address()).unwrap();
        let joiner = Joiner::<UnixStream>::start(&[&leader.address, &other.address], |_| {});
        let (asker, _) = leader.asked();
        if admitted {
            let mut admission = admission(5, 0, &[(0, &leader), (1, &other)]);
            let address = silent.address().clone();
            admission.members.push(BootstrapMember { node: NodeId(2), address });
            asker.admit(&admission);
            assert_eq!(other.peer().0, NodeId(5));
        }
        drop(leader.admission.take());
        let (asker, _) = other.asked();
        asker.admit(&admission(6, 1, &[(1, &other)]));
        assert_eq!(joiner.joined().links.node, NodeId(6));
    }
}

/// A member that cannot be reached ends the attempt, and the leader learns of it; the next attempt may
/// succeed.
#[test]
fn an_attempt_that_fails_is_followed_by_another() {
    let mut leader = TestMember::<UnixStream>::open(|_| {});
    let joiner = Joiner::<UnixStream>::start(&[&leader.address], |_| {});
    let mut first = admission(5, 0, &[(0, &leader)]);
    first.members.push(BootstrapMember { node: NodeId(1), address: unix_address() });
    leader.asked().0.admit(&first);
    assert!(matches!(leader.event(), AdmissionEvent::Gone { node: NodeId(5) }));
    leader.asked().0.admit(&admission(6, 0, &[(0, &leader)]));
    assert_eq!(joiner.joined().links.node, NodeId(6));
    assert_eq!(leader.peer().0, NodeId(6));
}

/// At each step: before the answer, after it, and instead of the report.
#[test]
fn a_joiner_that_dies_during_the_join_is_reported() {
    let mut leader = TestMember::<UnixStream>::open(|_| {});
    let gone = |leader: &mut TestMember<UnixStream>, node| {
        let event = leader.event();
        assert!(matches!(event, AdmissionEvent::Gone { node: gone } if gone == NodeId(node)), "{event:?}");
    };
    let puppet = ask_as_puppet(&leader.address);
    let (asker, _) = leader.asked();
    drop(puppet);
    asker.admit(&admission(1, 0, &[(0, &leader)]));
    gone(&mut leader, 1);

    let mut puppet = ask_as_puppet(&leader.address);
    leader.asked().0.admit(&admission(2, 0, &[(0, &leader)]));
    assert!(matches!(puppet.read_frame::<BootstrapAnswer>(soon()), Ok(BootstrapAnswer::Admit(_))));
    drop(puppet);
    gone(&mut leader, 2);

    let mut puppet = ask_as_puppet(&leader.address);
    leader.asked().0.admit(&admission(3, 0, &[(0, &leader)]));
    assert!(matches!(puppet.read_frame::<BootstrapAnswer>(soon()), Ok(BootstrapAnswer::Admit(_))));
    puppet.write_frame(&message::LinkReport::Linked { session: SESSION }, soon()).unwrap();
    gone(&mut leader, 3);
}

/// A joining process answers callers that take it for a member, so that they ask another at once.
#[test]
fn a_joining_process_rejects_callers() {
    let mut leader = TestMember::<UnixStream>::open(|_| {});
    let joiner = Joiner::<UnixStream>::start(&[&leader.address], |_| {});
    let (asker, info) = leader.asked();
    let answer = ask_as_puppet(&info.addresses[0]).read_frame::<BootstrapAnswer>(soon()).unwrap();
    assert_eq!(answer, BootstrapAnswer::Refused(Refusal::Assembling));
    asker.admit(&admission(1, 0, &[(0, &leader)]));
    assert_eq!(joiner.joined().links.node, NodeId(1));
}

/// Silent strangers are closed in time, and do not exclude a joiner.
#[test]
fn silent_strangers_do_not_exclude_a_joiner() {
    let mut leader = TestMember::<TcpStream>::open(|plan| plan.unauthenticated_max = 4);
    let mut silent: Vec<_> = (0..12).map(|_| connect_tcp(&leader.address)).collect();
    let joiner = Joiner::<TcpStream>::start(&[&leader.address], |_| {});
    leader.asked().0.admit(&admission(1, 0, &[(0, &leader)]));
    assert_eq!(joiner.joined().links.node, NodeId(1));
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "a stranger receives nothing");
    }
}

/// Beyond a bound, processes that have proved the secret are asked to wait; each of the others gets an
/// answer.
#[test]
fn many_askers_are_bounded() {
    let mut leader = TestMember::<UnixStream>::open(|_| {});
    let mut puppets: Vec<_> =
        (0..admission::ASKERS_MAX + 10).map(|_| ask_as_puppet(&leader.address)).collect();
    let answers =
        puppets.iter_mut().rev().take(10).map(|puppet| puppet.read_frame::<BootstrapAnswer>(soon()).unwrap());
    assert!(answers.into_iter().all(|answer| matches!(answer, BootstrapAnswer::Wait { .. })));
    for _ in 0..admission::ASKERS_MAX {
        leader.asked().0.refuse("the group is full: enlarge it");
    }
    for puppet in &mut puppets[..admission::ASKERS_MAX] {
        let answer = puppet.read_frame::<BootstrapAnswer>(soon()).unwrap();
        assert_eq!(answer, BootstrapAnswer::Denied { reason: "the group is full: enlarge it".into() });
    }
}

#[test]
fn a_member_answers_questions() {
    let mut member = TestMember::<UnixStream>::open(|_| {});
    let (plan, address) = (plan(3, &member.address), member.address.clone());
    let asking =
        std::thread::spawn(move || [0, 1].map(|_| ask::<UnixStream>(&plan, &address, b"how are you?")));
    let AdmissionEvent::StatusAsked { asker, question } = member.event() else {
        panic!("expected StatusAsked")
    };
    assert_eq!(question, b"how are you?");
    asker.answer(vec![42; 4 << 20]);
    drop(member.event());
    let [first, second] = asking.join().unwrap();
    assert_eq!(first.unwrap(), vec![42; 4 << 20]);
    assert!(matches!(second, Err(BootstrapError::NoAnswer { .. })));
}

#[test]
fn permanent_failures_are_reported() {
    let mut leader = TestMember::<UnixStream>::open(|_| {});
    let contact = leader.address.clone();
    let error =
        Joiner::<UnixStream>::start(&[&contact], |plan| plan.agreement = plan.agreement.for_start(1, 1))
            .error();
    assert!(matches!(error, BootstrapError::Refused { refusal: Refusal::Agreement(_), .. }), "{error:?}");
    let own = BootstrapListener::<UnixStream>::bind(&unix_address()).unwrap();
    let alone = plan(3, own.address());
    let error = join(&alone, &own, &mut |_| ()).unwrap_err();
    assert!(matches!(error, BootstrapError::Plan(_)), "{error:?}");
    let error = JoinCalls::with(&plan(3, &contact), "jo\niner", &own, |_| ()).unwrap_err();
    assert!(matches!(error, BootstrapError::Plan(_)), "{error:?}");
    // A process of the first start comes too late.
    let event = claim_at::<UnixStream>(&plan(3, &contact), |_| {});
    assert!(matches!(event, MeetingEvent::Answered(ClaimAnswer::Running)), "{event:?}");
    let joiner = Joiner::<UnixStream>::start(&[&contact], |_| {});
    leader.asked().0.refuse("the group is full: enlarge it");
    let error = joiner.error();
    assert!(
        matches!(&error, BootstrapError::Denied { reason, .. } if reason.contains("enlarge")),
        "{error:?}"
    );
}

/// A link of another session, or of a group that is not assembled yet, is refused.
#[test]
fn a_link_is_of_this_session() {
    let mut member = TestMember::<UnixStream>::open(|_| {});
    let answer = |mut wire: FramedSocket<UnixStream>| wire.read_frame::<BootstrapAnswer>(soon()).unwrap();
    let other_session = BootstrapAnswer::Refused(Refusal::OtherSession);
    assert_eq!(answer(ask_for_link(&member.address, SESSION + 1)), other_session);
    let wire = ask_for_link(&member.address, SESSION);
    assert_eq!(member.peer().0, NodeId(7));
    assert_eq!(answer(wire), BootstrapAnswer::Accepted);
    let host = Host::<UnixStream>::open(&unix_address(), |_| {});
    let assembling = BootstrapAnswer::Refused(Refusal::Assembling);
    assert_eq!(answer(ask_for_link(&host.address, SESSION)), assembling);
    host.close();
}

/// A process that joins while the group is being assembled waits until there is an admission listener.
#[test]
fn a_joiner_that_comes_too_early_waits() {
    let host = Host::<UnixStream>::open(&unix_address(), |_| {});
    let joiner = Joiner::<UnixStream>::start(&[&host.address], |_| {});
    std::thread::sleep(Duration::from_millis(200));
    let (listener, progress) = host.close();
    assert!(progress.iter().any(|event| matches!(event, BootstrapProgress::Rejected { .. })), "{progress:?}");
    let mut leader = TestMember::serve(listener, |_| {});
    leader.asked().0.admit(&admission(2, 0, &[(0, &leader)]));
    assert_eq!(joiner.joined().links.node, NodeId(2));
}

/// Nothing that a leader of another release may send makes a joiner panic.
#[test]
fn an_invalid_admission_is_refused() {
    let good = AdmissionFrame {
        session: 1,
        node: 7,
        leader: 0,
        members: vec![(2, "unix:@b".into()), (0, "unix:@a".into())],
        token: Vec::new(),
    };
    let takes: fn(&Address) -> bool = <UnixStream as LinkSocket>::takes;
    let members = request::read_members(&good, takes).unwrap();
    assert_eq!(members.iter().map(|member| member.node.0).collect::<Vec<_>>(), [0, 2]);
    let many = (0..MEMBERS_MAX as u32).map(|node| (node + 10, "unix:@a".into())).collect();
    for bad in [
        AdmissionFrame { node: 2, ..good.clone() },
        AdmissionFrame { leader: 3, ..good.clone() },
        AdmissionFrame { members: vec![(0, "unix:@a".into()), (0, "unix:@b".into())], ..good.clone() },
        AdmissionFrame { members: vec![(0, "127.0.0.1:1".into())], ..good.clone() },
        AdmissionFrame { members: vec![(0, "?".into())], ..good.clone() },
        AdmissionFrame { members: Vec::new(), ..good.clone() },
        AdmissionFrame { members: many, leader: 10, ..good.clone() },
        AdmissionFrame { token: vec![0; admission::TOKEN_BYTES_MAX + 1], ..good.clone() },
    ] {
        assert!(request::read_members(&bad, takes).is_err(), "{bad:?}");
    }
}

/// The largest admission fits into a frame.
#[test]
fn the_largest_admission_can_be_sent() {
    let host = format!("{}:65535", "h".repeat(240));
    let members = (0..MEMBERS_MAX as u32 - 1).map(|node| (u32::MAX - node, host.clone())).collect();
    let token = vec![0xff; admission::TOKEN_BYTES_MAX];
    let admittance = AdmissionFrame { session: u64::MAX, node: 0, leader: u32::MAX, members, token };
    let (near, far) = UnixStream::pair().unwrap();
    let sender = std::thread::spawn(move || {
        let answer = BootstrapAnswer::Admit(admittance.clone());
        FramedSocket::new(near).unwrap().write_frame(&answer, soon()).unwrap();
        admittance
    });
    let read = FramedSocket::new(far).unwrap().read_frame::<BootstrapAnswer>(soon()).unwrap();
    assert_eq!(read, BootstrapAnswer::Admit(sender.join().unwrap()));
}
