//! Releases that meet: another version is refused with words, and the messages of one version keep their bytes.

use super::message::{
    AdmissionFrame, ClaimFrame, CoordinatorNotice, LinkReport, PairWish, Refusal, ReleaseFrame,
};
use super::*;
use crate::bootstrap::pair::PairService;
use crate::session::{ANSWER_BYTES, HELLO_BYTES, PROTOCOL_VERSION};

/// Both ends of a claim at a process of another version name both versions and the end that is older.
#[test]
fn another_version_is_refused_with_words() {
    for (theirs, advice) in
        [(PROTOCOL_VERSION + 7, "at this end"), (PROTOCOL_VERSION - 1, "at the other end")]
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let contact: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let other = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
            // What every version has in common: magic, version, and whether the caller may continue.
            let mut answer = [0; ANSWER_BYTES];
            answer[..8].copy_from_slice(b"SQUALL\r\n");
            // From version 5 on the lowest version follows, too.
            answer[8..10].copy_from_slice(&theirs.to_le_bytes());
            answer[10] = 1;
            answer[11..13].copy_from_slice(&theirs.to_le_bytes());
            stream.write_all(&answer).unwrap();
        });
        let event = claim_at::<TcpStream>(&plan(2, &contact), |_| {});
        let MeetingEvent::Failed(CallError::Unproved(error)) = event else { panic!("{event:?}") };
        let (text, ours) = (error.to_string(), PROTOCOL_VERSION);
        let versions = format!("speaks version {theirs} of the protocol, but this process version {ours}");
        assert!(text.contains(&versions) && text.contains(advice), "{text}");
        other.join().unwrap();
    }
}

/// What members send each other after the proof, as version 6 has it. If this fails because a message has changed that a release has had, raise
/// `PROTOCOL_VERSION`, record a hello of the old version in `session/tests/hello.rs`, and write the new bytes here.
#[test]
fn messages_keep_their_bytes() {
    let found: Vec<String> = messages().into_iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
    assert_eq!((PROTOCOL_VERSION, found.join("\n").as_str()), (6, BYTES.trim()), "{}", found.join("\n"));
}

const BYTES: &str = "
join 0003010101016b0176000d31302e302e302e313a373430300100010d31302e302e302e313a37343030
link 01ac020203
enter 0201016b017600010161016e00
hello 030102016103
status 040105
pair 0503
serve 060102
reopen 0707070707070707070707070707070707070707070707070707070707070707070102ac02
accepted 00
refused 010a
redirect 020161
later 030172
wait 040172
denied 050172
admit 0601c80100010001610109
status 070105
by rdma 08
reopened 09ac02
too low 0a03
gone 0b
joined 0002
roster 01010100010d31302e302e302e313a37343030
go 02
redirected 03000d31302e302e302e313a37343030
lost 0301010d31302e302e302e313a37343030
running 03020d31302e302e302e313a37343030
complete 0303
unready 03040101
linked 0001
connected 01
";

/// One message of each kind, with its bytes in hexadecimal.
fn messages() -> Vec<(&'static str, String)> {
    let address: Address = "10.0.0.1:7400".parse().unwrap();
    let claim = ClaimFrame {
        members: 3,
        rank: Some(1),
        agreement: Agreement::new([("k".into(), "v".into())]),
        listen: address.clone(),
        contact: Some((0, vec![address.clone()])),
    };
    let enter = BootstrapRequest::Enter {
        agreement: Agreement::new([("k".into(), "v".into())]),
        listen: vec!["a".into()],
        name: "n".into(),
        rank: None,
    };
    let admission =
        AdmissionFrame { session: 1, node: 200, leader: 0, members: vec![(0, "a".into())], token: vec![9] };
    let roster =
        CoordinatorNotice::Roster { session: 1, node: 1, coordinator: 0, listen: vec![address.clone()] };
    let lost = ReleaseFrame::MemberLost { node: 1, listen: address.clone() };
    let requests = [
        ("join", BootstrapRequest::Join(claim)),
        ("link", BootstrapRequest::Link { session: 300, node: 2, clock: 3 }),
        ("enter", enter),
        ("hello", BootstrapRequest::Hello { session: 1, node: 2, listen: "a".into(), clock: 3 }),
        ("status", BootstrapRequest::Status { question: vec![5] }),
        ("pair", BootstrapRequest::Pair { wish: PairWish::RdmaIfYouToo }),
        ("serve", BootstrapRequest::Serve { service: PairService::Objects, wish: PairWish::Any }),
        ("reopen", BootstrapRequest::Reopen { pair: [7; 32], number: 1, node: 2, handled: 300 }),
    ];
    let answers = [
        ("accepted", BootstrapAnswer::Accepted),
        ("refused", BootstrapAnswer::Refused(Refusal::RdmaOnly)),
        ("redirect", BootstrapAnswer::Redirect { leader: "a".into() }),
        ("later", BootstrapAnswer::Later { reason: "r".into() }),
        ("wait", BootstrapAnswer::Wait { reason: "r".into() }),
        ("denied", BootstrapAnswer::Denied { reason: "r".into() }),
        ("admit", BootstrapAnswer::Admit(admission)),
        ("status", BootstrapAnswer::Status { bytes: vec![5] }),
        ("by rdma", BootstrapAnswer::AcceptedByRdma),
        ("reopened", BootstrapAnswer::Reopened { handled: 300 }),
        ("too low", BootstrapAnswer::BallotTooLow { number: 3 }),
        ("gone", BootstrapAnswer::Gone),
    ];
    let notices = [
        ("joined", CoordinatorNotice::Joined { joined: 2 }),
        ("roster", roster),
        ("go", CoordinatorNotice::Go),
        ("redirected", CoordinatorNotice::Released(ReleaseFrame::Redirect(address.clone()))),
        ("lost", CoordinatorNotice::Released(lost)),
        ("running", CoordinatorNotice::Released(ReleaseFrame::Running(address))),
        ("complete", CoordinatorNotice::Released(ReleaseFrame::Complete)),
        ("unready", CoordinatorNotice::Released(ReleaseFrame::Unready(vec![1]))),
    ];
    let reports = [("linked", LinkReport::Linked { session: 1 }), ("connected", LinkReport::Connected)];
    let requests =
        requests.map(|(name, request)| (name, hexadecimal(&postcard::to_stdvec(&request).unwrap())));
    let answers = answers.map(|(name, answer)| (name, hexadecimal(&postcard::to_stdvec(&answer).unwrap())));
    let notices = notices.map(|(name, notice)| (name, hexadecimal(&postcard::to_stdvec(&notice).unwrap())));
    let reports = reports.map(|(name, report)| (name, hexadecimal(&postcard::to_stdvec(&report).unwrap())));
    requests.into_iter().chain(answers).chain(notices).chain(reports).collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
