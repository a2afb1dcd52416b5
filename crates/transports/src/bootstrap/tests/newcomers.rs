//! Joiners at the desks of a group that runs.

use super::message::Admittance;
use super::*;
use crate::Waker;

/// A member of a group that runs: its desk, and what came to it.
struct Seat<S: Link> {
    desk: Option<Desk>,
    address: Address,
    events: DeskEvents<S::Secured>,
}

const SESSION: u64 = 77;

impl<S: Link> Seat<S> {
    fn open(change: impl FnOnce(&mut Plan)) -> Self {
        let listen = if S::takes(&any_port()) { any_port() } else { unix_address() };
        Self::serve(Listener::bind(&listen).unwrap(), change)
    }

    fn serve(listener: Listener<S>, change: impl FnOnce(&mut Plan)) -> Self {
        let address = listener.address().clone();
        let mut plan = plan(3, &address);
        change(&mut plan);
        let (desk, events) = Desk::open(listener, &plan, SESSION, Waker::new().unwrap()).unwrap();
        Self { desk: Some(desk), address, events }
    }

    fn event(&mut self) -> DeskEvent<S::Secured> {
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
            DeskEvent::JoinAsked { asker, info } => (asker, info),
            other => panic!("{other:?}"),
        }
    }

    fn peer(&mut self) -> (NodeId, S::Secured) {
        match self.event() {
            DeskEvent::Peer { node, stream, .. } => (node, stream),
            DeskEvent::LinkAsked { asker, node, .. } => {
                asker.take_link(node);
                self.peer()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn admission<S: Link>(node: u32, leader: u32, seats: &[(u32, &Seat<S>)]) -> Admission {
    let member =
        |(node, seat): &(u32, &Seat<S>)| Member { node: NodeId(*node), address: seat.address.clone() };
    let members = seats.iter().map(member).collect();
    Admission { node: NodeId(node), leader: NodeId(leader), members, token: b"token".to_vec() }
}

/// A process that joins, run by a thread.
struct Newcomer<S: Link> {
    thread: JoinHandle<Result<TestJoined<S::Secured>, BootstrapError>>,
}

impl<S: Link> Newcomer<S> {
    fn start(contacts: &[&Address], change: impl FnOnce(&mut Plan)) -> Self {
        let mut plan = plan(3, contacts[0]);
        plan.contacts = contacts.iter().copied().cloned().collect();
        change(&mut plan);
        let thread = std::thread::spawn(move || {
            let listen = if plan.contacts[0].is_unix() { unix_address() } else { any_port() };
            let listener = Listener::<S>::bind(&listen).unwrap();
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

/// A newcomer that follows the protocol as far as the test wants.
fn ask_as_puppet(contact: &Address) -> Wire<UnixStream> {
    let plan = plan(3, contact);
    let stream = <UnixStream as Link>::connect(contact, soon(), None).unwrap();
    let mut wire = Wire::new(stream).unwrap();
    wire.prove(&plan.proof(), soon().into()).unwrap();
    let (agreement, listen) = (plan.agreement, vec!["unix:@nowhere".into()]);
    wire.write_frame(&Request::Enter { agreement, listen, name: "puppet".into(), rank: None }, soon())
        .unwrap();
    wire
}

fn says<S: Read + Write>(from: &mut S, to: &mut S, words: &[u8; 4]) {
    from.write_all(words).unwrap();
    let mut heard = [0; 4];
    to.read_exact(&mut heard).unwrap();
    assert_eq!(heard, *words);
}

/// Also that a stream carries nothing but what its ends say.
fn assert_linked<S: Read + Write>(joined: &mut TestJoined<S>, member: u32, theirs: &mut S) {
    let (_, ours) = joined.links.streams.iter_mut().find(|(node, _)| node.0 == member).unwrap();
    says(ours, theirs, b"here");
    says(theirs, ours, b"and ");
}

/// Else the others could begin a view with the newcomer before this member has its link.
fn a_link_stands_when_its_member_has_agreed<S: Link>() {
    let mut seats: Vec<_> = (0..2).map(|_| Seat::<S>::open(|_| {})).collect();
    let newcomer = Newcomer::<S>::start(&[&seats[0].address], |_| {});
    let (asker, _) = seats[0].asked();
    asker.admit(&admission(7, 0, &[(0, &seats[0]), (2, &seats[1])]));
    let DeskEvent::LinkAsked { asker, node, .. } = seats[1].event() else { panic!("no link is asked for") };
    std::thread::sleep(Duration::from_millis(100));
    assert!(seats.iter_mut().all(|seat| seat.events.poll_event().is_none()), "nobody has agreed yet");
    asker.take_link(node);
    let (_, mut stream) = seats[1].peer();
    assert_eq!(seats[0].peer().0, NodeId(7));
    assert!(matches!(seats[0].event(), DeskEvent::Connected { node: NodeId(7) }));
    assert_linked(&mut newcomer.joined(), 2, &mut stream);
}

/// Asks a member for a link as node 7.
fn ask_for_link(contact: &Address, session: u64) -> Wire<UnixStream> {
    let plan = plan(3, contact);
    let stream = <UnixStream as Link>::connect(contact, soon(), None).unwrap();
    let mut wire = Wire::new(stream).unwrap();
    wire.prove(&plan.proof(), soon().into()).unwrap();
    wire.write_frame(&Request::Hello { session, node: 7, listen: "unix:@nowhere".into() }, soon()).unwrap();
    wire
}

/// The newcomer goes while a member thinks.
#[test]
fn a_link_that_nobody_waits_for_fails() {
    let mut seat = Seat::<UnixStream>::open(|_| {});
    let wire = ask_for_link(&seat.address, SESSION);
    let DeskEvent::LinkAsked { asker, node, .. } = seat.event() else { panic!("no link is asked for") };
    drop(wire);
    std::thread::sleep(Duration::from_millis(100));
    asker.take_link(node);
    assert!(matches!(seat.event(), DeskEvent::LinkFailed { node: NodeId(7) }));
}

fn a_newcomer_links_with_all<S: Link>() {
    let mut seats: Vec<_> = (0..3).map(|_| Seat::<S>::open(|_| {})).collect();
    let newcomer = Newcomer::<S>::start(&[&seats[2].address], |_| {});
    let (asker, info) = seats[2].asked();
    assert_eq!((info.name.as_str(), info.addresses.len()), ("joiner", 1));
    asker.redirect(&seats[0].address);
    let (asker, _) = seats[0].asked();
    asker.admit(&admission(7, 0, &[(4, &seats[2]), (0, &seats[0]), (2, &seats[1])]));
    let mut streams = Vec::new();
    for (seat, member) in [(1, 2), (2, 4), (0, 0)] {
        let (node, stream) = seats[seat].peer();
        assert_eq!(node, NodeId(7));
        streams.push((member, stream));
    }
    assert!(matches!(seats[0].event(), DeskEvent::Connected { node: NodeId(7) }));
    let mut joined = newcomer.joined();
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
fn a_link_stands_when_its_member_has_agreed_over_unix_sockets() {
    a_link_stands_when_its_member_has_agreed::<UnixStream>();
}

#[test]
fn a_link_stands_when_its_member_has_agreed_over_tcp() {
    a_link_stands_when_its_member_has_agreed::<TcpStream>();
}

#[test]
fn a_newcomer_links_with_all_over_unix_sockets() {
    a_newcomer_links_with_all::<UnixStream>();
}

#[test]
fn a_newcomer_links_with_all_over_tcp() {
    a_newcomer_links_with_all::<TcpStream>();
}

#[test]
fn who_is_told_to_wait_comes_again() {
    let mut leader = Seat::<UnixStream>::open(|_| {});
    let newcomer = Newcomer::<UnixStream>::start(&[&leader.address], |_| {});
    leader.asked().0.wait("a view is being changed");
    // Without an answer it is told to wait as well.
    drop(leader.asked());
    leader.asked().0.admit(&admission(1, 0, &[(0, &leader)]));
    assert_eq!(leader.peer().0, NodeId(1));
    assert_eq!(newcomer.joined().links.streams.len(), 1);
}

/// The leader is ended while the newcomer waits for its word, then while it links; another member leads then.
#[test]
fn a_leader_that_dies_is_left_for_another_contact() {
    for admitted in [false, true] {
        let mut leader = Seat::<UnixStream>::open(|_| {});
        let mut other = Seat::<UnixStream>::open(|_| {});
        let silent = Listener::<UnixStream>::bind(&unix_address()).unwrap();
        let newcomer = Newcomer::<UnixStream>::start(&[&leader.address, &other.address], |_| {});
        let (asker, _) = leader.asked();
        if admitted {
            let mut admission = admission(5, 0, &[(0, &leader), (1, &other)]);
            let address = silent.address().clone();
            admission.members.push(Member { node: NodeId(2), address });
            asker.admit(&admission);
            assert_eq!(other.peer().0, NodeId(5));
        }
        drop(leader.desk.take());
        let (asker, _) = other.asked();
        asker.admit(&admission(6, 1, &[(1, &other)]));
        assert_eq!(newcomer.joined().links.node, NodeId(6));
    }
}

/// A member that cannot be reached ends the attempt, and the leader hears of it; the next may do better.
#[test]
fn an_attempt_that_fails_is_followed_by_another() {
    let mut leader = Seat::<UnixStream>::open(|_| {});
    let newcomer = Newcomer::<UnixStream>::start(&[&leader.address], |_| {});
    let mut first = admission(5, 0, &[(0, &leader)]);
    first.members.push(Member { node: NodeId(1), address: unix_address() });
    leader.asked().0.admit(&first);
    assert!(matches!(leader.event(), DeskEvent::Gone { node: NodeId(5) }));
    leader.asked().0.admit(&admission(6, 0, &[(0, &leader)]));
    assert_eq!(newcomer.joined().links.node, NodeId(6));
    assert_eq!(leader.peer().0, NodeId(6));
}

/// At each step: before the answer, after it, and instead of the report.
#[test]
fn a_newcomer_that_dies_half_way_is_gone() {
    let mut leader = Seat::<UnixStream>::open(|_| {});
    let gone = |leader: &mut Seat<UnixStream>, node| {
        let event = leader.event();
        assert!(matches!(event, DeskEvent::Gone { node: gone } if gone == NodeId(node)), "{event:?}");
    };
    let puppet = ask_as_puppet(&leader.address);
    let (asker, _) = leader.asked();
    drop(puppet);
    asker.admit(&admission(1, 0, &[(0, &leader)]));
    gone(&mut leader, 1);

    let mut puppet = ask_as_puppet(&leader.address);
    leader.asked().0.admit(&admission(2, 0, &[(0, &leader)]));
    assert!(matches!(puppet.read_frame::<Answer>(soon()), Ok(Answer::Admit(_))));
    drop(puppet);
    gone(&mut leader, 2);

    let mut puppet = ask_as_puppet(&leader.address);
    leader.asked().0.admit(&admission(3, 0, &[(0, &leader)]));
    assert!(matches!(puppet.read_frame::<Answer>(soon()), Ok(Answer::Admit(_))));
    puppet.write_frame(&message::Report::Linked { session: SESSION }, soon()).unwrap();
    gone(&mut leader, 3);
}

/// A process that waits to be let in answers those who take it for a member, so that they ask another at once.
#[test]
fn who_joins_sends_others_away() {
    let mut leader = Seat::<UnixStream>::open(|_| {});
    let newcomer = Newcomer::<UnixStream>::start(&[&leader.address], |_| {});
    let (asker, info) = leader.asked();
    let answer = ask_as_puppet(&info.addresses[0]).read_frame::<Answer>(soon()).unwrap();
    assert_eq!(answer, Answer::Refused(Refusal::Assembling));
    asker.admit(&admission(1, 0, &[(0, &leader)]));
    assert_eq!(newcomer.joined().links.node, NodeId(1));
}

/// Silent strangers are closed in time, and keep no newcomer out.
#[test]
fn silent_strangers_keep_no_newcomer_out() {
    let mut leader = Seat::<TcpStream>::open(|plan| plan.unauthenticated_max = 4);
    let mut silent: Vec<_> = (0..12).map(|_| connect_tcp(&leader.address)).collect();
    let newcomer = Newcomer::<TcpStream>::start(&[&leader.address], |_| {});
    leader.asked().0.admit(&admission(1, 0, &[(0, &leader)]));
    assert_eq!(newcomer.joined().links.node, NodeId(1));
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "a stranger hears nothing");
    }
}

/// Who has proved the secret and goes on asking is told to wait beyond a bound; nobody is forgotten.
#[test]
fn many_askers_are_bounded() {
    let mut leader = Seat::<UnixStream>::open(|_| {});
    let mut puppets: Vec<_> = (0..desk::ASKERS_MAX + 10).map(|_| ask_as_puppet(&leader.address)).collect();
    let answers =
        puppets.iter_mut().rev().take(10).map(|puppet| puppet.read_frame::<Answer>(soon()).unwrap());
    assert!(answers.into_iter().all(|answer| matches!(answer, Answer::Wait { .. })));
    for _ in 0..desk::ASKERS_MAX {
        leader.asked().0.refuse("the group is full: enlarge it");
    }
    for puppet in &mut puppets[..desk::ASKERS_MAX] {
        let answer = puppet.read_frame::<Answer>(soon()).unwrap();
        assert_eq!(answer, Answer::Denied { reason: "the group is full: enlarge it".into() });
    }
}

#[test]
fn a_member_answers_questions() {
    let mut member = Seat::<UnixStream>::open(|_| {});
    let (plan, address) = (plan(3, &member.address), member.address.clone());
    let asking =
        std::thread::spawn(move || [0, 1].map(|_| ask::<UnixStream>(&plan, &address, b"how are you?")));
    let DeskEvent::StatusAsked { asker, question } = member.event() else { panic!("something else") };
    assert_eq!(question, b"how are you?");
    asker.answer(vec![42; 100_000]);
    drop(member.event());
    let [first, second] = asking.join().unwrap();
    assert_eq!(first.unwrap(), vec![42; 100_000]);
    assert!(matches!(second, Err(BootstrapError::NoAnswer { .. })));
}

#[test]
fn what_can_never_work_is_named() {
    let mut leader = Seat::<UnixStream>::open(|_| {});
    let contact = leader.address.clone();
    let error = Newcomer::<UnixStream>::start(&[&contact], |plan| plan.agreement = [1; 32]).error();
    assert!(matches!(error, BootstrapError::Refused { refusal: Refusal::Agreement, .. }), "{error:?}");
    let own = Listener::<UnixStream>::bind(&unix_address()).unwrap();
    let alone = plan(3, own.address());
    let error = join(&alone, &own, &mut |_| ()).unwrap_err();
    assert!(matches!(error, BootstrapError::Plan(_)), "{error:?}");
    let error = JoinCalls::with(&plan(3, &contact), "new\ncomer", &own, |_| ()).unwrap_err();
    assert!(matches!(error, BootstrapError::Plan(_)), "{error:?}");
    // A process of the first start comes too late.
    let event = claim_at::<UnixStream>(&plan(3, &contact), |_| {});
    assert!(matches!(event, MeetingEvent::Answered(ClaimAnswer::Running)), "{event:?}");
    let newcomer = Newcomer::<UnixStream>::start(&[&contact], |_| {});
    leader.asked().0.refuse("the group is full: enlarge it");
    let error = newcomer.error();
    assert!(
        matches!(&error, BootstrapError::Denied { reason, .. } if reason.contains("enlarge")),
        "{error:?}"
    );
}

/// A link of another session, or of a group that has not come together yet, is refused.
#[test]
fn a_link_is_of_this_session() {
    let mut member = Seat::<UnixStream>::open(|_| {});
    let answer = |mut wire: Wire<UnixStream>| wire.read_frame::<Answer>(soon()).unwrap();
    let other_session = Answer::Refused(Refusal::OtherSession);
    assert_eq!(answer(ask_for_link(&member.address, SESSION + 1)), other_session);
    let wire = ask_for_link(&member.address, SESSION);
    assert_eq!(member.peer().0, NodeId(7));
    assert_eq!(answer(wire), Answer::Accepted);
    let host = Host::<UnixStream>::open(&unix_address(), |_| {});
    let assembling = Answer::Refused(Refusal::Assembling);
    assert_eq!(answer(ask_for_link(&host.address, SESSION)), assembling);
    host.close();
}

/// Who comes while the group still assembles waits until there is a desk.
#[test]
fn who_comes_too_early_waits() {
    let host = Host::<UnixStream>::open(&unix_address(), |_| {});
    let newcomer = Newcomer::<UnixStream>::start(&[&host.address], |_| {});
    std::thread::sleep(Duration::from_millis(200));
    let (listener, progress) = host.close();
    assert!(progress.iter().any(|event| matches!(event, Progress::Rejected { .. })), "{progress:?}");
    let mut leader = Seat::serve(listener, |_| {});
    leader.asked().0.admit(&admission(2, 0, &[(0, &leader)]));
    assert_eq!(newcomer.joined().links.node, NodeId(2));
}

/// What a leader of another release could say never makes a newcomer panic.
#[test]
fn an_admission_that_makes_no_sense_is_refused() {
    let good = Admittance {
        session: 1,
        node: 7,
        leader: 0,
        members: vec![(2, "unix:@b".into()), (0, "unix:@a".into())],
        token: Vec::new(),
    };
    let takes: fn(&Address) -> bool = <UnixStream as Link>::takes;
    let members = request::read_members(&good, takes).unwrap();
    assert_eq!(members.iter().map(|member| member.node.0).collect::<Vec<_>>(), [0, 2]);
    let many = (0..600).map(|node| (node + 10, "unix:@a".into())).collect();
    for bad in [
        Admittance { node: 2, ..good.clone() },
        Admittance { leader: 3, ..good.clone() },
        Admittance { members: vec![(0, "unix:@a".into()), (0, "unix:@b".into())], ..good.clone() },
        Admittance { members: vec![(0, "127.0.0.1:1".into())], ..good.clone() },
        Admittance { members: vec![(0, "?".into())], ..good.clone() },
        Admittance { members: Vec::new(), ..good.clone() },
        Admittance { members: many, leader: 10, ..good.clone() },
        Admittance { token: vec![0; desk::TOKEN_BYTES_MAX + 1], ..good.clone() },
    ] {
        assert!(request::read_members(&bad, takes).is_err(), "{bad:?}");
    }
}

/// The largest admission fits into a frame.
#[test]
fn the_largest_admission_travels() {
    let host = format!("{}:65535", "h".repeat(240));
    let members = (0..MEMBERS_MAX as u32 - 1).map(|node| (u32::MAX - node, host.clone())).collect();
    let token = vec![0xff; desk::TOKEN_BYTES_MAX];
    let admittance = Admittance { session: u64::MAX, node: 0, leader: u32::MAX, members, token };
    let (near, far) = UnixStream::pair().unwrap();
    let sender = std::thread::spawn(move || {
        let answer = Answer::Admit(admittance.clone());
        Wire::new(near).unwrap().write_frame(&answer, soon()).unwrap();
        admittance
    });
    let read = Wire::new(far).unwrap().read_frame::<Answer>(soon()).unwrap();
    assert_eq!(read, Answer::Admit(sender.join().unwrap()));
}
