//! Answers to requests of HTTP/1, after which the connection ends (of no paper).

use std::io;

/// What a request is answered with.
pub enum HttpReply {
    /// An answer that is known as a whole.
    Whole(HttpAnswer),
    /// A head with this content type, and then what the function writes until it or the client ends. Each write has
    /// [`PATIENCE`](super::PATIENCE).
    Stream(&'static str, StreamWriter),
}

/// Writes the body of an answer that has no end of its own.
pub type StreamWriter = Box<dyn FnOnce(&mut dyn io::Write) -> io::Result<()>>;

/// An answer that is known as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The content type.
    pub kind: &'static str,
    /// The body.
    pub body: String,
}

impl HttpAnswer {
    /// Returns an answer with a line of text.
    #[must_use]
    pub fn line(status: u16, line: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }

    pub(super) fn bytes(&self, head_only: bool) -> Vec<u8> {
        let mut text = head(self.status, self.kind, Some(self.body.len()));
        if !head_only {
            text.push_str(&self.body);
        }
        text.into_bytes()
    }
}

/// Returns the head of an answer; `length` is that of its body, if that is known.
pub(super) fn head(status: u16, kind: &str, length: Option<usize>) -> String {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    };
    let length = length.map_or_else(String::new, |length| format!("Content-Length: {length}\r\n"));
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\n{length}{allow}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
}

impl From<HttpAnswer> for HttpReply {
    fn from(answer: HttpAnswer) -> Self {
        Self::Whole(answer)
    }
}
