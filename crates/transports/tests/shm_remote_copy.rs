//! Adopted memory on shared memory between real processes: a writer that is killed or stopped while its words
//! are fetched, one that closes before they are, and a kernel that permits no fetching [F9, F11, F13].

#[path = "shm/child.rs"]
mod child;

use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::process::Signal;
use squall_fabric::{
    Channel, ConnId, Fabric, FabricEvent, Grant, NodeId, PostError, Region, RegionId, Token, Write,
    WriteSource,
};
use squall_transports::shm::ShmFabric;

use child::{ChildProcess, fabric_of_child, patience, poll_until, poll_until_event, role};

/// The role of a child of the tests below; not a test of its own.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    match role().expect("started by another test").as_str() {
        "write" => write_blocks(),
        "own" => own_without_rights(),
        other => panic!("no such role: {other}"),
    }
}

/// F11: what a killed writer had posted and was not fetched completely is never shown.
#[test]
fn a_writer_killed_in_the_middle_shows_nothing_more() {
    let (process, mut owner) = Owner::of_writer();
    owner.poll_into_a_block();
    process.kill();
    poll_until_lost(&mut owner);
    owner.assert_at_rest();
}

/// F9: a stopped writer is served nevertheless, and revoking its grant waits for nothing; it is refused when
/// it continues.
#[test]
fn a_stopped_writer_is_fenced_at_once() {
    let (mut process, mut owner) = Owner::of_writer();
    owner.poll_into_a_block();
    process.stop();
    let before = owner.fabric.remote_copies().fetched_bytes;
    owner.fabric.poll(&mut |event| assert!(!matches!(event, FabricEvent::Arrived { .. }), "{event:?}"));
    assert!(owner.fabric.remote_copies().fetched_bytes > before, "its words are fetched while it is stopped");
    let grant = owner.grant;
    owner.fabric.revoke(&grant);
    let mut events = Vec::new();
    owner.fabric.poll(&mut |event| events.push(event));
    assert!(events.contains(&FabricEvent::Revoked { grant }), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, FabricEvent::Arrived { .. })), "{events:?}");
    owner.assert_at_rest();
    process.signal(Signal::CONT);
    poll_until(&mut owner.fabric, "the end of the refused writer", |_, _| process.has_ended());
    assert!(process.wait().success(), "the writer was not refused");
    owner.assert_at_rest();
}

/// F9: a peer that is removed in the middle of a fetch writes nothing more, either.
#[test]
fn a_removed_writer_is_fenced_at_once() {
    let (process, mut owner) = Owner::of_writer();
    owner.poll_into_a_block();
    owner.fabric.remove_peer(NodeId(1));
    owner.assert_at_rest();
    drop(process);
}

/// If the kernel does not let the owner read the writer's memory, everything lands by two copies.
#[test]
fn without_permission_to_read_words_use_the_ring() {
    let (process, socket) = ChildProcess::start("own");
    if !rustix::process::geteuid().is_root() {
        // The child cannot give up a privilege that it does not have, so this process denies access.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
            .expect("a process may set this");
    }
    let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
    let (conn, grant) = receive_grant(&mut fabric, NodeId(1));
    let source = fabric.register(SHORT_WORDS);
    for k in 1..=ROUNDS {
        (0..SHORT_WORDS).for_each(|word| source.store_relaxed(word, k + word as u64));
        poll_until(&mut fabric, "space", |fabric, _| {
            fabric.write(conn, block(&grant, &source, k)) != Err(PostError::Full)
        });
        let done = FabricEvent::Done { conn, token: Token(k) };
        poll_until(&mut fabric, "Done", |_, events| events.contains(&done));
    }
    drop(fabric);
    assert!(process.wait().success(), "the owner missed a block, or read memory that it must not");
}

