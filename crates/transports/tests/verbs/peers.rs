//! Peers that die, and peers that are not valid.

use std::io::Write as _;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use squall_fabric::{BreakReason, Fabric, FabricEvent, MirrorKey, NodeId};
use squall_transports::verbs::{Unsuitable, VerbsError, VerbsFabric, VerbsSettings};

use crate::harness::{fabric, pair};
use crate::nodes::{MirrorPair, VerbsNodes, write};

/// A real process is killed while it pushes: its reader detects that, and its attachment no longer changes.
pub(crate) fn a_killed_process_is_detected() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let program = std::env::current_exe().expect("this program");
    let child = Command::new(program).args([CHILD, &port]).stdin(Stdio::null()).spawn();
    let mut child = Killed(child.expect("this program runs"));
    let stream = listener.accept().expect("the child connects").0;
    let mut node = fabric(0, vec![(NodeId(1), stream)]);
    let attachment = node.attach(NodeId(1), MirrorKey(1), WORDS);
    until(&mut node, "pushes", |_| attachment.load(0) > 100);
    child.0.kill().expect("it is running");
    let killed = Instant::now();
    let lost = FabricEvent::PeerLost { peer: NodeId(1), reason: BreakReason::PeerClosed };
    until(&mut node, "PeerLost", |event| event == Some(&lost));
    assert!(killed.elapsed() < Duration::from_secs(5), "detected after {:?}", killed.elapsed());
    let last: Vec<u64> = (0..WORDS).map(|word| attachment.load(word)).collect();
    assert!(last[8..].iter().all(|word| *word >= last[0]), "a counter without its payload");
    std::thread::sleep(Duration::from_millis(100));
    assert!((0..WORDS).all(|word| attachment.load(word) == last[word]), "a dead owner's attachment changed");
}

/// Runs the child, which pushes until it is killed.
pub(crate) fn push_forever(port: &str) -> ! {
    let port: u16 = port.parse().expect("a port");
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("the parent listens");
    let mut node = fabric(1, vec![(NodeId(0), stream)]);
    let region = node.register(WORDS);
    let mirror = node.publish(MirrorKey(1), &region, &[NodeId(0)]);
    until(&mut node, "Attached", |event| matches!(event, Some(FabricEvent::Attached { .. })));
    for k in 1.. {
        (8..WORDS).for_each(|word| region.store_relaxed(word, k));
        region.store(0, k);
        node.push(mirror, 8..WORDS);
        node.push_word(mirror, 0);
        node.poll(&mut drop);
        std::thread::sleep(Duration::from_micros(200));
    }
    unreachable!("the loop has no end")
}

/// A child that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A peer that violates the control protocol is lost, whatever it sends.
pub(crate) fn garbage_on_the_control_stream_is_a_loss() {
    for garbage in
        [vec![0xff; 40], vec![0; 400], b"GET / HTTP/1.1\r\nHost: squall\r\n\r\n----------".to_vec()]
    {
        let (ours, mut theirs) = pair();
        let mut node = fabric(0, vec![(NodeId(1), ours)]);
        theirs.write_all(&garbage).expect("connected");
        let lost = FabricEvent::PeerLost { peer: NodeId(1), reason: BreakReason::Protocol };
        until(&mut node, "PeerLost", |event| event == Some(&lost));
    }
}

/// A joiner's process has stopped before it sent anything: the others continue, and remove it.
pub(crate) fn a_silent_joiner_delays_no_one() {
    let mut nodes = VerbsNodes::new(2);
    let mirror = MirrorPair::new(&mut nodes, 1, 16);
    let (ours, theirs) = pair();
    let region = nodes.node(0).register(16);
    nodes.node(0).publish(MirrorKey(2), &region, &[NodeId(7)]);
    let attachment = nodes.node(0).attach(NodeId(7), MirrorKey(2), 16);
    nodes.node(0).add_peer(NodeId(7), ours).expect("added");
    let conn = nodes.node(0).open(NodeId(7), squall_fabric::Channel(1));
    let grant = nodes.node(0).grant(&region, 0..16, NodeId(7));
    for k in 1..=20 {
        mirror.push(&mut nodes, k);
        nodes.until("the push", |_| mirror.check() == k);
    }
    nodes.node(0).revoke(&grant);
    drop(theirs);
    let lost = FabricEvent::PeerLost { peer: NodeId(7), reason: BreakReason::PeerClosed };
    nodes.expect(0, "PeerLost", |event| *event == lost);
    nodes.expect(0, "Broken", |event| matches!(event, FabricEvent::Broken { conn: at, .. } if *at == conn));
    nodes.node(0).remove_peer(NodeId(7));
    assert_eq!(attachment.load(0), 0);
    mirror.push(&mut nodes, 21);
    nodes.until("the push", |_| mirror.check() == 21);
}

