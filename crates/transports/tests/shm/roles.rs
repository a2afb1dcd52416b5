//! The roles of child processes in the tests of shared memory.

use squall_fabric::{
    Channel, ConnId, Fabric, FabricEvent, Grant, MirrorKey, NodeId, PostError, Token, Write, WriteSource,
};
use squall_transports::TransportFabric;
use squall_transports::shm::ShmFabric;

use super::child::{WordPair, fabric_of_child, poll_until, poll_until_alone};

/// Plays a role until its end.
pub(crate) fn play(role: &str) {
    match role {
        "echo" => echo(),
        "echo parked" => echo_parked(),
        "storm" => storm(),
        "write as node 1" => write_blocks(1),
        "write as node 2" => write_blocks(2),
        "count as node 2" => write_counter(),
        other => panic!("no such role: {other}"),
    }
}

/// Waits for the grant that node 0 sends.
fn receive_grant(fabric: &mut ShmFabric) -> (ConnId, Grant) {
    let memory = fabric.register(64);
    let conn = fabric.open(NodeId(0), Channel(1));
    fabric.post_receive(conn, &memory, 0..64, Token(0)).expect("space");
    let mut grant = None;
    poll_until(fabric, "its grant", |_, events| {
        for event in events {
            if let FabricEvent::Received { length, .. } = event {
                let mut bytes = vec![0; *length];
                memory.copy_bytes_out(0, &mut bytes);
                grant = Some(Grant::from_bytes(&bytes).expect("a grant"));
            }
        }
        grant.is_some()
    });
    (conn, grant.expect("it has arrived"))
}

/// Writes large blocks until it is refused, as it must be.
fn write_blocks(node: u32) {
    let mut fabric = fabric_of_child(node);
    let (conn, grant) = receive_grant(&mut fabric);
    let (source, last_done) = (fabric.register(BLOCK_WORDS), fabric.register(1));
    fabric.publish(MirrorKey(9), &last_done, &[NodeId(0)]);
    for k in 1.. {
        (0..BLOCK_WORDS).step_by(512).for_each(|word| source.store_relaxed(word, k));
        source.store_relaxed(BLOCK_WORDS - 1, k);
        let write = Write {
            source: WriteSource::Region(&source, 0..BLOCK_WORDS),
            grant: &grant,
            offset: 0,
            immediate: None,
            signal: Some(Token(k)),
        };
        match fabric.write(conn, write) {
            Ok(()) | Err(PostError::Full) => {}
            Err(PostError::NotConnected) => panic!("closed, but not refused"),
        }
        let mut refused = false;
        fabric.poll(&mut |event| match event {
            FabricEvent::Refused { .. } => refused = true,
            FabricEvent::Done { token, .. } => last_done.store(0, token.0),
            _ => {}
        });
        if refused {
            return;
        }
    }
}

/// Counts in one granted word until its parent ends.
fn write_counter() {
    let mut fabric = fabric_of_child(2);
    let (conn, grant) = receive_grant(&mut fabric);
    let mut count = 0;
    poll_until_alone(&mut fabric, |fabric| {
        let value = [count + 1];
        let source = WriteSource::Value(&value);
        let posted =
            fabric.write(conn, Write { source, grant: &grant, offset: 0, immediate: None, signal: None });
        count += u64::from(posted.is_ok());
    });
}

/// Echoes what it receives.
fn echo() {
    let mut fabric = fabric_of_child(1);
    let mut pair = WordPair::new(&mut fabric, NodeId(0));
    poll_until_alone(&mut fabric, |fabric| {
        pair.answer(fabric);
    });
}

/// Echoes what it receives, and parks whenever there is nothing new.
fn echo_parked() {
    let mut fabric = fabric_of_child(1);
    let mut pair = WordPair::new(&mut fabric, NodeId(0));
    let mut alone = false;
    while !alone {
        fabric.prepare_park();
        let mut work = fabric.poll(&mut |event| alone |= matches!(event, FabricEvent::PeerLost { .. }));
        work += usize::from(pair.answer(&mut fabric));
        if work == 0 {
            fabric.park(None);
        }
        fabric.unpark();
    }
}

/// Sends messages without pause, each as all words and then the guard at word 0, and a heartbeat in another
/// mirror.
fn storm() {
    let mut fabric = fabric_of_child(1);
    let (region, heartbeat) = (fabric.register(STORM_WORDS), fabric.register(1));
    let mirror = fabric.publish(MirrorKey(1), &region, &[NodeId(0)]);
    fabric.publish(MirrorKey(2), &heartbeat, &[NodeId(0)]);
    let mut k = 0;
    poll_until_alone(&mut fabric, |fabric| {
        k += 1;
        (1..STORM_WORDS).for_each(|word| region.store_relaxed(word, k));
        region.store(0, k);
        heartbeat.store(0, k);
        fabric.push(mirror, 1..STORM_WORDS);
        fabric.push_word(mirror, 0);
        // An owner respects a window, so it pauses occasionally.
        for _ in 0..2_000 {
            std::hint::spin_loop();
        }
    });
}

pub(crate) const STORM_WORDS: usize = 3000;
/// So large that a write takes milliseconds, and a stop hits the middle of one.
pub(crate) const BLOCK_WORDS: usize = 4 << 20;
