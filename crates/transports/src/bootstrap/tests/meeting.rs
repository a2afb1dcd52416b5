//! The connections of a process that meets others, and its listening socket.

use std::collections::BTreeMap;

use serde::Serialize;

use super::message::LinkReport;
use super::*;
use crate::tcp::reopening::{ReopenBallot, ReopenRequest};

/// Accepts a connection and its request, as a contact that follows the protocol no further.
fn accept(listener: &BootstrapListener<UnixStream>) -> (FramedSocket<UnixStream>, BootstrapRequest) {
    let stream = loop {
        match listener.accept() {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut wire = FramedSocket::new(stream).unwrap();
    let proof = plan(2, listener.address()).proof();
    let caller = proof.demand(&mut wire.waiting(soon().into()), None, MEMBER_CALLERS).unwrap();
    wire.begin(caller.session);
    let request = wire.read_frame(soon()).unwrap();
    (wire, request)
}

/// Returns the event that a follower reports for a frame of its coordinator.
fn heard(frame: &impl Serialize) -> MeetingEvent {
    let contact = BootstrapListener::<UnixStream>::bind(&unix_address()).unwrap();
    let own = BootstrapListener::<UnixStream>::bind(&unix_address()).unwrap();
    let plan = plan(2, contact.address());
    MeetingPoint::with(&plan, &own, |point| {
        point.ask(contact.address(), claim(&plan, own.address()), plan.timeout, soon());
        let (mut wire, request) = accept(&contact);
        assert_eq!(request, BootstrapRequest::Join(claim(&plan, own.address())));
        wire.write_frame(&BootstrapAnswer::Accepted, soon()).unwrap();
        assert!(matches!(next(point), MeetingEvent::Answered(ClaimAnswer::Accepted)));
        point.keep();
        wire.write_frame(frame, soon()).unwrap();
        next(point)
    })
    .unwrap()
}

/// The coordinator is trusted, but a wrong release of it must not make a member panic.
#[test]
fn an_invalid_notice_is_reported() {
    let roster = |listen: [&str; 2]| (1_u32, 1_u64, 1_u32, 0_u32, listen.map(String::from).to_vec());
    let sound = heard(&roster(["unix:@a", "unix:@b"]));
    assert!(
        matches!(sound, MeetingEvent::Noticed(CoordinatorNotice::Roster { session: 1, node: 1, .. })),
        "{sound:?}"
    );
    for nonsense in [["unix:@a", "b"], ["unix:@a", "127.0.0.1:1"], ["unix:@a", &"b".repeat(300)]] {
        let event = heard(&roster(nonsense));
        assert!(matches!(event, MeetingEvent::Nonsense(_)), "{event:?}");
    }
    let event = heard(&77_u32);
    assert!(matches!(event, MeetingEvent::Nonsense(_)), "{event:?}");
    let event = heard(&CoordinatorNotice::Released(ReleaseFrame::Redirect(any_port())));
    assert!(matches!(event, MeetingEvent::Nonsense(_)), "{event:?}");
}

/// An unusable claim is refused, and the core does not see it.
#[test]
fn an_invalid_claim_is_refused() {
    let host = Host::<UnixStream>::open(&unix_address(), |_| {});
    let plan = plan(3, &host.address);
    let address = unix_address();
    let nonsense: [&dyn Fn(&mut ClaimFrame); 3] = [
        &|claim| claim.listen = any_port(),
        &|claim| claim.contact = Some((1, vec![address.clone()])),
        &|claim| claim.contact = Some((0, vec![any_port()])),
    ];
    for change in nonsense {
        let event = claim_at::<UnixStream>(&plan, change);
        let MeetingEvent::Answered(ClaimAnswer::Later(reason)) = event else { panic!("{event:?}") };
        assert_eq!(reason, Refusal::Unusable.to_string());
    }
    assert_open(&host);
    host.close();
}

/// An accepted process is lost if it closes its connection, or sends anything but the report that its links
/// are established.
#[test]
fn followers_report_or_are_lost() {
    let listener = BootstrapListener::<UnixStream>::bind(&unix_address()).unwrap();
    let plan = plan(3, listener.address());
    MeetingPoint::with(&plan, &listener, |point| {
        let mut join = || {
            let stream = <UnixStream as LinkSocket>::connect(listener.address(), soon(), None).unwrap();
            let mut wire = FramedSocket::new(stream).unwrap();
            let proof = plan.proof();
            let request = BootstrapRequest::Join(claim(&plan, &unix_address()));
            let wire = std::thread::spawn(move || {
                wire.prove(&proof, request.kind(), soon().into()).unwrap();
                wire.write_frame(&request, soon()).unwrap();
                wire
            });
            let MeetingEvent::Claimed { visitor, .. } = next(point) else { panic!("a claim") };
            point.answer(visitor, ClaimAnswer::Accepted, &mut |_| ());
            let mut wire = wire.join().unwrap();
            assert_eq!(wire.read_frame::<BootstrapAnswer>(soon()).unwrap(), BootstrapAnswer::Accepted);
            (visitor, wire)
        };
        let ((first, mut honest), (second, mut other)) = (join(), join());
        assert!(first < second, "visitors have numbers in ascending order");
        honest.write_frame(&LinkReport::Linked { session: 9 }, soon()).unwrap();
        let event = next(point);
        assert!(matches!(event, MeetingEvent::Reported { visitor, session: 9 } if visitor == first));
        other.write_frame(&LinkReport::Connected, soon()).unwrap();
        let event = next(point);
        assert!(matches!(event, MeetingEvent::Lost { visitor, .. } if visitor == second), "{event:?}");
        drop(honest);
        let event = next(point);
        assert!(matches!(event, MeetingEvent::Lost { visitor, .. } if visitor == first), "{event:?}");
    })
    .unwrap();
}

/// A process that does not read delays nothing, and is lost when its buffer is full.
#[test]
fn a_process_that_does_not_read_is_lost() {
    let listener = BootstrapListener::<UnixStream>::bind(&unix_address()).unwrap();
    let contact = listener.address().clone();
    let plan = plan(2, &contact);
    let own = BootstrapListener::<UnixStream>::bind(&unix_address()).unwrap();
    MeetingPoint::with(&plan, &listener, |point| {
        MeetingPoint::with(&plan, &own, |follower| {
            follower.ask(&contact, claim(&plan, own.address()), plan.timeout, soon());
            let MeetingEvent::Claimed { visitor, .. } = next(point) else { panic!("a claim") };
            point.answer(visitor, ClaimAnswer::Accepted, &mut |_| ());
            let begun = Instant::now();
            let lost = loop {
                point.notify(visitor, &CoordinatorNotice::Released(ReleaseFrame::Unready(vec![0; 10_000])));
                let events = point.poll(Instant::now(), &mut |_| ()).unwrap();
                if !events.is_empty() {
                    break events;
                }
                assert!(begun.elapsed() < patient(Duration::from_secs(10)), "its buffer must become full");
            };
            assert!(matches!(lost[..], [MeetingEvent::Lost { .. }]), "{lost:?}");
        })
        .unwrap();
    })
    .unwrap();
}

#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    let plans: [fn(&mut BootstrapPlan); 5] = [
        |plan| plan.members = 0,
        |plan| plan.members = MEMBERS_MAX as u32 + 1,
        |plan| plan.unauthenticated_max = 0,
        |plan| plan.contacts = vec![any_port()],
        |plan| plan.contacts = vec![unix_address(); MEMBERS_MAX + 1],
    ];
    let listener = BootstrapListener::<UnixStream>::bind(&unix_address()).unwrap();
    for change in plans {
        let mut plan = plan(2, listener.address());
        change(&mut plan);
        let error = MeetingPoint::with(&plan, &listener, |_| ()).unwrap_err();
        assert!(matches!(error, BootstrapError::Plan(_)), "{error:?}");
    }
}

