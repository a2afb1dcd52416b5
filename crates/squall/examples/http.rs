//! HTTP over streams: a hyper server and a hyper client, neither of which depends on the transport.
//!
//! ```text
//! cargo run --release -p squall --features tokio --example http
//! ```

use std::error::Error;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use squall::stream::{Address, AsyncListener, AsyncStream, StreamOptions};

/// Answers with the request's body, reversed.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let mut body = request.into_body().collect().await?.to_bytes().to_vec();
    body.reverse();
    let response = Response::builder().header("x-path", path).body(Full::new(body.into()));
    Ok(response.expect("a path is a header's value"))
}

async fn serve(listener: AsyncListener) {
    while let Ok(stream) = listener.accept().await {
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service_fn(answer)));
    }
}

async fn ask(address: &Address, options: &StreamOptions) -> Result<(), Box<dyn Error>> {
    let stream = AsyncStream::connect(address, options).await?;
    println!(
        "connected to {address} by {}",
        if stream.socket().is_shared() { "shared memory" } else { "tcp" }
    );
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for text in ["memory speed", "a second request on the same connection"] {
        sender.ready().await?;
        let request = Request::post("/backwards").body(Full::new(Bytes::from(text)))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        println!("{status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = StreamOptions::local("http-example");
    let listener = AsyncListener::bind(&"127.0.0.1:0".parse()?, &options)?;
    let address = listener.address().clone();
    tokio::spawn(serve(listener));
    ask(&address, &options).await
}
