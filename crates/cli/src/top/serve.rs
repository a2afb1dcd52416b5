//! The page: what the members do, in a browser, pushed by server-sent events.
//!
//! One thread asks the members, for all browsers; a thread for each connection sends what is new. Connections are few
//! ([`CONNECTIONS_MAX`]), a request has few bytes and little time, and a browser that does not read is disconnected. The page is for
//! everything that reaches the address, but not for pages of other sites in a browser that does ([`host`](super::host)).

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use squall::config::Address;
use squall_fabric::atomics::{AtomicUsize, Ordering};
use squall_fabric::mutex::{lock, unpoisoned};
use squall_harness::terminal::{CommandVerdict, output};

use super::{GroupActivity, GroupLook, change_lines, host};

/// What browsers see.
#[derive(Debug)]
struct PageState {
    title: String,
    /// The host of `--serve`, as it was written.
    host: String,
    news: Mutex<PageNews>,
    is_news: Condvar,
    connections: AtomicUsize,
}

/// The latest event, as it is sent, and its number.
#[derive(Debug, Default)]
struct PageNews {
    number: u64,
    event: Arc<str>,
}

/// What an event has: the numbers, and the view changes as `squall top` prints them.
#[derive(Serialize)]
struct PageActivity<'a> {
    #[serde(flatten)]
    activity: &'a GroupActivity,
    change_lines: Vec<String>,
}

/// Serves the page at `address` until the process ends; `look` finds what the members do, every `interval`.
pub(crate) fn serve(
    address: &Address,
    title: String,
    interval: Duration,
    look: impl Fn() -> Result<GroupLook> + Send + 'static,
) -> Result<CommandVerdict> {
    let Address::Tcp { host, port } = address else {
        anyhow::bail!("--serve {address}: write host:port, since browsers read the page over HTTP")
    };
    let listener = TcpListener::bind((host.as_str(), *port))
        .with_context(|| format!("failed to listen at {address}: choose another address for --serve"))?;
    output::line(format_args!("http://{}/  (Ctrl-C ends it)", listener.local_addr()?));
    let (news, is_news, connections) = (Mutex::default(), Condvar::new(), AtomicUsize::new(0));
    let state = Arc::new(PageState { title, host: host.clone(), news, is_news, connections });
    let asking = Arc::clone(&state);
    std::thread::Builder::new().name("squall top".into()).spawn(move || asking.ask(interval, &look))?;
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => begin(stream, &state),
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
    Ok(CommandVerdict::Good)
}

impl PageState {
    fn news(&self) -> MutexGuard<'_, PageNews> {
        lock(&self.news)
    }

    /// Asks the members again and again.
    fn ask(&self, interval: Duration, look: &impl Fn() -> Result<GroupLook>) {
        let mut before: Option<GroupLook> = None;
        loop {
            match look() {
                Ok(now) => {
                    let activity = GroupActivity::between(before.as_ref(), &now);
                    self.publish(match now.silence() {
                        Some(silence) => event("silence", &silence),
                        None => event("activity", &activity_text(&activity)),
                    });
                    before = Some(now);
                }
                Err(error) => self.publish(event("silence", &format!("{error:#}"))),
            }
            std::thread::sleep(interval);
        }
    }

    fn publish(&self, event: String) {
        let mut news = self.news();
        *news = PageNews { number: news.number + 1, event: event.into() };
        drop(news);
        self.is_news.notify_all();
    }

    /// Returns the event after number `seen`, or `None` if none has come for a while.
    fn next(&self, seen: u64) -> Option<(u64, Arc<str>)> {
        let waited = self.is_news.wait_timeout_while(self.news(), HEARTBEAT, |news| news.number == seen);
        let (news, _) = unpoisoned(waited);
        (news.number != seen).then(|| (news.number, Arc::clone(&news.event)))
    }
}

fn activity_text(activity: &GroupActivity) -> String {
    let shown = PageActivity { activity, change_lines: change_lines(activity) };
    serde_json::to_string(&shown).expect("numbers and texts can be JSON")
}

/// Returns an event as it is sent: a line of data for each line of text.
fn event(name: &str, text: &str) -> String {
    // A browser takes a carriage return alone for the end of a line.
    let data: String = text.split(['\n', '\r']).map(|line| format!("data: {line}\n")).collect();
    format!("event: {name}\n{data}\n")
}