#[test]
fn an_unavailable_address_is_reported() {
    let address = unix_address();
    let _listener = BootstrapListener::<UnixStream>::bind(&address).unwrap();
    let again = BootstrapListener::<UnixStream>::bind(&address).unwrap_err();
    assert!(matches!(again, BootstrapError::AddressInUse { address: named } if named == address));

    let elsewhere = BootstrapListener::<TcpStream>::bind(&"192.0.2.1:7000".parse().unwrap()).unwrap_err();
    assert!(matches!(elsewhere, BootstrapError::AddressElsewhere { .. }), "{elsewhere:?}");
    let kind = BootstrapListener::<TcpStream>::bind(&address).unwrap_err();
    assert!(matches!(kind, BootstrapError::Plan(_)));
}

#[test]
fn a_socket_file_is_replaced_when_stale_and_removed_at_the_end() {
    let path = std::env::temp_dir().join(format!("squall-test-{}", std::process::id()));
    // Dropped without being removed, as by a process that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = Address::Path(path.clone());
    let listener = BootstrapListener::<UnixStream>::bind(&address).unwrap();
    assert!(matches!(
        BootstrapListener::<UnixStream>::bind(&address),
        Err(BootstrapError::AddressInUse { .. })
    ));
    assert!(path.exists(), "a socket in use is kept");
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o600, "other users cannot connect");
    drop(std::os::unix::net::UnixStream::connect(&path).expect("this one can"));
    drop(listener);
    assert!(!path.exists());
}

/// If no process listens at a port, a connection to it can become connected to itself.
#[test]
fn a_connection_to_itself_is_detected() {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let itself = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&itself, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = rustix::net::getsockname(&itself).unwrap();
    connect(&itself, &address).unwrap();
    assert!(link::is_itself(&TcpStream::from(itself)).unwrap());
}

/// A process that begins has no pair: for a member whose peer listened there before, that is as if no process did.
#[test]
fn a_process_that_begins_opens_no_link_again() {
    let host = Host::<TcpStream>::open(&any_port(), |_| {});
    let links = MemberLinks::default();
    links.learn(&BTreeMap::from([(NodeId(1), host.address.clone())]));
    let time = patient(Duration::from_secs(5));
    let relinking = Relinking { plan: plan(3, &host.address), links, attempt_every: time, silence: time };
    let call = relinking.caller().call(NodeId(1)).unwrap();
    let ballot = ReopenBallot { number: 1, node: NodeId(0) };
    let failure = call.ask(&ReopenRequest { pair: [7; 32], ballot, handled: 0 }).expect_err("it has no pair");
    assert!(failure.refused, "{}", failure.cause);
    host.close();
}
