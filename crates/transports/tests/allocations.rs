//! The data path of shared memory and of TCP allocates nothing, as counted by the allocator of this test
//! binary.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use squall_fabric::{Channel, Fabric, FabricEvent, MirrorKey, NodeId, PostError, Token, Write, WriteSource};
use squall_transports::shm::ShmFabric;
use squall_transports::tcp::TcpFabric;

struct Counting;

thread_local! {
    /// The allocations of this thread, so that other threads of the test runner do not count.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn shared_memory_allocates_nothing() {
    let (a, b) = UnixStream::pair().expect("sockets");
    let sender = ShmFabric::new(NodeId(0), vec![(NodeId(1), a)]).expect("a fabric");
    let receiver = ShmFabric::new(NodeId(1), vec![(NodeId(0), b)]).expect("a fabric");
    assert_nothing_is_allocated(sender, receiver, 18_000);
}

#[test]
fn tcp_allocates_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let a = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (b, _) = listener.accept().expect("a client");
    let sender = TcpFabric::new(NodeId(0), vec![(NodeId(1), a)]).expect("a fabric");
    let receiver = TcpFabric::new(NodeId(1), vec![(NodeId(0), b)]).expect("a fabric");
    assert_nothing_is_allocated(sender, receiver, 2_700);
}

/// Exchanges pushes, writes by value and by reference, immediates and sends, with their events, between two
/// nodes.
fn assert_nothing_is_allocated<F: Fabric>(mut sender: F, mut receiver: F, rounds: u64) {
    let row = sender.register(1024);
    let mirror = sender.publish(MirrorKey(1), &row, &[NodeId(1)]);
    let attachment = receiver.attach(NodeId(0), MirrorKey(1), 1024);
    let target = receiver.register(1024);
    let grant = receiver.grant(&target, 0..1024, NodeId(0));
    let conn = sender.open(NodeId(1), Channel(1));
    let back = receiver.open(NodeId(0), Channel(1));
    let (mut ready, begin) = (0, Instant::now());
    while ready < 3 {
        let mut count = |event| {
            ready += u32::from(matches!(event, FabricEvent::Connected { .. } | FabricEvent::Attached { .. }))
        };
        sender.poll(&mut count);
        receiver.poll(&mut count);
        assert!(begin.elapsed() < Duration::from_secs(10), "ready: {ready} of 3");
    }
    let mut round = |k: u64| {
        row.store(0, k);
        sender.push(mirror, 1..1024);
        sender.push_word(mirror, 0);
        let value = [k];
        for (source, immediate) in
            [(WriteSource::Value(&value), Some(1)), (WriteSource::Region(&row, 0..1024), None)]
        {
            let write = Write { source, grant: &grant, offset: 0, immediate, signal: Some(Token(k)) };
            while receiver.post_receive(back, &target, 0..1, Token(k)) == Err(PostError::Full) {
                receiver.poll(&mut |_| ());
            }
            assert_eq!(sender.write(conn, write), Ok(()));
        }
        assert_eq!(sender.send(conn, &k.to_le_bytes(), Some(Token(k))), Ok(()));
        // One arrival, one message, three completions.
        let mut events = 0;
        while events < 5 {
            sender.poll(&mut |_| events += 1);
            receiver.poll(&mut |_| events += 1);
            assert!(begin.elapsed() < Duration::from_secs(60), "{events} events in round {k}");
        }
        assert_eq!(attachment.load(0), k);
    };
    // Queues grow to their final size in the first rounds.
    let warm = rounds / 9;
    (1..=warm).for_each(&mut round);
    let before = ALLOCATIONS.with(Cell::get);
    (warm + 1..=warm + rounds).for_each(&mut round);
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "allocations in {rounds} rounds");
}