/// Gives a connection a thread, unless there are too many.
fn begin(stream: TcpStream, state: &Arc<PageState>) {
    let before = state.connections.fetch_add(1, Ordering::Relaxed);
    let own = Arc::clone(state);
    let run = move || {
        // A browser that has gone needs no answer.
        let _ = answer(&stream, &own);
        own.connections.fetch_sub(1, Ordering::Relaxed);
    };
    if before >= CONNECTIONS_MAX || std::thread::Builder::new().spawn(run).is_err() {
        state.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(mut stream: &TcpStream, state: &PageState) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let refused = |status, body: &str| whole(status, "text/plain; charset=utf-8", body);
    let Some(PageRequest { path, hosts }) = read_request(stream)? else {
        return stream.write_all(&refused("400 Bad Request", "this is no GET request of HTTP/1\n"));
    };
    if let Some(other) = hosts.iter().find(|named| !host::is_served(named, &state.host)) {
        return stream.write_all(&refused("421 Misdirected Request", &host::refusal(other)));
    }
    match path.as_str() {
        "/" => stream.write_all(&whole("200 OK", "text/html; charset=utf-8", PAGE)),
        "/events" => send_events(stream, state),
        _ => stream.write_all(&refused("404 Not Found", "there are / and /events\n")),
    }
}

fn whole(status: &str, kind: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends events until the browser has gone.
fn send_events(mut stream: &TcpStream, state: &PageState) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n";
    stream.write_all(format!("{head}{}", event("title", &state.title)).as_bytes())?;
    let mut seen = 0;
    loop {
        match state.next(seen) {
            Some((number, event)) => {
                seen = number;
                stream.write_all(event.as_bytes())?;
            }
            // Without it, a browser that has gone would keep its thread for as long as no member answers.
            None => stream.write_all(b": nothing new\n\n")?,
        }
    }
}

/// What matters of a request.
struct PageRequest {
    path: String,
    /// What its `Host` headers name: one in each request of a browser.
    hosts: Vec<String>,
}

/// Reads a request; returns `None` if it is no GET request. Each byte may come alone, but all of them soon.
fn read_request(mut stream: &TcpStream) -> io::Result<Option<PageRequest>> {
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) if request.method == Some("GET") => {
                let path =
                    request.path.unwrap_or_default().split(['?', '#']).next().unwrap_or_default().into();
                let hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
                let hosts = hosts.map(|header| String::from_utf8_lossy(header.value).into_owned()).collect();
                return Ok(Some(PageRequest { path, hosts }));
            }
            Ok(httparse::Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => {}
            _ => return Ok(None),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1 << 10];
        match stream.read(&mut part)? {
            0 => return Ok(None),
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
}

const PAGE: &str = include_str!("page.html");
/// A person has a few windows open.
const CONNECTIONS_MAX: usize = 32;
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// For a request, and for a browser to take what is sent.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between signs of life while nothing is new.
const HEARTBEAT: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `request` to a server without members; returns the beginning of what comes back, up to `until`.
    fn ask(request: &str, until: &str) -> String {
        let state = PageState {
            title: "squall top: kitchen".into(),
            host: "kitchen.example".into(),
            news: Mutex::default(),
            is_news: Condvar::new(),
            connections: AtomicUsize::new(0),
        };
        state.publish(event("activity", &activity_text(&super::super::example())));
        let state = Arc::new(state);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let mut client = TcpStream::connect(listener.local_addr().expect("it listens")).expect("it accepts");
        begin(listener.accept().expect("a client has come").0, &state);
        client.write_all(request.as_bytes()).expect("it reads");
        let mut answer = Vec::new();
        let mut byte = [0];
        while !String::from_utf8_lossy(&answer).contains(until)
            && client.read(&mut byte).is_ok_and(|count| count > 0)
        {
            answer.push(byte[0]);
        }
        String::from_utf8(answer).expect("it is text")
    }

    #[test]
    fn a_browser_gets_the_page_and_events() {
        let page = ask("GET /?a=b HTTP/1.1\r\nHost: kitchen.example:8080\r\n\r\n", "</html>");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"), "{page}");
        let events = ask("GET /events HTTP/1.1\r\n\r\n", "\"change_lines\"");
        assert!(
            events.contains(
                "event: title\ndata: squall top: kitchen\n\nevent: activity\ndata: {\"members\":[{"
            ),
            "{events}"
        );
        assert!(ask("GET /secret HTTP/1.1\r\n\r\n", "events\n").starts_with("HTTP/1.1 404"));
        assert!(ask("POST / HTTP/1.1\r\n\r\n", "HTTP/1\n").starts_with("HTTP/1.1 400"));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(REQUEST_BYTES_MAX));
        assert!(ask(&long, "HTTP/1\n").starts_with("HTTP/1.1 400"));
    }

    /// A page of another site, whose name leads here, gets neither the page nor the numbers.
    #[test]
    fn a_request_for_another_host_is_refused_with_words() {
        for path in ["/", "/events"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: other.example:8080\r\n\r\n");
            let answer = ask(&request, "--serve\n");
            assert!(answer.starts_with("HTTP/1.1 421 Misdirected Request\r\n"), "{answer}");
            assert!(answer.contains("other.example:8080") && !answer.contains("kitchen"), "{answer}");
        }
        let both = "GET / HTTP/1.1\r\nHost: localhost\r\nHost: other.example\r\n\r\n";
        assert!(ask(both, "--serve\n").starts_with("HTTP/1.1 421"));
    }

    /// A line break in a reason cannot begin an event of its own.
    #[test]
    fn an_event_has_a_line_of_data_for_each_line() {
        assert_eq!(event("silence", "a\nevent: b"), "event: silence\ndata: a\ndata: event: b\n\n");
    }
}
