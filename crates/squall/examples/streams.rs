//! Two ends of a stream: first like a TCP connection, then with registered buffers that are transferred without copies.
//!
//! ```text
//! cargo run -p squall --example streams
//! ```

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::thread;

use squall::stream::{Listener, Socket, SocketEvent, Stream, StreamOptions};

type Failure = Box<dyn Error + Send + Sync>;

const BYTES: usize = 1 << 20;

/// Accepts twice.
fn accept(listener: &Listener) -> Result<(), Failure> {
    // ANCHOR: read
    let mut stream = Stream::new(listener.accept()?)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?; // up to the end of the peer's stream
    println!("read: {text}");
    // ANCHOR_END: read

    // ANCHOR: receive
    let mut socket = listener.accept()?;
    let buffer = socket.buffer(BYTES);
    socket.post_receive(buffer, true).map_err(|(_, refused)| refused)?; // true: complete when it is full
    while let Some(event) = socket.wait(None) {
        if let SocketEvent::Received { buffer, bytes, .. } = event {
            println!("received: {bytes} bytes, the last one is {}", buffer[bytes - 1]);
            break;
        }
    }
    // ANCHOR_END: receive
    Ok(())
}

fn main() -> Result<(), Failure> {
    // ANCHOR: listen
    let options = StreamOptions::local("streams-example"); // or StreamOptions::new(name, &secret)
    let listener = Listener::bind(&"127.0.0.1:0".parse()?, &options)?;
    let address = listener.address().clone(); // with the port that the kernel has chosen
    // ANCHOR_END: listen
    let peer = thread::spawn(move || accept(&listener));

    // ANCHOR: write
    let mut stream = Stream::connect(&address, &options)?;
    stream.write_all(b"hello")?;
    stream.shut_down()?; // the peer reads to the end; this end can still read
    // ANCHOR_END: write

    // ANCHOR: send
    let mut socket = Socket::connect(&address, &options)?;
    println!("connected, {}", if socket.is_shared() { "by shared memory" } else { "over the network" });
    let mut buffer = socket.buffer(BYTES);
    buffer.fill(7);
    socket.post_send(buffer).map_err(|(_, refused)| refused)?;
    while let Some(event) = socket.wait(None) {
        if let SocketEvent::Sent { outcome, .. } = event {
            println!("sent: {outcome:?}"); // the buffer is here again, to be used for the next send
            break;
        }
    }
    // ANCHOR_END: send
    peer.join().expect("the peer does not panic")
}