/// F11, F5: what a writer posted before it closed is not shown, because its memory may hold something else by
/// then.
#[test]
fn a_writer_that_closes_shows_nothing_more() {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let mut owner = ShmFabric::new(NodeId(0), vec![(NodeId(1), ours)]).expect("a fabric");
    let mut writer = ShmFabric::new(NodeId(1), vec![(NodeId(0), theirs)]).expect("a fabric");
    let target = owner.adopt(&Region::heap(RegionId(0), SHORT_WORDS));
    let grant = owner.grant(&target, 0..SHORT_WORDS, NodeId(1));
    let conns = [owner.open(NodeId(1), Channel(1)), writer.open(NodeId(0), Channel(1))];
    let mut connected = false;
    while !connected {
        owner.poll(&mut |_| ());
        writer.poll(&mut |event| connected |= matches!(event, FabricEvent::Connected { .. }));
    }
    owner.post_receive(conns[0], &target, 0..1, Token(0)).expect("space");
    let source = writer.adopt(&Region::heap(RegionId(0), SHORT_WORDS));
    poll_until(&mut writer, "a receive", |writer, _| {
        let all = WriteSource::Region(&source, 0..SHORT_WORDS);
        let write = Write { source: all, grant: &grant, offset: 0, immediate: Some(1), signal: None };
        writer.write(conns[1], write).is_ok()
    });
    writer.close(conns[1]);
    // From now on the memory is the user's again.
    (0..SHORT_WORDS).for_each(|word| source.store(word, u64::MAX));
    poll_until(&mut owner, "the end", |_, events| {
        assert!(!events.iter().any(|event| matches!(event, FabricEvent::Arrived { .. })), "{events:?}");
        events.iter().any(|event| matches!(event, FabricEvent::Broken { .. }))
    });
}

/// A node whose writer is a child that writes block after block into adopted memory.
struct Owner {
    fabric: ShmFabric,
    target: Region,
    grant: Grant,
    conn: ConnId,
    last: u64,
}

impl Owner {
    fn of_writer() -> (ChildProcess, Self) {
        let (process, socket) = ChildProcess::start("write");
        let mut fabric = ShmFabric::new(NodeId(0), vec![(NodeId(1), socket)]).expect("a fabric");
        let target = fabric.adopt(&Region::heap(RegionId(0), BLOCK_WORDS));
        let grant = fabric.grant(&target, 0..BLOCK_WORDS, NodeId(1));
        let conn = send_grant(&mut fabric, NodeId(1), &grant);
        let inbox = fabric.register(1);
        (0..500).for_each(|k| fabric.post_receive(conn, &inbox, 0..1, Token(k)).expect("space"));
        (process, Self { fabric, target, grant, conn, last: 0 })
    }

    /// Polls until part of a block has landed; each earlier block is complete when it is shown.
    fn poll_into_a_block(&mut self) {
        let begin = Instant::now();
        for polls in 0.. {
            let (target, last) = (&self.target, &mut self.last);
            self.fabric.poll(&mut |event| {
                if let FabricEvent::Arrived { immediate, .. } = event {
                    assert_eq!(u64::from(immediate), *last + 1);
                    *last += 1;
                    assert!(
                        (0..BLOCK_WORDS).all(|word| target.load(word) == *last),
                        "block {last} is not complete"
                    );
                }
            });
            let [first, end] = [0, BLOCK_WORDS - 1].map(|word| self.target.load(word));
            if first > end && end > 0 && polls > 3 {
                return;
            }
            assert!(begin.elapsed() < patience(), "never in the middle of a block: {first} {end}");
        }
    }

    /// Checks that nothing lands any more, and nothing is shown.
    fn assert_at_rest(&mut self) {
        let mut before = vec![0; BLOCK_WORDS];
        self.target.copy_out(0, &mut before);
        let begin = Instant::now();
        while begin.elapsed().as_millis() < 20 {
            let conn = self.conn;
            self.fabric.poll(&mut |event| {
                assert!(!matches!(event, FabricEvent::Arrived { conn: of, .. } if of == conn))
            });
        }
        assert!((0..BLOCK_WORDS).all(|word| self.target.load(word) == before[word]), "a word landed");
    }
}

fn poll_until_lost(owner: &mut Owner) {
    poll_until(&mut owner.fabric, "the report of the death", |_, events| {
        assert!(!events.iter().any(|event| matches!(event, FabricEvent::Arrived { .. })), "{events:?}");
        events.iter().any(|event| matches!(event, FabricEvent::PeerLost { .. }))
    });
}