/// If the settings name no device, the one that has the address of the streams is used.
pub(crate) fn the_device_of_the_streams_is_chosen() {
    let address: IpAddr = "10.77.0.2".parse().expect("an address");
    let Ok(listener) = TcpListener::bind((address, 0)) else {
        println!("SKIPPED: this machine is not the virtual machine of tools/rdma-vm");
        return;
    };
    let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
    let theirs = listener.accept().expect("a client").0;
    let node = VerbsFabric::new(NodeId(0), vec![(NodeId(1), theirs)], &VerbsSettings::default());
    assert_eq!(node.expect("a device").device(), "rxe1");
    drop(ours);
    let wrong = VerbsSettings { device: Some("mlx5_77".into()), ..VerbsSettings::default() };
    let error =
        VerbsFabric::new(NodeId(0), Vec::<(NodeId, TcpStream)>::new(), &wrong).expect_err("no such device");
    assert!(error.to_string().contains("mlx5_77"), "{error}");
}

/// A device whose completions prove nothing is refused with the reason.
pub(crate) fn an_iwarp_device_is_refused() {
    if !std::path::Path::new("/sys/class/infiniband/siw0").exists() {
        println!("SKIPPED: no iWARP device; `tools/rdma-vm --siw` creates one");
        return;
    }
    let settings = VerbsSettings { device: Some("siw0".into()), ..VerbsSettings::default() };
    let error = VerbsFabric::new(NodeId(0), Vec::<(NodeId, TcpStream)>::new(), &settings)
        .expect_err("an iWARP device");
    let VerbsError::NoDevice { refusals, .. } = error else { panic!("{error}") };
    assert_eq!(refusals, [("siw0".to_owned(), Unsuitable::Iwarp)]);
}

/// The wire is cut while the control streams remain: connections break as unreachable, and a peer that has
/// mirrors is lost.
pub(crate) fn a_cut_wire_is_detected() {
    if !std::path::Path::new("/sys/class/net/rd1").exists() {
        println!("SKIPPED: this machine is not the virtual machine of tools/rdma-vm");
        return;
    }
    let mut nodes = VerbsNodes::new(2);
    let link = nodes.link(0, 1, 1, 1);
    write(&mut nodes, &link, 0, 1);
    let wire = Cut::new();
    nodes.write(0, link.conn, &link.value(0, &[2]));
    let reason = BreakReason::Unreachable;
    nodes.expect(0, "Broken", |event| *event == FabricEvent::Broken { conn: link.conn, reason });
    nodes.expect(1, "Broken", |event| matches!(event, FabricEvent::Broken { .. }));
    drop(wire);
    // The path works again: so does a new incarnation, and so do mirrors until the next cut.
    nodes.connect(0, 1, 1);
    let mirror = MirrorPair::new(&mut nodes, 1, 16);
    mirror.push(&mut nodes, 1);
    nodes.until("the push", |_| mirror.check() == 1);
    let wire = Cut::new();
    mirror.push(&mut nodes, 2);
    let lost = FabricEvent::PeerLost { peer: NodeId(1), reason };
    nodes.expect(0, "PeerLost", |event| *event == lost);
    drop(wire);
}

/// Cuts node 1's wire until this is dropped.
struct Cut;

impl Cut {
    fn new() -> Self {
        tc("add");
        Self
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        tc("del");
    }
}

fn tc(what: &str) {
    let arguments = ["qdisc", what, "dev", "rd1", "root", "netem", "loss", "100%"];
    let status = Command::new("tc").args(arguments).status().expect("iproute2 is in the virtual machine");
    assert!(status.success(), "tc qdisc {what}: {status}");
}

/// Polls until an event, or the state after a poll, satisfies `done`.
fn until(node: &mut VerbsFabric, what: &str, mut done: impl FnMut(Option<&FabricEvent>) -> bool) {
    let begun = Instant::now();
    let mut found = false;
    while !found {
        node.poll(&mut |event| found |= done(Some(&event)));
        found |= done(None);
        std::thread::yield_now();
        assert!(begun.elapsed() < Duration::from_secs(20), "waited for: {what}");
    }
}

/// The first argument of the child's command line.
pub(crate) const CHILD: &str = "--push-forever";

const WORDS: usize = 600;
