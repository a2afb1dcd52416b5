//! The page: what the members do, in a browser, pushed by server-sent events.
//!
//! One thread asks the members, for all browsers; a thread for each connection sends what is new. Connections are few
//! ([`CONNECTIONS_MAX`], [`squall_transports::http`]), a request has few bytes and little time, and a browser that does not read is disconnected. The page is for
//! everything that reaches the address, but not for pages of other sites in a browser that does ([`host`](super::host)).

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use squall::config::Address;
use squall_fabric::mutex::{lock, unpoisoned};
use squall_harness::terminal::{error_text, output};
use squall_transports::http::{HttpAnswer, HttpReply, HttpRequest, HttpServer};

use super::{GroupActivity, GroupLook, change_lines, host};

/// What browsers see.
#[derive(Debug)]
struct PageState {
    title: String,
    /// The host of `--serve`, as it was written.
    host: String,
    news: Mutex<PageNews>,
    is_news: Condvar,
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
    look: impl Fn() -> Result<GroupLook>,
) -> Result<Infallible> {
    let Address::Tcp { host, port } = address else {
        anyhow::bail!("--serve {address}: write host:port, since browsers read the page over HTTP")
    };
    let state = Arc::new(PageState::new(title, host.clone()));
    let server = open(&state, *port)
        .with_context(|| format!("failed to listen at {address}: choose another address for --serve"))?;
    output::line(format_args!("http://{}/  (Ctrl-C ends it)", server.address()));
    state.ask(interval, &look)
}

/// Listens at the host of the page.
fn open(state: &Arc<PageState>, port: u16) -> io::Result<HttpServer> {
    let own = Arc::clone(state);
    let answer = move |request: &HttpRequest| answer(request, &own);
    HttpServer::open("squall top", (state.host.as_str(), port), CONNECTIONS_MAX, answer)
}

impl PageState {
    fn new(title: String, host: String) -> Self {
        Self { title, host, news: Mutex::default(), is_news: Condvar::new() }
    }

    fn news(&self) -> MutexGuard<'_, PageNews> {
        lock(&self.news)
    }

    /// Asks the members again and again.
    fn ask(&self, interval: Duration, look: &impl Fn() -> Result<GroupLook>) -> ! {
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
                Err(error) => self.publish(event("silence", &error_text(&error))),
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

fn answer(request: &HttpRequest, state: &Arc<PageState>) -> HttpReply {
    if let Some(other) = request.hosts.iter().find(|named| !host::is_served(named, &state.host)) {
        return HttpAnswer::line(421, &host::refusal(other)).into();
    }
    match request.path.as_str() {
        "/" => HttpAnswer { status: 200, kind: "text/html; charset=utf-8", body: PAGE.into() }.into(),
        "/events" => {
            let state = Arc::clone(state);
            HttpReply::Stream("text/event-stream", Box::new(move |browser| send_events(browser, &state)))
        }
        _ => HttpAnswer::line(404, "there are / and /events").into(),
    }
}

/// Sends events until the browser has gone.
fn send_events(browser: &mut dyn io::Write, state: &PageState) -> io::Result<()> {
    browser.write_all(event("title", &state.title).as_bytes())?;
    let mut seen = 0;
    loop {
        match state.next(seen) {
            Some((number, event)) => {
                seen = number;
                browser.write_all(event.as_bytes())?;
            }
            // Without it, a browser that has gone would keep its thread for as long as no member answers.
            None => browser.write_all(b": nothing new\n\n")?,
        }
    }
}

const PAGE: &str = include_str!("page.html");
/// A person has a few windows open.
const CONNECTIONS_MAX: usize = 32;
/// Between signs of life while nothing is new.
const HEARTBEAT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    /// Sends `request` to a server without members; returns the beginning of what comes back, up to `until`.
    fn ask(request: &str, until: &str) -> String {
        let state = Arc::new(PageState::new("squall top: kitchen".into(), "kitchen.example".into()));
        state.publish(event("activity", &activity_text(&super::super::example())));
        let own = Arc::clone(&state);
        let server =
            HttpServer::open("squall top", ("127.0.0.1", 0), 1, move |request| answer(request, &own));
        let server = server.expect("a port is free");
        let mut client = TcpStream::connect(server.address()).expect("it accepts");
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
        assert!(ask("POST / HTTP/1.1\r\n\r\n", "GET\n").starts_with("HTTP/1.1 405"));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(8 << 10));
        assert!(ask(&long, "long\n").starts_with("HTTP/1.1 431"));
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