/// Sends a grant to the peer, which waits for it on channel 1.
fn send_grant(fabric: &mut ShmFabric, peer: NodeId, grant: &Grant) -> ConnId {
    let conn = fabric.open(peer, Channel(1));
    poll_until(fabric, "Connected", |_, events| events.contains(&FabricEvent::Connected { conn, peer }));
    poll_until(fabric, "a receive", |fabric, _| fabric.send(conn, &grant.to_bytes(), None).is_ok());
    conn
}

fn receive_grant(fabric: &mut ShmFabric, peer: NodeId) -> (ConnId, Grant) {
    let memory = fabric.register(64);
    let conn = fabric.open(peer, Channel(1));
    fabric.post_receive(conn, &memory, 0..64, Token(0)).expect("space");
    let mut bytes = Vec::new();
    poll_until(fabric, "its grant", |_, events| {
        for event in events {
            if let FabricEvent::Received { length, .. } = event {
                bytes.resize(*length, 0);
                memory.copy_bytes_out(0, &mut bytes);
            }
        }
        !bytes.is_empty()
    });
    (conn, Grant::from_bytes(&bytes).expect("a grant"))
}

/// Returns the `k`-th write, of all of `source`.
fn block<'a>(grant: &'a Grant, source: &'a Region, k: u64) -> Write<'a> {
    let signal = Some(Token(k));
    let immediate = u32::try_from(k).ok();
    Write { source: WriteSource::Region(source, 0..source.words()), grant, offset: 0, immediate, signal }
}

/// Writes two blocks alternately until it is refused, as it must be.
fn write_blocks() {
    let mut fabric = fabric_of_child(1);
    let (conn, grant) = receive_grant(&mut fabric, NodeId(0));
    let sources = [0, 1].map(|_| fabric.adopt(&Region::heap(RegionId(0), BLOCK_WORDS)));
    let (mut posted, mut done) = (0, 0);
    loop {
        if posted < done + 2 {
            let source = &sources[posted as usize % 2];
            (0..BLOCK_WORDS).for_each(|word| source.store_relaxed(word, posted + 1));
            match fabric.write(conn, block(&grant, source, posted + 1)) {
                Ok(()) => posted += 1,
                Err(PostError::Full) => {}
                Err(PostError::NotConnected) => panic!("closed, but not refused"),
            }
        }
        let mut refused = false;
        fabric.poll(&mut |event| match event {
            FabricEvent::Refused { .. } => refused = true,
            FabricEvent::Done { token, .. } => done = token.0,
            _ => {}
        });
        if refused {
            return;
        }
        std::thread::yield_now();
    }
}

/// Owns memory that its parent writes, and has no permission to read the parent's.
fn own_without_rights() {
    let mut fabric = fabric_of_child(1);
    if rustix::process::geteuid().is_root() {
        // SAFETY: the call takes numbers; no other thread of this process depends on its user.
        let dropped = unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) };
        assert_eq!(dropped, 0, "root may become any user");
    }
    let target = fabric.adopt(&Region::heap(RegionId(0), SHORT_WORDS));
    let grant = fabric.grant(&target, 0..SHORT_WORDS, NodeId(0));
    let conn = send_grant(&mut fabric, NodeId(0), &grant);
    let inbox = fabric.register(1);
    (0..ROUNDS).for_each(|k| fabric.post_receive(conn, &inbox, 0..1, Token(k)).expect("space"));
    let mut arrived = 0;
    // The poll that takes the last block may find the parent's end, too.
    poll_until_event(&mut fabric, "the parent's end", |event| {
        if let FabricEvent::Arrived { immediate, .. } = event {
            let base = u64::from(*immediate);
            assert!((0..SHORT_WORDS).all(|word| target.load(word) == base + word as u64), "block {base}");
            arrived += 1;
        }
        matches!(event, FabricEvent::PeerLost { .. })
    });
    assert_eq!(arrived, ROUNDS);
    let copied = fabric.remote_copies();
    assert_eq!((copied.fetched_bytes, copied.relayed_bytes), (0, ROUNDS * 8 * SHORT_WORDS as u64));
}

/// Enough words for several polls.
const BLOCK_WORDS: usize = 1 << 20;
/// More than fits into the ring of a connection at once.
const SHORT_WORDS: usize = 40_001;
const ROUNDS: u64 = 20;
const NOBODY: libc::uid_t = 65534;
