//! Streams under tokio, and an HTTP stack over them that does not depend on the transport.

mod rdma;

use std::io::Read as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use squall::stream::{AsyncListener, AsyncStream, Listener, Stream, StreamOptions, Transport};
use squall_fabric::atomics::AtomicUsize;
use squall_fabric::atomics::Ordering::Relaxed;
use tokio::io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf};

/// The number of streams that end, each after one more byte.
const ENDS: u8 = 40;

fn transports() -> Vec<Transport> {
    if rdma::is_wanted() { vec![Transport::Verbs] } else { vec![Transport::Shm, Transport::Tcp] }
}

fn options(transport: Transport) -> StreamOptions {
    StreamOptions { transport, verbs: rdma::settings(0), ..StreamOptions::local("tokio-tests") }
}

async fn pair(transport: Transport) -> [AsyncStream; 2] {
    let options = options(transport);
    let listener = AsyncListener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let address = listener.address().clone();
    let near = AsyncStream::connect(&address, &options).await.unwrap();
    [near, listener.accept().await.unwrap()]
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect()
}

/// Both directions at once, in two tasks for each end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_directions_flow_at_once() {
    for transport in transports() {
        let ends = pair(transport).await.map(|stream| {
            let (mut read, mut write) = tokio::io::split(stream);
            let writing = tokio::spawn(async move {
                for part in data(2_000_000).chunks(77_777) {
                    write.write_all(part).await.unwrap();
                }
                write.shutdown().await.unwrap();
            });
            let reading = tokio::spawn(async move {
                let mut all = Vec::new();
                read.read_to_end(&mut all).await.unwrap();
                let wrong = all.iter().zip(data(2_000_000)).position(|(got, sent)| *got != sent);
                assert_eq!((all.len(), wrong), (2_000_000, None), "{transport:?}");
                read
            });
            (writing, reading)
        });
        let mut kept = Vec::new();
        for (writing, reading) in ends {
            writing.await.unwrap();
            kept.push(reading.await.unwrap());
        }
    }
}

/// A task that waits is woken when data arrives, with one thread for both ends.
#[tokio::test]
async fn a_parked_task_is_woken() {
    for transport in transports() {
        let [mut near, mut far] = pair(transport).await;
        let echo = tokio::spawn(async move {
            let mut bytes = [0; 100];
            loop {
                match far.read(&mut bytes).await.unwrap() {
                    0 => return far,
                    read => {
                        far.write_all(&bytes[..read]).await.unwrap();
                        far.flush().await.unwrap();
                    }
                }
            }
        });
        for i in 0..200 {
            if i % 40 == 0 {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            near.write_u8(i).await.unwrap();
            near.flush().await.unwrap();
            assert_eq!(near.read_u8().await.unwrap(), i);
        }
        near.shutdown().await.unwrap();
        drop(echo.await.unwrap());
    }
}

/// Counts how often a task was woken.
#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A task that finds what the task of the other direction waits for wakes that task: no doorbell will ring for it.
#[tokio::test]
async fn a_reader_that_makes_progress_wakes_the_writer() {
    const BLOCK: usize = 10_000;
    for transport in transports() {
        let options = options(transport);
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let address = listener.address().clone();
        let accepting = std::thread::spawn(move || Stream::new(listener.accept().unwrap()).unwrap());
        let mut near = AsyncStream::connect(&address, &options).await.unwrap();
        let mut far = accepting.join().unwrap();
        let (writing, reading) = (Arc::<WakeCount>::default(), Arc::<WakeCount>::default());
        let (write_waker, read_waker) = (Waker::from(writing.clone()), Waker::from(reading));
        let mut sent = 0;
        while let Poll::Ready(written) =
            Pin::new(&mut near).poll_write(&mut Context::from_waker(&write_waker), &[7; BLOCK])
        {
            sent += written.unwrap();
        }
        let peer = std::thread::spawn(move || {
            let mut bytes = vec![0; sent];
            far.read_exact(&mut bytes).unwrap();
            (bytes.iter().all(|byte| *byte == 7), far)
        });
        let before = writing.0.load(Relaxed);
        let until = Instant::now() + Duration::from_secs(20);
        while writing.0.load(Relaxed) == before {
            assert!(Instant::now() < until, "{transport:?}: the writer was not woken");
            let mut space = [0; 8];
            let mut target = ReadBuf::new(&mut space);
            let read = Pin::new(&mut near).poll_read(&mut Context::from_waker(&read_waker), &mut target);
            assert!(read.is_pending(), "{transport:?}: nothing was sent to this end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(peer.join().unwrap().0, "{transport:?}: the bytes that were sent");
    }
}

/// While the peer does nothing, a task that reads and writes sleeps.
#[tokio::test]
async fn a_silent_peer_costs_nothing() {
    for transport in transports() {
        let [mut near, far] = pair(transport).await;
        let polls = AtomicUsize::new(0);
        let both = std::future::poll_fn(|context| {
            polls.fetch_add(1, Relaxed);
            let mut space = [0; 8];
            let read = Pin::new(&mut near).poll_read(context, &mut ReadBuf::new(&mut space));
            assert!(read.is_pending(), "{transport:?}: nothing was sent to this end");
            while let Poll::Ready(written) = Pin::new(&mut near).poll_write(context, &[7; 50]) {
                assert!(written.unwrap() > 0);
            }
            Poll::<()>::Pending
        });
        let time = Duration::from_millis(500);
        assert!(tokio::time::timeout(time, both).await.is_err());
        let polls = polls.load(Relaxed);
        assert!(polls < 100, "{transport:?}: {polls} polls in {time:?}");
        drop(far);
    }
}

/// The task that ends a stream does not need anything else to arrive.
#[tokio::test]
async fn the_end_of_a_stream_leaves_by_itself() {
    for transport in transports() {
        for exchanges in 0..ENDS {
            let [mut near, mut far] = pair(transport).await;
            let answering = tokio::spawn(async move {
                while let Ok(byte) = far.read_u8().await {
                    far.write_u8(byte).await.unwrap();
                    far.flush().await.unwrap();
                }
                far
            });
            for i in 0..exchanges {
                near.write_u8(i).await.unwrap();
                assert_eq!(near.read_u8().await.unwrap(), i, "{transport:?}");
            }
            let left = tokio::time::timeout(Duration::from_secs(30), near.shutdown()).await;
            left.unwrap_or_else(|_| panic!("{transport:?}: the end after {exchanges} bytes")).unwrap();
            drop(answering.await.unwrap());
        }
    }
}

#[tokio::test]
async fn an_aborted_peer_is_an_error() {
    for transport in transports() {
        let [mut near, far] = pair(transport).await;
        far.abort();
        let error = near.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

async fn double(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::new([body.clone(), body].concat().into())))
}

/// A client and a server of hyper exchange requests of all sizes on one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_runs_unmodified() {
    for transport in transports() {
        let [near, far] = pair(transport).await;
        let server = hyper::server::conn::http1::Builder::new();
        let server = tokio::spawn(async move {
            server.serve_connection(TokioIo::new(far), service_fn(double)).await.unwrap()
        });
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
        let client = tokio::spawn(async move { connection.await.unwrap() });
        for length in [0, 1, 1000, 70_000, 3_000_000] {
            sender.ready().await.unwrap();
            let body = Full::new(Bytes::from(data(length)));
            let response = sender.send_request(Request::post("/").body(body).unwrap()).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let back = response.into_body().collect().await.unwrap().to_bytes();
            assert!(back == [data(length), data(length)].concat(), "{length} bytes");
        }
        drop(sender);
        client.await.unwrap();
        server.await.unwrap();
    }
}
